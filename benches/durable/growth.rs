//! The cost of a change of a run as the store grows.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use futures::future::join_all;
use serde_json::{Value, json};
use taskrun_benches::{cpu_us, percentile};
use taskrun_journal::ids::HostId;
use taskrun_journal::run::Run;
use taskrun_journal::store::{AppendOutcome, Claim, CreateOutcome, Store};
use taskrun_journal::time::Timestamp;
use taskrun_store::Durability;

use crate::fill::{self, BASE_MS};
use crate::host::open;
use crate::{Sizes, Watch, list, say, store_dir};

/// Runs that are taken through their changes in a round; so many at a time.
const ROUND: u64 = 192;
const AT_ONCE: u64 = 64;
/// Rounds of which the median counts. The smallest store doubles or trebles by them.
const ROUNDS: usize = 11;

/// A store with a number of ended runs, and the number of the next run.
struct Filled {
    runs: u64,
    fill_s: f64,
    store: Arc<dyn Store>,
    next: u64,
    rounds: Vec<Round>,
}

/// Microseconds for each run: accepted, claimed, ended.
struct Round {
    cpu: [f64; 3],
    wall: [f64; 3],
}

pub(crate) async fn measure(dir: &Path, sizes: &Sizes) -> Value {
    let mut stores = Vec::new();
    for runs in sizes.stores {
        stores.push(filled(dir, runs).await);
    }
    // The stores take turns, so that the load of the machine meets all of them.
    for round in 0..=ROUNDS {
        for filled in &mut stores {
            let found = changes(filled).await;
            // The first round warms caches and does not count.
            if round > 0 {
                filled.rounds.push(found);
            }
        }
    }
    let mut report = Vec::new();
    for filled in &stores {
        say(&format!("list, {} runs", filled.runs));
        let file = store_dir(dir, filled.runs).join("taskrun.db");
        let bytes = std::fs::metadata(file).map_or(0, |file| file.len());
        report.push(json!({
            "runs": filled.runs,
            "fill_s": percentile(&[filled.fill_s], 50),
            "file_mib": bytes >> 20,
            "create": change(filled, &stores[0], 0..1),
            "claim": change(filled, &stores[0], 1..2),
            "finish": change(filled, &stores[0], 2..3),
            "all_three": change(filled, &stores[0], 0..3),
            "list": list::measure(&filled.store, filled.runs, sizes.pages).await,
        }));
    }
    json!({
        "unit": "us for each run, 64 at a time, synchronous=FULL; ms for a page of 50",
        "rounds": ROUNDS,
        "goal_ratio": 1.2,
        "goal_list_ms": 10,
        "stores": report,
    })
}

/// Makes the store, or takes the one that is there.
async fn filled(dir: &Path, runs: u64) -> Filled {
    let dir = store_dir(dir, runs);
    let watch = Watch::start();
    // What survives the process is enough of durability for making it.
    let store = open(&dir, Durability::Process);
    let port = Arc::clone(&store) as Arc<dyn Store>;
    let last = port.get(&fill::id(runs - 1)).await.expect("can be read");
    if last.is_none() {
        say(&format!("filling a store with {runs} runs"));
        fill::ended(&port, runs).await;
    }
    let mut next = runs;
    while port.get(&fill::id(next)).await.expect("can be read").is_some() {
        next += ROUND;
    }
    store.close();
    let fill_s = watch.elapsed().as_secs_f64();
    Filled { runs, fill_s, store: open(&dir, Durability::Power), next, rounds: Vec::new() }
}

/// The cost of some of the changes here, and as a multiple of their cost in the same rounds in
/// the smallest store.
fn change(here: &Filled, smallest: &Filled, which: Range<usize>) -> Value {
    let sum = |of: &[f64; 3]| of[which.clone()].iter().sum::<f64>();
    let cpu: Vec<f64> = here.rounds.iter().map(|round| sum(&round.cpu)).collect();
    let wall: Vec<f64> = here.rounds.iter().map(|round| sum(&round.wall)).collect();
    let pairs = here.rounds.iter().zip(&smallest.rounds);
    let ratios: Vec<f64> = pairs.map(|(here, there)| sum(&here.cpu) / sum(&there.cpu)).collect();
    json!({
        "cpu_us": percentile(&cpu, 50),
        "wall_us": percentile(&wall, 50),
        "ratio_of_cpu_to_smallest": percentile(&ratios, 50),
    })
}

/// Takes some runs through all of their changes.
async fn changes(filled: &mut Filled) -> Round {
    let store = Arc::clone(&filled.store);
    let first = filled.next;
    filled.next += ROUND;
    let numbers: Vec<u64> = (first..filled.next).collect();
    let (mut cpu, mut wall) = ([0.0; 3], [0.0; 3]);
    let mut timed = |index: usize, before: (f64, Watch)| {
        cpu[index] = (cpu_us() - before.0) / ROUND as f64;
        wall[index] = before.1.ms() * 1e3 / ROUND as f64;
    };
    let begin = || (cpu_us(), Watch::start());

    let before = begin();
    for some in numbers.chunks(AT_ONCE as usize) {
        let created = join_all(some.iter().map(|n| store.create(fill::queued(*n)))).await;
        assert!(created.iter().all(|one| matches!(one, Ok(CreateOutcome::New))), "{created:?}");
    }
    timed(0, before);

    let before = begin();
    let mut claimed: Vec<Run> = Vec::new();
    while claimed.len() < numbers.len() {
        let claim = Claim {
            host: HostId::new("host-bench"),
            limit: AT_ONCE as usize,
            finalizers: 0,
            tree_slots: 4,
            ready: taskrun_journal::pin::Ready::All,
            resumes: 0,
            now: Timestamp(BASE_MS + first),
        };
        let more = store.claim(claim).await.expect("claims");
        assert!(!more.is_empty(), "runs are missing in the queue");
        claimed.extend(more);
    }
    timed(1, before);

    let before = begin();
    for some in claimed.chunks(AT_ONCE as usize) {
        let ended = join_all(some.iter().map(|run| store.append(fill::ending(run)))).await;
        assert!(ended.iter().all(|one| matches!(one, Ok(AppendOutcome::Done))), "{ended:?}");
    }
    timed(2, before);
    Round { cpu, wall }
}
