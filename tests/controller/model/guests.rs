//! The agents and tools of the model: each parks at points that the test knows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use taskrun::ports::planner::PlanInput;
use taskrun::ports::tool::{ToolReply, ToolWait};
use taskrun_journal::event::RunsReport;
use taskrun_journal::hold::WaitMode;
use taskrun_journal::ids::RunId;
use taskrun_journal::message::Labels;
use taskrun_journal::plan::PlannerError;
use taskrun_journal::tool::{ToolHints, ToolOutcome};
use taskrun_policy::InterruptionPolicy;
use tokio::sync::watch;

use crate::native::{
    ClosurePlanner, ClosureTool, Finalized, Planned, World, answer, call_of, value,
};

/// The key of a run's state that holds the arguments of its only tool call.
pub(super) const PAYLOAD: &str = "payload";

/// The things that guests wait for, by the id of their run.
#[derive(Default)]
pub(super) struct Gates(Mutex<BTreeMap<String, watch::Sender<bool>>>);

impl Gates {
    fn gate(&self, run: &str) -> watch::Receiver<bool> {
        let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gates.entry(run.to_owned()).or_insert_with(|| watch::Sender::new(false)).subscribe()
    }

    pub(super) fn open(&self, run: &str) {
        let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gate = gates.entry(run.to_owned()).or_insert_with(|| watch::Sender::new(false));
        gate.send_replace(true);
    }

    async fn pass(&self, run: &str) {
        // The gates outlive the guests.
        self.gate(run).wait_for(|open| *open).await.ok();
    }
}

/// A planner that calls one tool and answers with what that gave.
fn calls(function: &'static str) -> ClosurePlanner {
    ClosurePlanner::new(move |input, scope| async move {
        let payload = scope.context().envelope.get(PAYLOAD).cloned();
        one_call(function, &input, &payload.unwrap_or_else(|| "{}".to_owned()))
    })
}

fn one_call(function: &str, input: &PlanInput, payload: &str) -> Planned {
    match &input.resume {
        None => call_of(&[("c1", function, payload)]),
        Some(resume) => answer(&match &resume.tool_outputs[0].outcome {
            ToolOutcome::Value(value) => value.clone(),
            ToolOutcome::Failure(failure) => {
                format!("failure:{}", failure.error.code.as_deref().unwrap_or_default())
            }
        }),
    }
}

fn timeout(payload: &Value) -> Option<Duration> {
    payload["ms"].as_u64().map(Duration::from_millis)
}

fn told() -> Finalized {
    Ok(Ok(Labels::from([("told".to_owned(), "yes".to_owned())])))
}

fn gated(gates: &Arc<Gates>) -> ClosurePlanner {
    let gates = Arc::clone(gates);
    ClosurePlanner::new(move |_, scope| {
        let gates = Arc::clone(&gates);
        async move {
            gates.pass(&scope.context().run_id).await;
            answer("released")
        }
    })
}

fn holding(gates: &Arc<Gates>, idempotent: bool) -> ClosureTool {
    let gates = Arc::clone(gates);
    let hints = ToolHints { idempotent, ..ToolHints::default() };
    ClosureTool::new("hold", hints, move |call, _| {
        let gates = Arc::clone(&gates);
        async move {
            gates.pass(&call.run_id).await;
            value("\"held\"")
        }
    })
}

/// Adds the agents to a world.
pub(super) fn add(world: &mut World, gates: &Arc<Gates>) {
    let hints = ToolHints::default();
    world.tool("again", InterruptionPolicy::Fail, holding(gates, true));
    world.tool("once", InterruptionPolicy::Fail, holding(gates, false));
    let ask = ClosureTool::new("ask", hints, |call, _| async move {
        let payload: Value = serde_json::from_str(&call.payload).unwrap_or_default();
        let timeout = timeout(&payload);
        Ok(Ok(ToolReply::Park(ToolWait::Person { question: "which?".into(), timeout })))
    });
    world.tool("person", InterruptionPolicy::Fail, ask);
    let wait = ClosureTool::new("await", hints, |call, _| async move {
        let payload: Value = serde_json::from_str(&call.payload).unwrap_or_default();
        let runs = payload["runs"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let runs = runs.filter_map(|id| RunId::new(id).ok()).collect();
        let mode = if payload["any"] == json!(true) { WaitMode::Any } else { WaitMode::All };
        let timeout = timeout(&payload);
        Ok(Ok(ToolReply::Park(ToolWait::Runs { runs, mode, timeout, report: RunsReport::List })))
    });
    world.tool("runs", InterruptionPolicy::Fail, wait);
    world.agent("quick", ClosurePlanner::new(|_, _| async { answer("quick") }));
    world.agent("gate", gated(gates));
    world.agent("stubborn", gated(gates).hearing());
    world.agent("final", gated(gates).finalizer(|_, _| async { told() }));
    let slow = Arc::clone(gates);
    let slow = ClosurePlanner::new(|_, _| async { answer("quick") }).finalizer(move |input, _| {
        let gates = Arc::clone(&slow);
        async move {
            gates.pass(&input.run.run_id).await;
            told()
        }
    });
    world.agent("slow", slow);
    world.agent_with("mortal", gated(gates), |agent| agent.durable = false);
    world.agent("again", calls("again/hold"));
    world.agent("once", calls("once/hold"));
    world.agent("ask", calls("person/ask"));
    world.agent("await", calls("runs/await"));
    world.agent(
        "fail",
        ClosurePlanner::new(|_, _| async {
            Ok(Err(PlannerError {
                code: None,
                message: "no".into(),
                causes: Vec::new(),
                retry_after_ms: None,
            }))
        }),
    );
}
