//! Results of tool calls as they are recorded: those of tools, held to what their tools promised, and
//! those that the host itself gives.

use std::time::Duration;

use taskrun_journal::artifact::Artifact;
use taskrun_journal::event::{Event, Refusal};
use taskrun_journal::media::Media;
use taskrun_journal::message::{Labels, LogLevel, RetryHint, RetryReason, ToolError, ToolUse};
use taskrun_journal::metrics::Metrics;
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_journal::time::millis;
use taskrun_journal::tool::{ToolFailure, ToolOutcome, ToolOutput};

use crate::agents::{AgentTool, broken_promise};
use crate::ports::tool::ToolResult;
use crate::scope::{HOST, ScopeEnd};

/// Text for a wait that names no run.
pub(super) const NO_RUNS: &str = "no task IDs provided";
/// Text for a wait for the run itself, or for one that waits for it.
pub(super) const CYCLE: &str = "invalid: cycle: one of the runs waits for this one";
/// Text for a call that was under way when the run's time was up.
pub(super) const OUT_OF_TIME: &str = "canceled: time budget reached";
/// Code of that.
pub(super) const TIME_BUDGET: &str = "time-budget";
/// Code of a call that was cut off.
pub(super) const INTERRUPTED: &str = "interrupted";
/// Text for a call without a result in a run that has ended.
pub(super) const UNANSWERED: &str = "the run ended before there was a result";
/// Text for a call that the end of the run overtook.
const FINALIZED: &str = "Finalized before a tool result was provided for this request.";

pub(super) fn tool_use(request: &ToolRequest) -> ToolUse {
    ToolUse {
        tool_call_id: request.tool_call_id.clone().unwrap_or_default(),
        name: request.name.clone(),
        payload: request.payload.clone(),
    }
}

pub(super) fn refused(request: &ToolRequest, refusal: Refusal, failure: ToolFailure) -> Event {
    let call = tool_use(request);
    let outcome = ToolOutcome::Failure(failure);
    let output = ToolOutput::plain(&call.name, &call.tool_call_id, &call.payload, outcome);
    Event::ToolResult { output: Box::new(output), duration_ms: 0, refused: Some(refusal) }
}

/// The result of a call that the end of the run's time overtook, so long after it began.
pub(super) fn out_of_time(request: &ToolRequest, took: Duration) -> Event {
    result(request, failure(TIME_BUDGET, OUT_OF_TIME), Some(Refusal::Finalized), took)
}

/// Answers calls that the end of the run overtakes, so that the conversation stays whole.
pub(super) fn refuse_all(pending: &mut Vec<Event>, requests: &[ToolRequest]) {
    pending.extend(requests.iter().map(|request| {
        let failure = ToolFailure { error: overtaken(), retry_hint: None };
        refused(request, Refusal::Finalized, failure)
    }));
}

/// The error of a call that had not begun as its run ended.
pub(crate) fn overtaken() -> ToolError {
    ToolError::coded("finalized", FINALIZED)
}

/// The error of a call that had begun as its run ended, and has no result. It was under way, or
/// waited for something.
pub(crate) fn unanswered(is_under_way: bool) -> ToolError {
    let effect = if is_under_way { "; whether it took effect is not known" } else { "" };
    ToolError::coded(INTERRUPTED, format!("{UNANSWERED}{effect}"))
}

/// Answers calls that the run's word that it is done has overtaken.
pub(super) fn refuse_after_done(pending: &mut Vec<Event>, requests: &[ToolRequest]) {
    pending.extend(requests.iter().map(|request| {
        let error = ToolError::coded("done", "skipped: done");
        refused(request, Refusal::Done, ToolFailure { error, retry_hint: None })
    }));
}

/// The result of a call that the host gives, so long after it began.
pub(super) fn result(
    request: &ToolRequest,
    outcome: ToolOutcome,
    refused: Option<Refusal>,
    took: Duration,
) -> Event {
    let id = request.tool_call_id.as_deref().unwrap_or_default();
    let output = ToolOutput::plain(&request.name, id, &request.payload, outcome);
    Event::ToolResult { output: Box::new(output), duration_ms: millis(took), refused }
}

/// The same with images that belong to it.
pub(super) fn result_with(
    request: &ToolRequest,
    value: String,
    media: Vec<Media>,
    took: Duration,
) -> Event {
    let id = request.tool_call_id.as_deref().unwrap_or_default();
    let outcome = ToolOutcome::Value(value);
    let output = ToolOutput::plain(&request.name, id, &request.payload, outcome);
    let output = Box::new(ToolOutput { media, ..output });
    Event::ToolResult { output, duration_ms: millis(took), refused: None }
}

