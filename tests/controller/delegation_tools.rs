//! `delegate` and `delegate_task`, called by agents as their models call them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::dispatch::TaskEvent;
use taskrun_journal::event::Event;
use taskrun_journal::list::{ListFilter, PAGE_MAX};
use taskrun_journal::message::Thinking;
use taskrun_journal::spec::TreeBounds;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use super::common::{Gates, beneath, count};
use super::delivery::{children, heard, line, say, task as task_of};
use super::dispatches::{Heard, all_delivered, hears, registered, rows};
use super::host_tools::{leader, leader_that, leader_with, words};
use crate::native::{
    ClosurePlanner, ClosureTool, Gate, SESSION, World, answer, call_of, request, value,
};

fn task(agent: &str, message: &str) -> Value {
    json!({ "agent": agent, "message": message })
}

#[tokio::test]
async fn m_69_several_tasks_are_begun_together_and_their_results_come_in_the_order_given() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent("worker", gates.planner());
    leader(&mut world, "lead", &["worker"], |_, said| match said.is_empty() {
        true => {
            let tasks = ["one", "two", "three"].map(|message| task("worker", message));
            vec![("delegate", json!({ "tasks": tasks }))]
        }
        false => Vec::new(),
    });
    let host = world.start().await;
    let id = host.spawn(&request("lead", "x")).await;
    let mut came = gates.have_come(3).await;
    host.reach(&id, Status::Blocked).await;
    // The last that came ends first.
    came.reverse();
    for run in &came {
        assert!(host.get(run).await.spec.attached);
        gates.open(run);
        host.end(run).await;
    }
    let said = words(&host, &id).await;
    let ends = said[0].as_array().expect("a list");
    let mut tasks = Vec::new();
    for end in ends {
        assert_eq!(end["status"], "finished");
        let child = end["task_id"].as_str().expect("an id");
        assert_eq!(end["result"], format!("done {child}"));
        tasks.push(host.get(child).await.spec.task.clone());
    }
    assert_eq!(tasks, ["one", "two", "three"]);
}

#[tokio::test]
async fn m_69_of_several_tasks_all_are_begun_or_none() {
    let mut world = World::new();
    world.agent("worker", ClosurePlanner::new(|_, _| async { answer("work") }));
    leader_with(
        &mut world,
        ("lead", &["worker"]),
        |_, said| match said.len() {
            0 => {
                let three = ["one", "two", "three"].map(|message| task("worker", message));
                vec![("delegate", json!({ "tasks": three }))]
            }
            1 => {
                let stranger = [task("worker", "one"), task("stranger", "two")];
                vec![("delegate", json!({ "tasks": stranger }))]
            }
            2 => {
                let blank = [task("worker", "one"), task("worker", " ")];
                vec![("delegate", json!({ "tasks": blank }))]
            }
            3 => vec![("delegate", json!({ "tasks": [] }))],
            4 => vec![("check_tasks", json!({}))],
            5 => {
                let two = ["one", "two"].map(|message| task("worker", message));
                vec![("delegate", json!({ "tasks": two }))]
            }
            _ => Vec::new(),
        },
        // The first run of the tree is one of them.
        |agent| agent.tree = TreeBounds { runs: Some(3), ..TreeBounds::default() },
    );
    let host = world.start().await;
    let said = words(&host, &host.spawn(&request("lead", "x")).await).await;
    let codes: Vec<_> = said[..4].iter().map(|said| said["code"].as_str()).collect();
    let invalid = Some("invalid-arguments");
    assert_eq!(codes, [Some("limit"), Some("denied"), invalid, invalid], "{said:?}");
    assert_eq!(said[0]["text"], "limit met: tree (3)");
    assert_eq!(said[1]["text"], "agent 'stranger' is not in your members list");
    assert_eq!(said[4], json!([]), "nothing was started");
    assert_eq!(said[5].as_array().map(Vec::len), Some(2), "{said:?}");
}

#[tokio::test]
async fn m_69_tasks_that_are_waited_for_end_with_the_run_that_gave_them() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent("worker", gates.planner());
    leader(&mut world, "lead", &["worker"], |_, said| match said.is_empty() {
        true => vec![("delegate", json!({ "tasks": [task("worker", "a"), task("worker", "b")] }))],
        false => Vec::new(),
    });
    let host = world.start().await;
    let id = host.spawn(&request("lead", "x")).await;
    let came = gates.have_come(2).await;
    host.reach(&id, Status::Blocked).await;
    host.client().cancel(&id, None).await.expect("cancels");
    for run in &came {
        let ended = host.end(run).await;
        let reason = ended.ending().map(|ending| ending.stop_reason);
        assert_eq!(reason, Some(StopReason::CanceledByParent));
    }
}

