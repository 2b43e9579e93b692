//! Whole runs per second, against an fsync for each event, and against two for each run.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use taskrun_benches::{cpu_us, percentile};
use tokio::task::JoinSet;

use crate::host::{ANSWERS, Host};
use crate::{Sizes, Watch, floor, say};

/// The callers that start runs at the same time.
const SPAWNERS: [usize; 3] = [1, 16, 64];
/// The first events of a run: it is queued, and it is taken.
const EVENTS_OF_ACCEPTANCE: usize = 2;
/// Of so many runs a spawner that does not wait for each waits for the last.
const BATCH: usize = 16;

/// The counts while runs were driven.
struct Counted {
    runs_per_s: f64,
    cpu_us_per_run: f64,
    runs_per_commit: f64,
    transactions_per_run: f64,
    latency_ms: Vec<f64>,
}

pub(crate) async fn measure(dir: &Path, sizes: &Sizes) -> Value {
    let folder = tempfile::tempdir_in(dir).expect("a folder");
    let host = Arc::new(Host::start(folder.path()).await);
    let bodies = bodies(&host).await;
    let bytes: usize = bodies.iter().map(String::len).sum();
    let by_event: Vec<&[String]> = bodies.chunks(1).collect();
    // What keeps a run and takes it, and what it does and ends with.
    let by_run = <[&[String]; 2]>::from(bodies.split_at(EVENTS_OF_ACCEPTANCE));
    let (mut commits, mut pairs, mut appends) = (Vec::new(), Vec::new(), Vec::new());
    let mut found = vec![Vec::new(); SPAWNERS.len() * 2];
    for round in 0..=sizes.rounds {
        say(&format!("throughput, round {round} of {}", sizes.rounds));
        let time = sizes.time / 2;
        let floors = (
            floor::commits(dir, &by_event, time),
            floor::commits(dir, &by_run, time) / 2.0,
            floor::appends(dir, &bodies, time),
        );
        let mut rows = Vec::new();
        for spawners in SPAWNERS {
            for batch in [1, BATCH] {
                rows.push(drive(&host, spawners, batch, sizes.time).await);
            }
        }
        // The first round warms caches and does not count.
        if round > 0 {
            commits.push(floors.0);
            pairs.push(floors.1);
            appends.push(floors.2);
            for (all, row) in found.iter_mut().zip(rows) {
                all.push(Arc::new(row));
            }
        }
    }
    let host = Arc::into_inner(host).expect("all spawners are done");
    host.close().await;
    let [commits, pairs, appends] =
        [commits, pairs, appends].map(|figures| percentile(&figures, 50));
    let columns = SPAWNERS.iter().flat_map(|spawners| [(*spawners, 1), (*spawners, BATCH)]);
    let rows = columns.zip(&found).map(|((spawners, batch), rounds)| {
        let of = |pick: fn(&Counted) -> f64| {
            let figures: Vec<f64> = rounds.iter().map(|row| pick(row)).collect();
            percentile(&figures, 50)
        };
        let events_per_s = of(|row| row.runs_per_s) * bodies.len() as f64;
        let waits: Vec<f64> = rounds.iter().flat_map(|row| row.latency_ms.clone()).collect();
        json!({
            "spawners": spawners,
            "each_waits_for_every": batch,
            "runs_per_s": of(|row| row.runs_per_s),
            "events_per_s": events_per_s.round(),
            "cpu_us_per_run": of(|row| row.cpu_us_per_run),
            "runs_per_commit": of(|row| row.runs_per_commit),
            "transactions_per_run": of(|row| row.transactions_per_run),
            "spawn_to_end_ms": { "p50": percentile(&waits, 50), "p99": percentile(&waits, 99) },
            "times_as_long_as_two_commits": ratio(pairs, of(|row| row.runs_per_s)),
            "ratio_to_commit_per_event": ratio(events_per_s, commits),
            "ratio_to_fsync_per_event": ratio(events_per_s, appends),
        })
    });
    let rows: Vec<Value> = rows.collect();
    json!({
        "unit": "runs from spawn to terminal status, one plan step, synchronous=FULL",
        "rounds": sizes.rounds,
        "events_per_run": bodies.len(),
        "bytes_of_events_per_run": bytes,
        "floor": {
            "sqlite_commit_per_event_per_s": commits,
            "runs_of_two_sqlite_commits_per_s": pairs,
            "fsync_per_event_per_s": appends,
        },
        "spawners": rows,
        "goal_runs_per_s_64_and_16_spawners": [10_000, 7_000],
        "goal_cpu_us_per_run_64_spawners": 140,
        "goal_times_as_long_as_two_commits_1_spawner": 1.4,
    })
}

fn ratio(product: f64, floor: f64) -> f64 {
    percentile(&[product / floor], 50)
}

/// The events of one run, as they are written.
async fn bodies(host: &Host) -> Vec<String> {
    let id = host.spawn(ANSWERS).await;
    host.client().wait(&id, None).await.expect("ends");
    let events = host.client().events(&id, 0, 1_000).await.expect("a journal");
    let body = |event| serde_json::to_string(event).expect("JSON");
    events.iter().map(|recorded| body(&recorded.event)).collect()
}

/// Lets spawners start runs for a time and waits for all of them.
async fn drive(host: &Arc<Host>, spawners: usize, batch: usize, time: Duration) -> Counted {
    let (stats, cpu, watch) = (host.store.stats(), cpu_us(), Watch::start());
    let watch = Arc::new(watch);
    let mut all = JoinSet::new();
    for _ in 0..spawners {
        let (host, watch) = (Arc::clone(host), Arc::clone(&watch));
        all.spawn(async move {
            let (mut runs, mut latency_ms) = (0_usize, Vec::new());
            while watch.elapsed() < time {
                let began = watch.ms();
                let mut last = host.spawn(ANSWERS).await;
                for _ in 1..batch {
                    last = host.spawn(ANSWERS).await;
                }
                host.client().wait(&last, None).await.expect("ends");
                runs += batch;
                latency_ms.push(watch.ms() - began);
            }
            (runs, latency_ms)
        });
    }
    let (mut runs, mut latency_ms) = (0, Vec::new());
    while let Some(done) = all.join_next().await {
        let (more, waits) = done.expect("no panic");
        runs += more;
        latency_ms.extend(waits);
    }
    // The last run of a spawner is not always the last to end.
    while host.controller.executing() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (elapsed, runs) = (watch.elapsed().as_secs_f64(), runs as f64);
    let (cpu, after) = (cpu_us() - cpu, host.store.stats());
    Counted {
        runs_per_s: runs / elapsed,
        cpu_us_per_run: cpu / runs,
        runs_per_commit: runs / (after.commits - stats.commits) as f64,
        transactions_per_run: (after.transactions - stats.transactions) as f64 / runs,
        latency_ms,
    }
}
