//! Canceling trees of runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;
use taskrun::error::ControllerError;
use taskrun_journal::event::Event;
use taskrun_journal::message::Labels;
use taskrun_journal::question::Answer;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};

use super::common::{Gates, beneath, check_journal, named};
use super::host_tools::{leader, words};
use crate::native::{Native, Op, SESSION, World};

/// A root with two children, one of which has a child, all of them waiting at their gates.
async fn family(world: &mut World, gates: &Arc<Gates>) -> Native {
    world.agent("block", gates.planner());
    let host = world.start().await;
    host.spawn(&named("root", "block")).await;
    host.spawn(&beneath("root", "c1", "block")).await;
    host.spawn(&beneath("root", "c2", "block")).await;
    host.spawn(&beneath("c1", "g", "block")).await;
    gates.have_come(4).await;
    host
}

/// The runs of the session in the order in which they had an event of a kind.
async fn order(host: &Native, kind: &str) -> Vec<String> {
    let page = host.client().session_events(SESSION, 0, 1_000).await;
    let page = page.expect("the session can be read");
    let wanted = page.events.iter().filter(|event| event.recorded.event.kind() == kind);
    wanted.map(|event| event.run.to_string()).collect()
}

#[tokio::test]
async fn a_tree_is_canceled_from_its_leaves_to_its_root() {
    let (mut world, gates) = (World::new(), Gates::new());
    let host = family(&mut world, &gates).await;
    let canceled = host.client().cancel("root", Some("enough")).await;
    let canceled = canceled.expect("can be canceled");
    assert!(canceled.changed);
    assert_eq!(canceled.descendants.first().map(|id| id.as_str()), Some("g"));
    for id in ["root", "c1", "c2", "g"] {
        let run = host.end(id).await;
        let by = match id {
            "root" => StopReason::CanceledByOwner,
            _ => StopReason::CanceledByParent,
        };
        let view = RunView::from(&run);
        assert_eq!((view.status, view.stop_reason), (Status::Canceled, Some(by)), "{id}");
        check_journal(&host.journal(id).await);
    }
    let order = order(&host, "cancel_requested").await;
    assert_eq!((order[0].as_str(), order[3].as_str(), order.len()), ("g", "root", 4));
    let again = host.client().cancel("root", None).await.expect("answered");
    assert!(!again.changed && again.descendants.is_empty());
}

#[tokio::test]
async fn m_21_the_tool_of_the_host_cancels_a_run_with_everything_beneath_it_and_nothing_else() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("block", gates.planner());
    leader(&mut world, "lead", &["block"], |_, said| match said.len() {
        0 => vec![("ask_user", json!({ "question": "Which?" }))],
        1 | 2 => vec![("cancel_task_run", json!({ "id": said[0] }))],
        _ => Vec::new(),
    });
    let host = world.start().await;
    host.spawn(&named("root", "lead")).await;
    host.until("root", "asks", |run| run.state.awaits.iter().any(|one| !one.answered)).await;
    host.spawn(&beneath("root", "c1", "block")).await;
    host.spawn(&beneath("root", "c2", "block")).await;
    host.spawn(&beneath("c1", "g", "block")).await;
    gates.have_come(3).await;
    host.client().answer("root", None, Answer::Text("c1".into())).await.expect("taken");
    let said = words(&host, "root").await;
    assert_eq!((&said[1]["id"], &said[2]["id"]), (&json!("c1"), &json!("c1")), "{said:?}");
    for id in ["g", "c1"] {
        let view = RunView::from(&host.end(id).await);
        let by = Some(StopReason::CanceledByParent);
        assert_eq!((view.status, view.stop_reason), (Status::Canceled, by), "{id}");
    }
    assert_eq!(order(&host, "cancel_requested").await, ["g", "c1"], "each once");
    gates.open("c2");
    assert_eq!(host.end("c2").await.status(), Status::Completed);
}

#[tokio::test]
async fn canceling_a_branch_leaves_the_rest_alone() {
    let (mut world, gates) = (World::new(), Gates::new());
    let host = family(&mut world, &gates).await;
    host.client().cancel("c1", None).await.expect("can be canceled");
    assert_eq!(host.end("g").await.status(), Status::Canceled);
    assert_eq!(host.end("c1").await.status(), Status::Canceled);
    for id in ["root", "c2"] {
        gates.open(id);
        assert_eq!(host.end(id).await.status(), Status::Completed);
    }
}

