//! Sessions carry the conversation (M-63).

use std::time::Duration;

use taskrun::ports::planner::PlanInput;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::Event;
use taskrun_journal::history::{
    HISTORY_BYTES_MAX, HISTORY_MESSAGE_BYTES_MAX, HISTORY_MESSAGES_MAX, History,
};
use taskrun_journal::message::Message;
use taskrun_journal::pin::pin;
use taskrun_journal::status::Status;
use taskrun_journal::time::Clock;

use super::deployments::world;
use super::nudges::change;
use crate::native::{ClosurePlanner, Gate, Native, Op, PAUSE_OVER, Side, World, answer, request};

/// Answers with everything that it was told, a word for each message.
fn listener() -> ClosurePlanner {
    ClosurePlanner::new(|input: PlanInput, _| async move { answer(&heard(&input)) })
}

fn heard(input: &PlanInput) -> String {
    let texts: Vec<String> = input.messages.iter().map(Message::joined_text).collect();
    texts.join("|")
}

fn said(agent: &str, task: &str) -> SpawnRequest {
    SpawnRequest { converses: true, ..request(agent, task) }
}

/// The answer of a run of this request.
async fn result(world: &World, host: &Native, request: &SpawnRequest) -> String {
    // The next line is a later one.
    world.clock.advance(Duration::from_millis(1));
    let run = host.end(&host.spawn(request).await).await;
    assert_eq!(run.status(), Status::Completed, "{run:?}");
    run.state.reply.result().expect("an answer")
}

/// Answers with its task.
fn parrot() -> ClosurePlanner {
    ClosurePlanner::new(|input: PlanInput, _| async move {
        answer(&input.messages.last().map(Message::joined_text).unwrap_or_default())
    })
}

#[tokio::test]
async fn m_63_a_run_is_told_what_was_said_before_in_its_session() {
    let mut world = World::new();
    world.agent("a", listener());
    let host = world.start().await;
    assert_eq!(result(&world, &host, &said("a", "one")).await, "one");
    assert_eq!(result(&world, &host, &said("a", "two")).await, "one|one|two");
    let third = host.spawn(&said("a", "three")).await;
    let third = host.end(&third).await;
    let text = third.state.reply.result();
    assert_eq!(text.as_deref(), Some("one|one|two|one|one|two|three"));
    let journal = host.journal(third.id().as_str()).await;
    let carried: Vec<_> = journal
        .iter()
        .filter_map(|one| {
            let Event::HistoryCarried { runs, messages } = &one.event else { return None };
            Some((runs.len(), messages.len()))
        })
        .collect();
    assert_eq!(carried, [(2, 4)]);
    let transcript = host.client().transcript(third.id().as_str(), None, 9).await;
    let entries = transcript.expect("there").events;
    let said: Vec<_> = entries.iter().map(|one| (one.author.as_str(), one.role)).collect();
    let own = [("user", "user"), ("session", "user"), ("a", "assistant")];
    assert_eq!(said, own, "its own messages, and in one entry what was carried: {entries:?}");
    let carried = "user: one\nassistant: one\nuser: two\nassistant: one|one|two";
    assert_eq!(entries[1].content, carried);
}

#[tokio::test]
async fn m_63_who_takes_no_part_in_the_conversation_hears_nothing_and_is_not_heard() {
    let mut world = World::new();
    world.agent("a", listener());
    let host = world.start().await;
    assert_eq!(result(&world, &host, &request("a", "apart")).await, "apart");
    assert_eq!(result(&world, &host, &said("a", "one")).await, "one");
    assert_eq!(result(&world, &host, &request("a", "apart")).await, "apart");
    assert_eq!(result(&world, &host, &said("a", "two")).await, "one|one|two");
}

#[tokio::test]
async fn m_63_nobody_hears_what_was_said_to_others() {
    let mut world = World::new();
    for name in ["a", "b"] {
        world.agent(name, listener());
    }
    world.agent_with("all", listener(), |agent| agent.conversation = History::Session);
    world.agent_with("deaf", listener(), |agent| agent.conversation = History::None);
    let host = world.start().await;
    assert_eq!(result(&world, &host, &said("a", "one")).await, "one");
    let changes: [fn(&mut SpawnRequest); 4] = [
        |request| request.owner_user_id = "user-b".into(),
        |request| request.parent_session_id = "parent-b".into(),
        |request| request.parent_app_name = Some("app".into()),
        |request| request.agent_name = "b".into(),
    ];
    for change in changes {
        let mut other = said("a", "other");
        change(&mut other);
        assert_eq!(result(&world, &host, &other).await, "other", "{other:?}");
    }
    assert_eq!(result(&world, &host, &said("deaf", "x")).await, "x");
    assert_eq!(result(&world, &host, &said("a", "two")).await, "one|one|two");
    // Of the same owner and application in this session: three runs, of two agents.
    let all = result(&world, &host, &said("all", "three")).await;
    assert_eq!(all, "one|one|other|other|two|one|one|two|three");
}

