//! Errors that are told otherwise than their protocol has them.

use serde_json::{Value, json};
use taskrun_journal::completion::{Chunk, ModelError};
use taskrun_journal::message::Usage;

use crate::ask::{answer, chunks, hello, model, tool, usage};
use crate::provider::{Provider, Reply};

/// A protocol, as far as its answers are of text.
struct Protocol {
    wire: &'static str,
    /// An event with a piece of text.
    piece: fn(&str) -> Value,
    /// Events before it that say nothing.
    silent: Vec<Value>,
}

impl Protocol {
    /// An answer that ends with this frame behind these pieces.
    fn reply(&self, pieces: &[&str], frame: &str) -> Reply {
        let said = pieces.iter().map(|text| (self.piece)(text));
        let events: Vec<Value> = self.silent.iter().cloned().chain(said).collect();
        Reply::events(&events).then(frame)
    }
}

fn protocols() -> [Protocol; 4] {
    let responses = Protocol {
        wire: "openai",
        piece: |text| json!({ "type": "response.output_text.delta", "delta": text }),
        silent: vec![
            json!({ "type": "response.unheard_of", "error": { "message": "of an item" } }),
            json!({ "type": "keepalive", "error": null }),
        ],
    };
    let messages = Protocol {
        wire: "anthropic",
        piece: |text| {
            let delta = json!({ "type": "text_delta", "text": text });
            json!({ "type": "content_block_delta", "index": 0, "delta": delta })
        },
        silent: vec![
            json!({ "type": "ping", "error": null }),
            json!({ "type": "content_block_start", "index": 0,
                "content_block": { "type": "text", "text": "" } }),
        ],
    };
    let chat = Protocol {
        wire: "openai-chat",
        piece: |text| json!({ "choices": [{ "delta": { "content": text } }] }),
        silent: Vec::new(),
    };
    let gemini = Protocol {
        wire: "gemini",
        piece: |text| json!({ "candidates": [{ "content": { "parts": [{ "text": text }] } }] }),
        silent: Vec::new(),
    };
    [responses, messages, chat, gemini]
}

/// llama.cpp ends a stream of Responses with an error as chat completions have it, and one of
/// messages with an event of that name that has its members (`tools/server/server-context.cpp`).
#[tokio::test]
async fn an_error_in_the_middle_has_its_meaning_though_it_is_of_another_protocol() {
    let words = "The model produced output that does not match the expected format";
    let said = || words.to_owned();
    let kinds = [
        (500, "server_error", ModelError::Unavailable(said())),
        (429, "insufficient_quota", ModelError::NoQuota(said())),
        (400, "context_length_exceeded", ModelError::ContextWindow(said())),
        (400, "exceed_context_size_error", ModelError::ContextWindow(said())),
    ];
    for (code, kind, expected) in kinds {
        let error = json!({ "code": code, "message": words, "type": kind });
        let group = json!({ "error": error });
        let text = json!({ "code": kind, "error": words });
        let frames = [
            format!("data: {group}\n\n"),
            format!("event: error\ndata: {group}\n\n"),
            format!("event: error\ndata: {error}\n\n"),
            format!("event: error\ndata: {text}\n\n"),
        ];
        for protocol in protocols() {
            let wire = protocol.wire;
            for frame in &frames {
                let reply = protocol.reply(&["Half ", "of it"], frame);
                let provider = Provider::start([reply]).await;
                let stream = model(wire, &provider, "").stream(hello()).await.expect("begins");
                let (all, failure) = chunks(stream).await;
                assert_eq!(failure.as_ref(), Some(&expected), "{wire}: {frame}");
                let begun = ["Half ", "of it"].map(|text| Chunk::Text(text.to_owned()));
                assert!(all.starts_with(&begun), "{wire}: {all:?}");
            }
            let provider = Provider::start([Reply::new(200, group.to_string())]).await;
            let failure = answer(model(wire, &provider, "").as_ref(), hello()).await;
            assert_eq!(failure, Err(expected.clone()), "{wire}, at once");
        }
    }
}

#[tokio::test]
async fn an_error_that_is_a_text_is_told_in_its_words() {
    for protocol in protocols() {
        for frame in ["data: {\"error\":\"Too hot.\"}\n\n", "event: error\ndata: Too hot.\n\n"] {
            let provider = Provider::start([protocol.reply(&["Half"], frame)]).await;
            let asked = model(protocol.wire, &provider, "");
            let failure = answer(asked.as_ref(), hello()).await;
            let expected = ModelError::Unavailable("Too hot.".to_owned());
            assert_eq!(failure, Err(expected), "{}: {frame}", protocol.wire);
        }
    }
}

/// The tokens that count of a question with a tool which is answered so, and the error.
async fn spent(wire: &str, reply: Reply) -> (Vec<Usage>, Option<ModelError>) {
    let provider = Provider::start([reply]).await;
    let mut asked = hello();
    asked.tools = vec![tool("workspace/read")];
    let stream = model(wire, &provider, "").stream(asked).await.expect("begins");
    let (all, failure) = chunks(stream).await;
    let count = |chunk: Chunk| if let Chunk::Usage(usage) = chunk { Some(usage) } else { None };
    (all.into_iter().filter_map(count).collect(), failure)
}

/// Gateways send a status and comments before the model's server says that it has no room.
#[tokio::test]
async fn a_window_without_room_costs_no_tokens_where_none_were_counted_and_nothing_was_said() {
    let words = "prompt is too long: 2500 tokens > 2000 maximum";
    let error = json!({ "code": "context_length_exceeded", "message": words });
    let group = json!({ "error": error });
    let frame = format!("event: error\ndata: {group}\n\n");
    let refusal = Some(ModelError::ContextWindow(words.to_owned()));
    let behind_comment = |body: &str| Reply::new(200, ": at work\n\n").then(body);
    for protocol in protocols() {
        let wire = protocol.wire;
        let unread = [
            protocol.reply(&[], &frame),
            behind_comment(&frame),
            behind_comment(&format!("data: {group}\n\n")),
            behind_comment(&group.to_string()),
        ];
        for reply in unread {
            let shown = format!("{wire}: {reply:?}");
            assert_eq!(spent(wire, reply).await, (Vec::new(), refusal.clone()), "{shown}");
        }
        let (tokens, failure) = spent(wire, protocol.reply(&["Half"], &frame)).await;
        assert_eq!(failure, refusal, "{wire}");
        let [counted] = tokens[..] else { panic!("{wire}: {tokens:?}") };
        assert!(counted.estimated && counted.prompt_tokens > 0, "{wire}: {counted:?}");
    }
    let counts = json!({ "prompt_tokens": 7, "completion_tokens": 0, "total_tokens": 7 });
    let counted = Reply::events(&[json!({ "choices": [], "usage": counts })]).then(&frame);
    assert_eq!(spent("openai-chat", counted).await, (vec![usage(7, 0)], refusal));
}
