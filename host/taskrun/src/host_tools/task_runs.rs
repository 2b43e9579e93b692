//! `start_task_run` and what belongs to it.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use taskrun_journal::event::RunsReport;
use taskrun_journal::hold::WaitMode;
use taskrun_journal::ids::RunId;
use taskrun_journal::operation::Operation;
use taskrun_journal::runs::{ChildRequest, RunInfo, RunsError, RunsFilter};
use taskrun_journal::stop::CallAbort;
use taskrun_journal::time::millis;
use taskrun_policy::HostFunction;

use super::reply::{listed, result_part, task_run, whole};
use super::{Answered, Callable, HostCall, Refusal, value};
use crate::controller::TRANSCRIPT_DEFAULT;
use crate::ports::tool::{ToolReply, ToolWait};
use crate::scope::RunsQuestion;

#[derive(Deserialize)]
struct Start {
    task: String,
    agent_name: Option<String>,
    mode: Option<String>,
    timeout_seconds: Option<i64>,
    wait_timeout_seconds: Option<i64>,
}

#[derive(Deserialize)]
struct One {
    id: String,
}

#[derive(Deserialize)]
struct Get {
    id: String,
    result_from: Option<i64>,
}

#[derive(Deserialize)]
struct WaitOne {
    id: String,
    timeout_seconds: Option<i64>,
}

#[derive(Deserialize)]
struct Read {
    id: String,
    limit: Option<i64>,
}

/// Most runs that are listed: of more there is no room for their words.
const LISTED_MAX: u32 = 40;

/// Zero and less are no limit.
pub(super) fn seconds(given: Option<i64>) -> Option<Duration> {
    let seconds = u64::try_from(given?).ok().filter(|seconds| *seconds > 0)?;
    Some(Duration::from_secs(seconds))
}

/// The wait of a call for one run.
fn wait_for(run: RunId, timeout: Option<Duration>) -> ToolReply {
    let (runs, mode) = (vec![run], WaitMode::All);
    ToolReply::Park(ToolWait::Runs { runs, mode, timeout, report: RunsReport::Run })
}

impl HostCall<'_> {
    pub(super) async fn start_task_run(&self) -> Answered {
        let start: Start = self.arguments()?;
        let sync = match start.mode.as_deref().map(str::trim) {
            None | Some("" | "async") => false,
            Some("sync") => true,
            Some(_) => return Err(self.invalid("unsupported mode")),
        };
        if sync {
            self.allow(Operation::Wait)?;
        }
        let named = start.agent_name.as_deref().map(str::trim).filter(|name| !name.is_empty());
        let agent_name = match (named, self.members) {
            (Some(name), _) => name,
            (None, [only]) => only,
            (None, members) => {
                let reason = format!("agent_name is missing; it is one of: {}", members.join(", "));
                return Err(self.invalid(reason));
            }
        };
        self.check_member(agent_name)?;
        let child = ChildRequest {
            agent_name: agent_name.to_owned(),
            task: start.task,
            timeout_ms: seconds(start.timeout_seconds).map(millis),
            // Otherwise a call that is made again would tell of an end that is reported as well.
            as_accepted: true,
            ..ChildRequest::default()
        };
        let run = self.start(child).await?;
        if !sync {
            return Ok(value(&task_run(&run)));
        }
        Ok(wait_for(run_id(&run)?, self.at_most(seconds(start.wait_timeout_seconds))))
    }

    /// Starts a run beneath the caller's. A run that may start none is told so in the documented
    /// words.
    pub(super) async fn start(&self, child: ChildRequest) -> Result<RunInfo, Refusal> {
        self.begun(self.scope.ask(RunsQuestion::spawn(child)).await)
    }

    /// The answer to a request that starts runs.
    pub(super) fn begun<A>(&self, answer: Result<A, RunsError>) -> Result<A, Refusal> {
        answer.map_err(|error| {
            if let RunsError::Limit { kind, cap } = &error
                && kind == "depth"
            {
                // By these nothing is nested as a rule; by others each level but the last is.
                let is_flat = matches!(
                    self.callable,
                    Callable::Function(
                        HostFunction::StartTaskRun
                            | HostFunction::SpawnTask
                            | HostFunction::CreateTask
                    )
                );
                let text = match is_flat {
                    true => "nested task runs are not supported".to_owned(),
                    false => format!("depth limit reached ({cap})"),
                };
                return self.failed("limit", text);
            }
            self.refused(&error)
        })
    }

    pub(super) async fn list_task_runs(&self) -> Answered {
        let filter = RunsFilter { limit: Some(LISTED_MAX), ..RunsFilter::default() };
        let page = self.ask(RunsQuestion::list(filter)).await?;
        let (runs, is_cut) = listed(page.runs.iter().map(whole).collect());
        let mut shown = json!({ "runs": runs });
        if is_cut || page.next.is_some() {
            shown["truncated"] = json!(true);
        }
        Ok(value(&shown))
    }

    pub(super) async fn get_task_run(&self) -> Answered {
        let Get { id, result_from } = self.arguments()?;
        let id = self.id(&id)?;
        let Some(from) = result_from else {
            let run = self.ask(RunsQuestion::get(id)).await?;
            return Ok(value(&task_run(&run)));
        };
        let from = u64::try_from(from).unwrap_or_default();
        let part = self.ask(RunsQuestion::output(id.clone(), from)).await?;
        Ok(value(&result_part(&id, &part)))
    }

    /// Cancels a run and everything beneath it. Rules name it by `cancel`, and not by the operation
    /// of a component that asks for the same.
    pub(super) async fn cancel_task_run(&self) -> Answered {
        let One { id } = self.arguments()?;
        let done = self.ask(RunsQuestion::cancel_tree(self.id(&id)?, None)).await?;
        Ok(value(&task_run(&done.run)))
    }

    pub(super) async fn wait_task_run(&self) -> Answered {
        let WaitOne { id, timeout_seconds } = self.arguments()?;
        let id = self.id(&id)?;
        // Also where that has ended: the result of a wait is recorded by the driver, so that the run is
        // not told of it again.
        let run = self.ask(RunsQuestion::wait(id, Some(0))).await?.run;
        Ok(wait_for(run_id(&run)?, self.at_most(seconds(timeout_seconds))))
    }

    pub(super) async fn read_task_run_transcript(&self) -> Answered {
        let Read { id, limit } = self.arguments()?;
        let id = self.id(&id)?;
        let limit = limit.and_then(|limit| u32::try_from(limit).ok()).filter(|limit| *limit > 0);
        let limit = limit.unwrap_or(TRANSCRIPT_DEFAULT as u32);
        let text = self.ask(RunsQuestion::transcript(id, limit)).await?;
        let read: Value =
            serde_json::from_str(&text).map_err(|_| Refusal::Aborted(CallAbort::Internal))?;
        Ok(value(&read))
    }

    /// A wait, at most as long as the policy and the request let calls of the function take.
    pub(super) fn at_most(&self, wait: Option<Duration>) -> Option<Duration> {
        wait.into_iter().chain(self.call.timeout).min()
    }

    fn id(&self, id: &str) -> Result<String, Refusal> {
        match id.trim() {
            "" => Err(self.invalid("empty run id")),
            id => Ok(id.to_owned()),
        }
    }
}

pub(super) fn run_id(run: &RunInfo) -> Result<RunId, Refusal> {
    RunId::new(&run.id).map_err(|_| Refusal::Aborted(CallAbort::Internal))
}
