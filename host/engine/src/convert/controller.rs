//! Requests to the controller, and its answers.

use std::collections::BTreeMap;

use taskrun_journal::delivery::{DeliverySettings, Strategy};
use taskrun_journal::hold::Await;
use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::question::{Answer, AnswerRefusal, ExternalResult};
use taskrun_journal::runs as port;
use taskrun_journal::spec::RunClass;
use taskrun_journal::status::Status;
use taskrun_journal::tool::{ToolFailure, ToolOutcome};

use super::{labels_from_guest, labels_to_guest};
use crate::bindings::interfaces::controller as guest;

pub(crate) fn child_from_guest(request: guest::SpawnRequest) -> port::ChildRequest {
    port::ChildRequest {
        agent_name: request.agent_name,
        task: request.task,
        images: request.images.into_iter().map(Into::into).collect(),
        timeout_ms: request.timeout,
        labels: labels_from_guest(request.labels),
        metadata: labels_from_guest(request.metadata),
        envelope: labels_from_guest(request.envelope),
        class: RunClass::Task,
        context: None,
        parent_tool_call_id: None,
        name: request.name,
        narrow: narrowing_from_guest(request.narrow),
        attached: request.attached,
        delivery: request.delivery.map(delivery_from_guest),
        in_room: false,
        share_channels: Vec::new(),
        hands_over: false,
        as_accepted: false,
        key: request.key,
    }
}

fn narrowing_from_guest(narrow: guest::Narrowing) -> Narrowing {
    Narrowing {
        tools: narrow.tools,
        deny: narrow.deny,
        only_tags: narrow.only_tags,
        deny_tags: narrow.deny_tags,
        turns: narrow.turns,
        tokens: narrow.tokens,
        prompt_tokens: narrow.prompt_tokens,
        completion_tokens: narrow.completion_tokens,
        cost_microusd: narrow.cost_microusd,
        tool_calls: narrow.tool_calls,
        turn_calls: narrow.turn_calls,
        tool_failures: narrow.tool_failures,
        wall_ms: narrow.wall,
        timeouts: least_timeouts(narrow.timeouts),
        step_ms: narrow.step,
        last_step_ms: narrow.last_step,
        no_pause: narrow.no_pause,
    }
}

/// The shortest of the bounds of each function.
fn least_timeouts(timeouts: Vec<guest::CallTimeout>) -> BTreeMap<String, u64> {
    let mut least = BTreeMap::new();
    for guest::CallTimeout { function, timeout } in timeouts {
        least
            .entry(function)
            .and_modify(|least: &mut u64| *least = timeout.min(*least))
            .or_insert(timeout);
    }
    least
}

fn delivery_from_guest(delivery: guest::Delivery) -> DeliverySettings {
    let guest::Delivery { strategy, notify, prompt } = delivery;
    let strategy = match strategy {
        guest::DeliveryStrategy::None => None,
        guest::DeliveryStrategy::ContextOnly => Some(Strategy::ContextOnly),
        guest::DeliveryStrategy::Immediate => Some(Strategy::Immediate),
        guest::DeliveryStrategy::WaitForIdle(guest::IdleWait { buffer, timeout }) => {
            Some(Strategy::WaitForIdle { buffer_ms: buffer, timeout_ms: timeout, interrupt: false })
        }
        guest::DeliveryStrategy::Queued((guest::IdleWait { buffer, timeout }, separator)) => {
            Some(Strategy::Queued { buffer_ms: buffer, timeout_ms: timeout, separator })
        }
    };
    DeliverySettings { strategy, notify, prompt }
}

/// All of a filter but its page.
pub(crate) fn filter_from_guest(filter: guest::ListFilter) -> port::RunsFilter {
    port::RunsFilter {
        status: filter.status.into_iter().map(status_from_guest).collect(),
        agent_name: filter.agent_name,
        parent_run_id: filter.parent_run_id,
        labels: labels_from_guest(filter.labels),
        cursor: None,
        newest_first: false,
        limit: None,
    }
}

pub(crate) fn answer_from_guest(answer: guest::Answer) -> Answer {
    match answer {
        guest::Answer::Text(text) => Answer::Text(text),
        guest::Answer::Choices(choices) => Answer::Choices(choices.into_iter().collect()),
        guest::Answer::Results(results) => {
            let outcomes = results.into_iter().map(|result| {
                let outcome = match result.outcome {
                    Ok(value) => ToolOutcome::Value(value),
                    Err(error) => {
                        ToolOutcome::Failure(ToolFailure { error: error.into(), retry_hint: None })
                    }
                };
                let bounds = result.bounds.map(Into::into);
                (result.tool_call_id, ExternalResult { outcome, bounds })
            });
            Answer::Results(outcomes.collect())
        }
    }
}

impl From<port::RunInfo> for guest::RunRecord {
    fn from(run: port::RunInfo) -> Self {
        record(run)
    }
}

