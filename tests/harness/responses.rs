//! Answers of Responses as OpenAI streams them: each item with its beginning, its pieces and its
//! end (<https://platform.openai.com/docs/api-reference/responses-streaming>).

use serde_json::{Value, json};

use super::Reply;

/// Most bytes of a piece of a text.
const PIECE_BYTES_MAX: usize = 4;

/// An answer that is being written down.
#[derive(Clone, Debug)]
pub struct Answer {
    events: Vec<Value>,
    output: Vec<Value>,
    usage: Value,
}

/// The encrypted content of a reasoning item, by which a server knows it again.
#[must_use]
pub fn sealed(id: &str) -> String {
    format!("gAAAAA{}", id.chars().rev().collect::<String>())
}

impl Default for Answer {
    fn default() -> Self {
        Self::new()
    }
}

impl Answer {
    /// One that has begun.
    #[must_use]
    pub fn new() -> Self {
        let mut answer = Self { events: Vec::new(), output: Vec::new(), usage: Value::Null };
        let begun = answer.response("in_progress", Value::Null, Value::Null);
        answer.push("response.created", json!({ "response": begun }));
        answer.push("response.in_progress", json!({ "response": begun }));
        answer.usage = json!({
            "input_tokens": 30,
            "input_tokens_details": { "cached_tokens": 20, "cache_write_tokens": 0 },
            "output_tokens": 12,
            "output_tokens_details": { "reasoning_tokens": 8 },
            "total_tokens": 42,
        });
        answer
    }

    /// With other tokens than those of a new one.
    #[must_use]
    pub fn usage(mut self, usage: Value) -> Self {
        self.usage = usage;
        self
    }

    /// With reasoning of which these parts of a summary are shown.
    #[must_use]
    pub fn reasoning(mut self, id: &str, summary: &[&str]) -> Self {
        let empty = json!({ "id": id, "type": "reasoning", "summary": [] });
        let place = self.begin(&empty);
        for (part, text) in summary.iter().enumerate() {
            let of = |mut more: Value| {
                more["item_id"] = json!(id);
                more["output_index"] = json!(place);
                more["summary_index"] = json!(part);
                more
            };
            let empty = json!({ "type": "summary_text", "text": "" });
            self.push("response.reasoning_summary_part.added", of(json!({ "part": empty })));
            for piece in pieces(text) {
                self.push("response.reasoning_summary_text.delta", of(json!({ "delta": piece })));
            }
            self.push("response.reasoning_summary_text.done", of(json!({ "text": text })));
            let whole = json!({ "type": "summary_text", "text": text });
            self.push("response.reasoning_summary_part.done", of(json!({ "part": whole })));
        }
        let parts = summary.iter().map(|text| json!({ "type": "summary_text", "text": text }));
        let mut whole = empty;
        whole["summary"] = parts.collect();
        whole["encrypted_content"] = json!(sealed(id));
        self.end(whole)
    }

