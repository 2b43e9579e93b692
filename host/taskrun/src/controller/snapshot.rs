//! A run with what it did and does, as its journal tells it.

use std::ops::ControlFlow;

use serde::Serialize;
use taskrun_journal::event::{
    CallEvent, DialogEvent, Event, EventRecord, EventView, LifecycleEvent, StepEvent,
};
use taskrun_journal::ids::RunId;
use taskrun_journal::list::{ListFilter, PAGE_MAX};
use taskrun_journal::message::ToolError;
use taskrun_journal::question::{Answer, AwaitItem};
use taskrun_journal::run::{Run, RunView, SUMMARY_CHARS_MAX};
use taskrun_journal::status::Status;
use taskrun_journal::text::first_chars;
use taskrun_journal::time::{Timestamp, millis};
use taskrun_journal::tool::ToolOutcome;

use super::Client;
use crate::driver::{overtaken, result_from_outside, unanswered};
use crate::error::ControllerError;
use crate::scan::{WHOLE, scan};

/// A run, its phase, its tool calls and the runs that it started.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunSnapshot {
    /// The run, with its pause and the questions that it waits for.
    #[serde(flatten)]
    pub run: RunView,
    /// The phase of its work.
    pub phase: RunPhase,
    /// Its tool calls, in the order in which they were decided on.
    pub calls: Vec<CallSummary>,
    /// The runs that it started, the one that changed last first.
    pub children: Vec<ChildSummary>,
}

/// The phase of a run's work. A run that waits or is paused has the one in which it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunPhase {
    /// It was accepted, and has not begun.
    Prompted,
    /// A plan step is under way, or is next.
    Planning,
    /// Tool calls are under way, or wait.
    ExecutingTools,
    /// The last word is asked for, or the last work before the end is done.
    Synthesizing,
    /// It completed.
    Completed,
    /// It failed.
    Failed,
    /// It was canceled, or is being canceled.
    Canceled,
}

impl RunPhase {
    /// The word of the JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prompted => "prompted",
            Self::Planning => "planning",
            Self::ExecutingTools => "executing_tools",
            Self::Synthesizing => "synthesizing",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }
}

/// A tool call of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallSummary {
    /// Id of the call.
    pub tool_call_id: String,
    /// Qualified name of the tool.
    pub tool_name: String,
    /// The stage of the call.
    pub status: CallStatus,
    /// The error in words, of at most [`SUMMARY_CHARS_MAX`] characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The word for it, of the tool or of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// The time that it took; absent for one that did not begin or has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The run that does its work, for an agent that is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_run_id: Option<RunId>,
    /// The number of the lasting consent by which it began, or was refused, and nobody was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consent: Option<u64>,
}

impl CallSummary {
    /// Notes an error.
    fn fail(&mut self, error: &ToolError) {
        self.error = Some(first_chars(&error.message, SUMMARY_CHARS_MAX).to_owned());
        self.error_code.clone_from(&error.code);
    }
}

/// The stage of a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    /// It was decided on and has not begun; or it is executed outside, or waits for something.
    Waiting,
    /// It is executed.
    Running,
    /// It gave a result.
    Completed,
    /// It failed, was stopped while it was executed, was under way as its run ended, or is executed
    /// outside and got no result in time.
    Failed,
    /// The host did not have it executed.
    Refused,
}

impl CallStatus {
    /// The word of the JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }
}

/// A run that another one started.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChildSummary {
    /// Id of the run.
    pub id: RunId,
    /// Its agent.
    pub agent_name: String,
    /// Its status.
    pub status: Status,
    /// The tool call that it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_tool_call_id: Option<String>,
}

/// A tool call of a journal, as far as it has been read.
struct LoggedCall {
    summary: CallSummary,
    /// It was begun at least once.
    has_begun: bool,
    /// It is executed outside, and nobody says when it begins.
    is_outside: bool,
}

/// The fold of a journal to the calls of its run.
#[derive(Default)]
struct CallLog {
    calls: Vec<LoggedCall>,
    /// Calls that are executed outside, with the item and the time at which they were asked for.
    outside: Vec<(String, Timestamp, String)>,
    has_begun: bool,
    is_last_word: bool,
}

