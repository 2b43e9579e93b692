//! Bounds of finalizers: the budget of the run, what is on record of them, and the places that those
//! of one owner take from those of another.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use taskrun::controller::FINALIZERS_MAX;
use taskrun::driver::FINALIZER_TIMEOUT_CANCELED;
use taskrun::scope::CallScope;
use taskrun::scope::model::Model;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::Event;
use taskrun_journal::message::{Labels, LogLevel};
use taskrun_journal::money::Price;
use taskrun_journal::status::Status;
use taskrun_policy::{Capability, Use};

use super::budgets::{Metered, ask, priced};
use super::common::{check_journal, count, named};
use crate::native::{ClosurePlanner, Gate, Op, World, answer, request};

/// Dollars for a million tokens: an answer costs 90 millionths.
const PRICE: Price = Price::new(2_000_000, 5_000_000);

/// An agent whose finalizer asks its model ten times, tries to write a file, and speaks.
fn greedy() -> ClosurePlanner {
    let planner = ClosurePlanner::new(|_, _| async { answer("done") });
    planner.finalizer(|_, scope: Arc<CallScope>| async move {
        let mut refusals = Vec::new();
        for _ in 0..10 {
            refusals.extend(Some(ask(&scope).await).filter(|said| said != "asked"));
        }
        let written = scope.allow(&Use::Path(Capability::WorkspaceWrite, "notes.md"));
        scope.log(LogLevel::Info, "a", "I am done", Labels::new());
        // The outcome is fixed.
        scope.record(Event::AssistantChunk { text: "and one thing more".to_owned() });
        let told = [
            ("refused".to_owned(), refusals.len().to_string()),
            ("why".to_owned(), refusals.pop().unwrap_or_default()),
            ("wrote".to_owned(), written.is_ok().to_string()),
        ];
        Ok(Ok(told.into()))
    })
}

#[tokio::test]
async fn m_50_a_finalizer_is_held_to_the_budget_and_what_it_did_is_on_record() {
    for never_began in [false, true] {
        let (mut world, model) = (World::new(), Arc::new(Metered::default()));
        let own: Arc<dyn Model> = model.clone();
        world.agent_asking("a", greedy(), Some(own), |agent| {
            priced(agent, Some(PRICE));
            agent.budget.tokens = Some(60);
        });
        world.store.hold(Op::Claim);
        let host = world.start().await;
        host.spawn(&named("1", "a")).await;
        if never_began {
            host.client().cancel("1", None).await.expect("there");
        }
        world.store.release();
        let run = host.end("1").await;
        assert_eq!(model.asked.load(Ordering::SeqCst), 2, "as often as the budget allows");
        let view = host.view("1").await;
        assert_eq!((run.state.progress.total_tokens, view.cost_microusd), (60, Some(180)));
        let told = ["refused", "why", "wrote"].map(|key| view.metadata[key].as_str());
        assert_eq!(told, ["8", "no tokens are left", "false"]);
        let counted = host.client().charged_with_descendants(&run).await.expect("read");
        assert_eq!(counted.total_tokens, 60, "the budgets above it count it");

        let journal = host.journal("1").await;
        check_journal(&journal);
        let kinds = ["policy_decision", "log", "usage", "assistant_chunk"];
        assert_eq!(kinds.map(|kind| count(&journal, kind)), [1, 1, 1, 0], "{journal:?}");
        let ended = match never_began {
            true => (Status::Canceled, None),
            false => (Status::Completed, Some("done".to_owned())),
        };
        assert_eq!((run.status(), view.result), ended);
    }
}

#[tokio::test]
async fn a_finalizer_hides_no_refusal_behind_lines_of_its_own() {
    let mut world = World::new();
    let planner = ClosurePlanner::new(|_, _| async { answer("done") });
    let planner = planner.finalizer(|_, scope: Arc<CallScope>| async move {
        for _ in 0..200 {
            scope.log(LogLevel::Info, "a", "nothing to see", Labels::new());
        }
        let written = scope.allow(&Use::Path(Capability::WorkspaceWrite, "notes.md"));
        written.expect_err("no rule allows it");
        Ok(Ok(Labels::new()))
    });
    world.agent("a", planner);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    host.end("1").await;
    let journal = host.journal("1").await;
    check_journal(&journal);
    // A hundred lines, and the one that says that there were more.
    assert_eq!(["policy_decision", "log"].map(|kind| count(&journal, kind)), [1, 101]);
}

#[tokio::test]
async fn m_50_a_finalizer_finds_no_budget_that_the_steps_of_its_run_have_spent() {
    let (mut world, model) = (World::new(), Arc::new(Metered::default()));
    let planner = ClosurePlanner::new(|_, scope: Arc<CallScope>| async move {
        ask(&scope).await;
        answer("done")
    });
    let planner = planner.finalizer(|_, scope: Arc<CallScope>| async move {
        Ok(Ok([("said".to_owned(), ask(&scope).await)].into()))
    });
    let own: Arc<dyn Model> = model.clone();
    world.agent_asking("a", planner, Some(own), |agent| agent.budget.tokens = Some(30));
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    host.end("1").await;
    assert_eq!(model.asked.load(Ordering::SeqCst), 1);
    assert!(host.view("1").await.metadata["said"].contains("no tokens are left"));
}

#[tokio::test]
async fn finalizers_of_one_owner_keep_that_of_another_waiting_for_one_of_them_at_most() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.settings.slots = 1;
    let planner = || ClosurePlanner::new(|_, _| async { answer("done") });
    let own = gate.clone();
    let spins = planner().finalizer(move |_, _| {
        let gate = own.clone();
        async move {
            gate.pass().await;
            Ok(Ok(Labels::new()))
        }
    });
    world.agent("spins", spins);
    world.agent("quick", planner().finalizer(|_, _| async { Ok(Ok(Labels::new())) }));
    world.store.hold(Op::Claim);
    let host = world.start().await;
    for _ in 0..40 {
        let id = host.spawn(&request("spins", "x")).await;
        host.client().cancel(&id, None).await.expect("there");
    }
    world.store.release();
    // The slot and all places beside it.
    gate.reached_by(FINALIZERS_MAX + 1).await;
    let (owner_user_id, parent_session_id) = ("user-b".to_owned(), "parent-b".to_owned());
    let theirs = SpawnRequest { owner_user_id, parent_session_id, ..request("quick", "x") };
    let id = host.spawn(&theirs).await;
    host.client().cancel(&id, None).await.expect("there");
    assert_eq!(host.get(&id).await.status(), Status::Finalizing);
    host.settle().await;
    // The time of one finalizer passes, and no more.
    world.clock.advance(FINALIZER_TIMEOUT_CANCELED);
    assert_eq!(host.end(&id).await.status(), Status::Canceled);
}
