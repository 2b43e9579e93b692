//! The rights of a run beneath others, and those that a request takes away (M-12, C-062, C-069).

use std::sync::Arc;

use taskrun::agents::Agent;
use taskrun::autonomy::AutonomyRequest;
use taskrun::error::ControllerError;
use taskrun::scope::CallScope;
use taskrun::spawn::{REUSE_DEFAULT, SpawnRequest};
use taskrun_journal::completion::CompletionRequest;
use taskrun_journal::list::ListFilter;
use taskrun_journal::media::MediaBytes;
use taskrun_journal::message::{Message, Role};
use taskrun_journal::narrowing::{Ancestor, Narrowing};
use taskrun_journal::run::RunView;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::ToolHints;
use taskrun_models::Echo;
use taskrun_policy::{
    AgentRules, Capability, InterruptionPolicy, NARROWING_BYTES_MAX, NARROWING_ENTRIES_MAX, Use,
};

use super::common::{Gates, beneath, following, named};
use crate::native::{ClosurePlanner, ClosureTool, Native, World, answer, grants, value};

/// Everything that rules govern.
const ALL: &str = "model = \"own\"\nallow = [\"workspace-read: **\", \"workspace-write: **\"]";

/// Says what a guest may do here.
fn powers(scope: &CallScope) -> String {
    let said = [
        ("read", Use::Path(Capability::WorkspaceRead, "docs/a")),
        ("write", Use::Path(Capability::WorkspaceWrite, "docs/a")),
        ("model", Use::Model("own")),
    ];
    let said = said.map(|(what, used)| match scope.rules().decide(&used) {
        Ok(()) => what.to_owned(),
        Err(denied) => format!("{what} {}", denied.for_guest),
    });
    said.join("; ")
}

/// An agent that says what it may do.
fn telling() -> ClosurePlanner {
    ClosurePlanner::new(|_, scope| async move { answer(&powers(&scope)) })
}

/// Gives an agent these rules.
pub(super) fn under(rules: &str) -> impl FnOnce(&mut Agent) + use<> {
    let grants = grants(rules);
    move |agent| {
        let old = AgentRules::clone(&agent.rules);
        agent.rules = Arc::new(AgentRules { grants, ..old });
    }
}

/// Agents that wait at the gates (`lead`, all rights; `reader`, only reading) and one that tells.
fn house(world: &mut World, gates: &Arc<Gates>) {
    world.agent_with("lead", gates.planner(), under(ALL));
    world.agent_with("reader", gates.planner(), under("allow = [\"workspace-read: docs/**\"]"));
    world.agent_with("worker", telling(), under(ALL));
}

async fn said(host: &Native, id: &str) -> String {
    let run = host.end(id).await;
    assert_eq!(run.status(), Status::Completed, "{run:?}");
    run.state.reply.result().expect("an answer")
}

fn with(request: SpawnRequest, narrow: Narrowing) -> SpawnRequest {
    SpawnRequest { narrow, ..request }
}

pub(super) fn denying(rules: &[&str]) -> Narrowing {
    let deny = rules.iter().map(|rule| (*rule).to_owned()).collect();
    Narrowing { deny, ..Narrowing::default() }
}

fn only(tools: &[&str]) -> Narrowing {
    let tools = tools.iter().map(|tool| (*tool).to_owned()).collect();
    Narrowing { tools: Some(tools), ..Narrowing::default() }
}

const READER_DENIES: &str = "write denied by agent reader: no rule allows workspace-write here; \
                             model denied by agent reader: no rule allows model here";

#[tokio::test]
async fn m_12_a_child_may_do_only_what_all_agents_above_it_may() {
    let (mut world, gates) = (World::new(), Gates::new());
    house(&mut world, &gates);
    let host = world.start().await;
    host.spawn(&named("alone", "worker")).await;
    assert_eq!(said(&host, "alone").await, "read; write; model");

    host.spawn(&named("lead", "lead")).await;
    host.spawn(&beneath("lead", "trusted", "worker")).await;
    assert_eq!(said(&host, "trusted").await, "read; write; model");

    host.spawn(&named("reader", "reader")).await;
    host.spawn(&beneath("reader", "child", "worker")).await;
    assert_eq!(said(&host, "child").await, format!("read; {READER_DENIES}"));

    // Nor does somebody with all rights between them give anything back.
    host.spawn(&beneath("reader", "between", "lead")).await;
    host.spawn(&beneath("between", "grandchild", "worker")).await;
    assert_eq!(said(&host, "grandchild").await, format!("read; {READER_DENIES}"));
    let above: Vec<_> =
        host.get("grandchild").await.spec.ancestors.iter().map(|a| a.agent_name.clone()).collect();
    assert_eq!(above, ["reader", "lead"]);
}

