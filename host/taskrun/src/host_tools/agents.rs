//! Agents as tools: calling one starts a run of it, and what that gives is the call's result.

use serde::Deserialize;
use serde_json::json;
use taskrun_journal::runs::ChildRequest;
use taskrun_journal::spec::TASK_BYTES_MAX;
use taskrun_journal::time::millis;
use taskrun_journal::tool::{ToolHints, ToolSpec};
use taskrun_policy::AGENTS;

use super::task_runs::run_id;
use super::{Answered, HostCall};
use crate::ports::tool::{ToolReply, ToolWait};
use crate::scope::RunsQuestion;

/// The arguments of a call.
#[derive(Deserialize)]
struct Request {
    #[serde(alias = "task")]
    request: String,
    #[serde(default)]
    context: Option<String>,
}

/// The description of an agent, for the model that chooses.
pub(super) fn spec(agent: &str, description: Option<&str>) -> ToolSpec {
    let description = description.map_or_else(
        || format!("Gives a task to the agent {agent} and returns its answer."),
        str::to_owned,
    );
    ToolSpec {
        name: agent.to_owned(),
        title: None,
        description,
        input_schema: schema("request"),
        output_schema: None,
        // A repeated call finds the run that it has started.
        hints: ToolHints { idempotent: true, ..ToolHints::default() },
        timeout: None,
        tags: vec![AGENTS.to_owned()],
        stated_tags: vec![AGENTS.to_owned()],
    }
}

/// The arguments that are accepted beside those of the description, of which models are not told.
pub(crate) fn accepted_schema() -> String {
    schema("task")
}

fn schema(request: &str) -> String {
    let schema = json!({
        "type": "object",
        "properties": {
            request: {
                "type": "string",
                "minLength": 1,
                "maxLength": TASK_BYTES_MAX,
                "description": "What is to be done, with all that is needed to do it.",
            },
            "context": {
                "type": "string",
                "maxLength": TASK_BYTES_MAX,
                "description": "What the agent is to know beside the request.",
            },
        },
        "required": [request],
        "additionalProperties": false,
    });
    schema.to_string()
}

impl HostCall<'_> {
    /// Begins the run and waits for nothing: the call is parked until it has ended, without a slot.
    pub(super) async fn call_agent(&self) -> Answered {
        let Request { request, context } = self.arguments()?;
        let child = ChildRequest {
            agent_name: self.call.name.clone(),
            task: request,
            context: context.filter(|text| !text.trim().is_empty()),
            timeout_ms: self.call.timeout.map(millis),
            parent_tool_call_id: self.scope.context().parent_tool_call_id.clone(),
            ..ChildRequest::default()
        };
        let run = self.ask(RunsQuestion::spawn(child)).await?;
        let (run, agent_name) = (run_id(&run)?, self.call.name.clone());
        Ok(ToolReply::Park(ToolWait::Child { run, agent_name }))
    }
}

#[cfg(test)]
mod tests {
    use crate::agents::{AgentTools, Callee};
    use crate::arguments::TurnSteps;
    use taskrun_policy::{CallTimeouts, Limits};

    #[tokio::test]
    async fn c_060_what_does_not_fit_is_refused_before_any_run_is_started() {
        let callee = Callee { name: "researcher".to_owned(), description: None };
        let tools = AgentTools::none()
            .with_agents(&[callee], (&Limits::default(), &CallTimeouts::default()));
        let tools = tools.expect("the host's own schema is one");
        let tool = tools.get("agent/researcher").expect("it is there");
        let steps = TurnSteps::default();
        for payload in [
            r#"{"request":"look"}"#,
            r#"{"request":"look","context":"at this"}"#,
            r#"{"task":"look"}"#,
            r#"{"task":"look","context":"at this"}"#,
        ] {
            assert!(tool.check(payload, &steps).await.is_ok(), "{payload}");
        }
        for payload in [
            "{}",
            r#"{"request":""}"#,
            r#"{"task":""}"#,
            r#"{"request":1}"#,
            r#"{"request":"a","task":"a"}"#,
            r#"{"task":"a","more":1}"#,
            "no",
        ] {
            let failure = tool.check(payload, &steps).await.expect_err(payload);
            assert_eq!(failure.error.code.as_deref(), Some("invalid-arguments"), "{payload}");
        }
        let failure = tool.check("{}", &steps).await.expect_err("nothing is asked");
        assert!(failure.error.message.contains("request"), "{}", failure.error.message);
    }
}
