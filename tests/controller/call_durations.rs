//! The time that a call took that waited for something or was cut off, as its result has it and
//! as a look at its run shows it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use taskrun::controller::CallStatus;
use taskrun::ports::planner::PlanInput;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::answers::Answers;
use taskrun_journal::event::Event;
use taskrun_journal::question::{Answer, Ask};
use taskrun_journal::status::Status;
use taskrun_journal::time::millis;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use super::agent_tools::{PLAY, caller, calling};
use super::awaits::{asking, external};
use super::common::{Gates, following, named};
use super::host_tools::leader;
use crate::native::{
    ClosurePlanner, ClosureTool, Gate, Native, World, answer, call_of, request, value,
};

/// The time that the calls wait.
const WAIT: Duration = Duration::from_millis(700);

/// One call of the tool that the task names, which waits.
fn waits(tool: &str, said: &[Value]) -> Vec<(&'static str, Value)> {
    let call = match tool {
        "spawn_agent" => ("spawn_agent", json!({ "agent": "worker", "goal": "g", "wait": true })),
        "start_task_run" => ("start_task_run", json!({ "task": "t", "mode": "sync" })),
        "delegate" => ("delegate", json!({ "tasks": [{ "agent": "worker", "message": "m" }] })),
        _ => ("ask_user", json!({ "question": "Which?" })),
    };
    if said.is_empty() { vec![call] } else { Vec::new() }
}

#[tokio::test]
async fn a_call_that_waited_took_the_time_since_it_began() {
    for tool in ["spawn_agent", "start_task_run", "delegate", "agent", "ask_user"] {
        let (mut world, gate) = (World::new(), Gate::new());
        world.agent("worker", gate.answering("done"));
        leader(&mut world, "lead", &["worker"], waits);
        world.agent_with("caller", caller(&[("c1", "agent/worker", PLAY)]), calling(&["worker"]));
        let host = world.start().await;
        let agent = if tool == "agent" { "caller" } else { "lead" };
        let id = host.spawn(&request(agent, tool)).await;
        host.reach(&id, Status::Blocked).await;
        let is_asked = tool == "ask_user";
        if !is_asked {
            gate.reached_by(1).await;
        }
        world.clock.advance(WAIT);
        gate.open();
        if is_asked {
            let text = Answer::Text("this".into());
            host.client().answer(&id, None, text).await.expect("it is asked");
        }
        assert_eq!(host.end(&id).await.status(), Status::Completed, "{tool}");
        let took = host.journal(&id).await.into_iter().find_map(|recorded| {
            let Event::ToolResult { duration_ms, .. } = recorded.event else { return None };
            Some(duration_ms)
        });
        assert_eq!(took, Some(millis(WAIT)), "{tool}");
    }
}

/// A call as a look at its run shows it: its stage, the word for its error, and its time.
type CallRow = (CallStatus, Option<String>, Option<u64>);

async fn rows(host: &Native, id: &str) -> Vec<CallRow> {
    let snapshot = host.client().snapshot(id).await.expect("it is there");
    let calls = snapshot.calls.into_iter();
    calls.map(|call| (call.status, call.error_code, call.duration_ms)).collect()
}

