//! Files that are cut, flipped, foreign, newer, or not to be written.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use common::*;
use rusqlite::Connection;
use taskrun_journal::format::JournalFormat;
use taskrun_journal::ids::RunId;
use taskrun_journal::list::{ListFilter, Scope};
use taskrun_journal::machine;
use taskrun_journal::store::{Store, StoreError};
use taskrun_store::{SCHEMA_VERSION, SqliteOptions, SqliteStore};
use tempfile::TempDir;

/// The bytes of a store's files and what was acknowledged when its log had which length.
struct Snapshot {
    file: Vec<u8>,
    log: Vec<u8>,
    acknowledged: Vec<(usize, RunId, u64)>,
}

fn file(dir: &TempDir) -> std::path::PathBuf {
    dir.path().join("taskrun.db")
}

async fn kept() -> Snapshot {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    let log = dir.path().join("taskrun.db-wal");
    let mut acknowledged = Vec::new();
    let mut ack = |id: &RunId, head| {
        let length = std::fs::metadata(&log).expect("the log").len();
        acknowledged.push((usize::try_from(length).expect("it fits"), id.clone(), head));
    };
    for n in 0..6 {
        let run = create(&store, spec(&format!("r-{n}"))).await;
        ack(run.id(), 1);
        let run = store.claim(wish("h", 1, 2_000)).await.expect("claims").remove(0);
        ack(run.id(), 2);
        let long = note(&"x".repeat(3_000 * n));
        let append = next(&run, 50, 3_000, vec![note("a"), long, note("b")]);
        store.append(append.clone()).await.expect("appends");
        ack(run.id(), 5);
        store.append(next(&append.run, 60, 3_000, end())).await.expect("appends");
        ack(run.id(), 7);
    }
    let read = |path: &Path| std::fs::read(path).expect("it is there");
    Snapshot { file: read(&file(&dir)), log: read(&log), acknowledged }
}

/// Opens what is left and checks that it is a beginning of what was written: whole journals that
/// tell their records, and nothing later where something earlier is missing.
async fn check_beginning(kept: &Snapshot, log: &[u8], whole_to: usize) -> usize {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(file(&dir), &kept.file).expect("writes");
    std::fs::write(dir.path().join("taskrun.db-wal"), log).expect("writes");
    let store = open(&dir);
    let all = store.list(&Scope::tenant("acme"), &ListFilter::default(), None, 100).await;
    for run in all.expect("lists").runs {
        let events = store.read(run.id(), 0, 100).await.expect("reads");
        assert_eq!(machine::fold(&events), Ok(run));
    }
    let mut present = 0;
    for (n, (length, id, head)) in kept.acknowledged.iter().enumerate() {
        let found = store.get(id).await.expect("gets").map_or(0, |run| run.state.head);
        if found >= *head {
            assert_eq!(present, n, "something before {id} at {head} is missing");
            present = n + 1;
        } else {
            assert!(*length > whole_to, "{id} at {head} was acknowledged and is lost");
        }
    }
    present
}

#[tokio::test]
async fn a_log_cut_at_any_length_leaves_a_beginning_of_what_was_acknowledged() {
    let kept = kept().await;
    let mut seen = std::collections::BTreeSet::new();
    // Steps that meet every place within frames of 4,120 bytes sooner or later.
    for cut in (0..kept.log.len()).step_by(1_709).chain([kept.log.len()]) {
        seen.insert(check_beginning(&kept, &kept.log[..cut], cut).await);
    }
    assert_eq!(seen.len(), kept.acknowledged.len() + 1, "every beginning is met");
}

#[tokio::test]
async fn a_flipped_byte_in_the_log_ends_it_there() {
    let kept = kept().await;
    for place in (0..kept.log.len()).step_by(9_973) {
        let mut log = kept.log.clone();
        log[place] ^= 0x40;
        let frame = place.saturating_sub(32) / 4_120;
        let whole_to = if place < 32 { 0 } else { 32 + frame * 4_120 };
        check_beginning(&kept, &log, whole_to).await;
    }
}

#[tokio::test]
async fn a_store_of_another_version_is_refused_with_its_number() {
    for version in [1, SCHEMA_VERSION - 1, SCHEMA_VERSION + 1] {
        let dir = tempfile::tempdir().expect("a folder");
        drop(open(&dir));
        stranger(&dir).pragma_update(None, "user_version", version).expect("writes");
        let before = std::fs::read(file(&dir)).expect("reads");
        let refused = SqliteStore::open(dir.path(), options()).err().expect("refused");
        assert_eq!(refused.code(), "store-version");
        let said = refused.to_string();
        let numbers = [format!("version {version} in"), format!("knows version {SCHEMA_VERSION}")];
        assert!(numbers.iter().all(|number| said.contains(number)), "{said}");
        assert_eq!(std::fs::read(file(&dir)).expect("reads"), before, "it is not changed");
    }
}

/// A format that no program writes yet.
const LATER: JournalFormat = JournalFormat(JournalFormat::CURRENT.0 + 1);

