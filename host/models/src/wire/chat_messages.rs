//! Conversations as chat completions have them.
//!
//! OpenAI takes messages of any role in any order. Mistral, and the templates of most models that
//! others serve, take instructions first and then user and assistant in turns, with the results
//! of tools in between. What they would refuse is put so that they take it: instructions in the
//! middle become marked text of the user, and between the result of a tool and a user there stands
//! a word of the assistant.

use serde_json::{Map, Value, json};
use taskrun_journal::media::Media;
use taskrun_journal::message::{Message, Part, Role, ToolAnswer};
use taskrun_policy::OpenAiServer;

use super::images::{Image, Images};
use super::names::to_wire;
use super::{arguments_text, text_of};

/// The assistant's word between results of tools and a user.
const BRIDGE: &str = "I have the results.";
/// The user's word before an assistant that speaks first, and after one that spoke last.
const GO_ON: &str = "Go on.";
/// The user's word before images of results.
const RESULT_IMAGES: &str = "These images belong to the results above, in their order:";
/// Letters of an id where a server takes no longer one.
const SHORT_ID_BYTES: usize = 9;

/// The messages of a request.
pub(super) fn messages(server: OpenAiServer, all: &[Message], images: Images<'_>) -> Vec<Value> {
    let mut turns = Turns { server, images, all: Vec::new() };
    for message in all {
        turns.push(message);
    }
    if !server.kind.takes_any_order() && turns.role() == Some("assistant") {
        turns.all.push(spoken("user", GO_ON));
    }
    turns.all.into_iter().map(Value::Object).collect()
}

struct Turns<'q> {
    server: OpenAiServer,
    images: Images<'q>,
    all: Vec<Map<String, Value>>,
}

