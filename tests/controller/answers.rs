//! Answers to what a run asks (M-33).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use taskrun::error::ControllerError;
use taskrun::ports::planner::Decision;
use taskrun_journal::question::{Answer, AnswerRefusal, AwaitItem, Question};
use taskrun_journal::run::Run;
use taskrun_journal::status::{BlockedOn, Status};

use crate::native::{
    ClosurePlanner, Failing, Native, Op, World, answer, clarification, decided, in_time, request,
};

fn form(id: &str) -> AwaitItem {
    let color = Question {
        id: "color".into(),
        prompt: "which color?".into(),
        options: vec![("r".into(), "red".into()), ("g".into(), "green".into())],
        allow_multiple: false,
    };
    AwaitItem::Questions {
        id: id.into(),
        tool_name: "t/ask".into(),
        tool_call_id: "c1".into(),
        payload: "{}".into(),
        title: None,
        questions: vec![color],
    }
}

fn text(text: &str) -> Answer {
    Answer::Text(text.into())
}

fn color(id: &str) -> Answer {
    Answer::Choices(BTreeMap::from([("color".to_owned(), vec![id.to_owned()])]))
}

/// A blocked run that asked for `first`, a form and `last`; its answer is what it was told.
async fn blocked(world: &mut World) -> (Native, String, Arc<AtomicU32>) {
    let steps = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&steps);
    world.agent(
        "a",
        ClosurePlanner::new(move |input, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move {
                if input.resume.is_none() {
                    let items = vec![clarification("first"), form("form"), clarification("last")];
                    return decided(Decision::Await(items.into_iter().map(Into::into).collect()));
                }
                let told: Vec<_> = input.messages.iter().map(|one| one.joined_text()).collect();
                answer(&told.join(" | "))
            }
        }),
    );
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    let run = host.reach(&id, Status::Blocked).await;
    let asked: Vec<_> = run.state.awaits.iter().map(|one| (one.id.as_str(), one.on)).collect();
    let input = BlockedOn::Input;
    assert_eq!(asked, [("first", input), ("form", input), ("last", input)]);
    (host, id, steps)
}

async fn give(
    host: &Native,
    id: &str,
    item: Option<&str>,
    answer: Answer,
) -> Result<Run, ControllerError> {
    host.client().named("me").answer(id, item, answer).await
}

async fn open(host: &Native, id: &str) -> Vec<String> {
    let asks = host.client().asks(id).await.expect("there");
    asks.iter().map(|item| item.id().to_owned()).collect()
}

#[tokio::test]
async fn m_33_answers_come_in_any_order_and_one_step_follows_the_last() {
    let mut world = World::new();
    let (host, id, steps) = blocked(&mut world).await;
    let run = give(&host, &id, Some("last"), text("of the last")).await.expect("taken");
    assert_eq!(run.status(), Status::Blocked);
    assert_eq!(open(&host, &id).await, ["first", "form"]);
    give(&host, &id, Some("form"), color("g")).await.expect("taken");
    assert_eq!(steps.load(Ordering::SeqCst), 1, "nothing is planned before the last answer");
    assert_eq!(host.get(&id).await.status(), Status::Blocked);
    // One is left, so it need not be named.
    give(&host, &id, None, text("of the first")).await.expect("taken");
    let run = host.end(&id).await;
    assert_eq!(run.status(), Status::Completed);
    assert_eq!(steps.load(Ordering::SeqCst), 2, "one pause, one resumption, one step");
    let told = run.state.reply.result().expect("an answer");
    let places = ["of the first", "of the last"].map(|part| told.find(part));
    assert!(places[0].is_some() && places[0] < places[1], "told in the order asked: {told}");
    assert_eq!(run.state.turns, 2);
    let kinds = host.kinds(&id).await;
    let count = |kind: &str| kinds.iter().filter(|one| **one == kind).count();
    assert_eq!((count("blocked"), count("resumed")), (1, 1), "{kinds:?}");
}

#[tokio::test]
async fn m_33_an_answer_that_does_not_fit_is_refused_and_the_run_stays_as_it_was() {
    let mut world = World::new();
    let (host, id, steps) = blocked(&mut world).await;
    let before = host.get(&id).await;
    let several = "several things are asked; say which one is answered";
    let table: &[(Option<&str>, Answer, &str)] = &[
        (Some("first"), text("  "), "the answer is empty"),
        (Some("first"), Answer::Confirmed(true), "a clarification needs another kind of answer"),
        (Some("form"), text("red"), "a form needs another kind of answer"),
        (Some("form"), color("blue"), "question \"color\" has no option \"blue\"; it has: r, g"),
        (Some("first"), Answer::TimedOut, "a clarification can only be answered"),
        (None, text("for whom?"), several),
    ];
    for (item, answer, reason) in table {
        let error = give(&host, &id, *item, answer.clone()).await.expect_err("refused");
        assert_eq!((error.code(), error.to_string().as_str()), ("invalid", *reason));
    }
    assert_eq!(host.get(&id).await, before);
    assert_eq!(steps.load(Ordering::SeqCst), 1);
    give(&host, &id, Some("form"), color("r")).await.expect("one that fits is taken afterwards");
}

