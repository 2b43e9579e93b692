//! The tools of the host that speak of tasks, called by agents as their models call them (WS-07 to
//! WS-23).

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use taskrun::agents::AgentTools;
use taskrun_journal::question::Answer;
use taskrun_journal::status::{BlockedOn, Status};
use taskrun_policy::{BeatTimes, CallTimeouts, Heartbeat, HostFunction, Limits, Pattern};

use super::beats::beat;
use super::common::{Gates, count, named};
use super::delivery::line;
use super::host_tools::{Next, callees, calling, id_of, leader, leader_with, words};
use crate::native::{ClosurePlanner, World, answer, change_code, failed, request};

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
    let first = host.spawn(&line("a", "one")).await;
    let said = words(&host, &first).await;
    assert_eq!(said[0]["status"], "queued");
    let task = &said[2][0];
    assert_eq!(said[2].as_array().map(Vec::len), Some(1));
    assert_eq!((&task["task_id"], &task["parent_id"]), (&said[0]["task_id"], &json!(first)));
    assert_eq!((&task["created_by"], &task["description"]), (&json!("a"), &json!("one")));
    assert_eq!((&task["prompt_tokens"], &task["alive_secs"]), (&json!(0), &json!(0)));
    world.clock.advance(Duration::from_millis(1));
    // The tasks of the line before are there in the next one, too.
    let said = words(&host, &host.spawn(&line("a", "two")).await).await;
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
    let members = callees(&["block".to_owned()]);
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
