//! Digests of questions that have a beginning in common.

use taskrun_journal::completion::{CompletionRequest, ModelError, ToolChoice};
use taskrun_journal::message::Role;

use super::super::digest::{PIECE_BYTES, digest};
use super::super::*;
use super::fixtures::question;
use super::parts;

fn said(number: usize) -> Message {
    Message::text(Role::User, format!("message {number}"))
}

fn asked(messages: Vec<Message>) -> CompletionRequest {
    CompletionRequest { messages, ..question("q") }
}

#[tokio::test]
async fn a_question_has_the_digest_of_its_text_whatever_was_asked_before() {
    let digests = QuestionDigests::default();
    let mut shown: Vec<Message> = Vec::new();
    let mut questions = vec![asked(Vec::new())];
    for number in 0..6 {
        shown.push(said(number));
        questions.push(asked(shown.clone()));
        let note = Message::text(Role::System, "a note of this turn");
        questions.push(asked(shown.iter().cloned().chain([note]).collect()));
        let (max_tokens, temperature) = (Some(7), Some(0.5));
        let other = CompletionRequest { max_tokens, temperature, ..asked(shown.clone()) };
        questions.push(CompletionRequest { tool_choice: ToolChoice::Required, ..other.clone() });
        questions.push(CompletionRequest { model: Some("m\"".to_owned()), ..other });
    }
    // Its first message becomes another one, and some are left out.
    let mut changed = shown.clone();
    changed[0].parts.push(taskrun_journal::message::Part::Json("{}".to_owned()));
    questions.push(asked(changed));
    questions.push(asked(shown.split_off(3)));
    for one in &questions {
        let last = one.messages.iter().rfind(|message| message.role == Role::User);
        assert_eq!(digests.digest(one, last).await, digest(&one.asked()).await, "{one:?}");
    }
}

#[tokio::test]
async fn the_beginning_of_a_question_is_hashed_once_and_a_long_one_lets_others_have_their_turn() {
    let digests = QuestionDigests::default();
    let mut messages = vec![Message::text(Role::User, "x".repeat(3 * PIECE_BYTES))];
    let first = asked(messages.clone());
    let mut whole = Box::pin(digests.digest(&first, messages.last()));
    for _ in 0..3 {
        assert!(futures::poll!(&mut whole).is_pending());
    }
    whole.await;
    messages.push(said(2));
    let second = asked(messages.clone());
    let mut more = Box::pin(digests.digest(&second, messages.last()));
    let std::task::Poll::Ready(more) = futures::poll!(&mut more) else {
        panic!("there is little to hash")
    };
    assert_eq!(more, digest(&second.asked()).await);
}

#[tokio::test]
async fn a_question_about_the_conversation_is_the_one_that_brings_it() {
    let all = vec![Message::text(Role::System, "Be brief."), said(1), said(2)];
    let note = Message::text(Role::System, "a note");
    let scope_of = |messages: Vec<Message>| {
        let digests = QuestionDigests::default();
        let conversation = Some(StepConversation::new(Arc::new(messages), digests));
        let services = Services { conversation, ..Services::default() };
        CallScope::new(CallScopeParts { services, ..parts(10, 100) })
    };
    let (scope, about) = (scope_of(all.clone()), asked(vec![note.clone()]));
    let by_name = scope.about_conversation(None, about.clone()).expect("a plan step");
    let brings = asked(all.iter().cloned().chain([note.clone()]).collect());
    assert_eq!(by_name, brings);
    assert_eq!(scope.digest_of(&by_name).await, digest(&brings.asked()).await);
    // The agent's instructions are a paragraph of the first message, or stand before it.
    let instructed = |scope: &CallScope| {
        let instructions = Some("In French.".to_owned());
        let question = scope.about_conversation(instructions, about.clone());
        question.expect("a plan step").messages[0].clone()
    };
    assert_eq!(instructed(&scope), Message::text(Role::System, "Be brief.\n\nIn French."));
    let plain = Message::text(Role::System, "In French.");
    assert_eq!(instructed(&scope_of(all[1..].to_vec())), plain);
    assert_eq!(instructed(&scope_of(Vec::new())), plain);
    // Where there is no conversation, there is nothing to ask about.
    let elsewhere = CallScope::new(parts(10, 100));
    let refused = elsewhere.about_conversation(None, about).expect_err("no plan step");
    assert!(matches!(refused, ModelError::InvalidRequest(_)), "{refused:?}");
    assert!(elsewhere.conversation().is_empty());
}