fn open_as_later(dir: &TempDir) -> SqliteStore {
    let options = SqliteOptions { format: LATER, ..options() };
    SqliteStore::open(dir.path(), options).expect("opens")
}

fn is_of_later_format<T>(answer: Result<T, StoreError>) -> bool {
    let wanted = (LATER, JournalFormat::CURRENT);
    matches!(answer, Err(StoreError::Format { found, known, .. }) if (found, known) == wanted)
}

#[tokio::test]
async fn a_store_with_journals_of_a_later_format_is_refused_and_not_touched() {
    let dir = tempfile::tempdir().expect("a folder");
    create(&open(&dir), spec("r")).await;
    {
        let later = open_as_later(&dir);
        assert!(later.get(&run_id("r")).await.expect("reads").is_some(), "it reads earlier ones");
    }
    // Who only looks leaves the store to the program of before.
    drop(open(&dir));
    create(&open_as_later(&dir), spec("s")).await;
    let before = std::fs::read(file(&dir)).expect("reads");
    let refused = SqliteStore::open(dir.path(), options()).err().expect("refused");
    let said = refused.to_string();
    assert!(said.contains(&format!("format {LATER}, written by a later taskrun")), "{said}");
    assert_eq!(refused.code(), "journal-format");
    assert!(is_of_later_format(Err::<(), _>(refused)));
    assert!(is_of_later_format(SqliteStore::repair(dir.path(), JournalFormat::CURRENT)));
    assert_eq!(std::fs::read(file(&dir)).expect("reads"), before, "it is not changed");
    SqliteStore::repair(dir.path(), LATER).expect("the later one makes it anew");
    assert!(is_of_later_format(SqliteStore::open(dir.path(), options())));
    assert!(open_as_later(&dir).get(&run_id("s")).await.expect("reads").is_some());
}

#[tokio::test]
async fn a_program_that_has_the_store_open_reads_and_writes_nothing_after_a_later_one_wrote() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    let run = create(&store, spec("r")).await;
    let later = open_as_later(&dir);
    assert!(later.get(run.id()).await.expect("reads").is_some());
    create(&store, spec("s")).await;
    create(&later, spec("t")).await;
    assert!(is_of_later_format(store.get(run.id()).await));
    assert!(is_of_later_format(store.create(new_run(spec("u"))).await));
    assert!(is_of_later_format(store.claim(wish("h", 1, 2_000)).await));
    let runs = later.claim(wish("h", 9, 2_000)).await.expect("claims");
    let ids: Vec<&str> = runs.iter().map(|run| run.id().as_str()).collect();
    assert_eq!(ids, ["r", "s", "t"]);
}

fn assert_corrupt_and_untouched(content: &[u8]) {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(file(&dir), content).expect("writes");
    let refused = SqliteStore::open(dir.path(), options()).err();
    assert!(matches!(refused, Some(StoreError::Corrupt { .. })), "{refused:?}");
    assert_eq!(std::fs::read(file(&dir)).expect("reads"), content);
}

#[test]
fn files_that_are_no_stores_are_refused_and_not_touched() {
    assert_corrupt_and_untouched(b"not a database");
    assert_corrupt_and_untouched(&[0; 8_192]);
    assert_corrupt_and_untouched(b"SQLite format 3\0");
    for setup in [
        "CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)",
        "PRAGMA application_id = 7; CREATE TABLE theirs (x)",
        "PRAGMA journal_mode = WAL; CREATE TABLE theirs (x)",
    ] {
        let dir = tempfile::tempdir().expect("a folder");
        let db = Connection::open(file(&dir)).expect("opens");
        db.execute_batch(setup).expect("sets up");
        drop(db);
        assert_corrupt_and_untouched(&std::fs::read(file(&dir)).expect("reads"));
    }
}

#[test]
fn a_change_that_another_program_did_not_end_is_not_undone() {
    let dir = tempfile::tempdir().expect("a folder");
    let theirs = tempfile::tempdir().expect("a folder");
    let db = Connection::open(file(&theirs)).expect("opens");
    db.execute_batch(
        "PRAGMA cache_size = 1; CREATE TABLE theirs (x); BEGIN;
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
         INSERT INTO theirs SELECT printf('%0100d', i) FROM n",
    )
    .expect("it has written some of it");
    let names = ["taskrun.db", "taskrun.db-journal"];
    let contents = || names.map(|name| std::fs::read(dir.path().join(name)).expect("reads"));
    // As if it had died here.
    names.iter().for_each(|name| {
        std::fs::copy(theirs.path().join(name), dir.path().join(name)).expect("copied");
    });
    let before = contents();
    let refused = SqliteStore::open(dir.path(), options()).err();
    assert!(matches!(refused, Some(StoreError::Corrupt { .. })), "{refused:?}");
    assert_eq!(contents(), before);
}

