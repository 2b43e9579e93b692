//! The tools of the host that speak of task runs, called by agents as their models call them (TS-23 to
//! TS-26).

use std::time::Duration;

use serde_json::{Value, json};
use taskrun::agents::{Agent, AgentTools, Callee};
use taskrun::ports::planner::PlanInput;
use taskrun_journal::spec::TreeBounds;
use taskrun_journal::status::Status;
use taskrun_journal::tool::ToolOutcome;
use taskrun_policy::{CallTimeouts, HostFunction, Limits};

use super::common::{Gates, named};
use super::delivery::line;
use crate::native::{
    ClosurePlanner, Native, Planned, World, answer, call_of, change_code, request,
};

/// The next calls of an agent after these answers; none ends its run.
pub(crate) type Next = fn(&str, &[Value]) -> Vec<(&'static str, Value)>;

/// The answers of the tools so far: their values, or `{"code","text"}` of failures.
fn said(input: &PlanInput) -> Vec<Value> {
    let outputs = input.resume.iter().flat_map(|resume| resume.tool_outputs.iter());
    let said = outputs.map(|output| match &output.outcome {
        ToolOutcome::Value(value) => serde_json::from_str(value).expect("JSON"),
        ToolOutcome::Failure(failure) => {
            json!({ "code": failure.error.code, "text": failure.error.message })
        }
    });
    said.collect()
}

/// An agent that calls tools of the host one after the other, and answers with what they said.
pub(super) fn calling(next: Next) -> ClosurePlanner {
    ClosurePlanner::new(move |input: PlanInput, _| {
        let planned = step(&input, next);
        async move { planned }
    })
}

/// The step of such an agent.
pub(crate) fn step(input: &PlanInput, next: Next) -> Planned {
    let said = said(input);
    let task = input.messages.iter().rev().find(|message| message.role.as_str() == "user");
    let task = task.map(|message| message.joined_text()).unwrap_or_default();
    let calls = next(&task, &said);
    if calls.is_empty() {
        return answer(&Value::from(said).to_string());
    }
    let calls: Vec<(String, String, String)> = calls
        .into_iter()
        .enumerate()
        .map(|(nth, (name, arguments))| {
            (format!("c{}-{nth}", said.len()), format!("host/{name}"), arguments.to_string())
        })
        .collect();
    let calls: Vec<(&str, &str, &str)> =
        calls.iter().map(|(id, name, args)| (id.as_str(), name.as_str(), args.as_str())).collect();
    call_of(&calls)
}

/// Agents of these names, of which nothing is said.
pub(super) fn callees(names: &[String]) -> Vec<Callee> {
    names.iter().map(|name| Callee { name: name.clone(), description: None }).collect()
}

/// Adds an agent that has all tools of the host and may start runs of these.
pub(crate) fn leader(world: &mut World, name: &str, members: &[&str], next: Next) {
    leader_with(world, (name, members), next, |_| {});
}

/// The same, changed.
pub(crate) fn leader_with(
    world: &mut World,
    (name, members): (&str, &[&str]),
    next: Next,
    change: impl FnOnce(&mut Agent),
) {
    leader_that(world, (name, members), calling(next), change);
}

/// The same, with a planner of its own.
pub(crate) fn leader_that(
    world: &mut World,
    (name, members): (&str, &[&str]),
    planner: ClosurePlanner,
    change: impl FnOnce(&mut Agent),
) {
    let members: Vec<String> = members.iter().map(|&name| name.to_owned()).collect();
    world.agent_with(name, planner, |agent| {
        agent.members.clone_from(&members);
        change_code(agent, |code| {
            let bounds = (&Limits::default(), &CallTimeouts::default());
            let members = callees(&members);
            let tools = AgentTools::none().with_host_tools(&HostFunction::ALL, &members, bounds);
            code.tools = tools.expect("the host's own schemas are some");
        });
        change(agent);
    });
}

/// The words of an agent that is done.
pub(crate) async fn words(host: &Native, id: &str) -> Vec<Value> {
    let run = host.end(id).await;
    assert_eq!(run.status(), Status::Completed, "{:?}", run.ending());
    let words = match run.artifact() {
        Some(whole) => {
            let bytes = host.client().artifact(id, &whole.hash).await.expect("kept");
            String::from_utf8(bytes.to_vec()).expect("text")
        }
        None => run.state.reply.result().expect("it answers"),
    };
    serde_json::from_str(&words).expect("a list")
}

pub(super) fn id_of(said: &[Value], nth: usize) -> Value {
    let said = &said[nth];
    said.get("id").or(said.get("task_id")).cloned().unwrap_or_default()
}

#[tokio::test]
async fn ts_23_a_task_run_is_started_listed_shown_canceled_and_waited_for() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent("worker", gates.planner());
    leader(&mut world, "lead", &["worker"], |_, said| match said.len() {
        0 => vec![("start_task_run", json!({ "task": "review", "timeout_seconds": 5 }))],
        1 => vec![
            ("list_task_runs", json!({ "ignored": true })),
            ("get_task_run", json!({ "id": id_of(said, 0) })),
        ],
        3 => vec![("cancel_task_run", json!({ "id": id_of(said, 0) }))],
        4 => vec![("wait_task_run", json!({ "id": id_of(said, 0), "timeout_seconds": -1 }))],
        _ => Vec::new(),
    });
    let host = world.start().await;
    let asked = taskrun::spawn::SpawnRequest {
        parent_app_name: Some("app".into()),
        ..request("lead", "x")
    };
    let id = host.spawn(&asked).await;
    let said = words(&host, &id).await;
    let [started, listed, got, canceled, waited] = said.as_slice() else { panic!("{said:?}") };
    let lead = host.get(&id).await;
    let session = lead.execution().expect("it ran").child_session_id.clone();
    assert_eq!(started["status"], "queued");
    assert_eq!((&started["agent_name"], &started["task"]), (&json!("worker"), &json!("review")));
    assert_eq!(
        (&started["parent_session_id"], &started["parent_run_id"]),
        (&json!(session), &json!(id))
    );
    assert_eq!((&started["created_by"], started.get("app_name")), (&json!("lead"), None));
    assert_eq!(listed["runs"].as_array().map(Vec::len), Some(1));
    assert_eq!(listed["runs"][0]["id"], started["id"]);
    assert_eq!(got["id"], started["id"]);
    assert!(["canceling", "canceled"].contains(&canceled["status"].as_str().expect("a word")));
    assert_eq!((&waited["status"], waited.get("timed_out")), (&json!("canceled"), None));
    let child = host.get(started["id"].as_str().expect("an id")).await;
    assert_eq!(child.spec.timeout_ms, Some(5_000));
}

