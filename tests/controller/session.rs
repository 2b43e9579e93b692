//! Sessions, and two identities on their doors (M-63, M-24).

use std::collections::BTreeSet;
use std::time::Duration;

use taskrun::controller::DELETE_WAIT;
use taskrun::error::ControllerError;
use taskrun_journal::ids::RunId;
use taskrun_journal::list::{ListFilter, Scope};
use taskrun_journal::status::Status;

use crate::native::{ClosurePlanner, Gate, Native, OWNER, SESSION, World, answer, request};

fn code<T>(result: Result<T, ControllerError>) -> Option<&'static str> {
    result.map_err(|error| error.code()).err()
}

fn identities(host: &Native) -> (Scope, Scope) {
    (host.scope.clone().owner(OWNER), host.scope.clone().owner("user-b"))
}

#[tokio::test]
async fn m_63_creating_a_session_again_gives_what_is_there() {
    let mut world = World::new();
    let host = world.start().await;
    let (mine, _) = identities(&host);
    let first = host.controller.at(&mine).create_session(SESSION).await.expect("created");
    world.clock.advance(Duration::from_secs(1));
    let second = host.controller.at(&mine).create_session(SESSION).await.expect("there");
    assert_eq!(first, second);
    assert_eq!(first.key.owner_user_id.as_deref(), Some(OWNER));
    assert_eq!(host.controller.at(&mine).session(SESSION).await.expect("there"), first);
    for id in ["", "  "] {
        assert_eq!(code(host.controller.at(&mine).create_session(id).await), Some("invalid"));
    }
}

#[tokio::test]
async fn m_63_nothing_begins_in_a_session_that_has_ended_and_what_runs_goes_on() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("a", gate.answering("done"));
    let host = world.start().await;
    let (mine, _) = identities(&host);
    host.controller.at(&mine).create_session(SESSION).await.expect("created");
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    let ended = host.controller.at(&mine).end_session(SESSION).await.expect("ended");
    assert!(ended.ended_at.is_some());
    let refused = host.client().spawn(&request("a", "y")).await;
    assert_eq!(code(refused), Some("session-ended"));
    assert_eq!(
        code(host.controller.at(&mine).create_session(SESSION).await),
        Some("session-ended")
    );
    world.clock.advance(Duration::from_secs(1));
    let again = host.controller.at(&mine).end_session(SESSION).await.expect("ended");
    assert_eq!(again, ended, "the first end counts");
    gate.open();
    assert_eq!(host.end(&id).await.status(), Status::Completed);
    let mut elsewhere = request("a", "y");
    elsewhere.parent_session_id = "parent-b".into();
    assert_eq!(host.end(&host.spawn(&elsewhere).await).await.status(), Status::Completed);
}

#[tokio::test]
async fn ls_16_deleting_a_session_cancels_what_is_open_and_removes_all_of_it() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.settings.slots = 2;
    world.agent("a", gate.answering("done"));
    world.agent("quick", ClosurePlanner::new(|_, _| async { answer("done") }));
    let host = world.start().await;
    let (mine, _) = identities(&host);
    host.controller.at(&mine).create_session(SESSION).await.expect("created");
    let over = host.spawn(&request("quick", "x")).await;
    host.end(&over).await;
    let mut elsewhere = request("a", "stays");
    elsewhere.parent_session_id = "parent-b".into();
    let stays = host.spawn(&elsewhere).await;
    let running = host.spawn(&request("a", "x")).await;
    gate.reached_by(2).await;
    let queued = host.spawn(&request("a", "y")).await;
    assert_eq!(host.get(&queued).await.status(), Status::Queued);

    let deleted = host.controller.at(&mine).delete_session(SESSION).await.expect("deleted");
    let mut canceled: Vec<&str> = deleted.canceled.iter().map(RunId::as_str).collect();
    canceled.sort_unstable();
    let mut expected = [running.as_str(), queued.as_str()];
    expected.sort_unstable();
    assert_eq!(canceled, expected);
    assert_eq!(deleted.open, []);
    assert_eq!((deleted.removed.runs, deleted.removed.kept), (3, 0));
    for id in [&over, &running, &queued] {
        assert_eq!(code(host.client().get(id).await), Some("not-found"));
    }
    assert_eq!(host.get(&stays).await.status(), Status::Running, "another session is untouched");
    let again = host.controller.at(&mine).delete_session(SESSION).await.expect("deleted");
    assert_eq!((again.canceled.len(), again.removed.runs), (0, 0));
    assert_eq!(
        code(host.controller.at(&mine).spawn(&request("a", "z")).await),
        Some("session-ended")
    );
}