impl From<port::RunPage> for guest::RunPage {
    fn from(page: port::RunPage) -> Self {
        Self { runs: page.runs.into_iter().map(record).collect(), next: page.next }
    }
}

impl From<port::CancelOutcome> for guest::CancelOutcome {
    fn from(outcome: port::CancelOutcome) -> Self {
        let port::CancelOutcome { run, changed, descendants } = outcome;
        Self { run: record(*run), changed, descendants }
    }
}

impl From<port::ChangeOutcome> for guest::ChangeOutcome {
    fn from(outcome: port::ChangeOutcome) -> Self {
        Self { run: record(*outcome.run), changed: outcome.changed }
    }
}

impl From<port::WaitOutcome> for guest::WaitOutcome {
    fn from(outcome: port::WaitOutcome) -> Self {
        Self { run: record(*outcome.run), timed_out: outcome.timed_out }
    }
}

impl From<port::EventPage> for guest::EventPage {
    fn from(page: port::EventPage) -> Self {
        let events = page.events.into_iter().map(|event| guest::RunEvent {
            seq: event.seq,
            at: event.at.0,
            kind: event.kind,
            payload: event.payload,
        });
        Self { events: events.collect(), next_after: page.next_after, ended: page.ended }
    }
}

fn record(run: port::RunInfo) -> guest::RunRecord {
    guest::RunRecord {
        id: run.id,
        parent_run_id: run.parent_run_id,
        agent_name: run.agent_name,
        status: status_to_guest(run.status),
        blocked_on: run.blocked_on.map(|on| on.to_string()),
        stop_reason: run.stop_reason.map(|reason| reason.to_string()),
        partial: run.partial,
        result: run.result,
        truncated: run.truncated,
        images: run.images.into_iter().map(Into::into).collect(),
        error: run.error,
        awaits: run.awaits.into_iter().map(item).collect(),
        turns: run.turns,
        usage: run.usage.into(),
        labels: labels_to_guest(&run.labels),
        revision: run.revision,
        created_at: run.created_at.0,
        updated_at: run.updated_at.0,
        started_at: run.started_at.map(|at| at.0),
        finished_at: run.finished_at.map(|at| at.0),
        details: run.details,
    }
}

fn item(one: Await) -> guest::OpenItem {
    guest::OpenItem { id: one.id, kind: one.on.to_string(), prompt: one.prompt }
}

fn status_to_guest(status: Status) -> guest::RunStatus {
    match status {
        Status::Queued => guest::RunStatus::Queued,
        Status::Running => guest::RunStatus::Running,
        Status::Blocked => guest::RunStatus::Blocked,
        Status::Canceling => guest::RunStatus::Canceling,
        Status::Finalizing => guest::RunStatus::Finalizing,
        Status::Completed => guest::RunStatus::Completed,
        Status::Failed => guest::RunStatus::Failed,
        Status::Canceled => guest::RunStatus::Canceled,
    }
}

fn status_from_guest(status: guest::RunStatus) -> Status {
    match status {
        guest::RunStatus::Queued => Status::Queued,
        guest::RunStatus::Running => Status::Running,
        guest::RunStatus::Blocked => Status::Blocked,
        guest::RunStatus::Canceling => Status::Canceling,
        guest::RunStatus::Finalizing => Status::Finalizing,
        guest::RunStatus::Completed => Status::Completed,
        guest::RunStatus::Failed => Status::Failed,
        guest::RunStatus::Canceled => Status::Canceled,
    }
}

pub(crate) fn error_to_guest(error: port::RunsError) -> guest::ControllerError {
    match error {
        // A component sees neither itself nor what is above it.
        port::RunsError::NotFound { id } | port::RunsError::Cycle { id } => {
            guest::ControllerError::NotFound(id)
        }
        port::RunsError::AlreadyExists { id } => guest::ControllerError::AlreadyExists(id),
        port::RunsError::NotStarted => guest::ControllerError::NotStarted,
        port::RunsError::Closed | port::RunsError::SessionEnded => guest::ControllerError::Closed,
        port::RunsError::Invalid { field, reason } => {
            guest::ControllerError::Invalid(guest::InvalidField { field, reason })
        }
        port::RunsError::Forbidden { reason } => guest::ControllerError::Forbidden(reason),
        port::RunsError::Limit { kind, cap } => {
            guest::ControllerError::Limit(guest::ExceededLimit { kind, cap })
        }
        port::RunsError::NotAwaitable { why } => guest::ControllerError::NotAwaitable(match why {
            AnswerRefusal::UnknownItem => guest::NotAwaitableReason::UnknownItem,
            AnswerRefusal::Answered => guest::NotAwaitableReason::Answered,
            AnswerRefusal::Ended => guest::NotAwaitableReason::Ended,
        }),
        port::RunsError::Canceled => guest::ControllerError::Canceled,
        port::RunsError::Storage { code, .. } => guest::ControllerError::Storage(code),
    }
}
