//! Real components that start, watch, await, answer and cancel runs beneath their own (M-03).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use taskrun::agents::{Agent, AgentTools};
use taskrun::ports::planner::{Decision, PlanInput};
use taskrun::scope::CallScope;
use taskrun::spawn::SpawnRequest;
use taskrun_examples::{COORDINATOR, DELEGATE};
use taskrun_journal::event::Event;
use taskrun_journal::message::{Labels, LogLevel};
use taskrun_journal::question::AwaitItem;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::status::Status;
use taskrun_journal::tool::ToolOutcome;
use taskrun_policy::Policy;
use taskrun_tests::native::{
    ClosurePlanner, Op, PAUSE_OVER, Planned, Side, World, answer, call_of, change_code, decided,
    failed, in_time, request,
};
use taskrun_tests::{Builder, engine};
use tokio::sync::Notify;

const POLICY: &str = r#"
[agent.lead]
component = "components/coordinator.wasm"
members = ["worker"]
allow = ["controller: spawn", "controller: wait"]

[agent.tied]
component = "components/coordinator.wasm"
members = ["worker"]
deny = ["controller: *"]

[agent.worker]
component = "components/scripted.wasm"
"#;

#[tokio::test]
async fn m_03_an_agent_delegates_each_line_and_waits_without_a_slot() {
    // One slot, which the children need while their parent waits.
    let house = Builder::new(POLICY).slots(1).open().await;
    let id = house.spawn(&house.request("lead", "worker: one\nworker: two\nlead: three")).await;
    let run = house.end(&id).await;
    assert_eq!(
        run.state.reply.result().as_deref(),
        Some(
            "worker: one\nworker: two\n\
             lead: not started: agent lead is not among the members of agent lead"
        )
    );
    let tree = house.client().tree(&id).await.expect("there");
    assert_eq!(tree.descendants.len(), 2);
    let session = RunView::from(&run).child_session_id.expect("it ran");
    for child in &tree.descendants {
        assert_eq!(child.spec.parent_run_id.as_ref(), Some(run.id()));
        assert_eq!(child.spec.parent_session_id, session);
        assert_eq!(child.spec.owner_user_id, "user-a");
    }
}

#[tokio::test]
async fn m_03_an_agent_whose_policy_denies_it_is_told_the_rule() {
    let house = Builder::new(POLICY).open().await;
    let id = house.spawn(&house.request("tied", "worker: one")).await;
    let run = house.end(&id).await;
    assert_eq!(
        run.state.reply.result().as_deref(),
        Some("worker: not started: the policy does not allow it: denied by \"controller: *\"")
    );
    let denied = house.event(&id, |one| one.event.kind() == "policy_decision").await;
    let Event::PolicyDecision { capability, subject, rule, .. } = denied.event else {
        panic!("a decision")
    };
    assert_eq!((capability.as_str(), subject.as_str()), ("controller", "spawn"));
    assert!(rule.contains("taskrun.toml"), "the operator is told where: {rule}");
    let tree = house.client().tree(&id).await.expect("there");
    assert!(tree.descendants.is_empty());
}

/// The tools of an agent of a policy, which are real components.
async fn tools_of(policy: &str, name: &str) -> AgentTools {
    let agent = loaded(policy, name).await;
    agent.code.loaded().expect("it is loaded").tools.clone()
}

/// An agent of a policy, with its real components.
async fn loaded(policy: &str, name: &str) -> Agent {
    let folder = tempfile::tempdir().expect("a folder");
    for example in [COORDINATOR, DELEGATE] {
        let file = folder.path().join(format!("{}.wasm", example.name));
        std::fs::write(file, example.bytes).expect("written");
    }
    std::fs::write(folder.path().join("taskrun.toml"), policy).expect("written");
    let path = folder.path().join("taskrun.toml");
    let policy = Policy::parse(policy, &path).expect("a valid policy");
    let mut agents = engine().load_agents(&policy, &BTreeMap::new()).await.expect("it loads");
    let agent = agents.by_name.remove(name).expect("the policy's");
    drop(agents);
    Arc::into_inner(agent).expect("nobody else has it")
}