#[tokio::test]
async fn m_63_a_run_that_does_not_stop_in_time_stays_until_the_session_is_deleted_again() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent_with("a", gate.answering("done").hearing(), |agent| {
        agent.limits.grace = DELETE_WAIT * 2;
    });
    let host = world.start().await;
    let (mine, _) = identities(&host);
    host.controller.at(&mine).create_session(SESSION).await.expect("created");
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    let client = host.controller.at(&mine);
    let delete = client.delete_session(SESSION);
    let (deleted, waited) = world.run_until(DELETE_WAIT, delete).await;
    let deleted = deleted.expect("deleted");
    assert_eq!(waited, DELETE_WAIT);
    assert_eq!(deleted.open.iter().map(RunId::as_str).collect::<Vec<_>>(), [id.as_str()]);
    assert_eq!(deleted.removed.runs, 0);
    assert_eq!(host.get(&id).await.status(), Status::Canceling);
    gate.open();
    assert_eq!(host.end(&id).await.status(), Status::Canceled);
    let again = host.controller.at(&mine).delete_session(SESSION).await.expect("deleted");
    assert_eq!(again.removed.runs, 1);
}

#[tokio::test]
async fn m_24_a_session_of_somebody_else_is_not_found_on_any_door() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("a", gate.answering("done"));
    let host = world.start().await;
    let (mine, theirs) = identities(&host);
    host.controller.at(&mine).create_session(SESSION).await.expect("created");
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    let controller = &host.controller;
    let other_session = mine.clone().session("parent-b");
    assert_eq!(code(controller.at(&theirs).session(SESSION).await), Some("not-found"));
    assert_eq!(
        code(controller.at(&other_session).create_session(SESSION).await),
        Some("not-found")
    );
    assert_eq!(code(controller.at(&other_session).session(SESSION).await), Some("not-found"));
    assert_eq!(code(controller.at(&other_session).end_session(SESSION).await), Some("not-found"));
    assert_eq!(
        code(controller.at(&other_session).delete_session(SESSION).await),
        Some("not-found")
    );
    for scope in [&theirs, &other_session] {
        assert_eq!(code(controller.at(scope).get(&id).await), Some("not-found"));
        assert_eq!(code(controller.at(scope).cancel(&id, None).await), Some("not-found"));
        assert_eq!(code(controller.at(scope).events(&id, 0, 9).await), Some("not-found"));
        assert_eq!(code(controller.at(scope).transcript(&id, None, 9).await), Some("not-found"));
        assert_eq!(code(controller.at(scope).tree(&id).await), Some("not-found"));
        assert_eq!(code(controller.at(scope).asks(&id).await), Some("not-found"));
        let listed = controller.at(scope).list(&ListFilter::default(), None, 9).await;
        assert_eq!(listed.expect("a page").runs, []);
        assert_eq!(code(controller.at(scope).spawn(&request("a", "x")).await), Some("forbidden"));
    }
    let page = controller.at(&theirs).session_events(SESSION, 0, 9).await.expect("a page");
    assert_eq!(page.events, [], "nothing of what happens in it is told");
    // A session of the same name that somebody else has is another one.
    let other = controller.at(&theirs).create_session(SESSION).await.expect("created");
    assert_eq!(other.key.owner_user_id, theirs.owner_user_id);
    let deleted = controller.at(&theirs).delete_session(SESSION).await.expect("deleted");
    assert_eq!((deleted.canceled.len(), deleted.removed.runs), (0, 0));
    assert_eq!(host.get(&id).await.status(), Status::Running);
    assert_eq!(controller.at(&mine).session(SESSION).await.expect("there").ended_at, None);
    gate.open();
    host.end(&id).await;
    let all = taskrun_journal::time::Timestamp(u64::MAX);
    assert_eq!(controller.at(&theirs).gc(all, false).await.expect("done").runs, 0);
    assert_eq!(controller.at(&mine).gc(all, true).await.expect("done").runs, 1);
}

#[tokio::test]
async fn m_24_the_serial_runs_of_one_owner_keep_nobody_elses_waiting() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("a", gate.answering("done"));
    world.agent("quick", ClosurePlanner::new(|_, _| async { answer("done") }));
    let host = world.start().await;
    let mut mine = request("a", "x");
    mine.serial = true;
    let id = host.spawn(&mine).await;
    gate.reached_by(1).await;
    let mut theirs = request("quick", "x");
    (theirs.serial, theirs.owner_user_id) = (true, "user-b".into());
    let other = host.spawn(&theirs).await;
    assert_eq!(host.end(&other).await.status(), Status::Completed);
    assert_eq!(host.get(&id).await.status(), Status::Running);
    gate.open();
}

