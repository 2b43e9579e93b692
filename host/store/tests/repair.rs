//! Stores that are made anew from damaged ones.

mod common;
#[path = "repair/consents.rs"]
mod consents;
#[path = "repair/cut.rs"]
mod cut;
mod damaged;
mod filled;
#[path = "repair/harm.rs"]
mod harm;
#[path = "repair/large.rs"]
mod large;
#[path = "repair/leaves.rs"]
mod leaves;
#[path = "repair/place.rs"]
mod place;
#[path = "repair/rows.rs"]
mod rows;
#[path = "repair/versions.rs"]
mod versions;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use common::*;
use damaged::*;
use filled::filled;
use rusqlite::types::Value;
use taskrun_journal::artifact::digest;
use taskrun_journal::checkpoint::{Checkpoint, Settled};
use taskrun_journal::consent::{ConsentSubject, Consents, LastingConsent};
use taskrun_journal::event::Event;
use taskrun_journal::fact::{Fact, FactNamespace, OwnerSession, query_words};
use taskrun_journal::format::JournalFormat;
use taskrun_journal::hold::WaitMode;
use taskrun_journal::ids::RunId;
use taskrun_journal::list::{ListFilter, Scope, TreeQuery};
use taskrun_journal::memory::{FactChange, Memory};
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{
    Admission, AdmissionBound, CreateOutcome, NewRun, Policies, PolicyText, Sessions, Store,
    StoreError,
};
use taskrun_journal::time::Timestamp;
use taskrun_store::{Repair, SCHEMA_VERSION, SqliteStore};
use tempfile::TempDir;

const RUNS: usize = 40;

fn repair(dir: &TempDir) -> Repair {
    let repair = SqliteStore::repair(dir.path(), JournalFormat::CURRENT).expect("it is made anew");
    assert!(repair.kept.exists(), "the damaged file is kept");
    repair
}

/// All runs of a store, with their journals.
async fn runs(store: &SqliteStore) -> BTreeMap<String, (Run, String)> {
    let page = store.list(&Scope::tenant("acme"), &ListFilter::default(), None, 200).await;
    let mut all = BTreeMap::new();
    for run in page.expect("lists").runs {
        let journal = store.read(run.id(), 0, 10_000).await.expect("reads");
        all.insert(run.id().to_string(), (run, format!("{journal:?}")));
    }
    all
}

async fn is_in_order(store: &SqliteStore) {
    assert_eq!(store.check().await.expect("looks"), Vec::<String>::new());
}

/// Everything in a file by which runs are found and taken, but for places of journals: those of
/// runs to whose journals nothing was added are not told in the row that was written first.
fn dump(dir: &Path) -> BTreeMap<&'static str, Vec<Vec<Value>>> {
    let db = rusqlite::Connection::open(file(dir)).expect("opens");
    let tables = [
        (
            "runs",
            "SELECT no, id, tenant, owner, session, app, agent, parent, root_session, name,
            tenant_key, owner_key, session_key, app_key, agent_key, parent_key, root_key, name_key,
            pins, priority, created_at, (SELECT root FROM trees WHERE no = abs(r.tree)), r.tree < 0,
            serial,
            named, attached, task, status, stop, updated_at, holder, queue, due, epoch, head, sum, state
            FROM runs r ORDER BY no",
        ),
        ("events", "SELECT * FROM events ORDER BY pos"),
        ("labels", "SELECT * FROM labels ORDER BY status, key, updated_at, run, name"),
        ("idempotency", "SELECT * FROM idempotency ORDER BY tenant, key"),
        ("queues", "SELECT * FROM queues WHERE runs > 0 ORDER BY tenant"),
        ("trees", "SELECT root, runs, held, full FROM trees ORDER BY root"),
        ("waits", "SELECT * FROM waits ORDER BY run, waiter"),
        ("sessions", "SELECT * FROM sessions ORDER BY tenant, id, owner, app"),
        ("dispatches", "SELECT * FROM dispatches ORDER BY number"),
        ("policies", "SELECT * FROM policies ORDER BY path"),
        ("consents", "SELECT * FROM consents ORDER BY no"),
        ("blobs", "SELECT * FROM blobs ORDER BY no"),
        ("artifacts", "SELECT * FROM artifacts ORDER BY run, blob"),
        (
            "facts",
            "SELECT tenant, owner, session, key, text, labels, at, sum FROM facts ORDER BY key",
        ),
        ("numbers", "SELECT * FROM sqlite_sequence ORDER BY name"),
    ];
    let rows = |sql: &str| {
        let mut sql = db.prepare(sql).expect("it can be asked");
        let columns = sql.column_count();
        let rows = sql.query_map([], |row| (0..columns).map(|column| row.get(column)).collect());
        rows.expect("selects").collect::<Result<_, _>>().expect("rows")
    };
    tables.into_iter().map(|(name, sql)| (name, rows(sql))).collect()
}

