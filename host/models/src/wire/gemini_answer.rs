//! Content generation as Google's Gemini has it: the answer.

use serde_json::Value;
use taskrun_journal::completion::{CompletionStop, ModelError};
use taskrun_journal::message::Usage;

use super::draft::{Draft, Ending, other};
use super::error::{of_event, refused};
use super::opaque::Maker;
use super::{Decoder, list_of, parsed, str_of, tokens};
use crate::key::Secret;

/// Puts an answer together. Calls come whole, and each event counts all tokens so far.
#[derive(Debug, Default)]
pub(super) struct GeminiDecoder {
    key: Option<Secret>,
    ending: Option<Ending>,
    /// True once it said anything, and once there was an answer in it.
    has_begun: bool,
    has_candidate: bool,
}

impl GeminiDecoder {
    pub(super) fn new(key: Option<Secret>) -> Self {
        Self { key, ..Self::default() }
    }

    fn part(part: &Value, draft: &mut Draft) -> Result<(), ModelError> {
        let text = str_of(part, "text");
        let signature = str_of(part, "thoughtSignature");
        if part.get("thought").and_then(Value::as_bool) == Some(true) {
            draft.think(text);
            draft.sign(Maker::Gemini, signature);
            return Ok(());
        }
        draft.sign(Maker::Gemini, signature);
        draft.text(text);
        if let Some(call) = part.get("functionCall") {
            let args = call.get("args").filter(|args| !args.is_null());
            let arguments = args.map_or_else(|| "{}".to_owned(), Value::to_string);
            draft.call(str_of(call, "id").to_owned(), str_of(call, "name"), arguments)?;
        }
        Ok(())
    }

    fn response(&mut self, value: &Value, draft: &mut Draft) -> Result<(), ModelError> {
        if let Some(error) = value.get("error") {
            return Err(of_event(error, self.key.as_ref()));
        }
        draft.model(str_of(value, "modelVersion"));
        if let Some(usage) = value.get("usageMetadata") {
            draft.count(usage_of(usage));
        }
        let blocked = value.get("promptFeedback").map(|feedback| str_of(feedback, "blockReason"));
        self.has_begun = true;
        if let Some(reason) = blocked.filter(|reason| !reason.is_empty()) {
            let more = value.get("promptFeedback").unwrap_or(&Value::Null);
            self.ending = Some(Err(self.refused(reason, str_of(more, "blockReasonMessage"))));
        }
        let Some(candidate) = list_of(value, "candidates").first() else { return Ok(()) };
        self.has_candidate = true;
        for part in candidate.get("content").map(|c| list_of(c, "parts")).unwrap_or_default() {
            Self::part(part, draft)?;
        }
        if let Some(reason) = candidate.get("finishReason").and_then(Value::as_str) {
            self.ending = Some(self.ending(reason, str_of(candidate, "finishMessage")));
        }
        Ok(())
    }

    fn refused(&self, reason: &str, message: &str) -> ModelError {
        let words =
            if message.is_empty() { reason.to_owned() } else { format!("{reason}: {message}") };
        refused(&words, self.key.as_ref())
    }

    fn ending(&self, reason: &str, message: &str) -> Ending {
        Ok(match reason {
            "STOP" => CompletionStop::EndTurn,
            "MAX_TOKENS" => CompletionStop::MaxTokens,
            "MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL" => CompletionStop::MalformedCall,
            "SAFETY"
            | "RECITATION"
            | "BLOCKLIST"
            | "PROHIBITED_CONTENT"
            | "SPII"
            | "MODEL_ARMOR"
            | "IMAGE_SAFETY"
            | "IMAGE_PROHIBITED_CONTENT"
            | "IMAGE_RECITATION" => {
                return Err(self.refused(reason, message));
            }
            word => other(word),
        })
    }
}

impl Decoder for GeminiDecoder {
    fn piece(&mut self, data: &str, draft: &mut Draft) -> Result<(), ModelError> {
        let value = parsed(data.as_bytes())?;
        self.response(&value, draft)
    }

    fn end(&mut self, draft: &mut Draft) -> Result<(), ModelError> {
        // No event says that it was the last one; without a reason an answer was cut off.
        let ending = self.ending.take().or_else(|| {
            let is_none = self.has_begun && !self.has_candidate;
            is_none.then(|| Err(self.refused("no candidate", "")))
        });
        let Some(ending) = ending else { return Ok(()) };
        draft.stop(ending)
    }

    fn whole(&mut self, body: &[u8], draft: &mut Draft) -> Result<(), ModelError> {
        let value = parsed(body)?;
        self.response(&value, draft)?;
        if self.ending.is_none() && self.has_candidate {
            return Err(ModelError::Malformed("no candidate that is complete".to_owned()));
        }
        self.end(draft)
    }
}

fn usage_of(usage: &Value) -> Usage {
    let prompt_tokens = tokens(usage, "promptTokenCount");
    let reasoning_tokens = tokens(usage, "thoughtsTokenCount");
    let completion_tokens = tokens(usage, "candidatesTokenCount").saturating_add(reasoning_tokens);
    let sum = prompt_tokens.saturating_add(completion_tokens);
    let total_tokens = tokens(usage, "totalTokenCount").max(sum);
    Usage {
        prompt_tokens,
        completion_tokens,
        total_tokens,
        cached_tokens: tokens(usage, "cachedContentTokenCount"),
        reasoning_tokens,
        ..Usage::default()
    }
}
