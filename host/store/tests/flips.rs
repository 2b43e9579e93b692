//! Two hundred places at which a store's files are cut or flipped: what is served afterwards is
//! what was acknowledged, or a typed error is.

mod common;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use common::*;
use taskrun::clock::SeededRandom;
use taskrun_journal::event::EventRecord;
use taskrun_journal::hold::Wait;
use taskrun_journal::ids::RunId;
use taskrun_journal::list::{ListFilter, Scope};
use taskrun_journal::run::Run;
use taskrun_journal::store::{Append, Sessions, Store, StoreError};
use taskrun_journal::time::random_u64;
use taskrun_store::SqliteStore;
use tempfile::TempDir;

const SEED: u64 = 200;
/// Places of each kind of damage; there are five kinds.
const PLACES: usize = 40;

/// The acknowledged writes of a run: its journal, and the record at some lengths of that.
#[derive(Default)]
struct RunHistory {
    journal: Vec<EventRecord>,
    records: Vec<Run>,
}

#[derive(Default)]
struct Reference(HashMap<RunId, RunHistory>);

impl Reference {
    fn note(&mut self, run: &Run, events: &[EventRecord]) {
        let known = self.0.entry(run.id().clone()).or_default();
        known.journal.extend_from_slice(events);
        known.records.push(run.clone());
    }

    fn check_record(&self, run: &Run, place: &str) {
        let known = self.0.get(run.id()).is_some_and(|known| known.records.contains(run));
        assert!(known, "{place}: {run:?} was never acknowledged");
    }

    fn check_journal(&self, id: &RunId, events: &[EventRecord], place: &str) {
        let known = &self.0[id];
        assert!(known.journal.starts_with(events), "{place}: the journal of {id} is another");
        let whole = |run: &Run| run.state.head == events.len() as u64;
        let whole = events.is_empty() || known.records.iter().any(whole);
        assert!(whole, "{place}: {} events of {id} were never all", events.len());
    }
}

/// The files of a store.
#[derive(Clone)]
struct Files {
    data: Vec<u8>,
    log: Option<Vec<u8>>,
}

fn file(dir: &Path) -> std::path::PathBuf {
    dir.join("taskrun.db")
}

fn log(dir: &Path) -> std::path::PathBuf {
    dir.join("taskrun.db-wal")
}

impl Files {
    fn of(dir: &TempDir) -> Self {
        let data = std::fs::read(file(dir.path())).expect("it is there");
        Self { data, log: std::fs::read(log(dir.path())).ok() }
    }

    fn write(&self, dir: &TempDir) {
        std::fs::write(file(dir.path()), &self.data).expect("writes");
        if let Some(bytes) = &self.log {
            std::fs::write(log(dir.path()), bytes).expect("writes");
        }
    }
}

async fn appended(store: &SqliteStore, truth: &mut Reference, append: Append) -> Run {
    let run = Run::clone(&append.run);
    store.append(append.clone()).await.expect("appends");
    truth.note(&run, &append.events);
    run
}

/// Runs of all kinds: ended, held, blocked, wanted, with labels, of a tree.
async fn write_runs(store: &SqliteStore, from: u32, truth: &mut Reference) {
    for n in from..from + 10 {
        let mut spec = spec(&format!("run-{n}"));
        spec.labels = BTreeMap::from([("n".to_owned(), (n % 3).to_string())]);
        if n % 4 == 1 {
            spec.parent_run_id = Some(run_id(&format!("run-{}", from)));
            spec.root_run_id = run_id(&format!("run-{}", from));
        }
        let new = new_run(spec);
        store.create(new.clone()).await.expect("creates");
        truth.note(&new.run, &new.events);
    }
    for n in 0..7_usize {
        let claimed = store.claim(wish("h", 1, 2_000)).await.expect("claims");
        let Some(run) = claimed.into_iter().next() else { break };
        let events = store.read(run.id(), 1, 1).await.expect("reads");
        truth.note(&run, &events);
        let notes = vec![note("a"), note(&"long ".repeat(400 * n)), note("b")];
        let run = appended(store, truth, next(&run, 50, 3_000, notes)).await;
        let last = match n {
            // The first is above the others and stays.
            0 => continue,
            1 | 2 => vec![blocked(Wait::Word)],
            _ => end(),
        };
        appended(store, truth, next(&run, 60, 4_000, last)).await;
    }
}