#[tokio::test]
async fn m_63_runs_beneath_another_one_have_their_task_and_nothing_else() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("a", listener());
    world.agent("parent", gate.answering("done"));
    let host = world.start().await;
    result(&world, &host, &said("a", "one")).await;
    let parent = host.spawn(&said("parent", "x")).await;
    let child = SpawnRequest { parent_run_id: Some(parent), ..said("a", "beneath") };
    assert_eq!(result(&world, &host, &child).await, "beneath");
    assert_eq!(result(&world, &host, &said("a", "two")).await, "one|one|two");
    gate.open();
}

#[tokio::test]
async fn m_63_what_is_told_is_fixed_when_the_run_first_begins() {
    let mut world = World::new();
    world.settings.slots = 1;
    let gate = Gate::new();
    world.agent("slow", gate.answering("slowly"));
    world.agent_with("all", listener(), |agent| agent.conversation = History::Session);
    let host = world.start().await;
    let first = host.spawn(&said("slow", "first")).await;
    gate.reached_by(1).await;
    let second = host.spawn(&said("all", "second")).await;
    gate.open();
    host.end(&first).await;
    let run = host.end(&second).await;
    let told = run.state.reply.result();
    assert_eq!(told.as_deref(), Some("first|slowly|second"), "accepted before that ended");
}

#[tokio::test]
async fn m_63_a_run_whose_host_dies_is_told_the_same_again() {
    let mut world = World::new();
    let gate = Gate::new();
    let passed = gate.clone();
    world.agent("quick", parrot());
    let waits = ClosurePlanner::new(move |input: PlanInput, scope| {
        let gate = passed.clone();
        async move {
            scope.log(
                taskrun_journal::message::LogLevel::Info,
                "a",
                &heard(&input),
                Default::default(),
            );
            gate.pass().await;
            answer(&heard(&input))
        }
    });
    world.agent_with("all", waits, |agent| agent.conversation = History::Session);
    let host = world.start().await;
    result(&world, &host, &said("quick", "before")).await;
    let id = host.spawn(&said("all", "task")).await;
    // What it did on being told is on record.
    host.until(&id, "is on record", |run| run.state.head >= 4).await;
    result(&world, &host, &said("quick", "meanwhile")).await;
    world.kill(host).await;
    gate.open();
    let next = world.take_over().await;
    let run = next.end(&id).await;
    assert_eq!(run.state.reply.result().as_deref(), Some("before|before|task"));
    let kinds = next.kinds(&id).await;
    assert_eq!(kinds.iter().filter(|kind| **kind == "history_carried").count(), 1, "{kinds:?}");
    assert!(kinds.contains(&"lost"), "{kinds:?}");
}

#[tokio::test]
async fn m_63_a_run_whose_host_died_before_it_was_told_is_told_by_the_next_one() {
    let mut world = World::new();
    world.agent("quick", parrot());
    world.agent_with("all", listener(), |agent| agent.conversation = History::Session);
    let host = world.start().await;
    result(&world, &host, &said("quick", "before")).await;
    // What it was about to be told.
    world.store.cut(Op::Append, 1, Side::Before);
    let id = host.spawn(&said("all", "task")).await;
    world.store.is_cut().await;
    world.kill(host).await;
    world.part_stores();
    let next = world.take_over().await;
    let run = next.end(&id).await;
    assert_eq!(run.state.reply.result().as_deref(), Some("before|before|task"));
    assert!(next.kinds(&id).await.contains(&"lost"), "{:?}", next.kinds(&id).await);
}

#[tokio::test]
async fn m_63_a_run_is_told_though_its_rules_have_changed_before_it_begins() {
    let (mut world, shelf, _) = world();
    world.agent("quick", parrot());
    world.agent_with("all", listener(), |agent| agent.conversation = History::Session);
    let host = world.start().await;
    result(&world, &host, &said("quick", "before")).await;
    world.kill(host).await;
    world.clock.advance(Duration::from_millis(1));
    let id = world.door().await.spawn(&said("all", "task")).await;
    shelf.keep(&world.agents_now().by_name["all"]);
    change(&mut world, "all", |agent| agent.pin = pin("all", "2"));
    let next = world.start().await;
    let run = next.end(&id).await;
    assert_eq!(run.state.reply.result().as_deref(), Some("before|before|task"));
    let kinds = next.kinds(&id).await;
    assert!(kinds.contains(&"rules_changed"), "{kinds:?}");
}

