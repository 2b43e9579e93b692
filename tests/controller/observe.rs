//! Observers: one stream for each session, with a place to go on from (M-20, M-64).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use taskrun::ports::tool::{ToolReply, ToolWait};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::RunsReport;
use taskrun_journal::hold::WaitMode;
use taskrun_journal::ids::RunId;
use taskrun_journal::status::Status;
use taskrun_journal::store::{
    Session, SessionEvent, SessionKey, SessionPage, Sessions, StoreError,
};
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;
use taskrun_store::MemoryStore;

use crate::native::{
    ClosurePlanner, ClosureTool, Gate, Native, OWNER, SESSION, World, answer, call_of, in_time,
    request,
};

/// A parent that waits for its child, which stays at the gate.
async fn family(world: &mut World, gate: &Gate) -> (Native, String, String) {
    let wait = ClosureTool::new("await", ToolHints::default(), |_, _| async {
        let runs = vec![RunId::new("child-1").expect("an id")];
        Ok(Ok(ToolReply::Park(ToolWait::Runs {
            runs,
            mode: WaitMode::All,
            timeout: None,
            report: RunsReport::List,
        })))
    });
    world.tool("t", InterruptionPolicy::Fail, wait);
    let both = Gate::new();
    world.agent("child", gate.answering("from the child"));
    let there = both.clone();
    world.agent(
        "parent",
        ClosurePlanner::new(move |input, _| {
            let there = there.clone();
            async move {
                there.pass().await;
                match input.resume {
                    None => call_of(&[("c1", "t/await", "{}")]),
                    Some(_) => answer("from the parent"),
                }
            }
        }),
    );
    let host = world.start().await;
    let parent = host.spawn(&request("parent", "x")).await;
    let mut asked = request("child", "y");
    asked.id = Some("child-1".into());
    asked.parent_run_id = Some(parent.clone());
    let child = host.spawn(&asked).await;
    both.open();
    (host, parent, child)
}

/// The stream of the session from a place on until the run has ended.
async fn stream(host: &Native, mut after: u64, until: &str) -> Vec<SessionEvent> {
    let mut seen: Vec<SessionEvent> = Vec::new();
    loop {
        let next = host.client().next_session_events(SESSION, after, 3).await;
        let page = next.expect("there");
        assert!(page.next > after);
        after = page.next;
        seen.extend(page.events);
        let over = |event: &SessionEvent| {
            event.run.as_str() == until && event.recorded.event.kind() == "finished"
        };
        if seen.iter().any(over) {
            return seen;
        }
    }
}

#[tokio::test]
async fn m_64_a_session_is_one_stream_in_order_with_a_place_to_go_on_from() {
    let (mut world, gate) = (World::new(), Gate::new());
    let (host, parent, child) = family(&mut world, &gate).await;
    let (seen, ()) = tokio::join!(in_time(stream(&host, 0, &parent)), async {
        host.reach(&parent, Status::Blocked).await;
        gate.open();
    });
    assert!(seen.windows(2).all(|pair| pair[0].place < pair[1].place));
    for id in [&parent, &child] {
        let of_run = seen.iter().filter(|event| event.run.as_str() == id);
        let of_run: Vec<_> = of_run.map(|event| event.recorded.clone()).collect();
        assert_eq!(of_run, host.journal(id).await, "each run's own order is kept");
    }
    let place = |id: &str, kind: &str| {
        let found =
            |event: &SessionEvent| event.run.as_str() == id && event.recorded.event.kind() == kind;
        seen.iter().position(found).expect("there")
    };
    assert!(place(&child, "finished") < place(&parent, "resumed"), "the child's end comes first");
    let middle = seen.len() / 2;
    let rest = stream(&host, seen[middle].place, &parent).await;
    assert_eq!(rest, seen[middle + 1..], "a reader that comes again misses nothing");
    let all = stream(&host, 0, &parent).await;
    assert_eq!(all, seen, "one that comes late reads the same");
}

#[tokio::test]
async fn m_64_whoever_reads_on_waits_until_something_happens() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("a", gate.answering("done"));
    let host = world.start().await;
    let client = host.client();
    let next = client.next_session_events(SESSION, 0, 100);
    tokio::pin!(next);
    assert!(futures::poll!(&mut next).is_pending());
    let mut elsewhere = request("a", "x");
    elsewhere.parent_session_id = "parent-b".into();
    host.spawn(&elsewhere).await;
    gate.reached_by(1).await;
    assert!(futures::poll!(&mut next).is_pending(), "another session is another stream");
    let id = host.spawn(&request("a", "x")).await;
    let events = in_time(next).await.expect("there").events;
    assert_eq!((events[0].run.as_str(), events[0].recorded.event.kind()), (id.as_str(), "queued"));

    // Of the runs of others an observer sees nothing, and is not held up by them either.
    gate.open();
    host.end(&id).await;
    let theirs = host.scope.clone().owner("user-b");
    let page = host.controller.at(&theirs).session_events(SESSION, 0, 100).await.expect("a page");
    assert_eq!(page.events, []);
    assert!(page.next > 0, "it has read beyond them");
    let mine = host.scope.clone().owner(OWNER);
    let page = host.controller.at(&mine).session_events(SESSION, 0, 100).await.expect("a page");
    assert_eq!(page.events.len(), host.journal(&id).await.len());
}

