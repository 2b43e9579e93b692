//! Agents as tools: calling one starts a run of it, and what that gives is the call's result.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use taskrun_journal::message::{RetryHint, RetryReason, ToolError};
use taskrun_journal::runs::{ChildRequest, RunsError};
use taskrun_journal::spec::TASK_BYTES_MAX;
use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_journal::time::millis;
use taskrun_journal::tool::{ToolFailure, ToolHints, ToolSpec};
use taskrun_policy::AGENTS;

use crate::ports::tool::{Tool, ToolCall, ToolReply, ToolWait};
use crate::scope::{CallScope, RunsQuestion};

/// Begins runs of one agent for the calls of another. It waits for nothing: the call is parked
/// until its run has ended, without a slot.
pub(crate) struct Delegate {
    agent: String,
    specs: [ToolSpec; 1],
}

/// The arguments of a call.
#[derive(Deserialize)]
struct Arguments {
    task: String,
    #[serde(default)]
    context: Option<String>,
}

impl Delegate {
    /// For calls of this agent, which is described to models so.
    pub(crate) fn new(agent: &str, description: Option<&str>) -> Self {
        let description = description.map_or_else(
            || format!("Gives a task to the agent {agent} and returns its answer."),
            str::to_owned,
        );
        let schema = serde_json::json!({
            "type": "object",
            "properties": {
                "task": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": TASK_BYTES_MAX,
                    "description": "What is to be done, with all that is needed to do it.",
                },
                "context": {
                    "type": "string",
                    "maxLength": TASK_BYTES_MAX,
                    "description": "What the agent is to know beside the task.",
                },
            },
            "required": ["task"],
            "additionalProperties": false,
        });
        let spec = ToolSpec {
            name: agent.to_owned(),
            title: None,
            description,
            input_schema: schema.to_string(),
            output_schema: None,
            // A repeated call finds the run that it has started.
            hints: ToolHints { idempotent: true, ..ToolHints::default() },
            timeout: None,
            tags: vec![AGENTS.to_owned()],
            tags_stated: true,
        };
        Self { agent: agent.to_owned(), specs: [spec] }
    }

    fn refused(&self, code: &str, text: &str) -> ToolFailure {
        let error = ToolError::coded(code, format!("{AGENTS}/{}: {text}", self.agent));
        ToolFailure { error, retry_hint: None }
    }

    /// The failure of a call whose run was not started.
    fn failure(&self, error: &RunsError) -> ToolFailure {
        let code = match error {
            RunsError::Forbidden { .. } => "denied",
            RunsError::Limit { .. } => "limit",
            RunsError::Storage { .. } => "storage",
            RunsError::Invalid { .. } => {
                let mut refused = self.refused("invalid-arguments", &error.to_string());
                let name = format!("{AGENTS}/{}", self.agent);
                let hint = RetryHint::new(RetryReason::InvalidArguments, &name);
                refused.retry_hint = Some(Box::new(hint));
                return refused;
            }
            RunsError::NotFound { .. }
            | RunsError::AlreadyExists { .. }
            | RunsError::NotStarted
            | RunsError::Closed
            | RunsError::SessionEnded
            | RunsError::NotAwaitable { .. }
            | RunsError::Cycle { .. }
            | RunsError::Canceled => "not-started",
        };
        self.refused(code, &error.to_string())
    }
}

#[async_trait]
impl Tool for Delegate {
    fn digest(&self) -> &str {
        "host"
    }

    fn hears_cancellation(&self) -> bool {
        true
    }

    fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    async fn call(
        &self,
        call: ToolCall,
        scope: Arc<CallScope>,
    ) -> Result<Result<ToolReply, ToolFailure>, CallAbort> {
        let arguments: Arguments = match serde_json::from_str(&call.payload) {
            Ok(arguments) => arguments,
            // The schema has let it through.
            Err(error) => return Ok(Err(self.refused("invalid-arguments", &error.to_string()))),
        };
        let question = RunsQuestion::spawn(ChildRequest {
            agent_name: self.agent.clone(),
            task: arguments.task,
            context: arguments.context.filter(|text| !text.trim().is_empty()),
            timeout_ms: call.timeout.map(millis),
            parent_tool_call_id: scope.context().parent_tool_call_id.clone(),
            ..ChildRequest::default()
        });
        match scope.ask(question).await {
            Ok(run) => {
                let run =
                    taskrun_journal::ids::RunId::new(&run.id).map_err(|_| CallAbort::Internal)?;
                let agent_name = self.agent.clone();
                Ok(Ok(ToolReply::Park(ToolWait::Child { run, agent_name })))
            }
            Err(RunsError::Canceled) => {
                let cause = scope.stop().cause().unwrap_or(StopCause::Canceled);
                Err(CallAbort::Stopped { cause })
            }
            Err(error) => Ok(Err(self.failure(&error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::agents::{AgentTools, Callee};
    use crate::arguments::TurnSteps;
    use taskrun_policy::{CallTimeouts, Limits};

    #[tokio::test]
    async fn l_048_what_does_not_fit_is_refused_before_any_run_is_started() {
        let callee = Callee { name: "researcher".to_owned(), description: None };
        let tools = AgentTools::none()
            .with_agents(&[callee], (&Limits::default(), &CallTimeouts::default()));
        let tools = tools.expect("the host's own schema is one");
        let tool = tools.get("agent/researcher").expect("it is there");
        let steps = TurnSteps::default();
        for payload in [r#"{"task":"look"}"#, r#"{"task":"look","context":"at this"}"#] {
            assert!(tool.check(payload, &steps).await.is_ok(), "{payload}");
        }
        for payload in ["{}", r#"{"task":""}"#, r#"{"task":1}"#, r#"{"task":"a","more":1}"#, "no"] {
            let failure = tool.check(payload, &steps).await.expect_err(payload);
            assert_eq!(failure.error.code.as_deref(), Some("invalid-arguments"), "{payload}");
        }
    }
}
