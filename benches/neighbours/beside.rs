//! The turns of an honest run beside its neighbours.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use taskrun_benches::{percentile, stolen_ms};
use taskrun_engine::Engine;
use taskrun_examples::evil;
use taskrun_journal::status::Status;
use tokio::task::JoinSet;

use crate::host::{Host, TURNS};
use crate::neighbour::{Neighbour, Work, bombs};

/// Ratios of which the median counts.
const RATIOS: usize = 5;
/// Blocks with neighbours for a ratio, and as many without.
const BLOCKS: usize = 10;
/// Time that neighbours work before the first turn counts: then none of them is on its first slice.
const SETTLE: Duration = Duration::from_millis(50);
/// Cancellations measured.
const CANCELS: usize = 200;

/// Compiles until it is given up.
async fn compile(engine: Arc<Engine>) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        engine.load(evil::slow_to_compile(number)).await.expect("it is admitted");
    }
}

impl Host {
    /// Turns of an honest run beside its neighbours, and without them: each of them, and all of a run
    /// together.
    pub(crate) async fn beside(&self, neighbour: &Neighbour) -> Value {
        self.turns().await;
        let (mut p50, mut p99, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        let (mut last_alone, mut last_beside) = (Vec::new(), Vec::new());
        let (mut stolen_alone, mut stolen_beside) = (0.0, 0.0);
        for _ in 0..RATIOS {
            let (mut alone, mut beside) = (Vec::new(), Vec::new());
            for _ in 0..BLOCKS {
                let before = stolen_ms();
                alone.extend(self.turns().await);
                stolen_alone += stolen_ms() - before;
                let mut present = JoinSet::new();
                let mut ids = Vec::new();
                for _ in 0..neighbour.count {
                    match &neighbour.work {
                        Work::Run { agent, task } => ids.push(self.spawn(agent, task).await),
                        Work::Compilation => {
                            present.spawn(compile(Arc::clone(&self.engine)));
                        }
                    }
                }
                tokio::time::sleep(SETTLE).await;
                let before = stolen_ms();
                beside.extend(self.turns().await);
                stolen_beside += stolen_ms() - before;
                present.shutdown().await;
                for id in &ids {
                    self.controller.at(&self.scope).cancel(id, None).await.expect("answers");
                }
                for id in &ids {
                    let ended = self.controller.at(&self.scope).wait(id, None).await.expect("ends");
                    let status = ended.run.status();
                    assert_eq!(status, Status::Canceled, "it was to go on: {:?}", ended.run);
                }
            }
            p50.push(percentile(&beside, 50) / percentile(&alone, 50));
            p99.push(percentile(&beside, 99) / percentile(&alone, 99));
            whole.push(beside.iter().sum::<f64>() / alone.iter().sum::<f64>());
            (last_alone, last_beside) = (alone, beside);
        }
        let figures = |turns: &[f64]| json!([percentile(turns, 50), percentile(turns, 99)]);
        json!({
            "neighbours": format!("{} {}", neighbour.count, neighbour.name),
            "turns_each": BLOCKS * TURNS,
            "ratio_of_runs": percentile(&whole, 50),
            "ratio_p50": percentile(&p50, 50),
            "ratio_p99": percentile(&p99, 50),
            "goal_ratio_p99": neighbour.goal,
            "all_ratios_p99": p99,
            "last_ms_alone_p50_p99": figures(&last_alone),
            "last_ms_beside_p50_p99": figures(&last_beside),
            "stolen_ms_alone_and_beside": [stolen_alone, stolen_beside],
        })
    }

    /// Wall milliseconds from the request to cancel a run whose arguments are being held to dear
    /// schemas to its terminal status.
    pub(crate) async fn cancels(&self) -> Value {
        let (task, client) = (bombs(), self.controller.at(&self.scope));
        let mut all = Vec::with_capacity(CANCELS);
        for number in 0..CANCELS {
            let id = self.spawn("bomber", &task).await;
            let working = client.wait_for(&id, None, |run| run.state.turns > 0);
            working.await.expect("it begins");
            // At another moment of its work each time.
            tokio::time::sleep(Duration::from_millis(number as u64 % 40)).await;
            #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
            let asked = Instant::now();
            client.cancel(&id, None).await.expect("answers");
            let ended = client.wait(&id, None).await.expect("ends");
            all.push(asked.elapsed().as_secs_f64() * 1e3);
            assert_eq!(ended.run.status(), Status::Canceled, "{:?}", ended.run);
        }
        json!({
            "unit": "ms wall, request to terminal status",
            "n": all.len(),
            "p50": percentile(&all, 50),
            "p99": percentile(&all, 99),
            "max": percentile(&all, 100),
            "goal_p99": 100.0,
        })
    }
}
