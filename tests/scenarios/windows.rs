//! Context windows: of those that the policy says nothing of what has no room is learned from a
//! refusal, and how full another one is from what its provider counted.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::run::RunView;
use taskrun_journal::status::Status;
use taskrun_tests::provider::{Provider, Reply};
use taskrun_tests::{Builder, House, Storage};

use super::choices::says;

/// Bytes of each of the files that are read.
const FILE_BYTES: usize = 20_000;

pub(super) fn reads(id: &str, path: &str) -> Reply {
    reads_and_counts(id, path, None)
}

/// The same from a provider that counts what it read.
fn reads_and_counts(id: &str, path: &str, tokens: Option<u64>) -> Reply {
    let arguments = json!({ "path": path }).to_string();
    let call = json!({ "index": 0, "id": id, "function":
        { "name": "workspace__read", "arguments": arguments } });
    let mut events = vec![
        json!({ "choices": [{ "delta": { "tool_calls": [call] }, "finish_reason": "tool_calls" }] }),
    ];
    events.extend(tokens.map(|tokens| {
        json!({ "choices": [], "usage":
            { "prompt_tokens": tokens, "completion_tokens": 9, "total_tokens": tokens + 9 } })
    }));
    Reply::events(&events)
}

fn refused() -> Reply {
    let error = json!({ "error": { "type": "invalid_request_error",
        "code": "context_length_exceeded", "message": "prompt is too long" } });
    Reply::new(400, error.to_string())
}

/// A house with an agent that asks this provider, and three files.
async fn house(provider: &Provider, more: &str) -> House {
    house_of(provider, more, ("chat", ""), FILE_BYTES).await
}

/// The same with this component as the agent, more keys of it, and files of so many bytes.
pub(super) async fn house_of(
    provider: &Provider,
    more: &str,
    (component, keys): (&str, &str),
    bytes: usize,
) -> House {
    let policy = format!(
        r#"
[tool.workspace]
component = "components/workspace.wasm"

[model.default]
provider = "openai-chat"
model = "m-1"
base_url = "{}"
{more}

[agent.talker]
component = "components/{component}.wasm"
model = "default"
tools = ["workspace/read"]
allow = ["workspace-read: **"]
deny = ["workspace-write: **"]
{keys}
"#,
        provider.base_url()
    );
    let house = Builder::new(&policy).storage(Storage::Sqlite).open().await;
    for file in ["a.txt", "b.txt", "c.txt"] {
        let text = format!("{file} ").repeat(bytes / 6);
        std::fs::write(house.path().join(file), text).expect("a file");
    }
    house
}

/// Bytes of the messages that were sent.
fn bytes(body: &Value) -> usize {
    body["messages"].to_string().len()
}

#[tokio::test]
async fn a_window_that_was_met_is_kept_to_by_later_steps() {
    let end = json!({ "choices": [{ "delta": { "content": "Read." }, "finish_reason": "stop" }] });
    let replies = [
        reads("a", "a.txt"),
        refused(),
        reads("b", "b.txt"),
        reads("c", "c.txt"),
        Reply::events(&[end]),
    ];
    let provider = Provider::start(replies).await;
    let house = house(&provider, "").await;
    let id = house.spawn(&house.request("talker", "Read all three.")).await;
    let view = RunView::from(&house.end(&id).await);
    assert_eq!((view.status, view.result.as_deref()), (Status::Completed, Some("Read.")));
    let sent: Vec<usize> = provider.asked().iter().map(|asked| bytes(&asked.body)).collect();
    let [_, refused, second, later @ ..] = &sent[..] else { panic!("{sent:?}") };
    assert!(*second < refused / 2 + 1_000, "{sent:?}");
    assert_eq!(later.len(), 2, "each is asked once: {sent:?}");
    assert!(later.iter().all(|bytes| *bytes < refused * 4 / 5), "{sent:?}");
    let journal = house.journal(&id).await;
    let met = journal.iter().filter(|one| one.event.kind() == "context_window_met").count();
    assert_eq!(met, 1);
}

#[tokio::test]
async fn a_session_is_asked_about_in_its_window_however_much_was_said_in_it() {
    let refusals = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&refusals);
    // Three quarters of the window at three bytes a token, and what stands around the texts.
    let provider = Provider::answering(move |asked| {
        if bytes(&asked.body) > 18_000 + 1_000 {
            counted.fetch_add(1, Ordering::SeqCst);
            return refused();
        }
        let said = json!({ "content": "So it is." });
        Reply::events(&[json!({ "choices": [{ "delta": said, "finish_reason": "stop" }] })])
    });
    let provider = provider.await;
    let house = house(&provider, "context_tokens = 8_000").await;
    for number in 0..20 {
        let line = format!("line {number} {}", "x".repeat(4_000));
        let request = SpawnRequest { converses: true, ..house.request("talker", &line) };
        let view = RunView::from(&house.end(&house.spawn(&request).await).await);
        assert_eq!((view.status, view.result.as_deref()), (Status::Completed, Some("So it is.")));
    }
    assert_eq!(refusals.load(Ordering::SeqCst), 0, "nothing was asked that has no room");
}

