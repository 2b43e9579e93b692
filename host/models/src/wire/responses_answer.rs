//! Answers of Responses.

use std::mem::discriminant;

use serde_json::Value;
use taskrun_journal::completion::{CompletionStop, ModelError};

use super::draft::{Draft, may_begin_call, other};
use super::error::{check_unknown, of_event, refused, stated};
use super::opaque::Maker;
use super::responses_items::KeptItem;
use super::usage::usage_of;
use super::{Decoder, list_of, parsed, str_of};
use crate::key::Secret;

/// The beginnings of the names of its counts of tokens, read and written.
const COUNTS: [&str; 2] = ["input", "output"];
/// Most items that have begun and not ended: each piece is looked up among them.
const OPEN_ITEMS_MAX: usize = 1_024;

/// Puts an answer together from items, each with a beginning, pieces and an end. The end of an
/// item has all of it; its pieces are for those who watch.
#[derive(Debug, Default)]
pub(super) struct ResponsesDecoder {
    key: Option<Secret>,
    /// Items that have not ended.
    open: Vec<OpenItem>,
    /// True once there was an item.
    has_items: bool,
    /// The phase of the last message.
    phase: Option<String>,
    /// The words of a refusal.
    refusal: String,
    /// True once there was a call, with a name or without.
    calls: bool,
}

/// An item whose end is still to come.
#[derive(Debug)]
struct OpenItem {
    /// The provider's id, by which pieces name their item.
    id: String,
    /// The item's place in the answer, by which they name it too.
    index: Option<u64>,
    /// True if its beginning came; a piece may come without it.
    has_begun: bool,
    /// True once a piece had its id: its server gives it no other one.
    is_named: bool,
    content: Content,
}

impl OpenItem {
    /// True if nothing tells it from the item of this id and place.
    fn may_be(&self, id: &str, index: Option<u64>) -> bool {
        let may_have_id = id.is_empty() || !self.is_named;
        may_have_id && (index.is_none() || self.index.is_none() || self.index == index)
    }
}

/// The pieces of an item that came so far; `true` if any of it was handed over.
#[derive(Debug)]
enum Content {
    Message(bool),
    Reasoning(bool),
    Call(Call),
    /// Of a kind that was not asked for.
    Other(bool),
}

impl Content {
    /// That of an item as it is given, of which nothing was handed over.
    fn of(item: &Value) -> Self {
        match str_of(item, "type") {
            "function_call" => Self::Call(Call::of(item)),
            "message" => Self::Message(false),
            "reasoning" => Self::Reasoning(false),
            _ => Self::Other(false),
        }
    }

    fn is_like(&self, kind: &Self) -> bool {
        discriminant(self) == discriminant(kind)
    }

    fn is_said(&self) -> bool {
        match self {
            Self::Message(said) | Self::Reasoning(said) | Self::Other(said) => *said,
            Self::Call(_) => false,
        }
    }

    fn say(&mut self) {
        match self {
            Self::Message(said) | Self::Reasoning(said) | Self::Other(said) => *said = true,
            Self::Call(_) => {}
        }
    }
}

/// A call whose arguments are still coming.
#[derive(Debug, Default)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

impl ResponsesDecoder {
    pub(super) fn new(key: Option<Secret>) -> Self {
        Self { key, ..Self::default() }
    }

    /// The item that a piece is of, which is of this `kind` unless the piece names another one; a
    /// piece may come without the beginning of its item.
    fn item(&mut self, event: &Value, kind: Content) -> Result<&mut Content, ModelError> {
        let place = match self.place_of_piece(event, &kind) {
            Some(place) => place,
            None => self.open(OpenItem {
                id: str_of(event, "item_id").to_owned(),
                index: index_of(event),
                has_begun: false,
                is_named: false,
                content: kind,
            })?,
        };
        Ok(&mut self.open[place].content)
    }

