//! The tools of the host, called by agents as their models call them: task runs (TS-23 to TS-26)
//! and tasks (WS-07 to WS-23).

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use taskrun::agents::{Agent, AgentTools};
use taskrun::ports::planner::PlanInput;
use taskrun_journal::question::Answer;
use taskrun_journal::spec::TreeBounds;
use taskrun_journal::status::{BlockedOn, Status};
use taskrun_journal::tool::ToolOutcome;
use taskrun_policy::{BeatTimes, CallTimeouts, Heartbeat, HostFunction, Limits, Pattern};

use super::beats::beat;
use super::common::{Gates, count, named};
use crate::native::{
    ClosurePlanner, Native, Planned, World, answer, call_of, change_code, failed, request,
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
fn calling(next: Next) -> ClosurePlanner {
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

fn id_of(said: &[Value], nth: usize) -> Value {
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
        ("invalid-arguments", "message"),
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
    let said = words(&host, &host.spawn(&request("lead", "start")).await).await;
    let child = said[0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(said[1]["events"].as_array().map(Vec::len), Some(1));
    let events = said[2]["events"].as_array().expect("a list");
    let contents: Vec<_> = events.iter().map(|event| event["content"].as_str()).collect();
    assert_eq!(contents, [Some("look"), Some("the answer")]);
    for key in ["id", "author", "object", "role", "timestamp"] {
        assert!(events[0].get(key).is_some_and(Value::is_string), "{key}: {}", events[0]);
    }
    // A later line of the same conversation reads it, and nobody else does.
    let later = words(&host, &host.spawn(&request("lead", &child)).await).await;
    assert_eq!(later[0]["id"], child.as_str());
    let mut elsewhere = request("lead", &child);
    elsewhere.parent_session_id = "another".into();
    let mut other = request("lead", &child);
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
    let starter = host.spawn(&request("starter", "x")).await;
    let child = words(&host, &starter).await[0]["task_id"].as_str().expect("an id").to_owned();
    let mut refusals = Vec::new();
    for target in ["sibling", &child, &starter, "nobody"] {
        let said = words(&host, &host.spawn(&request("lead", target)).await).await;
        let said: Vec<_> = said.iter().map(|said| said.to_string().replace(target, "ID")).collect();
        refusals.push(said);
    }
    assert!(refusals.windows(2).all(|pair| pair[0] == pair[1]), "{refusals:#?}");
    assert!(refusals[0][..5].iter().all(|said| said.contains("not-found")), "{refusals:#?}");
    assert_eq!(refusals[0][5..], [json!({ "runs": [] }).to_string(), json!([]).to_string()]);
}

#[tokio::test]
async fn ws_07_a_task_names_its_parent_and_is_found_by_it() {
    let mut world = World::new();
    world.agent("b", Gates::new().planner());
    leader(&mut world, "a", &["b"], |task, said| match said.len() {
        0 => vec![("spawn_task", json!({ "agent": "b", "message": task }))],
        1 => vec![("check_tasks", json!({ "agent": "b" }))],
        2 => vec![("check_tasks", json!({ "parent_id": said[1][0]["parent_id"] }))],
        _ => Vec::new(),
    });
    let host = world.start().await;
    let first = host.spawn(&request("a", "one")).await;
    let said = words(&host, &first).await;
    assert_eq!(said[0]["status"], "queued");
    let task = &said[2][0];
    assert_eq!(said[2].as_array().map(Vec::len), Some(1));
    assert_eq!((&task["task_id"], &task["parent_id"]), (&said[0]["task_id"], &json!(first)));
    assert_eq!((&task["created_by"], &task["description"]), (&json!("a"), &json!("one")));
    assert_eq!((&task["prompt_tokens"], &task["alive_secs"]), (&json!(0), &json!(0)));
    world.clock.advance(Duration::from_millis(1));
    // The tasks of the line before are there in the next one, too.
    let said = words(&host, &host.spawn(&request("a", "two")).await).await;
    let all: Vec<_> =
        said[1].as_array().expect("a list").iter().map(|one| &one["description"]).collect();
    assert_eq!(all, ["two", "one"], "the latest first");
    assert_eq!(said[2].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn ws_11_and_ws_14_a_created_task_waits_for_the_heartbeat_and_is_completed_by_its_id() {
    let mut world = World::new();
    let planner = calling(|task, said| {
        let ids: Vec<&str> = task
            .lines()
            .filter_map(|line| Some(line.strip_prefix("Task #")?.split_once(':')?.0))
            .collect();
        match (said.len(), ids.as_slice()) {
            (0, [one, two, three]) => vec![
                ("complete_task", json!({ "task_id": one, "result": "done it" })),
                ("complete_task", json!({ "task_id": two, "result": "no", "failed": true })),
                ("complete_task", json!({ "task_id": two, "result": "no", "failed": true })),
                ("complete_task", json!({ "task_id": three, "result": "  " })),
                ("complete_task", json!({ "task_id": "foreign", "result": "mine" })),
                ("complete_task", json!({ "task_id": one, "result": "done otherwise" })),
            ],
            _ => Vec::new(),
        }
    });
    let bounds = (&Limits::default(), &CallTimeouts::default());
    let tools = AgentTools::none().with_host_tools(&[HostFunction::CompleteTask], &[], bounds);
    world.agent("sleeper", Gates::new().planner());
    world.agent_with("coder", planner, |agent| {
        agent.heartbeat =
            Some(Heartbeat { times: BeatTimes::Every(Duration::from_secs(60)), prompt: None });
        change_code(agent, |code| code.tools = tools.expect("a schema"));
    });
    leader(&mut world, "lead", &["coder"], |_, said| match said.is_empty() {
        true => ["one", "two", "three"]
            .map(|text| ("create_task", json!({ "agent": "coder", "description": text })))
            .into(),
        false => Vec::new(),
    });
    let host = world.start().await;
    let mut asked = request("lead", "x");
    asked.runtime_state = [("region".to_owned(), "north".to_owned())].into();
    asked.narrow.deny = vec!["model: *".to_owned()];
    let lead = host.spawn(&asked).await;
    let said = words(&host, &lead).await;
    let ids: Vec<String> =
        said.iter().map(|said| said["task_id"].as_str().expect("an id").to_owned()).collect();
    host.spawn(&named("foreign", "sleeper")).await;
    host.settle().await;
    for id in &ids {
        assert_eq!(host.get(id).await.status(), Status::Queued, "it waits for the beat");
    }
    let batch = beat(&host, "coder").await;
    // In the place of its entries: what bounds who left them bounds the work on them.
    let spec = &batch.spec;
    assert_eq!(spec.parent_run_id.as_ref().map(ToString::to_string), Some(lead.clone()));
    assert_eq!((spec.root_run_id.to_string(), spec.depth), (lead, 1));
    assert_eq!(spec.ancestors[0].narrow.deny, ["model: *"]);
    assert_eq!(spec.root_session_id.as_deref(), Some(crate::native::SESSION));
    let said = words(&host, batch.id().as_str()).await;
    let (mut finished, mut failed) = (0, 0);
    for id in &ids {
        let run = host.end(id).await;
        let of_batch = run.state.reply.result();
        match (run.status(), of_batch.as_deref()) {
            (Status::Completed, Some("done it")) => finished += 1,
            (Status::Failed, None) => {
                assert_eq!(run.ending().expect("ended").error.as_deref(), Some("no"));
                failed += 1;
            }
            (Status::Completed, Some(text)) => assert!(text.contains("finished"), "{text}"),
            (status, text) => panic!("{status} {text:?}"),
        }
    }
    assert_eq!((finished, failed), (1, 1));
    assert_eq!((&said[0]["status"], &said[1]["status"]), (&json!("finished"), &json!("failed")));
    assert_eq!(said[2], said[1], "said again it changes nothing");
    assert_eq!(said[3]["code"], "invalid-arguments");
    assert_eq!(said[4]["text"], "task foreign is none of this batch");
    assert_eq!(said[5]["text"], "the task has ended");
    let foreign = host.get("foreign").await;
    assert!(!foreign.status().is_terminal(), "of another run nothing is said or changed");
}

#[tokio::test]
async fn w_026_only_a_batch_is_offered_the_tool_that_completes_tasks() {
    let mut world = World::new();
    leader(&mut world, "lead", &[], |_, said| match said.is_empty() {
        true => vec![("complete_task", json!({ "task_id": "t", "result": "r" }))],
        false => Vec::new(),
    });
    let host = world.start().await;
    let said = words(&host, &host.spawn(&request("lead", "x")).await).await;
    assert_eq!(said[0]["code"], "tool-unavailable", "{said:?}");
}

#[tokio::test]
async fn ws_16_a_question_to_the_user_blocks_without_a_slot_and_its_answer_is_the_result() {
    let mut world = World::new();
    world.settings.slots = 1;
    let gates = Gates::new();
    world.agent("block", gates.planner());
    leader(&mut world, "lead", &[], |_, said| match said.is_empty() {
        true => {
            vec![("ask_user", json!({ "question": "Should I use JWT or session-based auth?" }))]
        }
        false => Vec::new(),
    });
    let host = world.start().await;
    let id = host.spawn(&request("lead", "x")).await;
    host.reach(&id, Status::Blocked).await;
    let view = host.view(&id).await;
    assert_eq!(view.blocked_on, Some(BlockedOn::Input));
    assert_eq!(view.awaits[0].prompt, "Should I use JWT or session-based auth?");
    host.spawn(&named("other", "block")).await;
    gates.have_come(1).await;
    let text = Answer::Text("JWT".into());
    host.client().answer(&id, None, text).await.expect("it is asked");
    gates.open("other");
    assert_eq!(words(&host, &id).await, [json!("JWT")]);
}

#[tokio::test]
async fn ws_19_and_ws_22_results_come_in_the_order_asked_with_one_slot_for_all() {
    let mut world = World::new();
    world.settings.slots = 1;
    world.agent("good", ClosurePlanner::new(|_, _| async { answer("fine") }));
    world.agent("bad", ClosurePlanner::new(|_, _| async { failed(None, "broken") }));
    leader(&mut world, "lead", &["good", "bad"], |_, said| match said.len() {
        0 => vec![
            ("spawn_task", json!({ "agent": "bad", "message": "m" })),
            ("spawn_task", json!({ "agent": "good", "message": "m" })),
        ],
        2 => vec![("await_tasks", json!({ "task_ids": [id_of(said, 1), id_of(said, 0)] }))],
        _ => Vec::new(),
    });
    let host = world.start().await;
    let said = words(&host, &host.spawn(&request("lead", "x")).await).await;
    let [bad, good, ends] = said.as_slice() else { panic!("{said:?}") };
    let fine = json!({ "task_id": good["task_id"], "status": "finished", "result": "fine" });
    assert_eq!(ends[0], fine);
    assert_eq!((&ends[1]["task_id"], &ends[1]["status"]), (&bad["task_id"], &json!("failed")));
    assert!(ends[1]["error"].as_str().expect("a text").contains("broken"));
}

#[tokio::test]
async fn ws_20_a_wait_for_nothing_nobody_or_oneself_is_refused_and_blocks_nothing() {
    let mut world = World::new();
    leader(&mut world, "lead", &[], |task, said| match said.is_empty() {
        true => vec![
            ("await_tasks", json!({ "task_ids": [] })),
            ("await_tasks", json!({ "task_ids": ["99"] })),
            ("await_tasks", json!({ "task_ids": [task] })),
        ],
        false => Vec::new(),
    });
    let host = world.start().await;
    let mut own = named("own-run", "lead");
    own.task = "own-run".into();
    let id = host.spawn(&own).await;
    let said = words(&host, &id).await;
    assert_eq!(said[0]["text"], "no task IDs provided");
    assert_eq!(said[1]["text"], "task 99 not found");
    assert_eq!(said[2]["code"], "cycle");
    assert_eq!(count(&host.journal(&id).await, "blocked"), 0);
}

#[tokio::test]
async fn m_32_a_wait_for_any_or_for_a_time_says_how_the_tasks_stand() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent("block", gates.planner());
    world.agent("quick", ClosurePlanner::new(|_, _| async { answer("here") }));
    leader(&mut world, "lead", &["block", "quick"], |_, said| {
        let both = || json!([id_of(said, 0), id_of(said, 1)]);
        match said.len() {
            0 => vec![
                ("spawn_task", json!({ "agent": "block", "message": "m" })),
                ("spawn_task", json!({ "agent": "quick", "message": "m" })),
            ],
            2 => vec![("await_tasks", json!({ "task_ids": both(), "mode": "any" }))],
            3 => vec![("await_tasks", json!({ "task_ids": both(), "timeout_seconds": 3 }))],
            _ => Vec::new(),
        }
    });
    let host = world.start().await;
    let id = host.spawn(&request("lead", "x")).await;
    gates.have_come(1).await;
    host.until(&id, "it waits again", |run| {
        run.state.turns == 3 && run.status() == Status::Blocked
    })
    .await;
    world.clock.advance(Duration::from_secs(3));
    let said = words(&host, &id).await;
    for nth in [2, 3] {
        let statuses: Vec<_> =
            said[nth].as_array().expect("a list").iter().map(|one| &one["status"]).collect();
        assert_eq!(statuses, ["in_progress", "finished"]);
    }
}

#[tokio::test]
async fn rs_11_a_child_has_its_parents_state_beneath_its_own() {
    let mut world = World::new();
    world.agent("worker", Gates::new().planner());
    leader(&mut world, "lead", &["worker"], |_, said| match said.is_empty() {
        true => vec![("spawn_task", json!({ "agent": "worker", "message": "m" }))],
        false => Vec::new(),
    });
    let host = world.start().await;
    let mut asked = request("lead", "x");
    asked.runtime_state = [("region".to_owned(), "north".to_owned())].into();
    asked.runtime_state_keys.run_id = Some("product.run".into());
    let id = host.spawn(&asked).await;
    let said = words(&host, &id).await;
    let child = host.get(said[0]["task_id"].as_str().expect("an id")).await;
    assert_eq!(child.spec.envelope["region"], "north");
    assert_eq!(child.spec.envelope["product.run"], child.id().to_string(), "by the same name");
    assert_eq!(child.spec.envelope.len(), 4, "and nothing of the run above");
}

#[tokio::test]
async fn c_020_a_time_that_is_stated_for_a_tool_of_the_host_bounds_what_it_waits_for() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent("block", gates.planner());
    let once: Next = |_, said| match said.len() {
        0 => vec![("spawn_task", json!({ "agent": "block", "message": "m" }))],
        1 => vec![("await_tasks", json!({ "task_ids": [id_of(said, 0)], "timeout_seconds": 60 }))],
        2 => vec![("ask_user", json!({ "question": "Which?" }))],
        _ => Vec::new(),
    };
    let members = ["block".to_owned()];
    leader_with(&mut world, ("lead", &["block"]), once, |agent| {
        let second = Duration::from_secs(1);
        let stated = [
            (Pattern::any(), second),
            (Pattern::parse("host/await_*"), 3 * second),
            (Pattern::parse("host/ask_user"), 5 * second),
        ];
        change_code(agent, |code| {
            let bounds = (&Limits::default(), &CallTimeouts::new(stated));
            let tools = AgentTools::none().with_host_tools(&HostFunction::ALL, &members, bounds);
            code.tools = tools.expect("the host's own schemas are some");
        });
    });
    let host = world.start().await;
    let id = host.spawn(&request("lead", "x")).await;
    for (turns, seconds) in [(2, 3), (3, 5)] {
        host.until(&id, "it waits", |run| {
            run.state.turns == turns && run.status() == Status::Blocked
        })
        .await;
        world.clock.advance(Duration::from_secs(seconds - 1));
        host.settle().await;
        assert_eq!(host.get(&id).await.state.turns, turns, "not before its time");
        world.clock.advance(Duration::from_secs(1));
    }
    let said = words(&host, &id).await;
    assert_eq!(
        (&said[1][0]["status"], &said[2]["code"]),
        (&json!("in_progress"), &json!("timeout"))
    );
}

#[tokio::test]
async fn a_tool_of_the_host_whose_operation_the_rules_deny_is_refused_with_the_rule() {
    let mut world = World::new();
    world.agent("worker", Gates::new().planner());
    let once: Next = |_, said| match said.is_empty() {
        true => vec![("spawn_task", json!({ "agent": "worker", "message": "m" }))],
        false => Vec::new(),
    };
    let rules =
        crate::native::grants("deny = [\"controller: spawn\"]\nallow = [\"controller: *\"]");
    leader_with(&mut world, ("lead", &["worker"]), once, |agent| {
        let mut own = agent.rules.as_ref().clone();
        own.grants = rules;
        agent.rules = Arc::new(own);
    });
    let host = world.start().await;
    let id = host.spawn(&request("lead", "x")).await;
    let said = words(&host, &id).await;
    assert_eq!(said[0]["code"], "denied");
    assert_eq!(count(&host.journal(&id).await, "policy_decision"), 1);
}
