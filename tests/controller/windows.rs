//! Agents whose model has a small context window: what comes to their runs from outside has room in it,
//! or is left out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use taskrun::agents::Agent;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::{ModelSettings, Models};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::completion::CompletionRequest;
use taskrun_journal::delivery::ReportState;
use taskrun_journal::history::History;
use taskrun_journal::message::{Message, Role};
use taskrun_journal::run::RunView;
use taskrun_journal::status::Status;

use super::common::{Gates, count, named};
use super::delivery::{children, line, say, states, task};
use super::deployments::question;
use super::hand_over::hands_over;
use super::host_tools::leader_that;
use super::model_gone::Word;
use crate::native::{ClosurePlanner, Planned, World, answer, call_of, failed};

/// Tokens of the window.
const WINDOW: u32 = 8_000;
/// Most bytes of a conversation: three quarters of it, at three bytes a token.
const ROOM: usize = 18_000;
/// Runs in the background.
const WORKERS: usize = 6;

/// Gives the agent's own model a small window.
fn narrow(agent: &mut Agent) {
    let settings = ModelSettings { context_tokens: Some(WINDOW), ..ModelSettings::default() };
    let own = "own".to_owned();
    agent.models = Arc::new(Models {
        by_name: agent.models.by_name.clone(),
        prices: agent.models.prices.clone(),
        settings: BTreeMap::from([(own.clone(), settings)]),
        default: Some(own),
    });
}

/// Answers with a word, as long as a model has room for what it is given.
fn read(input: &PlanInput) -> Planned {
    let bytes: usize = input.messages.iter().map(Message::bytes).sum();
    match bytes <= ROOM {
        true => answer("read"),
        false => failed(None, &format!("no room for {bytes} bytes")),
    }
}

fn reader() -> ClosurePlanner {
    ClosurePlanner::new(|input: PlanInput, _| async move { read(&input) })
}

/// A line of four kilobytes.
fn long_line(number: usize) -> String {
    format!("line {number} {}", "x".repeat(4_000))
}

#[tokio::test]
async fn a_session_goes_on_though_its_lines_fill_the_window() {
    let mut world = World::new();
    world.agent_with("a", reader(), narrow);
    let host = world.start().await;
    for number in 0..20 {
        assert_eq!(say(&world, &host, &line("a", &long_line(number))).await, "read", "{number}");
    }
}

#[tokio::test]
async fn outcomes_that_would_fill_the_window_are_told_to_one_line_after_the_other() {
    let mut world = World::new();
    world.agent("worker", ClosurePlanner::new(|_, _| async { answer(&"did it ".repeat(2_400)) }));
    let planner = ClosurePlanner::new(|input: PlanInput, _| async move {
        match (task(&input).as_str(), &input.resume) {
            ("start", None) => start_all(),
            _ => read(&input),
        }
    });
    leader_that(&mut world, ("lead", &["worker"]), planner, narrow);
    let host = world.start().await;
    let first = host.spawn(&line("lead", "start")).await;
    host.end(&first).await;
    for id in children(&host, &first).await {
        host.end(&id).await;
    }
    let delivered = async || {
        let states = states(&host).await;
        assert_eq!(states.len(), WORKERS);
        states.iter().filter(|state| **state == ReportState::Delivered).count()
    };
    // The first line may have been told of those that ended before it did.
    let mut told = delivered().await;
    for number in 0..WORKERS {
        assert_eq!(say(&world, &host, &line("lead", &long_line(number))).await, "read");
        let now = delivered().await;
        assert!(now > told || now == WORKERS, "each line is told of one: {now}");
        told = now;
    }
    assert_eq!(told, WORKERS);
}

/// Starts all the runs in the background.
fn start_all() -> Planned {
    let ids: Vec<String> = (0..WORKERS).map(|number| format!("c{number}")).collect();
    let arguments = r#"{"agent_name":"worker","task":"work"}"#;
    let calls: Vec<_> =
        ids.iter().map(|id| (id.as_str(), "host/start_task_run", arguments)).collect();
    call_of(&calls)
}

#[tokio::test]
async fn a_conversation_that_would_fill_the_window_is_handed_over() {
    let mut world = World::new();
    hands_over(&mut world, "first", "second");
    world.agent_with("second", reader(), narrow);
    let wide = ClosurePlanner::new(|_, _| async { answer("so") });
    world.agent_with("before", wide, |agent| agent.conversation = History::Session);
    let host = world.start().await;
    // More than the window has, of which the whole is handed over.
    for number in 0..10 {
        let request = line("before", &long_line(number));
        host.end(&host.spawn(&request).await).await;
    }
    let id = host.spawn(&line("first", "Who are you?")).await;
    let ended = RunView::from(&host.end(&id).await);
    let found = (ended.status, ended.result.as_deref(), ended.handed_over_to.as_deref());
    assert_eq!(found, (Status::Completed, Some("read"), Some("second")));
}

/// A step that asks for another thing when its host has died, with so many messages before the task.
async fn asks_otherwise(messages: usize) -> (Status, usize, usize) {
    let (mut world, gates, tries) = (World::new(), Gates::new(), Arc::new(AtomicU32::new(0)));
    let inside = Arc::clone(&gates);
    let planner = ClosurePlanner::new(move |_, scope| {
        let (gates, tries) = (Arc::clone(&inside), Arc::clone(&tries));
        async move {
            let number = tries.fetch_add(1, Ordering::SeqCst).to_string();
            let messages = vec![Message::text(Role::User, number)];
            let said = scope.ask(CompletionRequest { messages, ..question() }).await;
            drop(gates.pass("asked").await);
            match said {
                Ok(completion) => answer(&completion.message.joined_text()),
                Err(error) => failed(None, &error.to_string()),
            }
        }
    });
    world.agent_asking("a", planner, Some(Arc::new(Word::default())), narrow);
    let host = world.start().await;
    let before = (0..messages).map(|number| Message::text(Role::User, long_line(number)));
    let injected_context_messages = before.collect();
    host.spawn(&SpawnRequest { injected_context_messages, ..named("1", "a") }).await;
    gates.have_come(1).await;
    world.kill(host).await;
    let host = world.take_over().await;
    gates.open("asked");
    let run = host.end("1").await;
    let journal = host.journal("1").await;
    (run.status(), count(&journal, "step_restarted"), count(&journal, "replay_diverged"))
}

#[tokio::test]
async fn a_step_that_was_shown_a_part_goes_on_where_another_program_shows_another_part() {
    assert_eq!(asks_otherwise(10).await, (Status::Completed, 1, 0));
    assert_eq!(asks_otherwise(1).await, (Status::Failed, 0, 1), "all of it was shown");
}
