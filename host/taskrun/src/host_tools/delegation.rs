//! `delegate_task`, `delegate` and `transfer_to_agent`.

use serde::Deserialize;
use serde_json::{Map, Value};
use taskrun_journal::event::RunsReport;
use taskrun_journal::hold::WaitMode;
use taskrun_journal::operation::Operation;
use taskrun_journal::runs::ChildRequest;
use taskrun_journal::time::millis;

use super::reply::delegated;
use super::task_runs::run_id;
use super::{Answered, HostCall, value};
use crate::ports::tool::{ToolReply, ToolWait};
use crate::scope::RunsQuestion;

#[derive(Deserialize)]
struct DelegateTask {
    agent: String,
    task: String,
    #[serde(default)]
    context: Map<String, Value>,
    #[serde(default)]
    share_channels: Vec<String>,
}

#[derive(Deserialize)]
struct Delegate {
    tasks: Vec<Task>,
}

#[derive(Deserialize)]
struct Task {
    agent: String,
    message: String,
}

#[derive(Deserialize)]
struct Transfer {
    agent: String,
}

impl HostCall<'_> {
    pub(super) async fn delegate_task(&self) -> Answered {
        let DelegateTask { agent, task, context, share_channels } = self.arguments()?;
        self.check_member(&agent)?;
        let context = (!context.is_empty()).then(|| Value::Object(context).to_string());
        let child = ChildRequest {
            agent_name: agent,
            task,
            context,
            in_room: true,
            share_channels,
            ..ChildRequest::default()
        };
        let run = self.start(child).await?;
        Ok(value(&delegated(&run)))
    }

    /// Starts all of them or none, each attached to the caller's run: nobody else reads what they
    /// give. The call is parked until all have ended.
    pub(super) async fn delegate(&self) -> Answered {
        self.allow(Operation::Wait)?;
        let Delegate { tasks } = self.arguments()?;
        let mut children = Vec::with_capacity(tasks.len());
        for Task { agent, message } in tasks {
            self.check_member(&agent)?;
            let child = ChildRequest { agent_name: agent, task: message, ..Default::default() };
            children.push(ChildRequest { attached: true, ..child });
        }
        let page = self.begun(self.scope.ask(RunsQuestion::spawn_all(children)).await)?;
        let runs = page.runs.iter().map(run_id).collect::<Result<Vec<_>, _>>()?;
        let (mode, timeout) = (WaitMode::All, self.at_most(None));
        Ok(ToolReply::Park(ToolWait::Runs { runs, mode, timeout, report: RunsReport::Tasks }))
    }

    /// Begins the run that answers in the caller's place. As long as it has not ended with an answer
    /// the conversation is the caller's: a call that failed is one like any other.
    pub(super) async fn transfer_to_agent(&self) -> Answered {
        let Transfer { agent } = self.arguments()?;
        self.check_member(&agent)?;
        let child = ChildRequest {
            agent_name: agent.clone(),
            timeout_ms: self.call.timeout.map(millis),
            parent_tool_call_id: self.scope.context().parent_tool_call_id.clone(),
            hands_over: true,
            ..ChildRequest::default()
        };
        let run = self.start(child).await?;
        Ok(ToolReply::Park(ToolWait::Child { run: run_id(&run)?, agent_name: agent }))
    }
}
