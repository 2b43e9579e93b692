//! Consequences of a tool call that failed as fields are missing.

use taskrun_journal::event::Event;
use taskrun_journal::message::{RetryHint, RetryReason};
use taskrun_journal::question::{AwaitItem, Item};
use taskrun_journal::text::cut;
use taskrun_journal::tool::ToolOutcome;
use taskrun_policy::MissingFields;

use super::parts::Parts;
use super::work::{Call, Work};

/// Begins the id of the question for what a call lacks.
const MISSING: &str = "missing:";
/// Most bytes of each text that a tool's hint brings into a question.
const TEXT_BYTES_MAX: usize = 4 << 10;
/// Most fields that a question names.
const FIELDS_MAX: usize = 64;

/// The questions for what the calls of the last turn lack, where a person is to be asked and was
/// not.
pub(super) fn questions(parts: &Parts, work: &Work) -> Vec<Event> {
    if parts.agent.on_missing_fields != MissingFields::AwaitClarification {
        return Vec::new();
    }
    let lacking = work.calls.iter().filter_map(|call| Some((call, hint(call)?)));
    let items = lacking.map(|(call, hint)| question(call, hint));
    let new = items.filter(|item| !work.was_asked(item.id()));
    new.map(|item| Event::Asked { item: Box::new(item) }).collect()
}

/// True if a call of the last turn lacks fields, and that is the end of the run.
pub(super) fn ends_run(parts: &Parts, work: &Work) -> bool {
    parts.agent.on_missing_fields == MissingFields::Finalize
        && work.calls.iter().any(|call| hint(call).is_some())
}

/// The hint of a call that lacks fields.
fn hint(call: &Call) -> Option<&RetryHint> {
    match &call.outcome {
        Some(ToolOutcome::Failure(failure)) => {
            let hint = failure.retry_hint.as_deref()?;
            (hint.reason == RetryReason::MissingFields).then_some(hint)
        }
        Some(ToolOutcome::Value(_)) | None => None,
    }
}

fn question(call: &Call, hint: &RetryHint) -> Item {
    let name = &call.request.name;
    let short = |text: &String| cut(text, TEXT_BYTES_MAX).to_owned();
    let missing_fields: Vec<_> = hint.missing_fields.iter().take(FIELDS_MAX).map(short).collect();
    let asked = hint.clarifying_question.as_ref().map(short);
    let what = AwaitItem::Clarification {
        id: format!("{MISSING}{}", call.id()),
        question: asked.unwrap_or_else(|| {
            format!("What should {name} be given as {}?", missing_fields.join(", "))
        }),
        missing_fields,
        restrict_to_tool: hint.restrict_to_tool.then(|| name.clone()),
        // Half of a JSON text is none.
        example_input: hint.example_input.clone().filter(|text| text.len() <= TEXT_BYTES_MAX),
        clarifying_prompt: hint.message.as_ref().map(short),
    };
    Item { what, tool_call_id: None, until: None, default: None }
}
