//! An answer in the making: what the protocols have in common.

use std::collections::VecDeque;

use taskrun_journal::completion::{Chunk, CompletionStop, ModelError};
use taskrun_journal::message::{Thinking, ToolUse, Usage};

use super::call_ids::CallIds;
use super::names::Names;
use super::opaque::Maker;

/// Most tool calls of one answer. Agents may make 40 in a run unless their policy says otherwise.
const TOOL_CALLS_MAX: usize = 128;
/// The greatest depth of the arguments of a call; no tool's are nearly so deep, and code that reads
/// them by recursion is safe.
const JSON_DEPTH_MAX: usize = 64;
/// Most bytes of what a provider calls a model, and of the id and the name of a call.
const LABEL_BYTES_MAX: usize = 256;
/// Most characters of a provider's own word for the reason of an end.
const REASON_CHARS_MAX: usize = 64;
/// Bytes that make a token, where a provider does not count: about right for English text.
const BYTES_PER_TOKEN: u64 = 4;

/// The end of an answer, as its provider says it: an error where that declined to answer.
pub(crate) type Ending = Result<CompletionStop, ModelError>;

/// True if a limit ended the answer: its last call may have been cut off.
pub(crate) fn is_cut(ending: &Ending) -> bool {
    matches!(ending, Ok(CompletionStop::MaxTokens | CompletionStop::ContextWindow))
}

/// An end for a reason that is none of ours, in the provider's word.
pub(crate) fn other(word: &str) -> CompletionStop {
    let shown = word.chars().filter(|c| !c.is_control()).take(REASON_CHARS_MAX);
    CompletionStop::Other(shown.collect())
}

/// Collects chunks as a protocol's decoder finds them.
#[derive(Debug)]
pub(crate) struct Draft {
    ready: VecDeque<Chunk>,
    names: Names,
    ids: CallIds,
    model: String,
    thinking: Option<Thinking>,
    calls: usize,
    said_bytes: u64,
    /// Those of them that came as fragments of calls which are not whole yet.
    fragment_bytes: u64,
    prompt_bytes: u64,
    /// The provider's count of the answer so far, and the part of it that was handed over.
    counted: Usage,
    told: Usage,
    stopped: bool,
}

impl Draft {
    /// Of an answer by `model`, as long as the provider gives no other name, to `prompt_bytes`.
    pub(crate) fn new(names: Names, ids: CallIds, model: String, prompt_bytes: u64) -> Self {
        Self {
            ready: VecDeque::new(),
            names,
            ids,
            model,
            thinking: None,
            calls: 0,
            said_bytes: 0,
            fragment_bytes: 0,
            prompt_bytes,
            counted: Usage::default(),
            told: Usage::default(),
            stopped: false,
        }
    }

    /// The next chunk to hand over.
    pub(crate) fn take(&mut self) -> Option<Chunk> {
        self.ready.pop_front()
    }

    /// True once the answer is complete.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// The provider's name of the model that answers.
    pub(crate) fn model(&mut self, name: &str) {
        if !name.is_empty() && name.len() <= LABEL_BYTES_MAX {
            name.clone_into(&mut self.model);
        }
    }

