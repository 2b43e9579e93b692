//! Single bits that flip at rest, in whatever page: the answers are the same, or it is refused; and
//! the check finds each.

mod common;
mod damaged;
mod filled;

use std::time::Duration;

use common::*;
use damaged::*;
use filled::filled;
use taskrun::clock::SeededRandom;
use taskrun_journal::event::EventRecord;
use taskrun_journal::list::{ListFilter, Scope};
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::Status;
use taskrun_journal::store::{Hosts, Sessions, Store, StoreError};
use taskrun_journal::time::random_u64;
use taskrun_store::{SqliteOptions, SqliteStore};
use tempfile::TempDir;

const SEED: u64 = 20;
/// Flips unless `TASKRUN_FLIPS` says how many.
const FLIPS: u64 = 20;

/// Bytes of the file that mean nothing: counters, and the version of who wrote them. Other programs
/// count on in the copies that they make.
const COUNTERS: [std::ops::Range<usize>; 3] = [24..28, 40..44, 92..100];

/// Options under which a round of the check beside a host's work takes no longer than it must.
fn quick() -> SqliteOptions {
    SqliteOptions { scrub_pause: Duration::ZERO, ..options() }
}

/// Everything that a store answers.
#[derive(Debug, PartialEq)]
struct Answers {
    runs: Vec<Run>,
    journals: Vec<Vec<EventRecord>>,
    /// The pages that some ways of listing give.
    lists: Vec<Vec<Run>>,
    session: Vec<(String, EventRecord)>,
    claimed: Vec<Run>,
}

fn lists() -> Vec<(Scope, ListFilter)> {
    let (all, filter) = (Scope::tenant("acme"), ListFilter::default);
    let labels = [("n".to_owned(), "1".to_owned())].into();
    vec![
        (all.clone(), filter()),
        (all.clone().owner("ann"), filter()),
        (all.clone().session("s-1"), filter()),
        (all.clone(), ListFilter { labels, ..filter() }),
        // As `taskrun inbox` asks.
        (all.clone(), ListFilter { status: vec![Status::Running, Status::Blocked], ..filter() }),
        (all.clone(), ListFilter { root_run_id: Some(run_id("run-01")), ..filter() }),
        (all.clone(), ListFilter { name: Some("name-5".to_owned()), ..filter() }),
        (all, ListFilter { agent_name: Some("researcher".to_owned()), ..filter() }),
    ]
}

/// Asks for everything; each answer that is refused is left out of both.
async fn answers(store: &SqliteStore, truth: Option<&Answers>) -> Result<Answers, StoreError> {
    let mut said =
        Answers { runs: vec![], journals: vec![], lists: vec![], session: vec![], claimed: vec![] };
    let mut refusal = None;
    for n in 0..40 {
        let id = run_id(&format!("run-{n:02}"));
        // A wait asks the same, before it waits and when it is told of something.
        match store.get(&id).await {
            Ok(run) => {
                let run = run.expect("no run is said not to be there");
                assert!(truth.is_none_or(|truth| truth.runs[n] == run), "{id} is another");
                said.runs.push(run);
            }
            Err(error) => refusal = Some(error),
        }
        match store.read(&id, 0, 1_000).await {
            Ok(events) => {
                assert!(truth.is_none_or(|truth| truth.journals[n] == events), "of {id}");
                said.journals.push(events);
            }
            Err(error) => refusal = Some(error),
        }
    }
    for (n, (scope, filter)) in lists().iter().enumerate() {
        match store.list(scope, filter, None, 100).await {
            Ok(page) => {
                assert!(truth.is_none_or(|truth| truth.lists[n] == page.runs), "list {n}");
                said.lists.push(page.runs);
            }
            Err(error) => refusal = Some(error),
        }
    }
    match store.read_session(&session_key(), 0, 1_000).await {
        Ok(page) => {
            let events = page.events.into_iter();
            said.session = events.map(|event| (event.run.to_string(), event.recorded)).collect();
            assert!(truth.is_none_or(|truth| truth.session == said.session), "the session");
        }
        Err(error) => refusal = Some(error),
    }
    match store.claim(wish("h-2", 100, 9_000)).await {
        Ok(runs) => {
            // Those that cannot be read are passed over, and said to be damaged.
            let known = |run: &Run| truth.is_none_or(|truth| truth.claimed.contains(run));
            assert!(runs.iter().all(known), "a run was claimed that is another");
            said.claimed = runs;
        }
        Err(error) => refusal = Some(error),
    }
    refusal.map_or(Ok(said), Err)
}

