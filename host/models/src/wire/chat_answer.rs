//! Answers of chat completions.

use std::collections::BTreeSet;

use serde_json::Value;
use taskrun_journal::completion::{CompletionStop, ModelError};

use super::draft::{Draft, Ending, is_cut, is_nothing, may_begin_call, other};
use super::error::{of_event, refused};
use super::usage::usage_of;
use super::{Decoder, list_of, parsed, str_of};
use crate::key::Secret;

/// The beginnings of the names of its counts of tokens, read and written.
const COUNTS: [&str; 2] = ["prompt", "completion"];

/// Puts an answer together. Calls come in fragments, which each server tells apart in its own way.
#[derive(Debug, Default)]
pub(super) struct ChatDecoder {
    key: Option<Secret>,
    /// In the order in which they began.
    calls: Vec<Call>,
    ending: Option<Ending>,
    /// The words of a refusal.
    refusal: String,
}

/// A call whose fragments are still coming.
#[derive(Debug, Default)]
struct Call {
    /// The number that the server gives it, if it numbers them.
    index: Option<u64>,
    /// The server's id, or ours where it has given none.
    id: String,
    /// True if the id is ours.
    own_id: bool,
    name: String,
    arguments: String,
}

impl Call {
    /// Tells if there can be no more of its arguments: they are a whole object already.
    fn is_whole(&self) -> bool {
        let text = self.arguments.trim();
        text.starts_with('{')
            && text.ends_with('}')
            && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
    }

    /// The arguments in a form that is the same for the same ones.
    fn plain_arguments(&self) -> String {
        if is_nothing(&self.arguments) {
            return "{}".to_owned();
        }
        let parsed: Result<Value, _> = serde_json::from_str(&self.arguments);
        parsed.map_or_else(|_| self.arguments.clone(), |value| value.to_string())
    }
}

impl ChatDecoder {
    pub(super) fn new(key: Option<Secret>) -> Self {
        Self { key, ..Self::default() }
    }

    /// A message or a part of one.
    fn message(&mut self, said: &Value, draft: &mut Draft) -> Result<(), ModelError> {
        // Reasoning is no part of OpenAI's protocol. Servers use two names for it, and some use
        // both at once, with the same text.
        let reasoning = ["reasoning_content", "reasoning"].map(|key| str_of(said, key));
        draft.think(reasoning.into_iter().find(|text| !text.is_empty()).unwrap_or_default());
        match said.get("content") {
            Some(Value::Array(parts)) => parts.iter().for_each(|part| self.part(part, draft)),
            Some(content) => draft.text(content.as_str().unwrap_or_default()),
            None => {}
        }
        self.refusal.push_str(str_of(said, "refusal"));
        for fragment in list_of(said, "tool_calls") {
            self.fragment(fragment, draft)?;
        }
        Ok(())
    }

    /// A piece of a content that is a list, as Mistral's reasoning models have it.
    fn part(&mut self, part: &Value, draft: &mut Draft) {
        match part.get("type").and_then(Value::as_str) {
            Some("thinking") => {
                let inner = list_of(part, "thinking").iter();
                inner.for_each(|inner| draft.think(str_of(inner, "text")));
            }
            Some("refusal") => self.refusal.push_str(str_of(part, "refusal")),
            Some(_) | None => draft.text(str_of(part, "text")),
        }
    }

    fn fragment(&mut self, fragment: &Value, draft: &mut Draft) -> Result<(), ModelError> {
        let id = str_of(fragment, "id");
        let index = fragment.get("index").and_then(Value::as_u64);
        let function = fragment.get("function").unwrap_or(&Value::Null);
        let name = str_of(function, "name");
        let place = match self.place_of(index, id, name) {
            Some(place) => place,
            None => {
                may_begin_call(self.calls.len())?;
                let id = draft.fresh_id();
                self.calls.push(Call { index, id, own_id: true, ..Call::default() });
                self.calls.len() - 1
            }
        };
        let call = &mut self.calls[place];
        if call.own_id && !id.is_empty() && call.arguments.is_empty() {
            id.clone_into(&mut call.id);
            call.own_id = false;
        }
        if call.name.is_empty() {
            name.clone_into(&mut call.name);
        }
        let delta = match function.get("arguments") {
            Some(Value::String(text)) => text.clone(),
            Some(object @ Value::Object(_)) => object.to_string(),
            Some(_) | None => String::new(),
        };
        call.arguments.push_str(&delta);
        draft.call_fragment(&call.id, &call.name, &delta)
    }

