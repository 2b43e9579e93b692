//! Answers from outside to items that a planner asked for, as parts of the conversation.

use taskrun_journal::answers::no_user;
use taskrun_journal::message::{Message, Part, Role, ToolError, ToolUse};
use taskrun_journal::question::{Answer, AwaitItem, ExternalResult, Item};
use taskrun_journal::tool::{ToolFailure, ToolOutcome, ToolOutput};

const NOBODY: &str = "nobody answered in time";

/// The part of the conversation that an answer becomes.
pub(super) enum AnswerPart {
    /// Nothing: the answer is not one to what was asked.
    Nothing,
    /// A message of the user.
    Text(String),
    /// Calls, as the assistant would have made them, with their results.
    Results {
        /// The message of the calls.
        calls: Message,
        /// Their results.
        outputs: Vec<ToolOutput>,
    },
}

/// Makes text a message of the user, and a form and the results of tools outside calls with their
/// results.
pub(super) fn given(item: &Item, answer: &Answer) -> AnswerPart {
    match &item.what {
        AwaitItem::Clarification { question, .. } => match answer {
            Answer::Text(text) => AnswerPart::Text(text.clone()),
            Answer::TimedOut => AnswerPart::Text(format!("({NOBODY}: {question})")),
            Answer::Refused(reason) => AnswerPart::Text(no_user(reason)),
            Answer::Choices(_)
            | Answer::Results(_)
            | Answer::Confirmed(_)
            | Answer::ConfirmedForRun(_) => AnswerPart::Nothing,
        },
        AwaitItem::Questions { tool_name, tool_call_id, payload, .. } => {
            results(&[(tool_name, tool_call_id, payload)], answer)
        }
        AwaitItem::ExternalTools { items, .. } => {
            let calls = items.iter().map(|one| (&one.name, &one.tool_call_id, &one.payload));
            results(&calls.collect::<Vec<_>>(), answer)
        }
        AwaitItem::Confirmation { .. } => AnswerPart::Nothing,
    }
}

/// Calls, each by its name, id and arguments, with the results that the answer gives them.
fn results(calls: &[(&String, &String, &String)], answer: &Answer) -> AnswerPart {
    let parts = calls.iter().map(|(name, id, payload)| {
        Part::ToolUse(ToolUse {
            tool_call_id: (*id).clone(),
            name: (*name).clone(),
            payload: (*payload).clone(),
        })
    });
    let message = Message { role: Role::Assistant, parts: parts.collect() };
    let outputs = calls.iter().map(|(name, id, payload)| {
        let ExternalResult { outcome, bounds } = result_from_outside(id, answer);
        ToolOutput { bounds, ..ToolOutput::plain(name, id, payload, outcome) }
    });
    AnswerPart::Results { calls: message, outputs: outputs.collect() }
}

/// The result that an answer gives a call.
pub(crate) fn result_from_outside(tool_call_id: &str, answer: &Answer) -> ExternalResult {
    let nobody = || {
        let error = ToolError::coded("timeout", NOBODY.to_owned());
        ExternalResult::from(ToolOutcome::Failure(ToolFailure { error, retry_hint: None }))
    };
    match answer {
        Answer::Refused(reason) => {
            let error = ToolError::coded("refused", no_user(reason));
            ToolOutcome::Failure(ToolFailure { error, retry_hint: None }).into()
        }
        Answer::Choices(given) => {
            ToolOutcome::Value(serde_json::to_string(given).expect("a map of texts")).into()
        }
        Answer::Results(given) => given.get(tool_call_id).cloned().unwrap_or_else(nobody),
        Answer::Text(_) | Answer::Confirmed(_) | Answer::ConfirmedForRun(_) | Answer::TimedOut => {
            nobody()
        }
    }
}
