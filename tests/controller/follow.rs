//! Following a run: nothing is missed, whoever writes it, and another run is nobody's business (M-20).

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use taskrun::controller::EventStream;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::EventRecord;
use taskrun_journal::list::Scope;
use taskrun_journal::time::Timestamp;
use taskrun_store::{SqliteOptions, SqliteStore};

use crate::native::{Gate, Native, OWNER, World, in_time, request};

/// A world over a file, as one process has it.
fn over(dir: &tempfile::TempDir) -> World {
    let store = SqliteStore::open(dir.path(), SqliteOptions::default());
    let store = Arc::new(store.expect("a store"));
    World::over(store.clone(), store.clone(), store)
}

/// All that a stream gives until it says that there is no more, at most so many at a time.
async fn rest(stream: &mut EventStream, limit: usize) -> Vec<EventRecord> {
    let mut seen = Vec::new();
    loop {
        let events = in_time(stream.next(limit)).await.expect("there");
        assert!(events.len() <= limit);
        if events.is_empty() {
            return seen;
        }
        seen.extend(events);
    }
}

/// A host with an agent that waits at the gate.
async fn gated(world: &mut World, gate: &Gate) -> Native {
    world.agent("a", gate.answering("done"));
    world.start().await
}

/// A run at its gate, its host, and a stream of it that another process of the file has.
async fn followed_from_elsewhere(dir: &tempfile::TempDir) -> (Gate, Native, String, EventStream) {
    let (mut theirs, gate) = (over(dir), Gate::new());
    let (host, mut mine) = (gated(&mut theirs, &gate).await, over(dir));
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    let stream = mine.controller().client().follow(&id, 0).await.expect("there");
    (gate, host, id, stream)
}

#[tokio::test]
async fn m_20_a_run_that_had_ended_is_followed_to_its_end() {
    let (mut world, gate) = (World::new(), Gate::new());
    let host = gated(&mut world, &gate).await;
    gate.open();
    let id = host.spawn(&request("a", "x")).await;
    host.end(&id).await;
    let mut stream = host.client().follow(&id, 0).await.expect("there");
    assert_eq!(rest(&mut stream, 2).await, host.journal(&id).await);
    assert_eq!(in_time(stream.next(2)).await.expect("there"), [], "nor later");
}

#[tokio::test]
async fn m_20_what_another_process_writes_before_the_first_wait_is_seen() {
    let dir = tempfile::tempdir().expect("a folder");
    let (gate, host, id, mut stream) = followed_from_elsewhere(&dir).await;
    gate.open();
    host.end(&id).await;
    assert_eq!(rest(&mut stream, 1).await, host.journal(&id).await);
}

#[tokio::test]
async fn m_20_a_wait_that_is_given_up_loses_no_event() {
    let dir = tempfile::tempdir().expect("a folder");
    let (gate, host, id, mut stream) = followed_from_elsewhere(&dir).await;
    let mut seen = Vec::new();
    let follows = async {
        // Given up after each step that it makes.
        loop {
            let next = stream.next(1);
            tokio::pin!(next);
            let mut steps = 0;
            let given = poll_fn(|context| {
                steps += 1;
                match next.as_mut().poll(context) {
                    Poll::Ready(given) => Poll::Ready(Some(given)),
                    Poll::Pending if steps > 1 => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                }
            });
            match given.await {
                None => {}
                Some(events) => match events.expect("there").pop() {
                    Some(event) => seen.push(event),
                    None => break,
                },
            }
        }
    };
    let ends = async {
        gate.open();
        host.end(&id).await
    };
    in_time(async { tokio::join!(follows, ends) }).await;
    assert_eq!(seen, host.journal(&id).await);
}

#[tokio::test]
async fn m_20_a_later_run_with_the_id_is_not_followed_by_others() {
    let (mut world, gate) = (World::new(), Gate::new());
    let host = gated(&mut world, &gate).await;
    gate.open();
    let named = SpawnRequest { id: Some("r".into()), ..request("a", "x") };
    host.spawn(&named).await;
    host.end("r").await;
    let mine = Scope { owner_user_id: Some(OWNER.into()), ..host.scope.clone() };
    let mut stream = host.controller.at(&mine).follow("r", 1).await.expect("there");
    host.client().gc(Timestamp(u64::MAX), false).await.expect("removed");
    host.spawn(&SpawnRequest { owner_user_id: "user-b".into(), ..named }).await;
    host.end("r").await;
    let refused = in_time(stream.next(9)).await.expect_err("it is another owner's");
    assert_eq!(refused.code(), "not-found");
}