#[tokio::test]
async fn t_070_a_sync_start_that_times_out_shows_the_run_as_it_stands_and_cancels_nothing() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent("worker", gates.planner());
    leader(&mut world, "lead", &["worker", "other"], |_, said| {
        let start = |wait: i64| {
            json!({ "task": "t", "agent_name": "worker", "mode": "sync",
                    "wait_timeout_seconds": wait })
        };
        match said.len() {
            0 => vec![("start_task_run", start(7))],
            1 => vec![("wait_task_run", json!({ "id": id_of(said, 0) }))],
            2 => vec![("start_task_run", start(0))],
            _ => Vec::new(),
        }
    });
    let host = world.start().await;
    let id = host.spawn(&request("lead", "x")).await;
    let child = gates.have_come(1).await[0].clone();
    host.reach(&id, Status::Blocked).await;
    world.clock.advance(Duration::from_secs(7));
    host.until(&id, "it goes on", |run| run.state.turns > 1).await;
    gates.open(&child);
    let second = gates.have_come(2).await[1].clone();
    gates.open(&second);
    let said = words(&host, &id).await;
    assert_eq!((&said[0]["id"], &said[0]["timed_out"]), (&json!(child), &json!(true)));
    assert_eq!(said[0]["status"], "running");
    assert_eq!(
        (&said[1]["status"], &said[1]["result"]),
        (&json!("completed"), &json!(format!("done {child}")))
    );
    assert_eq!((&said[2]["status"], &said[2]["id"]), (&json!("completed"), &json!(second)));
}