/// A name may come again, and the answer that somebody thinks of meanwhile be a dangerous one.
#[tokio::test]
async fn m_33_an_answer_to_what_was_shown_answers_no_later_question_of_the_same_name() {
    let mut world = World::new();
    world.agent(
        "a",
        ClosurePlanner::new(move |input, _| async move {
            let quarters = input.messages.iter().filter(|one| one.joined_text() == "Q3").count();
            let question = ["Which quarter?", "Which year?"].get(quarters);
            let Some(question) = question else { return answer("done") };
            let mut asked = clarification("which");
            if let AwaitItem::Clarification { question: words, .. } = &mut asked {
                (*question).clone_into(words);
            }
            decided(Decision::Await(vec![asked.into()]))
        }),
    );
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    host.reach(&id, Status::Blocked).await;
    let client = host.client().named("me");
    let shown = client.asks(&id).await.expect("there").remove(0);
    client.answer_shown(&id, &shown, text("Q3")).await.expect("taken");
    host.until(&id, "asks again", |run| run.status() == Status::Blocked && run.state.turns == 2)
        .await;
    let late = client.answer_shown(&id, &shown, text("Q4")).await.expect_err("another one");
    let answered = AnswerRefusal::Answered;
    assert!(matches!(late, ControllerError::NotAwaitable { why, .. } if why == answered));
    assert_eq!(open(&host, &id).await, ["which"]);
}

#[tokio::test]
async fn m_33_a_second_answer_is_told_that_there_was_a_first_also_when_the_run_went_on() {
    let mut world = World::new();
    let (host, id, _) = blocked(&mut world).await;
    give(&host, &id, Some("last"), text("a")).await.expect("taken");
    give(&host, &id, Some("form"), color("g")).await.expect("taken");
    give(&host, &id, Some("first"), text("b")).await.expect("taken");
    let why = |result: Result<Run, ControllerError>| {
        let error = result.expect_err("refused");
        let ControllerError::NotAwaitable { why, .. } = error else { panic!("{error:?}") };
        why
    };
    // Queued, running or ended by now.
    let second = give(&host, &id, Some("first"), text("c")).await;
    assert_eq!(why(second), AnswerRefusal::Answered);
    host.end(&id).await;
    for item in ["first", "form", "last"] {
        let second = give(&host, &id, Some(item), text("c")).await;
        assert_eq!(why(second), AnswerRefusal::Answered, "{item}");
    }
    for item in [None, Some("nothing")] {
        let late = give(&host, &id, item, text("c")).await;
        assert_eq!(why(late), AnswerRefusal::Ended, "{item:?}");
    }
}

#[tokio::test]
async fn m_33_what_is_not_asked_is_answered_or_has_ended_takes_no_answer() {
    let mut world = World::new();
    let (host, id, _) = blocked(&mut world).await;
    let why = |result: Result<Run, ControllerError>| {
        let error = result.expect_err("refused");
        let ControllerError::NotAwaitable { why, .. } = error else { panic!("{error:?}") };
        why
    };
    let unknown = give(&host, &id, Some("nothing"), text("x")).await;
    assert_eq!(why(unknown), AnswerRefusal::UnknownItem);
    give(&host, &id, Some("first"), text("x")).await.expect("taken");
    let twice = give(&host, &id, Some("first"), text("y")).await;
    assert_eq!(why(twice), AnswerRefusal::Answered);
    let theirs = host.scope.clone().owner("user-b");
    let stranger =
        host.controller.at(&theirs).named("me").answer(&id, Some("last"), text("x")).await;
    assert_eq!(stranger.map_err(|error| error.code()).err(), Some("not-found"));
    let missing = give(&host, "missing", None, text("x")).await;
    assert_eq!(missing.map_err(|error| error.code()).err(), Some("not-found"));

    host.client().cancel(&id, None).await.expect("there");
    assert_eq!(host.get(&id).await.status(), Status::Canceled, "a cancellation ends the wait");
    let late = give(&host, &id, Some("last"), text("x")).await;
    assert_eq!(why(late), AnswerRefusal::Ended);
    assert_eq!(open(&host, &id).await, [""; 0], "an ended run asks nothing");
}

#[tokio::test]
async fn m_33_of_two_answers_at_once_one_is_taken() {
    let mut world = World::new();
    let (host, id, _) = blocked(&mut world).await;
    let (one, other) = tokio::join!(
        give(&host, &id, Some("first"), text("one")),
        give(&host, &id, Some("first"), text("other")),
    );
    assert_eq!(usize::from(one.is_ok()) + usize::from(other.is_ok()), 1);
    let kinds = host.kinds(&id).await;
    assert_eq!(kinds.iter().filter(|kind| **kind == "answered").count(), 1);
}

#[tokio::test]
async fn an_answer_is_no_answer_to_what_is_asked_later_by_the_same_name() {
    let mut world = World::new();
    let steps = AtomicU32::new(0);
    world.agent(
        "a",
        ClosurePlanner::new(move |_, _| {
            let step = steps.fetch_add(1, Ordering::SeqCst);
            async move {
                match step {
                    0 | 1 => decided(Decision::Await(vec![clarification("q").into()])),
                    _ => answer("end"),
                }
            }
        }),
    );
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    host.reach(&id, Status::Blocked).await;
    let slow = Arc::new(Failing::new(world.inner.clone()));
    let other = world.controller_over(slow.clone(), world.hearts.clone());
    slow.hold(Op::Append);
    let (client, late) = (other.at(&host.scope).named("you"), id.clone());
    let late =
        tokio::spawn(async move { client.answer(&late, Some("q"), text("to the first")).await });
    in_time(slow.somebody_waits()).await;
    give(&host, &id, Some("q"), text("in time")).await.expect("fits");
    let asks_again = |run: &Run| run.state.turns == 2 && run.status() == Status::Blocked;
    host.until(&id, "asks again", asks_again).await;
    slow.release();
    let refused = late.await.expect("no panic");
    let answered = AnswerRefusal::Answered;
    assert!(
        matches!(&refused, Err(ControllerError::NotAwaitable { why, .. }) if *why == answered),
        "{refused:?}"
    );
    assert_eq!(open(&host, &id).await, ["q"]);
}
