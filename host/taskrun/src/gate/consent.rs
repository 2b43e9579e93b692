//! The consent of a person to tool calls: asked for before they begin.

use std::borrow::Cow;
use std::sync::Arc;

use taskrun_journal::event::{Event, Refusal};
use taskrun_journal::message::ToolError;
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::question::{Answer, AwaitItem, CONFIRM, Item};
use taskrun_journal::text::cut;
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::ToolFailure;
use taskrun_policy::AskRules;

use super::layer::{CallRefusal, call_id};
use crate::agents::{Agent, AgentTool};
use crate::error::ControllerError;

/// Most bytes of a call's arguments in the question; the whole stands beside it. Of longer ones it
/// has the beginning and the end, and says how long they are, so that nothing hides in the middle
/// from a person who reads the question alone.
const ARGUMENTS_BYTES_MAX: usize = 200;
/// Bytes of these that are the end.
const ENDING_BYTES: usize = 60;

/// The consent to a call that is on record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PriorConsent {
    /// Nothing is.
    Nothing,
    /// A person decided about all calls of the function in this run.
    Standing {
        /// The decision.
        approved: bool,
        /// The person.
        by: String,
    },
    /// A person was asked about this call.
    Asked {
        /// The answer and the person who gave it; `None` if there is none.
        answer: Option<(Answer, String)>,
    },
    /// It was given to this call.
    Given,
}

impl PriorConsent {
    /// Tells if the call passes all other layers before this one. A call that a person was asked about
    /// has passed them: it does so once more only `again`, when it may begin.
    pub(crate) fn passes_layers(&self, again: bool) -> bool {
        match self {
            Self::Nothing | Self::Standing { .. } => true,
            Self::Asked { answer: None } => false,
            Self::Asked { answer: Some(_) } | Self::Given => again,
        }
    }
}

/// The need for consent of one call.
pub(super) enum Consent {
    /// The call may begin; recorded first is the consent, where it is not on record.
    Given(Option<Event>),
    /// A person is to be asked.
    Ask(Box<Item>),
    /// A person was asked and has not answered.
    Wait,
}

/// The rules about consent to the calls of a turn.
#[derive(Clone, Copy)]
pub(crate) struct ConsentRules<'a> {
    /// The agent's, and those of the agents above.
    pub(crate) rules: &'a AskRules,
    pub(crate) turn: u32,
    pub(crate) now: Timestamp,
}

impl ConsentRules<'_> {
    /// Decides about a call that passed all other layers.
    pub(super) fn of(
        &self,
        request: &ToolRequest,
        tool: &AgentTool,
        prior: &PriorConsent,
    ) -> Result<Consent, Box<CallRefusal>> {
        match prior {
            PriorConsent::Given => Ok(Consent::Given(None)),
            PriorConsent::Asked { answer: None } => Ok(Consent::Wait),
            PriorConsent::Asked { answer: Some((answer, by)) } => {
                let (approved, for_run) = match answer {
                    Answer::Confirmed(approved) => (*approved, false),
                    Answer::ConfirmedForRun(approved) => (*approved, true),
                    // None that the item takes.
                    Answer::TimedOut
                    | Answer::Refused(_)
                    | Answer::Text(_)
                    | Answer::Choices(_)
                    | Answer::Results(_) => (false, false),
                };
                decided(request, approved, by, for_run)
            }
            PriorConsent::Nothing | PriorConsent::Standing { .. } => {
                match (self.rules.about(&tool.spec), prior) {
                    (None, _) => Ok(Consent::Given(None)),
                    (Some(_), PriorConsent::Standing { approved, by }) => {
                        decided(request, *approved, by, true)
                    }
                    (Some(rule), _) => {
                        Ok(Consent::Ask(Box::new(self.question(request, &rule.text))))
                    }
                }
            }
        }
    }

    fn question(&self, request: &ToolRequest, rule: &str) -> Item {
        let (name, payload) = (&request.name, shown(&request.payload));
        let call = call_id(request).to_owned();
        let what = AwaitItem::Confirmation {
            id: item_id(self.turn, &call),
            question: format!("May {name} be called with {payload}? (\"{rule}\")"),
            tool_name: name.clone(),
            tool_call_id: call.clone(),
            payload: request.payload.clone(),
        };
        let until = Some(self.now.plus(self.rules.timeout));
        Item { what, tool_call_id: Some(call), until, default: None }
    }
}

/// Refuses a run for which nobody answers, and whose agent, or one above it, has rules that ask. What
/// a model asks by `ask_user` is refused when it does: every agent with members has that tool.
///
/// # Errors
/// [`ControllerError::Invalid`] for `ask`, with what is asked and what to say instead.
pub(crate) fn check_asks(
    agent: &Agent,
    above: &[Option<Arc<Agent>>],
) -> Result<(), ControllerError> {
    let all = std::iter::once(agent).chain(above.iter().flatten().map(|above| &**above));
    let mut rules = all.flat_map(|one| one.ask.rules.iter().map(move |rule| (one, rule)));
    let Some((one, rule)) = rules.next() else { return Ok(()) };
    let reason = format!(
        "agent {} asks for consent (\"{}\"), and nobody is named who answers: say who does \
         (`answers`), as the inbox, a refusal or a fixed text, or take that away",
        one.name, rule.text
    );
    Err(ControllerError::Invalid { field: "ask", reason })
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

/// The id of the question about a call of a turn.
pub(crate) fn item_id(turn: u32, call: &str) -> String {
    format!("{CONFIRM}{turn}:{call}")
}

fn decided(
    request: &ToolRequest,
    approved: bool,
    by: &str,
    for_run: bool,
) -> Result<Consent, Box<CallRefusal>> {
    let name = &request.name;
    let authorization = Event::ToolAuthorization {
        tool_call_id: call_id(request).to_owned(),
        name: name.clone(),
        approved,
        decided_by: by.to_owned(),
        for_run,
    };
    if approved {
        return Ok(Consent::Given(Some(authorization)));
    }
    let error = ToolError::coded("denied", format!("denied: {name} was declined by {by}"));
    let failure = ToolFailure { error, retry_hint: None };
    let decision = Some(authorization);
    Err(Box::new(CallRefusal { decision, refusal: Refusal::Declined, failure }))
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