/// A tool whose calls come to a gate that nobody opens.
fn stuck(world: &mut World, gates: &Arc<Gates>) {
    let gates = Arc::clone(gates);
    let tool = ClosureTool::new("f", ToolHints::default(), move |_, _| {
        let gates = Arc::clone(&gates);
        async move {
            let _inside = gates.pass("never").await;
            value("1")
        }
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
}

#[tokio::test]
async fn a_call_that_the_end_of_the_time_cut_off_failed_and_one_without_a_place_was_refused() {
    let (mut world, gates) = (World::new(), Gates::new());
    stuck(&mut world, &gates);
    let planner = ClosurePlanner::new(|input: PlanInput, _| async move {
        if input.resume.is_some() {
            return answer("in short");
        }
        // One more than may be under way at once.
        let ids: Vec<_> = (0..17).map(|number| format!("c{number}")).collect();
        let calls: Vec<_> = ids.iter().map(|id| (id.as_str(), "t/f", "{}")).collect();
        call_of(&calls)
    });
    world.agent_with("a", planner, |agent| agent.budget.wall = Some(WAIT));
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    gates.have_come(16).await;
    world.clock.advance(WAIT);
    assert_eq!(host.end("1").await.status(), Status::Completed);
    let code = || Some("time-budget".to_owned());
    let mut expected = vec![(CallStatus::Failed, code(), Some(millis(WAIT))); 16];
    expected.push((CallStatus::Refused, code(), None));
    assert_eq!(rows(&host, "1").await, expected);
    let transcript = host.client().transcript("1", None, 40).await.expect("it is there");
    let results = transcript.events.iter().filter(|entry| entry.role == "tool");
    let times: Vec<_> = results.map(|entry| entry.duration_ms).collect();
    let timed = times.iter().filter(|time| **time == Some(millis(WAIT)));
    assert_eq!((times.len(), timed.count()), (17, 16), "{times:?}");
}

#[tokio::test]
async fn a_call_whose_host_died_has_failed_and_its_effect_is_not_known() {
    for durable in [true, false] {
        let (mut world, gates) = (World::new(), Gates::new());
        stuck(&mut world, &gates);
        let planner = following(vec![vec![("c", "t/f", "{}")]]);
        world.agent_with("a", planner, |agent| agent.durable = durable);
        let first = world.start().await;
        first.spawn(&named("1", "a")).await;
        gates.have_come(1).await;
        assert_eq!(rows(&first, "1").await, [(CallStatus::Running, None, None)]);
        world.kill(first).await;
        let second = world.take_over().await;
        let expected = if durable { Status::Completed } else { Status::Failed };
        assert_eq!(second.end("1").await.status(), expected);
        let snapshot = second.client().snapshot("1").await.expect("it is there");
        let [call] = snapshot.calls.as_slice() else { panic!("{:?}", snapshot.calls) };
        assert_eq!(call.status, CallStatus::Failed, "durable: {durable}");
        assert_eq!(call.error_code.as_deref(), Some("interrupted"), "durable: {durable}");
        let error = call.error.as_deref().expect("it says why");
        assert!(error.ends_with("whether it took effect is not known"), "{error}");
        // The other one has no result, and so no time.
        assert_eq!(call.duration_ms.is_some(), durable);
    }
}

#[tokio::test]
async fn a_call_outside_is_under_way_from_when_it_is_asked_for_unless_nobody_is_there() {
    let mut world = World::new();
    let ask = Ask { timeout: Some(WAIT), ..Ask::from(external("e", &["x"])) };
    world.agent("a", asking(vec![ask]).0);
    let host = world.start().await;
    host.spawn(&named("late", "a")).await;
    host.reach("late", Status::Blocked).await;
    assert_eq!(rows(&host, "late").await, [(CallStatus::Waiting, None, None)]);
    world.clock.advance(WAIT);
    assert_eq!(host.end("late").await.status(), Status::Completed);
    let code = |code: &str| Some(code.to_owned());
    let expected = (CallStatus::Failed, code("timeout"), Some(millis(WAIT)));
    assert_eq!(rows(&host, "late").await, [expected]);

    host.spawn(&named("canceled", "a")).await;
    host.reach("canceled", Status::Blocked).await;
    host.client().cancel("canceled", None).await.expect("it is there");
    assert_eq!(host.end("canceled").await.status(), Status::Canceled);
    let snapshot = host.client().snapshot("canceled").await.expect("it is there");
    let [call] = snapshot.calls.as_slice() else { panic!("{:?}", snapshot.calls) };
    assert_eq!(
        (call.status, call.error_code.as_deref()),
        (CallStatus::Failed, Some("interrupted"))
    );
    let error = call.error.as_deref().expect("it says why");
    assert!(error.ends_with("whether it took effect is not known"), "{error}");

    let answers = Some(Answers::Refuse { reason: "at night".to_owned() });
    host.spawn(&SpawnRequest { answers, ..named("alone", "a") }).await;
    assert_eq!(host.end("alone").await.status(), Status::Completed);
    assert_eq!(rows(&host, "alone").await, [(CallStatus::Refused, code("refused"), None)]);
}
