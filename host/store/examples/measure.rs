//! A measurement of the store's costs on this machine:
//! `cargo run --release -p taskrun-store --example measure -- DIRECTORY [RUNS]`.
//!
//! Prints events per second with an fsync before each answer, for some numbers of concurrent
//! runs; then fills the store to RUNS (default 10,000) and prints what a page of 50 takes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use taskrun::clock::SystemClock;
use taskrun_journal::ending::Ending;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::list::{ListFilter, Scope};
use taskrun_journal::machine;
use taskrun_journal::pin::Ready;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::store::{Admission, Append, Claim, NewRun, Store, StoreError};
use taskrun_journal::time::{Clock, Timestamp};
use taskrun_store::{Durability, MemoryStore, SqliteOptions, SqliteStore};
use tokio::task::JoinSet;

/// Bytes of text in each event.
const TEXT_BYTES: usize = 512;

fn new_run(n: u64, at: u64) -> NewRun {
    let id = RunId::generate(at, &[0; 10]).to_string();
    let id = RunId::new(&format!("{}-{n}", &id[..23])).expect("a valid id");
    let spec = RunSpec {
        tenant: "acme".to_owned(),
        owner_user_id: format!("owner-{}", n % 1_000),
        parent_session_id: format!("session-{}", n / 10),
        parent_app_name: n.is_multiple_of(3).then(|| format!("app-{}", n % 30)),
        agent_name: format!("agent-{}", n % 20),
        agent_digest: "sha256:0123456789abcdef0123456789abcdef".to_owned(),
        pin: "0123456789abcdef0123456789abcdef".to_owned(),
        task: "look something up and say what you found".to_owned(),
        labels: BTreeMap::from([("team".to_owned(), format!("team-{}", n % 50))]),
        created_at: Timestamp(at),
        ..taskrun_fixtures::spec(id.as_str())
    };
    let event = Event::Queued { spec: Arc::new(spec) };
    let queued = EventRecord { seq: 1, id: n, at: Timestamp(at), event };
    let run = machine::begin(&queued).expect("a beginning");
    NewRun {
        run,
        events: vec![queued],
        idempotency: None,
        task: None,
        artifacts: Vec::new(),
        admission: Admission::UNBOUNDED,
    }
}

fn next(run: &Run, at: u64, events: Vec<Event>) -> Append {
    let mut state = run.state.clone();
    let mut recorded = Vec::new();
    for event in events {
        let seq = state.head + 1;
        let one = EventRecord { seq, id: seq, at: Timestamp(at), event };
        state = machine::apply(state, &one).expect("a legal event");
        recorded.push(one);
    }
    let run_after = Run { spec: Arc::clone(&run.spec), state };
    let (epoch, expected_head) = (run.state.epoch, run.state.head);
    Append {
        run: Arc::new(run_after),
        epoch,
        expected_head,
        events: recorded.into(),
        artifacts: Vec::new(),
        reports: None,
    }
}

fn end() -> Vec<Event> {
    let ending = Ending::completed(StopReason::FinalResponse);
    let finished = Event::Finished { metadata: BTreeMap::new(), finalizer_error: None };
    vec![Event::Finalizing { ending }, finished]
}

fn wish(limit: usize, now: u64) -> Claim {
    Claim {
        host: HostId::new("h"),
        limit,
        finalizers: 0,
        tree_slots: u32::MAX,
        ready: Ready::All,
        resumes: 0,
        now: Timestamp(now),
    }
}

async fn appends(
    store: &Arc<dyn Store>,
    clock: &SystemClock,
    runs: u64,
    each: u64,
) -> Result<f64, StoreError> {
    for n in 0..runs {
        store.create(new_run(n, 1_000 + runs * 1_000_000)).await?;
    }
    let claimed = store.claim(wish(usize::MAX, 2_000)).await?;
    let begun = clock.monotonic();
    let mut all = JoinSet::new();
    for mut run in claimed {
        let store = Arc::clone(store);
        all.spawn(async move {
            let text = "x".repeat(TEXT_BYTES);
            for _ in 0..each {
                let note = Event::PlannerNote { text: text.clone(), labels: BTreeMap::new() };
                let append = next(&run, 3_000, vec![note]);
                run = Run::clone(&append.run);
                store.append(append).await?;
            }
            store.append(next(&run, 4_000, end())).await
        });
    }
    while let Some(done) = all.join_next().await {
        done.expect("no panic")?;
    }
    Ok((runs * each) as f64 / (clock.monotonic() - begun).as_secs_f64())
}

