//! The time that a call took that waited for something, as its result has it.

use std::time::Duration;

use serde_json::{Value, json};
use taskrun_journal::event::Event;
use taskrun_journal::question::Answer;
use taskrun_journal::status::Status;
use taskrun_journal::time::millis;

use super::agent_tools::{PLAY, caller, calling};
use super::host_tools::leader;
use crate::native::{Gate, World, request};

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
