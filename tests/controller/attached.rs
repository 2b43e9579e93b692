//! Runs that end with the run that started them (M-08).

use std::sync::Arc;

use taskrun::error::ControllerError;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::status::{Status, StopReason};

use super::common::{Gates, beneath, check_journal, count, named};
use crate::native::{ClosurePlanner, Native, Op, PAUSE_OVER, Side, World, answer};

fn attached(parent: &str, id: &str) -> SpawnRequest {
    SpawnRequest { attached: true, ..beneath(parent, id, "block") }
}

/// A run with an attached child and one of its own, all at their gates.
async fn family(world: &mut World, gates: &Arc<Gates>) -> Native {
    world.agent("block", gates.planner());
    let host = world.start().await;
    host.spawn(&named("p", "block")).await;
    host.spawn(&attached("p", "kid")).await;
    host.spawn(&beneath("p", "own", "block")).await;
    gates.have_come(3).await;
    host
}

/// The run was canceled with its parent, and asked to once.
async fn ended_with_parent(host: &Native, id: &str) {
    host.end(id).await;
    let view = host.view(id).await;
    let by = Some(StopReason::CanceledByParent);
    assert_eq!((view.status, view.stop_reason), (Status::Canceled, by), "{id}");
    let journal = host.journal(id).await;
    check_journal(&journal);
    assert_eq!(count(&journal, "cancel_requested"), 1, "{id}");
}

#[tokio::test]
async fn m_08_a_child_goes_on_after_its_parent_unless_it_is_attached() {
    let (mut world, gates) = (World::new(), Gates::new());
    let host = family(&mut world, &gates).await;
    assert!(host.view("kid").await.attached);
    gates.open("p");
    assert_eq!(host.end("p").await.status(), Status::Completed);
    ended_with_parent(&host, "kid").await;
    assert_eq!(host.get("own").await.status(), Status::Running);
    gates.open("own");
    assert_eq!(host.end("own").await.status(), Status::Completed);
}

#[tokio::test]
async fn m_08_a_cancellation_that_keeps_the_children_ends_those_that_are_attached() {
    let (mut world, gates) = (World::new(), Gates::new());
    let host = family(&mut world, &gates).await;
    host.client().cancel_alone("p", None).await.expect("canceled");
    assert_eq!(host.end("p").await.status(), Status::Canceled);
    ended_with_parent(&host, "kid").await;
    assert_eq!(host.get("own").await.status(), Status::Running);
}

#[tokio::test]
async fn m_08_what_is_canceled_with_the_tree_is_not_canceled_again() {
    let (mut world, gates) = (World::new(), Gates::new());
    let host = family(&mut world, &gates).await;
    let canceled = host.client().cancel("p", None).await.expect("canceled");
    assert_eq!(canceled.descendants.len(), 2);
    assert_eq!(host.end("p").await.status(), Status::Canceled);
    for id in ["kid", "own"] {
        ended_with_parent(&host, id).await;
    }
}

#[tokio::test]
async fn m_08_a_parent_whose_host_dies_for_good_takes_its_attached_children_with_it() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("block", gates.planner());
    world.agent_with("fragile", gates.planner(), |agent| agent.durable = false);
    let (first, second) = (world.start().await, world.door().await);
    first.spawn(&named("p", "fragile")).await;
    gates.have_come(1).await;
    first.spawn(&attached("p", "kid")).await;
    first.spawn(&attached("kid", "grandkid")).await;
    gates.have_come(3).await;
    world.kill(first).await;
    // Whoever looks after runs of dead hosts ends the parent, and with it what is attached.
    second.controller.sweep().await.expect("swept");
    assert_eq!(second.end("p").await.status(), Status::Failed);
    for id in ["kid", "grandkid"] {
        ended_with_parent(&second, id).await;
    }
}

#[tokio::test]
async fn m_08_a_crash_on_either_side_of_the_parents_end_leaves_no_attached_child_behind() {
    for side in [Side::Before, Side::After] {
        let (mut world, gates) = (World::new(), Gates::new());
        // The kid never comes to its own end.
        let inner = Arc::clone(&gates);
        let parent = ClosurePlanner::new(move |input, _| {
            let gates = Arc::clone(&inner);
            async move {
                let _inside = gates.pass(&input.run.run_id).await;
                answer("done")
            }
        });
        world.agent("block", gates.planner());
        world.agent("parent", parent);
        let door = world.door().await;
        let host = world.start().await;
        host.spawn(&named("p", "parent")).await;
        gates.have_come(1).await;
        host.spawn(&attached("p", "kid")).await;
        gates.have_come(2).await;
        world.store.cut(Op::Append, 1, side);
        gates.open("p");
        world.store.is_cut().await;
        let stands = door.get("p").await.status();
        assert_eq!(stands.is_terminal(), side == Side::After, "{side:?}");
        let kid = door.get("kid").await.status();
        // There is no moment in which the parent has ended and nobody has told the kid.
        assert_eq!(kid == Status::Canceling, side == Side::After, "{side:?}: {kid}");
        world.kill(host).await;
        world.part_stores();
        door.controller.sweep().await.expect("swept");
        world.clock.advance(PAUSE_OVER);
        let next = world.start().await;
        assert_eq!(next.end("p").await.status(), Status::Completed);
        ended_with_parent(&next, "kid").await;
    }
}

#[tokio::test]
async fn m_08_an_end_that_cannot_be_recorded_ends_no_child_either() {
    let (mut world, gates) = (World::new(), Gates::new());
    let host = family(&mut world, &gates).await;
    world.store.fail(Op::Append, 1);
    gates.open("p");
    // The end is recorded again after a pause.
    world.next(std::time::Duration::from_millis(200)).await;
    assert_eq!(host.end("p").await.status(), Status::Completed);
    ended_with_parent(&host, "kid").await;
}

#[tokio::test]
async fn m_08_only_a_run_with_a_parent_is_attached_and_only_to_one_of_its_owner() {
    let (mut world, gates) = (World::new(), Gates::new());
    let host = family(&mut world, &gates).await;
    let alone = SpawnRequest { parent_run_id: None, ..attached("p", "alone") };
    let refused = host.client().spawn(&alone).await;
    assert!(
        matches!(refused, Err(ControllerError::Invalid { field: "attached", .. })),
        "{refused:?}"
    );
    let foreign = SpawnRequest { owner_user_id: "user-b".to_owned(), ..attached("p", "foreign") };
    let refused = host.client().spawn(&foreign).await;
    assert!(matches!(refused, Err(ControllerError::Forbidden { .. })), "{refused:?}");
    let scope = taskrun_journal::list::Scope::tenant("default").owner("user-b");
    let hidden = host.controller.at(&scope).spawn(&foreign).await;
    assert!(matches!(hidden, Err(ControllerError::NotFound { .. })), "{hidden:?}");
}