    /// The open item that a piece names, or the last one that it may be of: there are servers that
    /// name none, and servers that give each piece an id of its own.
    fn place_of_piece(&mut self, event: &Value, kind: &Content) -> Option<usize> {
        let (id, index) = (str_of(event, "item_id"), index_of(event));
        let fits = |item: &OpenItem| item.content.is_like(kind) && item.may_be(id, index);
        let named = self.place(id, index, kind);
        let place = named.or_else(|| self.open.iter().rposition(fits))?;
        let item = &mut self.open[place];
        item.is_named |= !id.is_empty() && item.id == id;
        item.index = item.index.or(index);
        Some(place)
    }

    fn place(&self, id: &str, index: Option<u64>, kind: &Content) -> Option<usize> {
        let of_id = |item: &OpenItem| !id.is_empty() && item.id == id;
        // There are servers that give an item another id in each event.
        let of_index =
            |item: &OpenItem| index.is_some() && item.index == index && item.content.is_like(kind);
        self.open.iter().rposition(of_id).or_else(|| self.open.iter().rposition(of_index))
    }

    fn open(&mut self, item: OpenItem) -> Result<usize, ModelError> {
        let is_call = |item: &&OpenItem| matches!(item.content, Content::Call(_));
        if is_call(&&item) {
            may_begin_call(self.open.iter().filter(is_call).count())?;
        }
        if self.open.len() >= OPEN_ITEMS_MAX {
            let limit = format!("it has more than {OPEN_ITEMS_MAX} items that have not ended");
            return Err(ModelError::TooLarge(limit));
        }
        self.has_items = true;
        self.open.push(item);
        Ok(self.open.len() - 1)
    }

    /// Takes out the item that ends: the one that its end names, unless its pieces named none.
    fn take(&mut self, id: &str, index: Option<u64>, kind: &Content) -> Option<Content> {
        let named = self.place(id, index, kind).map(|place| self.open.remove(place).content);
        if named.as_ref().is_some_and(Content::is_said) {
            return named;
        }
        let is_loose = |item: &OpenItem| {
            !item.has_begun && item.content.is_like(kind) && item.may_be(id, index)
        };
        let loose = self.open.iter().rposition(is_loose);
        loose.map(|place| self.open.remove(place).content).or(named)
    }

    fn begin_item(&mut self, event: &Value, draft: &mut Draft) -> Result<(), ModelError> {
        let Some(item) = event.get("item") else { return Ok(()) };
        let content = Content::of(item);
        match content {
            Content::Call(_) => {}
            Content::Message(_) => self.begin_message(item, draft),
            Content::Reasoning(_) | Content::Other(_) => draft.end_thinking(),
        }
        let (id, index) = (str_of(item, "id").to_owned(), index_of(event));
        self.open(OpenItem { id, index, has_begun: true, is_named: false, content })?;
        Ok(())
    }

    /// A message may be of another phase than the one before: that is kept before its text.
    fn begin_message(&mut self, item: &Value, draft: &mut Draft) {
        let phase = item.get("phase").and_then(Value::as_str).map(str::to_owned);
        if phase != self.phase {
            self.phase.clone_from(&phase);
            keep(&KeptItem::Phase(phase), draft);
        }
    }

    fn text(&mut self, event: &Value, draft: &mut Draft) -> Result<(), ModelError> {
        self.item(event, Content::Message(false))?.say();
        draft.text(str_of(event, "delta"));
        Ok(())
    }

    fn think(&mut self, event: &Value, draft: &mut Draft) -> Result<(), ModelError> {
        let content = self.item(event, Content::Reasoning(false))?;
        if matches!(content, Content::Call(_)) {
            return Ok(());
        }
        if str_of(event, "type") == "response.reasoning_summary_part.added" {
            // Parts of a summary are paragraphs.
            draft.think(if content.is_said() { "\n\n" } else { "" });
        } else {
            content.say();
            draft.think(str_of(event, "delta"));
        }
        Ok(())
    }

    fn arguments(&mut self, event: &Value, draft: &mut Draft) -> Result<(), ModelError> {
        let place = self.place_of_piece(event, &Content::Call(Call::default()));
        let Some(place) = place else { return Ok(()) };
        let Content::Call(call) = &mut self.open[place].content else { return Ok(()) };
        match event.get("arguments").and_then(Value::as_str) {
            Some(whole) => whole.clone_into(&mut call.arguments),
            None => {
                let delta = str_of(event, "delta");
                call.arguments.push_str(delta);
                draft.call_fragment(&call.id, &call.name, delta)?;
            }
        }
        Ok(())
    }

