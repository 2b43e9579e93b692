//! The cost of a run that waits for an answer.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use taskrun_benches::{cpu_us, percentile, resident_bytes};
use taskrun_journal::list::ListFilter;
use taskrun_journal::status::Status;
use tokio::task::JoinSet;

use crate::host::{ASKS, Host};
use crate::{Sizes, Watch, say};

/// The callers at the same time, and the runs that each of them starts before it waits for one.
const SPAWNERS: u64 = 64;
const BATCH: u64 = 8;
/// Of so many runs one goes before: caches and pools that are filled once belong to nobody.
const WARM: u64 = 10;

pub(crate) async fn measure(dir: &Path, sizes: &Sizes) -> Value {
    let folder = tempfile::tempdir_in(dir).expect("a folder");
    let host = Arc::new(Host::start(folder.path()).await);
    let empty = resident_bytes();
    say("blocked, warming up");
    block(&host, sizes.blocked / WARM).await;
    let before = resident_bytes();
    let (cpu, watch) = (cpu_us(), Watch::start());
    say("blocked");
    block(&host, sizes.blocked).await;
    let (elapsed, cpu) = (watch.elapsed().as_secs_f64(), cpu_us() - cpu);
    let after = resident_bytes();
    let drivers = host.controller.executing();
    let one = ListFilter { status: vec![Status::Blocked], ..ListFilter::default() };
    let page = host.client().list(&one, None, 200).await.expect("a page");
    assert_eq!(page.runs.len(), 200, "runs are not blocked");
    let host = Arc::into_inner(host).expect("all spawners are done");
    host.close().await;
    let runs = sizes.blocked as f64;
    json!({
        "unit": "resident bytes of the process for each run that waits for an answer",
        "runs": sizes.blocked,
        "bytes_per_run": percentile(&[(after - before) / runs], 50),
        "goal_bytes_per_run": 1_024,
        "live_drivers": drivers,
        "resident_mib": {
            "without_runs": mib(empty), "after_a_tenth": mib(before), "after": mib(after),
        },
        "cpu_us_to_block_one": percentile(&[cpu / runs], 50),
        "blocked_per_s": percentile(&[runs / elapsed], 50),
    })
}

fn mib(bytes: f64) -> f64 {
    percentile(&[bytes / f64::from(1 << 20)], 50)
}

/// Starts runs and returns when all of them wait.
async fn block(host: &Arc<Host>, count: u64) {
    let mut all = JoinSet::new();
    for spawner in 0..SPAWNERS {
        let host = Arc::clone(host);
        let mine = (spawner..count).step_by(SPAWNERS as usize).count() as u64;
        all.spawn(async move {
            for n in 1..=mine {
                let id = host.spawn(ASKS).await;
                if n.is_multiple_of(BATCH) || n == mine {
                    let blocked = |run: &taskrun_journal::run::Run| run.status() == Status::Blocked;
                    let client = host.client();
                    let wait = client.wait_for(&id, None, blocked);
                    assert!(!wait.await.expect("is there").timed_out);
                }
            }
        });
    }
    while let Some(done) = all.join_next().await {
        done.expect("no panic");
    }
    // The last run of a spawner is not always the last to wait, nor its driver gone at once.
    let open =
        ListFilter { status: vec![Status::Queued, Status::Running], ..ListFilter::default() };
    while host.controller.executing() > 0
        || !host.client().list(&open, None, 1).await.expect("ok").runs.is_empty()
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