/// The answers of the tools so far: name, and the result or the code of the failure.
fn said(input: &PlanInput) -> Vec<(String, Value)> {
    let outputs = input.resume.iter().flat_map(|resume| resume.tool_outputs.iter());
    let said = outputs.map(|output| {
        let value = match &output.outcome {
            ToolOutcome::Value(json) => serde_json::from_str(json).expect("JSON"),
            ToolOutcome::Failure(failure) => json!({ "code": failure.error.code }),
        };
        (output.name.clone(), value)
    });
    said.collect()
}

/// Calls each function of `delegate`, with what it needs of the answers before.
async fn boss(input: PlanInput) -> Planned {
    let said = said(&input);
    let child = said.first().map(|(_, run)| run["run"].clone()).unwrap_or_default();
    let of_child = json!({ "run": child });
    let (name, args) = match said.last().map(|(name, value)| (name.as_str(), value)) {
        None => ("spawn", json!({ "agent": "child", "task": "ask", "labels": { "k": "v" } })),
        Some(("delegate/spawn", _)) => ("get", json!({ "run": "stranger" })),
        Some(("delegate/get", _)) => ("list", json!({ "labels": { "k": "v" } })),
        Some(("delegate/list", _)) => ("events", json!({ "run": child, "after": 0 })),
        Some(("delegate/events", page)) => {
            let events = page["events"].as_array().expect("a list");
            match events.iter().any(|event| event["kind"] == "blocked") {
                true => ("provide", json!({ "run": child, "text": "this" })),
                // There is more to come; the pull waits for it.
                false => ("events", json!({ "run": child, "after": page["next_after"] })),
            }
        }
        Some(("delegate/provide", _)) => ("wait", of_child),
        Some(("delegate/wait", _)) => ("cancel_tree", of_child),
        Some(_) => return answer(&json!(said).to_string()),
    };
    let (id, name) = (format!("c{}", said.len()), format!("delegate/{name}"));
    call_of(&[(&id, &name, &args.to_string())])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m_03_a_model_delegates_by_a_tool() {
    let policy = "[tool.delegate]\ncomponent = \"delegate.wasm\"\n\
                  [agent.boss]\ncomponent = \"coordinator.wasm\"\ntools = [\"delegate/*\"]\n\
                  allow = [\"controller: *\"]\n";
    let tools = tools_of(policy, "boss").await;
    let mut world = World::new();
    world.agent_with("boss", ClosurePlanner::new(|input, _| boss(input)), |agent| {
        change_code(agent, |code| code.tools = tools);
        agent.limits.tool_calls = None;
    });
    let asking = ClosurePlanner::new(|input: PlanInput, _| async move {
        if input.resume.is_some() {
            let last = input.messages.last().expect("the answer").joined_text();
            return answer(&format!("told {last}"));
        }
        let asks = AwaitItem::Clarification {
            id: "q".into(),
            question: "which?".into(),
            missing_fields: Vec::new(),
            restrict_to_tool: None,
            example_input: None,
            clarifying_prompt: None,
        };
        decided(Decision::Await(vec![asks.into()]))
    });
    world.agent("child", asking);
    world.agent("other", ClosurePlanner::new(|_, _| async { answer("secret") }));
    let host = world.start().await;
    let stranger = SpawnRequest { id: Some("stranger".into()), ..request("other", "x") };
    host.spawn(&stranger).await;
    let id = host.spawn(&request("boss", "delegate")).await;
    let run = host.end(&id).await;
    let result = run.state.reply.result().expect("an answer");
    let said: Vec<(String, Value)> = serde_json::from_str(&result).expect("JSON");
    let of = |name: &str| {
        let found = said.iter().rfind(|(known, _)| known == &format!("delegate/{name}"));
        found.map(|(_, value)| value).expect("called")
    };
    let child = &of("spawn")["run"];
    assert_eq!(of("get")["code"], "not-found", "a stranger's run");
    assert_eq!(&of("list")["runs"][0]["run"], child);
    assert_eq!(&of("provide")["run"], child);
    let waited = of("wait");
    assert_eq!(
        (&waited["timed_out"], &waited["run"]["result"]),
        (&json!(false), &json!("told this"))
    );
    assert_eq!(of("cancel_tree")["changed"], false);
    let journal = host.journal(child.as_str().expect("an id")).await;
    let by = journal.iter().find_map(|recorded| {
        let Event::Answered { by, .. } = &recorded.event else { return None };
        Some(by.clone())
    });
    assert_eq!(by, Some(format!("run:{id}")));
}

/// The things that were said so far by one function of `delegate`, in order.
fn answers<'s>(said: &'s [(String, Value)], name: &str) -> Vec<&'s Value> {
    let name = format!("delegate/{name}");
    said.iter().filter(|(known, _)| *known == name).map(|(_, value)| value).collect()
}

