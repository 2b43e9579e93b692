//! Answers that are too long, too slow, or none, and questions whose answer is not waited for any
//! more.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::json;
use taskrun::clock::SimulatedClock;
use taskrun_journal::completion::{Chunk, ModelError};
use taskrun_journal::time::Timestamp;

use crate::ask::{answer, chunks, hello, in_time, model, model_at, usage};
use crate::provider::{Provider, Reply};

fn text(text: &str) -> serde_json::Value {
    json!({ "choices": [{ "index": 0, "delta": { "content": text } }] })
}

#[tokio::test]
async fn an_answer_of_ten_mebibytes_is_refused_and_its_connection_closed() {
    let endless = "x".repeat(10 << 20);
    let provider = Provider::start([
        // One event without an end, and a whole answer: neither is kept beyond the bound.
        Reply::new(200, format!("data: {endless}")).hang(),
        Reply::new(200, endless).hang(),
    ])
    .await;
    for more in ["", "stream = false"] {
        let error = answer(model("openai-chat", &provider, more).as_ref(), hello()).await;
        let error = error.expect_err("too large");
        assert!(matches!(error, ModelError::TooLarge(_)), "{error}");
        assert!(error.to_string().contains("8388608"), "{error}");
        provider.abandoned().await;
    }
}

#[tokio::test]
async fn what_is_no_json_or_too_deep_is_malformed() {
    let deep = format!("data: {}\n\n", "[".repeat(10_000));
    let replies = [
        Reply::new(200, "data: {\"choices\":[\n\n"),
        Reply::new(200, deep),
        Reply::new(200, "<html>"),
    ];
    let provider = Provider::start(replies).await;
    for more in ["", "", "stream = false"] {
        let error = answer(model("openai-chat", &provider, more).as_ref(), hello()).await;
        let error = error.expect_err("malformed");
        assert!(matches!(error, ModelError::Malformed(_)), "{error:?}");
    }
}

#[tokio::test]
async fn a_page_in_the_place_of_a_stream_is_malformed_and_its_words_are_told() {
    let page = Reply::new(200, "\n<!DOCTYPE").then(" html>\n\t<title>Sign in").then("</title>\n");
    // More than is kept, in words and without one.
    let words = "No such place. ".repeat(1_000);
    let word = "x".repeat(100_000);
    let cases = [
        (page, "no events: <!DOCTYPE html> <title>Sign in</title>".to_owned()),
        (Reply::new(200, "Not found\n\n"), "no events: Not found".to_owned()),
        (Reply::new(200, words.as_str()), format!("no events: {}", &words[..299])),
        (Reply::new(200, word), "no events".to_owned()),
    ];
    for (reply, told) in cases {
        let provider = Provider::start([reply]).await;
        let error = answer(model("openai-chat", &provider, "").as_ref(), hello()).await;
        assert_eq!(error, Err(ModelError::Malformed(told)));
        assert_eq!(provider.asked().len(), 1);
    }
    // A stream that ends before its first event was cut off.
    for stream in [": busy\n\n", "event: x\n", "\ndata: {\"choices\"", "id", "retry:3\n\n", ""] {
        let provider = Provider::start([Reply::new(200, stream)]).await;
        let error = answer(model("openai-chat", &provider, "").as_ref(), hello()).await;
        assert_eq!(error, Err(ModelError::CutOff), "{stream:?}");
    }
}

