//! Measures what taskrun adds to raw wasmtime, in one process, with the same components and the
//! same engine settings, and prints one JSON object.
//!
//! `cargo bench -p taskrun-benches --bench cost -- [--compare FILE] [PART]`, where a part is one of
//! `tool-calls`, `trivial-runs`, `plan-steps`, `cancels`, `starts` and `loads`; all of them otherwise.
//! Costs are CPU time of the whole process, so that they hold on a loaded machine; latencies are wall
//! time and are given as percentiles. Each figure is the median of several rounds in which floor and
//! product take turns.

mod cold;
mod floor;
mod large;
mod product;

use std::process::ExitCode;

use serde_json::{Value, json};
use taskrun_benches::{Args, cpu_us, percentile, refused};

/// Rounds of which the median counts.
const ROUNDS: usize = 7;
/// Calls measured in a round.
const CALLS: u32 = 2_000;
/// Messages that a planner is shown where plan steps are measured.
const CONVERSATIONS: [usize; 3] = [1, 10, 100];
/// Bytes of each of them.
const MESSAGE_BYTES: usize = 1 << 10;
/// Runs of two plan steps in a round.
const RUNS: u32 = 800;
/// Cancellations measured.
const CANCELS: usize = 200;
/// Cold starts measured.
const STARTS: usize = 15;

/// The parts of the report.
const PARTS: [&str; 6] = ["tool-calls", "trivial-runs", "plan-steps", "cancels", "starts", "loads"];

fn main() -> ExitCode {
    // Cold starts and loads are measured in processes of their own, which are this program again.
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some(cold::CHILD) => return cold::child(args.next().as_deref()),
        Some(large::CHILD) => return large::child(args.next().as_deref()),
        Some(_) | None => {}
    }
    let args = match Args::of_process() {
        Ok(args) if args.words.iter().all(|word| PARTS.contains(&word.as_str())) => args,
        Ok(_) => return refused(&format!("known are --compare FILE, {}", PARTS.join(", "))),
        Err(wrong) => return refused(&wrong),
    };
    let runtime = taskrun_runtime::control_plane().expect("a runtime");
    args.print(runtime.block_on(measure(&args.words)));
    ExitCode::SUCCESS
}

/// A message of [`MESSAGE_BYTES`].
fn message() -> String {
    "a word ".repeat(MESSAGE_BYTES.div_ceil(7))[..MESSAGE_BYTES].to_owned()
}

/// Plan steps of an agent that is shown so many messages.
async fn plan_steps(floor: &floor::Floor, product: &product::Product, messages: usize) -> Value {
    let (mut pairs, mut rates) = (Pairs::default(), Vec::new());
    for round in 0..=ROUNDS {
        let floor = floor.counted(messages, RUNS).await;
        let (product, rate) = product.counted(messages, RUNS).await;
        pairs.count(round, (floor, product));
        rates.push(rate);
    }
    let rates = &rates[1..];
    let mut report = pairs.report(Some(2.5));
    report["messages_of_1_kib"] = json!(messages);
    report["steps_per_second"] = json!(percentile(rates, 50));
    report
}

async fn measure(parts: &[String]) -> Value {
    let wants = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    let floor = floor::Floor::new();
    let product = product::Product::new().await;
    let mut report = json!({ "v": 1 });
    // The first round of each warms caches and pools and does not count.
    if wants("tool-calls") {
        let mut pairs = Pairs::default();
        for round in 0..=ROUNDS {
            let pair = (floor.tool_calls(CALLS).await, product.tool_calls(CALLS).await);
            pairs.count(round, pair);
        }
        report["tool_call"] = pairs.report(Some(1.5));
    }
    if wants("trivial-runs") {
        for (name, at_once, goal) in [("trivial_run", 1, 4.0), ("trivial_run_of_16", 16, 3.0)] {
            let mut pairs = Pairs::default();
            for round in 0..=ROUNDS {
                let product = product.trivial_runs(CALLS, at_once).await;
                pairs.count(round, (floor.plan_steps(CALLS).await, product));
            }
            report[name] = pairs.report(Some(goal));
        }
    }
    if wants("plan-steps") {
        let mut steps = Vec::new();
        for messages in CONVERSATIONS {
            steps.push(plan_steps(&floor, &product, messages).await);
        }
        report["plan_step_of_a_run_with_two_and_a_call"] = steps.into();
    }
    if wants("cancels") {
        let cancel = product.cancels(CANCELS).await;
        report["cancel_of_a_spinning_guest"] = json!({
            "unit": "ms wall, request to terminal status",
            "n": CANCELS,
            "p50": percentile(&cancel, 50),
            "p99": percentile(&cancel, 99),
            "goal_p50": 5.0,
            "goal_p99": 25.0,
        });
    }
    if wants("starts") {
        let cold = cold::starts(STARTS);
        report["cold_start"] = json!({
            "unit": "ms wall, components cached: start of the process to the first tool answer",
            "n": cold.ms.len(),
            "p50": percentile(&cold.ms, 50),
            "max": percentile(&cold.ms, 100),
            "goal": 10.0,
            "resident_mib_after": percentile(&cold.resident_mib, 50),
            "goal_resident_mib": 20.0,
        });
    }
    if wants("loads") {
        report["load_of_a_large_component"] = large::measure().await;
    }
    product.close().await;
    report
}

/// CPU microseconds per operation, floor and product, round by round.
#[derive(Default)]
struct Pairs(Vec<(f64, f64)>);

impl Pairs {
    /// Takes a pair into account, unless its round is the one that does not count.
    fn count(&mut self, round: usize, pair: (f64, f64)) {
        if round > 0 {
            self.0.push(pair);
        }
    }

    fn report(&self, goal: Option<f64>) -> Value {
        let of = |pick: fn(&(f64, f64)) -> f64| {
            let figures: Vec<f64> = self.0.iter().map(pick).collect();
            percentile(&figures, 50)
        };
        json!({
            "unit": "us of CPU per operation",
            "floor": of(|pair| pair.0),
            "product": of(|pair| pair.1),
            "ratio": of(|pair| pair.1 / pair.0),
            "goal_ratio": goal,
            "rounds": self.0.len(),
        })
    }
}
