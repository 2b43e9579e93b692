//! A file that several processes share: each finds what another one wrote.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use rusqlite::Connection;
use taskrun::clock::SystemClock;
use taskrun_journal::dispatch::{Subscription, TaskEvent};
use taskrun_journal::event::Event;
use taskrun_journal::hold::Wait;
use taskrun_journal::machine;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{Claim, Removal, RunWatch, Store};
use taskrun_journal::time::{Clock, Timestamp};
use taskrun_store::SqliteStore;
use tempfile::TempDir;

#[tokio::test]
async fn a_write_of_another_process_wakes_whoever_waits_for_that_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mine, theirs) = (Arc::new(open(&dir)), open(&dir));
    let run = create(&theirs, spec("r")).await;
    let reader = Arc::clone(&mine);
    let id = run.id().clone();
    let waiter = tokio::spawn(async move {
        let (mut seen, mut watch) = (1, reader.watch(&id));
        while seen < 4 {
            watch.moved(seen).await;
            seen += reader.read(&id, seen, 100).await.expect("reads").len() as u64;
        }
    });
    spin_until_async(|| mine.stats().watched == 1).await;
    let run = theirs.claim(wish("h", 1, 2_000)).await.expect("claims").remove(0);
    let run = next(&run, 50, 2_000, vec![note("a")]);
    theirs.append(run.clone()).await.expect("appends");
    theirs.append(next(&run.run, 60, 2_000, vec![note("b")])).await.expect("appends");
    within(waiter).await.expect("no panic");
    assert_eq!(mine.stats().watched, 0);
}

#[tokio::test]
async fn whoever_follows_a_run_of_this_process_is_given_its_events_without_a_look() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    create(&store, spec("r")).await;
    let mut run = store.claim(wish("h", 1, 1_500)).await.expect("claims").remove(0);
    let mut watch = store.watch(run.id());
    watch.follow();
    let (mut given, mut told) = (0, Vec::new());
    for number in 0..20 {
        let head = run.state.head;
        let (events, appended) = within(async {
            let write = next(&run, 50 + number, 2_000, vec![note("a")]);
            tokio::join!(watch.events(head, 9), append(&store, write))
        })
        .await;
        run = appended;
        given += usize::from(!events.is_empty());
        // The thread that looks after what others write has it look for itself when it begins.
        told.extend(match events.is_empty() {
            true => store.read(run.id(), head, 9).await.expect("reads"),
            false => events,
        });
    }
    assert_eq!(told, store.read(run.id(), 2, 100).await.expect("reads"));
    assert!(given > 10, "{given} of 20");
}

#[tokio::test]
async fn whoever_waits_for_an_end_hears_of_it_from_another_process() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mine, theirs) = (Arc::new(open(&dir)), open(&dir));
    let run = create(&theirs, spec("r")).await;
    // In the second wait nobody is told to look for himself, as in the first one of a process.
    let (reader, id, looks) = (Arc::clone(&mine), run.id().clone(), Arc::new(AtomicUsize::new(0)));
    let looked = Arc::clone(&looks);
    let waiter = tokio::spawn(async move {
        let mut watch = reader.watch(&id);
        loop {
            let run = reader.get(&id).await.expect("gets").expect("it is there");
            looked.fetch_add(1, Ordering::SeqCst);
            if run.status().is_terminal() || watch.ended().await.is_some() {
                return;
            }
        }
    });
    spin_until_async(|| looks.load(Ordering::SeqCst) == 2).await;
    let mut events = vec![cancel()];
    events.extend(end());
    append(&theirs, next(&run, 50, 1_500, events)).await;
    within(waiter).await.expect("no panic");
}

/// A wait during which the thread of a store looks after what others write. It has begun, and has told
/// everybody to look.
async fn awake(store: &SqliteStore) -> Box<dyn RunWatch> {
    let mut watch = store.watch(&run_id("nobody"));
    within(watch.moved(0)).await;
    watch
}

/// The events of a run that is canceled and ends.
fn canceled() -> Vec<Event> {
    let mut events = vec![cancel()];
    events.extend(end());
    events
}