#[tokio::test]
async fn m_24_an_idempotency_key_of_one_owner_is_never_that_of_another() {
    let mut world = World::new();
    world.agent("quick", ClosurePlanner::new(|_, _| async { answer("done") }));
    let host = world.start().await;
    let keyed = |owner: &str, key: &str| {
        let mut request = request("quick", "x");
        (request.owner_user_id, request.idempotency_key) = (owner.into(), Some(key.into()));
        request
    };
    let first = host.spawn(&keyed("a", "b\nc")).await;
    let second = host.spawn(&keyed("a\nb", "c")).await;
    assert_ne!(first, second);
}

#[tokio::test]
async fn m_24_an_id_tells_nothing_about_other_tenants() {
    let mut world = World::new();
    world.agent("quick", ClosurePlanner::new(|_, _| async { answer("done") }));
    let host = world.start().await;
    let made = host.spawn(&request("quick", "x")).await;
    let named = |id: &str| {
        let mut request = request("quick", "x");
        request.id = Some(id.into());
        request
    };
    host.spawn(&named("mine")).await;
    let zeta = Scope::tenant("zeta");
    let said = async |scope: &Scope, id: &str| {
        let refused = host.controller.at(scope).spawn(&named(id)).await.expect_err("refused");
        refused.to_string().replace(id, "ID")
    };
    assert_eq!(said(&zeta, "mine").await, said(&zeta, "nobodys").await);
    let nobodys = "01890000-0000-7000-8000-000000000000";
    assert_eq!(said(&zeta, &made).await, said(&zeta, nobodys).await);
    assert_eq!(said(&host.scope, "zeta:x").await, said(&host.scope, "other:x").await);
    host.controller.at(&zeta).spawn(&named("zeta:mine")).await.expect("its own");
    assert_eq!(said(&zeta, "zeta:mine").await, "run already exists: ID");
    assert_eq!(said(&host.scope, &made).await, "run already exists: ID");
}

/// A delegated run belongs to the session of whoever delegates.
#[tokio::test]
async fn w_055_what_is_beneath_a_run_is_listed_told_and_removed_with_its_session() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("lead", gate.answering("done"));
    world.agent("quick", ClosurePlanner::new(|_, _| async { answer("done") }));
    let host = world.start().await;
    let (mine, theirs) = identities(&host);
    let root = host.spawn(&request("lead", "x")).await;
    gate.reached_by(1).await;
    // As a guest's child has it: the session of the run that starts it.
    let session = host.get(&root).await.execution().expect("begun").child_session_id.clone();
    let beneath = |parent: &str, session: &str, agent: &str| {
        let mut asked = request(agent, "x");
        (asked.parent_run_id, asked.parent_session_id) = (Some(parent.into()), session.into());
        asked
    };
    let child = host.spawn(&beneath(&root, &session, "lead")).await;
    gate.reached_by(2).await;
    let below = host.spawn(&beneath(&child, "session of the child", "quick")).await;
    host.end(&below).await;
    host.controller.at(&mine).cancel_alone(&root, None).await.expect("there");
    host.end(&root).await;

    let controller = &host.controller;
    let scope = mine.clone().session(SESSION);
    let page = controller.at(&scope).list(&ListFilter::default(), None, 9).await.expect("lists");
    let listed: BTreeSet<_> = page.runs.iter().map(|run| run.id().to_string()).collect();
    let all = BTreeSet::from([root.clone(), child.clone(), below.clone()]);
    assert_eq!(listed, all);
    let events = controller.at(&mine).session_events(SESSION, 0, 100).await.expect("a page").events;
    assert!(all.iter().all(|id| events.iter().any(|event| event.run.as_str() == id)));
    let page = controller.at(&theirs).session_events(SESSION, 0, 100).await.expect("a page");
    assert_eq!(page.events, []);
    let deleted = controller.at(&mine).delete_session(SESSION).await.expect("deleted");
    assert_eq!(deleted.canceled.iter().map(RunId::as_str).collect::<Vec<_>>(), [child.as_str()]);
    assert_eq!((deleted.removed.runs, deleted.removed.kept), (3, 0));
    for id in &all {
        assert_eq!(code(controller.at(&host.scope).get(id).await), Some("not-found"));
    }
}

#[tokio::test]
async fn m_24_an_owner_ends_his_own_session_and_an_operator_those_of_all() {
    let mut world = World::new();
    world.agent("quick", ClosurePlanner::new(|_, _| async { answer("done") }));
    let host = world.start().await;
    let (mine, theirs) = identities(&host);
    let mut asked = request("quick", "x");
    host.controller.at(&mine).end_session(SESSION).await.expect("ended");
    assert_eq!(code(host.client().spawn(&asked).await), Some("session-ended"));
    asked.owner_user_id = "user-b".into();
    host.end(&host.spawn(&asked).await).await;
    host.client().end_session(SESSION).await.expect("ended");
    assert_eq!(code(host.client().spawn(&asked).await), Some("session-ended"));
    assert_eq!(
        code(host.controller.at(&theirs).create_session(SESSION).await),
        Some("session-ended")
    );
}
