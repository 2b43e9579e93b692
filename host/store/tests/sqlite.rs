//! Promises of the store in a file alone, beyond the death of processes.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use common::*;
use taskrun_journal::format::JournalFormat;
use taskrun_journal::hold::Wait;
use taskrun_journal::list::{ListFilter, Scope};
use taskrun_journal::machine;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::store::{
    AppendOutcome, Claim, Hosts, Removal, SessionEvent, Sessions, Store, StoreError,
};
use taskrun_journal::time::Timestamp;
use taskrun_store::{Durability, SqliteOptions, SqliteStore};
use tokio::task::JoinSet;

#[tokio::test]
async fn everything_is_there_after_reopening() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    create(&store, spec("r-1")).await;
    store.create(keyed(new_run(spec("r-2")), "k", "f")).await.expect("creates");
    let run = store.claim(wish("h", 1, 2_000)).await.expect("claims").remove(0);
    let append = next(&run, 50, 3_000, vec![note("a"), note("b")]);
    store.append(append.clone()).await.expect("appends");
    let everything = ListFilter::default();
    let before = store.list(&Scope::tenant("acme"), &everything, None, 10).await.expect("lists");
    drop(store);

    let store = open(&dir);
    let after = store.list(&Scope::tenant("acme"), &everything, None, 10).await.expect("lists");
    assert_eq!(after, before);
    let events = store.read(run.id(), 0, 100).await.expect("reads");
    assert_eq!(machine::fold(&events), Ok(Run::clone(&append.run)));
    assert_eq!(store.append(append).await.expect("answers"), AppendOutcome::Done);
    let again = store.create(keyed(new_run(spec("r-3")), "k", "f")).await.expect("answers");
    assert!(format!("{again:?}").starts_with("Repeated"), "{again:?}");
}

#[tokio::test]
async fn folder_and_files_are_for_their_owner_only() {
    let parent = tempfile::tempdir().expect("a folder");
    let dir = parent.path().join("data");
    let store = SqliteStore::open(&dir, options()).expect("opens");
    store.register(host_of(&host_id("h"), PIN)).await.expect("registers");
    create(&store, spec("r")).await;
    let mode = |path: &str| {
        let data = std::fs::metadata(dir.join(path)).expect("it is there");
        data.permissions().mode() & 0o777
    };
    assert_eq!((mode(""), mode("hosts")), (0o700, 0o700));
    for file in ["taskrun.db", "taskrun.db-wal", "hosts/h.lock"] {
        assert_eq!(mode(file), 0o600, "{file}");
    }
}

#[tokio::test]
async fn the_file_is_set_up_as_designed() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(dir.path(), SqliteOptions::default()).expect("opens");
    create(&store, spec("r")).await;
    let db = stranger(&dir);
    let number = |name: &str| -> i64 {
        db.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0)).expect("answers")
    };
    assert_eq!(number("application_id"), 0x5441_534b);
    // The number of the tables, and above it that of the latest format of journals, less one.
    let version = number("user_version");
    assert_eq!(version & 0xffff, taskrun_store::SCHEMA_VERSION);
    assert_eq!(version >> 16, i64::from(JournalFormat::CURRENT.0) - 1);
    assert_eq!(number("auto_vacuum"), 2);
    let mode: String = db.query_row("PRAGMA journal_mode", [], |row| row.get(0)).expect("answers");
    assert_eq!(mode, "wal");
    assert_eq!(SqliteOptions::default().durability, Durability::Power);
}

#[tokio::test]
async fn many_who_open_at_once_share_one_store() {
    let dir = Arc::new(tempfile::tempdir().expect("a folder"));
    let opening: Vec<_> = (0..6)
        .map(|n| {
            let dir = Arc::clone(&dir);
            std::thread::spawn(move || (n, open(&dir)))
        })
        .collect();
    let stores: Vec<_> = opening.into_iter().map(|one| one.join().expect("it opens")).collect();
    for (n, store) in &stores {
        create(store, spec(&format!("r-{n}"))).await;
    }
    let all = stores[0].1.list(&Scope::tenant("acme"), &ListFilter::default(), None, 10).await;
    assert_eq!(all.expect("lists").runs.len(), 6);
}

