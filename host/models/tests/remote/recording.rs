//! Cassettes: what a provider said can be played without it.

use std::sync::Arc;

use futures::StreamExt;
use serde_json::json;
use taskrun::clock::SystemClock;
use taskrun_journal::completion::ModelError;
use taskrun_journal::message::{Message, Role};

use crate::ask::{answer, chunks, hello, models, request, table};
use crate::provider::{Provider, Reply};

fn says(text: &str) -> Reply {
    let event = json!({ "choices": [{ "delta": { "content": text }, "finish_reason": "stop" }] });
    Reply::events(&[event])
}

#[tokio::test]
async fn what_was_recorded_is_answered_again_errors_and_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let cassette = folder.path().join("calls.jsonl");
    let half = json!({ "choices": [{ "delta": { "content": "Half" } }] });
    let provider = Provider::start([
        says("one"),
        Reply::new(400, r#"{"error":{"message":"no"}}"#),
        Reply::events(std::slice::from_ref(&half)).cut(),
        Reply::events(&[half]).hang(),
    ])
    .await;
    let clock = || Arc::new(SystemClock::new());
    let recording = table("openai-chat", &provider, &format!("record = {cassette:?}"));
    let questions = ["a", "b", "c"].map(|text| request(vec![Message::text(Role::User, text)]));
    let live = models(&recording, clock()).expect("a model");
    let mut heard = Vec::new();
    for question in &questions {
        heard.push(match live["m"].stream(question.clone()).await {
            Ok(stream) => chunks(stream).await,
            Err(error) => (Vec::new(), Some(error)),
        });
    }
    assert!(matches!(heard[1].1, Some(ModelError::InvalidRequest(_))), "{heard:?}");
    assert_eq!(heard[2].1, Some(ModelError::CutOff));
    // Nobody waits for the rest of this one; it is recorded as far as it came.
    let mut given_up = live["m"].stream(hello()).await.expect("begins");
    given_up.next().await.expect("a chunk").expect("no error");
    drop(given_up);
    assert_eq!(std::fs::read_to_string(&cassette).expect("a cassette").lines().count(), 4);

    let playing = format!("[model.m]\nprovider = \"replay\"\nfile = {cassette:?}\n");
    let replay = models(&playing, clock()).expect("a cassette");
    for (question, heard) in questions.iter().zip(&heard) {
        let again = match replay["m"].stream(question.clone()).await {
            Ok(stream) => chunks(stream).await,
            Err(error) => (Vec::new(), Some(error)),
        };
        assert_eq!(&again, heard);
    }
    let error = answer(replay["m"].as_ref(), hello()).await.expect_err("was given up");
    assert_eq!(error, ModelError::Canceled);
    let missing = request(vec![Message::text(Role::User, "z")]);
    let error = answer(replay["m"].as_ref(), missing).await.expect_err("is not there");
    assert!(error.to_string().contains("no answer to this; entry 1 differs"), "{error}");
}

#[tokio::test]
async fn an_entry_that_is_cut_off_takes_no_other_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let cassette = folder.path().join("calls.jsonl");
    let provider = Provider::start(["one", "two", "three"].map(says)).await;
    let recording = table("openai-chat", &provider, &format!("record = {cassette:?}"));
    let clock = || Arc::new(SystemClock::new());
    let question = |text: &str| request(vec![Message::text(Role::User, text)]);
    let open = || models(&recording, clock()).expect("a model");
    // A disk that is full cuts an entry off anywhere, also within a character.
    let cut_off = || {
        let mut recorded = std::fs::read(&cassette).expect("a cassette");
        let character = recorded.iter().position(|byte| !byte.is_ascii()).expect("the first one");
        recorded.extend_from_within(..=character);
        std::fs::write(&cassette, recorded).expect("written");
    };
    let live = open();
    answer(live["m"].as_ref(), question("ä")).await.expect("answers");
    cut_off();
    answer(live["m"].as_ref(), question("b")).await.expect("answers");
    cut_off();
    // Another host.
    answer(open()["m"].as_ref(), question("c")).await.expect("answers");
    cut_off();

    let recorded = std::fs::read(&cassette).expect("a cassette");
    assert_eq!(recorded.iter().filter(|byte| **byte == b'\n').count(), 5);
    let playing = format!("[model.m]\nprovider = \"replay\"\nfile = {cassette:?}\n");
    let replay = models(&playing, clock()).expect("a cassette");
    for (text, said) in [("ä", "one"), ("b", "two"), ("c", "three")] {
        let again = answer(replay["m"].as_ref(), question(text)).await.expect("is there");
        assert_eq!(again.message.joined_text(), said);
    }
}

#[tokio::test]
async fn a_cassette_that_cannot_be_read_says_where() {
    let folder = tempfile::tempdir().expect("a folder");
    let cassette = folder.path().join("calls.jsonl");
    let playing = format!("[model.m]\nprovider = \"replay\"\nfile = {cassette:?}\n");
    let open = || models(&playing, Arc::new(SystemClock::new())).err().expect("no cassette");
    let cause = || open().cause.to_string();
    assert!(cause().contains("cannot be used"), "{}", cause());
    std::fs::write(&cassette, "# nothing\n").expect("written");
    assert!(cause().ends_with("is empty"), "{}", cause());
    std::fs::write(&cassette, "\n{\"request\":1}\n").expect("written");
    assert!(cause().contains("calls.jsonl:2: not an entry"), "{}", cause());
}