    /// Text of the answer.
    pub(crate) fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.end_thinking();
        self.said_bytes += text.len() as u64;
        self.ready.push_back(Chunk::Text(text.to_owned()));
    }

    /// More of a block of reasoning; it is handed over as a whole.
    pub(crate) fn think(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.said_bytes += text.len() as u64;
        self.thinking.get_or_insert_default().text.push_str(text);
    }

    /// More of the signature of a block of reasoning, or of an item in its place.
    pub(crate) fn sign(&mut self, maker: Maker, signature: &str) {
        if signature.is_empty() {
            return;
        }
        let block = self.thinking.get_or_insert_default();
        block.signature.get_or_insert_with(|| maker.tag().to_owned()).push_str(signature);
    }

    /// The block of reasoning is whole.
    pub(crate) fn end_thinking(&mut self) {
        self.ready.extend(self.thinking.take().map(Chunk::Thinking));
    }

    /// The id of a call to which its server gave none.
    pub(crate) fn fresh_id(&mut self) -> String {
        self.ids.fresh()
    }

    /// A fragment of the arguments of a call.
    ///
    /// # Errors
    /// If the call's id or name is too long: each fragment repeats them.
    pub(crate) fn call_fragment(
        &mut self,
        id: &str,
        wire_name: &str,
        delta: &str,
    ) -> Result<(), ModelError> {
        check_label(id)?;
        check_label(wire_name)?;
        if delta.is_empty() {
            return Ok(());
        }
        self.end_thinking();
        self.said_bytes += delta.len() as u64;
        self.fragment_bytes += delta.len() as u64;
        self.ready.push_back(Chunk::ToolCallDelta {
            tool_call_id: self.ids.of(id),
            name: self.names.to_ours(wire_name),
            delta: delta.to_owned(),
        });
        Ok(())
    }

    /// A whole call. Arguments that are no JSON are handed on: the check against the tool's schema
    /// tells the model what is wrong with them.
    ///
    /// One without a name is left out: nobody can tell what the model wanted.
    ///
    /// # Errors
    /// If its name is too long, it is one too many, or its arguments are nested too deep.
    pub(crate) fn call(
        &mut self,
        id: String,
        wire_name: &str,
        arguments: String,
    ) -> Result<(), ModelError> {
        self.count_call(wire_name, &arguments);
        if wire_name.is_empty() {
            tracing::warn!(model = self.model, "the model calls a tool without a name");
            return Ok(());
        }
        if self.calls >= TOOL_CALLS_MAX {
            return Err(too_many_calls());
        }
        if depth_of(&arguments) > JSON_DEPTH_MAX {
            let limit = format!("the arguments of a call are more than {JSON_DEPTH_MAX} deep");
            return Err(ModelError::TooLarge(limit));
        }
        check_label(&id)?;
        check_label(wire_name)?;
        self.end_thinking();
        self.calls += 1;
        let tool_call_id = self.ids.end(&id);
        let payload = if is_nothing(&arguments) { "{}".to_owned() } else { arguments };
        let name = self.names.to_ours(wire_name);
        self.ready.push_back(Chunk::ToolCall(ToolUse { tool_call_id, name, payload }));
        Ok(())
    }

    /// Counts what of a whole call did not come in fragments. Its id does not tell which those are:
    /// there are servers that give a call another one at its end.
    fn count_call(&mut self, wire_name: &str, arguments: &str) {
        let bytes = arguments.len() as u64;
        let in_fragments = bytes.min(self.fragment_bytes);
        self.fragment_bytes -= in_fragments;
        self.said_bytes += wire_name.len() as u64 + bytes - in_fragments;
    }

    /// [`Self::call`] for a call that may not be whole. One that was cut off before its arguments
    /// is left out: nobody can tell what the model wanted, and without arguments the tool would
    /// do something else.
    ///
    /// # Errors
    /// As for [`Self::call`].
    pub(crate) fn last_call(
        &mut self,
        id: String,
        wire_name: &str,
        arguments: String,
        is_whole: bool,
    ) -> Result<(), ModelError> {
        if !is_whole && is_nothing(&arguments) {
            let model = &self.model;
            tracing::warn!(model, name = wire_name, "a call was cut off before its arguments");
            return Ok(());
        }
        self.call(id, wire_name, arguments)
    }

    /// Keeps the provider's count of all tokens of the answer so far. The last count is handed over
    /// at the end, however the answer ends.
    pub(crate) fn count(&mut self, usage: Usage) {
        self.counted = usage;
    }

    /// Hands over the tokens that were counted since the last time.
    pub(crate) fn tell(&mut self) {
        let (now, told) = (self.counted, self.told);
        let added = Usage {
            prompt_tokens: now.prompt_tokens.saturating_sub(told.prompt_tokens),
            completion_tokens: now.completion_tokens.saturating_sub(told.completion_tokens),
            total_tokens: now.total_tokens.saturating_sub(told.total_tokens),
            cached_tokens: now.cached_tokens.saturating_sub(told.cached_tokens),
            cache_write_tokens: now.cache_write_tokens.saturating_sub(told.cache_write_tokens),
            reasoning_tokens: now.reasoning_tokens.saturating_sub(told.reasoning_tokens),
            ..Usage::default()
        };
        if added != Usage::default() {
            self.told = told.plus(added);
            let estimated = now.estimated;
            self.ready.push_back(Chunk::Usage(Usage { estimated, ..added }));
        }
    }

    /// The answer is complete.
    ///
    /// # Errors
    /// [`ModelError::Refused`] for one that is a refusal: it is no answer, though its tokens count
    /// like those of any other.
    pub(crate) fn stop(&mut self, ending: Ending) -> Result<(), ModelError> {
        self.end_thinking();
        self.tell_all();
        // A provider may say that it stopped for another reason than the calls that it asks for,
        // or for calls of which none is left.
        let reason = match ending? {
            CompletionStop::EndTurn if self.calls > 0 => CompletionStop::ToolUse,
            CompletionStop::ToolUse if self.calls == 0 => CompletionStop::MalformedCall,
            reason @ (CompletionStop::EndTurn
            | CompletionStop::ToolUse
            | CompletionStop::MaxTokens
            | CompletionStop::StopSequence
            | CompletionStop::ContextWindow
            | CompletionStop::MalformedCall) => reason,
            CompletionStop::Other(word) => {
                tracing::warn!(model = self.model, word, "the model stopped for another reason");
                CompletionStop::Other(word)
            }
        };
        self.ready.push_back(Chunk::Stop { reason, model: self.model.clone() });
        self.stopped = true;
        Ok(())
    }

    /// The answer ends with an error and is not complete: what was consumed counts all the same. A
    /// question that the window has no room for is not read, so nothing is estimated of it.
    pub(crate) fn abort(&mut self, error: &ModelError) {
        self.end_thinking();
        let is_counted = self.said_bytes > 0 || self.counted != Usage::default();
        if is_counted || !matches!(error, ModelError::ContextWindow(_)) {
            self.tell_all();
        }
    }

    /// Hands over all tokens. Those that the provider did not count, read or written, are estimated,
    /// so that budgets hold with any of them.
    fn tell_all(&mut self) {
        let mut usage = self.counted;
        let counts = [
            (&mut usage.prompt_tokens, self.prompt_bytes),
            (&mut usage.completion_tokens, self.said_bytes),
        ];
        for (tokens, bytes) in counts {
            if *tokens == 0 && bytes > 0 {
                *tokens = bytes.div_ceil(BYTES_PER_TOKEN);
                usage.estimated = true;
            }
        }
        let sum = usage.prompt_tokens.saturating_add(usage.completion_tokens);
        usage.total_tokens = usage.total_tokens.max(sum);
        if usage.estimated {
            let (model, total_tokens) = (&self.model, usage.total_tokens);
            tracing::debug!(
                model,
                total_tokens,
                "the provider did not count all tokens; estimated"
            );
        }
        self.counted = usage;
        self.tell();
    }
}