impl Turns<'_> {
    fn push(&mut self, message: &Message) {
        let text = text_of(message);
        match message.role {
            Role::System if !text.is_empty() => self.instruct(&text),
            Role::User if message.media().next().is_some() => self.show(&text, message.media()),
            Role::User if !text.is_empty() => self.ask(&text),
            Role::System | Role::User => {}
            Role::Assistant => self.answer(message, &text),
            Role::Tool => self.results(message, &text),
        }
    }

    fn role(&self) -> Option<&str> {
        self.all.last().and_then(|last| last.get("role")).and_then(Value::as_str)
    }

    /// Puts text behind that of the last message.
    fn append(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let Some(last) = self.all.last_mut() else { return };
        if let Some(Value::Array(parts)) = last.get_mut("content") {
            parts.push(text_part(text));
            return;
        }
        let before = last.get("content").and_then(Value::as_str).unwrap_or_default();
        let joined = match before.is_empty() {
            true => text.to_owned(),
            false => format!("{before}\n\n{text}"),
        };
        last.insert("content".to_owned(), Value::String(joined));
    }

    fn instruct(&mut self, text: &str) {
        if self.server.kind.takes_any_order() {
            self.all.push(spoken("system", text));
            return;
        }
        match self.role() {
            None => self.all.push(spoken("system", text)),
            Some("system") => self.append(text),
            Some(_) => self.ask(&format!("<system>\n{text}\n</system>")),
        }
    }

    fn ask(&mut self, text: &str) {
        if !self.server.kind.takes_any_order() {
            match self.role() {
                Some("user") => return self.append(text),
                Some("tool") => {
                    let bridge = self.assistant(BRIDGE, String::new());
                    self.all.push(bridge);
                }
                Some(_) | None => {}
            }
        }
        self.all.push(spoken("user", text));
    }

    /// Has the user say a text, and show images with it.
    fn show<'m>(&mut self, text: &str, media: impl Iterator<Item = &'m Media>) {
        self.ask(text);
        let images = self.images;
        let Some(last) = self.all.last_mut() else { return };
        let mut parts = match last.remove("content") {
            Some(Value::Array(parts)) => parts,
            Some(Value::String(text)) if !text.is_empty() => vec![text_part(&text)],
            Some(_) | None => Vec::new(),
        };
        parts.extend(media.map(|media| match images.of(media) {
            Image::Inline { media_type, data } => {
                let url = Image::url(media_type, &data);
                json!({ "type": "image_url", "image_url": { "url": url } })
            }
            Image::Words(words) => text_part(words),
        }));
        last.insert("content".to_owned(), Value::Array(parts));
    }

    /// Where reasoning is wanted, it is wanted even if there is none.
    fn assistant(&self, text: &str, reasoning: String) -> Map<String, Value> {
        let mut said = spoken("assistant", text);
        if let Some(field) = self.server.reasoning_field {
            said.insert(field.as_str().to_owned(), Value::String(reasoning));
        }
        said
    }

    /// An assistant's message, unless nothing of it can be sent.
    fn answer(&mut self, message: &Message, text: &str) {
        let calls: Vec<Value> = message.tool_uses().map(|call| json!({
            "id": self.id(&call.tool_call_id),
            "type": "function",
            "function": { "name": to_wire(&call.name), "arguments": arguments_text(&call.payload) },
        })).collect();
        if calls.is_empty() && text.is_empty() {
            return;
        }
        let mut said = self.assistant(text, reasoning_of(message));
        if !calls.is_empty() {
            said.insert("tool_calls".to_owned(), Value::Array(calls));
            if text.is_empty() {
                said.insert("content".to_owned(), Value::Null);
            }
        }
        if !self.server.kind.takes_any_order() {
            let is_open = |last: &Map<String, Value>| !last.contains_key("tool_calls");
            match self.role() {
                None | Some("system") => self.all.push(spoken("user", GO_ON)),
                Some("assistant") if self.all.last().is_some_and(is_open) => {
                    self.all.push(spoken("user", GO_ON));
                }
                Some(_) => {}
            }
        }
        self.all.push(said);
    }

    /// Results of tools, each a message. What the host says to them stands behind the last one.
    fn results(&mut self, message: &Message, text: &str) {
        let results: Vec<&ToolAnswer> = message.parts.iter().filter_map(result).collect();
        for answer in &results {
            let mut said = spoken("tool", &answer.content);
            said.insert("tool_call_id".to_owned(), self.id(&answer.tool_call_id));
            self.all.push(said);
        }
        match (text.is_empty(), results.is_empty()) {
            (true, _) => {}
            (false, true) => self.ask(text),
            (false, false) => self.append(text),
        }
        // A message with a result has no place for them.
        if results.iter().any(|answer| !answer.media.is_empty()) {
            self.show(RESULT_IMAGES, results.iter().flat_map(|answer| &answer.media));
        }
    }

    /// The id of a call as the server takes it, always the same for the same.
    fn id(&self, id: &str) -> Value {
        let is_short = id.len() == SHORT_ID_BYTES && id.bytes().all(|b| b.is_ascii_alphanumeric());
        if is_short || !self.server.kind.has_short_call_ids() {
            return id.into();
        }
        blake3::hash(id.as_bytes()).to_hex()[..SHORT_ID_BYTES].into()
    }
}

fn spoken(role: &str, text: &str) -> Map<String, Value> {
    Map::from_iter([
        ("role".to_owned(), Value::from(role)),
        ("content".to_owned(), Value::from(text)),
    ])
}

fn text_part(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

/// The reasoning that came without a signature, which is that of servers such as these.
fn reasoning_of(message: &Message) -> String {
    let blocks = message.parts.iter().filter_map(|part| match part {
        Part::Thinking(block) => block.signature.is_none().then_some(block.text.as_str()),
        Part::Text(_) | Part::ToolUse(_) | Part::ToolAnswer(_) | Part::Json(_) | Part::Media(_) => {
            None
        }
    });
    blocks.collect()
}

fn result(part: &Part) -> Option<&ToolAnswer> {
    match part {
        Part::ToolAnswer(answer) => Some(answer),
        Part::Text(_) | Part::Thinking(_) | Part::ToolUse(_) | Part::Json(_) | Part::Media(_) => {
            None
        }
    }
}
