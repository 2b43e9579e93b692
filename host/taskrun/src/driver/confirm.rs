//! Tool calls that need the consent of a person: asked for before they begin.

use std::borrow::Cow;

use taskrun_journal::event::{Event, Refusal};
use taskrun_journal::message::ToolError;
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::question::{Answer, AwaitItem, CONFIRM, Item};
use taskrun_journal::text::cut;
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::{ToolFailure, ToolOutcome};
use taskrun_policy::AskRules;

use super::results::result;
use super::work::{Call, Work};
use crate::agents::AgentTool;

/// Most bytes of a call's arguments in the question; the whole stands beside it. Of longer ones it
/// has the beginning and the end, and says how long they are, so that nothing hides in the middle
/// from whoever reads the question alone.
const ARGUMENTS_BYTES_MAX: usize = 200;
/// Bytes of these that are the end.
const ENDING_BYTES: usize = 60;

/// What is known of the consent to a call.
pub(super) enum Consent {
    /// None is needed.
    NotNeeded,
    /// Somebody has to be asked.
    Ask(Box<Item>),
    /// It was asked for, and nobody has answered.
    Waits,
    /// It was given; recorded is what is not recorded yet.
    Given(Option<Event>),
    /// It was refused. What is to be recorded: that, and the result of the call.
    Refused(Vec<Event>),
}

/// What decides whether a call of a turn needs consent.
pub(super) struct Consents<'a> {
    rules: &'a AskRules,
    work: &'a Work,
    turn: u32,
    now: Timestamp,
}

impl<'a> Consents<'a> {
    pub(super) fn new(rules: &'a AskRules, work: &'a Work, turn: u32, now: Timestamp) -> Self {
        Self { rules, work, turn, now }
    }

    /// For a call that passed all other checks and that nobody was asked about.
    pub(super) fn of(&self, request: &ToolRequest, tool: &AgentTool) -> Consent {
        let Some(rule) = self.rules.about(&tool.spec) else { return Consent::NotNeeded };
        if let Some((approved, by)) = self.work.standing(&request.name) {
            return settled(request, *approved, by, true);
        }
        let (name, payload) = (&request.name, shown(&request.payload));
        let call = request.tool_call_id.clone().unwrap_or_default();
        let what = AwaitItem::Confirmation {
            id: item_id(self.turn, &call),
            question: format!("May {name} be called with {payload}? (\"{}\")", rule.text),
            tool_name: name.clone(),
            tool_call_id: call.clone(),
            payload: request.payload.clone(),
        };
        let until = Some(self.now.plus(self.rules.timeout));
        Consent::Ask(Box::new(Item { what, tool_call_id: Some(call), until, default: None }))
    }

    /// For a call that has not begun, and may have been asked about.
    pub(super) fn of_open(&self, call: &Call) -> Consent {
        if call.authorized {
            return Consent::Given(None);
        }
        let id = item_id(self.turn, call.id());
        let Some(asked) = self.work.asked.iter().find(|asked| asked.item.id() == id) else {
            return Consent::NotNeeded;
        };
        let Some(answer) = &asked.answer else { return Consent::Waits };
        let (approved, for_run) = match answer {
            Answer::Confirmed(approved) => (*approved, false),
            Answer::ConfirmedForRun(approved) => (*approved, true),
            // None that the item takes.
            Answer::TimedOut | Answer::Text(_) | Answer::Choices(_) | Answer::Results(_) => {
                (false, false)
            }
        };
        settled(&call.request, approved, &asked.by, for_run)
    }
}

/// Arguments, or both ends of long ones.
fn shown(payload: &str) -> Cow<'_, str> {
    if payload.len() <= ARGUMENTS_BYTES_MAX {
        return Cow::Borrowed(payload);
    }
    let head = cut(payload, ARGUMENTS_BYTES_MAX - ENDING_BYTES);
    let tail = &payload[payload.ceil_char_boundary(payload.len() - ENDING_BYTES)..];
    Cow::Owned(format!("{head} ... {tail} ({} bytes in all)", payload.len()))
}

fn item_id(turn: u32, call: &str) -> String {
    format!("{CONFIRM}{turn}:{call}")
}

fn settled(request: &ToolRequest, approved: bool, by: &str, for_run: bool) -> Consent {
    let name = &request.name;
    let authorization = Event::ToolAuthorization {
        tool_call_id: request.tool_call_id.clone().unwrap_or_default(),
        name: name.clone(),
        approved,
        decided_by: by.to_owned(),
        for_run,
    };
    if approved {
        return Consent::Given(Some(authorization));
    }
    let error = ToolError::coded("denied", format!("denied: {name} was declined by {by}"));
    let outcome = ToolOutcome::Failure(ToolFailure { error, retry_hint: None });
    Consent::Refused(vec![authorization, result(request, outcome, Some(Refusal::Declined))])
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn case_50_a_question_shows_both_ends_of_long_arguments_and_how_long_they_are() {
        assert_eq!(shown("{}"), "{}");
        let long = format!("{{\"to\":\"a\",\"x\":\"{}\",\"bcc\":\"b\"}}", "ä".repeat(500));
        let shown = shown(&long);
        assert!(shown.starts_with("{\"to\":\"a\","), "{shown}");
        assert!(shown.ends_with("\"bcc\":\"b\"} (1027 bytes in all)"), "{shown}");
    }
}