/// Starts a run of each kind and looks at it; `held` returns when one of them is under way.
async fn handler(input: PlanInput, held: impl Future<Output = ()>) -> Planned {
    let said = said(&input);
    let run = |nth: usize| {
        let started = answers(&said, "spawn");
        json!({ "run": started.get(nth).map(|run| run["run"].clone()) })
    };
    let spawn = |agent: &str| ("spawn", json!({ "agent": agent, "task": "x" }));
    let (name, args) = match said.len() {
        0 => spawn("done"),
        1 => ("wait", run(0)),
        2 => ("events", run(0)),
        3 => spawn("broken"),
        4 => ("wait", run(1)),
        5 => spawn("endless"),
        6 => {
            held.await;
            ("get", run(2))
        }
        // No slot is left for this one.
        7 => spawn("endless"),
        8 => ("get", run(3)),
        9 => ("cancel", run(3)),
        10 => ("cancel", run(2)),
        11 => ("wait", run(2)),
        12 => ("events", run(2)),
        13 => ("cancel", run(2)),
        14 => spawn("nobody"),
        _ => return answer(&json!(said).to_string()),
    };
    let (id, name) = (format!("c{}", said.len()), format!("delegate/{name}"));
    call_of(&[(&id, &name, &args.to_string())])
}