/// The files of a store that was closed, and of one with most of its content in the log.
async fn write_all() -> (Files, Files, Reference) {
    let dir = tempfile::tempdir().expect("a folder");
    let mut truth = Reference::default();
    let store = open(&dir);
    write_runs(&store, 0, &mut truth).await;
    drop(store);
    let closed = Files::of(&dir);
    assert!(closed.log.is_none(), "all is in the file");
    let store = open(&dir);
    write_runs(&store, 100, &mut truth).await;
    (closed, Files::of(&dir), truth)
}

/// Looks at everything that can be asked for. `whole` says whether nothing may be missing.
async fn look(
    files: &Files,
    truth: &Reference,
    whole: &dyn Fn(&RunId) -> bool,
    place: &str,
) -> bool {
    let dir = tempfile::tempdir().expect("a folder");
    files.write(&dir);
    let typed = |error: &StoreError| {
        // Byte 18 of the file says to programs of which age it is read-only.
        let code = error.code();
        let fits = ["store-corrupt", "store-version", "store-read-only"].contains(&code);
        assert!(fits, "{place}: {error:?}");
    };
    let store = match SqliteStore::open(dir.path(), options()) {
        Ok(store) => store,
        Err(error) => {
            typed(&error);
            return true;
        }
    };
    let mut refused = false;
    let mut refuse = |error: StoreError| {
        typed(&error);
        refused = true;
    };
    for id in truth.0.keys() {
        match store.get(id).await {
            Ok(Some(run)) => truth.check_record(&run, place),
            Ok(None) => assert!(!whole(id), "{place}: {id} is said not to be there"),
            Err(error) => refuse(error),
        }
        match store.read(id, 0, 1_000).await {
            Ok(events) => truth.check_journal(id, &events, place),
            Err(error) => refuse(error),
        }
    }
    match store.list(&Scope::tenant("acme"), &ListFilter::default(), None, 100).await {
        Ok(page) => page.runs.iter().for_each(|run| truth.check_record(run, place)),
        Err(error) => refuse(error),
    }
    match store.read_session(&session_key(), 0, 1_000).await {
        Ok(page) => {
            for event in page.events {
                let known = truth.0[&event.run].journal.contains(&event.recorded);
                assert!(known, "{place}: {event:?} was never acknowledged");
            }
        }
        Err(error) => refuse(error),
    }
    refused
}

#[tokio::test]
async fn files_cut_or_flipped_at_two_hundred_places_are_never_served_wrong() {
    let (closed, open, truth) = write_all().await;
    let random = SeededRandom::new(SEED);
    let below = |length: usize| {
        let place = random_u64(&random) % u64::try_from(length).expect("it fits");
        usize::try_from(place).expect("it is below a length")
    };
    let bit = || 1_u8 << (random_u64(&random) % 8);
    let closed_whole = |id: &RunId| id.as_str().len() < "run-100".len();
    let nothing_whole = |_: &RunId| false;
    let mut refused = 0;
    for n in 0..PLACES {
        let mut files = closed.clone();
        let place = below(files.data.len());
        files.data[place] ^= bit();
        let name = format!("flip {n} at {place} of the closed file");
        refused += u32::from(look(&files, &truth, &closed_whole, &name).await);

        let mut files = closed.clone();
        let place = below(files.data.len());
        files.data.truncate(place.max(1));
        let name = format!("cut {n} at {place} of the closed file");
        refused += u32::from(look(&files, &truth, &closed_whole, &name).await);

        let mut files = open.clone();
        let place = below(files.data.len());
        files.data[place] ^= bit();
        let name = format!("flip {n} at {place} of the file under a log");
        refused += u32::from(look(&files, &truth, &closed_whole, &name).await);

        let mut files = open.clone();
        let bytes = files.log.as_mut().expect("there is a log");
        let place = below(bytes.len());
        bytes[place] ^= bit();
        let name = format!("flip {n} at {place} of the log");
        look(&files, &truth, &closed_whole, &name).await;

        let mut files = open.clone();
        let bytes = files.log.as_mut().expect("there is a log");
        let place = below(bytes.len());
        bytes.truncate(place);
        let name = format!("cut {n} at {place} of the log");
        look(&files, &truth, &nothing_whole, &name).await;
    }
    assert!(refused >= 40, "every cut of a closed file is seen: {refused}");
}
