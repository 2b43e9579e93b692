//! Answers of providers, made of pieces at random or as they come, and cut anywhere.

use taskrun_fixtures::corpus::{Edit, edited, percent_that_fit};
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

/// Answers as each protocol has them, with reasoning, a text and calls: as a stream and as a whole. Those
/// of Chat Completions, Messages, content generation and Responses, as [`decoders`] are.
const ANSWERS: [[&str; 2]; 4] = [
    [include_str!("corpus/chat.txt"), include_str!("corpus/chat.json")],
    [include_str!("corpus/anthropic.txt"), include_str!("corpus/anthropic.json")],
    [include_str!("corpus/gemini.txt"), include_str!("corpus/gemini.json")],
    [include_str!("corpus/responses.txt"), include_str!("corpus/responses.json")],
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
        while let Some(event) = events.next() {
            failed = failed || decoder.piece(&event.data, &mut draft).is_err();
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

/// Fails if an answer in pieces is read otherwise than one that comes at once.
fn says_the_same_in_pieces(bytes: &[u8], cuts: &[u8]) {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    for cut in cuts {
        let (piece, after) = rest.split_at(usize::from(*cut).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    for (one, other) in decoders().into_iter().zip(decoders()) {
        assert_eq!(decoded(one, &[bytes]), decoded(other, &pieces));
    }
}

#[test]
fn fuzz_a_stream_says_the_same_wherever_it_is_cut() {
    bolero::check!()
        .with_type::<(Vec<(u8, u8)>, Vec<u8>)>()
        .for_each(|(picks, cuts)| says_the_same_in_pieces(&bytes_of(picks), cuts));
}

#[test]
fn fuzz_a_stream_of_a_provider_with_changes_says_the_same_wherever_it_is_cut() {
    bolero::check!().with_type::<(u8, Vec<Edit>, Vec<u8>)>().for_each(|(pick, edits, cuts)| {
        let [stream, _] = ANSWERS[usize::from(*pick) % ANSWERS.len()];
        says_the_same_in_pieces(edited(stream, edits, &PIECES).as_bytes(), cuts);
    });
}

#[test]
fn each_answer_of_the_corpus_is_one_with_reasoning_a_text_and_calls() {
    for (index, [stream, whole]) in ANSWERS.into_iter().enumerate() {
        let [mut one, other] =
            [decoders(), decoders()].map(|all| all.into_iter().nth(index).expect("one"));
        let streamed = decoded(other, &[stream.as_bytes()]);
        let mut draft = draft();
        one.whole(whole.as_bytes(), &mut draft).expect("an answer");
        let read: Vec<Chunk> = std::iter::from_fn(|| draft.take()).collect();
        for chunks in [streamed, read] {
            let has = |is: fn(&Chunk) -> bool| chunks.iter().any(is);
            assert!(has(|chunk| matches!(chunk, Chunk::Text(_))), "{index}: {chunks:?}");
            assert!(has(|chunk| matches!(chunk, Chunk::Thinking(_))), "{index}: {chunks:?}");
            assert!(has(|chunk| matches!(chunk, Chunk::ToolCall(_))), "{index}: {chunks:?}");
            let last = chunks.last();
            assert!(
                matches!(last, Some(Chunk::Stop { reason: CompletionStop::ToolUse, .. })),
                "{index}: {last:?}"
            );
        }
    }
}

/// An answer of Responses with reasoning, a comment and two calls, as it is streamed.
const RESPONSES: &str = ANSWERS[3][0];

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
fn of_changed_answers_a_part_are_answers() {
    for (index, [stream, whole]) in ANSWERS.into_iter().enumerate() {
        let decoder = || decoders().into_iter().nth(index).expect("one of them");
        // Half of an answer is read before what is damaged, at least.
        let half = decoded(decoder(), &[stream.as_bytes()]).len() / 2;
        let is_read = |text: &str| decoded(decoder(), &[text.as_bytes()]).len() >= half;
        let streams = percent_that_fit(&[stream], &PIECES, is_read);
        let is_read = |text: &str| decoder().whole(text.as_bytes(), &mut draft()).is_ok();
        let whole = percent_that_fit(&[whole], &PIECES, is_read);
        assert!(streams >= 30 && whole >= 10, "{index}: {streams} % and {whole} %");
    }
}

fn is_read_or_refused(bytes: &[u8]) {
    for mut decoder in decoders() {
        let mut draft = draft();
        decoder.whole(bytes, &mut draft).ok();
        let chunks = std::iter::from_fn(|| draft.take()).count();
        assert!(chunks <= 16 * (bytes.len() + 1), "{chunks}");
    }
}

#[test]
fn fuzz_an_answer_as_a_whole_is_read_or_refused() {
    bolero::check!()
        .with_type::<Vec<(u8, u8)>>()
        .for_each(|picks| is_read_or_refused(&bytes_of(picks)));
}

#[test]
fn fuzz_an_answer_of_a_provider_with_changes_is_read_or_refused() {
    bolero::check!().with_type::<(u8, Vec<Edit>)>().for_each(|(pick, edits)| {
        let [_, whole] = ANSWERS[usize::from(*pick) % ANSWERS.len()];
        is_read_or_refused(edited(whole, edits, &PIECES).as_bytes());
    });
}