#[tokio::test]
async fn rs_01_a_delegated_task_runs_in_a_room_of_its_own_and_is_told_its_context() {
    let mut world = World::new();
    let told = ClosurePlanner::new(|input: taskrun::ports::planner::PlanInput, _| async move {
        let told: Vec<_> = input.messages.iter().map(|message| message.joined_text()).collect();
        answer(&told.join("|"))
    });
    world.agent("reviewer", told);
    leader(&mut world, "assistant", &["reviewer"], |_, said| match said.len() {
        0 => {
            let context = json!({ "pr": 7 });
            let arguments = json!({ "agent": "reviewer", "task": "Review.", "context": context });
            vec![("delegate_task", arguments)]
        }
        1 => vec![("await_tasks", json!({ "task_ids": [said[0]["task_id"]] }))],
        _ => Vec::new(),
    });
    let host = world.start().await;
    let mut asked = request("assistant", "x");
    asked.parent_session_id = "call-room".into();
    let said = words(&host, &host.spawn(&asked).await).await;
    let delegated = &said[0];
    let keys: Vec<_> = delegated.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["agent_id", "child_room_id", "status", "task_id"]);
    assert_eq!(
        (&delegated["status"], &delegated["agent_id"]),
        (&json!("delegated"), &json!("reviewer"))
    );
    let room = delegated["child_room_id"].as_str().expect("a room");
    assert!(room.starts_with("call-room::task-"), "{room}");
    let child = host.get(delegated["task_id"].as_str().expect("an id")).await;
    assert_eq!(child.execution().expect("it ran").child_session_id, room);
    assert!(!child.spec.attached);
    let [end] = said[1].as_array().expect("a list").as_slice() else { panic!("{said:?}") };
    assert_eq!(end["result"], "Context of the task:\n{\"pr\":7}|Review.");
}

