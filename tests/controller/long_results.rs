//! Long results, kept whole beside their records (M-18).

use std::time::Duration;

use taskrun::error::ControllerError;
use taskrun::ports::planner::PlanInput;
use taskrun_journal::artifact::{ARTIFACT_BYTES_MAX, digest};
use taskrun_journal::event::Event;
use taskrun_journal::list::Scope;
use taskrun_journal::message::{Message, Role};
use taskrun_journal::reply::RESULT_CHARS_MAX;
use taskrun_journal::run::RunView;
use taskrun_journal::status::Status;
use taskrun_journal::time::Clock;

use super::common::{Gates, check_journal, named, soon, task_tools};
use crate::native::{
    ClosurePlanner, Native, OWNER, Op, SESSION, Side, World, answer, call_of, failed, request,
};

/// More than is shown with a run.
fn long() -> String {
    "ä long answer. ".repeat(RESULT_CHARS_MAX)
}

fn says(text: impl Into<String>) -> ClosurePlanner {
    let text = text.into();
    ClosurePlanner::new(move |_, _| {
        let text = text.clone();
        async move { answer(&text) }
    })
}

async fn artifact(host: &Native, id: &str) -> Option<String> {
    let named = host.view(id).await.artifact?;
    let bytes = host.client().artifact(id, &named.hash).await.expect("kept");
    assert_eq!((digest(&bytes), bytes.len() as u64), (named.hash, named.size));
    Some(String::from_utf8(bytes.to_vec()).expect("text"))
}

/// The answer of a run so far, as a program is given it.
async fn whole(host: &Native, id: &str) -> Option<String> {
    host.client().result(id).await.expect("it is read")
}

#[tokio::test]
async fn m_18_a_long_result_is_cut_in_the_record_and_whole_as_an_artifact() {
    let mut world = World::new();
    world.agent("long", says(format!("  {}\n", long())));
    let host = world.start().await;
    let id = host.spawn(&request("long", "x")).await;
    let run = host.end(&id).await;
    let view = RunView::from(&run);
    assert!(view.truncated);
    assert_eq!(view.result.map(|text| text.chars().count()), Some(RESULT_CHARS_MAX));
    assert_eq!(artifact(&host, &id).await.as_deref(), Some(long().trim()));
    assert_eq!(whole(&host, &id).await.as_deref(), Some(long().trim()));
    check_journal(&host.journal(&id).await);
}

#[tokio::test]
async fn m_18_a_result_that_is_shown_whole_has_no_artifact() {
    let mut world = World::new();
    world.agent("fits", says("x".repeat(RESULT_CHARS_MAX)));
    let host = world.start().await;
    let id = host.spawn(&request("fits", "x")).await;
    let run = host.end(&id).await;
    let view = RunView::from(&run);
    assert_eq!((view.truncated, view.artifact), (false, None));
    let none = host.client().artifact(&id, &digest(b"")).await;
    assert!(matches!(none, Err(ControllerError::NoArtifact { .. })), "{none:?}");
}

#[tokio::test]
async fn m_18_a_result_beyond_all_bounds_has_no_artifact_and_the_run_ends() {
    let mut world = World::new();
    world.agent("endless", says("x".repeat(ARTIFACT_BYTES_MAX + 1)));
    let host = world.start().await;
    let id = host.spawn(&request("endless", "x")).await;
    let run = host.end(&id).await;
    let view = RunView::from(&run);
    assert_eq!((view.status, view.truncated, view.artifact), (Status::Completed, true, None));
    let read = whole(&host, &id).await.map(|text| text.len());
    assert_eq!(read, Some(ARTIFACT_BYTES_MAX + 1), "its journal has all of it");
}

#[tokio::test]
async fn m_18_parts_without_a_whole_message_are_the_result_of_a_run_that_fails() {
    let mut world = World::new();
    world.agent(
        "breaks",
        ClosurePlanner::new(|input: PlanInput, scope| async move {
            for part in 0..30 {
                let text = format!("{part} of {}: {}\n", input.run.run_id, "x".repeat(300));
                scope.record(Event::AssistantChunk { text });
            }
            failed(None, "no more")
        }),
    );
    let host = world.start().await;
    host.spawn(&named("r", "breaks")).await;
    let run = host.end("r").await;
    assert_eq!(run.status(), Status::Failed);
    let whole = artifact(&host, "r").await.expect("it said a lot");
    assert!(whole.starts_with("0 of r: xxx") && whole.contains("\n29 of r: xxx"), "{whole}");
    assert_eq!(whole.lines().count(), 30);
}