#[tokio::test]
async fn m_63_a_run_that_was_told_nothing_is_told_nothing_after_a_crash_either() {
    let mut world = World::new();
    let gate = Gate::new();
    let passed = gate.clone();
    world.agent("quick", parrot());
    let waits = ClosurePlanner::new(move |input: PlanInput, scope| {
        let gate = passed.clone();
        async move {
            scope.log(
                taskrun_journal::message::LogLevel::Info,
                "a",
                &heard(&input),
                Default::default(),
            );
            gate.pass().await;
            answer(&heard(&input))
        }
    });
    world.agent_with("all", waits, |agent| agent.conversation = History::Session);
    let host = world.start().await;
    let id = host.spawn(&said("all", "task")).await;
    host.until(&id, "is on record", |run| run.state.head >= 3).await;
    result(&world, &host, &said("quick", "meanwhile")).await;
    world.kill(host).await;
    gate.open();
    let next = world.take_over().await;
    assert_eq!(next.end(&id).await.state.reply.result().as_deref(), Some("task"));
}

#[tokio::test]
async fn m_63_the_oldest_is_left_out_first() {
    let mut world = World::new();
    world.agent("parrot", parrot());
    world.agent_with("count", counter(), |agent| agent.conversation = History::Session);
    let host = world.start().await;
    for number in 0..=HISTORY_MESSAGES_MAX / 2 {
        result(&world, &host, &said("parrot", &format!("n{number:02}"))).await;
    }
    let (messages, bytes, first) = counted(&world, &host).await;
    assert_eq!((messages, bytes, &*first), (HISTORY_MESSAGES_MAX, HISTORY_MESSAGES_MAX * 3, "n01"));
    let long = "x".repeat(2 * HISTORY_MESSAGE_BYTES_MAX);
    for number in 0..2 {
        result(&world, &host, &said("parrot", &format!("l{number}{long}"))).await;
    }
    let (messages, bytes, first) = counted(&world, &host).await;
    assert_eq!((messages, bytes), (4, HISTORY_BYTES_MAX), "cut, and those of two runs fit");
    assert!(first.starts_with("l0x") && first.ends_with("x…"), "{}", first.len());
    assert_eq!(first.len(), HISTORY_MESSAGE_BYTES_MAX);
}

/// Answers with the number of messages before its task, their bytes, and the first of them.
fn counter() -> ClosurePlanner {
    ClosurePlanner::new(|input: PlanInput, scope| async move {
        let (_, before) = input.messages.split_last().expect("a task");
        let bytes: usize = before.iter().map(Message::bytes).sum();
        let first = before.first().map(Message::joined_text).unwrap_or_default();
        scope.set_state("first".to_owned(), Some(first)).expect("fits");
        answer(&format!("{} {bytes}", before.len()))
    })
}

async fn counted(world: &World, host: &Native) -> (usize, usize, String) {
    world.clock.advance(Duration::from_millis(1));
    let run = host.end(&host.spawn(&said("count", "?")).await).await;
    let text = run.state.reply.result().expect("an answer");
    let (messages, bytes) = text.split_once(' ').expect("two numbers");
    let journal = host.journal(run.id().as_str()).await;
    let first = journal.iter().find_map(|one| {
        let Event::PlanDecided { state, .. } = &one.event else { return None };
        state.first().and_then(|(_, value)| value.clone())
    });
    let number = |text: &str| text.parse().expect("a number");
    (number(messages), number(bytes), first.unwrap_or_default())
}

#[tokio::test]
async fn m_63_what_was_removed_is_told_no_more() {
    let mut world = World::new();
    world.agent("a", listener());
    let host = world.start().await;
    result(&world, &host, &said("a", "old")).await;
    world.clock.advance(PAUSE_OVER);
    let before = world.clock.now();
    result(&world, &host, &said("a", "new")).await;
    host.client().gc(before, false).await.expect("removed");
    // What the second run was told is part of its journal; the third hears the second only.
    assert_eq!(result(&world, &host, &said("a", "next")).await, "new|old|old|new|next");
}