#[tokio::test]
async fn t_068_to_t_080_what_cannot_be_is_told_in_the_documented_words() {
    let mut world = World::new();
    world.agent("worker", Gates::new().planner());
    leader(&mut world, "lead", &["worker", "second"], |_, said| match said.is_empty() {
        true => vec![
            ("start_task_run", json!({ "task": "t", "agent_name": "worker", "mode": "later" })),
            ("start_task_run", json!({ "task": "t" })),
            ("start_task_run", json!({ "task": "t", "agent_name": "writer" })),
            ("start_task_run", json!({ "task": " ", "agent_name": "worker" })),
            ("get_task_run", json!({ "id": " " })),
            ("get_task_run", json!({ "id": "nobody" })),
            ("spawn_task", json!({ "agent": "writer", "message": "m" })),
            ("create_task", json!({ "agent": "worker", "description": "d" })),
            ("check_tasks", json!({ "status": "sleeping" })),
            ("ask_user", json!({ "question": " " })),
            ("spawn_task", json!({ "agent": "worker" })),
        ],
        false => Vec::new(),
    });
    let host = world.start().await;
    let id = host.spawn(&request("lead", "x")).await;
    let said = words(&host, &id).await;
    let expected = [
        ("invalid-arguments", "unsupported mode"),
        ("invalid-arguments", "agent_name is missing; it is one of: worker, second"),
        ("denied", "agent 'writer' is not in your members list"),
        ("invalid-arguments", "empty task"),
        ("invalid-arguments", "empty run id"),
        ("not-found", "run not found: nobody"),
        ("denied", "agent 'writer' is not in your members list"),
        ("invalid-arguments", "agent worker has no heartbeat"),
        ("invalid-arguments", "unknown status \"sleeping\"; known are: queued, in_progress"),
        ("invalid-arguments", "the question is empty"),
        // W-018.
        ("invalid-arguments", "the arguments of host/spawn_task do not fit: message is required"),
    ];
    assert_eq!(said.len(), expected.len());
    for (said, (code, text)) in said.iter().zip(expected) {
        assert_eq!(said["code"], code, "{said}");
        assert!(said["text"].as_str().expect("a text").contains(text), "{said} is not {text}");
    }
    let tree = host.client().tree(&id).await.expect("there");
    assert!(tree.descendants.is_empty(), "nothing was started");
}

#[tokio::test]
async fn ts_25_a_run_beneath_the_bound_of_depth_starts_none_by_whatever_name() {
    let mut world = World::new();
    world.agent("worker", Gates::new().planner());
    let nested: Next = |_, said| match said.len() {
        0 => vec![
            ("start_task_run", json!({ "task": "deeper", "agent_name": "worker" })),
            ("spawn_task", json!({ "agent": "worker", "message": "deeper" })),
        ],
        _ => Vec::new(),
    };
    leader(&mut world, "middle", &["worker"], nested);
    for (name, depth) in [("flat", 1), ("deep", 2)] {
        let start: Next = |_, said| match said.is_empty() {
            true => vec![("start_task_run", json!({ "task": "t", "mode": "sync" }))],
            false => Vec::new(),
        };
        leader_with(&mut world, (name, &["middle"]), start, |agent| {
            agent.tree = TreeBounds { depth: Some(depth), ..TreeBounds::default() };
        });
    }
    let host = world.start().await;
    let flat = words(&host, &host.spawn(&request("flat", "x")).await).await;
    let refused = flat[0]["result"].as_str().expect("it answers");
    assert_eq!(refused.matches("nested task runs are not supported").count(), 2, "{refused}");
    let deep = words(&host, &host.spawn(&request("deep", "x")).await).await;
    let started = deep[0]["result"].as_str().expect("it answers");
    assert!(!started.contains("nested") && started.contains("queued"), "{started}");
}

#[tokio::test]
async fn m_13_the_agent_of_the_first_run_bounds_the_whole_tree() {
    let mut world = World::new();
    world.agent("worker", Gates::new().planner());
    let down: Next = |_, said| match said.is_empty() {
        true => vec![("start_task_run", json!({ "task": "t", "mode": "sync" }))],
        false => Vec::new(),
    };
    // The number of its own agent is no bound for a run in the tree of another one.
    leader_with(&mut world, ("middle", &["worker"]), down, |agent| {
        agent.tree = TreeBounds { runs: Some(2), ..TreeBounds::default() };
    });
    leader_with(&mut world, ("top", &["middle"]), down, |agent| {
        agent.tree = TreeBounds { runs: Some(128), ..TreeBounds::default() };
    });
    world.agent("worker", ClosurePlanner::new(|_, _| async { answer("deep") }));
    let host = world.start().await;
    let said = words(&host, &host.spawn(&request("top", "x")).await).await;
    assert!(said[0]["result"].as_str().expect("an answer").contains("deep"), "{said:?}");
}

