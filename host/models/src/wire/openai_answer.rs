//! Answers of chat completions.

use std::collections::BTreeMap;

use serde_json::Value;
use taskrun_journal::completion::{CompletionStop, ModelError};
use taskrun_journal::message::Usage;

use super::draft::{Draft, may_begin_call};
use super::error::of_event;
use super::{Decoder, list_of, parsed, str_of, tokens};
use crate::key::Secret;

/// Puts an answer together. Calls come in fragments that name the call by a number.
#[derive(Debug, Default)]
pub(super) struct OpenAiDecoder {
    key: Option<Secret>,
    calls: BTreeMap<u64, Call>,
    usage: Option<Usage>,
    finish: Option<CompletionStop>,
    refused: bool,
}

#[derive(Debug, Default)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

impl OpenAiDecoder {
    pub(super) fn new(key: Option<Secret>) -> Self {
        Self { key, ..Self::default() }
    }

    /// A message or a part of one.
    fn message(&mut self, said: &Value, draft: &mut Draft) -> Result<(), ModelError> {
        // Reasoning is no part of OpenAI's protocol; these are the two names that servers use.
        for key in ["reasoning_content", "reasoning"] {
            draft.think(str_of(said, key));
        }
        match said.get("content") {
            Some(Value::Array(parts)) => parts.iter().for_each(|part| content_part(part, draft)),
            Some(content) => draft.text(content.as_str().unwrap_or_default()),
            None => {}
        }
        let refusal = str_of(said, "refusal");
        self.refused |= !refusal.is_empty();
        draft.text(refusal);
        for fragment in list_of(said, "tool_calls") {
            self.fragment(fragment, draft)?;
        }
        Ok(())
    }

    fn fragment(&mut self, fragment: &Value, draft: &mut Draft) -> Result<(), ModelError> {
        let id = str_of(fragment, "id");
        let index = fragment.get("index").and_then(Value::as_u64);
        let index = index.unwrap_or_else(|| self.place_of(id));
        if !self.calls.contains_key(&index) {
            may_begin_call(self.calls.len())?;
        }
        let call = self.calls.entry(index).or_default();
        let function = fragment.get("function").unwrap_or(&Value::Null);
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
        }
        if call.name.is_empty() {
            str_of(function, "name").clone_into(&mut call.name);
        }
        let delta = match function.get("arguments") {
            Some(Value::String(text)) => text.clone(),
            Some(object @ Value::Object(_)) => object.to_string(),
            Some(_) | None => String::new(),
        };
        if call.id.is_empty() {
            call.id = format!("call_{index}");
        }
        call.arguments.push_str(&delta);
        draft.call_fragment(&call.id, &call.name, &delta)
    }

    /// Where a fragment without a number belongs: to the call of its id, to a new one if there is
    /// none, and without an id to the last one.
    fn place_of(&self, id: &str) -> u64 {
        let known = self.calls.iter().find(|(_, call)| call.id == id).map(|(index, _)| *index);
        let last = self.calls.keys().next_back().copied();
        match (known, last) {
            (Some(index), _) => index,
            (None, Some(last)) if id.is_empty() => last,
            (None, Some(last)) => last.saturating_add(1),
            (None, None) => 0,
        }
    }

    fn finish(&mut self, draft: &mut Draft) -> Result<(), ModelError> {
        for call in std::mem::take(&mut self.calls).into_values() {
            draft.call(call.id, &call.name, call.arguments)?;
        }
        if let Some(usage) = self.usage.take() {
            draft.usage(usage);
        }
        let reason = self.finish.unwrap_or(CompletionStop::EndTurn);
        draft.stop(if self.refused { CompletionStop::Refusal } else { reason });
        Ok(())
    }

    fn common(&mut self, value: &Value, draft: &mut Draft) -> Result<(), ModelError> {
        if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
            return Err(of_event(error, self.key.as_ref()));
        }
        draft.model(str_of(value, "model"));
        if let Some(usage) = value.get("usage").filter(|usage| usage.is_object()) {
            self.usage = usage_of(usage);
        }
        Ok(())
    }
}

impl Decoder for OpenAiDecoder {
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
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            self.finish = Some(stop(reason));
        }
        Ok(())
    }

    fn end(&mut self, draft: &mut Draft) -> Result<(), ModelError> {
        // Some servers leave out the last event.
        if self.finish.is_some() { self.finish(draft) } else { Ok(()) }
    }

    fn whole(&mut self, body: &[u8], draft: &mut Draft) -> Result<(), ModelError> {
        let value = parsed(body)?;
        self.common(&value, draft)?;
        let choice = list_of(&value, "choices").first();
        let choice = choice.ok_or_else(|| ModelError::Malformed("no choices".to_owned()))?;
        if let Some(message) = choice.get("message") {
            self.message(message, draft)?;
        }
        self.finish = choice.get("finish_reason").and_then(Value::as_str).map(stop);
        self.finish(draft)
    }
}

/// A piece of a content that is a list, as Mistral's reasoning models have it.
fn content_part(part: &Value, draft: &mut Draft) {
    match part.get("type").and_then(Value::as_str) {
        Some("thinking") => {
            list_of(part, "thinking").iter().for_each(|inner| draft.think(str_of(inner, "text")));
        }
        Some(_) | None => draft.text(str_of(part, "text")),
    }
}

fn usage_of(usage: &Value) -> Option<Usage> {
    let prompt_tokens = tokens(usage, "prompt_tokens");
    let completion_tokens = tokens(usage, "completion_tokens");
    let sum = prompt_tokens.saturating_add(completion_tokens);
    let total_tokens = tokens(usage, "total_tokens").max(sum);
    (total_tokens > 0).then_some(Usage {
        prompt_tokens,
        completion_tokens,
        total_tokens,
        ..Usage::default()
    })
}

fn stop(reason: &str) -> CompletionStop {
    match reason {
        "stop" => CompletionStop::EndTurn,
        "tool_calls" | "function_call" => CompletionStop::ToolUse,
        "length" => CompletionStop::MaxTokens,
        "content_filter" => CompletionStop::Refusal,
        _ => CompletionStop::Other,
    }
}
