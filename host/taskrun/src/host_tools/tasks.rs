//! `spawn_task` and what belongs to it.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};
use taskrun_journal::event::RunsReport;
use taskrun_journal::hold::WaitMode;
use taskrun_journal::ids::RunId;
use taskrun_journal::list::PAGE_DEFAULT;
use taskrun_journal::runs::{ChildRequest, RunsError, RunsFilter};
use taskrun_journal::spec::RunClass;
use taskrun_journal::stop::CallAbort;

use super::description::QUESTION_BYTES_MAX;
use super::reply::{listed, statuses, task, task_status};
use super::task_runs::seconds;
use super::{Answered, HostCall, Refusal, value};
use crate::ports::tool::{ToolReply, ToolWait};
use crate::scope::RunsQuestion;

#[derive(Deserialize)]
struct Spawn {
    agent: String,
    message: String,
}

#[derive(Deserialize)]
struct Check {
    agent: Option<String>,
    status: Option<String>,
    parent_id: Option<String>,
}

#[derive(Deserialize)]
struct Create {
    agent: String,
    description: String,
}

#[derive(Deserialize)]
struct Complete {
    task_id: String,
    result: String,
    #[serde(default)]
    failed: bool,
}

#[derive(Deserialize)]
struct Ask {
    question: String,
}

#[derive(Deserialize)]
struct Await {
    task_ids: Vec<String>,
    mode: Option<String>,
    timeout_seconds: Option<i64>,
}

impl HostCall<'_> {
    pub(super) async fn spawn_task(&self) -> Answered {
        let Spawn { agent, message } = self.arguments()?;
        let child = ChildRequest { task: message, ..ChildRequest::default() };
        self.begin_task(agent, child).await
    }

    pub(super) async fn create_task(&self) -> Answered {
        let Create { agent, description } = self.arguments()?;
        let class = RunClass::Heartbeat;
        let child = ChildRequest { task: description, class, ..ChildRequest::default() };
        self.begin_task(agent, child).await
    }

    async fn begin_task(&self, agent: String, child: ChildRequest) -> Answered {
        self.check_member(&agent)?;
        let run = self.start(ChildRequest { agent_name: agent, ..child }).await?;
        // Whatever became of it since: a call that is repeated gives its first answer.
        Ok(value(&json!({ "task_id": run.id, "status": "queued" })))
    }

    pub(super) async fn check_tasks(&self) -> Answered {
        let Check { agent, status, parent_id } = self.arguments()?;
        let some = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
        let status = match some(status) {
            None => Vec::new(),
            Some(word) => statuses(word.trim()).ok_or_else(|| {
                self.invalid(format!(
                    "unknown status {word:?}; known are: queued, in_progress, blocked, finished, \
                     failed"
                ))
            })?,
        };
        let filter = RunsFilter {
            status,
            agent_name: some(agent),
            parent_run_id: some(parent_id),
            newest_first: true,
            limit: u32::try_from(PAGE_DEFAULT).ok(),
            ..RunsFilter::default()
        };
        let page = self.ask(RunsQuestion::list(filter)).await?;
        let now = self.scope.now();
        let (tasks, _) = listed(page.runs.iter().map(|run| task(run, now)).collect());
        Ok(value(&Value::Array(tasks)))
    }

    pub(super) async fn complete_task(&self) -> Answered {
        let Complete { task_id, result, failed } = self.arguments()?;
        let question = RunsQuestion::complete_entry(task_id, result, failed);
        let run = match self.scope.ask(question).await {
            Ok(run) => run,
            Err(RunsError::NotFound { id }) => {
                return Err(self.failed("not-found", format!("task {id} is none of this batch")));
            }
            Err(error) => return Err(self.refused(&error)),
        };
        Ok(value(&json!({ "task_id": run.id, "status": task_status(run.status) })))
    }

    pub(super) fn ask_user(&self) -> Answered {
        let Ask { question } = self.arguments()?;
        match question.trim() {
            "" => Err(self.invalid("the question is empty")),
            question if question.len() > QUESTION_BYTES_MAX => {
                Err(self.invalid(format!("the question has more than {QUESTION_BYTES_MAX} bytes")))
            }
            question => Ok(ToolReply::Park(ToolWait::Person {
                question: question.to_owned(),
                timeout: self.call.timeout,
            })),
        }
    }

    pub(super) async fn await_tasks(&self) -> Answered {
        let Await { task_ids, mode, timeout_seconds } = self.arguments()?;
        let mut seen = BTreeSet::new();
        let ids = task_ids.iter().map(|id| id.trim().to_owned());
        let ids: Vec<String> = ids.filter(|id| seen.insert(id.clone())).collect();
        match self.scope.ask(RunsQuestion::check_awaited(ids.clone())).await {
            Ok(()) => {}
            Err(RunsError::NotFound { id }) => {
                return Err(self.failed("not-found", format!("task {id} not found")));
            }
            Err(error) => return Err(self.refused(&error)),
        }
        let runs = ids.iter().map(|id| RunId::new(id)).collect::<Result<Vec<_>, _>>();
        let runs = runs.map_err(|_| Refusal::Aborted(CallAbort::Internal))?;
        let mode = match mode.as_deref() {
            Some("any") => WaitMode::Any,
            Some(_) | None => WaitMode::All,
        };
        let timeout = self.at_most(seconds(timeout_seconds));
        let report = RunsReport::Tasks;
        Ok(ToolReply::Park(ToolWait::Runs { runs, mode, timeout, report }))
    }
}
