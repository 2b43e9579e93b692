//! Runs that components start, watch and cancel beneath their own: no other run is visible to
//! them, and a crash leaves one child (M-03).

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use taskrun::ports::planner::PlanInput;
use taskrun::scope::{CallScope, RunsQuestion};
use taskrun_journal::event::Event;
use taskrun_journal::question::{Answer, AnswerRefusal};
use taskrun_journal::run::Run;
use taskrun_journal::runs::{
    CancelOutcome, ChangeOutcome, ChildRequest, EventPage, RunInfo, RunPage, RunsAnswer, RunsError,
    RunsFilter, RunsRequest, WaitOutcome,
};
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::{ToolHints, ToolOutcome};
use taskrun_policy::{AgentRules, Policy};

use super::common::{
    Gates, Handle, beneath, check_journal, child, count, named, spawning, waiting_for, words_so_far,
};
use super::dying::{Point, die_at_each, survive};
use crate::native::{
    ClosurePlanner, ClosureTool, Gate, Native, Op, Planned, Side, World, answer, call_of, value,
};

/// Starts two children in its first step, waits for them, and says how they ended.
async fn delegating(input: PlanInput, scope: Arc<CallScope>) -> Planned {
    if input.resume.is_some() {
        return answer(&words_so_far(&input));
    }
    let mut runs = Vec::new();
    for _ in 0..2 {
        // The same request twice: two children.
        runs.push(scope.ask(spawning("child", "play")).await.expect("it is started").id);
    }
    waiting_for(runs)
}

fn delegates() -> World {
    let mut world = World::new();
    world.agent("child", ClosurePlanner::new(|_, _| async { answer("played") }));
    world.agent("parent", ClosurePlanner::new(delegating));
    world
}