#[tokio::test]
async fn what_waits_together_is_committed_together() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = Arc::new(open(&dir));
    let before = store.stats();
    let blocker = stranger(&dir);
    blocker.execute_batch("BEGIN IMMEDIATE").expect("locks");
    let mut waiting = JoinSet::new();
    for n in 0..200 {
        let store = Arc::clone(&store);
        // Every fourth one is refused, alone.
        let id = if n % 4 == 3 { "r-0".to_owned() } else { format!("r-{n}") };
        waiting.spawn(async move { store.create(new_run(spec(&id))).await });
    }
    // One thread runs them all: after each had its turn, all wait for the writer.
    for _ in 0..=200 {
        tokio::task::yield_now().await;
    }
    blocker.execute_batch("COMMIT").expect("unlocks");
    let answers = within(waiting.join_all()).await;
    let new = answers.iter().filter(|answer| format!("{answer:?}") == "Ok(New)").count();
    assert_eq!(new, 150);
    let stats = store.stats();
    assert_eq!(stats.transactions - before.transactions, 200);
    let commits = stats.commits - before.commits;
    assert!((1..=2).contains(&commits), "{commits} commits");
}

#[tokio::test]
async fn reads_that_nobody_polls_keep_no_reader() {
    let dir = tempfile::tempdir().expect("a folder");
    let two = SqliteOptions { readers: 2, ..options() };
    let store = SqliteStore::open(dir.path(), two).expect("opens");
    create(&store, spec("r")).await;
    let id = run_id("r");
    // Each asks once, as the futures of a `select!` do while one of its arms awaits something else.
    let mut asks = Context::from_waker(Waker::noop());
    let mut stalled = Vec::new();
    while stalled.len() < 8 {
        let mut read = store.get(&id);
        // The first ones may be answered at once.
        if read.as_mut().poll(&mut asks).is_pending() {
            stalled.push(read);
        }
    }
    let found = within(store.get(&id)).await.expect("gets");
    assert_eq!(found.expect("it is there").id(), &id);
    for read in stalled {
        assert!(within(read).await.expect("gets").is_some());
    }
}

#[tokio::test]
async fn a_full_store_says_so_keeps_what_it_has_and_goes_on_when_there_is_room() {
    let dir = tempfile::tempdir().expect("a folder");
    let small = SqliteOptions { bytes_max: Some(400 << 10), ..options() };
    let store = SqliteStore::open(dir.path(), small).expect("opens");
    create(&store, spec("r")).await;
    let mut run = store.claim(wish("h", 1, 2_000)).await.expect("claims").remove(0);
    let refused = loop {
        let append = next(&run, run.state.head, 3_000, vec![note(&"x".repeat(20_000))]);
        match store.append(append.clone()).await {
            Ok(appended) => assert_eq!(appended, AppendOutcome::Done),
            Err(StoreError::Full { path }) => {
                assert!(path.ends_with("taskrun.db"), "{path}");
                break append;
            }
            Err(error) => panic!("{error}"),
        }
        run = Run::clone(&append.run);
    };
    assert!(run.state.head > 3);
    let events = store.read(run.id(), 0, 1_000).await.expect("reads");
    assert_eq!(machine::fold(&events).as_ref(), Ok(&run));
    assert_eq!(store.get(run.id()).await.expect("gets").as_ref(), Some(&run));
    drop(store);
    let store = open(&dir);
    assert_eq!(store.append(refused).await.expect("appends"), AppendOutcome::Done);
}