    /// With a message, in a phase if the model has such.
    #[must_use]
    pub fn message(self, id: &str, phase: Option<&str>, text: &str) -> Self {
        let part = |text: &str| json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] });
        self.said(id, phase, ["output_text", "text"], text, &part)
    }

    /// With a message that is a refusal.
    #[must_use]
    pub fn refusal(self, id: &str, text: &str) -> Self {
        let part = |text: &str| json!({ "type": "refusal", "refusal": text });
        self.said(id, None, ["refusal", "refusal"], text, &part)
    }

    fn said(
        mut self,
        id: &str,
        phase: Option<&str>,
        [kind, key]: [&str; 2],
        text: &str,
        part: &dyn Fn(&str) -> Value,
    ) -> Self {
        let item = |status: &str, content: Value| {
            let mut item = json!({ "id": id, "type": "message", "role": "assistant",
                "status": status, "content": content });
            if let Some(phase) = phase {
                item["phase"] = json!(phase);
            }
            item
        };
        let place = self.begin(&item("in_progress", json!([])));
        let of = |key: &str, value: Value| {
            let mut event = json!({ "item_id": id, "output_index": place, "content_index": 0 });
            if kind == "output_text" && ["delta", "text"].contains(&key) {
                event["logprobs"] = json!([]);
            }
            event[key] = value;
            event
        };
        self.push("response.content_part.added", of("part", part("")));
        for piece in pieces(text) {
            self.push(&format!("response.{kind}.delta"), of("delta", json!(piece)));
        }
        self.push(&format!("response.{kind}.done"), of(key, json!(text)));
        self.push("response.content_part.done", of("part", part(text)));
        self.end(item("completed", json!([part(text)])))
    }

    /// With a call of a function.
    #[must_use]
    pub fn call(self, id: &str, call_id: &str, name: &str, arguments: &str) -> Self {
        self.call_with(id, call_id, name, arguments, "completed")
    }

    /// With a call that the end of the answer cuts off.
    #[must_use]
    pub fn cut_call(self, id: &str, call_id: &str, name: &str, arguments: &str) -> Self {
        self.call_with(id, call_id, name, arguments, "incomplete")
    }

    fn call_with(
        mut self,
        id: &str,
        call_id: &str,
        name: &str,
        arguments: &str,
        status: &str,
    ) -> Self {
        let item = |status: &str, arguments: &str| {
            json!({ "id": id, "type": "function_call", "status": status,
                "call_id": call_id, "name": name, "arguments": arguments })
        };
        let place = self.begin(&item("in_progress", ""));
        let of = |key: &str, text: &str| {
            let mut event = json!({ "item_id": id, "output_index": place });
            event[key] = json!(text);
            event
        };
        for piece in pieces(arguments) {
            self.push("response.function_call_arguments.delta", of("delta", piece));
        }
        self.push("response.function_call_arguments.done", of("arguments", arguments));
        self.end(item(status, arguments))
    }

    /// With an event of another kind.
    #[must_use]
    pub fn event(mut self, kind: &str, more: Value) -> Self {
        self.push(kind, more);
        self
    }

    /// Complete.
    #[must_use]
    pub fn completed(mut self) -> Reply {
        let response = self.response("completed", Value::Null, Value::Null);
        self.push("response.completed", json!({ "response": response }));
        self.reply()
    }

    /// Incomplete, for a reason.
    #[must_use]
    pub fn incomplete(mut self, reason: &str) -> Reply {
        let response = self.response("incomplete", Value::Null, json!({ "reason": reason }));
        self.push("response.incomplete", json!({ "response": response }));
        self.reply()
    }

    /// Failed, with a code.
    #[must_use]
    pub fn failed(mut self, code: &str, message: &str) -> Reply {
        let error = json!({ "code": code, "message": message });
        let response = self.response("failed", error, Value::Null);
        self.push("response.failed", json!({ "response": response }));
        self.reply()
    }

    /// As far as it came.
    #[must_use]
    pub fn reply(self) -> Reply {
        let kind = ("content-type".to_owned(), "text/event-stream".to_owned());
        let mut reply = Reply::new(200, "");
        reply.headers.push(kind);
        reply.pieces = self.events.iter().map(|event| text_of(event).into_bytes()).collect();
        reply
    }

    /// The whole, for a request that does not stream.
    #[must_use]
    pub fn whole(self) -> Reply {
        let response = self.response("completed", Value::Null, Value::Null);
        Reply::new(200, response.to_string())
    }

    /// All its events until it is complete, as text.
    #[must_use]
    pub fn text(self) -> String {
        let pieces = self.completed().pieces;
        String::from_utf8_lossy(&pieces.concat()).into_owned()
    }

    fn push(&mut self, kind: &str, mut event: Value) {
        event["type"] = json!(kind);
        event["sequence_number"] = json!(self.events.len());
        self.events.push(event);
    }

    /// Begins an item and gives its place.
    fn begin(&mut self, item: &Value) -> usize {
        let place = self.output.len();
        self.push("response.output_item.added", json!({ "output_index": place, "item": item }));
        place
    }

    fn end(mut self, item: Value) -> Self {
        let place = self.output.len();
        self.push("response.output_item.done", json!({ "output_index": place, "item": item }));
        self.output.push(item);
        self
    }

    fn response(&self, status: &str, error: Value, incomplete: Value) -> Value {
        json!({
            "id": "resp_1",
            "object": "response",
            "created_at": 1_790_000_000,
            "status": status,
            "error": error,
            "incomplete_details": incomplete,
            "instructions": null,
            "metadata": {},
            "model": "m-1-2026",
            "output": self.output,
            "parallel_tool_calls": true,
            "temperature": null,
            "tool_choice": "auto",
            "tools": [],
            "top_p": null,
            "usage": self.usage,
        })
    }
}

fn text_of(event: &Value) -> String {
    format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default())
}

/// A text in pieces, as tokens come.
fn pieces(text: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut end = PIECE_BYTES_MAX.min(rest.len());
        while !rest.is_char_boundary(end) {
            end += 1;
        }
        let (piece, after) = rest.split_at(end);
        all.push(piece);
        rest = after;
    }
    all
}
