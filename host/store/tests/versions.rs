//! Files of older versions: taken over whole, or refused and left alone.

mod common;

use common::*;
use rusqlite::Connection;
use taskrun::list::{ListFilter, Scope};
use taskrun::machine;
use taskrun::ports::store::{Created, Hosts, Removal, Sessions, Store, StoreError};
use taskrun::run::{Hold, Run};
use taskrun::status::Status;
use taskrun::time::Timestamp;
use taskrun_store::{SCHEMA_VERSION, SqliteStore};
use tempfile::TempDir;

/// What a store of version 1 had in it.
const VERSION_1: &str = include_str!("fixtures/v1.sql");
/// The same store after version 2 had taken it over and claimed a run.
const VERSION_2: &str = include_str!("fixtures/v2.sql");

fn old_store(change: &str) -> TempDir {
    store_of(VERSION_1, change)
}

fn store_of(version: &str, change: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let db = Connection::open(dir.path().join("taskrun.db")).expect("opens");
    db.execute_batch(version).expect("fills");
    db.execute_batch(change).expect("changes");
    drop(db);
    dir
}

/// What the events of a run say, as texts.
fn bodies(dir: &TempDir) -> Vec<(i64, i64, i64, String)> {
    let db = stranger(dir);
    let mut sql = db
        .prepare("SELECT pos, run, seq, body FROM events ORDER BY pos")
        .expect("both versions have these");
    let rows = sql
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .expect("selects");
    rows.map(|row| row.expect("a row")).collect()
}

async fn get(store: &SqliteStore, id: &str) -> Run {
    store.get(&run_id(id)).await.expect("gets").expect("it is there")
}

#[tokio::test]
async fn a_store_of_version_1_is_taken_over_with_every_event_as_it_was() {
    let dir = old_store("");
    let before = bodies(&dir);
    let store = open(&dir);
    assert_eq!(bodies(&dir), before);
    let all = store.list(&Scope::tenant("acme"), &ListFilter::default(), None, 10).await;
    let all = all.expect("lists").runs;
    assert_eq!(ids(&all), ["cancelling", "done", "going", "waiting", "child"]);
    for run in &all {
        let events = store.read(run.id(), 0, 100).await.expect("reads");
        assert_eq!(machine::fold(&events).as_ref(), Ok(run));
    }
    let done = get(&store, "done").await;
    assert_eq!((done.status(), done.state.head), (Status::Completed, 6));
    let going = get(&store, "going").await;
    assert_eq!(going.state.hold, Hold::Host { host: host_id("old-host") });
    assert!(going.spec.durable, "runs of before are continued");
    let version: i64 =
        stranger(&dir).query_row("PRAGMA user_version", [], |row| row.get(0)).expect("answers");
    assert_eq!(version, SCHEMA_VERSION);
    drop(store);
    assert_eq!(get(&open(&dir), "done").await, done, "and opens as its own from then on");
}

#[tokio::test]
async fn a_store_that_was_taken_over_works_on() {
    let dir = old_store("");
    let store = open(&dir);
    assert_eq!(store.hosts().await.expect("lists"), []);
    let orphans = store.orphans(9).await.expect("answers");
    assert_eq!(ids(&orphans), ["going", "cancelling"]);
    let labelled = ListFilter {
        labels: [("team".to_owned(), "red".to_owned())].into(),
        root_run_id: Some(run_id("going")),
        ..ListFilter::default()
    };
    let tree = store.list(&Scope::tenant("acme"), &labelled, None, 10).await.expect("lists");
    assert_eq!(ids(&tree.runs), ["going", "child"]);
    let again = store.create(keyed(new_run(spec("again")), "k-1", "f")).await.expect("answers");
    assert!(matches!(again, Created::Repeated(run) if run.id().as_str() == "done"));
    let events = store.read_session(&session_key(), 0, 100).await.expect("reads");
    assert_eq!(events.len(), 15, "all but the one of the other tenant");
    assert!(events.is_sorted_by_key(|event| event.place));
    // The tree of `going` has one slot, which that holds.
    let claim = |slots| taskrun::ports::store::Claim { tree_slots: slots, ..wish("h", 9, 9_000) };
    assert_eq!(ids(&store.claim(claim(1)).await.expect("claims")), ["urgent", "waiting"]);
    assert_eq!(ids(&store.claim(claim(2)).await.expect("claims")), ["child"]);
    let removal = Removal {
        tenant: None,
        session: None,
        before: Timestamp(9_000),
        limit: 10,
        dry_run: false,
    };
    assert_eq!(store.remove(removal).await.expect("removes").runs, 1);
}