#[tokio::test]
async fn one_transaction_that_does_not_fit_fails_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let small = SqliteOptions { bytes_max: Some(600 << 10), ..options() };
    let store = Arc::new(SqliteStore::open(dir.path(), small).expect("opens"));
    let blocker = stranger(&dir);
    blocker.execute_batch("BEGIN IMMEDIATE").expect("locks");
    let mut waiting = JoinSet::new();
    for n in 0..9 {
        let store = Arc::clone(&store);
        let mut spec = spec(&format!("r-{n}"));
        if n == 4 {
            spec.task = "x".repeat(900 << 10);
        }
        waiting.spawn(async move { (n, store.create(new_run(spec)).await) });
    }
    for _ in 0..=9 {
        tokio::task::yield_now().await;
    }
    blocker.execute_batch("COMMIT").expect("unlocks");
    for (n, answer) in within(waiting.join_all()).await {
        match answer {
            Ok(_) => assert_ne!(n, 4),
            Err(StoreError::Full { .. }) => assert_eq!(n, 4),
            Err(error) => panic!("{error}"),
        }
    }
    let all = store.list(&Scope::tenant("acme"), &ListFilter::default(), None, 10).await;
    assert_eq!(all.expect("lists").runs.len(), 8);
}

#[tokio::test]
async fn a_store_that_another_program_keeps_locked_is_locked() {
    let dir = tempfile::tempdir().expect("a folder");
    let impatient = SqliteOptions { busy_timeout: Duration::from_millis(30), ..options() };
    let store = SqliteStore::open(dir.path(), impatient.clone()).expect("opens");
    let run = create(&store, spec("r")).await;
    let blocker = stranger(&dir);
    blocker.execute_batch("BEGIN EXCLUSIVE").expect("locks");
    let refused = store.create(new_run(spec("r-2"))).await;
    assert!(matches!(refused, Err(StoreError::Locked { .. })), "{refused:?}");
    assert_eq!(store.get(run.id()).await.expect("readers are not locked out"), Some(run.clone()));
    // Nor is who begins to read: only writing needs the lock.
    let second = SqliteStore::open(dir.path(), impatient).expect("opens");
    assert_eq!(second.get(run.id()).await.expect("reads"), Some(run));
    let refused = second.create(new_run(spec("r-2"))).await;
    assert!(matches!(refused, Err(StoreError::Locked { .. })), "{refused:?}");
    blocker.execute_batch("COMMIT").expect("unlocks");
    create(&second, spec("r-2")).await;
}

#[tokio::test]
async fn for_a_run_that_is_taken_as_it_is_kept_nobody_has_to_look() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    let nothing = async || assert_eq!(store.claim(wish("h", 1, 2_000)).await.expect("claims"), []);
    nothing().await;
    // The first who waits has the store look for what others write, and is to look once more then.
    within(store.work()).await;
    nothing().await;
    only_a_run_that_was_left_wakes(&store).await;
}

#[tokio::test]
async fn a_run_is_kept_where_damage_lets_nobody_be_taken() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    create(&store, spec("bad")).await;
    let damage = "UPDATE runs SET pins = CAST(x'ff' AS TEXT)";
    stranger(&dir).execute(damage, []).expect("writes");
    let refused = store.claim(wish("h", 1, 2_000)).await;
    assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "{refused:?}");
    let (created, taken) = both(&store, new_run(spec("r")), wish("h", 1, 2_000)).await;
    assert!(created.is_new() && taken.is_empty(), "{created:?} {taken:?}");
    let run = store.get(&run_id("r")).await.expect("gets").expect("it is there");
    assert_eq!((run.status(), run.state.head), (Status::Queued, 1));
}

#[tokio::test]
async fn a_closed_store_says_so() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = Arc::new(open(&dir));
    let run = create(&*store, spec("r")).await;
    let (theirs, id, mut watch) = (Arc::clone(&store), run.id().clone(), store.watch(run.id()));
    let waiter = tokio::spawn(async move {
        while theirs.get(&id).await.is_ok() {
            watch.moved(1).await;
        }
    });
    let other = create(&*store, spec("other")).await;
    let (theirs, id) = (Arc::clone(&store), other.id().clone());
    let mut watch = theirs.watch(&id);
    let waiter_for_the_end = tokio::spawn(async move {
        while theirs.get(&id).await.is_ok() {
            assert_eq!(watch.ended().await, None, "it has not ended");
        }
    });
    spin_until_async(|| store.stats().watched == 2).await;
    let theirs = Arc::clone(&store);
    tokio::task::spawn_blocking(move || theirs.close()).await.expect("closes");
    within(waiter).await.expect("no panic");
    within(waiter_for_the_end).await.expect("no panic");
    let closed = |error: StoreError| assert!(matches!(error, StoreError::Closed), "{error:?}");
    closed(store.get(run.id()).await.expect_err("closed"));
    closed(store.create(new_run(spec("r-2"))).await.expect_err("closed"));
    closed(store.claim(wish("h", 1, 2_000)).await.expect_err("closed"));
    closed(store.register(host_of(&host_id("h"), PIN)).await.expect_err("closed"));
    closed(store.orphans(1).await.expect_err("closed"));
    within(store.work()).await;
    drop(store);
    assert_eq!(open(&dir).get(run.id()).await.expect("gets"), Some(run));
}

