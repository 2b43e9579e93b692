//! The time of a run's budget, while a plan step or a pause between two attempts is under way, and
//! what the last word costs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use taskrun::agents::Agent;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun::scope::model::{Model, ModelStream};
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::media::MediaBytes;
use taskrun_journal::message::{Message, Role, Usage};
use taskrun_journal::plan::TerminationReason;
use taskrun_journal::run::Run;
use taskrun_journal::status::{Status, StopReason};
use taskrun_policy::Reserve;

use super::common::{Handle, check_journal, count, named};
use super::dying::{Point, die_at_each, survive};
use super::exit_on_defer::go_on;
use super::nothing_left::{one_round, said_by_host};
use crate::native::{
    ClosurePlanner, Gate, Native, Op, Side, World, answer, call_of, failed, in_time, request,
};

const SECOND: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(50);

/// The reasons of last words that were asked for, `None` for each ordinary step.
type Steps = Arc<Mutex<Vec<Option<TerminationReason>>>>;

fn steps(of: &Steps) -> Vec<Option<TerminationReason>> {
    of.lock().expect("nobody panics with it").clone()
}

/// An agent whose steps take two seconds, and whose last word is at hand.
fn slow(world: &World) -> (ClosurePlanner, Steps) {
    let (all, clock) = (Steps::default(), Arc::clone(&world.clock));
    let note = Arc::clone(&all);
    let planner = ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| {
        let reason = input.resume.and_then(|resume| resume.finalize).map(|last| last.reason);
        note.lock().expect("nobody panics with it").push(reason);
        let clock = Arc::clone(&clock);
        async move {
            if reason.is_some() {
                return answer("in short");
            }
            scope.record(Event::AssistantChunk { text: "at length".to_owned() });
            taskrun_journal::time::Clock::sleep(&*clock, 2 * SECOND).await;
            answer("at length, and to the end")
        }
    });
    (planner, all)
}

fn within(wall: Duration) -> impl FnOnce(&mut Agent) {
    move |agent| agent.budget.wall = Some(wall)
}

fn ending(run: &Run) -> (Status, StopReason, bool) {
    let ending = run.ending().expect("it ended");
    (run.status(), ending.stop_reason, ending.partial)
}

fn kinds(journal: &[EventRecord]) -> Vec<&'static str> {
    journal.iter().map(|recorded| recorded.event.kind()).collect()
}

#[tokio::test]
async fn m_45_a_plan_step_is_cut_when_the_runs_time_is_up_and_its_last_word_follows() {
    let mut world = World::new();
    let (planner, all) = slow(&world);
    world.agent_with("a", planner, within(SOON));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    in_time(world.clock.wait_for_sleepers(2)).await;
    assert_eq!(world.next(2 * SECOND).await, SOON, "nobody waits for the end of the step");
    let run = host.end(&id).await;
    assert_eq!(ending(&run), (Status::Completed, StopReason::Wallclock, true));
    assert_eq!(run.state.reply.result().as_deref(), Some("in short"));
    assert_eq!(steps(&all), [None, Some(TerminationReason::TimeBudget)]);
    let expected = [
        "queued",
        "started",
        "assistant_chunk",
        "finalize_requested",
        "plan_decided",
        "assistant_message",
        "finalizing",
        "finished",
    ];
    assert_eq!(host.kinds(&id).await, expected);
}

#[tokio::test]
async fn m_45_an_agent_that_hears_has_its_grace_when_the_time_is_up() {
    for (takes, expected) in [
        (SECOND, (Status::Completed, StopReason::FinalResponse, false)),
        (9 * SECOND, (Status::Completed, StopReason::Wallclock, true)),
    ] {
        let mut world = World::new();
        let clock = Arc::clone(&world.clock);
        let planner = ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| {
            let clock = Arc::clone(&clock);
            async move {
                if input.resume.is_some() {
                    return answer("in short");
                }
                scope.stop().asked().await;
                taskrun_journal::time::Clock::sleep(&*clock, takes).await;
                answer("whole")
            }
        });
        world.agent_with("a", planner.hearing(), within(SOON));
        let host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        assert_eq!(world.next(2 * SECOND).await, SOON);
        let grace = Duration::from_secs(5);
        in_time(world.clock.wait_for_sleepers(2)).await;
        assert_eq!(world.next(9 * SECOND).await, takes.min(grace));
        assert_eq!(ending(&host.end(&id).await), expected);
    }
}

#[tokio::test]
async fn m_45_a_run_without_any_time_is_asked_for_its_last_word_alone() {
    let mut world = World::new();
    let (planner, all) = slow(&world);
    world.agent_with("a", planner, within(Duration::ZERO));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    let run = host.end(&id).await;
    assert_eq!(ending(&run), (Status::Completed, StopReason::Wallclock, true));
    assert_eq!(steps(&all), [Some(TerminationReason::TimeBudget)]);
}