pub(super) fn failure(code: &str, text: &str) -> ToolOutcome {
    let error = ToolError::coded(code, text);
    ToolOutcome::Failure(ToolFailure { error, retry_hint: None })
}

/// The output of a call that came to its end and started so many runs, and the images that belong to
/// it. Its answer was held to the contract of its tool.
pub(super) fn output(
    tool: &AgentTool,
    request: ToolRequest,
    answer: Result<Result<ToolResult, ToolFailure>, CallAbort>,
    children: u32,
) -> (ToolOutput, Vec<Artifact>) {
    let name = &request.name;
    let (mut media, mut images, mut result_bytes) = (Vec::new(), Vec::new(), 0);
    let (mut server_data, mut bounds, mut telemetry) = (None, None, None);
    let outcome = match answer {
        Ok(Ok(value)) => {
            // The contract has them be images, each of which has a name.
            let named = value.media.into_iter().filter_map(|image| Media::of(image).ok());
            (media, images) = named.unzip();
            result_bytes = value.value.len() as u64;
            (server_data, bounds) = (value.server_data, value.bounds);
            telemetry = value.telemetry;
            ToolOutcome::Value(value.value)
        }
        Ok(Err(mut failure)) => {
            // A tool knows its functions by their own names only.
            if let Some(hint) = &mut failure.retry_hint
                && hint.tool == tool.function
            {
                hint.tool.clone_from(name);
            }
            ToolOutcome::Failure(failure)
        }
        Err(failure) => stopped(name, &failure),
    };
    let output = ToolOutput {
        result_bytes,
        server_data,
        bounds,
        telemetry,
        name: request.name,
        tool_call_id: request.tool_call_id.unwrap_or_default(),
        payload: request.payload,
        outcome,
        result_omitted: None,
        children_count: children,
        run_link: None,
        artifact: None,
        media,
    };
    (output, images)
}

pub(super) fn broken(name: &str, detail: &str) -> ToolOutcome {
    ToolOutcome::Failure(broken_promise(name, detail))
}

/// The outcome of a call that the host aborted.
pub(super) fn stopped(name: &str, failure: &CallAbort) -> ToolOutcome {
    let retry_hint = match failure {
        CallAbort::Deadline { .. } => Some(Box::new(RetryHint::new(RetryReason::Timeout, name))),
        CallAbort::Memory { .. }
        | CallAbort::Unavailable
        | CallAbort::Stack
        | CallAbort::Limit { .. }
        | CallAbort::Trap { .. }
        | CallAbort::Contract { .. }
        | CallAbort::Stopped { .. }
        | CallAbort::Internal => None,
    };
    let is_stopped_as = |cause| *failure == CallAbort::Stopped { cause };
    let code = if is_stopped_as(StopCause::Canceled) {
        "canceled"
    } else if is_stopped_as(StopCause::Denied) {
        "denied"
    } else {
        failure.kind()
    };
    let error = ToolError::coded(code, format!("{name}: {failure}"));
    ToolOutcome::Failure(ToolFailure { error, retry_hint })
}

/// Text as JSON.
pub(super) fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A line of the host itself in a run's log.
pub(super) fn host_line(level: LogLevel, message: String) -> Event {
    Event::Log { level, source: HOST.to_owned(), message, fields: Labels::new() }
}

/// Lines of the host about what a call left behind that is not on record.
pub(super) fn dropped_notes(end: &ScopeEnd) -> impl Iterator<Item = Event> + use<> {
    let warn = |message| host_line(LogLevel::Warn, message);
    let events = (end.dropped > 0)
        .then(|| warn(format!("{} events over the limit of the call were dropped", end.dropped)));
    let counts = end.dropped_refusals.iter().map(|(of, count)| format!("{count} of {of}"));
    let counts = counts.collect::<Vec<_>>().join(", ");
    let refusals = (!counts.is_empty())
        .then(|| warn(format!("refusals over the limit of the call are not on record: {counts}")));
    events.into_iter().chain(refusals)
}

/// The metrics of a step or a call that ended, if it has any.
pub(super) fn metrics_event(metrics: Metrics) -> Option<Event> {
    (!metrics.is_empty()).then_some(Event::MetricsRecorded { metrics })
}