#[tokio::test]
async fn children_go_on_where_a_run_is_canceled_alone() {
    let (mut world, gates) = (World::new(), Gates::new());
    let host = family(&mut world, &gates).await;
    let canceled = host.client().cancel_alone("root", None).await;
    assert!(canceled.expect("can be canceled").descendants.is_empty());
    assert_eq!(host.end("root").await.status(), Status::Canceled);
    for id in ["g", "c1", "c2"] {
        assert_eq!(host.get(id).await.status(), Status::Running);
        gates.open(id);
        assert_eq!(host.end(id).await.status(), Status::Completed);
    }
}

#[tokio::test]
async fn a_child_that_comes_while_its_parent_is_canceled_is_canceled_too() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("block", gates.planner());
    let host = world.start().await;
    let door = world.door().await;
    host.spawn(&named("root", "block")).await;
    gates.have_come(1).await;
    // Between the look beneath the run and the record of its own cancellation.
    world.store.hold(Op::Append);
    let (controller, scope) = (host.controller.clone(), host.scope.clone());
    let cancel = tokio::spawn(async move { controller.at(&scope).cancel("root", None).await });
    world.store.somebody_waits().await;
    door.spawn(&beneath("root", "late", "block")).await;
    world.store.release();
    let canceled = cancel.await.expect("no panic").expect("can be canceled");
    assert_eq!(canceled.descendants.iter().map(|id| id.as_str()).collect::<Vec<_>>(), ["late"]);
    assert_eq!(host.end("root").await.status(), Status::Canceled);
    let late = host.end("late").await;
    assert_eq!(RunView::from(&late).stop_reason, Some(StopReason::CanceledByParent));
}

#[tokio::test]
async fn a_run_that_is_being_canceled_starts_no_child_any_more() {
    let (mut world, gates) = (World::new(), Gates::new());
    // It hears that it is to stop, and takes its grace.
    world.agent("slow", gates.planner().hearing());
    let host = world.start().await;
    host.spawn(&named("root", "slow")).await;
    gates.have_come(1).await;
    host.client().cancel("root", None).await.expect("can be canceled");
    assert_eq!(host.get("root").await.status(), Status::Canceling);
    let late = host.client().spawn(&beneath("root", "late", "slow")).await;
    assert!(matches!(late, Err(ControllerError::ParentEnded { .. })), "{late:?}");
    gates.open("root");
    assert_eq!(host.end("root").await.status(), Status::Canceled);
    let late = host.client().spawn(&beneath("root", "late", "slow")).await;
    assert!(matches!(late, Err(ControllerError::ParentEnded { .. })), "{late:?}");
}

#[tokio::test]
async fn a_run_canceled_in_the_queue_never_begins_and_its_finalizer_is_heard_once() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.settings.slots = 1;
    let asked = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&asked);
    let planner = gates.planner().finalizer(move |input, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            assert_eq!(input.ending.stop_reason, StopReason::CanceledByOwner);
            Ok(Ok(Labels::from([("told".to_owned(), "yes".to_owned())])))
        }
    });
    world.agent("busy", gates.planner());
    world.agent("ends", planner);
    let host = world.start().await;
    host.spawn(&named("1", "busy")).await;
    gates.have_come(1).await;
    host.spawn(&named("2", "ends")).await;
    let canceled = host.client().cancel("2", None).await.expect("canceled");
    assert!(canceled.changed);
    assert_eq!(canceled.run.status(), Status::Finalizing);
    gates.open("1");
    let run = host.end("2").await;
    let view = RunView::from(&run);
    assert_eq!((view.status, view.started_at), (Status::Canceled, None));
    assert_eq!(view.metadata.get("told").map(String::as_str), Some("yes"));
    assert_eq!((asked.load(Ordering::SeqCst), gates.came()), (1, vec!["1".to_owned()]));
    let journal = host.journal("2").await;
    check_journal(&journal);
    assert!(!journal.iter().any(|one| matches!(one.event, Event::Started { .. })));
}
