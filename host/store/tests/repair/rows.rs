//! Rows that no journal tells of, in a store that is made anew.

use rusqlite::types::Value;
use taskrun_journal::machine;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::StopReason;
use taskrun_journal::store::{CreateOutcome, NewRun, Policies, PolicyText, Store, TaskKey};
use taskrun_journal::time::Timestamp;
use taskrun_store::Repair;
use tempfile::TempDir;

use super::common::*;
use super::damaged::*;
use super::{dump, entangled, is_in_order, repair};

const PATH: &str = "/p/taskrun.toml";

/// One row in each table whose rows have no checksum of their own and that a store of the tests has
/// none in.
const ROWS: &str = "
    INSERT INTO hosts VALUES ('h-9', 1, 'p', '{}', '[]', 1, 1, 1, 1, 1);
    INSERT INTO outbox (run, tree, place, state, attempts) VALUES (1, 5, 1, 3, 3);
    INSERT INTO dispatches (run, event, subscriber, state, due, attempts, error)
        VALUES (1, 0, 'webhook/ci', 3, 1, 4, 'gone');
    INSERT INTO fact_changes VALUES (1, 'c-1')";

/// Many rows, so that they stand on several pages.
const MANY: &str = "
    INSERT INTO idempotency
        SELECT 'acme', printf('key-%03d', value), printf('%032d', value), 1 FROM generated;
    INSERT INTO sessions
        SELECT 'acme', printf('s-%03d', value), printf('%032d', value), '', value, NULL FROM generated;
    INSERT INTO dispatches (run, event, subscriber, state, due, attempts)
        SELECT 1, 0, printf('webhook/%032d', value), 3, value, 4 FROM generated";
const MANY_ROWS: i64 = 400;

/// The bytes of a store in which more was written.
async fn with(sql: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a folder");
    entangled(&dir).await;
    let db = stranger(&dir);
    db.execute_batch(&format!(
        "CREATE TEMP TABLE generated (value INTEGER NOT NULL);
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY_ROWS})
         INSERT INTO temp.generated SELECT i FROM n; {sql}"
    ))
    .expect("writes");
    drop(db);
    bytes_of(&dir)
}

/// The bytes of a store with all that is in its log, which one that is closed may leave: its readers
/// are not waited for.
pub(super) fn bytes_of(dir: &TempDir) -> Vec<u8> {
    let copied = stranger(dir).query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0));
    assert_eq!(copied, Ok(false), "nobody else has it open");
    std::fs::read(file(dir.path())).expect("reads")
}

/// The last byte of the cell that was written first to a page.
fn last_byte(page: usize) -> usize {
    page * PAGE - SUM - 1
}

/// A store with another byte wherever a text stands in a table.
fn harmed(bytes: &[u8], table: &str, text: &str) -> TempDir {
    let mut harmed = bytes.to_vec();
    for page in pages_of(bytes, table, "leaf") {
        let page = &mut harmed[(page - 1) * PAGE..page * PAGE];
        let has = |place: &usize| page[*place..].starts_with(text.as_bytes());
        let places: Vec<usize> = (0..PAGE - text.len()).filter(has).collect();
        places.into_iter().for_each(|place| page[place] ^= 0x01);
    }
    assert_ne!(harmed, bytes, "{table} has it");
    store_of(&harmed)
}