#[tokio::test]
async fn m_45_the_first_step_of_a_continuation_is_cut_and_followed_by_the_last_word_too() {
    let (mut world, gate) = (World::new(), Gate::new());
    let closed = gate.clone();
    let planner = ClosurePlanner::new(move |input: PlanInput, _| {
        let gate = closed.clone();
        async move {
            if input.resume.is_some_and(|resume| resume.finalize.is_some()) {
                return answer("in short");
            }
            if input.run.turn > 1 {
                gate.pass().await;
            }
            answer("one")
        }
    });
    world.agent_with("a", planner, within(SOON));
    let host = world.start().await;
    host.spawn(&one_round()).await;
    assert_eq!(host.end("1").await.state.reply.result().as_deref(), Some("one"));
    let next = go_on(&host, "1").await;
    gate.reached_by(1).await;
    let (run, _) = world.run_until(60 * SECOND, host.end(&next)).await;
    assert_eq!(ending(&run), (Status::Completed, StopReason::Wallclock, true));
    assert_eq!(run.state.reply.result().as_deref(), Some("in short"));
}

#[tokio::test]
async fn m_47_a_pause_between_attempts_ends_with_the_runs_time() {
    for last_word_fails in [false, true] {
        let mut world = World::new();
        let asked = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&asked);
        let planner = ClosurePlanner::new(move |input: PlanInput, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            let planned = match input.resume {
                Some(_) if !last_word_fails => answer("in short"),
                Some(_) | None => failed(Some("unavailable"), "no model"),
            };
            async move { planned }
        });
        world.agent_with("a", planner, |agent| {
            agent.retry.pause = 25 * SECOND;
            agent.retry.attempts = 10;
            agent.budget.wall = Some(SECOND);
        });
        let host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        assert_eq!(world.next(25 * SECOND).await, SECOND);
        let run = host.end(&id).await;
        let expected = match last_word_fails {
            false => (Status::Completed, StopReason::Wallclock, true),
            true => (Status::Failed, StopReason::Wallclock, false),
        };
        assert_eq!(ending(&run), expected, "{:?}", host.kinds(&id).await);
        assert_eq!(asked.load(Ordering::SeqCst), 2, "a step, and one last word");
        let journal = host.journal(&id).await;
        assert_eq!(count(&journal, "step_failed"), 1, "{:?}", kinds(&journal));
        let told = "the last step failed: gave up after 2 attempts: no model".to_owned();
        let expected = if last_word_fails { vec![told] } else { Vec::new() };
        assert_eq!(said_by_host(&host, &id).await, expected, "in words");
    }
}

/// A model whose answers take no time and cost 30 tokens, and how often it was asked.
#[derive(Default)]
struct Paid(AtomicU32);

#[async_trait]
impl Model for Paid {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let usage = Usage {
            prompt_tokens: 20,
            completion_tokens: 10,
            total_tokens: 30,
            ..Usage::default()
        };
        let stop = Chunk::Stop { reason: CompletionStop::EndTurn, model: "m".to_owned() };
        let chunks = [Chunk::Text("word".to_owned()), Chunk::Usage(usage), stop];
        Ok(futures::stream::iter(chunks.map(Ok)).boxed())
    }
}

fn question() -> CompletionRequest {
    CompletionRequest {
        model: None,
        messages: vec![Message::text(Role::User, "go on?")],
        tools: Vec::new(),
        max_tokens: None,
        temperature: None,
        tool_choice: taskrun_journal::completion::ToolChoice::Auto,
        stop_sequences: Vec::new(),
        response_schema: None,
        media: MediaBytes::default(),
        tokens_left: None,
    }
}

/// An agent that asks its model, works without end, and has a second to do so.
fn pays(model: &Arc<Paid>) -> World {
    let mut world = World::new();
    let planner = ClosurePlanner::new(|input: PlanInput, scope: Arc<CallScope>| async move {
        if input.resume.is_some() {
            return answer("in short");
        }
        match scope.ask(question()).await {
            Ok(_) => std::future::pending().await,
            Err(_) => failed(Some("canceled"), "the time was up first"),
        }
    });
    let own: Arc<dyn Model> = model.clone();
    world.agent_asking("a", planner, Some(own), within(SECOND));
    world
}

#[tokio::test]
async fn m_45_what_a_step_that_was_cut_consumed_is_on_record() {
    let model = Arc::new(Paid::default());
    let mut world = pays(&model);
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    host.until(&id, "is answered", |run| run.state.step_usage.total_tokens == 30).await;
    assert_eq!(world.next(2 * SECOND).await, SECOND);
    let run = host.end(&id).await;
    assert_eq!(ending(&run), (Status::Completed, StopReason::Wallclock, true));
    assert_eq!((model.0.load(Ordering::SeqCst), run.state.progress.total_tokens), (1, 30));
}

async fn outside(door: &Native) -> Run {
    door.spawn(&named("1", "a")).await;
    door.end("1").await
}

