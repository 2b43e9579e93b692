//! Subagents in the background (C-065 to C-068, C-071, C-076): `spawn_agent` and `stop_agent`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun_journal::run::Run;
use taskrun_journal::status::{BlockedOn, Status, StopReason};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use super::agent_tools::children;
use super::common::{Gates, Handle, check_journal, named};
use super::delivery::line;
use super::dying::{Point, at_every, survive};
use super::host_tools::{leader, leader_with, words};
use crate::native::{
    ClosurePlanner, ClosureTool, Native, Op, World, answer, call_of, failed, value,
};

async fn names(host: &Native, id: &str) -> Vec<Option<String>> {
    let children = children(host, id).await;
    let mut names: Vec<_> = children.iter().map(|run| run.spec.name.clone()).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn c_065_a_subagent_goes_on_in_the_background_and_is_stopped_by_its_name() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("worker", gates.planner());
    leader(&mut world, "lead", &["worker"], |_, said| match said.len() {
        0 => vec![("spawn_agent", json!({ "agent": "worker", "goal": "dig", "name": "mole" }))],
        1 => vec![("stop_agent", json!({ "name": "mole" }))],
        2 => vec![("stop_agent", json!({ "name": "mole" }))],
        3 => vec![("stop_agent", json!({ "name": "vole" }))],
        _ => Vec::new(),
    });
    let host = world.start().await;
    host.spawn(&named("1", "lead")).await;
    let said = words(&host, "1").await;
    let child = children(&host, "1").await.remove(0);
    let id = child.id().as_str();
    let shown = json!({ "name": "mole", "branch": "lead.mole", "id": id, "status": "stopped" });
    let guidance = said[0]["guidance"].as_str().expect("it says what is next");
    assert!(guidance.contains("background"), "{guidance}");
    assert_eq!(said[0]["status"], "running");
    assert_eq!(said[1..3], [shown.clone(), shown], "stopping twice says the same");
    assert_eq!(
        said[3],
        json!({ "code": "not-found", "text": "there is no subagent named 'vole'" })
    );
    let ended = host.end(id).await;
    assert_eq!(ended.ending().map(|end| end.stop_reason), Some(StopReason::CanceledByParent));
    check_journal(&host.journal("1").await);
}

#[tokio::test]
async fn c_065_a_subagent_has_what_its_agent_has_less_what_the_call_takes_away() {
    let mut world = World::new();
    let found = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
    world.tool("tool", InterruptionPolicy::Fail, found);
    let worker = ClosurePlanner::new(move |_, scope: Arc<CallScope>| async move {
        call_of(&[(&scope.context().turn.to_string(), "tool/f", "{}")])
    });
    world.agent("worker", worker);
    leader(&mut world, "lead", &["worker"], |_, said| match said.len() {
        0 => vec![(
            "spawn_agent",
            json!({ "agent": "worker", "goal": "dig", "name": "mole", "wait": true,
                    "tools": ["tool/f"], "max_turns": 2, "max_cost_usd": 0.25,
                    "max_wallclock_seconds": 60 }),
        )],
        1 => vec![("spawn_agent", json!({ "agent": "worker", "goal": "d", "max_cost_usd": 1e-9 }))],
        2 => vec![("spawn_agent", json!({ "agent": "stranger", "goal": "dig" }))],
        3 => vec![("spawn_agent", json!({ "agent": "worker", "goal": "d", "tools": ["tool/g"] }))],
        _ => Vec::new(),
    });
    let host = world.start().await;
    host.spawn(&named("1", "lead")).await;
    let said = words(&host, "1").await;
    let child = children(&host, "1").await;
    let [child] = child.as_slice() else { panic!("one was started: {said:?}") };
    let narrow = &child.spec.narrow;
    let tools = vec!["tool/f".to_owned()];
    assert_eq!((&narrow.tools, narrow.turns), (&Some(tools), Some(2)));
    assert_eq!((narrow.cost_microusd, narrow.wall_ms), (Some(250_000), Some(60_000)));
    // A budget that is used up puts the rest of the work off.
    assert_eq!(said[0]["status"], "deferred", "{}", said[0]);
    assert_eq!(said[0]["stop_reason"], "max_turns");
    let guidance = said[0]["guidance"].as_str().expect("it says what is next");
    assert!(guidance.contains("(max_turns) and produced no output"), "{guidance}");
    assert_eq!(said[1]["code"], "invalid-arguments", "{}", said[1]);
    assert_eq!(said[2]["code"], "denied", "{}", said[2]);
    assert_eq!(said[3]["code"], "invalid-arguments", "{}", said[3]);
}