impl CallLog {
    fn push(&mut self, recorded: &EventRecord) {
        match recorded.event.view() {
            EventView::Lifecycle(LifecycleEvent::Started { .. }) => self.has_begun = true,
            EventView::Dialog(event) => self.push_dialog(event, recorded.at),
            EventView::Call(event) => self.push_call(event, &recorded.event),
            EventView::Step(StepEvent::FinalizeRequested { .. }) => self.is_last_word = true,
            EventView::Lifecycle(_)
            | EventView::Step(_)
            | EventView::Taped(_)
            | EventView::Account(_) => {}
        }
    }

    fn push_dialog(&mut self, event: DialogEvent<'_>, at: Timestamp) {
        match event {
            DialogEvent::AssistantMessage { message, .. } => {
                for call in message.tool_uses() {
                    self.decide(&call.tool_call_id, &call.name, false);
                }
            }
            DialogEvent::Asked { item } => {
                if let AwaitItem::ExternalTools { id, items } = &item.what {
                    for call in items {
                        self.decide(&call.tool_call_id, &call.name, true);
                        self.outside.push((id.clone(), at, call.tool_call_id.clone()));
                    }
                }
            }
            DialogEvent::Answered { item, answer, .. } => self.answer(item, answer, at),
            DialogEvent::HistoryCarried { .. }
            | DialogEvent::Reported { .. }
            | DialogEvent::Injected { .. }
            | DialogEvent::InboxShown { .. } => {}
        }
    }

    fn push_call(&mut self, view: CallEvent<'_>, event: &Event) {
        match view {
            CallEvent::ToolCallScheduled { tool_call_id, .. }
            | CallEvent::ToolCallRepeated { tool_call_id, .. } => {
                self.with(tool_call_id, |call| {
                    call.has_begun = true;
                    call.summary.status = CallStatus::Running;
                });
            }
            CallEvent::ToolCallParked { tool_call_id, .. } => {
                self.with(tool_call_id, |call| call.summary.status = CallStatus::Waiting);
            }
            CallEvent::ToolResult { output, duration_ms, refused } => {
                self.end(&output.tool_call_id, &output.outcome, (refused.is_some(), duration_ms));
            }
            CallEvent::ChildRunLinked { run_id, .. } => {
                if let Event::ChildRunLinked { tool_call_id, .. } = event {
                    self.with(tool_call_id, |call| {
                        call.summary.child_run_id = Some(run_id.clone());
                    });
                }
            }
            CallEvent::ToolAuthorization { tool_call_id, consent, .. } => {
                self.with(tool_call_id, |call| call.summary.consent = consent);
            }
            CallEvent::Marked { .. } | CallEvent::ToolCallUpdated { .. } => {}
        }
    }

    /// Questions to the outside are answered: calls that are executed there have their results.
    fn answer(&mut self, item: &str, answer: &Answer, at: Timestamp) {
        let (answered, open) = std::mem::take(&mut self.outside)
            .into_iter()
            .partition::<Vec<_>, _>(|(asked, ..)| asked == item);
        self.outside = open;
        // Such an answer is the host's own, and there at once.
        let by_host = matches!(answer, Answer::Refused(_));
        for (_, asked_at, id) in answered {
            let outcome = result_from_outside(&id, answer).outcome;
            self.end(&id, &outcome, (by_host, millis(at.since(asked_at))));
        }
    }

    fn decide(&mut self, id: &str, name: &str, is_outside: bool) {
        let summary = CallSummary {
            tool_call_id: id.to_owned(),
            tool_name: name.to_owned(),
            status: CallStatus::Waiting,
            error: None,
            error_code: None,
            duration_ms: None,
            child_run_id: None,
            consent: None,
        };
        self.calls.push(LoggedCall { summary, has_begun: false, is_outside });
    }