#[tokio::test]
async fn m_13_a_tree_of_the_policys_size_is_refused_its_next_run() {
    let mut world = World::new();
    world.agent("worker", Gates::new().planner());
    let thrice: Next = |_, said| match said.is_empty() {
        true => vec![("spawn_task", json!({ "agent": "worker", "message": "m" })); 3],
        false => Vec::new(),
    };
    leader_with(&mut world, ("lead", &["worker"]), thrice, |agent| {
        agent.tree = TreeBounds { runs: Some(3), ..TreeBounds::default() };
    });
    let host = world.start().await;
    let said = words(&host, &host.spawn(&request("lead", "x")).await).await;
    let refused: Vec<_> = said.iter().filter(|said| said["code"] == "limit").collect();
    assert_eq!(refused.len(), 1, "{said:?}");
    assert_eq!(refused[0]["text"], "limit met: tree (3)");
}

#[tokio::test]
async fn ts_26_a_transcript_is_read_by_those_above_and_by_nobody_else() {
    let mut world = World::new();
    world.agent("worker", ClosurePlanner::new(|_, _| async { answer("the answer") }));
    leader(&mut world, "lead", &["worker"], |task, said| match said.len() {
        0 if task == "start" => {
            vec![("start_task_run", json!({ "task": "look", "mode": "sync" }))]
        }
        0 => vec![("read_task_run_transcript", json!({ "id": task }))],
        1 if task == "start" => vec![
            ("read_task_run_transcript", json!({ "id": id_of(said, 0), "limit": 1 })),
            ("read_task_run_transcript", json!({ "id": id_of(said, 0) })),
        ],
        _ => Vec::new(),
    });
    let host = world.start().await;
    let said = words(&host, &host.spawn(&line("lead", "start")).await).await;
    let child = said[0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(said[1]["events"].as_array().map(Vec::len), Some(1));
    let events = said[2]["events"].as_array().expect("a list");
    let contents: Vec<_> = events.iter().map(|event| event["content"].as_str()).collect();
    assert_eq!(contents, [Some("look"), Some("the answer")]);
    for key in ["id", "author", "object", "role", "timestamp"] {
        assert!(events[0].get(key).is_some_and(Value::is_string), "{key}: {}", events[0]);
    }
    // A later line of the same conversation reads it, and nobody else does.
    world.clock.advance(Duration::from_millis(1));
    let later = words(&host, &host.spawn(&line("lead", &child)).await).await;
    assert_eq!(later[0]["id"], child.as_str());
    let mut elsewhere = line("lead", &child);
    elsewhere.parent_session_id = "another".into();
    let mut other = line("lead", &child);
    other.owner_user_id = "user-b".into();
    for stranger in [elsewhere, other] {
        let said = words(&host, &host.spawn(&stranger).await).await;
        assert_eq!(said[0]["code"], "not-found", "{said:?}");
    }
}

/// Each tool that names a run, with a run that its caller may not see.
#[tokio::test]
async fn m_24_no_tool_tells_a_foreign_run_from_one_that_is_not_there() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent("worker", gates.planner());
    let prying: Next = |task, said| match said.is_empty() {
        true => vec![
            ("get_task_run", json!({ "id": task })),
            ("cancel_task_run", json!({ "id": task })),
            ("wait_task_run", json!({ "id": task })),
            ("read_task_run_transcript", json!({ "id": task })),
            ("await_tasks", json!({ "task_ids": [task] })),
            ("list_task_runs", json!({})),
            ("check_tasks", json!({})),
        ],
        false => Vec::new(),
    };
    leader(&mut world, "lead", &["worker"], prying);
    leader(&mut world, "starter", &["worker"], |_, said| match said.len() {
        0 => vec![("spawn_task", json!({ "agent": "worker", "message": "m" }))],
        _ => Vec::new(),
    });
    let host = world.start().await;
    // A run of its own session, and one that another agent of the session has started.
    host.spawn(&named("sibling", "worker")).await;
    let starter = host.spawn(&line("starter", "x")).await;
    let child = words(&host, &starter).await[0]["task_id"].as_str().expect("an id").to_owned();
    let mut refusals = Vec::new();
    for target in ["sibling", &child, &starter, "nobody"] {
        let said = words(&host, &host.spawn(&line("lead", target)).await).await;
        let said: Vec<_> = said.iter().map(|said| said.to_string().replace(target, "ID")).collect();
        refusals.push(said);
    }
    assert!(refusals.windows(2).all(|pair| pair[0] == pair[1]), "{refusals:#?}");
    assert!(refusals[0][..5].iter().all(|said| said.contains("not-found")), "{refusals:#?}");
    assert_eq!(refusals[0][5..], [json!({ "runs": [] }).to_string(), json!([]).to_string()]);
}
