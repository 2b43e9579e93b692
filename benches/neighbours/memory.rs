//! The memory of a host after thousands of hostile calls.

use std::time::Duration;

use serde_json::{Value, json};
use taskrun::controller::succeeded;
use taskrun_benches::resident_bytes;

use crate::host::Host;

/// Hostile calls, in so many runs at once, so many in each turn.
const HOSTILE_CALLS: usize = 10_000;
const HOSTILE_RUNS: usize = 4;
const HOSTILE_PER_TURN: usize = 50;
/// Time without runs before memory is measured: an engine gives back what is free after a second,
/// a store its pages after five, and what was free between these after fifteen.
const REST: Duration = Duration::from_secs(20);

/// Most MiB that they may leave behind.
pub(crate) const GROWN_MIB_MAX: f64 = 32.0;

const MIB: f64 = (1 << 20) as f64;

impl Host {
    /// MiB resident in a host that worked, and rests.
    async fn resident_at_rest(&self) -> f64 {
        self.turns().await;
        tokio::time::sleep(REST).await;
        resident_bytes() / MIB
    }

    /// Resident memory after [`HOSTILE_CALLS`].
    pub(crate) async fn hostile(&self) -> Value {
        let before = self.resident_at_rest().await;
        let kinds: [(&str, Value); 8] = [
            ("overflow", json!({})),
            ("overflow_in_host_call", json!({})),
            ("panic", json!({})),
            ("lie", json!({})),
            ("grow", json!({})),
            ("alias_result", json!({ "mib": 8 })),
            ("big_result", json!({ "mib": 2 })),
            ("log_flood", json!({ "lines": 2000, "bytes": 4096 })),
        ];
        let calls = |turn: usize| -> Vec<Value> {
            let call = |n: usize| {
                let (name, args) = &kinds[(turn + n) % kinds.len()];
                json!({ "call": { "name": format!("evil/{name}"), "args": args } })
            };
            let mut calls: Vec<Value> = (0..HOSTILE_PER_TURN - 1).map(call).collect();
            calls.push(json!({ "call": { "name": "evil/spin", "args": {} } }));
            calls
        };
        let turns = HOSTILE_CALLS / HOSTILE_RUNS / HOSTILE_PER_TURN;
        let (mut peak, mut ids) = (before, Vec::new());
        for _ in 0..HOSTILE_RUNS {
            let mut steps: Vec<Vec<Value>> = (0..turns).map(calls).collect();
            steps.push(vec![json!({ "reply": "done" })]);
            ids.push(self.spawn("hostile", &json!({ "steps": steps }).to_string()).await);
        }
        for id in &ids {
            loop {
                let limit = Some(Duration::from_millis(20));
                let waited =
                    self.controller.at(&self.scope).wait(id, limit).await.expect("answers");
                peak = f64::max(peak, resident_bytes() / MIB);
                if !waited.timed_out {
                    assert!(succeeded(&waited.run), "{:?}", waited.run);
                    break;
                }
            }
        }
        let at_once = resident_bytes() / MIB;
        let after = self.resident_at_rest().await;
        json!({
            "unit": "MiB resident, before and after at rest",
            "calls": HOSTILE_CALLS,
            "before": before.round(),
            "peak": peak.round(),
            "at_once": at_once.round(),
            "after": after.round(),
            "grown": ((after - before) * 10.0).round() / 10.0,
            "goal_grown": GROWN_MIB_MAX,
        })
    }
}
