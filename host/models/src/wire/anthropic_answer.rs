//! Messages as Anthropic has them: the answer.

use std::collections::BTreeMap;

use serde_json::Value;
use taskrun_journal::completion::{CompletionStop, ModelError};
use taskrun_journal::message::Usage;

use super::draft::{Draft, Ending, is_cut, may_begin_call, other};
use super::error::{check_unknown, of_event, refused};
use super::opaque::Maker;
use super::{Decoder, list_of, parsed, str_of, tokens};
use crate::key::Secret;

/// Stands before the data of a block that came encrypted, in the place of its signature.
/// Signatures are Base64, which has no colon.
pub(super) const REDACTED: &str = "redacted:";

/// Puts an answer together from blocks, each with a number, a beginning, deltas and an end.
#[derive(Debug, Default)]
pub(super) struct AnthropicDecoder {
    key: Option<Secret>,
    open: BTreeMap<u64, Open>,
    /// Id and name of the last call, where it has ended without arguments: only the end of the
    /// answer says if it was cut off. Nothing of it was shown, as there was nothing.
    bare_call: Option<(String, String)>,
    usage: Usage,
    ending: Option<Ending>,
}

/// A block that has not ended.
#[derive(Debug)]
enum Open {
    Text,
    Thinking,
    ToolUse {
        id: String,
        name: String,
        input: String,
    },
    /// Of a kind that was not asked for.
    Other,
}

impl AnthropicDecoder {
    pub(super) fn new(key: Option<Secret>) -> Self {
        Self { key, ..Self::default() }
    }

    fn begin(&mut self, index: u64, block: &Value, draft: &mut Draft) -> Result<(), ModelError> {
        may_begin_call(self.open.len())?;
        self.hand_over_bare_call(true, draft)?;
        let open = match str_of(block, "type") {
            "text" => {
                draft.text(str_of(block, "text"));
                Open::Text
            }
            "thinking" => {
                draft.end_thinking();
                draft.think(str_of(block, "thinking"));
                draft.sign(Maker::Anthropic, str_of(block, "signature"));
                Open::Thinking
            }
            "redacted_thinking" => {
                draft.end_thinking();
                draft.sign(Maker::Anthropic, &format!("{REDACTED}{}", str_of(block, "data")));
                Open::Thinking
            }
            "tool_use" => {
                let (id, name) = (str_of(block, "id").to_owned(), str_of(block, "name").to_owned());
                // An empty object here only says that deltas follow.
                let whole = block
                    .get("input")
                    .filter(|input| input.as_object().is_some_and(|object| !object.is_empty()));
                let input = whole.map(Value::to_string).unwrap_or_default();
                Open::ToolUse { id, name, input }
            }
            _ => Open::Other,
        };
        self.open.insert(index, open);
        Ok(())
    }

    fn delta(&mut self, index: u64, delta: &Value, draft: &mut Draft) -> Result<(), ModelError> {
        let open = self.open.get_mut(&index);
        let open = open.ok_or_else(|| malformed("a delta of a block that is not open"))?;
        match (open, str_of(delta, "type")) {
            (Open::Text, "text_delta") => draft.text(str_of(delta, "text")),
            (Open::Thinking, "thinking_delta") => draft.think(str_of(delta, "thinking")),
            (Open::Thinking, "signature_delta") => {
                draft.sign(Maker::Anthropic, str_of(delta, "signature"))
            }
            (Open::ToolUse { id, name, input }, "input_json_delta") => {
                let json = str_of(delta, "partial_json");
                input.push_str(json);
                draft.call_fragment(id, name, json)?;
            }
            // Deltas of other kinds, such as citations, say nothing that is handed on.
            (Open::Text | Open::Thinking | Open::ToolUse { .. } | Open::Other, _) => {}
        }
        Ok(())
    }

    fn end_block(&mut self, index: u64, draft: &mut Draft) -> Result<(), ModelError> {
        match self.open.remove(&index) {
            Some(Open::Thinking) => draft.end_thinking(),
            Some(Open::ToolUse { id, name, input }) => {
                self.hand_over_bare_call(true, draft)?;
                if input.trim().is_empty() {
                    self.bare_call = Some((id, name));
                } else {
                    draft.call(id, &name, input)?;
                }
            }
            Some(Open::Text | Open::Other) | None => {}
        }
        Ok(())
    }

    fn hand_over_bare_call(&mut self, is_whole: bool, draft: &mut Draft) -> Result<(), ModelError> {
        let Some((id, name)) = self.bare_call.take() else { return Ok(()) };
        draft.last_call(id, &name, String::new(), is_whole)
    }

