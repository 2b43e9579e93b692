//! Results of tools in a conversation: shown whole, cut, or left out and named.

use taskrun_journal::artifact::{ArtifactRef, digest};
use taskrun_journal::message::ToolAnswer;
use taskrun_journal::text::cut;
use taskrun_journal::tool::{ToolOutcome, ToolOutput};

/// Most bytes of a tool's result in the conversation; of a larger one a preview stands there.
pub const CONVERSATION_RESULT_BYTES_MAX: usize = 64 << 10;
/// Bytes of that preview.
const PREVIEW_BYTES: usize = 1 << 10;
/// The value of a result that is left out.
const NOTHING: &str = "null";
/// The reason for leaving out a result that is too large by itself.
pub(super) const TOO_LARGE: &str = "size_limit";
/// The reason for leaving out a result for which the whole has no room.
pub(super) const OVER_BUDGET: &str = "workflow_budget";

/// Bytes that are saved where the value of a result is left out.
pub(super) fn saved_without(output: &ToolOutput) -> usize {
    let value = match &output.outcome {
        ToolOutcome::Value(value) => value.len().saturating_sub(NOTHING.len()),
        ToolOutcome::Failure(_) => 0,
    };
    value + output.server_data.as_ref().map_or(0, String::len)
}

/// True for a result whose value is too large by itself. Nothing else of it counts: the arguments
/// of the call do not get smaller without the value.
pub(super) fn is_too_large(output: &ToolOutput) -> bool {
    match &output.outcome {
        ToolOutcome::Value(value) => value.len() > CONVERSATION_RESULT_BYTES_MAX,
        ToolOutcome::Failure(_) => false,
    }
}

/// Leaves the value of a result out and says why.
pub(super) fn leave_out(output: &mut ToolOutput, reason: &str) {
    name(output);
    if let ToolOutcome::Value(value) = &mut output.outcome {
        NOTHING.clone_into(value);
        output.result_omitted = Some(reason.to_owned());
    }
    output.server_data = None;
}

/// Names the value of a result that is to be left out, unless it has its name.
pub(super) fn name(output: &mut ToolOutput) {
    if let ToolOutcome::Value(value) = &output.outcome {
        output.artifact.get_or_insert_with(|| ArtifactRef {
            hash: digest(value.as_bytes()),
            size: value.len() as u64,
        });
    }
}

/// A result as it stands in the conversation; one that is too large for that has its name.
pub(super) fn shown(output: &ToolOutput) -> ToolAnswer {
    let (content, is_error) = match &output.outcome {
        ToolOutcome::Value(value) if is_too_large(output) => {
            let omitted = serde_json::json!({
                "omitted": true,
                "reason": TOO_LARGE,
                "bytes": value.len(),
                "preview": cut(value, PREVIEW_BYTES),
                "bounds": output.bounds,
                "artifact": output.artifact,
            });
            (omitted.to_string(), false)
        }
        ToolOutcome::Value(value) => (value.clone(), false),
        ToolOutcome::Failure(failure) => {
            let mut text = failure.error.message.clone();
            if let Some(hint) = &failure.retry_hint {
                let advice = [&hint.message, &hint.clarifying_question];
                for advice in advice.into_iter().flatten() {
                    text.push('\n');
                    text.push_str(advice);
                }
            }
            (cut(&text, CONVERSATION_RESULT_BYTES_MAX).to_owned(), true)
        }
    };
    let media = output.media.clone();
    ToolAnswer { tool_call_id: output.tool_call_id.clone(), content, is_error, media }
}