fn is_damage(error: &StoreError) -> bool {
    // Byte 18 of the file says to programs of which age it is read-only.
    ["store-corrupt", "store-version", "store-read-only"].contains(&error.code())
}

/// Waits until a round of the check beside a host's work is over; gives what it found.
async fn round(store: &SqliteStore) -> Vec<String> {
    if let Err(error) = store.register(host_of(&host_id("scrubbing"), PIN)).await {
        assert!(is_damage(&error), "{error:?}");
        return vec![error.to_string()];
    }
    within(async {
        while store.stats().scrubs == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    store.findings()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_in_any_page_is_refused_or_harmless_and_found() {
    let whole = filled().await;
    let dir = store_of(&whole);
    let store = SqliteStore::open(dir.path(), quick()).expect("opens");
    assert_eq!(store.check().await.expect("looks"), Vec::<String>::new());
    assert_eq!(round(&store).await, Vec::<String>::new());
    let truth = answers(&store, None).await.expect("it is whole");
    assert!(truth.claimed.len() >= 5 && truth.lists.iter().all(|list| !list.is_empty()));
    drop(store);

    #[expect(clippy::disallowed_methods, reason = "the long form is run by command")]
    let flips = std::env::var("TASKRUN_FLIPS").ok().and_then(|text| text.parse().ok());
    let flips: u64 = flips.unwrap_or(FLIPS);
    println!("seed {SEED}, {flips} flips");
    let random = SeededRandom::new(SEED);
    // One bit of each byte of the header too, which is a small part of it.
    let header =
        (0..100).step_by(if flips > FLIPS { 1 } else { 9 }).map(|place| (place, place % 8));
    let anywhere = (0..flips).map(|_| {
        let place = random_u64(&random) % (whole.len() as u64);
        let bit = usize::try_from(random_u64(&random) % 8).expect("small");
        (usize::try_from(place).expect("it is below a length"), bit)
    });
    let (mut refused, mut all) = (0, 0);
    for (n, (place, bit)) in anywhere.chain(header).enumerate() {
        all += 1;
        let mut bytes = whole.clone();
        bytes[place] ^= 1 << bit;
        let dir = store_of(&bytes);
        let name = format!("flip {n}: bit {bit} of byte {place}");
        let store = match SqliteStore::open(dir.path(), quick()) {
            Ok(store) => store,
            Err(error) => {
                assert!(is_damage(&error), "{name}: {error:?}");
                refused += 1;
                continue;
            }
        };
        let found = match store.check().await {
            Ok(findings) => !findings.is_empty(),
            Err(error) => is_damage(&error),
        };
        if COUNTERS.iter().any(|counter| counter.contains(&place)) {
            assert_eq!(
                answers(&store, Some(&truth)).await.expect("all is answered"),
                truth,
                "{name}"
            );
            continue;
        }
        assert!(found, "{name}: the check finds nothing");
        match answers(&store, Some(&truth)).await {
            Ok(said) => assert_eq!(said.claimed, truth.claimed, "{name}"),
            Err(error) => {
                assert!(is_damage(&error), "{name}: {error:?}");
                refused += 1;
            }
        }
        assert!(!round(&store).await.is_empty(), "{name}: a round finds nothing");
    }
    println!("{refused} of {all} were refused in part");
}

/// The list is whole or refused, at the latest after a round of the check, and the check finds it.
async fn is_noticed(dir: &TempDir, with_sum: bool, hidden: usize) {
    let store = SqliteStore::open(dir.path(), quick()).expect("opens");
    let listed = store.list(&Scope::tenant("acme"), &ListFilter::default(), None, 100).await;
    match listed {
        Ok(page) => assert!(!with_sum && page.runs.len() >= hidden, "{} listed", page.runs.len()),
        Err(error) => assert!(is_damage(&error), "{error:?}"),
    }
    let findings = store.check().await.expect("looks");
    assert!(!findings.is_empty(), "the check finds nothing");
    let findings = round(&store).await;
    assert!(!findings.is_empty(), "a round finds nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_tenant_of_a_run_is_noticed() {
    let whole = filled().await;
    for page in pages_of(&whole, "runs", "leaf") {
        let at = (page - 1) * PAGE;
        let found = whole[at..at + PAGE].windows(7).position(|text| text == b"acmeann");
        let Some(place) = found else { continue };
        for with_sum in [true, false] {
            // Without a checksum of the page it is one run that is not listed.
            is_noticed(&flipped(&whole, at + place + 1, with_sum), with_sum, 39).await;
        }
        return;
    }
    panic!("no page has a run");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_entry_of_the_index_by_tenant_is_noticed() {
    let whole = filled().await;
    let page = *pages_of(&whole, "runs_by_tenant", "leaf").first().expect("it has pages");
    // The cell that was written first ends where the checksum begins, with the number of its run.
    let place = page * PAGE - SUM - 1;
    for with_sum in [true, false] {
        is_noticed(&flipped(&whole, place, with_sum), with_sum, 0).await;
    }
}

#[tokio::test]
async fn pages_that_another_program_copied_from_the_log_are_taken_as_they_are() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    create(&store, spec("r")).await;
    let log = dir.path().join("taskrun.db-wal");
    let (data, frames) =
        (std::fs::read(file(dir.path())).expect("reads"), std::fs::read(&log).expect("reads"));
    drop(store);
    let copy = tempfile::tempdir().expect("a folder");
    std::fs::write(file(copy.path()), data).expect("writes");
    std::fs::write(copy.path().join("taskrun.db-wal"), frames).expect("writes");
    // It opens the store, reads, and is the last to close it.
    let other = rusqlite::Connection::open(file(copy.path())).expect("opens");
    let runs: i64 =
        other.query_row("SELECT count(*) FROM runs", [], |row| row.get(0)).expect("counts");
    assert_eq!(runs, 1);
    drop(other);
    assert!(!copy.path().join("taskrun.db-wal").exists(), "it copied the log");
    let store = open(&copy);
    assert!(store.get(&run_id("r")).await.expect("gets").is_some());
    assert_eq!(store.check().await.expect("looks"), Vec::<String>::new());
    create(&store, RunSpec { name: Some("n".to_owned()), ..spec("another") }).await;
    drop(store);
    assert_eq!(open(&copy).check().await.expect("looks"), Vec::<String>::new());
}

/// A run called `r` that a host holds.
async fn held(store: &SqliteStore) -> Run {
    create(store, spec("r")).await;
    store.claim(wish("h", 1, 2_000)).await.expect("claims").remove(0)
}

/// SQLite reads the later pages of a long value past its own cache of pages, and without their last
/// bytes, where it may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flip_in_any_page_of_a_long_value_and_a_cut_of_its_last_are_not_read() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    let run = held(&store).await;
    append(&store, next(&run, 50, 3_000, vec![note(&"long ".repeat(8_000))])).await;
    drop(store);
    let whole = std::fs::read(file(dir.path())).expect("reads");
    let pages = pages_of(&whole, "events", "overflow");
    assert!(pages.len() > 8, "{pages:?}");
    for page in &pages {
        let dir = flipped(&whole, page * PAGE - PAGE / 2, true);
        assert_eq!(code_of_reading(&dir), corrupt(), "page {page}");
    }
    // Of what is missing of the last page SQLite would make zeros, and of them a text.
    assert_eq!(pages.iter().max(), Some(&(whole.len() / PAGE)), "it is the last of the file");
    let dir = store_of(&whole[..whole.len() - 100]);
    assert_eq!(code_of_reading(&dir), corrupt(), "the last page");
}

fn corrupt() -> Option<rusqlite::ErrorCode> {
    Some(rusqlite::ErrorCode::DatabaseCorrupt)
}

/// The error of SQLite when all events are read by our layer, and nothing else of the store.
fn code_of_reading(dir: &TempDir) -> Option<rusqlite::ErrorCode> {
    let db = stranger(dir);
    let texts = db.prepare("SELECT body FROM events").and_then(|mut sql| {
        sql.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()
    });
    texts.err().and_then(|error| error.sqlite_error_code())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_in_what_says_how_pages_are_laid_out_is_refused() {
    let whole = filled().await;
    for (place, bit) in (16..=20).flat_map(|place| (0..8).map(move |bit| (place, bit))) {
        let mut bytes = whole.clone();
        bytes[place] ^= 1 << bit;
        let dir = store_of(&bytes);
        let opened = SqliteStore::open(dir.path(), options());
        let error = opened.err().unwrap_or_else(|| panic!("bit {bit} of byte {place}: it opens"));
        assert!(is_damage(&error), "bit {bit} of byte {place}: {error:?}");
    }
}

/// Database and log of a store with a run, of whose record the log has what the database lacks.
async fn with_log() -> (Vec<u8>, Vec<u8>) {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    let run = held(&store).await;
    drop(store);
    let store = open(&dir);
    append(&store, next(&run, 50, 3_000, vec![note("a")])).await;
    let log = std::fs::read(dir.path().join("taskrun.db-wal")).expect("reads");
    (std::fs::read(file(dir.path())).expect("reads"), log)
}

fn with_log_of(data: &[u8], log: &[u8]) -> TempDir {
    let dir = store_of(data);
    std::fs::write(dir.path().join("taskrun.db-wal"), log).expect("writes");
    dir
}

/// As after a loss of power while the log was copied into the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_is_half_written_while_the_log_has_it_is_no_damage() {
    let (mut data, log) = with_log().await;
    let frames = log[32..].chunks_exact(24 + PAGE);
    let numbers = frames.map(|frame| u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]));
    let pages: Vec<usize> = numbers.map(|number| number as usize).collect();
    let end = data.len();
    let halves = pages.iter().filter(|page| **page > 1 && **page * PAGE <= end);
    let mut halved = 0;
    for page in halves {
        data[page * PAGE - PAGE / 2..page * PAGE].fill(0xa5);
        halved += 1;
    }
    assert!(halved >= 2, "{pages:?}");
    let dir = with_log_of(&data, &log);
    let store = SqliteStore::open(dir.path(), quick()).expect("opens");
    assert_eq!(store.get(&run_id("r")).await.expect("gets").expect("there").state.head, 3);
    assert_eq!(store.check().await.expect("looks"), Vec::<String>::new());
    assert_eq!(round(&store).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_program_changed_is_refused_or_is_what_it_wrote() {
    let whole = filled().await;
    let dir = store_of(&whole);
    // It copies the log into the file as it closes.
    let other = rusqlite::Connection::open(file(dir.path())).expect("opens");
    other.execute("UPDATE runs SET priority = 7 WHERE id = 'run-07'", []).expect("writes");
    drop(other);
    let store = SqliteStore::open(dir.path(), quick()).expect("opens");
    let error = store.get(&run_id("run-07")).await.expect_err("it has the checksum of before");
    assert!(is_damage(&error), "{error:?}");
    assert!(!store.check().await.expect("looks").is_empty());
    drop(store);

    // A host of ours copies it: the pages are whole, and the columns no longer fit the journal.
    let dir = store_of(&whole);
    let store = SqliteStore::open(dir.path(), quick()).expect("opens");
    let other = rusqlite::Connection::open(file(dir.path())).expect("opens");
    other.execute("UPDATE runs SET priority = 7 WHERE id = 'run-07'", []).expect("writes");
    drop(other);
    drop(store);
    let store = SqliteStore::open(dir.path(), quick()).expect("opens");
    let findings = store.check().await.expect("looks");
    assert_eq!(findings, ["run run-07: its columns say something else"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_of_many_bytes_is_no_damage() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(dir.path(), quick()).expect("opens");
    let mut run = held(&store).await;
    for n in 0..7 {
        let long = vec![note(&"x".repeat(1 << 20))];
        run = append(&store, next(&run, 50 + n, 3_000, long)).await;
    }
    assert_eq!(store.check().await.expect("looks"), Vec::<String>::new());
    assert_eq!(round(&store).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_closes_while_its_check_pauses() {
    let dir = store_of(&filled().await);
    let slow = SqliteOptions { scrub_pause: Duration::from_secs(60 * 60), ..options() };
    let store = SqliteStore::open(dir.path(), slow).expect("opens");
    store.register(host_of(&host_id("scrubbing"), PIN)).await.expect("enters");
    within(async { tokio::task::spawn_blocking(move || store.close()).await })
        .await
        .expect("closes");
}