fn policy(digest: &str) -> PolicyText {
    PolicyText {
        path: PATH.to_owned(),
        digest: digest.to_owned(),
        text: "[agent.b]".to_owned(),
        read_at: Timestamp(9),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_is_not_what_was_written_is_left_out_and_its_number_goes_on() {
    let whole = with("").await;
    for text in ["[agent.a]", "/p/taskrun.toml"] {
        let dir = harmed(&whole, "policies", text);
        let Repair { left_out, lost, .. } = repair(&dir);
        assert_eq!((left_out, lost), (Vec::new(), vec!["1 policies cannot be read".to_owned()]));
        let store = open(&dir);
        is_in_order(&store).await;
        match (text, store.policy_in_force(PATH).await) {
            // Nothing tells that there was one.
            (PATH, found) => assert_eq!(found.expect("reads"), None),
            (_, found) => {
                let lost = found.expect_err("what it bound is not without bounds").to_string();
                assert!(lost.contains("its text was lost; apply it again"), "{lost}");
            }
        }
        let number = if text == PATH { 1 } else { 2 };
        let applied = store.apply_policy(policy("e")).await.expect("applies");
        assert_eq!(applied.number, number, "{text}");
        assert_eq!(store.policy_in_force(PATH).await.expect("reads"), Some(applied));
        drop(store);
        let Repair { lost, .. } = repair(&dir);
        assert_eq!(lost, [] as [&str; 0], "what was lost is told once");
        let applied = open(&dir).apply_policy(policy("f")).await.expect("applies");
        assert_eq!(applied.number, number + 1, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_path_that_is_that_of_another_policy_takes_nothing_from_it() {
    const OTHER: &str = "/q/taskrun.toml";
    let dir = tempfile::tempdir().expect("a folder");
    entangled(&dir).await;
    let store = open(&dir);
    let other = PolicyText { path: OTHER.to_owned(), ..policy("q") };
    store.apply_policy(other).await.expect("applies");
    drop(store);
    let whole = bytes_of(&dir);
    // The damaged one is read before the other, or after it.
    for (damaged, kept) in [(PATH, OTHER), (OTHER, PATH)] {
        let dir = harmed(&whole, "policies", damaged.trim_start_matches('/'));
        let Repair { lost, .. } = repair(&dir);
        assert_eq!(lost, ["1 policies cannot be read"]);
        let found = open(&dir).policy_in_force(kept).await.expect("reads");
        assert_eq!(found.map(|found| found.policy.path).as_deref(), Some(kept));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_whose_checksum_does_not_fit_is_found_by_the_check_and_replaced() {
    for change in ["text = 'x'", "digest = 'e'", "text = CAST(x'ff' AS TEXT)"] {
        let whole = with(&format!("UPDATE policies SET {change}")).await;
        let dir = store_of(&whole);
        let store = open(&dir);
        let findings = store.check().await.expect("looks");
        assert_eq!(findings.len(), 1, "{change}: {findings:?}");
        assert!(store.policy_in_force(PATH).await.is_err(), "{change}: it binds nothing");
        let applied = store.apply_policy(policy("e")).await.expect("applies");
        assert_eq!(applied.number, 2, "{change}");
        is_in_order(&store).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_only_a_damaged_page_vouches_for_are_left_out_or_named() {
    let whole = with(ROWS).await;
    for (table, said) in [
        ("idempotency", "some keys of repeated requests are left out: they stand on damaged pages"),
        ("sessions", "some sessions may not be what was written"),
        ("hosts", "some hosts may not be what was written"),
        ("outbox", "some reports of runs may not be what was written"),
        ("dispatches", "some dispatches of runs are left out: they stand on damaged pages"),
        ("artifacts", "some artifacts of runs may not be what was written"),
        ("fact_changes", "some changes of facts may not be what was written"),
        ("sqlite_sequence", "the numbers that were given last may not be what was written"),
    ] {
        let page = *pages_of(&whole, table, "leaf").first().expect("it has rows");
        let dir = flipped(&whole, last_byte(page), true);
        let Repair { left_out, lost, .. } = repair(&dir);
        assert_eq!((left_out, lost), (Vec::new(), vec![said.to_owned()]), "{table}");
        is_in_order(&open(&dir)).await;
    }
}

/// The last bytes of the types of values in the first row of a page.
fn types(bytes: &[u8], page: usize) -> Vec<usize> {
    const TABLE_LEAF: u8 = 13;
    let start = (page - 1) * PAGE;
    // A number goes on for as long as the first bit of a byte is set.
    let end = |mut place: usize| {
        while bytes[place] & 0x80 != 0 {
            place += 1;
        }
        place + 1
    };
    let cell = usize::from(bytes[start + 8]) << 8 | usize::from(bytes[start + 9]);
    let length = end(start + cell);
    let header = if bytes[start] == TABLE_LEAF { end(length) } else { length };
    let (mut place, after) = (end(header), header + usize::from(bytes[header]));
    let mut types = Vec::new();
    while place < after {
        place = end(place);
        types.push(place - 1);
    }
    types
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_its_column_does_not_take_is_a_row_that_cannot_be_read() {
    let whole = with(ROWS).await;
    for (table, columns, unread) in [
        ("idempotency", 4, None),
        ("sessions", 6, Some("some sessions cannot be read")),
        ("hosts", 10, Some("some hosts cannot be read")),
        ("outbox", 14, Some("some reports of runs cannot be read")),
        ("dispatches", 9, None),
        ("artifacts", 2, Some("some artifacts of runs cannot be read")),
        ("fact_changes", 2, Some("some changes of facts cannot be read")),
    ] {
        let page = *pages_of(&whole, table, "leaf").first().expect("it has rows");
        let places = types(&whole, page);
        assert_eq!(places.len(), columns, "{table}");
        let mut said = Vec::new();
        for (column, place) in places.into_iter().enumerate() {
            let Repair { left_out, lost, .. } = repair(&flipped(&whole, place, true));
            assert_eq!(left_out, [] as [&str; 0], "{table}, column {column}");
            assert_ne!(lost, [] as [&str; 0], "{table}, column {column}");
            said.extend(lost);
        }
        assert!(unread.is_none_or(|line| said.iter().any(|said| said == line)), "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_with_a_value_of_another_type_binds_those_that_it_bound() {
    let whole = with("").await;
    let page = *pages_of(&whole, "policies", "leaf").first().expect("it has one");
    // All but its path, without which nothing tells that there was one.
    for (column, place) in types(&whole, page).into_iter().enumerate().skip(1) {
        let dir = flipped(&whole, place, true);
        let lost = repair(&dir).lost;
        // Bytes of another type are the same text.
        match (lost.is_empty(), open(&dir).policy_in_force(PATH).await) {
            (true, found) => {
                assert_eq!(found.expect("reads").expect("it is kept").policy.digest, "d")
            }
            (false, found) => assert!(found.is_err(), "column {column}: {found:?}"),
        }
        assert_eq!(lost.is_empty(), [2, 3].contains(&column), "column {column}: {lost:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_on_a_damaged_page_answers_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    entangled(&dir).await;
    let whole = bytes_of(&dir);
    let dir = harmed(&whole, "idempotency", "key");
    let Repair { lost, .. } = repair(&dir);
    assert_eq!(lost.len(), 1, "{lost:?}");
    let store = open(&dir);
    for (id, key) in [("again", "key"), ("other", "jey")] {
        // The session of the other runs has ended.
        let spec = RunSpec { parent_session_id: "s-2".to_owned(), ..spec(id) };
        let created = store.create(keyed(new_run(spec), key, "print")).await;
        assert!(matches!(created, Ok(CreateOutcome::New)), "{key}: {created:?}");
    }
}

/// The bytes of a store with runs of these names, each with the key of its task, of which some have
/// ended before they began.
async fn with_tasks(runs: &[(&str, bool)]) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    for (id, is_over) in runs {
        let task = TaskKey { digest: (*id).to_owned(), completed_since: None };
        let new = NewRun { task: Some(task), ..new_run(spec(id)) };
        let run = new.run.clone();
        assert!(matches!(store.create(new).await, Ok(CreateOutcome::New)));
        if *is_over {
            let canceled = machine::decide::cancel(&run, StopReason::CanceledByOwner, None);
            append(&store, next(&run, 50, 2_000, canceled)).await;
        }
    }
    drop(store);
    bytes_of(&dir)
}

fn keys_of_tasks(dir: &TempDir) -> i64 {
    let count = "SELECT count(task) FROM runs";
    let found = stranger(dir).query_row(count, [], |row| row.get::<_, i64>(0));
    found.expect("counts")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_of_a_task_on_a_damaged_page_is_left_out_and_that_is_said() {
    let whole = with_tasks(&[("r", false), ("over", true)]).await;
    let dir = store_of(&whole);
    assert_eq!((repair(&dir).lost, keys_of_tasks(&dir)), (Vec::new(), 2));
    let dir = harmed(&whole, "runs", "acmeann");
    let Repair { runs, lost, .. } = repair(&dir);
    let said = "1 keys by which answers are used again are left out: they stand on damaged pages, and \
                their tasks are done once more";
    assert_eq!((runs, lost), (2, vec![said.to_owned()]), "nothing of a canceled run is used again");
    assert_eq!(keys_of_tasks(&dir), 0);
    assert_eq!(repair(&dir).lost, [] as [&str; 0], "what was lost is told once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_rows_with_keys_of_tasks_cannot_be_read_is_said() {
    let whole = with_tasks(&[("r", false), ("over", true)]).await;
    let mut bytes = whole.clone();
    for page in pages_of(&whole, "runs", "leaf") {
        bytes[(page - 1) * PAGE..page * PAGE].fill(0xff);
    }
    let dir = store_of(&bytes);
    let Repair { runs, left_out, lost, .. } = repair(&dir);
    assert_eq!((runs, left_out), (2, Vec::new()), "their journals are whole");
    assert_eq!(lost, ["keys by which answers of 1 runs are used again cannot be read"]);
}

/// The rows of a table before a repair and after it, where each of those is one of these.
fn kept(bytes: &[u8], dir: &TempDir, table: &str) -> (Vec<Vec<Value>>, Vec<Vec<Value>>) {
    let rows = |dir: &TempDir| dump(dir.path()).remove(table).expect("a table");
    let (before, after) = (rows(&store_of(bytes)), rows(dir));
    assert!(after.iter().all(|row| before.contains(row)), "{table}: some are others");
    (before, after)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_on_other_pages_than_a_damaged_one_are_kept() {
    let whole = with(MANY).await;
    let pages = pages_of(&whole, "idempotency", "leaf");
    let dir = flipped(&whole, last_byte(pages[pages.len() / 2]), true);
    repair(&dir);
    let (before, after) = kept(&whole, &dir, "idempotency");
    let lost = before.len() - after.len();
    assert!(pages.len() > 2 && lost > 0 && after.len() > lost, "{lost} of {}", before.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_behind_a_page_that_cannot_be_read_are_kept() {
    let whole = with(MANY).await;
    for (table, rows) in [("sessions", "sessions"), ("dispatches", "dispatches of runs")] {
        let pages = pages_of(&whole, table, "leaf");
        let page = pages[pages.len() / 2];
        let mut bytes = whole.clone();
        bytes[(page - 1) * PAGE..page * PAGE].fill(0xff);
        let dir = store_of(&bytes);
        let Repair { left_out, lost, .. } = repair(&dir);
        assert_eq!(left_out, [] as [&str; 0]);
        assert!(lost.contains(&format!("some {rows} cannot be read")), "{lost:?}");
        let (before, after) = kept(&whole, &dir, table);
        assert!(after.len() < before.len(), "{table}: a page cannot be read");
        assert_eq!((after.first(), after.last()), (before.first(), before.last()), "{table}");
        is_in_order(&open(&dir)).await;
    }
}
