//! Memory under crashes, its bounds, and two identities on its doors (L-014, M-24).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use taskrun::error::ControllerError;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::{CallScope, FactSearch};
use taskrun_journal::fact::{
    FACT_CHANGES_MAX, FACT_KEY_BYTES_MAX, Fact, MemoryError, MemoryScope, OwnerSession,
};
use taskrun_journal::memory::FactChange;
use taskrun_journal::message::Labels;
use taskrun_journal::status::Status;
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use crate::native::{
    ClosurePlanner, ClosureTool, Gate, Native, OWNER, SESSION, World, answer, call_of, request,
    value,
};

fn fact(key: &str, text: &str) -> Fact {
    let (key, text) = (key.to_owned(), text.to_owned());
    Fact { key, text, labels: Labels::new(), written_at: Timestamp(1) }
}

fn ours() -> OwnerSession {
    OwnerSession { owner_user_id: OWNER.to_owned(), id: SESSION.to_owned() }
}

async fn texts(scope: &CallScope, query: &str) -> String {
    let scopes = MemoryScope::ALL.to_vec();
    let question = FactSearch { query: query.to_owned(), limit: 10, scopes };
    let found = scope.ask(question).await.expect("answers");
    found.into_iter().map(|fact| fact.text).collect::<Vec<_>>().join(" ")
}

async fn put(host: &Native, key: &str, text: &str) {
    let (scope, said) = (&host.scope, (text.to_owned(), Labels::new()));
    host.controller.at(scope).put_fact(Some(&ours()), key, said).await.expect("kept");
}

#[tokio::test]
async fn l_014_a_step_that_runs_again_reads_what_it_read_before() {
    let (mut world, gate) = (World::new(), Gate::new());
    let passed = gate.clone();
    let reader = ClosurePlanner::new(move |_: PlanInput, scope: Arc<CallScope>| {
        let gate = passed.clone();
        async move {
            let before = texts(&scope, "fact").await;
            gate.pass().await;
            let after = texts(&scope, "fact").await;
            answer(&format!("{before}, then {after}"))
        }
    });
    world.agent("a", reader);
    let host = world.start().await;
    put(&host, "one", "fact-1").await;
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    put(&host, "one", "fact-2").await;
    world.kill(host).await;
    gate.open();
    let next = world.take_over().await;
    let run = next.end(&id).await;
    assert_eq!(run.state.reply.result().as_deref(), Some("fact-1, then fact-2"));
    let kinds = next.kinds(&id).await;
    assert_eq!(kinds.iter().filter(|kind| **kind == "host_answered").count(), 2, "{kinds:?}");
}

#[tokio::test]
async fn l_014_a_call_that_is_repeated_makes_each_of_its_changes_once() {
    let (mut world, gate) = (World::new(), Gate::new());
    let (passed, calls) = (gate.clone(), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&calls);
    let hints = ToolHints { idempotent: true, ..ToolHints::default() };
    let writer = ClosureTool::new("write", hints, move |_, scope: Arc<CallScope>| {
        let (gate, number) = (passed.clone(), counted.fetch_add(1, Ordering::SeqCst));
        async move {
            let change = FactChange::Put(fact("k", "by the call"));
            scope.change_memory(MemoryScope::Session, change).await.expect("kept");
            if number == 0 {
                gate.pass().await;
            }
            let other = FactChange::Put(fact("other", "by the call"));
            scope.change_memory(MemoryScope::Session, other).await.expect("kept");
            value("1")
        }
    });
    world.tool("t", InterruptionPolicy::Fail, writer);
    world.agent(
        "a",
        ClosurePlanner::new(|input: PlanInput, _| async move {
            match input.resume {
                None => call_of(&[("c1", "t/write", "{}")]),
                Some(_) => answer("done"),
            }
        }),
    );
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    put(&host, "k", "by a person").await;
    world.kill(host).await;
    let next = world.take_over().await;
    assert_eq!(next.end(&id).await.status(), Status::Completed);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    let text = |key: &'static str| {
        let next = &next;
        async move {
            let found = next.client().fact(Some(&ours()), key).await;
            found.expect("reads").map(|fact| fact.text)
        }
    };
    assert_eq!(text("k").await.as_deref(), Some("by a person"), "not made a second time");
    assert_eq!(text("other").await.as_deref(), Some("by the call"));
    let kinds = next.kinds(&id).await;
    assert!(kinds.iter().filter(|kind| **kind == "memory_appended").count() >= 2, "{kinds:?}");
}

