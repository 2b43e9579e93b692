//! Tool calls that lack fields, and what the policy says to that (L-067, LS-08, M-46).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use taskrun::ports::planner::PlanInput;
use taskrun_journal::event::Event;
use taskrun_journal::message::{RetryHint, RetryReason, Role, ToolError};
use taskrun_journal::question::{Answer, AwaitItem};
use taskrun_journal::run::RunView;
use taskrun_journal::status::{BlockedOn, Status, StopReason};
use taskrun_journal::tool::{ToolFailure, ToolHints};
use taskrun_policy::{InterruptionPolicy, MissingFields};

use crate::common::{check_journal, count};
use crate::native::{
    ClosurePlanner, ClosureTool, Native, PAUSE_OVER, World, answer, call_of, request,
};

/// A world with an agent whose tool lacks a field, at every call; it answers with the role and the
/// text of the last message that it is shown.
fn world(on_missing_fields: MissingFields) -> (World, Arc<AtomicU32>) {
    let mut world = World::new();
    let steps = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&steps);
    let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async {
        let mut hint = RetryHint::new(RetryReason::MissingFields, "f");
        hint.missing_fields = vec!["field".into()];
        hint.clarifying_question = Some("Which field?".into());
        hint.example_input = Some("{\"field\":1}".into());
        hint.restrict_to_tool = true;
        let error = ToolError::coded("invalid-arguments", "field is required");
        Ok(Err(ToolFailure { error, retry_hint: Some(Box::new(hint)) }))
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let planner = ClosurePlanner::new(move |input: PlanInput, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        let last = input.messages.last().expect("the task at least").clone();
        let planned = match &input.resume {
            None => call_of(&[("c1", "t/f", "{}")]),
            Some(resume) => {
                let ends = if resume.finalize.is_some() { "last word, " } else { "" };
                answer(&format!("{ends}{}: {}", last.role.as_str(), last.joined_text()))
            }
        };
        async move { planned }
    });
    world.agent_with("a", planner, |agent| agent.on_missing_fields = on_missing_fields);
    (world, steps)
}

async fn asked(host: &Native, id: &str) -> AwaitItem {
    let mut asks = host.client().asks(id).await.expect("there");
    assert_eq!(asks.len(), 1);
    asks.remove(0).what
}

/// The types that others call `pause:await_clarification` and `resume:clarification_provided`.
async fn sequence(host: &Native, id: &str) -> Vec<String> {
    let mut told = Vec::new();
    for recorded in host.journal(id).await {
        if let Event::Blocked { on, .. } = &recorded.event {
            told.push(format!("pause:{on}"));
        } else if let Event::Answered { by, .. } = &recorded.event {
            told.push(format!("answered by {by}"));
        } else if let Event::Resumed { .. } = &recorded.event {
            told.push("resume".to_owned());
        }
    }
    told
}

#[tokio::test]
async fn ls_08_a_call_that_lacks_fields_is_clarified_by_a_person_where_the_policy_says_so() {
    let (mut world, steps) = world(MissingFields::AwaitClarification);
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    host.reach(&id, Status::Blocked).await;
    assert_eq!(host.view(&id).await.blocked_on, Some(BlockedOn::Input));
    assert_eq!(steps.load(Ordering::SeqCst), 1, "the planner is not asked before the answer");
    let expected = AwaitItem::Clarification {
        id: "missing:c1".into(),
        question: "Which field?".into(),
        missing_fields: vec!["field".into()],
        restrict_to_tool: Some("t/f".into()),
        example_input: Some("{\"field\":1}".into()),
        clarifying_prompt: None,
    };
    assert_eq!(asked(&host, &id).await, expected);
    let text = Answer::Text("field=value".into());
    host.client().named("me").answer(&id, None, text).await.expect("taken");
    let run = host.end(&id).await;
    let said = format!("{}: field=value", Role::User.as_str());
    assert_eq!(run.state.reply.result(), Some(said), "the last message is the user's");
    assert_eq!(sequence(&host, &id).await, ["pause:input", "answered by me", "resume"]);
    check_journal(&host.journal(&id).await);
}

#[tokio::test]
async fn l_067_the_question_is_asked_once_though_its_host_dies() {
    let (mut world, steps) = world(MissingFields::AwaitClarification);
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    host.reach(&id, Status::Blocked).await;
    world.kill(host).await;
    world.clock.advance(PAUSE_OVER);
    let host = world.start().await;
    let text = Answer::Text("field=value".into());
    host.client().named("me").answer(&id, None, text).await.expect("taken");
    host.end(&id).await;
    assert_eq!(count(&host.journal(&id).await, "asked"), 1);
    assert_eq!(steps.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn l_067_it_is_handed_to_the_planner_unless_the_policy_says_otherwise() {
    let (mut world, steps) = world(MissingFields::default());
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    let run = host.end(&id).await;
    let said = run.state.reply.result().expect("an answer");
    assert!(said.starts_with("tool: To call t/f again: Missing: field."), "{said}");
    assert_eq!(steps.load(Ordering::SeqCst), 2);
    assert_eq!(count(&host.journal(&id).await, "asked"), 0);
}

#[tokio::test]
async fn l_067_or_it_is_the_end_and_the_planner_has_its_last_word() {
    let (mut world, _) = world(MissingFields::Finalize);
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    let run = host.end(&id).await;
    let view = RunView::from(&run);
    assert_eq!((view.stop_reason, view.partial), (Some(StopReason::FailureCap), true));
    assert!(view.result.is_some_and(|result| result.starts_with("last word, ")));
}