#[tokio::test]
async fn c_067_each_end_of_a_subagent_has_its_word() {
    let mut world = World::new();
    world.agent(
        "worker",
        ClosurePlanner::new(|input: PlanInput, _| async move {
            match input.messages[0].joined_text().as_str() {
                "fail" => failed(None, "no idea"),
                _ => answer("found"),
            }
        }),
    );
    leader(&mut world, "lead", &["worker"], |_, said| match said.len() {
        0 => ["work", "fail"]
            .map(|goal| ("spawn_agent", json!({ "agent": "worker", "goal": goal, "wait": true })))
            .to_vec(),
        _ => Vec::new(),
    });
    let host = world.start().await;
    host.spawn(&named("1", "lead")).await;
    let said = words(&host, "1").await;
    let keys = |one: &Value| ["status", "output", "error"].map(|key| one[key].clone());
    assert_eq!(keys(&said[0]), [json!("completed"), json!("found"), Value::Null]);
    assert_eq!(said[0].get("guidance"), None, "there is nothing to add");
    assert_eq!(said[1]["status"], "failed");
    assert!(said[1]["error"].as_str().is_some_and(|text| text.contains("no idea")), "{}", said[1]);
    // One without a name is known by its id.
    assert!(said.iter().all(|one| one["name"] == one["id"]), "{said:?}");
}

#[tokio::test]
async fn c_068_a_name_is_given_once_while_its_subagent_runs() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("worker", gates.planner());
    leader(&mut world, "lead", &["worker"], |_, said| {
        let spawn =
            |name: &str| ("spawn_agent", json!({ "agent": "worker", "goal": "dig", "name": name }));
        match said.len() {
            0 => vec![spawn("mole")],
            1 => vec![spawn("mole"), spawn("a b"), spawn("a.b"), spawn("a/b")],
            5 => vec![("stop_agent", json!({ "name": "mole" }))],
            6 => vec![("await_tasks", json!({ "task_ids": [said[0]["id"]] }))],
            7 => vec![spawn("mole")],
            _ => Vec::new(),
        }
    });
    let host = world.start().await;
    host.spawn(&named("1", "lead")).await;
    let said = words(&host, "1").await;
    let text = "a subagent named 'mole' is running already";
    assert_eq!(said[1], json!({ "code": "already-exists", "text": text }));
    for refused in &said[2..5] {
        assert_eq!(refused["code"], "invalid-arguments", "{refused}");
    }
    assert_eq!(said[7]["status"], "running", "the name was free again");
    assert_ne!(said[7]["id"], said[0]["id"]);
    let mole = || Some("mole".to_owned());
    assert_eq!(names(&host, "1").await, [mole(), mole()]);
}

#[tokio::test]
async fn c_068_a_name_means_no_run_that_a_subagent_of_the_same_agent_started() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("worker", gates.planner());
    let next = |task: &str, said: &[Value]| {
        let spawn = |agent: &str, goal: &str, wait: bool| {
            let spawn = json!({ "agent": agent, "goal": goal, "name": "mole", "wait": wait });
            vec![("spawn_agent", spawn)]
        };
        match (task, said.len()) {
            ("x", 0) => spawn("lead", "inner", true),
            ("inner", 0) => spawn("worker", "dig", false),
            ("x", 1) => vec![("stop_agent", json!({ "name": "mole" }))],
            (_, _) => Vec::new(),
        }
    };
    // Without a word about it, a subagent starts none.
    leader_with(&mut world, ("lead", &["lead", "worker"]), next, |agent| {
        agent.tree.depth = Some(4);
    });
    let host = world.start().await;
    host.spawn(&named("1", "lead")).await;
    let said = words(&host, "1").await;
    let ids: Vec<&Value> = said.iter().map(|one| &one["id"]).collect();
    assert_eq!((said.len(), ids[0]), (2, ids[1]), "{said:?}");
    assert_eq!(said[1]["status"], "completed", "it has ended, and is shown so");
    let started = said[0]["output"].as_str().expect("a text");
    let started: Value = serde_json::from_str(started).expect("what the subagent was told");
    let deep = host.end(started[0]["id"].as_str().expect("an id")).await;
    assert_eq!(deep.status(), Status::Canceled, "what it started is canceled with it");
}

#[tokio::test]
async fn c_068_a_name_means_the_own_subagent_before_that_of_an_earlier_line() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("worker", gates.planner());
    world.agent("quick", ClosurePlanner::new(|_, _| async { answer("found") }));
    leader(&mut world, "lead", &["quick", "worker"], |task, said| {
        let spawn = |agent: &str, wait: bool| {
            let spawn = json!({ "agent": agent, "goal": "dig", "name": "mole", "wait": wait });
            vec![("spawn_agent", spawn)]
        };
        match (task, said.len()) {
            ("start", 0) => spawn("worker", false),
            ("again", 0) => spawn("quick", true),
            ("again", 1) | ("stop", 0) => vec![("stop_agent", json!({ "name": "mole" }))],
            (_, _) => Vec::new(),
        }
    });
    let host = world.start().await;
    let mut said = Vec::new();
    for task in ["start", "again", "stop"] {
        world.clock.advance(Duration::from_millis(1));
        said.push(words(&host, &host.spawn(&line("lead", task)).await).await);
    }
    let [start, again, stop] = said.as_slice() else { panic!("{said:?}") };
    assert_eq!((&again[1]["id"], &again[1]["status"]), (&again[0]["id"], &json!("completed")));
    assert_eq!((&stop[0]["id"], &stop[0]["status"]), (&start[0]["id"], &json!("stopped")));
    let first = start[0]["id"].as_str().expect("an id");
    assert_eq!(host.end(first).await.status(), Status::Canceled);
}