#[tokio::test]
async fn a_store_with_anything_foreign_in_its_definition_is_refused() {
    for (change, says) in [
        (
            "CREATE TRIGGER theirs AFTER INSERT ON events
             BEGIN DELETE FROM runs; END",
            "the trigger \"theirs\" is foreign",
        ),
        ("CREATE VIEW theirs AS SELECT * FROM runs", "the view \"theirs\" is foreign"),
        ("CREATE TABLE theirs (x)", "the table \"theirs\" is foreign"),
        ("CREATE INDEX theirs ON runs (owner)", "the index \"theirs\" is foreign"),
        ("DROP INDEX runs_queued", "the index \"runs_queued\" is missing"),
        ("ALTER TABLE runs ADD COLUMN theirs INTEGER DEFAULT 1", "the table \"runs\" is another"),
        ("ALTER TABLE runs RENAME TO kept; CREATE VIEW runs AS SELECT * FROM kept", "is foreign"),
    ] {
        let dir = tempfile::tempdir().expect("a folder");
        drop(open(&dir));
        stranger(&dir).execute_batch(change).expect("changes");
        let before = std::fs::read(file(&dir)).expect("reads");
        match SqliteStore::open(dir.path(), options()).err() {
            Some(StoreError::Corrupt { detail, .. }) => {
                assert!(detail.contains(says), "{change}: {detail}");
            }
            other => panic!("{change}: {other:?}"),
        }
        assert_eq!(std::fs::read(file(&dir)).expect("reads"), before, "it is not changed");
    }
}

#[tokio::test]
async fn a_maker_that_died_before_it_wrote_leaves_a_file_to_begin_with() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(file(&dir), b"").expect("writes");
    create(&open(&dir), spec("r")).await;
}

#[tokio::test]
async fn a_log_without_its_store_is_no_store() {
    for database in [None, Some(b"")] {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("taskrun.db-wal"), [7; 5_000]).expect("writes");
        database.iter().for_each(|bytes| std::fs::write(file(&dir), bytes).expect("writes"));
        create(&open(&dir), spec("r")).await;
        assert!(open(&dir).get(&run_id("r")).await.expect("reads").is_some());
    }
}

#[tokio::test]
async fn a_truncated_file_is_corrupt() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    for n in 0..50 {
        create(&store, spec(&format!("r-{n}"))).await;
    }
    drop(store);
    let whole = std::fs::read(file(&dir)).expect("reads");
    assert!(!dir.path().join("taskrun.db-wal").exists(), "all is in the file");
    for length in [50, 100, 4_096, 8_192, whole.len() / 2, whole.len() - 4_096, whole.len() - 1] {
        assert_corrupt_and_untouched(&whole[..length]);
    }
}

#[tokio::test]
async fn a_flipped_header_never_passes_for_another_store() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    let run = create(&store, spec("r")).await;
    drop(store);
    let whole = std::fs::read(file(&dir)).expect("reads");
    let mut refused = 0;
    for place in 0..100 {
        let mut flipped = whole.clone();
        flipped[place] ^= 0x81;
        // Threads that read may have the one before open for a while.
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(file(&dir), &flipped).expect("writes");
        match SqliteStore::open(dir.path(), options()) {
            // Some fields do not matter.
            Ok(store) => match store.get(run.id()).await {
                Ok(found) => assert_eq!(found.as_ref(), Some(&run), "byte {place}"),
                Err(error) => assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}"),
            },
            Err(error) => {
                refused += 1;
                // Byte 18 says to programs of which age the file is read-only.
                let fits = matches!(error.code(), "store-corrupt" | "store-version");
                assert!(fits || place == 18, "byte {place}: {error:?}");
            }
        }
    }
    assert!(refused >= 25, "magic, page size, identity and version matter: {refused}");
}

const READ_ONLY: &str = "TASKRUN_TEST_READ_ONLY";

/// Root may write everything, so the store is opened by a process of somebody else.
#[test]
fn a_store_that_may_not_be_written_is_read_only() {
    #[expect(clippy::disallowed_methods, reason = "how the parent tells its child what to do")]
    let told = std::env::var_os(READ_ONLY);
    if let Some(dir) = told {
        let refused = SqliteStore::open(Path::new(&dir), options()).err();
        let read_only = matches!(refused, Some(StoreError::ReadOnly { .. }));
        println!("{}", if read_only { "it is read-only" } else { "it is not" });
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    drop(open(&dir));
    let set = |path: &str, mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(dir.path().join(path), permissions).expect("sets");
    };
    // The folder, the file alone, and a folder with a log, whose index cannot be made.
    for (lock, file, folder, log) in [
        (0o444, 0o444, 0o555, None),
        (0o666, 0o444, 0o777, None),
        (0o444, 0o444, 0o555, Some([7; 5_000])),
    ] {
        if let Some(log) = log {
            std::fs::write(dir.path().join("taskrun.db-wal"), log).expect("writes");
        }
        set("taskrun.open.lock", lock);
        set("taskrun.db", file);
        set("", folder);
        let mut child = Command::new(std::env::current_exe().expect("this test"));
        child
            .args(["--exact", "a_store_that_may_not_be_written_is_read_only", "--nocapture"])
            .env(READ_ONLY, dir.path());
        if rustix::process::geteuid().is_root() {
            child.uid(65_534).gid(65_534);
        }
        let output = child.output().expect("the child runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("it is read-only"), "{said}");
    }
}