/// The kinds of the events of a page.
fn kinds(page: &Value) -> Vec<&str> {
    let events = page["events"].as_array().expect("a list").iter();
    events.map(|event| event["kind"].as_str().expect("a word")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c_074_a_run_is_handled_by_its_id_with_its_status_a_stop_and_a_stream_of_its_events() {
    let policy = "[tool.delegate]\ncomponent = \"delegate.wasm\"\n\
                  [agent.boss]\ncomponent = \"coordinator.wasm\"\ntools = [\"delegate/*\"]\n\
                  allow = [\"controller: *\"]\n";
    let tools = tools_of(policy, "boss").await;
    let mut world = World::new();
    world.settings.slots = 2;
    let begun = Arc::new(Notify::new());
    let held = Arc::clone(&begun);
    let boss = ClosurePlanner::new(move |input, _| {
        let held = Arc::clone(&held);
        handler(input, async move { held.notified().await })
    });
    world.agent_with("boss", boss, |agent| {
        change_code(agent, |code| code.tools = tools);
        agent.limits.tool_calls = None;
        agent.members = ["done", "broken", "endless"].map(str::to_owned).to_vec();
    });
    let done = ClosurePlanner::new(|_, scope: Arc<CallScope>| async move {
        scope.log(LogLevel::Info, "done", "for its operator alone", Labels::new());
        scope.record(Event::PlannerNote { text: "look".into(), labels: Labels::new() });
        answer("done with it")
    });
    world.agent("done", done);
    world.agent("broken", ClosurePlanner::new(|_, _| async { failed(Some("e"), "it broke") }));
    let endless = ClosurePlanner::new(move |_, _| {
        begun.notify_one();
        std::future::pending()
    });
    world.agent("endless", endless);
    let host = world.start().await;
    let id = host.spawn(&request("boss", "handle")).await;
    let run = host.end(&id).await;
    let result = run.state.reply.result().expect("an answer");
    let said: Vec<(String, Value)> = serde_json::from_str(&result).expect("JSON");
    let of = |name: &str, nth: usize| answers(&said, name)[nth];

    // Pending, running, completed, failed and stopped have a word of ours each.
    assert_eq!(of("get", 1)["status"], "queued");
    assert_eq!(of("get", 0)["status"], "running");
    let ended = ["wait"; 3].iter().enumerate().map(|(nth, name)| &of(name, nth)["run"]["status"]);
    assert_eq!(ended.collect::<Vec<_>>(), ["completed", "failed", "canceled"]);
    // The stop of one that waits, of one that is under way, and of one that has ended.
    let stopped = [0, 1, 2].map(|nth| of("cancel", nth)["changed"].as_bool());
    assert_eq!(stopped, [Some(true), Some(true), Some(false)]);
    // The stream has what it says of itself and how it ended, and no line of its log.
    let (of_done, of_stopped) = (kinds(of("events", 0)), kinds(of("events", 1)));
    assert!(of_done.contains(&"planner_note") && !of_done.contains(&"log"), "{of_done:?}");
    assert_eq!((of_done.last(), of_stopped.last()), (Some(&"finished"), Some(&"finished")));
    assert!(of_stopped.contains(&"cancel_requested"), "{of_stopped:?}");
    assert_eq!(
        (&of("events", 0)["ended"], &of("events", 1)["ended"]),
        (&json!(true), &json!(true))
    );
    // Whoever was not named cannot be started, and without members nobody can.
    let refused = &said.last().expect("it was tried").1["code"];
    assert!(refused.is_string(), "{said:?}");
    assert_eq!(host.client().tree(&id).await.expect("there").descendants.len(), 4);
}

/// Lets the host of a real agent die at one write of its own and another one go on; gives what the
/// run came to and its children.
async fn cut_off(lead: &Arc<Agent>, (op, nth, side): (Op, u64, Side)) -> (Run, Vec<Run>) {
    let mut world = World::new();
    world.loaded(lead);
    world.agent("worker", ClosurePlanner::new(|_, _| async { answer("played") }));
    let door = world.door().await;
    world.store.cut(op, nth, side);
    let first = world.start().await;
    let id = door.spawn(&request("lead", "worker: one\nworker: two")).await;
    in_time(world.store.is_cut()).await;
    world.kill(first).await;
    world.part_stores();
    let second = world.controller();
    second.controller.sweep().await.expect("swept");
    world.clock.advance(PAUSE_OVER);
    second.begin().await;
    let run = door.end(&id).await;
    (run, door.client().tree(&id).await.expect("there").descendants)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m_03_a_component_that_is_cut_off_beside_a_spawn_finds_its_child_again() {
    let policy = "[agent.lead]\ncomponent = \"coordinator.wasm\"\nmembers = [\"worker\"]\n\
                  allow = [\"controller: *\"]\n[agent.worker]\ncomponent = \"coordinator.wasm\"\n\
                  deny = [\"controller: *\"]\n";
    let lead = Arc::new(loaded(policy, "lead").await);
    for point in [
        (Op::Create, 1, Side::Before),
        (Op::Create, 1, Side::After),
        (Op::Append, 1, Side::Before),
        (Op::Append, 1, Side::After),
        (Op::Create, 2, Side::Before),
        (Op::Create, 2, Side::After),
    ] {
        let (run, children) = cut_off(&lead, point).await;
        assert_eq!(run.status(), Status::Completed, "{point:?}: {run:?}");
        let result = run.state.reply.result();
        assert_eq!(result.as_deref(), Some("worker: played\nworker: played"), "{point:?}");
        assert_eq!(children.len(), 2, "{point:?}: {children:?}");
    }
}