#[tokio::test]
async fn l_014_what_a_call_changes_is_bounded() {
    let mut world = World::new();
    let hints = ToolHints::default();
    let writer = ClosureTool::new("write", hints, |_, scope: Arc<CallScope>| async move {
        let change = |key: &str| FactChange::Put(fact(key, "t"));
        let long = "k".repeat(FACT_KEY_BYTES_MAX + 1);
        let refused = scope.change_memory(MemoryScope::Session, change(&long)).await;
        assert!(matches!(refused, Err(MemoryError::Invalid { .. })), "{refused:?}");
        for number in 0..FACT_CHANGES_MAX {
            let key = (number % 10).to_string();
            scope.change_memory(MemoryScope::Session, change(&key)).await.expect("kept");
        }
        let refused = scope.change_memory(MemoryScope::Session, change("more")).await;
        assert!(matches!(refused, Err(MemoryError::Limit { .. })), "{refused:?}");
        value("1")
    });
    world.tool("t", InterruptionPolicy::Fail, writer);
    world.agent(
        "a",
        ClosurePlanner::new(|input: PlanInput, _| async move {
            match input.resume {
                None => call_of(&[("c1", "t/write", "{}")]),
                Some(resume) => answer(&format!("{:?}", resume.tool_outputs[0].outcome)),
            }
        }),
    );
    let host = world.start().await;
    let run = host.end(&host.spawn(&request("a", "x")).await).await;
    assert_eq!(run.state.reply.result().as_deref(), Some("Value(\"1\")"));
    let facts = host.client().facts(Some(&ours()), None, 200).await;
    assert_eq!(facts.expect("listed").len(), 10);
}

#[tokio::test]
async fn m_24_facts_of_a_session_of_somebody_else_are_not_found_on_any_door() {
    let mut world = World::new();
    let host = world.start().await;
    put(&host, "k", "fact").await;
    let (controller, session) = (&host.controller, ours());
    let mine = host.scope.clone().owner(OWNER).session(SESSION);
    let found = controller.at(&mine).fact(Some(&session), "k").await.expect("reads");
    assert_eq!(found.map(|fact| fact.text).as_deref(), Some("fact"));
    let theirs = host.scope.clone().owner("user-b");
    let elsewhere = host.scope.clone().owner(OWNER).session("parent-b");
    fn code<T>(result: Result<T, ControllerError>) -> Option<&'static str> {
        result.map_err(|error| error.code()).err()
    }
    for scope in [&theirs, &elsewhere] {
        let session = Some(&session);
        assert_eq!(code(controller.at(scope).fact(session, "k").await), Some("not-found"));
        assert_eq!(code(controller.at(scope).facts(session, None, 9).await), Some("not-found"));
        let found = controller.at(scope).search_facts(session, "fact", 9).await;
        assert_eq!(code(found), Some("not-found"));
        let said = ("t".to_owned(), Labels::new());
        assert_eq!(
            code(controller.at(scope).put_fact(session, "k", said).await),
            Some("not-found")
        );
        assert_eq!(code(controller.at(scope).delete_fact(session, "k").await), Some("not-found"));
        // What all of a tenant may know they may know, and not change.
        assert_eq!(controller.at(scope).facts(None, None, 9).await.expect("lists"), []);
        let said = ("t".to_owned(), Labels::new());
        assert_eq!(code(controller.at(scope).put_fact(None, "k", said).await), Some("forbidden"));
        assert_eq!(code(controller.at(scope).delete_fact(None, "k").await), Some("forbidden"));
    }
    let zeta = taskrun_journal::list::Scope::tenant("zeta");
    assert_eq!(controller.at(&zeta).fact(Some(&session), "k").await.expect("reads"), None);
    let still = controller.at(&host.scope).fact(Some(&session), "k").await.expect("reads");
    assert_eq!(still.map(|fact| fact.text).as_deref(), Some("fact"));
}