/// Kills the host at one append; nobody's time stands still meanwhile.
async fn cut_and_killed(point: Point) -> u32 {
    let model = Arc::new(Paid::default());
    let mut world = pays(&model);
    let door = world.door().await;
    let clock = Arc::clone(&world.clock);
    // The host after the one that dies may have to give the run its whole second again.
    let ends = clock.run_until(4 * SECOND, outside(&door));
    let handle = Handle::default();
    let ((run, _), deaths) = survive(&mut world, &[point], &handle, ends).await;
    let (journal, asked) = (door.journal("1").await, model.0.load(Ordering::SeqCst));
    let context = format!("crash at {point:?}: {:?}", kinds(&journal));
    check_journal(&journal);
    assert_eq!(ending(&run), (Status::Completed, StopReason::Wallclock, true), "{context}");
    let answered = count(&journal, "host_answered");
    assert!(answered <= 1, "{context}");
    let may = if answered == 1 && point != (Op::Append, 1, Side::Before) { 1 } else { 2 };
    assert!(asked <= may, "asked {asked} times; {context}");
    let tokens = run.state.progress.total_tokens;
    assert_eq!(tokens, 30 * answered as u64, "{context}");
    assert_eq!(count(&journal, "finalize_requested"), 1, "{context}");
    deaths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m_45_a_step_that_was_cut_is_paid_once_whenever_its_host_dies() {
    for side in [Side::Before, Side::After] {
        die_at_each(Op::Append, side, 2, cut_and_killed).await;
    }
}

/// An agent that calls a tool that is not there in every step but its last word.
fn busy() -> (ClosurePlanner, Steps) {
    let all = Steps::default();
    let note = Arc::clone(&all);
    let planner = ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| {
        let reason = input.resume.and_then(|resume| resume.finalize).map(|last| last.reason);
        note.lock().expect("nobody panics with it").push(reason);
        async move {
            match reason {
                Some(_) => answer("in short"),
                None => {
                    let left = scope.remaining().await.turns;
                    let text = format!("{left:?} left");
                    scope.record(Event::AssistantChunk { text });
                    call_of(&[("c", "gone/f", "{}")])
                }
            }
        }
    });
    (planner, all)
}

#[tokio::test]
async fn m_45_at_the_last_turn_there_is_no_last_word_unless_something_is_kept_for_it() {
    let turns = Some(TerminationReason::TurnCap);
    let kept = |turns, tokens| Reserve { turns, tokens, cost_microusd: 0 };
    for (reserve, expected, said) in [
        (kept(0, 0), vec![None, None], "Some(0) left"),
        (kept(1, 0), vec![None, turns], "in short"),
        // What is kept pays for one turn more.
        (kept(0, 9), vec![None, None, turns], "in short"),
    ] {
        let mut world = World::new();
        let (planner, all) = busy();
        world.agent_with("a", planner, |agent| {
            agent.budget.turns = Some(2);
            agent.budget.tokens = Some(100);
            agent.budget.reserve = reserve;
        });
        let host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        let run = host.end(&id).await;
        assert_eq!(ending(&run), (Status::Completed, StopReason::MaxTurns, true), "{reserve:?}");
        assert_eq!(steps(&all), expected, "{reserve:?}");
        assert_eq!(run.state.reply.result().as_deref(), Some(said), "{reserve:?}");
    }
}

/// A model that says something and then nothing more, or nothing at all.
struct Mute {
    says: Option<&'static str>,
}

#[async_trait]
impl Model for Mute {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        let Some(text) = self.says else { return std::future::pending().await };
        let first = futures::stream::iter([Ok(Chunk::Text(text.to_owned()))]);
        Ok(first.chain(futures::stream::pending()).boxed())
    }
}

#[tokio::test]
async fn tokens_of_a_run_that_is_canceled_in_its_first_answer_are_on_record() {
    for (says, streamed, hears, least) in [
        (Some("forty bytes of text that somebody paid"), true, false, 10),
        (Some("forty bytes of text that somebody paid"), false, false, 10),
        (Some("forty bytes of text that somebody paid"), false, true, 10),
        (None, false, false, 1),
    ] {
        let mut world = World::new();
        let planner = ClosurePlanner::new(move |_, scope: Arc<CallScope>| async move {
            scope.record(Event::AssistantChunk { text: "asks".to_owned() });
            if streamed {
                let mut stream = scope.stream(question()).await.expect("it begins");
                while scope.next_chunks(&mut stream, 1).await.is_ok() {}
            } else {
                scope.ask(question()).await.expect_err("it is canceled");
            }
            failed(Some("canceled"), "canceled")
        });
        let planner = if hears { planner.hearing() } else { planner };
        world.agent_asking("a", planner, Some(Arc::new(Mute { says })), |_| {});
        let host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        host.until(&id, "asks", |run| run.state.progress.event_count > 0).await;
        host.settle().await;
        host.client().cancel(&id, None).await.expect("there");
        let run = host.end(&id).await;
        assert_eq!(run.status(), Status::Canceled);
        let progress = &run.state.progress;
        assert!(progress.prompt_tokens >= 1 && progress.usage_estimated, "{progress:?}");
        assert!(progress.total_tokens >= progress.prompt_tokens + least - 1, "{progress:?}");
        assert_eq!(progress.completion_tokens, says.map_or(0, |_| 10), "{progress:?}");
    }
}
