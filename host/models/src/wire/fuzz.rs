//! Answers of providers, made of pieces at random or as they come, and cut anywhere.

use taskrun_journal::completion::{Chunk, CompletionStop};

use super::Decoder;
use super::anthropic_answer::AnthropicDecoder;
use super::call_ids::CallIds;
use super::chat_answer::ChatDecoder;
use super::draft::Draft;
use super::gemini_answer::GeminiDecoder;
use super::names::Names;
use super::responses_answer::ResponsesDecoder;
use super::sse::Events;

/// Pieces of answers of all protocols, and what upsets a decoder.
const PIECES: [&str; 48] = [
    "data: ",
    "event: x\n",
    "\n\n",
    "\r\n\r\n",
    "\r",
    "[DONE]",
    ": comment\n",
    "\u{feff}",
    r#"{"choices":[{"delta":{"content":"a"}}]}"#,
    r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"t__f","arguments":"{"}}]}}]}"#,
    r#"{"choices":[{"delta":{"tool_calls":[{"index":9999999999,"function":{"arguments":"}"}}]}}]}"#,
    r#"{"choices":[{"delta":{"reasoning":"b"},"finish_reason":"stop"}]}"#,
    r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":18446744073709551615}}"#,
    r#"{"error":{"message":"no","code":"overloaded"}}"#,
    r#"{"type":"message_start","message":{"model":"m","usage":{"input_tokens":3}}}"#,
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"i","name":"t__f","input":{}}}"#,
    r#"{"type":"content_block_start","index":1,"content_block":{"type":"thinking","thinking":""}}"#,
    r#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{}"}}"#,
    r#"{"type":"content_block_delta","index":1,"delta":{"type":"signature_delta","signature":"s"}}"#,
    r#"{"type":"content_block_delta","index":7,"delta":{"type":"text_delta","text":"x"}}"#,
    r#"{"type":"content_block_stop","index":0}"#,
    r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":-4}}"#,
    r#"{"type":"message_stop"}"#,
    r#"{"candidates":[{"content":{"parts":[{"text":"g"}]},"finishReason":"STOP"}]}"#,
    r#"{"candidates":[{"content":{"parts":[{"functionCall":{"name":"t__f","args":{"a":[[[]]]}}}]}}]}"#,
    r#"{"usageMetadata":{"promptTokenCount":1e400}}"#,
    r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"function_call","id":"fc","call_id":"c","name":"t__f","arguments":""}}"#,
    r#"{"type":"response.function_call_arguments.delta","item_id":"fc","output_index":0,"delta":"{}"}"#,
    r#"{"type":"response.function_call_arguments.delta","output_index":99999999999,"delta":"{"}"#,
    r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"function_call","id":"fc","call_id":"c","name":"t__f","arguments":"{}"}}"#,
    r#"{"type":"response.output_item.added","output_index":1,"item":{"type":"message","id":"msg","phase":"commentary"}}"#,
    r#"{"type":"response.output_text.delta","item_id":"msg","delta":"o"}"#,
    r#"{"type":"response.refusal.delta","item_id":"msg","delta":"no"}"#,
    r#"{"type":"response.reasoning_summary_text.delta","item_id":"rs","delta":"r"}"#,
    r#"{"type":"response.output_item.done","item":{"type":"reasoning","id":"rs","encrypted_content":"e"}}"#,
    r#"{"type":"response.incomplete","response":{"incomplete_details":{"reason":"max_output_tokens"},"usage":{"input_tokens":-1,"output_tokens":1e9}}}"#,
    r#"{"type":"response.completed","response":{"status":"completed","output":[{"type":"message","content":[{"text":"w"}]}]}}"#,
    r#"{"type":"error","message":"no","code":"rate_limit_exceeded"}"#,
    "{",
    "}",
    "[",
    "]",
    "\"",
    ",",
    ":",
    "null",
    "\\u0000",
    "\\ud800",
];

