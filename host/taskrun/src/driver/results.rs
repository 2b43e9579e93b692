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
use crate::scope::HOST;

/// Text for a wait that names no run.
pub(super) const NO_RUNS: &str = "no task IDs provided";
/// Text for a wait for the run itself, or for one that waits for it.
pub(super) const CYCLE: &str = "invalid: cycle: one of the runs waits for this one";
/// Text for a call that was under way when the run's time was up.
pub(super) const OUT_OF_TIME: &str = "canceled: time budget reached";
/// Code of that.
pub(super) const TIME_BUDGET: &str = "time-budget";
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
        let error = ToolError::coded("finalized", FINALIZED);
        refused(request, Refusal::Finalized, ToolFailure { error, retry_hint: None })
    }));
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

pub(super) fn dropped_note(dropped: u32) -> Option<Event> {
    (dropped > 0).then(|| Event::Log {
        level: LogLevel::Warn,
        source: HOST.to_owned(),
        message: format!("{dropped} events over the limit of the call were dropped"),
        fields: Labels::new(),
    })
}

/// The metrics of a step or a call that ended, if it has any.
pub(super) fn metrics_event(metrics: Metrics) -> Option<Event> {
    (!metrics.is_empty()).then_some(Event::MetricsRecorded { metrics })
}