#[tokio::test]
async fn a_damaged_event_is_named_and_stops_nobody_else() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    create(&store, spec("bad")).await;
    create(&store, spec("good")).await;
    let db = stranger(&dir);
    db.execute("UPDATE events SET body = '{\"kind\":\"queued\"}' WHERE pos = 1", [])
        .expect("writes");
    let detail = |error: StoreError| match error {
        StoreError::Corrupt { detail, .. } => detail,
        other @ (StoreError::Locked { .. }
        | StoreError::Version { .. }
        | StoreError::Format { .. }
        | StoreError::Full { .. }
        | StoreError::NoRoom { .. }
        | StoreError::ReadOnly { .. }
        | StoreError::Unavailable { .. }
        | StoreError::Replaced { .. }
        | StoreError::Refused { .. }
        | StoreError::Closed
        | StoreError::Unknown { .. }) => panic!("{other:?}"),
    };
    let said = detail(store.get(&run_id("bad")).await.expect_err("damaged"));
    assert_eq!(said, "run bad, position 1: the checksum does not fit");
    let said = detail(store.read(&run_id("bad"), 0, 10).await.expect_err("damaged"));
    assert_eq!(said, "run bad, position 1: the checksum does not fit");
    let runs = store.claim(wish("h", 9, 2_000)).await.expect("claims");
    assert_eq!(ids(&runs), ["good"]);
    db.execute("UPDATE runs SET state = 'no' WHERE id = 'good'", []).expect("writes");
    let said = detail(store.get(&run_id("good")).await.expect_err("damaged"));
    assert_eq!(said, "run good, record: the checksum does not fit");
    db.execute("DELETE FROM events WHERE run = 2 AND seq = 1", []).expect("writes");
    let said = detail(store.read(&run_id("good"), 0, 10).await.expect_err("damaged"));
    assert_eq!(said, "run good, position 1: the event is missing");
}

#[tokio::test]
async fn an_event_of_every_size_up_to_a_megabyte_reads_back() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    create(&store, spec("r")).await;
    let mut run = store.claim(wish("h", 1, 2_000)).await.expect("claims").remove(0);
    for size in [0, 1, 4_096, 100_000, 1 << 20, 2 << 20] {
        let append = next(&run, 1_000 + size as u64, 3_000, vec![note(&"ä\u{0}".repeat(size / 3))]);
        store.append(append.clone()).await.expect("appends");
        let read = store.read(run.id(), run.state.head, 1).await.expect("reads");
        assert_eq!(read, *append.events);
        run = Run::clone(&append.run);
    }
}

#[tokio::test]
async fn numbers_of_removed_runs_and_places_of_their_events_are_never_used_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    create(&store, spec("old")).await;
    let run = store.claim(wish("h", 1, 2_000)).await.expect("claims").remove(0);
    store.append(next(&run, 50, 3_000, end())).await.expect("appends");
    let last = |store: Vec<SessionEvent>| store.last().map(|event| event.place);
    let before = last(store.read_session(&session_key(), 0, 99).await.expect("reads").events);
    let removal = Removal { scope: None, before: Timestamp(9_000), limit: 9, dry_run: false };
    assert_eq!(store.remove(removal).await.expect("removes").runs, 1);
    drop(store);
    let store = open(&dir);
    create(&store, spec("new")).await;
    let after = last(store.read_session(&session_key(), 0, 99).await.expect("reads").events);
    assert!(after > before, "{after:?} comes after {before:?}");
    let number: i64 = stranger(&dir)
        .query_row("SELECT no FROM runs WHERE id = 'new'", [], |row| row.get(0))
        .expect("it is there");
    assert_eq!(number, 2);
    for table in ["labels", "idempotency", "waits", "trees"] {
        let rows: i64 = stranger(&dir)
            .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))
            .expect("counts");
        assert_eq!(rows, 0, "{table}");
    }
}