#[tokio::test]
async fn a_damaged_store_of_version_1_is_refused_and_not_touched() {
    for change in [
        "UPDATE events SET body = '{\"kind\":\"queued\"}' WHERE pos = 1",
        "UPDATE events SET body = replace(body, 'finalizing', 'unblocked') WHERE pos = 9",
        "UPDATE events SET body = 'no' WHERE pos = 12",
        "DELETE FROM events WHERE pos = 7",
        "DELETE FROM events WHERE pos = 12",
        "DELETE FROM events WHERE run = 4",
        "UPDATE runs SET status = 6 WHERE no = 1",
        "UPDATE runs SET id = 'another' WHERE no = 1",
    ] {
        let dir = old_store(change);
        let file = dir.path().join("taskrun.db");
        let before = std::fs::read(&file).expect("reads");
        let refused = SqliteStore::open(dir.path(), options()).err();
        assert!(matches!(refused, Some(StoreError::Corrupt { .. })), "{change}: {refused:?}");
        assert_eq!(std::fs::read(&file).expect("reads"), before, "{change}");
        let log = std::fs::metadata(dir.path().join("taskrun.db-wal")).map_or(0, |log| log.len());
        assert_eq!(log, 0, "{change}");
    }
}

#[tokio::test]
async fn a_store_whose_pages_were_cut_is_refused_in_version_1_too() {
    let whole = std::fs::read(old_store("").path().join("taskrun.db")).expect("reads");
    for pages in [1, 3, whole.len() / 4_096 - 1] {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("taskrun.db");
        std::fs::write(&file, &whole[..pages * 4_096]).expect("writes");
        let refused = SqliteStore::open(dir.path(), options()).err();
        assert!(matches!(refused, Some(StoreError::Corrupt { .. })), "{pages}: {refused:?}");
        assert_eq!(std::fs::read(&file).expect("reads"), whole[..pages * 4_096]);
    }
}

#[tokio::test]
async fn a_store_that_a_host_of_version_1_uses_waits_for_its_end() {
    let dir = old_store("");
    let lock = dir.path().join("hosts").join("old-host.lock");
    std::fs::create_dir(dir.path().join("hosts")).expect("makes");
    let file = std::fs::File::create(lock).expect("makes");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("locks");
    let refused = SqliteStore::open(dir.path(), options()).err();
    assert!(matches!(refused, Some(StoreError::Locked { .. })), "{refused:?}");
    drop(file);
    get(&open(&dir), "done").await;
}

/// Tables and indexes with the columns of each, in the order of their names.
fn layout(dir: &TempDir) -> Vec<(String, String, String)> {
    let db = stranger(dir);
    let mut sql = db
        .prepare(
            "SELECT s.type, s.name, group_concat(i.name) FROM sqlite_schema s
             JOIN pragma_table_xinfo(s.name) i GROUP BY s.name ORDER BY s.name",
        )
        .expect("SQLite knows its tables");
    let mut rows: Vec<(String, String, String)> = Vec::new();
    let found = sql.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    rows.extend(found.expect("selects").map(|row| row.expect("a row")));
    let mut sql = db
        .prepare("SELECT type, name, sql FROM sqlite_schema WHERE type = 'index' ORDER BY name")
        .expect("SQLite knows its indexes");
    let found = sql.query_map([], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get::<_, Option<String>>(2)?.unwrap_or_default()))
    });
    rows.extend(found.expect("selects").map(|row| row.expect("a row")));
    rows
}