/// The error for an answer with more tool calls than one may have.
pub(crate) fn too_many_calls() -> ModelError {
    ModelError::TooLarge(format!("it asks for more than {TOOL_CALLS_MAX} tool calls"))
}

/// Checks that one more call may be begun where there are so many.
pub(crate) fn may_begin_call(begun: usize) -> Result<(), ModelError> {
    if begun < TOOL_CALLS_MAX { Ok(()) } else { Err(too_many_calls()) }
}

/// True for no arguments. Models write `null` for those of a function that has none.
pub(crate) fn is_nothing(arguments: &str) -> bool {
    matches!(arguments.trim(), "" | "null")
}

fn check_label(label: &str) -> Result<(), ModelError> {
    if label.len() <= LABEL_BYTES_MAX {
        Ok(())
    } else {
        let limit = format!("the id or name of a call has more than {LABEL_BYTES_MAX} bytes");
        Err(ModelError::TooLarge(limit))
    }
}

/// The depth to which arrays and objects are nested in a JSON text, found without recursion.
fn depth_of(json: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn draft() -> Draft {
        Draft::new(Names::default(), CallIds::new(BTreeSet::new(), 1), "m".into(), 40)
    }

    fn all(draft: &mut Draft) -> Vec<Chunk> {
        std::iter::from_fn(|| draft.take()).collect()
    }

    #[test]
    fn reasoning_is_handed_over_as_one_block_before_what_follows() {
        let mut draft = draft();
        draft.think("a");
        draft.think("b");
        draft.sign(Maker::Anthropic, "s");
        draft.sign(Maker::Anthropic, "t");
        draft.text("c");
        let block = Thinking { text: "ab".into(), signature: Some("anthropic:st".into()) };
        assert_eq!(all(&mut draft), [Chunk::Thinking(block), Chunk::Text("c".into())]);
    }

    #[test]
    fn tokens_are_estimated_where_the_provider_counts_none() {
        let mut draft = draft();
        draft.text("12345678");
        draft.stop(Ok(CompletionStop::EndTurn)).expect("an answer");
        let chunks = all(&mut draft);
        let usage = Usage {
            prompt_tokens: 10,
            completion_tokens: 2,
            total_tokens: 12,
            estimated: true,
            ..Usage::default()
        };
        assert_eq!(chunks[1], Chunk::Usage(usage), "{chunks:?}");
    }

    #[test]
    fn tokens_that_were_counted_are_told_of_an_answer_that_breaks_off_and_the_others_estimated() {
        let mut draft = draft();
        draft.text("12345678");
        let read =
            Usage { prompt_tokens: 7, total_tokens: 7, cached_tokens: 3, ..Usage::default() };
        draft.count(read);
        draft.tell();
        draft.abort(&ModelError::CutOff);
        let written =
            Usage { completion_tokens: 2, total_tokens: 2, estimated: true, ..Usage::default() };
        let told = [Chunk::Usage(read), Chunk::Usage(written)];
        assert_eq!(all(&mut draft)[1..], told);
    }

    #[test]
    fn deep_arguments_and_endless_calls_are_refused() {
        let mut draft = draft();
        let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
        let error = draft.call("c".into(), "t", deep).expect_err("too deep");
        assert!(matches!(error, ModelError::TooLarge(_)), "{error}");
        let flat = format!("{{\"s\":\"{}\"}}", "[\\\"".repeat(100));
        for n in 0..TOOL_CALLS_MAX {
            draft.call(n.to_string(), "t", flat.clone()).expect("fits");
        }
        let error = draft.call("one".into(), "t", flat).expect_err("too many");
        assert!(matches!(error, ModelError::TooLarge(_)), "{error}");
        let long = "n".repeat(LABEL_BYTES_MAX + 1);
        let error = draft.call_fragment("c", &long, "{").expect_err("too long a name");
        assert!(matches!(error, ModelError::TooLarge(_)), "{error}");
    }

    #[test]
    fn an_answer_with_calls_waits_for_tools() {
        let mut draft = draft();
        draft.call(String::new(), "t", " ".into()).expect("a call");
        draft.stop(Ok(CompletionStop::EndTurn)).expect("an answer");
        let chunks = all(&mut draft);
        let Chunk::ToolCall(call) = &chunks[0] else { panic!("{chunks:?}") };
        assert_eq!((&*call.tool_call_id, &*call.payload), ("call_0000000000000001", "{}"));
        let Chunk::Stop { reason, .. } = &chunks[2] else { panic!("{chunks:?}") };
        assert_eq!(*reason, CompletionStop::ToolUse);
    }
}