/// A line of the room `call-room`, whose agent delegates a review where it is told to, and says what
/// it was told otherwise.
fn in_room(task: &str) -> SpawnRequest {
    SpawnRequest { parent_session_id: "call-room".into(), ..line("voice-assistant", task) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rs_01_each_hook_hears_of_a_task_once_and_the_agent_that_gave_it_is_told_its_result() {
    let (mut world, gate, audit) = (World::new(), Gate::new(), Heard::default());
    world.agent_with("pr-reviewer", gate.answering("PR looks good. Ready to merge."), |agent| {
        agent.subscribers = vec!["transport/audit".to_owned()];
    });
    world.subscribers = registered([("audit", hears(&audit))]);
    let assistant = ClosurePlanner::new(|input: PlanInput, _| async move {
        match (input.resume.is_none(), task_of(&input).as_str()) {
            (true, "Review it.") => {
                let arguments = r#"{"agent":"pr-reviewer","task":"Review."}"#;
                call_of(&[("c", "host/delegate_task", arguments)])
            }
            (true, _) => answer(&heard(&input)),
            (false, _) => answer("Under way."),
        }
    });
    leader_that(&mut world, ("voice-assistant", &["pr-reviewer"]), assistant, |_| {});
    let host = world.start().await;
    let first = host.spawn(&in_room("Review it.")).await;
    host.end(&first).await;
    let child = children(&host, &first).await.remove(0);
    gate.reached_by(1).await;
    world.clock.advance(Duration::from_millis(7));
    gate.open();
    let run = host.end(&child).await;
    assert_eq!((run.status(), run.spec.agent_name.as_str()), (Status::Completed, "pr-reviewer"));
    assert_eq!(run.spec.parent_run_id.as_ref().map(|id| id.as_str()), Some(first.as_str()));
    assert_eq!(host.view(&child).await.duration_ms, Some(7));
    let report = format!(
        "pr-reviewer {child}: completed\nresult:\n```\nPR looks good. Ready to merge.\n```"
    );
    let told = say(&world, &host, &in_room("What is new?")).await;
    assert_eq!(told.matches(&report).count(), 1, "{told}");
    rows(&host, &child, all_delivered(2)).await;
    host.settle().await;
    let mut hooks = audit.told();
    hooks.sort();
    let key = |event: TaskEvent| format!("{child}/{event}/transport/audit");
    let expected = [
        (key(TaskEvent::Completed), Status::Completed),
        (key(TaskEvent::Delegated), Status::Queued),
    ];
    assert_eq!(hooks, expected);
}

#[tokio::test]
async fn rs_13_an_agent_or_a_room_that_is_not_there_is_refused_and_nothing_is_created() {
    let mut world = World::new();
    world.agent("reviewer", ClosurePlanner::new(|_, _| async { answer("work") }));
    leader(&mut world, "assistant", &["reviewer"], |_, said| match said.is_empty() {
        true => vec![
            ("delegate_task", json!({ "agent": "nobody", "task": "Review." })),
            ("delegate", json!({ "tasks": [task("nobody", "Review.")] })),
        ],
        false => Vec::new(),
    });
    let host = world.start().await;
    let id = host.spawn(&request("assistant", "x")).await;
    let said = words(&host, &id).await;
    let [enumerated, named] = &said[..] else { panic!("{said:?}") };
    assert_eq!(enumerated["code"], "invalid-arguments");
    let expected = "the arguments of host/delegate_task do not fit: agent must be one of: reviewer";
    assert_eq!(enumerated["text"], expected);
    let denied = json!({ "code": "denied", "text": "agent 'nobody' is not in your members list" });
    assert_eq!(named, &denied);
    // A room needs not be made known: one that was ended is gone, and so is a run that is not there.
    let client = host.client();
    client.end_session(SESSION).await.expect("ends");
    for (refused, code) in [
        (request("nobody", "Review."), "invalid"),
        (request("reviewer", "Review."), "session-ended"),
        (beneath("nobody", "child", "reviewer"), "not-found"),
    ] {
        let error = client.spawn(&refused).await.expect_err("it is refused");
        assert_eq!(error.code(), code, "{refused:?}: {error}");
    }
    let page = client.list(&ListFilter::default(), None, PAGE_MAX).await.expect("lists");
    let all: Vec<_> = page.runs.iter().map(|run| run.id().as_str()).collect();
    assert_eq!(all, [id.as_str()], "nothing was created");
}

#[tokio::test]
async fn rs_28_the_record_of_a_task_has_words_call_and_words_in_order_and_no_thinking() {
    let mut world = World::new();
    let looks = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("\"3 files\"") });
    world.tool("diff", InterruptionPolicy::Fail, looks);
    let reviewer = ClosurePlanner::new(|input: PlanInput, scope: Arc<CallScope>| async move {
        let block = Thinking { text: "a secret doubt".to_owned(), signature: None };
        scope.record(Event::ThinkingBlock { block });
        match input.resume.is_none() {
            true => {
                scope.record(Event::AssistantChunk { text: "Let me look.".to_owned() });
                call_of(&[("c", "diff/f", "{}")])
            }
            false => answer("Looks good."),
        }
    });
    world.agent("reviewer", reviewer);
    leader(&mut world, "assistant", &["reviewer"], |_, said| match said.len() {
        0 => vec![("delegate_task", json!({ "agent": "reviewer", "task": "Review." }))],
        1 => vec![("await_tasks", json!({ "task_ids": [said[0]["task_id"]] }))],
        2 => vec![("read_task_run_transcript", json!({ "id": said[0]["task_id"] }))],
        _ => Vec::new(),
    });
    let host = world.start().await;
    let said = words(&host, &host.spawn(&request("assistant", "x")).await).await;
    let room = said[2]["child_session_id"].as_str().expect("a room of its own");
    assert_eq!(room, said[0]["child_room_id"]);
    let events = said[2]["events"].as_array().expect("a list");
    let story: Vec<_> = events
        .iter()
        .map(|event| ["author", "role", "content"].map(|key| event[key].as_str().expect("text")))
        .collect();
    let expected = [
        ["user", "user", "Review."],
        ["reviewer", "assistant", "Let me look."],
        ["diff/f", "tool", "\"3 files\""],
        ["reviewer", "assistant", "Looks good."],
    ];
    assert_eq!(story, expected);
    let calls = &events[1]["tool_calls"];
    assert_eq!((&calls[0]["tool_call_id"], &calls[0]["name"]), (&json!("c"), &json!("diff/f")));
    assert_eq!(events[2]["tool_id"], "c");
    // It is kept where providers want it back, and shown to nobody who reads.
    let child = said[0]["task_id"].as_str().expect("an id");
    assert_eq!(count(&host.journal(child).await, "thinking_block"), 2);
    assert!(!said[2].to_string().contains("a secret doubt"), "{}", said[2]);
}