#[tokio::test]
async fn m_12_a_tool_called_in_a_child_is_bound_like_the_child() {
    let (mut world, gates) = (World::new(), Gates::new());
    let tool = ClosureTool::new("f", ToolHints::default(), |_, scope| async move {
        value(&serde_json::Value::from(powers(&scope)).to_string())
    });
    world.tool("tell", InterruptionPolicy::Fail, tool);
    world.agent_with("reader", gates.planner(), under("allow = [\"workspace-read: docs/**\"]"));
    world.agent_with("caller", following(vec![vec![("c", "tell/f", "{}")]]), under(ALL));
    let host = world.start().await;
    host.spawn(&named("reader", "reader")).await;
    host.spawn(&beneath("reader", "child", "caller")).await;
    assert_eq!(said(&host, "child").await, format!("\"read; {READER_DENIES}\""));
}

#[tokio::test]
async fn m_12_a_finalizer_of_a_child_is_bound_like_the_child() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent_with("reader", gates.planner(), under("allow = [\"workspace-read: docs/**\"]"));
    let planner = telling().finalizer(|_, scope| async move {
        Ok(Ok([("powers".to_owned(), powers(&scope))].into()))
    });
    world.agent_with("ends", planner, under(ALL));
    let host = world.start().await;
    host.spawn(&named("reader", "reader")).await;
    host.spawn(&beneath("reader", "child", "ends")).await;
    host.end("child").await;
    let metadata = host.view("child").await.metadata;
    assert_eq!(metadata["powers"], format!("read; {READER_DENIES}"));
}

#[tokio::test]
async fn m_12_a_model_that_a_parent_may_not_ask_is_not_asked_for_it() {
    let (mut world, gates) = (World::new(), Gates::new());
    let asks = || {
        ClosurePlanner::new(|_, scope| async move {
            let request = CompletionRequest {
                model: None,
                messages: vec![Message::text(Role::User, "hello")],
                tools: Vec::new(),
                max_tokens: None,
                temperature: None,
                tool_choice: taskrun_journal::completion::ToolChoice::Auto,
                stop_sequences: Vec::new(),
                response_schema: None,
                media: MediaBytes::default(),
                tokens_left: None,
            };
            match scope.ask(request).await {
                Ok(said) => answer(&said.message.joined_text()),
                Err(error) => answer(&format!("{error:?}")),
            }
        })
    };
    world.agent_with("reader", gates.planner(), under("allow = [\"workspace-read: docs/**\"]"));
    world.agent_asking("talker", asks(), Some(Arc::new(Echo::new(None))), |_| {});
    let host = world.start().await;
    host.spawn(&named("free", "talker")).await;
    assert_eq!(said(&host, "free").await, "hello");
    host.spawn(&named("reader", "reader")).await;
    host.spawn(&beneath("reader", "child", "talker")).await;
    let refused = said(&host, "child").await;
    assert_eq!(refused, "Denied(\"denied by agent reader: no rule allows model here\")");
    host.spawn(&with(named("narrowed", "talker"), denying(&["model: own"]))).await;
    let refused = said(&host, "narrowed").await;
    assert_eq!(refused, "Denied(\"denied by the request for this run: \\\"model: own\\\"\")");
    assert_eq!(host.get("child").await.state.progress.total_tokens, 0);
}

