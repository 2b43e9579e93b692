//! The consent of a person to tool calls: asked for before they begin.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

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
    /// A person decided about all calls of the function in more runs than one.
    Lasting {
        /// The number of the consent.
        number: u64,
        /// The decision.
        approved: bool,
        /// The person.
        by: String,
    },
    /// A person was asked about this call.
    Asked {
        /// The questions about it.
        asked: CallQuestions,
        /// The answer to the last one and the person who gave it; `None` if there is none.
        answer: Option<(Answer, String)>,
    },
    /// It was given to this call.
    Given {
        /// The questions about it.
        asked: CallQuestions,
        /// The number of the lasting consent that it is.
        consent: Option<u64>,
    },
}

/// The questions about the consent to a call that are on record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallQuestions {
    /// Their number.
    pub(crate) times: u32,
    /// Digest of the code that the last one is about, if it names any.
    pub(crate) digest: Option<String>,
}

impl CallQuestions {
    /// False if the last one is about other code than that of this digest.
    fn are_about(&self, digest: &str) -> bool {
        self.digest.as_deref().is_none_or(|named| named == digest)
    }
}

impl PriorConsent {
    /// Tells if the call passes all other layers before this one. A call that a person was asked about
    /// has passed them: it does so once more only `again`, when it may begin.
    pub(crate) fn passes_layers(&self, again: bool) -> bool {
        match self {
            Self::Nothing | Self::Standing { .. } | Self::Lasting { .. } => true,
            Self::Asked { answer: None, .. } => false,
            Self::Asked { answer: Some(_), .. } | Self::Given { .. } => again,
        }
    }

    /// The number of the lasting consent that it is.
    pub(crate) fn lasting(&self) -> Option<u64> {
        match self {
            Self::Lasting { number, .. } => Some(*number),
            Self::Given { consent, .. } => *consent,
            Self::Nothing | Self::Standing { .. } | Self::Asked { .. } => None,
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
    /// The policy file that the run is of.
    pub(crate) policy: &'a str,
    pub(crate) turn: u32,
    pub(crate) now: Timestamp,
}

/// The time by which a person is to have answered what is asked about a call from `now` on.
pub(crate) fn answered_by(rules: &AskRules, now: Timestamp) -> Timestamp {
    now.plus(rules.timeout)
}

impl ConsentRules<'_> {
    /// Decides about a call that passed all other layers. Consent to code is none to other code: a
    /// person who was asked about that is asked anew.
    pub(super) fn of(
        &self,
        request: &ToolRequest,
        tool: &AgentTool,
        prior: &PriorConsent,
    ) -> Result<Consent, Box<CallRefusal>> {
        let digest = tool.tool.digest();
        match prior {
            PriorConsent::Given { asked, .. } if !asked.are_about(digest) => {
                Ok(self.ask(request, tool, asked.times))
            }
            PriorConsent::Given { .. } => Ok(Consent::Given(None)),
            PriorConsent::Asked { answer: None, .. } => Ok(Consent::Wait),
            PriorConsent::Asked { answer: Some((answer, by)), asked } => {
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
                if approved && !asked.are_about(digest) {
                    return Ok(self.ask(request, tool, asked.times));
                }
                let waited = (*answer == Answer::TimedOut).then_some(self.rules.timeout);
                decided(request, Decision { approved, by, for_run, consent: None, waited })
            }
            PriorConsent::Nothing => Ok(self.ask(request, tool, 0)),
            // Where no rule wants it, what was decided about the function is of no account.
            PriorConsent::Standing { .. } | PriorConsent::Lasting { .. }
                if self.rules.about(&tool.spec).is_none() =>
            {
                Ok(Consent::Given(None))
            }
            PriorConsent::Standing { approved, by } => {
                let (approved, for_run, consent, waited) = (*approved, true, None, None);
                decided(request, Decision { approved, by, for_run, consent, waited })
            }
            PriorConsent::Lasting { number, approved, by } => {
                let (approved, for_run, consent, waited) = (*approved, false, Some(*number), None);
                decided(request, Decision { approved, by, for_run, consent, waited })
            }
        }
    }

    /// Has a person asked who was asked about the call so many times, where a rule of now wants it.
    fn ask(&self, request: &ToolRequest, tool: &AgentTool, times: u32) -> Consent {
        match self.rules.about(&tool.spec) {
            Some(rule) => {
                let item = self.question(request, &rule.text, (tool.tool.digest(), times));
                Consent::Ask(Box::new(item))
            }
            None => Consent::Given(None),
        }
    }

    /// The question about a call of the code that has this digest, after so many others.
    fn question(&self, request: &ToolRequest, rule: &str, (digest, times): (&str, u32)) -> Item {
        let (name, payload) = (&request.name, shown(&request.payload));
        let call = call_id(request).to_owned();
        let anew = if times > 0 { "; its code has changed since it was asked" } else { "" };
        let what = AwaitItem::Confirmation {
            id: item_id(self.turn, &call, times),
            question: format!("May {name} be called with {payload}? (\"{rule}\"{anew})"),
            tool_name: name.clone(),
            tool_call_id: call.clone(),
            payload: request.payload.clone(),
            digest: Some(digest.to_owned()),
            policy: Some(self.policy.to_owned()),
        };
        let until = Some(answered_by(self.rules, self.now));
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

/// The id of the question about a call of a turn, after so many others about it.
pub(super) fn item_id(turn: u32, call: &str, times: u32) -> String {
    match times {
        0 => format!("{CONFIRM}{turn}:{call}"),
        _ => format!("{CONFIRM}{turn}.{}:{call}", times.saturating_add(1)),
    }
}

/// The decision of a person about a call.
#[derive(Clone, Copy)]
struct Decision<'a> {
    approved: bool,
    /// The person.
    by: &'a str,
    /// True if it is about further calls of the run, too.
    for_run: bool,
    /// The lasting consent that it is.
    consent: Option<u64>,
    /// The time in which nobody answered, where it stands for that.
    waited: Option<Duration>,
}

fn decided(
    request: &ToolRequest,
    Decision { approved, by, for_run, consent, waited }: Decision<'_>,
) -> Result<Consent, Box<CallRefusal>> {
    let name = &request.name;
    let authorization = Event::ToolAuthorization {
        tool_call_id: call_id(request).to_owned(),
        name: name.clone(),
        approved,
        decided_by: by.to_owned(),
        for_run,
        consent,
    };
    if approved {
        return Ok(Consent::Given(Some(authorization)));
    }
    let why = match waited {
        Some(waited) => format!("denied: nobody consented to {name} within {waited:?}"),
        None => format!("denied: {name} was declined by {by}"),
    };
    let error = ToolError::coded("denied", why);
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