    /// The call that a fragment goes on with; `None` if it begins another. The number alone does
    /// not tell: there are servers that give every call the number 0, or none at all.
    fn place_of(&self, index: Option<u64>, id: &str, name: &str) -> Option<usize> {
        let same_number = |call: &Call| index.is_none() || call.index == index;
        let is_whole = |place: &usize| self.calls[*place].is_whole();
        let last = self.calls.iter().rposition(same_number);
        let has_id = |call: &Call| call.id == id && !call.own_id;
        let unnamed = |last: &usize| {
            let call = &self.calls[*last];
            call.own_id && (name.is_empty() || call.name.is_empty())
        };
        let place = if id.is_empty() {
            // The name of the next one; some servers repeat that of the present one.
            last.filter(|last| name.is_empty() || !is_whole(last))
        } else {
            let of_id = |call: &Call| has_id(call) && same_number(call);
            self.calls.iter().rposition(of_id).or_else(|| last.filter(unnamed))
        };
        if place.is_some() || !name.is_empty() {
            return place;
        }
        // No call begins without a name as long as one lacks arguments: there are servers that give
        // the same call another id (Poolside, mlx-openai-server) or another number (LocalAI,
        // Nebius) in its next fragment.
        let begun = self.calls.iter().rposition(has_id).or(last);
        begun.or_else(|| self.calls.len().checked_sub(1)).filter(|place| !is_whole(place))
    }

    fn finish(&mut self, draft: &mut Draft) -> Result<(), ModelError> {
        let ending = self.ending.take().unwrap_or(Ok(CompletionStop::EndTurn));
        let mut calls = std::mem::take(&mut self.calls);
        leave_each_once(&mut calls);
        let last = calls.pop();
        for call in calls {
            draft.call(call.id, &call.name, call.arguments)?;
        }
        if let Some(call) = last {
            draft.last_call(call.id, &call.name, call.arguments, !is_cut(&ending))?;
        }
        let words = std::mem::take(&mut self.refusal);
        draft.stop(if words.is_empty() { ending } else { Err(refused(&words, self.key.as_ref())) })
    }

    fn common(&mut self, value: &Value, draft: &mut Draft) -> Result<(), ModelError> {
        if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
            return Err(of_event(error, self.key.as_ref()));
        }
        draft.model(str_of(value, "model"));
        count(value, draft);
        Ok(())
    }

    /// Why the answer ends, if it does with this.
    fn ending(&mut self, choice: &Value, draft: &mut Draft) -> Result<(), ModelError> {
        count(choice, draft);
        let reason = choice.get("finish_reason").and_then(Value::as_str);
        // Some servers, such as SGLang, have an empty word in every event before the last.
        let Some(reason) = reason.filter(|word| !word.is_empty()) else { return Ok(()) };
        self.ending = Some(Ok(match reason {
            // vLLM says which text it met, or the number of a token.
            "stop" if choice.get("stop_reason").is_some_and(Value::is_string) => {
                CompletionStop::StopSequence
            }
            "stop" => CompletionStop::EndTurn,
            "tool_calls" | "function_call" => CompletionStop::ToolUse,
            "length" => CompletionStop::MaxTokens,
            "model_length" => CompletionStop::ContextWindow,
            "content_filter" => {
                self.ending = Some(Err(refused(reason, self.key.as_ref())));
                return Ok(());
            }
            "insufficient_system_resource" => {
                return Err(ModelError::Overloaded { retry_after_ms: None, said: None });
            }
            "error" | "abort" => {
                return Err(ModelError::Unavailable("it gave up in the middle".to_owned()));
            }
            word => other(word),
        }));
        Ok(())
    }
}

impl Decoder for ChatDecoder {
    fn piece(&mut self, data: &str, draft: &mut Draft) -> Result<(), ModelError> {
        if data.trim() == "[DONE]" {
            return self.finish(draft);
        }
        let value = parsed(data.as_bytes())?;
        self.common(&value, draft)?;
        // One answer was asked for; the last event, with the usage, has none.
        let Some(choice) = list_of(&value, "choices").first() else { return Ok(()) };
        if let Some(delta) = choice.get("delta") {
            self.message(delta, draft)?;
        }
        self.ending(choice, draft)
    }

    fn end(&mut self, draft: &mut Draft) -> Result<(), ModelError> {
        // Some servers leave out the last event.
        if self.ending.is_some() { self.finish(draft) } else { Ok(()) }
    }

    fn whole(&mut self, body: &[u8], draft: &mut Draft) -> Result<(), ModelError> {
        let value = parsed(body)?;
        self.common(&value, draft)?;
        let choice = list_of(&value, "choices").first();
        let choice = choice.ok_or_else(|| ModelError::Malformed("no choices".to_owned()))?;
        if let Some(message) = choice.get("message") {
            self.message(message, draft)?;
        }
        self.ending(choice, draft)?;
        self.finish(draft)
    }
}

/// Leaves out a call that was given once more: LocalAI does so under another number, as two of its
/// parsers find the same one, each with spaces of its own in the arguments
/// (<https://github.com/mudler/LocalAI/issues/9722>). Two calls that a model wants have two ids.
fn leave_each_once(calls: &mut Vec<Call>) {
    let mut seen = BTreeSet::new();
    calls.retain(|call| {
        call.own_id || seen.insert((call.id.clone(), call.name.clone(), call.plain_arguments()))
    });
}

/// Counts the tokens so far, unless there are none.
fn count(value: &Value, draft: &mut Draft) {
    if let Some(usage) = value.get("usage").and_then(|usage| usage_of(usage, COUNTS)) {
        draft.count(usage);
    }
}