#[tokio::test]
async fn m_12_another_host_binds_a_child_as_the_first_one_did() {
    let (mut world, gates) = (World::new(), Gates::new());
    house(&mut world, &gates);
    let tells = Arc::clone(&gates);
    let late = ClosurePlanner::new(move |input, scope| {
        let gates = Arc::clone(&tells);
        async move {
            let _inside = gates.pass(&input.run.run_id).await;
            answer(&powers(&scope))
        }
    });
    world.agent_with("late", late, under(ALL));
    let first = world.start().await;
    first.spawn(&named("reader", "reader")).await;
    first.spawn(&with(beneath("reader", "child", "late"), denying(&["model: *"]))).await;
    gates.have_come(2).await;
    world.kill(first).await;
    let second = world.take_over().await;
    gates.open("child");
    let taken = "denied by the request for this run: \"model: *\"";
    let expected = READER_DENIES.split("; model").next().expect("a part");
    assert_eq!(said(&second, "child").await, format!("read; {expected}; model {taken}"));
}

#[tokio::test]
async fn m_12_beneath_an_agent_that_is_gone_nothing_begins() {
    let (mut world, gates) = (World::new(), Gates::new());
    house(&mut world, &gates);
    let first = world.start().await;
    first.spawn(&named("lead", "lead")).await;
    gates.have_come(1).await;
    world.settings.slots = 0;
    let door = world.start().await;
    world.kill(first).await;
    door.spawn(&beneath("lead", "child", "worker")).await;
    world.settings.slots = 8;
    world.forget_agent("lead");
    let second = world.take_over().await;
    // Another run of its agent is executed there; the child waits for a host that knows the lead.
    second.spawn(&named("other", "worker")).await;
    second.end("other").await;
    let child = second.get("child").await;
    assert_eq!((child.status(), child.state.head), (Status::Queued, 1));
}

#[tokio::test]
async fn m_12_a_request_takes_rules_away_for_the_run_and_all_beneath_it() {
    let (mut world, gates) = (World::new(), Gates::new());
    house(&mut world, &gates);
    let host = world.start().await;
    host.spawn(&with(named("one", "worker"), denying(&["workspace-read: docs/**"]))).await;
    let taken = "denied by the request for this run: \"workspace-read: docs/**\"";
    assert_eq!(said(&host, "one").await, format!("read {taken}; write; model"));

    host.spawn(&with(named("lead", "lead"), denying(&["workspace-write: **"]))).await;
    host.spawn(&beneath("lead", "child", "worker")).await;
    let taken = "denied by the request for agent lead: \"workspace-write: **\"";
    assert_eq!(said(&host, "child").await, format!("read; write {taken}; model"));
}

/// Two tools and an agent that calls both.
fn calling(world: &mut World) {
    for name in ["one", "two"] {
        let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("\"done\"") });
        world.tool(name, InterruptionPolicy::Fail, tool);
    }
    let calls = vec![vec![("a", "one/f", "{}"), ("b", "two/f", "{}")]];
    world.agent("caller", following(calls));
}

#[tokio::test]
async fn m_12_a_narrowed_run_and_all_beneath_it_call_only_the_tools_that_are_left() {
    let (mut world, gates) = (World::new(), Gates::new());
    calling(&mut world);
    world.agent("lead", gates.planner());
    world.agent(
        "lists",
        ClosurePlanner::new(|_, scope| async move {
            let names: Vec<_> = scope.tools().iter().map(|tool| tool.name.clone()).collect();
            answer(&format!("has {}", names.join(" ")))
        }),
    );
    let host = world.start().await;
    let refused = "\"done\"; tool-unavailable: tool not available: two/f";
    host.spawn(&with(named("narrowed", "caller"), only(&["one/*"]))).await;
    assert_eq!(said(&host, "narrowed").await, refused);
    host.spawn(&with(named("listed", "lists"), only(&["two/f"]))).await;
    assert_eq!(said(&host, "listed").await, "has two/f");
    host.spawn(&with(named("none", "lists"), only(&[]))).await;
    assert_eq!(said(&host, "none").await, "has");

    host.spawn(&with(named("lead", "lead"), only(&["one/f"]))).await;
    host.spawn(&beneath("lead", "child", "caller")).await;
    assert_eq!(said(&host, "child").await, refused);
    host.spawn(&with(beneath("lead", "both", "caller"), only(&["one/*"]))).await;
    assert_eq!(said(&host, "both").await, refused);
}