#[tokio::test]
async fn a_store_that_was_taken_over_is_laid_out_like_a_new_one() {
    let new = tempfile::tempdir().expect("a folder");
    drop(open(&new));
    let expected = layout(&new);
    assert!(expected.iter().any(|(_, name, _)| name == "runs_named"), "{expected:?}");
    for version in [VERSION_1, VERSION_2] {
        let old = store_of(version, "");
        drop(open(&old));
        assert_eq!(layout(&old), expected);
    }
}

#[tokio::test]
async fn a_store_of_version_2_is_taken_over_as_it_is_and_works_on() {
    let dir = store_of(VERSION_2, "");
    let before = bodies(&dir);
    let store = open(&dir);
    assert_eq!(bodies(&dir), before);
    let all = store.list(&Scope::tenant("acme"), &ListFilter::default(), None, 10).await;
    let all = all.expect("lists").runs;
    assert_eq!(ids(&all), ["cancelling", "done", "going", "waiting", "child"]);
    for run in &all {
        let events = store.read(run.id(), 0, 100).await.expect("reads");
        let mut folded = machine::fold(&events).expect("a legal journal");
        // Records of before do not say since when a run has been running; their hosts are gone.
        assert_eq!(run.state.uncounted, None);
        folded.state.uncounted = None;
        assert_eq!(&folded, run);
    }
    assert_eq!(get(&store, "urgent").await.status(), Status::Running);
    let version: i64 =
        stranger(&dir).query_row("PRAGMA user_version", [], |row| row.get(0)).expect("answers");
    assert_eq!(version, SCHEMA_VERSION);
    let again = store.create(keyed(new_run(spec("again")), "k-1", "f")).await.expect("answers");
    assert!(matches!(again, Created::Repeated(run) if run.id().as_str() == "done"));
    // Names and attached runs, beneath a run of before.
    let going = get(&store, "going").await;
    let below = |id| taskrun::run::RunSpec {
        name: Some("kid".to_owned()),
        attached: true,
        ..child(id, &going.spec)
    };
    create(&store, below("kid")).await;
    let taken = store.create(new_run(below("other"))).await.expect("answers");
    assert!(matches!(taken, Created::NameTaken(id) if id.as_str() == "kid"));
    append(&store, next(&going, 90, 9_000, end())).await;
    assert_eq!(get(&store, "kid").await.status(), Status::Canceled);
    assert_eq!(get(&store, "child").await.status(), Status::Queued);
}

#[tokio::test]
async fn a_store_that_a_host_of_version_2_uses_waits_for_its_end() {
    let host = "INSERT INTO hosts VALUES ('old-host', 4000000, 'policy-1', 900, 4, 30000, 1)";
    let dir = store_of(VERSION_2, host);
    let lock = dir.path().join("hosts").join("old-host.lock");
    std::fs::create_dir(dir.path().join("hosts")).expect("makes");
    let file = std::fs::File::create(lock).expect("makes");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("locks");
    let refused = SqliteStore::open(dir.path(), options()).err();
    assert!(matches!(refused, Some(StoreError::Locked { .. })), "{refused:?}");
    drop(file);
    get(&open(&dir), "done").await;
}

#[tokio::test]
async fn a_run_of_version_2_ends_with_an_artifact() {
    let dir = store_of(VERSION_2, "");
    let store = open(&dir);
    let going = get(&store, "going").await;
    let end = end_with(&going, 300, 9_000, b"more than fits");
    let hash = end.artifacts[0].reference().hash.clone();
    append(&store, end).await;
    drop(store);
    let bytes = open(&dir).artifact(going.id(), &hash).await.expect("reads");
    assert_eq!(bytes.as_deref(), Some(&b"more than fits"[..]));
}

#[tokio::test]
async fn a_flipped_version_is_no_older_one() {
    for version in [1, 2] {
        let dir = tempfile::tempdir().expect("a folder");
        drop(open(&dir));
        let change = format!("PRAGMA user_version = {version}");
        stranger(&dir).execute_batch(&change).expect("writes");
        let refused = SqliteStore::open(dir.path(), options()).err();
        assert!(matches!(refused, Some(StoreError::Corrupt { .. })), "{version}: {refused:?}");
    }
}