/// A run that a host of a store has, which knows of it without a look.
async fn known_open(store: &SqliteStore) -> Run {
    create(store, spec("r")).await;
    let run = store.claim(wish("h", 1, 1_500)).await.expect("claims").remove(0);
    assert_eq!(store.watch(run.id()).known_open().as_ref(), Some(&run.spec));
    run
}

#[tokio::test]
async fn a_run_that_another_process_ends_is_known_to_be_open_no_more() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mine, theirs) = (open(&dir), open(&dir));
    let _awake = awake(&mine).await;
    let run = known_open(&mine).await;
    let mut watch = mine.watch(run.id());
    assert!(watch.known_open().is_some());
    let (ended, _) = within(async {
        tokio::join!(watch.ended(), append(&theirs, next(&run, 50, 2_000, end())))
    })
    .await;
    assert_eq!(ended, None, "what others write is read");
    assert_eq!(mine.watch(run.id()).known_open(), None);
}

#[tokio::test]
async fn no_run_is_known_to_be_open_while_nobody_looks_at_what_others_write() {
    let dir = tempfile::tempdir().expect("a folder");
    let mine = open(&dir);
    create(&mine, spec("r")).await;
    let run = mine.claim(wish("h", 1, 1_500)).await.expect("claims").remove(0);
    let mut watch = mine.watch(run.id());
    assert_eq!(watch.known_open(), None);
    within(watch.ended()).await;
    // As it began, it forgot what it was told before.
    assert_eq!(watch.known_open(), None);
}

#[tokio::test]
async fn whoever_waits_for_a_run_that_another_process_ends_and_removes_looks() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mine, theirs) = (open(&dir), open(&dir));
    let _awake = awake(&mine).await;
    for number in 0..10 {
        let run = create(&theirs, spec(&format!("r-{number}"))).await;
        let mut watch = mine.watch(run.id());
        append(&theirs, next(&run, 50, 1_500, canceled())).await;
        let ended = Removal { scope: None, before: Timestamp(9_000), limit: 9, dry_run: false };
        assert_eq!(theirs.remove(ended).await.expect("removes").runs, 1);
        within(watch.ended()).await;
    }
}

#[tokio::test]
async fn work_that_another_process_queued_is_found() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mine, theirs) = (Arc::new(open(&dir)), open(&dir));
    let host = Arc::clone(&mine);
    let host = tokio::spawn(async move {
        loop {
            let runs = host.claim(wish("h", 1, 2_000)).await.expect("claims");
            if !runs.is_empty() {
                return runs;
            }
            host.work().await;
        }
    });
    create(&theirs, spec("r")).await;
    assert_eq!(ids(&within(host).await.expect("no panic")), ["r"]);
}

/// A host of another process that waits until it has claimed a run, with one slot for each tree.
fn claimer(store: &Arc<SqliteStore>) -> tokio::task::JoinHandle<Vec<Run>> {
    let store = Arc::clone(store);
    tokio::spawn(async move {
        let clock = SystemClock::new();
        loop {
            let now = clock.now().0;
            let claim = Claim { tree_slots: 1, ..wish("h", 1, now) };
            let runs = store.claim(claim).await.expect("claims");
            if !runs.is_empty() {
                return runs;
            }
            store.work().await;
        }
    })
}

#[tokio::test]
async fn a_run_whose_time_comes_is_found_by_another_process() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mine, theirs) = (Arc::new(open(&dir)), open(&dir));
    create(&theirs, spec("r")).await;
    let now = SystemClock::new().now();
    let run = theirs.claim(wish("gone", 1, now.0)).await.expect("claims").remove(0);
    // Half a second from now.
    let lost = machine::decide::lose(&run, now, None);
    theirs.append(next(&run, 50, now.0, lost)).await.expect("appends");
    assert_eq!(ids(&theirs.claim(wish("h", 1, now.0)).await.expect("claims")), [""; 0]);
    let found = within(claimer(&mine)).await.expect("no panic");
    assert_eq!(ids(&found), ["r"]);
}

