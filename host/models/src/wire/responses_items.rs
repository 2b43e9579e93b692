//! Conversations as Responses has them: items, each a message, a call, a result or reasoning.

use serde_json::{Value, json};
use taskrun_journal::media::Media;
use taskrun_journal::message::{Message, Part, Role, Thinking, ToolAnswer};

use super::images::{Image, Images, OWN_IMAGE};
use super::names::to_wire;
use super::opaque::Maker;
use super::{arguments_text, str_of, text_of};

/// Longest id of a call that OpenAI takes.
const CALL_ID_BYTES_MAX: usize = 64;

/// An item of an answer that goes back as it came, or says how the text after it goes back.
#[derive(Debug, PartialEq)]
pub(super) enum KeptItem {
    /// Reasoning, with what is encrypted of it.
    Reasoning(Value),
    /// The phase of the text that follows, `commentary` or `final_answer`; `None` ends that of the
    /// text before.
    Phase(Option<String>),
}

impl KeptItem {
    /// The part of an item of reasoning that is kept, unless the provider could not read it again: it stores
    /// nothing, so the item must have all in itself.
    pub(super) fn reasoning(item: &Value) -> Option<Self> {
        let is_there = |key: &str| match item.get(key) {
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Array(all)) => !all.is_empty(),
            Some(_) | None => false,
        };
        if !is_there("encrypted_content") && !is_there("content") {
            return None;
        }
        let mut kept = item.clone();
        if let Value::Object(members) = &mut kept {
            // The status is of the answer, and members without a value are refused.
            members.retain(|key, value| key != "status" && !value.is_null());
            members.entry("summary").or_insert_with(|| json!([]));
        }
        Some(Self::Reasoning(kept))
    }

    /// The text that stands for it behind the tag of its provider.
    pub(super) fn to_text(&self) -> String {
        match self {
            Self::Reasoning(item) => item.to_string(),
            Self::Phase(phase) => json!({ "type": "message", "phase": phase }).to_string(),
        }
    }

    /// The item in a block of reasoning, if it has one of this protocol. Guests can write such
    /// blocks too: they get no other kind of item through.
    fn of(block: &Thinking) -> Option<Self> {
        let text = Maker::OpenAi.item(block.signature.as_deref()?)?;
        let item: Value = serde_json::from_str(text).ok()?;
        match str_of(&item, "type") {
            "reasoning" => Some(Self::Reasoning(item)),
            "message" => {
                let phase = str_of(&item, "phase");
                Some(Self::Phase((!phase.is_empty()).then(|| phase.to_owned())))
            }
            _ => None,
        }
    }
}

/// The input of a request. Where the model does not reason, no reasoning is in it.
pub(super) fn items(
    conversation: &[Message],
    with_reasoning: bool,
    images: Images<'_>,
) -> Vec<Value> {
    let mut all = Vec::new();
    for message in conversation {
        match message.role {
            Role::System => all.extend(said("system", &text_of(message))),
            Role::User => all.extend(asked(message, images)),
            Role::Assistant => answer(message, with_reasoning, &mut all),
            Role::Tool => results(message, images, &mut all),
        }
    }
    all
}

fn said(role: &str, text: &str) -> Option<Value> {
    let is_there = !text.is_empty();
    is_there.then(|| json!({ "type": "message", "role": role, "content": text }))
}

/// The words of the user: a text, or with images a list of what there is.
fn asked(message: &Message, images: Images<'_>) -> Option<Value> {
    if message.media().next().is_none() {
        return said("user", &text_of(message));
    }
    let parts = message.parts.iter().filter_map(|part| match part {
        Part::Text(text) | Part::Json(text) if !text.is_empty() => Some(input_text(text)),
        Part::Media(media) => Some(input_image(media, images)),
        Part::Text(_)
        | Part::Json(_)
        | Part::Thinking(_)
        | Part::ToolUse(_)
        | Part::ToolAnswer(_) => None,
    });
    let content: Vec<Value> = parts.collect();
    Some(json!({ "type": "message", "role": "user", "content": content }))
}

fn input_text(text: &str) -> Value {
    json!({ "type": "input_text", "text": text })
}

fn input_image(media: &Media, images: Images<'_>) -> Value {
    match images.of(media) {
        Image::Inline { media_type, data } => {
            let url = Image::url(media_type, &data);
            json!({ "type": "input_image", "image_url": url, "detail": "auto" })
        }
        Image::Words(words) => input_text(words),
    }
}

/// The items of an answer in their order.
fn answer(message: &Message, with_reasoning: bool, all: &mut Vec<Value>) {
    let before = all.len();
    let mut current = None;
    for part in &message.parts {
        match part {
            Part::Text(text) | Part::Json(text) => {
                let Some(mut item) = said("assistant", text) else { continue };
                if let Some(phase) = &current {
                    item["phase"] = json!(phase);
                }
                all.push(item);
            }
            Part::Thinking(block) => match KeptItem::of(block) {
                Some(KeptItem::Reasoning(item)) if with_reasoning => all.push(item),
                Some(KeptItem::Phase(phase)) => current = phase,
                Some(KeptItem::Reasoning(_)) | None => {}
            },
            Part::ToolUse(call) => all.push(json!({
                "type": "function_call",
                "call_id": call_id(&call.tool_call_id),
                "name": to_wire(&call.name),
                "arguments": arguments_text(&call.payload),
            })),
            Part::Media(_) => all.extend(said("assistant", OWN_IMAGE)),
            Part::ToolAnswer(_) => {}
        }
    }
    // Reasoning is refused without what followed from it.
    while all.len() > before && all.last().is_some_and(|item| str_of(item, "type") == "reasoning") {
        all.pop();
    }
}

/// Results of tools, each an item. What the host says to them stands behind the last one.
fn results(message: &Message, images: Images<'_>, all: &mut Vec<Value>) {
    let text = text_of(message);
    let mut last = None;
    for part in &message.parts {
        match part {
            Part::ToolAnswer(answer) => {
                last = Some(all.len());
                all.push(json!({
                    "type": "function_call_output",
                    "call_id": call_id(&answer.tool_call_id),
                    "output": output(answer, images),
                }));
            }
            Part::Text(_)
            | Part::Thinking(_)
            | Part::ToolUse(_)
            | Part::Json(_)
            | Part::Media(_) => {}
        }
    }
    match last {
        Some(place) if !text.is_empty() => match all[place]["output"].as_array_mut() {
            Some(parts) => parts.push(input_text(&text)),
            None => {
                let output = str_of(&all[place], "output");
                all[place]["output"] = json!(format!("{output}\n\n{text}"));
            }
        },
        Some(_) => {}
        None => all.extend(said("user", &text)),
    }
}

/// A result: its text, or with images a list of what there is.
fn output(answer: &ToolAnswer, images: Images<'_>) -> Value {
    if answer.media.is_empty() {
        return json!(answer.content);
    }
    let text = std::iter::once(input_text(&answer.content));
    let all = text.chain(answer.media.iter().map(|media| input_image(media, images)));
    Value::Array(all.collect())
}

/// The id of a call as the provider takes it, always the same for the same.
fn call_id(id: &str) -> String {
    if (1..=CALL_ID_BYTES_MAX).contains(&id.len()) {
        return id.to_owned();
    }
    format!("call_{}", &blake3::hash(id.as_bytes()).to_hex()[..CALL_ID_BYTES_MAX / 2])
}
