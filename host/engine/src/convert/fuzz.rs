//! Values as any guest may return them, on their way into a journal and back.

use taskrun_fixtures::corpus::{Edit, edited, percent_that_fit};
use taskrun_journal::event::Event;
use taskrun_journal::message::Message;
use taskrun_journal::plan::{PlannerError, ToolRequest};
use taskrun_journal::question::{ANSWER_BYTES_MAX, Answer, Ask, Item};
use taskrun_journal::tool::ToolOutcome;

use crate::bindings::agent::exports::taskrun::plugin::planner as guest;
use crate::bindings::interfaces::types;
use crate::convert::input;

/// Texts that somebody may have forgotten to think of.
const TEXTS: [&str; 12] = [
    "",
    " ",
    "a",
    "tool/function",
    "{}",
    "{\"a\":1,\"a\":2}",
    "\u{0}\u{7f}\u{9b}",
    "\u{202e}\u{061c}\u{e0041}",
    "\"\\\n\r\u{2028}",
    "1e400",
    "\u{feff}null",
    "a rather long text, long enough that it stands for more than an id of something",
];

/// Bytes that are read as choices; nought at their end.
struct Choices<'b>(std::slice::Iter<'b, u8>);

impl Choices<'_> {
    fn pick(&mut self, of: usize) -> usize {
        self.0.next().map_or(0, |byte| usize::from(*byte) % of)
    }

    fn flag(&mut self) -> bool {
        self.pick(2) == 1
    }

    fn number(&mut self) -> u64 {
        [0, 1, 7, u64::from(u32::MAX), u64::MAX - 1, u64::MAX][self.pick(6)]
    }

    fn text(&mut self) -> String {
        TEXTS[self.pick(TEXTS.len())].to_owned()
    }

    fn option<T>(&mut self, some: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.flag().then(|| some(self))
    }

    fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.pick(5)).map(|_| one(self)).collect()
    }

    fn message(&mut self) -> types::Message {
        use types::Role::{Assistant, System, Tool, User};
        let role = [System, User, Assistant, Tool][self.pick(4)];
        types::Message { role, parts: self.list(Self::part) }
    }

    fn media(&mut self) -> types::Media {
        types::Media { media_type: self.text(), hash: self.text(), size: self.number() }
    }

    fn part(&mut self) -> types::Part {
        match self.pick(6) {
            0 => types::Part::Text(self.text()),
            1 => types::Part::Thinking(types::Thinking {
                text: self.text(),
                signature: self.option(Self::text),
            }),
            2 => types::Part::ToolUse(types::ToolUse {
                tool_call_id: self.text(),
                name: self.text(),
                payload: self.text(),
            }),
            3 => types::Part::ToolAnswer(types::ToolAnswer {
                tool_call_id: self.text(),
                content: self.text(),
                is_error: self.flag(),
                media: self.list(Self::media),
            }),
            4 => types::Part::Media(self.media()),
            _ => types::Part::Json(self.text()),
        }
    }

    fn request(&mut self) -> guest::ToolRequest {
        guest::ToolRequest {
            name: self.text(),
            payload: self.text(),
            tool_call_id: self.option(Self::text),
            parent_tool_call_id: self.option(Self::text),
        }
    }

    fn item(&mut self) -> guest::AwaitItem {
        match self.pick(3) {
            0 => guest::AwaitItem::Clarification(guest::AwaitClarification {
                id: self.text(),
                question: self.text(),
                missing_fields: self.list(Self::text),
                restrict_to_tool: self.option(Self::text),
                example_input: self.option(Self::text),
                clarifying_prompt: self.option(Self::text),
            }),
            1 => guest::AwaitItem::Questions(guest::AwaitQuestions {
                id: self.text(),
                tool_name: self.text(),
                tool_call_id: self.text(),
                payload: self.text(),
                title: self.option(Self::text),
                questions: self.list(|choices| guest::Question {
                    id: choices.text(),
                    prompt: choices.text(),
                    options: choices.list(|choices| guest::QuestionOption {
                        id: choices.text(),
                        label: choices.text(),
                    }),
                    allow_multiple: choices.flag(),
                }),
            }),
            _ => guest::AwaitItem::ExternalTools(guest::AwaitExternalTools {
                id: self.text(),
                items: self.list(|choices| guest::ExternalTool {
                    name: choices.text(),
                    tool_call_id: choices.text(),
                    payload: choices.text(),
                }),
            }),
        }
    }

    fn ask(&mut self) -> guest::AwaitAsk {
        guest::AwaitAsk {
            what: self.item(),
            timeout: self.option(Self::number),
            default_answer: self.option(|choices| match choices.pick(3) {
                0 => guest::DefaultAnswer::Text(choices.text()),
                1 => guest::DefaultAnswer::Choices(
                    choices.list(|choices| (choices.text(), choices.list(Self::text))),
                ),
                // Repeated for each call, it may be more than an answer.
                _ => guest::DefaultAnswer::EachResult(
                    choices.text().repeat(1 + choices.pick(2) * (ANSWER_BYTES_MAX / 100)),
                ),
            }),
        }
    }
}