fn bytes_of(picks: &[(u8, u8)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (pick, other) in picks {
        match pick {
            250.. => bytes.push(*other),
            _ => bytes.extend_from_slice(PIECES[usize::from(*pick) % PIECES.len()].as_bytes()),
        }
    }
    bytes
}

/// The chunks of an answer that comes in these pieces; those before a mistake stay.
fn decoded(mut decoder: Box<dyn Decoder>, pieces: &[&[u8]]) -> Vec<Chunk> {
    let (mut events, mut draft) = (Events::default(), draft());
    let mut failed = false;
    for piece in pieces {
        events.push(piece);
        while let Some(data) = events.next() {
            failed = failed || decoder.piece(&data, &mut draft).is_err();
        }
    }
    if !failed {
        decoder.end(&mut draft).ok();
    }
    std::iter::from_fn(|| draft.take()).collect()
}

fn draft() -> Draft {
    Draft::new(Names::default(), CallIds::default(), "m".to_owned(), 10)
}

fn decoders() -> [Box<dyn Decoder>; 4] {
    [
        Box::new(ChatDecoder::new(None)),
        Box::new(AnthropicDecoder::new(None)),
        Box::new(GeminiDecoder::new(None)),
        Box::new(ResponsesDecoder::new(None)),
    ]
}

#[test]
fn fuzz_a_stream_says_the_same_wherever_it_is_cut() {
    bolero::check!().with_type::<(Vec<(u8, u8)>, Vec<u8>)>().for_each(|(picks, cuts)| {
        let bytes = bytes_of(picks);
        let mut pieces = Vec::new();
        let mut rest = bytes.as_slice();
        for cut in cuts {
            let (piece, after) = rest.split_at(usize::from(*cut).min(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        pieces.push(rest);
        for (one, other) in decoders().into_iter().zip(decoders()) {
            assert_eq!(decoded(one, &[&bytes]), decoded(other, &pieces));
        }
    });
}

/// An answer of Responses with reasoning, a comment and two calls, as it is streamed.
const RESPONSES: &str = include_str!("responses_stream.txt");

fn responses() -> Box<dyn Decoder> {
    Box::new(ResponsesDecoder::new(None))
}

#[test]
fn a_stream_of_responses_says_the_same_wherever_it_is_cut() {
    let bytes = RESPONSES.as_bytes();
    let whole = decoded(responses(), &[bytes]);
    assert!(matches!(whole.last(), Some(Chunk::Stop { reason: CompletionStop::ToolUse, .. })));
    let calls = whole.iter().filter(|chunk| matches!(chunk, Chunk::ToolCall(_))).count();
    assert_eq!(calls, 2, "{whole:#?}");
    for cut in 0..=bytes.len() {
        let (one, other) = bytes.split_at(cut);
        assert_eq!(decoded(responses(), &[one, other]), whole, "cut at {cut}");
    }
}

#[test]
fn a_stream_of_responses_that_breaks_off_says_the_beginning_and_no_end() {
    let bytes = RESPONSES.as_bytes();
    let whole = decoded(responses(), &[bytes]);
    let last = RESPONSES.rfind("\n\n").expect("events");
    for cut in 0..=last {
        let (begun, rest) = (decoded(responses(), &[&bytes[..cut]]), whole.len());
        assert!(begun.len() < rest && whole.starts_with(&begun), "broken off at {cut}: {begun:?}");
    }
}

#[test]
fn fuzz_an_answer_as_a_whole_is_read_or_refused() {
    bolero::check!().with_type::<Vec<(u8, u8)>>().for_each(|picks| {
        let bytes = bytes_of(picks);
        for mut decoder in decoders() {
            let mut draft = draft();
            decoder.whole(&bytes, &mut draft).ok();
            let chunks = std::iter::from_fn(|| draft.take()).count();
            assert!(chunks <= 16 * (bytes.len() + 1), "{chunks}");
        }
    });
}