#[tokio::test]
async fn m_12_a_request_tightens_the_budget_of_its_run() {
    let mut world = World::new();
    calling(&mut world);
    let again = (0..10).map(|_| vec![("a", "one/f", "{}")]).collect::<Vec<_>>();
    world.agent("busy", following(again));
    let host = world.start().await;
    let narrow = Narrowing { turns: Some(2), ..Narrowing::default() };
    host.spawn(&with(named("turns", "busy"), narrow)).await;
    let run = host.end("turns").await;
    assert_eq!(RunView::from(&run).stop_reason, Some(StopReason::MaxTurns));
    assert_eq!(run.state.tool_calls, 2);
    let narrow = Narrowing { tool_calls: Some(1), ..Narrowing::default() };
    host.spawn(&with(named("calls", "caller"), narrow)).await;
    assert_eq!(host.end("calls").await.state.tool_calls, 1);
}

#[tokio::test]
async fn m_12_a_request_that_takes_nothing_or_gives_is_refused_and_nothing_is_kept() {
    let mut world = World::new();
    calling(&mut world);
    world.agent_with("worker", telling(), |agent| {
        under("allow = [\"workspace-read: **\"]")(agent);
        agent.budget.turns = Some(5);
        agent.budget.tokens = Some(100);
        agent.budget.wall = Some(std::time::Duration::from_secs(1));
        agent.limits.tool_calls = Some(3);
    });
    let host = world.start().await;
    let budget = Narrowing::default;
    let long = "x".repeat(NARROWING_BYTES_MAX);
    let many = vec!["one/*"; NARROWING_ENTRIES_MAX + 1];
    let cases = [
        (only(&["three/f"]), "narrow.tools", "it may call: one/f, two/f"),
        (only(&["one/g"]), "narrow.tools", "no function"),
        (only(&["*"]), "narrow.tools", "no function"),
        (only(&many), "narrow.tools", "more than 64"),
        (only(&[&long, "one/f"]), "narrow", "bytes"),
        (denying(&["workspace-reed: **"]), "narrow.deny", "did you mean"),
        (denying(&["workspace-read: /etc"]), "narrow.deny", "absolute"),
        (denying(&["model: other"]), "narrow.deny", "unknown model"),
        (denying(&["workspace-write: docs/**"]), "narrow.deny", "has nothing"),
        (denying(&vec!["http: *"; NARROWING_ENTRIES_MAX + 1]), "narrow.deny", "more than 64"),
        (Narrowing { turns: Some(6), ..budget() }, "narrow.turns", "at most 5 turns"),
        (Narrowing { turns: Some(0), ..budget() }, "narrow.turns", "too few"),
        (Narrowing { tokens: Some(101), ..budget() }, "narrow.tokens", "at most 100 tokens"),
        (Narrowing { tool_calls: Some(4), ..budget() }, "narrow.tool_calls", "at most 3"),
        (Narrowing { wall_ms: Some(1_001), ..budget() }, "narrow.wall_ms", "at most 1000"),
    ];
    for (narrow, field, part) in cases {
        let asked = with(named("refused", "worker"), narrow);
        let error = host.client().spawn(&asked).await.expect_err(part);
        let ControllerError::Invalid { field: found, reason } = &error else {
            panic!("{error:?} instead of {field}")
        };
        assert_eq!(*found, field, "{reason}");
        assert!(reason.contains(part), "{reason}");
    }
    let filter = ListFilter::default();
    let page = host.client().list(&filter, None, 16).await.expect("listed");
    assert!(page.runs.is_empty());
    // As much as the agent has, and refusing what it has not, is no mistake.
    let mut fits = denying(&["workspace-write: **", "http: *"]);
    (fits.turns, fits.tool_calls) = (Some(5), Some(0));
    host.spawn(&with(named("fits", "worker"), fits)).await;
    host.end("fits").await;
}

#[tokio::test]
async fn m_12_a_tool_that_a_run_above_has_lost_cannot_be_asked_for_again() {
    let (mut world, gates) = (World::new(), Gates::new());
    calling(&mut world);
    world.agent("lead", gates.planner());
    let host = world.start().await;
    host.spawn(&with(named("lead", "lead"), only(&["one/f"]))).await;
    let asked = with(beneath("lead", "child", "caller"), only(&["two/f"]));
    let error = host.client().spawn(&asked).await.expect_err("refused");
    assert!(error.to_string().contains("it may call: one/f"), "{error}");
}