/// The event as a reader of the journal finds it, which has to be as it was written.
fn reread(event: &Event) -> Event {
    let text = serde_json::to_string(event).expect("events have names for keys");
    let reread = serde_json::from_str(&text).expect("it was written just now");
    assert_eq!(&reread, event, "{text}");
    reread
}

#[test]
fn fuzz_a_message_of_a_guest_is_the_same_from_the_journal() {
    bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
        let message = Choices(bytes.iter()).message();
        let shown = format!("{message:?}");
        let kept = Message::from(message);
        let event =
            Event::AssistantMessage { message: kept, usage: None, model: None, streamed: false };
        let Event::AssistantMessage { message: kept, .. } = reread(&event) else {
            panic!("another kind of event was read than was written");
        };
        assert_eq!(format!("{:?}", types::Message::from(&kept)), shown);
        assert_eq!(format!("{:?}", input::as_shown(&kept)), shown);
    });
}

/// Events as journals have them, a line each: the messages among them are what guests said.
const EVENTS: &str = include_str!("../../../journal/tests/formats/3/events.jsonl");

/// Values and pieces of JSON, which stand for others in a message.
const PIECES: [&str; 12] = [
    "null",
    "true",
    "18446744073709551615",
    "\"\"",
    "\"a\"",
    "[]",
    "{}",
    "{\"text\":\"\"}",
    "\\u0000",
    "\\n",
    "\u{202e}",
    "\"",
];

fn messages() -> Vec<&'static str> {
    EVENTS.lines().filter(|line| line.contains("\"kind\":\"assistant_message\"")).collect()
}

fn message(text: &str) -> Option<Message> {
    let event = serde_json::from_str(text).ok()?;
    if let Event::AssistantMessage { message, .. } = event { Some(message) } else { None }
}

#[test]
fn of_changed_messages_a_part_are_messages() {
    let percent = percent_that_fit(&messages(), &PIECES, |text| message(text).is_some());
    assert!(percent >= 5, "{percent} %");
}

#[test]
fn fuzz_a_message_of_a_journal_with_changes_is_the_same_after_a_guest_had_it() {
    let messages = messages();
    bolero::check!().with_type::<(u8, Vec<Edit>)>().for_each(|(pick, edits)| {
        let text = edited(messages[usize::from(*pick) % messages.len()], edits, &PIECES);
        let Some(message) = message(&text) else { return };
        assert_eq!(Message::from(types::Message::from(&message)), message, "{text}");
        assert_eq!(Message::from(input::as_shown(&message)), message, "{text}");
    });
}

#[test]
fn fuzz_a_question_of_a_guest_is_kept_whole_and_its_default_answer_is_bounded() {
    bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
        let asked = Choices(bytes.iter()).ask();
        let calls = match &asked.what {
            guest::AwaitItem::ExternalTools(tools) => tools.items.len(),
            guest::AwaitItem::Clarification(_) | guest::AwaitItem::Questions(_) => 0,
        };
        let Ask { what, timeout, default } = asked.clone().into();
        assert_eq!(timeout.map(|timeout| timeout.as_millis()), asked.timeout.map(u128::from));
        if let Some(Answer::Results(results)) = &default {
            let bytes: usize = results
                .values()
                .map(|result| match &result.outcome {
                    ToolOutcome::Value(value) => value.len(),
                    ToolOutcome::Failure(_) => panic!("nobody made it a failure"),
                })
                .sum();
            assert!(bytes <= ANSWER_BYTES_MAX && results.len() <= calls, "{bytes} in {calls}");
        }
        let item = Item { what, tool_call_id: None, until: None, default };
        reread(&Event::Asked { item: Box::new(item) });
    });
}

#[test]
fn fuzz_requests_and_errors_of_a_guest_lose_nothing() {
    bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
        let mut choices = Choices(bytes.iter());
        let asked = choices.request();
        let kept = ToolRequest::from(asked.clone());
        assert_eq!((&kept.name, &kept.payload), (&asked.name, &asked.payload));
        assert_eq!(kept.tool_call_id, asked.tool_call_id);
        assert_eq!(kept.parent_tool_call_id, asked.parent_tool_call_id);
        let error = guest::PlannerError {
            code: choices.option(Choices::text),
            message: choices.text(),
            causes: choices.list(Choices::text),
            retry_after: None,
        };
        let kept = PlannerError::from(error.clone());
        assert_eq!(
            (kept.code, kept.message, kept.causes),
            (error.code, error.message, error.causes)
        );
    });
}