/// Sessions of a store, with the places from which somebody read.
struct Noting {
    store: Arc<MemoryStore>,
    read_from: Mutex<Vec<u64>>,
}

#[async_trait]
impl Sessions for Noting {
    async fn open_session(&self, session: Session) -> Result<Session, StoreError> {
        self.store.open_session(session).await
    }

    async fn end_session(&self, key: &SessionKey, at: Timestamp) -> Result<Session, StoreError> {
        self.store.end_session(key, at).await
    }

    async fn session(&self, key: &SessionKey) -> Result<Option<Session>, StoreError> {
        self.store.session(key).await
    }

    async fn read_session(
        &self,
        key: &SessionKey,
        after: u64,
        limit: usize,
    ) -> Result<SessionPage, StoreError> {
        self.read_from.lock().expect("no panic").push(after);
        self.store.read_session(key, after, limit).await
    }

    async fn last_place(&self) -> Result<u64, StoreError> {
        self.store.last_place().await
    }

    async fn session_changed(&self, key: &SessionKey, after: u64) {
        self.store.session_changed(key, after).await;
    }
}

#[tokio::test]
async fn m_64_a_reader_looks_once_at_what_others_did() {
    let store = Arc::new(MemoryStore::new());
    let noting = Arc::new(Noting { store: Arc::clone(&store), read_from: Mutex::default() });
    let mut world = World::over(store.clone(), store, noting.clone());
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
    let host = world.start().await;
    let theirs = host.scope.clone().owner("user-b");
    let client = host.controller.at(&theirs);
    let next = client.next_session_events(SESSION, 0, 2);
    tokio::pin!(next);
    for _ in 0..3 {
        let id = host.spawn(&request("a", "x")).await;
        host.end(&id).await;
        assert!(futures::poll!(&mut next).is_pending());
    }
    let own = SpawnRequest { owner_user_id: "user-b".into(), ..request("a", "x") };
    let own = host.spawn(&own).await;
    let page = in_time(next).await.expect("there");
    assert_eq!((page.events[0].run.as_str(), page.events[0].recorded.seq), (own.as_str(), 1));
    let read_from = noting.read_from.lock().expect("no panic").clone();
    assert!(read_from.len() >= 4 && read_from.is_sorted_by(|a, b| a < b), "{read_from:?}");
}

#[tokio::test]
async fn m_20_observers_that_do_not_read_or_die_hold_nothing_up() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("a", gate.answering("done"));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    let head = host.get(&id).await.state.head;
    // Hundreds that were asked for once and are never looked at again.
    let (client, mut stalled) = (host.client(), Vec::new());
    for _ in 0..300 {
        let mut stream = client.follow(&id, head).await.expect("there");
        let mut run = Box::pin(async move { stream.next(10).await });
        let mut session = Box::pin(client.next_session_events(SESSION, 1_000, 10));
        assert!(futures::poll!(&mut run).is_pending());
        assert!(futures::poll!(&mut session).is_pending());
        stalled.push((run, session));
    }
    // And one that dies with what it read.
    let (controller, scope, watched) = (host.controller.clone(), host.scope.clone(), id.clone());
    let dies = tokio::spawn(async move {
        let mut stream = controller.at(&scope).follow(&watched, head).await.expect("there");
        let events = stream.next(10).await.expect("there");
        panic!("an observer of a test dies of {} events", events.len());
    });
    gate.open();
    assert_eq!(host.end(&id).await.status(), Status::Completed);
    assert!(in_time(dies).await.expect_err("it panicked").is_panic());
    let (slow, _) = stalled.pop().expect("there are 300");
    let caught_up = in_time(slow).await.expect("there");
    let journal = host.journal(&id).await;
    assert_eq!(caught_up[..], journal[usize::try_from(head).expect("small")..]);
    let mut over = host.client().follow(&id, journal.len() as u64).await.expect("there");
    assert_eq!(
        over.next(10).await.expect("there"),
        [],
        "after the end there is nothing to wait for"
    );
}

#[tokio::test]
async fn m_20_what_is_reported_during_a_call_is_seen_before_the_call_ends() {
    let (mut world, gate) = (World::new(), Gate::new());
    let own = gate.clone();
    world.agent(
        "a",
        ClosurePlanner::new(move |_, scope| {
            let gate = own.clone();
            async move {
                scope.record(taskrun_journal::event::Event::AssistantChunk { text: "do".into() });
                gate.pass().await;
                answer("done")
            }
        }),
    );
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    let run = host.until(&id, "reports", |run| run.state.progress.event_count == 1).await;
    assert_eq!(run.status(), Status::Running);
    assert_eq!(run.state.reply.result().as_deref(), Some("do"));
    world.clock.advance(Duration::from_secs(1));
    gate.open();
    let run = host.end(&id).await;
    assert_eq!(run.state.reply.result().as_deref(), Some("done"));
}
