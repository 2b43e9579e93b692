//! A model's answer on its way, passed on to observers of the run.

use crate::{
    events,
    model::{Chunk, CompletionStop, CompletionStream, ModelError},
    types::{Thinking, ToolUse, Usage},
};

/// Chunks asked for at once. Enough that a fast model does not cost a host call per token.
const CHUNKS_MAX: u32 = 64;

/// A model's answer, put together from its chunks.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Its text.
    pub text: String,
    /// Its reasoning, block by block.
    pub thinking: Vec<Thinking>,
    /// The tools it wants called, in its order.
    pub tool_calls: Vec<ToolUse>,
    /// Tokens consumed, which the host has counted already.
    pub usage: Usage,
    /// The reason that the model stopped.
    pub stop: CompletionStop,
}

/// Reads an answer to its end. Text and reasoning go out as events while they arrive, and so do
/// the arguments of tool calls; usage does not, because the host counts what goes through
/// `model`.
///
/// # Errors
///
/// When the model fails on the way. The chunks that had arrived are lost to the caller, and were
/// seen by observers.
pub fn consume_stream(stream: &CompletionStream) -> Result<Answer, ModelError> {
    let mut answer = Answer {
        text: String::new(),
        thinking: Vec::new(),
        tool_calls: Vec::new(),
        usage: Usage { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 },
        stop: CompletionStop::Other,
    };
    loop {
        let chunks = stream.next(CHUNKS_MAX)?;
        if chunks.is_empty() {
            return Ok(answer);
        }
        let mut piece = String::new();
        for chunk in chunks {
            if let Chunk::Text(more) = chunk {
                // What arrived together goes out together.
                piece.push_str(&more);
                continue;
            }
            send(&mut piece, &mut answer.text);
            match chunk {
                Chunk::Text(_) => {}
                Chunk::Thinking(block) => {
                    events::planner_thinking_block(&block);
                    answer.thinking.push(block);
                }
                Chunk::ToolCallDelta(delta) => {
                    events::tool_call_args_delta(&delta.tool_call_id, &delta.name, &delta.delta);
                }
                Chunk::ToolCall(call) => answer.tool_calls.push(call),
                Chunk::Usage(usage) => answer.usage = sum(answer.usage, usage),
                Chunk::Stop(reason) => answer.stop = reason,
            }
        }
        send(&mut piece, &mut answer.text);
    }
}

/// Moves `piece`, unless it is empty, to the observers and to the end of `text`.
fn send(piece: &mut String, text: &mut String) {
    if !piece.is_empty() {
        events::assistant_chunk(piece);
        text.push_str(piece);
        piece.clear();
    }
}

fn sum(left: Usage, right: Usage) -> Usage {
    Usage {
        prompt_tokens: left.prompt_tokens.saturating_add(right.prompt_tokens),
        completion_tokens: left.completion_tokens.saturating_add(right.completion_tokens),
        total_tokens: left.total_tokens.saturating_add(right.total_tokens),
    }
}
