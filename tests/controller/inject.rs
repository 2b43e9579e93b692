//! Messages that a run is told from outside (M-36): in which turn they stand, and what becomes of
//! them when a step runs again.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use taskrun::controller::ResumeRequest;
use taskrun::ports::planner::PlanInput;
use taskrun_journal::event::Event;
use taskrun_journal::pause::PauseEnd;
use taskrun_journal::status::Status;

use super::pause::{inject, pause, stepping, texts, with_tool};
use crate::native::{ClosurePlanner, Gate, answer, call_of, request};

#[tokio::test]
async fn m_36_what_a_run_is_told_stands_under_a_heading_in_the_next_turn_once() {
    let (mut world, _) = with_tool();
    let (gate, steps) = (Gate::new(), Arc::new(AtomicU32::new(0)));
    world.agent("a", stepping(&gate, &steps));
    let door = world.door().await;
    let id = door.spawn(&request("a", "task")).await;
    inject(&door, &id, "before it began").await;
    let host = world.start().await;
    gate.reached_by(1).await;
    inject(&door, &id, "one").await;
    inject(&door, &id, "two").await;
    assert_eq!(host.get(&id).await.state.inbox.messages, 2);
    gate.open();
    let run = host.end(&id).await;
    // The request of the tool and its result stand between the two, and are no text.
    let told = run.state.reply.result().expect("an answer");
    assert_eq!(told, "[Inbox]\nbefore it began|task|||[Inbox]\none\ntwo");
    assert!(run.state.inbox.is_empty());
    let kinds = host.kinds(&id).await;
    assert_eq!(kinds.iter().filter(|kind| **kind == "inbox_shown").count(), 2, "{kinds:?}");
}

#[tokio::test]
async fn m_36_a_step_that_runs_again_is_shown_what_it_was_shown_and_the_next_one_the_rest() {
    let (mut world, _) = with_tool();
    let gate = Gate::new();
    let door_gate = gate.clone();
    // The first step says something before it comes to the gate, so that it is on record.
    world.agent(
        "a",
        ClosurePlanner::new(move |input: PlanInput, scope| {
            let gate = door_gate.clone();
            async move {
                match input.resume {
                    None => {
                        let text = texts(&input.messages).join("|");
                        scope.record(Event::AssistantChunk { text });
                        gate.pass().await;
                        call_of(&[("c1", "t/f", "{}")])
                    }
                    Some(_) => answer(&texts(&input.messages).join("|")),
                }
            }
        }),
    );
    let host = world.start().await;
    let id = host.spawn(&request("a", "task")).await;
    gate.reached_by(1).await;
    host.until(&id, "has spoken", |run| run.state.progress.event_count > 0).await;
    inject(&host, &id, "late").await;
    world.kill(host).await;
    gate.open();
    let host = world.take_over().await;
    let run = host.end(&id).await;
    let told = run.state.reply.result().expect("an answer");
    assert_eq!(told, "task|task||[Inbox]\nlate", "no step diverged");
}

#[tokio::test]
async fn m_36_the_word_to_go_on_may_bring_messages() {
    let (mut world, _) = with_tool();
    let (gate, steps) = (Gate::new(), Arc::new(AtomicU32::new(0)));
    world.agent("a", stepping(&gate, &steps));
    let host = world.start().await;
    let id = host.spawn(&request("a", "task")).await;
    gate.reached_by(1).await;
    let with = ResumeRequest {
        note: Some("back from lunch".into()),
        messages: vec!["hurry".into()],
        tree: false,
    };
    let early = host.client().named("human").resume(&id, &with).await;
    assert_eq!(early.err().map(|error| error.code()), Some("invalid"), "it is not paused");
    pause(&host, &id).await.expect("it can be paused");
    gate.open();
    host.reach(&id, Status::Blocked).await;
    host.client().named("human").resume(&id, &with).await.expect("it is paused");
    let run = host.end(&id).await;
    assert_eq!(run.state.reply.result().as_deref(), Some("task|||hurry"));
    let journal = host.journal(&id).await;
    let is_end = |event: &&Event| matches!(event, Event::PauseEnded { .. });
    let end = journal.iter().map(|one| &one.event).find(is_end);
    let expected = Event::PauseEnded {
        why: PauseEnd::Resumed,
        by: Some("human".into()),
        note: with.note.clone(),
        messages: with.messages.clone(),
    };
    assert_eq!(end, Some(&expected));
}