/// Whole runs: create, claim, end, by so many at once.
async fn trivial_runs(
    store: &Arc<dyn Store>,
    clock: &Arc<SystemClock>,
    spawners: u64,
    count: u64,
    from: u64,
) -> Result<f64, StoreError> {
    let begun = clock.monotonic();
    let mut all = JoinSet::new();
    for spawner in 0..spawners {
        let store = Arc::clone(store);
        all.spawn(async move {
            for n in (spawner..count).step_by(usize::try_from(spawners).expect("small")) {
                let n = from + n;
                store.create(new_run(n, 10_000_000 + n)).await?;
                for run in store.claim(wish(1, 10_000_000 + n)).await? {
                    // A few stay unfinished.
                    if !n.is_multiple_of(100) {
                        store.append(next(&run, 10_000_001 + n, end())).await?;
                    }
                }
            }
            Ok::<_, StoreError>(())
        });
    }
    while let Some(done) = all.join_next().await {
        done.expect("no panic")?;
    }
    Ok(count as f64 / (clock.monotonic() - begun).as_secs_f64())
}

async fn lists(store: &Arc<dyn Store>, clock: &SystemClock) -> Result<(), StoreError> {
    let scope = Scope::tenant("acme");
    let all = ListFilter::default;
    let status = |status| ListFilter { status: vec![status], ..all() };
    let label = BTreeMap::from([("team".to_owned(), "team-7".to_owned())]);
    let rare = ListFilter { since: Some(Timestamp(u64::MAX / 4)), ..all() };
    let table = [
        ("all", scope.clone(), all()),
        ("owner", scope.clone().owner("owner-7"), all()),
        ("session", scope.clone().session("session-1000007"), all()),
        ("agent", scope.clone(), ListFilter { agent_name: Some("agent-3".to_owned()), ..all() }),
        ("completed", scope.clone(), status(Status::Completed)),
        ("running", scope.clone(), status(Status::Running)),
        ("failed (none)", scope.clone(), status(Status::Failed)),
        ("owner, running", scope.clone().owner("owner-0"), status(Status::Running)),
        ("label", scope.clone(), ListFilter { labels: label, ..all() }),
        ("since (none)", scope.clone(), rare),
    ];
    for (name, scope, filter) in table {
        let mut least = Duration::MAX;
        let mut rows = 0;
        for _ in 0..5 {
            let begun = clock.monotonic();
            rows = store.list(&scope, &filter, None, 50).await?.runs.len();
            least = least.min(clock.monotonic() - begun);
        }
        println!("list {name:16} {rows:3} runs {:9.3} ms", least.as_secs_f64() * 1e3);
    }
    Ok(())
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), StoreError> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().unwrap_or_else(|| "measure-data".to_owned());
    let total: u64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(10_000);
    let clock = Arc::new(SystemClock::new());
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    println!("memory: 64 runs {:9.0} events/s", appends(&memory, &clock, 64, 500).await?);
    println!("memory: {:9.0} runs/s", trivial_runs(&memory, &clock, 64, 20_000, 1_000_000).await?);
    let sqlite = Arc::new(SqliteStore::open(&dir, SqliteOptions::default())?);
    let store: Arc<dyn Store> = Arc::clone(&sqlite) as Arc<dyn Store>;
    for runs in [1, 16, 64, 256] {
        let before = sqlite.stats();
        let rate = appends(&store, &clock, runs, 20_000 / runs.max(16)).await?;
        let commits = sqlite.stats().commits - before.commits;
        println!("power: {runs:4} runs {rate:9.0} events/s in {commits} commits");
    }
    let rate = trivial_runs(&store, &clock, 64, 10_000, 10_000_000).await?;
    println!("power: {rate:9.0} trivial runs/s");
    drop((store, sqlite));
    let options = SqliteOptions { durability: Durability::Process, ..SqliteOptions::default() };
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&dir, options)?);
    let mut filled = 10_000;
    while filled < total {
        let part = (total / 5).max(1);
        let rate = trivial_runs(&store, &clock, 64, part, 10_000_000 + filled).await?;
        filled += part;
        println!("process: {rate:9.0} trivial runs/s up to {filled} runs");
    }
    lists(&store, &clock).await
}
