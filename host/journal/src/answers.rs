//! The answerer of a run's questions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::question::{Answer, AwaitItem, Item};

/// The reason for which nobody answers, unless another one is stated.
pub(crate) const NO_USER: &str = "no interactive user is there";
/// Most bytes of a reason or a fixed answer: each stands in the conversation as often as something
/// is asked.
pub const ANSWERS_BYTES_MAX: usize = 4 << 10;

/// The answerer of a run's questions: those that its planner and its models ask, and those for
/// consent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Answers {
    /// The people who look at the inbox; the run waits without a slot until one did.
    #[default]
    Inbox,
    /// Nobody, and nothing is to be asked: a run whose rules ask is not accepted. What is asked all
    /// the same is refused.
    Nobody,
    /// The host, by refusing.
    Refuse {
        /// Why, for the agent.
        reason: String,
    },
    /// The host, with always the same text. It is no consent, and no result of a tool outside.
    Fixed {
        /// The text.
        text: String,
    },
}

impl Answers {
    /// Its word, with the text that belongs to it: [`Self::named`], and `nobody`.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Inbox => "inbox".to_owned(),
            Self::Nobody => "nobody".to_owned(),
            Self::Refuse { reason } => format!("refuse:{reason}"),
            Self::Fixed { text } => format!("fixed:{text}"),
        }
    }

    /// The answerer that a text names: `inbox`, `refuse` or `refuse:WHY`, `fixed:TEXT`. `None` for
    /// every other text.
    #[must_use]
    pub fn named(text: &str) -> Option<Self> {
        match text.split_once(':') {
            None if text == "inbox" => Some(Self::Inbox),
            None if text == "refuse" => Some(Self::Refuse { reason: NO_USER.to_owned() }),
            Some(("refuse", reason)) => Some(Self::Refuse { reason: reason.trim().to_owned() }),
            Some(("fixed", text)) => Some(Self::Fixed { text: text.to_owned() }),
            Some(_) | None => None,
        }
    }

    /// True if people answer, which is not written down.
    #[must_use]
    pub fn is_inbox(&self) -> bool {
        match self {
            Self::Inbox => true,
            Self::Nobody | Self::Refuse { .. } | Self::Fixed { .. } => false,
        }
    }

    /// The host's answer to what is asked; `None` if somebody else is to answer.
    #[must_use]
    pub fn to(&self, item: &Item) -> Option<Answer> {
        let refused = |why: &str| Some(Answer::Refused(why.to_owned()));
        let text = match self {
            Self::Inbox => return None,
            Self::Nobody => return refused(NO_USER),
            Self::Refuse { reason } => return refused(reason),
            Self::Fixed { text } => text,
        };
        match &item.what {
            AwaitItem::Clarification { .. } => Some(Answer::Text(text.clone())),
            AwaitItem::Questions { questions, .. } => {
                let choices = questions.iter().map(|one| (one.id.clone(), vec![text.clone()]));
                let answer = Answer::Choices(choices.collect::<BTreeMap<_, _>>());
                match item.check(&answer) {
                    Ok(()) => Some(answer),
                    Err(_) => refused("the fixed answer does not fit"),
                }
            }
            AwaitItem::Confirmation { .. } => refused("a fixed answer is no consent"),
            AwaitItem::ExternalTools { .. } => refused("nobody is there who executes it"),
        }
    }
}

/// The text for an agent whose question was refused.
#[must_use]
pub fn no_user(reason: &str) -> String {
    format!("(no user available: {reason})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::{Ask, Question};
    use crate::time::Timestamp;

    fn item(what: AwaitItem) -> Item {
        Item::asked(Ask::from(what), Timestamp(1))
    }

    fn form(options: &[&str]) -> Item {
        let text = |text: &str| text.to_owned();
        let options = options.iter().map(|one| (text(one), text(one))).collect();
        let question =
            Question { id: text("q"), prompt: text("?"), options, allow_multiple: false };
        item(AwaitItem::Questions {
            id: text("i"),
            tool_name: text("t/f"),
            tool_call_id: text("c"),
            payload: text("{}"),
            title: None,
            questions: vec![question],
        })
    }

    #[test]
    fn cs_25_a_fixed_answer_is_given_where_it_fits_and_is_no_consent() {
        let text = |text: &str| text.to_owned();
        let question = item(AwaitItem::Clarification {
            id: text("i"),
            question: text("?"),
            missing_fields: Vec::new(),
            restrict_to_tool: None,
            example_input: None,
            clarifying_prompt: None,
        });
        let consent = item(AwaitItem::Confirmation {
            id: text("confirm:1:c"),
            question: text("?"),
            tool_name: text("t/f"),
            tool_call_id: text("c"),
            payload: text("{}"),
            digest: None,
            policy: None,
        });
        let fixed = Answers::Fixed { text: text("42") };
        assert_eq!(fixed.to(&question), Some(Answer::Text(text("42"))));
        assert_eq!(
            fixed.to(&form(&["41", "42"])),
            Some(Answer::Choices(BTreeMap::from([(text("q"), vec![text("42")])])))
        );
        for (item, why) in [
            (form(&["yes", "no"]), "the fixed answer does not fit"),
            (consent.clone(), "a fixed answer is no consent"),
        ] {
            assert_eq!(fixed.to(&item), Some(Answer::Refused(text(why))));
        }
        let refuse = Answers::Refuse { reason: text("at night") };
        assert_eq!(refuse.to(&question), Some(Answer::Refused(text("at night"))));
        assert_eq!(Answers::Nobody.to(&consent), Some(Answer::Refused(text(NO_USER))));
        assert_eq!(Answers::Inbox.to(&consent), None);
    }
}