async fn children(door: &Native, id: &str) -> Vec<Run> {
    door.client().tree(id).await.expect("there").descendants
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m_03_children_are_started_beneath_the_caller_in_its_name() {
    let mut world = delegates();
    // One slot: a parent that kept it while it waits would wait for ever.
    world.settings.slots = 1;
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    let parent = host.end("1").await;
    assert_eq!(parent.status(), Status::Completed, "{parent:?}");
    let result = parent.state.reply.result().expect("an answer");
    assert_eq!(result.matches("played").count(), 2, "{result}");
    let children = children(&host, "1").await;
    assert_eq!(children.len(), 2);
    let session = parent.execution().expect("it ran").child_session_id.clone();
    for child in &children {
        assert_eq!(child.spec.parent_run_id.as_ref(), Some(parent.id()));
        assert_eq!((child.spec.depth, &child.spec.root_run_id), (1, parent.id()));
        assert_eq!(child.spec.owner_user_id, parent.spec.owner_user_id);
        assert_eq!(child.spec.parent_session_id, session);
    }
    let journal = host.journal("1").await;
    assert_eq!(count(&journal, "host_answered"), 2);
    assert_eq!(count(&journal, "blocked"), 1);
    check_journal(&journal);
}

/// A request for a run.
fn starting(agent: &str, task: &str) -> RunsRequest {
    RunsRequest::Spawn(Box::new(child(agent, task)))
}

/// A question about a run.
fn get(id: &str) -> RunsRequest {
    RunsRequest::Get { id: id.to_owned() }
}

/// The run that an answer of the controller is about.
fn run_in(answer: Result<RunsAnswer, RunsError>) -> RunInfo {
    match answer.expect("given") {
        RunsAnswer::Run(run)
        | RunsAnswer::Waited(WaitOutcome { run, .. })
        | RunsAnswer::Changed(ChangeOutcome { run, .. }) => *run,
        other @ (RunsAnswer::Page(_)
        | RunsAnswer::Canceled(_)
        | RunsAnswer::Events(_)
        | RunsAnswer::Awaitable
        | RunsAnswer::Transcript(_)
        | RunsAnswer::Output(_)) => {
            panic!("no run: {other:?}")
        }
    }
}

/// The requests that a step is to make, and their answers.
#[derive(Clone, Default)]
struct Asking {
    requests: Arc<Mutex<Vec<RunsRequest>>>,
    answers: Arc<Mutex<Vec<Result<RunsAnswer, RunsError>>>>,
}

impl Asking {
    fn planner(&self) -> ClosurePlanner {
        let this = self.clone();
        ClosurePlanner::new(move |_, scope| {
            let this = this.clone();
            async move {
                let requests = std::mem::take(&mut *this.requests.lock().expect("no panic"));
                for request in requests {
                    let answered = scope.ask(RunsQuestion::from(request)).await;
                    this.answers.lock().expect("no panic").push(answered);
                }
                answer("asked")
            }
        })
    }

    /// Runs `asker` under this id with these requests and gives the answers.
    async fn ask(
        &self,
        host: &Native,
        id: &str,
        requests: Vec<RunsRequest>,
    ) -> Vec<Result<RunsAnswer, RunsError>> {
        *self.requests.lock().expect("no panic") = requests;
        host.spawn(&named(id, "asker")).await;
        assert_eq!(host.end(id).await.status(), Status::Completed);
        std::mem::take(&mut *self.answers.lock().expect("no panic"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m_03_a_run_that_is_not_beneath_looks_as_if_it_did_not_exist() {
    let asking = Asking::default();
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("asker", asking.planner());
    world.agent("other", ClosurePlanner::new(|_, _| async { answer("secret") }));
    world.agent("open", gate.answering("secret"));
    let waiter = ClosurePlanner::new(|input, _| async move {
        match input.resume {
            Some(_) => answer(&words_so_far(&input)),
            None => waiting_for(vec!["stranger".to_owned()]),
        }
    });
    world.agent("waiter", waiter);
    let host = world.start().await;
    host.spawn(&named("stranger", "open")).await;
    host.spawn(&beneath("stranger", "cousin", "other")).await;
    host.end("cousin").await;
    gate.open();
    host.end("stranger").await;
    let text = || Answer::Text("x".into());
    // The run itself is no exception, so nobody waits for themselves.
    for id in ["stranger", "cousin", "nobody", "1", "no id"] {
        let id = id.to_owned();
        let requests = vec![
            get(&id),
            RunsRequest::Cancel { id: id.clone(), reason: None },
            RunsRequest::CancelTree { id: id.clone(), reason: None },
            RunsRequest::Wait { id: id.clone(), timeout_ms: Some(0) },
            RunsRequest::Provide { id: id.clone(), item: None, answer: text() },
            RunsRequest::Subscribe { id: id.clone(), after: 0, limit: 9, timeout_ms: Some(0) },
        ];
        let own = if id == "1" { "1".to_owned() } else { format!("for-{}", id.replace(' ', "-")) };
        for answered in asking.ask(&host, &own, requests).await {
            assert_eq!(answered, Err(RunsError::NotFound { id: id.clone() }));
        }
    }
    let filter = RunsFilter { parent_run_id: Some("stranger".into()), ..RunsFilter::default() };
    let listed = asking.ask(&host, "2", vec![RunsRequest::List(filter)]).await;
    assert_eq!(listed[0], Ok(RunsAnswer::Page(RunPage { runs: Vec::new(), next: None })));
    host.spawn(&named("3", "waiter")).await;
    let result = host.end("3").await.state.reply.result().expect("an answer");
    assert!(result.contains("not-found"), "{result}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w_034_a_wait_of_a_planner_for_no_runs_is_answered_and_a_run_named_twice_counts_once() {
    for (twice, expected) in [(false, "invalid: no task IDs provided"), (true, "played")] {
        let mut world = World::new();
        world.agent("child", ClosurePlanner::new(|_, _| async { answer("played") }));
        let planner =
            ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| async move {
                if input.resume.is_some() {
                    return answer(&words_so_far(&input));
                }
                let id = scope.ask(spawning("child", "play")).await.expect("it is started").id;
                waiting_for(if twice { vec![id.clone(), id] } else { Vec::new() })
            });
        world.agent("parent", planner);
        let host = world.start().await;
        host.spawn(&named("1", "parent")).await;
        let run = host.end("1").await;
        assert_eq!(run.status(), Status::Completed, "{run:?}");
        let said = run.state.reply.result().expect("an answer");
        assert_eq!(said.matches(expected).count(), 1, "{said}");
        assert_eq!(count(&host.journal("1").await, "tool_result"), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m_03_members_sizes_and_agents_are_checked_as_at_every_door() {
    let asking = Asking::default();
    let mut world = World::new();
    world.agent("child", ClosurePlanner::new(|_, _| async { answer("played") }));
    world.agent("outsider", ClosurePlanner::new(|_, _| async { answer("played") }));
    world.agent_with("asker", asking.planner(), |agent| agent.members = vec!["child".into()]);
    let host = world.start().await;
    let keyed = |task: &str| {
        let child = ChildRequest { key: Some("k".into()), ..child("child", task) };
        RunsRequest::Spawn(Box::new(child))
    };
    let long = "x".repeat(5_000);
    let requests = vec![
        starting("outsider", "play"),
        starting("nobody", "play"),
        starting("child", " "),
        get(&long),
        keyed("one"),
        keyed("one"),
        keyed("another"),
    ];
    let answers = asking.ask(&host, "1", requests).await;
    // One that is no member and one that does not exist are the same to a component.
    for answer in &answers[..2] {
        assert!(matches!(answer, Err(RunsError::Forbidden { .. })), "{answer:?}");
    }
    let invalid = |answer: &Result<RunsAnswer, RunsError>, wanted: &str| match answer {
        Err(RunsError::Invalid { field, .. }) => assert_eq!(field, wanted),
        other => panic!("{other:?}"),
    };
    invalid(&answers[2], "task");
    invalid(&answers[3], "id");
    let first = run_in(answers[4].clone()).id;
    assert_eq!(run_in(answers[5].clone()).id, first, "the same key gives the same run");
    assert_eq!(answers[6], Err(RunsError::AlreadyExists { id: first }));
    assert_eq!(children(&host, "1").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m_03_a_tree_is_canceled_answered_read_and_listed_from_above() {
    let (asking, gates) = (Asking::default(), Gates::new());
    let mut world = World::new();
    world.settings.tree_slots = 8;
    world.agent("child", gates.planner());
    // The asker is the parent of runs that are started from outside, so that their ids are known.
    let parent = ClosurePlanner::new({
        let (asking, gates) = (asking.planner(), Arc::clone(&gates));
        move |input, scope| {
            let (asking, gates) = (asking.clone(), Arc::clone(&gates));
            async move {
                let inside = gates.pass("top").await;
                drop(inside);
                taskrun::ports::planner::Planner::plan(&asking, input, scope).await
            }
        }
    });
    world.agent("top", parent);
    let host = world.start().await;
    host.spawn(&named("top", "top")).await;
    for (parent, id) in [("top", "a"), ("a", "b"), ("top", "c")] {
        host.spawn(&beneath(parent, id, "child")).await;
    }
    gates.have_come(4).await;
    *asking.requests.lock().expect("no panic") = vec![
        RunsRequest::List(RunsFilter { limit: Some(2), ..RunsFilter::default() }),
        RunsRequest::Wait { id: "a".into(), timeout_ms: Some(0) },
        RunsRequest::CancelTree { id: "a".into(), reason: Some("enough".into()) },
        RunsRequest::Wait { id: "b".into(), timeout_ms: None },
        RunsRequest::Subscribe { id: "b".into(), after: 0, limit: 100, timeout_ms: Some(0) },
        get("c"),
        RunsRequest::Pause { id: "c".into(), reason: Some("wait".into()), timeout_ms: None },
        RunsRequest::Resume { id: "c".into(), note: None },
        RunsRequest::Pause { id: "top".into(), reason: None, timeout_ms: None },
        RunsRequest::Resume { id: "a".into(), note: None },
    ];
    gates.open("top");
    host.end("top").await;
    let answers = std::mem::take(&mut *asking.answers.lock().expect("no panic"));
    let Ok(RunsAnswer::Page(RunPage { runs, next: Some(_) })) = &answers[0] else {
        panic!("a page: {:?}", answers[0])
    };
    assert_eq!(runs.len(), 2);
    assert!(matches!(&answers[1], Ok(RunsAnswer::Waited(WaitOutcome { timed_out: true, .. }))));
    let Ok(RunsAnswer::Canceled(CancelOutcome { run, changed: true, descendants })) = &answers[2]
    else {
        panic!("canceled: {:?}", answers[2])
    };
    assert_eq!((run.id.as_str(), descendants.as_slice()), ("a", &["b".to_owned()][..]));
    let ended = run_in(answers[3].clone());
    assert_eq!(ended.status, Status::Canceled);
    assert_eq!(ended.stop_reason, Some(StopReason::CanceledByParent));
    let Ok(RunsAnswer::Events(EventPage { events, ended: true, .. })) = &answers[4] else {
        panic!("events: {:?}", answers[4])
    };
    let kinds: Vec<_> = events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds.first(), Some(&"queued"));
    assert_eq!(kinds.last(), Some(&"finished"));
    assert!(!run_in(answers[5].clone()).status.is_terminal(), "its neighbour goes on");
    for changed in [&answers[6], &answers[7]] {
        let Ok(RunsAnswer::Changed(ChangeOutcome { run, changed: true })) = changed else {
            panic!("paused and resumed: {changed:?}")
        };
        assert_eq!(run.id, "c");
    }
    let mut by = Vec::new();
    for recorded in host.journal("c").await {
        if let Event::PauseRequested { by: who, .. } = recorded.event {
            by.push(who);
        }
    }
    assert_eq!(by, ["run:top"], "it is on record who paused it");
    assert_eq!(answers[8], Err(RunsError::NotFound { id: "top".into() }), "nobody pauses itself");
    assert_eq!(answers[9], Err(RunsError::NotAwaitable { why: AnswerRefusal::Ended }));
    gates.open("c");
    host.end("c").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m_03_what_the_policy_denies_is_denied_to_a_wait_between_steps_too() {
    let mut world = delegates();
    let text = "[agent.a]\ncomponent = \"a.wasm\"\n\
                allow = [\"controller: spawn\"]\ndeny = [\"controller: wait\"]\n";
    let policy = Policy::parse(text, Path::new("test")).expect("a valid policy");
    let grants = Arc::clone(&policy.agents["a"].grants);
    world.agent_with("parent", ClosurePlanner::new(delegating), |agent| {
        agent.rules = Arc::new(AgentRules { grants, ..AgentRules::clone(&agent.rules) });
    });
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    let result = host.end("1").await.state.reply.result().expect("an answer");
    assert!(result.contains("denied"), "{result}");
    assert_eq!(count(&host.journal("1").await, "policy_decision"), 1);
}

/// A family by hosts of which one dies at this point; gives how many died.
async fn play(mut world: World, point: Point) -> u32 {
    let door = world.door().await;
    let outside = async {
        door.spawn(&named("1", "parent")).await;
        door.end("1").await
    };
    let (run, deaths) = survive(&mut world, &[point], &Handle::default(), outside).await;
    check_journal(&door.journal("1").await);
    assert_eq!(run.status(), Status::Completed, "crash at {point:?}: {run:?}");
    let children = children(&door, "1").await;
    assert_eq!(children.len(), 2, "crash at {point:?}: {children:?}");
    let result = run.state.reply.result().expect("an answer");
    assert_eq!(result.matches("played").count(), 2, "crash at {point:?}: {result}");
    deaths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m_03_a_host_that_dies_around_a_child_of_a_plan_step_leaves_one_child() {
    for side in [Side::Before, Side::After] {
        die_at_each(Op::Create, side, 2, |point| play(delegates(), point)).await;
        die_at_each(Op::Append, side, 2, |point| play(delegates(), point)).await;
    }
}

/// The same, by the calls of an idempotent tool.
fn delegates_by_tool() -> World {
    let mut world = World::new();
    let hints = ToolHints { idempotent: true, ..ToolHints::default() };
    let tool = ClosureTool::new("f", hints, |_, scope| async move {
        let run = scope.ask(spawning("child", "play")).await.expect("it is started");
        value(&serde_json::json!(run.id).to_string())
    });
    world.tool("spawn", taskrun_policy::InterruptionPolicy::Fail, tool);
    world.agent("child", ClosurePlanner::new(|_, _| async { answer("played") }));
    let parent = ClosurePlanner::new(|input: PlanInput, _| async move {
        let outputs = input.resume.as_ref().map(|resume| Arc::clone(&resume.tool_outputs));
        match outputs.as_deref().map(Vec::as_slice) {
            None => call_of(&[("c1", "spawn/f", "{}"), ("c2", "spawn/f", "{}")]),
            Some([one, other]) => {
                let id = |outcome: &ToolOutcome| match outcome {
                    ToolOutcome::Value(json) => serde_json::from_str(json).expect("a text"),
                    ToolOutcome::Failure(failure) => panic!("{failure:?}"),
                };
                waiting_for(vec![id(&one.outcome), id(&other.outcome)])
            }
            Some([..]) => answer(&words_so_far(&input)),
        }
    });
    world.agent("parent", parent);
    world
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m_03_a_host_that_dies_around_a_child_of_a_tool_call_leaves_one_child() {
    for side in [Side::Before, Side::After] {
        die_at_each(Op::Create, side, 2, |point| play(delegates_by_tool(), point)).await;
        die_at_each(Op::Append, side, 2, |point| play(delegates_by_tool(), point)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m_03_a_wait_in_a_call_ends_before_the_call_does() {
    let gates = Gates::new();
    let mut world = World::new();
    world.agent("child", gates.planner());
    let asking = ClosurePlanner::new(|_, scope: Arc<CallScope>| async move {
        let id = scope.ask(spawning("child", "play")).await.expect("it is started").id;
        let waited = scope.ask(RunsQuestion::wait(id, None)).await.expect("it is beneath");
        answer(&format!("{} with {:?} left", waited.timed_out, scope.time_left()))
    });
    world.agent_with("parent", asking, |agent| agent.limits.step = Duration::from_secs(100));
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    gates.have_come(1).await;
    let wait = Duration::from_secs(99);
    let (run, waited) = world.run_until(wait, host.end("1")).await;
    assert_eq!(waited, wait);
    assert_eq!(run.state.reply.result().as_deref(), Some("true with 1s left"));
}
