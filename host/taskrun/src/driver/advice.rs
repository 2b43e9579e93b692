//! Advice of the host beside results of tools, for the reader of the conversation: how to go on where
//! a result is only a part, and how to try again where a call failed.

use taskrun_journal::message::{Bounds, RetryHint, RetryReason};
use taskrun_journal::text::cut;
use taskrun_journal::tool::{ToolOutcome, ToolOutput};

/// Most bytes that are said to one result.
const ADVICE_BYTES_MAX: usize = 2 << 10;
/// Most bytes that are said to the results of one turn.
const TURN_BYTES_MAX: usize = 16 << 10;

/// The advice beside the results of a turn, a line for each that needs one; `None` if none does.
pub(super) fn advice(outputs: &[ToolOutput]) -> Option<String> {
    let mut text = String::new();
    for line in outputs.iter().filter_map(line) {
        let line = cut(&line, ADVICE_BYTES_MAX);
        if text.len() + line.len() + 1 > TURN_BYTES_MAX {
            break;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(line);
    }
    (!text.is_empty()).then_some(text)
}

fn line(output: &ToolOutput) -> Option<String> {
    match &output.outcome {
        ToolOutcome::Value(_) => part_of(&output.name, output.bounds.as_ref()?),
        ToolOutcome::Failure(failure) => again(failure.retry_hint.as_deref()?),
    }
}

fn part_of(name: &str, bounds: &Bounds) -> Option<String> {
    if !bounds.truncated {
        return None;
    }
    let of = bounds.total.map_or_else(String::new, |total| format!(" of {total}"));
    let mut line = format!("The result of {name} is a part: {}{of} items.", bounds.returned);
    if let Some(arguments) = &bounds.continuation {
        line.push_str(&format!(" To go on, call it with {arguments}."));
    }
    if let Some(refinement) = &bounds.refinement {
        line.push_str(&format!(" To ask for less: {refinement}"));
    }
    Some(line)
}

/// The part of a hint that the error's own text does not say.
fn again(hint: &RetryHint) -> Option<String> {
    let mut line = String::new();
    if !hint.missing_fields.is_empty() {
        let what = match hint.reason {
            RetryReason::MissingFields => "Missing",
            RetryReason::InvalidArguments
            | RetryReason::MalformedResponse
            | RetryReason::Timeout
            | RetryReason::RateLimited
            | RetryReason::ToolUnavailable => "Refused",
        };
        line.push_str(&format!(" {what}: {}.", hint.missing_fields.join(", ")));
    }
    if let Some(example) = &hint.example_input {
        line.push_str(&format!(" Arguments such as {example} are accepted."));
    }
    if hint.restrict_to_tool {
        line.push_str(" Try this tool again before any other.");
    }
    (!line.is_empty()).then(|| format!("To call {} again:{line}", hint.tool))
}
