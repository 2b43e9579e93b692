//! Names that people give to runs (M-07).

use taskrun::error::ControllerError;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::list::{ListFilter, Scope};
use taskrun_journal::status::Status;

use super::common::{Gates, beneath, named};
use crate::native::{Native, OWNER, Op, SESSION, World};

/// A request for a run with an id and a name.
fn called(id: &str, name: &str) -> SpawnRequest {
    SpawnRequest { name: Some(name.to_owned()), ..named(id, "block") }
}

async fn world() -> (World, std::sync::Arc<Gates>, Native) {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("block", gates.planner());
    let host = world.start().await;
    (world, gates, host)
}

/// The run that has the name for which a request is refused.
async fn holder(host: &Native, request: &SpawnRequest) -> String {
    match host.client().spawn(request).await {
        Err(ControllerError::NameTaken { name, id }) => {
            assert_eq!(Some(name), request.name);
            id.to_string()
        }
        other => panic!("the name is free: {other:?}"),
    }
}

#[tokio::test]
async fn m_07_a_name_is_given_once_among_open_runs_and_is_free_again_at_the_end() {
    let (_world, gates, host) = world().await;
    host.spawn(&called("1", "report")).await;
    assert_eq!(host.view("1").await.name.as_deref(), Some("report"));
    assert_eq!(holder(&host, &called("2", "report")).await, "1");
    let missing = host.client().get("2").await;
    assert!(matches!(missing, Err(ControllerError::NotFound { .. })), "nothing is kept");
    gates.open("1");
    host.end("1").await;
    host.spawn(&called("2", "report")).await;
    assert_eq!(holder(&host, &called("3", "report")).await, "2");
    // The run that ended keeps it, as what it was called.
    let filter = ListFilter { name: Some("report".to_owned()), ..ListFilter::default() };
    let page = host.client().list(&filter, None, 9).await.expect("lists");
    assert_eq!(page.runs.iter().map(|run| run.id().as_str()).collect::<Vec<_>>(), ["2", "1"]);
}

#[tokio::test]
async fn m_07_every_way_to_end_frees_the_name() {
    let (mut world, gates, host) = world().await;
    host.spawn(&called("canceled", "report")).await;
    gates.have_come(1).await;
    host.client().cancel("canceled", None).await.expect("canceled");
    host.end("canceled").await;
    world.agent_with("fragile", gates.planner(), |agent| agent.durable = false);
    let other = world.start().await;
    let fragile = SpawnRequest { agent_name: "fragile".to_owned(), ..called("lost", "report") };
    world.kill(host).await;
    other.spawn(&fragile).await;
    other.reach("lost", Status::Running).await;
    assert_eq!(holder(&other, &called("next", "report")).await, "lost");
    world.kill(other).await;
    let third = world.start().await;
    assert_eq!(third.end("lost").await.status(), Status::Failed);
    third.spawn(&called("next", "report")).await;
}

#[tokio::test]
async fn m_07_names_are_unique_for_each_owner_session_and_parent() {
    let (_world, gates, host) = world().await;
    host.spawn(&called("1", "report")).await;
    let bob = SpawnRequest { owner_user_id: "user-b".to_owned(), ..called("2", "report") };
    host.spawn(&bob).await;
    let elsewhere =
        SpawnRequest { parent_session_id: "parent-b".to_owned(), ..called("3", "report") };
    host.spawn(&elsewhere).await;
    let child = |parent: &str, id: &str| SpawnRequest {
        name: Some("report".to_owned()),
        ..beneath(parent, id, "block")
    };
    host.spawn(&child("1", "1a")).await;
    assert_eq!(holder(&host, &child("1", "1b")).await, "1a");
    gates.have_come(4).await;
    // A name outside of the scope says nothing about who has it.
    let scope = Scope::tenant("default").owner("user-b");
    let filter = ListFilter { name: Some("report".to_owned()), ..ListFilter::default() };
    let page = host.controller.at(&scope).list(&filter, None, 9).await.expect("lists");
    assert_eq!(page.runs.iter().map(|run| run.id().as_str()).collect::<Vec<_>>(), ["2"]);
    let mine = Scope::tenant("default").owner(OWNER).session(SESSION);
    let page = host.controller.at(&mine).list(&filter, None, 9).await.expect("lists");
    assert_eq!(page.runs.len(), 2, "the run and its child");
}

#[tokio::test]
async fn m_07_a_name_has_the_form_of_a_name_and_is_checked_after_the_agent() {
    let (_world, _gates, host) = world().await;
    for bad in ["", " ", "a b", "a.b", "a/b", "1st", "@last", "-x", &"x".repeat(65)] {
        let refused = host.client().spawn(&called("1", bad)).await;
        let Err(ControllerError::Invalid { field: "name", reason }) = refused else {
            panic!("{bad:?} is no name: {refused:?}")
        };
        assert!(reason.contains("begins with a letter"), "{reason}");
    }
    let both = SpawnRequest { agent_name: "nobody".to_owned(), ..called("1", "a b") };
    let refused = host.client().spawn(&both).await;
    assert!(matches!(refused, Err(ControllerError::Invalid { field: "agent_name", .. })));
    assert_eq!(host.spawn(&called("1", &"x".repeat(64))).await, "1");
}

#[tokio::test]
async fn m_07_a_repeated_request_gets_its_run_and_a_name_that_cannot_be_kept_is_not_taken() {
    let (world, _gates, host) = world().await;
    world.store.fail(Op::Create, 1);
    let keyed = |id: &str| SpawnRequest {
        id: None,
        idempotency_key: Some("k".to_owned()),
        ..called(id, "report")
    };
    let failed = host.client().spawn(&keyed("1")).await;
    assert!(matches!(failed, Err(ControllerError::Storage(_))), "{failed:?}");
    let first = host.spawn(&keyed("1")).await;
    assert_eq!(host.spawn(&keyed("1")).await, first);
    assert_eq!(holder(&host, &called("2", "report")).await, first);
    // Another name is another request.
    let other = SpawnRequest { name: Some("other".to_owned()), ..keyed("1") };
    let refused = host.client().spawn(&other).await;
    assert!(matches!(refused, Err(ControllerError::AlreadyExists { .. })), "{refused:?}");
}