/// A store in which runs wait for others, for their turn, for a time and for a slot of their tree,
/// and with all that no journal tells.
async fn entangled(dir: &TempDir) {
    let store = open(dir);
    let root = create(&store, spec("root")).await;
    for id in ["child-1", "child-2", "child-3"] {
        create(&store, child(id, &root.spec)).await;
    }
    for id in ["turn-1", "turn-2", "turn-3"] {
        create(&store, RunSpec { serial: true, ..spec(id) }).await;
    }
    for id in ["waiter", "late", "keeper"] {
        create(&store, RunSpec { priority: 5, ..spec(id) }).await;
    }
    create(&store, entry("entry")).await;
    let new = keyed(new_run(spec("keyed")), "key", "print");
    assert!(matches!(store.create(new).await, Ok(CreateOutcome::New)));
    let held = store.claim(wish("h", 5, 2_000)).await.expect("claims");
    let of = |name: &str| held.iter().find(|run| run.id().as_str() == name).expect("held").clone();
    let wait = for_runs(&["child-2", "turn-3"], WaitMode::All);
    append(&store, next(&of("waiter"), 50, 2_100, vec![wait])).await;
    let late = for_runs_until(&["child-3"], WaitMode::Any, Some(9_000));
    append(&store, next(&of("late"), 60, 2_200, vec![late])).await;
    append(&store, end_with(&of("keeper"), 70, 2_300, b"an artifact")).await;
    let session = OwnerSession { owner_user_id: "ann".to_owned(), id: "s-1".to_owned() };
    for (key, place) in [
        ("own", FactNamespace { tenant: "acme".to_owned(), session: Some(session) }),
        ("shared", FactNamespace { tenant: "acme".to_owned(), session: None }),
    ] {
        let fact = Fact {
            key: key.to_owned(),
            text: "the cellar is flooded".to_owned(),
            labels: BTreeMap::from([("team".to_owned(), "red".to_owned())]),
            written_at: Timestamp(7),
        };
        store.change_fact(&place, FactChange::Put(fact), None).await.expect("puts");
    }
    store.end_session(&session_key(), Timestamp(5)).await.expect("ends");
    let policy = PolicyText {
        path: "/p/taskrun.toml".to_owned(),
        digest: "d".to_owned(),
        text: "[agent.a]".to_owned(),
        read_at: Timestamp(8),
    };
    store.apply_policy(policy).await.expect("applies");
    let consent = LastingConsent {
        subject: ConsentSubject::of(&root.spec, "/p/taskrun.toml", "mail/send"),
        session: None,
        approved: true,
        digest: "d".to_owned(),
        by: "ann".to_owned(),
        at: Timestamp(8),
        until: None,
    };
    store.keep_consent(consent.clone()).await.expect("keeps");
    store.keep_consent(consent).await.expect("keeps");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_damage_is_made_as_it_was() {
    let filled = store_of(&filled().await);
    let dir = tempfile::tempdir().expect("a folder");
    entangled(&dir).await;
    for dir in [filled, dir] {
        let before = dump(dir.path());
        let Repair { runs, left_out, lost, .. } = repair(&dir);
        assert_eq!((left_out, lost), (Vec::new(), Vec::new()));
        assert_eq!(runs, before["runs"].len() as u64);
        for (table, rows) in dump(dir.path()) {
            assert_eq!(rows, before[table], "{table}");
        }
        is_in_order(&open(&dir)).await;
    }
}

/// A store with a run that has left two of those behind that ended beneath it.
async fn left_behind(dir: &TempDir) {
    let store = open(dir);
    create(&store, spec("root")).await;
    let root = store.claim(wish("h", 1, 1_900)).await.expect("claims").remove(0);
    for id in ["a", "b", "c", "d"] {
        create(&store, child(id, &root.spec)).await;
    }
    for run in store.claim(wish("h", 9, 2_000)).await.expect("claims") {
        if run.id().as_str() != "d" {
            append(&store, next(&run, 50, 2_100, end())).await;
        }
    }
    let settled = |runs: &[&str]| {
        let runs = runs.iter().map(|run| run_id(run)).collect();
        Settled { runs, ..Settled::default() }
    };
    let round = |round, settled| Event::RoundEnded {
        round,
        prompt: "go on".to_owned(),
        worked: true,
        wants_result: false,
        checkpoint: Box::new(Checkpoint { settled, ..Checkpoint::default() }),
    };
    // One that is open counts, whoever says what.
    let root = append(&store, next(&root, 60, 2_200, vec![round(1, settled(&["a", "d"]))])).await;
    append(&store, next(&root, 70, 2_300, vec![round(2, settled(&["b"]))])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_that_were_left_behind_count_no_longer_in_a_store_made_anew() {
    let dir = tempfile::tempdir().expect("a folder");
    left_behind(&dir).await;
    let before = dump(dir.path());
    let Repair { runs, left_out, lost, .. } = repair(&dir);
    assert_eq!((runs, left_out, lost), (5, Vec::new(), Vec::new()));
    let after = dump(dir.path());
    for table in ["runs", "trees", "events"] {
        assert_eq!(after[table], before[table], "{table}");
    }
    let store = open(&dir);
    is_in_order(&store).await;
    let in_tree = async |counted_only| {
        let (tenant, root_run_id) = ("acme".to_owned(), run_id("root"));
        let query = TreeQuery { tenant, root_run_id, counted_only };
        let page = store.tree(&query, None, 9).await.expect("reads");
        page.runs.iter().map(|run| run.id().to_string()).collect::<BTreeSet<_>>()
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(in_tree(true).await, names(&["c", "d", "root"]));
    assert_eq!(in_tree(false).await, names(&["a", "b", "c", "d", "root"]));
    let root = store.get(&run_id("root")).await.expect("reads").expect("it is there");
    let bounded = |id: &str, tree_max| {
        let admission = Admission { tree_max, ..Admission::UNBOUNDED };
        NewRun { admission, ..new_run(child(id, &root.spec)) }
    };
    let full = store.create(bounded("e", 3)).await.expect("answers");
    assert!(matches!(full, CreateOutcome::Full(AdmissionBound::Tree)), "{full:?}");
    assert!(matches!(store.create(bounded("e", 4)).await, Ok(CreateOutcome::New)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_journal_tells_is_kept() {
    let dir = tempfile::tempdir().expect("a folder");
    entangled(&dir).await;
    repair(&dir);
    let store = open(&dir);
    let new = keyed(new_run(spec("again")), "key", "print");
    let CreateOutcome::Repeated(run) = store.create(new).await.expect("creates") else {
        panic!("the key is known")
    };
    assert_eq!(run.id().as_str(), "keyed");
    let bytes = store.artifact(&run_id("keeper"), &digest(b"an artifact")).await.expect("answers");
    assert_eq!(bytes.as_deref(), Some(&b"an artifact"[..]));
    let place = FactNamespace { tenant: "acme".to_owned(), session: None };
    let found = store.search_facts(&place, &query_words("cellar"), 10).await.expect("searches");
    assert_eq!(found.iter().map(|fact| &*fact.key).collect::<Vec<_>>(), ["shared"]);
    let session = store.session(&session_key()).await.expect("reads").expect("it is known");
    assert_eq!(session.ended_at, Some(Timestamp(5)));
    let policy =
        store.policy_in_force("/p/taskrun.toml").await.expect("reads").expect("it is kept");
    assert_eq!((policy.number, &*policy.policy.text), (1, "[agent.a]"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_is_over_when_the_last_run_of_a_store_made_anew_ends() {
    let dir = tempfile::tempdir().expect("a folder");
    entangled(&dir).await;
    repair(&dir);
    let store = open(&dir);
    let mut taken = BTreeSet::new();
    for round in 0..8_u64 {
        for run in store.claim(wish("h-2", 10, 3_000 + round)).await.expect("claims") {
            taken.insert(run.id().to_string());
            append(&store, next(&run, 100 + round * 10, 3_500 + round, end())).await;
        }
    }
    for id in ["child-2", "turn-3", "waiter", "late"] {
        assert!(taken.contains(id), "{id} is not among {taken:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_a_process_has_open_is_left_as_it_is() {
    let dir = tempfile::tempdir().expect("a folder");
    entangled(&dir).await;
    let before = dump(dir.path());
    let store = open(&dir);
    let refused =
        tokio::task::block_in_place(|| SqliteStore::repair(dir.path(), JournalFormat::CURRENT));
    assert!(matches!(refused, Err(StoreError::Locked { .. })), "{refused:?}");
    is_in_order(&store).await;
    drop(store);
    assert!(dump(dir.path()) == before);
    assert!(!dir.path().join("taskrun.db.damaged-1").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_repair_that_died_left_is_no_hindrance_and_numbers_are_not_given_twice() {
    let dir = tempfile::tempdir().expect("a folder");
    entangled(&dir).await;
    let numbers = dump(dir.path()).remove("numbers");
    std::fs::write(dir.path().join("taskrun.db.repair"), "half of it").expect("writes");
    std::fs::write(dir.path().join("taskrun.db.repair-journal"), "and this").expect("writes");
    let removal = taskrun_journal::store::Removal {
        scope: None,
        before: Timestamp(u64::MAX),
        limit: 9,
        dry_run: false,
    };
    let store = open(&dir);
    assert_ne!(store.remove(removal).await.expect("removes").runs, 0);
    drop(store);
    repair(&dir);
    repair(&dir);
    assert_eq!(dump(dir.path()).remove("numbers"), numbers);
    for name in ["taskrun.db.damaged-1", "taskrun.db.damaged-2"] {
        assert!(dir.path().join(name).exists(), "{name}");
    }
    let left: BTreeSet<_> = std::fs::read_dir(dir.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a text"))
        .collect();
    assert!(!left.iter().any(|name| name.contains("repair")), "{left:?}");
}

#[tokio::test]
async fn a_folder_without_a_store_has_nothing_to_make_anew() {
    let dir = tempfile::tempdir().expect("a folder");
    let refused = SqliteStore::repair(dir.path(), JournalFormat::CURRENT);
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    assert!(!file(dir.path()).exists());
    let store = open(&dir);
    assert!(store.get(&RunId::new("r").expect("an id")).await.expect("gets").is_none());
}

/// A store of these bytes, as a program with tables of another version has it.
fn of_version(bytes: &[u8], version: i64, tables: &str) -> TempDir {
    let dir = store_of(bytes);
    let db = stranger(&dir);
    let number: i64 = db.query_row("PRAGMA user_version", [], |row| row.get(0)).expect("reads");
    db.pragma_update(None, "user_version", (number & !0xffff) | version).expect("writes");
    db.execute_batch(tables).expect("writes");
    drop(db);
    let refused = SqliteStore::open(dir.path(), options()).err().expect("refused");
    assert_eq!(refused.code(), "store-version");
    dir
}

#[tokio::test]
async fn a_store_of_another_version_is_made_anew_from_its_journals() {
    let whole = filled().await;
    let truth = runs(&open(&store_of(&whole))).await;
    let others = [
        "",
        "ALTER TABLE hosts ADD COLUMN further TEXT; ALTER TABLE runs ADD COLUMN further INTEGER;
         CREATE TABLE further (no INTEGER) STRICT; INSERT INTO further VALUES (1)",
        "DROP TABLE idempotency; ALTER TABLE sessions RENAME COLUMN app TO application;
         ALTER TABLE runs RENAME COLUMN state TO record; DROP INDEX runs_by_task; ALTER TABLE runs DROP COLUMN task;
         ALTER TABLE facts RENAME COLUMN text TO words; DROP TABLE blobs",
    ];
    let said = |lines: &[String], part: &str| lines.iter().any(|line| line.contains(part));
    for version in [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1] {
        for (n, tables) in others.into_iter().enumerate() {
            let dir = of_version(&whole, version, tables);
            let Repair { runs: made, left_out, lost, other_version, kept } = repair(&dir);
            assert_eq!((made, left_out), (RUNS as u64, Vec::new()), "{tables}");
            assert_eq!(other_version, Some(version));
            assert_eq!(lost.is_empty(), n == 0, "{tables}: {lost:?}");
            assert_eq!(said(&lost, "further of another version"), n == 1, "{lost:?}");
            for part in ["keys of repeated requests", "sessions", "facts", "artifacts"] {
                assert_eq!(said(&lost, part), n == 2, "{part}: {lost:?}");
            }
            let store = open(&dir);
            is_in_order(&store).await;
            assert_eq!(runs(&store).await, truth, "{tables}");
            // What is kept is as the program before had it.
            let before = store_of(&std::fs::read(kept).expect("it is kept"));
            let refused = SqliteStore::open(before.path(), options()).err().expect("refused");
            assert_eq!(refused.code(), "store-version");
        }
    }
}

#[tokio::test]
async fn a_store_of_another_version_whose_journals_stand_otherwise_is_left_as_it_is() {
    let whole = filled().await;
    for tables in
        ["ALTER TABLE events RENAME COLUMN body TO content", "UPDATE events SET sum = ~sum"]
    {
        let dir = of_version(&whole, SCHEMA_VERSION + 1, tables);
        let refused = SqliteStore::repair(dir.path(), JournalFormat::CURRENT).expect_err(tables);
        assert_eq!(refused.code(), "store-version", "{tables}: {refused}");
        let files = std::fs::read_dir(dir.path()).expect("reads");
        let names = files.map(|file| file.expect("reads").file_name().into_string().expect("text"));
        let made: Vec<String> =
            names.filter(|name| name.contains("repair") || name.contains("damaged")).collect();
        assert_eq!(made, [] as [String; 0], "{tables}");
        let refused = SqliteStore::open(dir.path(), options()).err().expect("refused");
        assert_eq!(refused.code(), "store-version");
    }
}

#[tokio::test]
async fn runs_of_a_clock_past_the_year_9999_are_listed_and_made_anew() {
    let dir = tempfile::tempdir().expect("a folder");
    // A clock that counts microseconds, and the furthest there is.
    for (id, now) in [("micro", 1_700_000_000_000_000), ("last", u64::MAX)] {
        let store = open(&dir);
        create(&store, spec(id)).await;
        let run = store.claim(wish("h", 1, 2_000)).await.expect("claims").remove(0);
        let said = Event::AssistantChunk { text: "here".to_owned() };
        append(&store, next(&run, 50, now, vec![said])).await;
    }
    let last_events = |runs: &BTreeMap<String, (Run, String)>| {
        let times = runs.values().map(|(run, _)| run.state.progress.last_event_at);
        times.collect::<Vec<_>>()
    };
    let before = runs(&open(&dir)).await;
    let times = [Some(Timestamp(u64::MAX)), Some(Timestamp(1_700_000_000_000_000))];
    assert_eq!(last_events(&before), times);
    let Repair { runs: made, left_out, .. } = repair(&dir);
    assert_eq!((made, left_out), (2, Vec::new()));
    let store = open(&dir);
    assert_eq!(last_events(&runs(&store).await), times);
    is_in_order(&store).await;
}