#[tokio::test]
async fn c_066_a_subagent_of_a_subagent_starts_none() {
    let mut world = World::new();
    let next = |task: &str, said: &[Value]| match (task, said.len()) {
        ("deep", _) | (_, 1) => Vec::new(),
        ("x", _) => {
            vec![("spawn_agent", json!({ "agent": "b", "goal": "next", "wait": true }))]
        }
        _ => vec![("spawn_agent", json!({ "agent": "c", "goal": "last", "wait": true }))],
    };
    for (name, member) in [("a", "b"), ("b", "c"), ("c", "c")] {
        leader_with(&mut world, (name, &[member]), next, |agent| agent.tree.depth = Some(2));
    }
    let host = world.start().await;
    host.spawn(&taskrun::spawn::SpawnRequest { task: "x".to_owned(), ..named("1", "a") }).await;
    let said = words(&host, "1").await;
    let output = said[0]["output"].as_str().expect("the middle one answers");
    assert!(output.contains("depth limit reached (2)"), "{output}");
    assert!(!output.contains("nested"), "one level above it was: {output}");
    assert_eq!(host.client().tree("1").await.expect("there").descendants.len(), 2);
}

#[tokio::test]
async fn c_071_a_wait_that_is_over_leaves_the_subagent_and_its_end_is_told() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("worker", gates.planner());
    leader(&mut world, "lead", &["worker"], |_, said| {
        let spawn = json!({ "agent": "worker", "goal": "dig", "name": "mole", "wait": true });
        match said.len() {
            0 => vec![("spawn_agent", spawn)],
            1 => vec![("ask_user", json!({ "question": "Go on?" }))],
            _ => Vec::new(),
        }
    });
    let host = world.start().await;
    host.spawn(&named("1", "lead")).await;
    let child = gates.have_come(1).await[0].clone();
    host.reach("1", Status::Blocked).await;
    world.clock.advance(Duration::from_secs(5 * 60));
    let asks =
        |run: &Run| run.state.awaits.iter().any(|one| one.on == BlockedOn::Input && !one.answered);
    host.until("1", "asks", asks).await;
    gates.open(&child);
    host.end(&child).await;
    let yes = taskrun_journal::question::Answer::Text("yes".into());
    host.client().answer("1", None, yes).await.expect("taken");
    let said = words(&host, "1").await;
    assert_eq!((&said[0]["status"], &said[0]["name"]), (&json!("running"), &json!("mole")));
    let reported = super::common::count(&host.journal("1").await, "reported");
    assert_eq!(reported, 1, "what was not waited for is told");
}

/// Starts a subagent and stops it, then one for which it waits, and stops that when it has ended.
async fn play(point: Point) -> u32 {
    let mut world = World::new();
    let worker = ClosurePlanner::new(|input: PlanInput, _| async move {
        match input.messages[0].joined_text().as_str() {
            "dig" => std::future::pending().await,
            _ => answer("found"),
        }
    });
    world.agent("worker", worker.hearing());
    leader(&mut world, "lead", &["worker"], |_, said| {
        let spawn = |goal: &str, wait: bool| {
            let spawn = json!({ "agent": "worker", "goal": goal, "name": goal, "wait": wait });
            vec![("spawn_agent", spawn)]
        };
        match said.len() {
            0 => spawn("dig", false),
            1 => vec![("stop_agent", json!({ "name": "dig" }))],
            2 => spawn("look", true),
            3 => vec![("stop_agent", json!({ "name": "look" }))],
            4 => spawn("see", false),
            _ => Vec::new(),
        }
    });
    let door = world.door().await;
    let outside = async {
        door.spawn(&named("1", "lead")).await;
        words(&door, "1").await
    };
    let (said, deaths) = survive(&mut world, &[point], &Handle::default(), outside).await;
    let statuses: Vec<_> = said.iter().map(|one| one["status"].clone()).collect();
    let words = ["running", "stopped", "completed", "completed", "running"];
    assert_eq!(statuses, words, "{point:?}");
    assert_eq!(said[4].get("output"), None, "{point:?}: its end is told by itself");
    assert_eq!(said[0]["id"], said[1]["id"], "{point:?}");
    assert_eq!((&said[2]["output"], &said[2]), (&json!("found"), &said[3]), "{point:?}");
    let called = ["dig", "look", "see"].map(|name| Some(name.to_owned()));
    assert_eq!(names(&door, "1").await, called, "{point:?}");
    check_journal(&door.journal("1").await);
    deaths
}

#[tokio::test]
async fn c_065_whatever_host_dies_a_subagent_is_started_once_and_stopped() {
    at_every([Op::Create, Op::Append, Op::Claim], play).await;
}