#[tokio::test]
async fn an_index_beyond_all_calls_costs_nothing() {
    let call = |index: u64| {
        let call =
            json!({ "index": index, "id": format!("c{index}"), "function": { "name": "f" } });
        json!({ "choices": [{ "delta": { "tool_calls": [call] } }] })
    };
    let many: Vec<_> = (0..200).map(call).collect();
    let provider = Provider::start([Reply::events(&[call(u64::MAX)]), Reply::events(&many)]).await;
    let model = model("openai-chat", &provider, "");
    assert_eq!(answer(model.as_ref(), hello()).await, Err(ModelError::CutOff));
    let error = answer(model.as_ref(), hello()).await.expect_err("too many");
    assert!(matches!(error, ModelError::TooLarge(_)), "{error:?}");
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_not_asked_for_again_and_counts() {
    let provider = Provider::start([Reply::events(&[text("Half of")]).cut()]).await;
    let stream = model("openai-chat", &provider, "").stream(hello()).await.expect("begins");
    let (all, error) = chunks(stream).await;
    assert_eq!(error, Some(ModelError::CutOff));
    let estimated = taskrun_journal::message::Usage { estimated: true, ..usage(2, 2) };
    assert_eq!(all, [Chunk::Text("Half of".into()), Chunk::Usage(estimated)]);
    assert_eq!(provider.asked().len(), 1);
}

#[tokio::test]
async fn an_answer_that_breaks_off_behind_its_head_is_not_asked_for_again_and_counts() {
    for more in ["", "stream = false"] {
        let provider = Provider::start([Reply::new(200, "").cut()]).await;
        let stream = model("openai-chat", &provider, more).stream(hello()).await.expect("begins");
        let (all, error) = chunks(stream).await;
        assert_eq!(error, Some(ModelError::CutOff), "{more}");
        let estimated = taskrun_journal::message::Usage { estimated: true, ..usage(2, 0) };
        assert_eq!(all, [Chunk::Usage(estimated)], "{more}");
        assert_eq!(provider.asked().len(), 1, "{more}");
    }
}

#[tokio::test]
async fn tokens_that_were_counted_by_then_are_told_of_an_answer_that_breaks_off() {
    let counts = json!({ "prompt_tokens": 999, "completion_tokens": 77, "total_tokens": 1076 });
    let mut piece = text("Half of");
    piece["usage"] = counts;
    let gemini = json!({
        "candidates": [{ "content": { "role": "model", "parts": [{ "text": "Half of" }] } }],
        "usageMetadata": { "promptTokenCount": 999, "candidatesTokenCount": 77 },
    });
    for (wire, piece) in [("openai-chat", piece), ("gemini", gemini)] {
        let provider = Provider::start([Reply::events(&[piece]).cut()]).await;
        let stream = model(wire, &provider, "").stream(hello()).await.expect("begins");
        let (all, error) = chunks(stream).await;
        assert_eq!(error, Some(ModelError::CutOff));
        assert_eq!(all, [Chunk::Text("Half of".into()), Chunk::Usage(usage(999, 77))], "{wire}");
    }
}

#[tokio::test]
async fn an_answer_in_one_piece_is_read_also_where_pieces_were_asked_for() {
    let whole = json!({
        "model": "m",
        "choices": [{ "message": { "content": "whole" }, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 3, "completion_tokens": 1 },
    });
    let error = json!({ "error": { "message": "all are busy", "type": "overloaded_error" } });
    let replies = [whole, error].map(|body| Reply::new(200, format!("\n{body}")));
    let provider = Provider::start(replies).await;
    let model = model("openai-chat", &provider, "");
    let answered = answer(model.as_ref(), hello()).await.expect("answers");
    assert_eq!((answered.message.joined_text().as_str(), answered.usage), ("whole", usage(3, 1)));
    let refused = answer(model.as_ref(), hello()).await;
    let said = Some("all are busy".to_owned());
    assert_eq!(refused.err(), Some(ModelError::Overloaded { retry_after_ms: None, said }));
}

#[tokio::test]
async fn blank_lines_and_comments_before_an_answer_in_one_piece_are_passed_over() {
    let chat = json!({ "choices": [{ "message": { "content": "Hi." }, "finish_reason": "stop" }] });
    let gemini = json!({ "candidates": [{ "content": { "parts": [{ "text": "Hi." }] },
        "finishReason": "STOP" }] });
    for (wire, whole) in [("openai-chat", chat), ("gemini", gemini)] {
        let blank = Reply::new(200, "\n").then("  \n").then(&whole.to_string());
        let comments = Reply::new(200, ": PROCES").then("SING\n\n: {").then(&format!("\n{whole}"));
        for reply in [blank, comments] {
            for more in ["", "stream = false"] {
                let provider = Provider::start([reply.clone()]).await;
                let answered = answer(model(wire, &provider, more).as_ref(), hello()).await;
                let said = answered.map(|answered| answered.message.joined_text());
                assert_eq!(said, Ok("Hi.".to_owned()), "{wire} {more} {reply:?}");
            }
        }
    }
}

/// Lets time pass, at most `within`, until the question has been answered, and gives how much.
async fn ask_in_simulated_time(
    provider: &Provider,
    more: &str,
    within: Duration,
) -> (Result<(), ModelError>, Duration) {
    let clock = Arc::new(SimulatedClock::new(Timestamp(0)));
    let model = model_at(clock.clone(), "openai-chat", provider, more);
    let asked = answer(model.as_ref(), hello());
    tokio::pin!(asked);
    // Were it still on its way, its time would be over before the provider has it.
    tokio::select! {
        biased;
        _ = &mut asked => panic!("no time has passed"),
        () = arrives(provider) => {}
    }
    let (outcome, took) = in_time(clock.run_until(within, asked)).await;
    (outcome.map(|_| ()), took)
}

#[tokio::test]
async fn each_wait_has_its_own_time_out() {
    let more = "timeouts = { first_byte = \"3s\", between = \"2s\", whole = \"1m\" }";
    let slow = Provider::start([Reply::silence()]).await;
    let (outcome, took) = ask_in_simulated_time(&slow, more, Duration::from_secs(3)).await;
    assert_eq!((outcome, took), (Err(ModelError::Timeout), Duration::from_secs(3)));
    slow.abandoned().await;
    assert_eq!(slow.asked().len(), 1, "it may be at work on the first one");

    let stuck = Provider::start([Reply::events(&[text("Half")]).hang()]).await;
    let (outcome, took) = ask_in_simulated_time(&stuck, more, Duration::from_secs(2)).await;
    assert_eq!((outcome, took), (Err(ModelError::Timeout), Duration::from_secs(2)));
    stuck.abandoned().await;

    let more = "timeouts = { between = \"2s\", whole = \"1s\" }";
    let stuck = Provider::start([Reply::events(&[text("Half")]).hang()]).await;
    let (outcome, took) = ask_in_simulated_time(&stuck, more, Duration::from_secs(1)).await;
    assert_eq!((outcome, took), (Err(ModelError::Timeout), Duration::from_secs(1)));
}

#[tokio::test]
async fn whoever_wants_no_more_closes_the_connection_at_once() {
    let provider = Provider::start([Reply::events(&[text("Half")]).hang()]).await;
    let mut stream = model("openai-chat", &provider, "").stream(hello()).await.expect("begins");
    assert_eq!(stream.next().await, Some(Ok(Chunk::Text("Half".into()))));
    drop(stream);
    provider.abandoned().await;

    let silent = Provider::start([Reply::silence()]).await;
    let model = model("openai-chat", &silent, "");
    let asked = model.stream(hello());
    tokio::select! {
        biased;
        _ = asked => panic!("nobody answers"),
        () = arrives(&silent) => {}
    }
    silent.abandoned().await;
}

async fn arrives(provider: &Provider) {
    while provider.asked().is_empty() {
        tokio::task::yield_now().await;
    }
}