    /// Tokens of the prompt are told at the beginning, so that they count also if nobody reads the
    /// answer to its end. Of those written this says only how many there are by now.
    fn begin_message(&mut self, message: &Value, draft: &mut Draft) {
        draft.model(str_of(message, "model"));
        self.count(message, 0, draft);
        if self.usage.prompt_tokens > 0 {
            draft.tell();
        }
    }

    /// Counts are of the whole answer so far. Servers give those of the prompt at its beginning, at
    /// its end, or both.
    fn count(&mut self, message: &Value, completion_tokens: u64, draft: &mut Draft) {
        let usage = message.get("usage").unwrap_or(&Value::Null);
        let [fresh, cache_write_tokens, cached_tokens] =
            ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"]
                .map(|key| tokens(usage, key));
        let prompt_tokens = fresh.saturating_add(cache_write_tokens).saturating_add(cached_tokens);
        let kept = &mut self.usage;
        if prompt_tokens >= kept.prompt_tokens {
            kept.prompt_tokens = prompt_tokens;
            kept.cached_tokens = cached_tokens;
            kept.cache_write_tokens = cache_write_tokens;
        }
        kept.completion_tokens = kept.completion_tokens.max(completion_tokens);
        kept.total_tokens = kept.prompt_tokens.saturating_add(kept.completion_tokens);
        draft.count(*kept);
    }

    fn read_delta(&mut self, value: &Value, draft: &mut Draft) {
        let delta = value.get("delta").unwrap_or(value);
        if let Some(reason) = delta.get("stop_reason").and_then(Value::as_str) {
            self.ending = Some(self.ending(reason, delta));
        }
        let completion_tokens =
            value.get("usage").map_or(0, |usage| tokens(usage, "output_tokens"));
        self.count(value, completion_tokens, draft);
    }

    /// The end for a reason; it says more of refusals.
    fn ending(&self, reason: &str, delta: &Value) -> Ending {
        Ok(match reason {
            "end_turn" => CompletionStop::EndTurn,
            "tool_use" => CompletionStop::ToolUse,
            "max_tokens" => CompletionStop::MaxTokens,
            "model_context_window_exceeded" => CompletionStop::ContextWindow,
            "stop_sequence" => CompletionStop::StopSequence,
            "refusal" => {
                let details = delta.get("stop_details").unwrap_or(&Value::Null);
                let words = ["explanation", "category"].map(|key| str_of(details, key));
                let words = words.into_iter().find(|words| !words.is_empty());
                return Err(refused(words.unwrap_or_default(), self.key.as_ref()));
            }
            word => other(word),
        })
    }

    fn finish(&mut self, draft: &mut Draft) -> Result<(), ModelError> {
        let ending = self.ending.take().unwrap_or_else(|| Ok(other("")));
        self.hand_over_bare_call(!is_cut(&ending), draft)?;
        draft.stop(ending)
    }

    fn check(&self, value: &Value) -> Result<(), ModelError> {
        if str_of(value, "type") != "error" {
            return Ok(());
        }
        Err(of_event(value.get("error").unwrap_or(&Value::Null), self.key.as_ref()))
    }
}

impl Decoder for AnthropicDecoder {
    fn piece(&mut self, data: &str, draft: &mut Draft) -> Result<(), ModelError> {
        let value = parsed(data.as_bytes())?;
        self.check(&value)?;
        let index = value.get("index").and_then(Value::as_u64).unwrap_or(0);
        let inner = |key: &str| value.get(key).unwrap_or(&Value::Null);
        match str_of(&value, "type") {
            "message_start" => self.begin_message(inner("message"), draft),
            "content_block_start" => self.begin(index, inner("content_block"), draft)?,
            "content_block_delta" => self.delta(index, inner("delta"), draft)?,
            "content_block_stop" => self.end_block(index, draft)?,
            "message_delta" => self.read_delta(&value, draft),
            "message_stop" => self.finish(draft)?,
            // `ping`, and what may come later: the protocol says to pass over those.
            _ => check_unknown(&value, self.key.as_ref())?,
        }
        Ok(())
    }

    fn end(&mut self, _draft: &mut Draft) -> Result<(), ModelError> {
        // Without `message_stop` it is not complete.
        Ok(())
    }

    fn whole(&mut self, body: &[u8], draft: &mut Draft) -> Result<(), ModelError> {
        let value = parsed(body)?;
        self.check(&value)?;
        if !value.get("content").is_some_and(Value::is_array) {
            check_unknown(&value, self.key.as_ref())?;
            return Err(malformed("no content"));
        }
        draft.model(str_of(&value, "model"));
        self.read_delta(&value, draft);
        for block in list_of(&value, "content") {
            self.begin(0, block, draft)?;
            self.end_block(0, draft)?;
        }
        self.finish(draft)
    }
}

fn malformed(what: &str) -> ModelError {
    ModelError::Malformed(what.to_owned())
}
