//! Answers of providers, made of pieces at random and cut anywhere.

use taskrun_journal::completion::Chunk;

use super::Decoder;
use super::anthropic_answer::AnthropicDecoder;
use super::chat_answer::ChatDecoder;
use super::draft::Draft;
use super::gemini_answer::GeminiDecoder;
use super::names::Names;
use super::sse::Events;

/// Pieces of answers of all protocols, and what upsets a decoder.
const PIECES: [&str; 36] = [
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
    Draft::new(Names::default(), "m".to_owned(), 10)
}

fn decoders() -> [Box<dyn Decoder>; 3] {
    [
        Box::new(ChatDecoder::new(None)),
        Box::new(AnthropicDecoder::new(None)),
        Box::new(GeminiDecoder::new(None)),
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