    /// A call has its result, so long after it began. One that the host itself gave means a refusal
    /// only if the call had not begun.
    fn end(&mut self, id: &str, outcome: &ToolOutcome, (by_host, ms): (bool, u64)) {
        self.with(id, |call| {
            let LoggedCall { summary, has_begun, .. } = call;
            let is_refused = by_host && !*has_begun;
            summary.duration_ms = (!is_refused).then_some(ms);
            summary.status = match (is_refused, outcome) {
                (true, _) => CallStatus::Refused,
                (false, ToolOutcome::Value(_)) => CallStatus::Completed,
                (false, ToolOutcome::Failure(_)) => CallStatus::Failed,
            };
            if let ToolOutcome::Failure(failure) = outcome {
                summary.fail(&failure.error);
            }
        });
    }

    /// Changes the last call of an id that has not ended.
    fn with(&mut self, id: &str, change: impl FnOnce(&mut LoggedCall)) {
        let is_it = |call: &&mut LoggedCall| {
            call.summary.tool_call_id == id && !call.summary.status.is_over()
        };
        if let Some(call) = self.calls.iter_mut().rev().find(is_it) {
            change(call);
        }
    }

    /// The calls of a run of this status. Those without a result get none where it has ended.
    fn into_calls(self, status: Status) -> Vec<CallSummary> {
        let ended = |call: LoggedCall| {
            let LoggedCall { mut summary, has_begun, is_outside } = call;
            if status.is_terminal() && !summary.status.is_over() {
                let is_under_way = is_outside || summary.status == CallStatus::Running;
                let (stage, error) = match has_begun || is_outside {
                    true => (CallStatus::Failed, unanswered(is_under_way)),
                    false => (CallStatus::Refused, overtaken()),
                };
                summary.status = stage;
                summary.fail(&error);
            }
            summary
        };
        self.calls.into_iter().map(ended).collect()
    }

    fn phase(&self, status: Status) -> RunPhase {
        let is_calling = self.calls.iter().any(|call| !call.summary.status.is_over());
        match status {
            Status::Completed => RunPhase::Completed,
            Status::Failed => RunPhase::Failed,
            Status::Canceled | Status::Canceling => RunPhase::Canceled,
            Status::Finalizing => RunPhase::Synthesizing,
            Status::Queued | Status::Running | Status::Blocked => {
                match (self.has_begun, self.is_last_word) {
                    (false, _) => RunPhase::Prompted,
                    (true, true) => RunPhase::Synthesizing,
                    (true, false) if is_calling => RunPhase::ExecutingTools,
                    (true, false) => RunPhase::Planning,
                }
            }
        }
    }
}

impl CallStatus {
    fn is_over(self) -> bool {
        match self {
            Self::Waiting | Self::Running => false,
            Self::Completed | Self::Failed | Self::Refused => true,
        }
    }
}

impl Client {
    /// A run with its phase, its tool calls and the runs that it started. Reads the whole journal.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn snapshot(&self, id: &str) -> Result<RunSnapshot, ControllerError> {
        let run = self.get(id).await?;
        let mut log = CallLog::default();
        let (after, to) = WHOLE;
        let to = to.min(run.state.head);
        let see = |recorded: EventRecord| {
            log.push(&recorded);
            ControlFlow::Continue(())
        };
        scan(&*self.controller.0.parts.store, run.id(), (after, to), see).await?;
        let children = self.children_of(&run).await?;
        let count = self.controller.children(&run).await?;
        Ok(RunSnapshot {
            phase: log.phase(run.status()),
            run: RunView::with_children(&run, count),
            calls: log.into_calls(run.status()),
            children,
        })
    }

    async fn children_of(&self, run: &Run) -> Result<Vec<ChildSummary>, ControllerError> {
        let filter = ListFilter { parent_run_id: Some(run.id().clone()), ..ListFilter::default() };
        let (mut children, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.list(&filter, cursor.as_ref(), PAGE_MAX).await?;
            children.extend(page.runs.iter().map(|child| ChildSummary {
                id: child.id().clone(),
                agent_name: child.spec.agent_name.clone(),
                status: child.status(),
                parent_tool_call_id: child.spec.parent_tool_call_id.clone(),
            }));
            cursor = page.next;
            if cursor.is_none() {
                return Ok(children);
            }
        }
    }
}