/// A provider that gives this answer first, and has room for so many bytes of messages; with the
/// bytes of each question that came.
async fn narrow(
    mut first: Option<Reply>,
    room: &Arc<AtomicUsize>,
) -> (Provider, Arc<Mutex<Vec<usize>>>) {
    let (room, sizes) = (Arc::clone(room), Arc::<Mutex<Vec<usize>>>::default());
    let came = Arc::clone(&sizes);
    let provider = Provider::answering(move |asked| {
        let size = bytes(&asked.body);
        came.lock().expect("no panic").push(size);
        if size > room.load(Ordering::SeqCst) {
            return refused();
        }
        first.take().unwrap_or_else(|| says("Read."))
    });
    (provider.await, sizes)
}

#[tokio::test]
async fn a_session_of_many_windows_goes_on_where_the_window_is_not_stated() {
    const ROOM: usize = 10_000;
    let room = Arc::new(AtomicUsize::new(usize::MAX));
    let (provider, sizes) = narrow(None, &room).await;
    let house = house(&provider, "").await;
    for number in 0..14 {
        if number == 12 {
            room.store(ROOM, Ordering::SeqCst);
        }
        let line = format!("line {number} {}", "x".repeat(5_000));
        let request = SpawnRequest { converses: true, ..house.request("talker", &line) };
        let id = house.spawn(&request).await;
        let view = RunView::from(&house.end(&id).await);
        let put = std::mem::take(&mut *sizes.lock().expect("no panic"));
        let ended = (view.status, view.result.as_deref());
        assert_eq!(ended, (Status::Completed, Some("Read.")), "{number}: {put:?}");
        if number < 12 {
            continue;
        }
        assert!(put[0] > 5 * ROOM, "{put:?}");
        assert!(put.is_sorted_by(|before, after| after < before), "{put:?}");
        let journal = house.journal(&id).await;
        let met = journal.iter().filter(|one| one.event.kind() == "context_window_met").count();
        assert_eq!(met, put.len() - 1, "each size that had no room is kept: {put:?}");
    }
}

#[tokio::test]
async fn a_turn_of_many_results_goes_on_where_the_window_is_not_stated() {
    const ROOM: usize = 128 << 10;
    let files: Vec<String> = (0..20).map(|number| format!("{number}.txt")).collect();
    let call = |(index, file): (usize, &String)| {
        let arguments = json!({ "path": file }).to_string();
        json!({ "index": index, "id": file, "function":
            { "name": "workspace__read", "arguments": arguments } })
    };
    let calls: Vec<Value> = files.iter().enumerate().map(call).collect();
    let delta = json!({ "delta": { "tool_calls": calls }, "finish_reason": "tool_calls" });
    let reads_all = Reply::events(&[json!({ "choices": [delta] })]);
    let (provider, sizes) = narrow(Some(reads_all), &Arc::new(AtomicUsize::new(ROOM))).await;
    let house = house(&provider, "").await;
    for file in &files {
        std::fs::write(house.path().join(file), "text ".repeat(3_200)).expect("a file");
    }
    let id = house.spawn(&house.request("talker", "Read them all.")).await;
    let view = RunView::from(&house.end(&id).await);
    let put = sizes.lock().expect("no panic").clone();
    let ended = (view.status, view.result.as_deref());
    assert_eq!(ended, (Status::Completed, Some("Read.")), "{put:?}");
    let [_, whole, half, quarter] = put[..] else { panic!("{put:?}") };
    assert!(whole > 2 * ROOM && half > ROOM && quarter <= ROOM, "{put:?}");
}

/// The files that are whole in the last question of a run which reads all three with a window of
/// 30,000 tokens, where the provider counts so many tokens in its first three questions.
async fn files_left(counts: [Option<u64>; 3]) -> Vec<&'static str> {
    const FILES: [&str; 3] = ["a.txt", "b.txt", "c.txt"];
    let end = json!({ "choices": [{ "delta": { "content": "Read." }, "finish_reason": "stop" }] });
    let calls =
        FILES.into_iter().zip(counts).map(|(file, tokens)| reads_and_counts(file, file, tokens));
    let replies: Vec<_> = calls.chain([Reply::events(&[end])]).collect();
    let provider = Provider::start(replies).await;
    let house = house(&provider, "context_tokens = 30_000").await;
    let id = house.spawn(&house.request("talker", "Read all three.")).await;
    let view = RunView::from(&house.end(&id).await);
    assert_eq!((view.status, view.result.as_deref()), (Status::Completed, Some("Read.")));
    let asked = provider.asked();
    let last = asked.last().expect("four").body.to_string();
    FILES.into_iter().filter(|file| last.contains(&format!("{file} {file} "))).collect()
}

#[tokio::test]
async fn a_window_is_as_full_as_the_provider_counted_last() {
    // Sixty thousand bytes, of the 67,500 that three quarters of the window are estimated at.
    assert_eq!(files_left([None, None, None]).await, ["a.txt", "b.txt", "c.txt"]);
    let fewer = [Some(500), Some(5_500), Some(10_500)];
    assert_eq!(files_left(fewer).await, ["a.txt", "b.txt", "c.txt"]);
    // Text of which a token has two bytes: half of the window is left.
    let more = [Some(500), Some(10_500), Some(20_500)];
    assert_eq!(files_left(more).await, ["c.txt"]);
    let more_before = [Some(9_000), Some(9_000), Some(9_500)];
    assert_eq!(files_left(more_before).await, ["a.txt", "b.txt", "c.txt"], "the last one counts");
}