    /// The end of an item that had a beginning, or a whole item.
    fn end_item(
        &mut self,
        item: &Value,
        index: Option<u64>,
        draft: &mut Draft,
    ) -> Result<(), ModelError> {
        self.has_items = true;
        let content = Content::of(item);
        let open = self.take(str_of(item, "id"), index, &content);
        let was_said = open.as_ref().is_some_and(Content::is_said);
        match content {
            Content::Call(call) => {
                self.calls = true;
                let is_whole = str_of(item, "status") != "incomplete";
                let call = match open {
                    Some(Content::Call(begun)) => call.or(begun),
                    Some(Content::Message(_) | Content::Reasoning(_) | Content::Other(_))
                    | None => call,
                };
                draft.last_call(call.id, &call.name, call.arguments, is_whole)?;
            }
            Content::Message(_) => {
                if open.is_none() {
                    self.begin_message(item, draft);
                }
                self.end_message(item, was_said, draft);
            }
            Content::Reasoning(_) => {
                if !was_said {
                    draft.end_thinking();
                    draft.think(&reasoning_text(item));
                }
                match KeptItem::reasoning(item) {
                    Some(kept) => keep(&kept, draft),
                    None => draft.end_thinking(),
                }
            }
            Content::Other(_) => {}
        }
        Ok(())
    }

    fn end_message(&mut self, item: &Value, was_said: bool, draft: &mut Draft) {
        for part in list_of(item, "content").iter().filter(|_| !was_said) {
            draft.text(str_of(part, "text"));
            self.refusal.push_str(str_of(part, "refusal"));
        }
    }

    /// The answer is over, in the way that `event` says. One that is complete by its event may be
    /// incomplete by its status.
    fn end_response(
        &mut self,
        event: &str,
        response: &Value,
        draft: &mut Draft,
    ) -> Result<(), ModelError> {
        draft.model(str_of(response, "model"));
        if let Some(usage) = response.get("usage").and_then(|usage| usage_of(usage, COUNTS)) {
            draft.count(usage);
        }
        let status = match (event, str_of(response, "status")) {
            ("response.failed", _) => "failed",
            ("response.incomplete", _) => "incomplete",
            (_, status) => status,
        };
        match status {
            "failed" => {
                let error = response.get("error").unwrap_or(&Value::Null);
                return Err(of_event(error, self.key.as_ref()));
            }
            "cancelled" => {
                return Err(ModelError::Unavailable("it gave up in the middle".to_owned()));
            }
            "queued" | "in_progress" => {
                return Err(ModelError::Malformed("an answer that is not complete".to_owned()));
            }
            _ => {}
        }
        if !self.has_items {
            for item in list_of(response, "output") {
                self.end_item(item, None, draft)?;
            }
        }
        // Items whose end was left out.
        let is_whole = status != "incomplete";
        for item in std::mem::take(&mut self.open) {
            match item.content {
                Content::Call(call) => {
                    self.calls = true;
                    draft.last_call(call.id, &call.name, call.arguments, is_whole)?;
                }
                Content::Message(_) | Content::Reasoning(_) | Content::Other(_) => {
                    draft.end_thinking();
                }
            }
        }
        let why = response.get("incomplete_details").map_or("", |why| str_of(why, "reason"));
        let declined = |words: &str| Err(refused(words, self.key.as_ref()));
        draft.stop(match status {
            _ if !self.refusal.is_empty() => declined(&self.refusal),
            "incomplete" => match why {
                "max_output_tokens" => Ok(CompletionStop::MaxTokens),
                "content_filter" => declined(why),
                word => Ok(other(word)),
            },
            _ if self.calls => Ok(CompletionStop::ToolUse),
            _ => Ok(CompletionStop::EndTurn),
        })
    }
}