#[tokio::test]
async fn m_12_who_may_less_is_not_given_the_result_of_who_may_more() {
    let (mut world, gates) = (World::new(), Gates::new());
    house(&mut world, &gates);
    let host = world.start().await;
    let reusing = |mut request: SpawnRequest| {
        request.id = None;
        request.reuse_within = Some(REUSE_DEFAULT);
        request
    };
    let plain = reusing(named("x", "worker"));
    let submit = async |request: &SpawnRequest| {
        let spawned = host.client().submit(request).await.expect("accepted");
        let id = spawned.run.id().to_string();
        host.end(&id).await;
        (id, spawned.reused)
    };
    let (first, _) = submit(&plain).await;
    assert_eq!(submit(&plain).await, (first, true));
    let narrowed = with(plain.clone(), denying(&["model: *"]));
    assert!(!submit(&narrowed).await.1);
    assert!(submit(&narrowed).await.1);
    host.spawn(&named("reader", "reader")).await;
    let child = reusing(beneath("reader", "x", "worker"));
    assert!(!submit(&child).await.1);

    let mut keyed = named("x", "worker");
    (keyed.id, keyed.idempotency_key) = (None, Some("key".to_owned()));
    submit(&keyed).await;
    let error = host.client().submit(&with(keyed, denying(&["model: *"]))).await;
    assert!(matches!(error, Err(ControllerError::AlreadyExists { .. })), "{error:?}");
}

#[tokio::test]
async fn m_12_what_was_taken_away_is_kept_and_shown_and_left_out_where_there_is_none() {
    let (mut world, gates) = (World::new(), Gates::new());
    house(&mut world, &gates);
    let host = world.start().await;
    let mut narrow = denying(&["model: *"]);
    narrow.turns = Some(3);
    host.spawn(&with(named("lead", "lead"), narrow.clone())).await;
    host.spawn(&beneath("lead", "child", "worker")).await;
    let child = host.end("child").await;
    let pin = host.get("lead").await.spec.pin.clone();
    let agent_name = "lead".to_owned();
    let lead = Ancestor { agent_name, pin, narrow, autonomous: false };
    assert_eq!(child.spec.ancestors, [lead]);
    let json = |id: &'static str| {
        let view = host.view(id);
        async { serde_json::to_value(view.await).expect("JSON") }
    };
    let shown = json("lead").await;
    assert_eq!(shown["narrow"], serde_json::json!({ "deny": ["model: *"], "turns": 3 }));
    assert_eq!(json("child").await.get("narrow"), None);
    let plain = serde_json::to_value(&*host.get("lead").await.spec).expect("JSON");
    assert!(plain.get("above").is_none(), "{plain}");
    // A host that does not know what else was taken away does not run it as if nothing were.
    let mut later = plain;
    later["narrow"]["hours"] = 3.into();
    assert!(serde_json::from_value::<RunSpec>(later).is_err());
}

#[tokio::test]
async fn a_denial_of_a_model_that_left_the_policy_keeps_no_run_from_being_continued() {
    let says = || ClosurePlanner::new(|_, _| async { answer("on") });
    let mut world = World::new();
    world.agent_asking("a", says(), Some(Arc::new(Echo::new(None))), |_| {});
    let host = world.start().await;
    let autonomous = Some(AutonomyRequest { rounds: Some(1), ..AutonomyRequest::default() });
    let first = SpawnRequest { autonomous, ..named("1", "a") };
    host.spawn(&with(first, denying(&["model: own"]))).await;
    host.end("1").await;
    drop(host);
    world.agent("a", says());
    let host = world.start().await;
    let mut next = host.client().continuation("1").await.expect("it may be continued");
    next.narrow.deny.push("model: other".to_owned());
    let refused = host.client().submit(&next).await.expect_err("nobody has accepted that");
    assert!(refused.to_string().contains("unknown model"), "{refused}");
    next.narrow.deny.pop();
    let run = host.client().submit(&next).await.expect("it was accepted before").run;
    assert_eq!(run.spec.narrow.deny, ["model: own"]);
}
