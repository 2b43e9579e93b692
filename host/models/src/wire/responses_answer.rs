//! Answers of Responses.

use serde_json::Value;
use taskrun_journal::completion::{CompletionStop, ModelError};

use super::draft::{Draft, may_begin_call, other};
use super::error::{of_event, refused};
use super::opaque::Maker;
use super::responses_items::KeptItem;
use super::usage::usage_of;
use super::{Decoder, list_of, parsed, str_of};
use crate::key::Secret;

/// The beginnings of the names of its counts of tokens, read and written.
const COUNTS: [&str; 2] = ["input", "output"];

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
    content: Content,
}

/// The pieces of an item that came so far.
#[derive(Debug)]
enum Content {
    /// A message or reasoning; true if anything of it was handed over.
    Said(bool),
    Call(Call),
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

    /// The item that an event is about; a piece may come without the beginning of its item.
    fn item(&mut self, event: &Value) -> Result<&mut Content, ModelError> {
        let place = match self.place(str_of(event, "item_id"), index_of(event)) {
            Some(place) => place,
            None => self.open(str_of(event, "item_id"), index_of(event), Content::Said(false))?,
        };
        Ok(&mut self.open[place].content)
    }

    fn place(&self, id: &str, index: Option<u64>) -> Option<usize> {
        let of_id = |item: &OpenItem| !id.is_empty() && item.id == id;
        // There are servers that give an item another id in each event.
        let of_index = |item: &OpenItem| index.is_some() && item.index == index;
        self.open.iter().rposition(of_id).or_else(|| self.open.iter().rposition(of_index))
    }

    fn open(
        &mut self,
        id: &str,
        index: Option<u64>,
        content: Content,
    ) -> Result<usize, ModelError> {
        may_begin_call(self.open.len())?;
        self.has_items = true;
        self.open.push(OpenItem { id: id.to_owned(), index, content });
        Ok(self.open.len() - 1)
    }

    fn begin_item(&mut self, event: &Value, draft: &mut Draft) -> Result<(), ModelError> {
        let Some(item) = event.get("item") else { return Ok(()) };
        let content = match str_of(item, "type") {
            "function_call" => Content::Call(Call::of(item)),
            "message" => {
                self.begin_message(item, draft);
                Content::Said(false)
            }
            _ => {
                draft.end_thinking();
                Content::Said(false)
            }
        };
        self.open(str_of(item, "id"), index_of(event), content)?;
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
        if let Content::Said(said) = self.item(event)? {
            *said = true;
        }
        draft.text(str_of(event, "delta"));
        Ok(())
    }

    fn think(&mut self, event: &Value, draft: &mut Draft) -> Result<(), ModelError> {
        let Content::Said(said) = self.item(event)? else { return Ok(()) };
        if str_of(event, "type") == "response.reasoning_summary_part.added" {
            // Parts of a summary are paragraphs.
            draft.think(if *said { "\n\n" } else { "" });
        } else {
            *said = true;
            draft.think(str_of(event, "delta"));
        }
        Ok(())
    }

    fn arguments(&mut self, event: &Value, draft: &mut Draft) -> Result<(), ModelError> {
        let Content::Call(call) = self.item(event)? else { return Ok(()) };
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
        let place = self.place(str_of(item, "id"), index);
        let open = place.map(|place| self.open.remove(place).content);
        match str_of(item, "type") {
            "function_call" => {
                self.calls = true;
                let begun = match open {
                    Some(Content::Call(call)) => call,
                    Some(Content::Said(_)) | None => Call::default(),
                };
                let is_whole = str_of(item, "status") != "incomplete";
                let call = Call::of(item).or(begun);
                draft.last_call(call.id, &call.name, call.arguments, is_whole)?;
            }
            "message" => {
                if open.is_none() {
                    self.begin_message(item, draft);
                }
                self.end_message(item, matches!(open, Some(Content::Said(true))), draft);
            }
            "reasoning" => {
                if !matches!(open, Some(Content::Said(true))) {
                    draft.end_thinking();
                    draft.think(&reasoning_text(item));
                }
                match KeptItem::reasoning(item) {
                    Some(kept) => keep(&kept, draft),
                    None => draft.end_thinking(),
                }
            }
            // Of a kind that was not asked for.
            _ => {}
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
                Content::Said(_) => draft.end_thinking(),
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
                if let Content::Said(said) = self.item(&event)? {
                    *said = true;
                }
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
                let error = event.get("error").filter(|error| error.is_object());
                return Err(of_event(error.unwrap_or(&event), self.key.as_ref()));
            }
            // There are many more, and there will be others.
            _ => {}
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
            let error = response.get("error").filter(|error| !error.is_null());
            let malformed = || ModelError::Malformed("no output".to_owned());
            return Err(error.map_or_else(malformed, |error| of_event(error, self.key.as_ref())));
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