impl Call {
    fn of(item: &Value) -> Self {
        let arguments = match item.get("arguments") {
            Some(Value::String(text)) => text.clone(),
            Some(object @ Value::Object(_)) => object.to_string(),
            Some(_) | None => String::new(),
        };
        let ids = ["call_id", "id"].map(|key| str_of(item, key));
        let id = ids.into_iter().find(|id| !id.is_empty()).unwrap_or_default();
        Self { id: id.to_owned(), name: str_of(item, "name").to_owned(), arguments }
    }

    /// This, with what it lacks taken from its beginning.
    fn or(self, begun: Self) -> Self {
        let or = |one: String, other: String| if one.is_empty() { other } else { one };
        Self {
            id: or(self.id, begun.id),
            name: or(self.name, begun.name),
            arguments: or(self.arguments, begun.arguments),
        }
    }
}

impl Decoder for ResponsesDecoder {
    fn piece(&mut self, data: &str, draft: &mut Draft) -> Result<(), ModelError> {
        // Not of this protocol; servers that speak chat completions as well send it.
        if data.trim() == "[DONE]" {
            return Ok(());
        }
        let event = parsed(data.as_bytes())?;
        let response = event.get("response").unwrap_or(&Value::Null);
        match str_of(&event, "type") {
            "response.created" => draft.model(str_of(response, "model")),
            "response.output_item.added" => self.begin_item(&event, draft)?,
            "response.output_text.delta" => self.text(&event, draft)?,
            "response.refusal.delta" => {
                self.item(&event, Content::Message(false))?.say();
                self.refusal.push_str(str_of(&event, "delta"));
            }
            "response.reasoning_summary_part.added"
            | "response.reasoning_summary_text.delta"
            | "response.reasoning_text.delta" => self.think(&event, draft)?,
            "response.function_call_arguments.delta" | "response.function_call_arguments.done" => {
                self.arguments(&event, draft)?;
            }
            "response.output_item.done" => {
                let item = event.get("item").unwrap_or(&Value::Null);
                self.end_item(item, index_of(&event), draft)?;
            }
            "response.completed" | "response.incomplete" | "response.failed" => {
                self.end_response(str_of(&event, "type"), response, draft)?;
            }
            // OpenRouter has the longer word
            // (<https://openrouter.ai/docs/api/reference/errors-and-debugging>).
            "error" | "response.error" => {
                // The documents have its members in the event, and the provider in a group.
                return Err(of_event(stated(&event).unwrap_or(&event), self.key.as_ref()));
            }
            // There are many more, and there will be others.
            kind if kind.starts_with("response.") => {}
            _ => check_unknown(&event, self.key.as_ref())?,
        }
        Ok(())
    }

    fn end(&mut self, _draft: &mut Draft) -> Result<(), ModelError> {
        // Without an event that says so it is not complete.
        Ok(())
    }

    fn whole(&mut self, body: &[u8], draft: &mut Draft) -> Result<(), ModelError> {
        let response = parsed(body)?;
        if !response.get("output").is_some_and(Value::is_array) {
            check_unknown(&response, self.key.as_ref())?;
            return Err(ModelError::Malformed("no output".to_owned()));
        }
        self.end_response("", &response, draft)
    }
}

/// Hands over an item as the signature of the block of reasoning that it is part of, or of an
/// empty one.
fn keep(item: &KeptItem, draft: &mut Draft) {
    if matches!(item, KeptItem::Phase(_)) {
        draft.end_thinking();
    }
    draft.sign(Maker::OpenAi, &item.to_text());
    draft.end_thinking();
}

fn index_of(event: &Value) -> Option<u64> {
    event.get("output_index").and_then(Value::as_u64)
}

/// The words of an item of reasoning: its summary, or where a server shows it the reasoning itself.
fn reasoning_text(item: &Value) -> String {
    let texts = |key: &str| -> Vec<&str> {
        list_of(item, key).iter().map(|part| str_of(part, "text")).collect()
    };
    let summary = texts("summary").join("\n\n");
    if summary.is_empty() { texts("content").concat() } else { summary }
}