#[tokio::test]
async fn a_removal_gives_pages_back() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    create(&store, spec("big")).await;
    let run = store.claim(wish("h", 1, 2_000)).await.expect("claims").remove(0);
    let text = "x".repeat(400_000);
    let append = next(&run, 50, 3_000, vec![note(&text), note(&text), note(&text)]);
    store.append(append.clone()).await.expect("appends");
    store.append(next(&append.run, 60, 3_000, end())).await.expect("appends");
    let number = |name: &str| -> i64 {
        let sql = format!("PRAGMA {name}");
        stranger(&dir).query_row(&sql, [], |row| row.get(0)).expect("answers")
    };
    let before = number("page_count");
    let scope = Some(Scope::tenant("acme"));
    let removal = Removal { scope, before: Timestamp(9_000), limit: 9, dry_run: false };
    let removed = store.remove(removal.clone()).await.expect("removes");
    assert!(removed.bytes > 1_200_000 && removed.unused > 0, "{removed:?}");
    let further = store.remove(Removal { limit: 0, ..removal }).await.expect("gives back");
    assert_eq!((further.unused, number("freelist_count")), (0, 0));
    assert!(number("page_count") + 250 < before, "{before}");
}

#[tokio::test]
async fn a_claim_looks_at_one_run_of_a_full_tree_however_many_wait() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    let root = spec("root");
    create(&store, root.clone()).await;
    let one_slot = || Claim { tree_slots: 1, ..wish("h", 9, 2_000) };
    let run = store.claim(one_slot()).await.expect("claims").remove(0);
    for n in 0..300 {
        create(&store, child(&format!("c-{n}"), &root)).await;
    }
    create(&store, spec("other")).await;
    let ready = || -> i64 {
        let sql = "SELECT count(*) FROM runs WHERE queue < 2";
        stranger(&dir).query_row(sql, [], |row| row.get(0)).expect("counts")
    };
    assert_eq!(ready(), 2, "the first of the tree, and the other run");
    assert_eq!(ids(&store.claim(one_slot()).await.expect("claims")), ["other"]);
    assert_eq!(ready(), 0);
    let blocked = next(&run, 50, 3_000, vec![blocked(Wait::Word)]);
    store.append(blocked).await.expect("appends");
    assert_eq!(ready(), 1);
    assert_eq!(ids(&store.claim(one_slot()).await.expect("claims")), ["c-0"]);
}

#[tokio::test]
async fn events_of_a_session_are_merged_in_the_order_of_the_store_far_from_its_end() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    let mut runs = Vec::new();
    for n in 0..3 {
        let mut spec = spec(&format!("r-{n}"));
        if n == 2 {
            spec.parent_session_id = "another".to_owned();
        }
        create(&store, spec).await;
        runs.extend(store.claim(wish("h", 1, 2_000)).await.expect("claims"));
    }
    for n in 0..1_200 {
        let run: &mut Run = &mut runs[n % 3];
        let append = next(run, 50 + n as u64, 3_000, vec![note(&n.to_string())]);
        *run = Run::clone(&append.run);
        store.append(append).await.expect("appends");
    }
    let (mut after, mut all) = (0, Vec::new());
    loop {
        let page = store.read_session(&session_key(), after, 97).await.expect("reads").events;
        let Some(last) = page.last() else { break };
        after = last.place;
        all.extend(page);
    }
    assert!(all.is_sorted_by_key(|event| event.place));
    assert_eq!(all.len(), 800 + 4, "two runs of three");
    for run in &runs[..2] {
        let of_run = all.iter().filter(|event| event.run == *run.id());
        let journal: Vec<_> = of_run.map(|event| event.recorded.clone()).collect();
        assert_eq!(machine::fold(&journal).as_ref(), Ok(run));
    }
}