#[tokio::test]
async fn m_18_a_run_that_is_canceled_while_it_waits_keeps_what_it_said() {
    let mut world = World::new();
    task_tools(&mut world);
    world.agent(
        "asks",
        ClosurePlanner::new(|_, scope| async move {
            let message = Message::text(Role::Assistant, long());
            scope.record(Event::AssistantMessage {
                message,
                usage: None,
                model: None,
                streamed: false,
            });
            call_of(&[("c", "ask/f", "\"well?\"")])
        }),
    );
    let host = world.start().await;
    host.spawn(&named("r", "asks")).await;
    host.reach("r", Status::Blocked).await;
    assert_eq!(whole(&host, "r").await.as_deref(), Some(long().trim()));
    // Another process ends it: it has the journal only.
    let door = world.door().await;
    door.client().cancel("r", None).await.expect("can be canceled");
    let run = host.end("r").await;
    assert_eq!(run.status(), Status::Canceled);
    assert_eq!(artifact(&host, "r").await.as_deref(), Some(long().trim()));
}

#[tokio::test]
async fn m_18_an_artifact_is_for_those_who_may_see_a_run_that_names_it() {
    let mut world = World::new();
    world.agent("long", says(long()));
    world.agent("other", says(format!("another {}", long())));
    let host = world.start().await;
    let id = host.spawn(&request("long", "x")).await;
    let other = host.spawn(&request("other", "x")).await;
    host.end(&id).await;
    host.end(&other).await;
    let hash = host.view(&id).await.artifact.expect("long").hash;
    let owned = Scope { owner_user_id: Some(OWNER.into()), ..Scope::tenant("default") };
    let inside = Scope { parent_session_id: Some(SESSION.into()), ..owned.clone() };
    for scope in [owned.clone(), inside] {
        host.controller.at(&scope).artifact(&id, &hash).await.expect("his own");
        let not_his = host.controller.at(&scope).artifact(&other, &hash).await;
        assert!(matches!(not_his, Err(ControllerError::NoArtifact { .. })), "{not_his:?}");
    }
    let strangers = [
        Scope::tenant("zeta"),
        Scope { owner_user_id: Some("user-b".into()), ..owned.clone() },
        Scope { parent_session_id: Some("another".into()), ..owned },
    ];
    for scope in strangers {
        let hidden = host.controller.at(&scope).artifact(&id, &hash).await;
        assert!(matches!(hidden, Err(ControllerError::NotFound { .. })), "{hidden:?}");
    }
}

#[tokio::test]
async fn m_18_equal_results_go_with_the_last_run_that_has_them() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("long", says(long()));
    world.agent("open", gates.planner());
    let host = world.start().await;
    host.spawn(&named("a", "long")).await;
    host.end("a").await;
    world.clock.advance(Duration::from_secs(60));
    let before = world.clock.now();
    host.spawn(&named("b", "long")).await;
    host.end("b").await;
    let hash = host.view("b").await.artifact.expect("long").hash;
    host.client().gc(before, false).await.expect("removed");
    let gone = host.client().artifact("a", &hash).await;
    assert!(matches!(gone, Err(ControllerError::NotFound { .. })), "{gone:?}");
    assert_eq!(artifact(&host, "b").await.as_deref(), Some(long().trim()));
}

#[tokio::test]
async fn m_18_an_end_that_the_store_refuses_is_tried_again_with_its_artifact() {
    let (mut world, gates) = (World::new(), Gates::new());
    let own = std::sync::Arc::clone(&gates);
    world.agent(
        "long",
        ClosurePlanner::new(move |_, _| {
            let gates = std::sync::Arc::clone(&own);
            async move {
                let _inside = gates.pass("r").await;
                answer(&long())
            }
        }),
    );
    let host = world.start().await;
    host.spawn(&named("r", "long")).await;
    gates.have_come(1).await;
    world.store.fail(Op::Append, 1);
    gates.open("r");
    world.next(Duration::from_secs(1)).await;
    host.end("r").await;
    assert_eq!(artifact(&host, "r").await.as_deref(), Some(long().trim()));
}

#[tokio::test]
async fn m_18_a_host_that_dies_about_its_end_leaves_the_end_with_its_artifact_or_neither() {
    for side in [Side::Before, Side::After] {
        let mut world = World::new();
        world.agent("long", says(long()));
        let host = world.start().await;
        let door = world.door().await;
        world.store.cut(Op::Append, 1, side);
        door.spawn(&named("r", "long")).await;
        soon("it is cut", world.store.is_cut()).await;
        let left = door.get("r").await;
        assert_eq!(left.status().is_terminal(), side == Side::After);
        assert_eq!(left.artifact().is_some(), side == Side::After);
        world.kill(host).await;
        world.part_stores();
        let next = world.take_over().await;
        next.end("r").await;
        assert_eq!(artifact(&next, "r").await.as_deref(), Some(long().trim()), "{side:?}");
        check_journal(&next.journal("r").await);
    }
}