#[tokio::test]
async fn a_slot_that_another_process_frees_is_found() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mine, theirs) = (Arc::new(open(&dir)), open(&dir));
    let root = spec("root");
    create(&theirs, root.clone()).await;
    let run = theirs.claim(wish("other", 1, 2_000)).await.expect("claims").remove(0);
    create(&theirs, child("child", &root)).await;
    let waiting = claimer(&mine);
    theirs.append(next(&run, 50, 3_000, vec![blocked(Wait::Word)])).await.expect("appends");
    assert_eq!(ids(&within(waiting).await.expect("no panic")), ["child"]);
}

/// The rows of all tables of runs, but for the places of last events and counts of nothing.
fn rows(dir: &TempDir) -> Vec<String> {
    let db = Connection::open(dir.path().join("taskrun.db")).expect("opens");
    let tables = [
        "runs",
        "events",
        "labels",
        "idempotency",
        "queues",
        "trees",
        "waits",
        "dispatches",
        "outbox",
        "artifacts",
    ];
    let mut rows = Vec::new();
    for table in tables {
        let filter = if table == "queues" { "WHERE runs > 0" } else { "" };
        let mut sql = db.prepare(&format!("SELECT * FROM {table} {filter}")).expect("a table");
        let names: Vec<_> = sql.column_names().map(str::to_owned).collect();
        let all = sql.query_map([], |row| {
            let named = names.iter().enumerate().filter(|(_, name)| *name != "last_pos");
            let values = named.map(|(at, name)| Ok(format!("{name}={:?}", row.get_ref(at)?)));
            values.collect::<rusqlite::Result<Vec<_>>>()
        });
        let all =
            all.expect("reads").map(|row| format!("{table}: {}", row.expect("a row").join(" ")));
        rows.extend(all);
    }
    rows
}

#[tokio::test]
async fn a_run_that_is_taken_when_it_is_kept_stands_as_one_that_is_taken_later() {
    let dirs = [0; 2].map(|_| tempfile::tempdir().expect("a folder"));
    let [at_once, later] = [&dirs[0], &dirs[1]].map(open);
    let asked = RunSpec {
        name: Some("n".to_owned()),
        labels: [("team".to_owned(), "blue".to_owned())].into(),
        subscriptions: vec![Subscription {
            subscriber: "webhook/one".to_owned(),
            events: vec![TaskEvent::Delegated],
            without_text: false,
        }],
        ..spec("r")
    };
    let new = || keyed(new_run(asked.clone()), "k", "f");
    let claim = || wish("h", 9, 2_000);
    let (_, taken) = both(&at_once, new(), claim()).await;
    assert!(later.create(new()).await.expect("creates").is_new());
    assert_eq!(taken, later.claim(claim()).await.expect("claims"));
    assert_eq!(rows(&dirs[0]), rows(&dirs[1]));
    let last = |dir: &TempDir| {
        let db = Connection::open(dir.path().join("taskrun.db")).expect("opens");
        let last = db.query_row("SELECT last_pos FROM runs", [], |row| row.get::<_, i64>(0));
        last.expect("a run")
    };
    assert_eq!((last(&dirs[0]), last(&dirs[1])), (0, 2), "only the other one is written again");
    // What comes after it finds it the same.
    for store in [&at_once, &later] {
        let run = &taken[0];
        create(store, child("c", &run.spec)).await;
        let claimed = store.claim(claim()).await.expect("claims");
        assert_eq!(ids(&claimed), ["c"]);
        append(store, next(run, 50, 3_000, vec![note("a")])).await;
        assert_eq!(store.check().await.expect("looks"), Vec::<String>::new());
    }
    assert_eq!(rows(&dirs[0]), rows(&dirs[1]));
    // One that begins after another.
    create(&at_once, RunSpec { priority: 1, ..spec("first") }).await;
    let (_, taken) = both(&at_once, new_run(spec("second")), claim()).await;
    assert_eq!(ids(&taken), ["first", "second"]);
}
