//! The failure policy as a port, and what `taskrun.toml` says for it (C-021, C-024 to C-026).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use taskrun::agents::Agent;
use taskrun::autonomy::AutonomyRequest;
use taskrun::ports::planner::PlanInput;
use taskrun::ports::retry::{RetryDecision, RetryPolicy, StepFailure};
use taskrun::scope::CallScope;
use taskrun::scope::model::{Model, ModelStream};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::completion::{CompletionRequest, ModelError};
use taskrun_journal::event::Event;
use taskrun_journal::hold::Hold;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::stop::CallAbort;
use taskrun_policy::{AutonomySettings, RetryExhaustion, RetryOn};
use tokio::sync::Notify;

use super::budgets::question;
use super::common::check_journal;
use crate::native::{ClosurePlanner, Native, Planned, World, answer, failed, request};

const SECOND: Duration = Duration::from_secs(1);

/// Decides always the same, and keeps what it was asked.
struct Fixed {
    decision: RetryDecision,
    asked: Mutex<Vec<(String, u32, u32)>>,
}

impl Fixed {
    fn new(decision: RetryDecision) -> Arc<Self> {
        Arc::new(Self { decision, asked: Mutex::default() })
    }

    fn asked(&self) -> Vec<(String, u32, u32)> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl RetryPolicy for Fixed {
    fn decide(&self, failure: &StepFailure<'_>, attempt: u32) -> RetryDecision {
        assert_eq!(failure.agent, "a");
        let word = failure.fault.word().to_owned();
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.push((word, failure.turn, attempt));
        self.decision
    }
}

fn deadline() -> Planned {
    Err(CallAbort::Deadline { limit_ms: 5 })
}

/// A world with an agent whose first steps fail, and the last message of the last step.
fn fails_first(
    times: u32,
    fail: fn() -> Planned,
    change: impl FnOnce(&mut Agent),
) -> (World, Arc<Mutex<String>>) {
    let mut world = World::new();
    let (steps, seen) = (AtomicU32::new(0), Arc::new(Mutex::default()));
    let told = Arc::clone(&seen);
    let planner = ClosurePlanner::new(move |input: PlanInput, _| {
        let last = input.messages.last().expect("a task").joined_text();
        *told.lock().unwrap_or_else(PoisonError::into_inner) = last;
        let failing = steps.fetch_add(1, Ordering::SeqCst) < times;
        async move { if failing { fail() } else { answer("done") } }
    });
    world.agent_with("a", planner, change);
    (world, seen)
}

async fn ended(host: &Native, id: &str) -> RunView {
    host.end(id).await;
    host.view(id).await
}

/// A failure, its word and its text.
type Failure = (fn() -> Planned, &'static str, &'static str);

/// The failures of C: an error without a code, and a step that met its deadline.
const FAILURES: [Failure; 2] = [
    (|| failed(None, "child failed"), "uncoded", "child failed"),
    (deadline, "deadline", "stopped: deadline of 5 ms exceeded"),
];

#[tokio::test]
async fn cs_08_a_policy_that_retries_is_asked_once_with_attempt_one() {
    for (fail, word, _) in FAILURES {
        let (mut world, seen) = fails_first(1, fail, |_| {});
        let policy = Fixed::new(RetryDecision::Retry { after: Duration::ZERO });
        world.retry_policy = Some(policy.clone());
        let host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        let view = ended(&host, &id).await;
        assert_eq!((view.status, view.turns), (Status::Completed, 1), "{word}");
        assert_eq!(policy.asked(), [(word.to_owned(), 1, 1)]);
        assert_eq!(*seen.lock().expect("nobody panics"), "x", "the same prompt again");
    }
}

#[tokio::test]
async fn cs_08_a_policy_that_aborts_ends_the_run_with_its_reason_and_the_error() {
    for (fail, word, text) in FAILURES {
        let (mut world, _) = fails_first(u32::MAX, fail, |_| {});
        let policy = Fixed::new(RetryDecision::Abort);
        world.retry_policy = Some(policy.clone());
        let host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        let view = ended(&host, &id).await;
        assert_eq!(view.status, Status::Failed);
        assert_eq!(view.stop_reason, Some(StopReason::RetryAborted), "{word}");
        let error = format!("gave up after 1 attempt: {text}");
        assert_eq!(view.error.as_deref(), Some(error.as_str()));
    }
}

#[tokio::test]
async fn cs_08_a_policy_that_skips_has_the_planner_told_to_go_on() {
    for (fail, word, _) in FAILURES {
        let (mut world, seen) = fails_first(1, fail, |_| {});
        world.retry_policy = Some(Fixed::new(RetryDecision::Skip));
        let host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        let view = ended(&host, &id).await;
        assert_eq!((view.status, view.turns), (Status::Completed, 2), "{word}");
        assert_eq!(*seen.lock().expect("nobody panics"), "continue");
    }
}

#[tokio::test]
async fn c_025_a_skipped_turn_ends_its_round_and_the_next_one_has_the_usual_prompt() {
    let (mut world, seen) = fails_first(2, deadline, |agent| {
        let continuation = Some("go on".to_owned());
        agent.autonomous = Some(AutonomySettings { continuation, ..AutonomySettings::default() });
    });
    world.retry_policy = Some(Fixed::new(RetryDecision::Skip));
    let host = world.start().await;
    let asked = AutonomyRequest { rounds: Some(4), ..AutonomyRequest::default() };
    let id = host.spawn(&SpawnRequest { autonomous: Some(asked), ..request("a", "x") }).await;
    let view = ended(&host, &id).await;
    // Two skipped ones, and two in which it answered.
    assert_eq!((view.stop_reason, view.rounds), (Some(StopReason::MaxTurns), Some(4)));
    assert_eq!(view.turns, 4);
    assert_eq!(view.result.as_deref(), Some("done"), "what was skipped takes no finding's place");
    assert_eq!(*seen.lock().expect("nobody panics"), "go on");
    let kinds = host.kinds(&id).await;
    let skipped = kinds.iter().position(|kind| *kind == "turn_skipped").expect("it is skipped");
    assert_eq!(kinds[skipped + 1], "round_ended", "one write");
    check_journal(&host.journal(&id).await);

    let (mut world, _) = fails_first(u32::MAX, deadline, |_| {});
    world.retry_policy = Some(Fixed::new(RetryDecision::Skip));
    let host = world.start().await;
    let asked = AutonomyRequest { rounds: Some(2), ..AutonomyRequest::default() };
    let id = host.spawn(&SpawnRequest { autonomous: Some(asked), ..request("a", "x") }).await;
    let view = ended(&host, &id).await;
    assert_eq!((view.stop_reason, view.rounds), (Some(StopReason::MaxTurns), Some(2)));
}

#[tokio::test]
async fn c_021_without_a_policy_for_it_a_failed_step_ends_an_autonomous_run_as_aborted() {
    for (fail, word, text) in FAILURES {
        let (mut world, _) = fails_first(u32::MAX, fail, |_| {});
        let host = world.start().await;
        let autonomous = Some(AutonomyRequest::default());
        let id = host.spawn(&SpawnRequest { autonomous, ..request("a", "x") }).await;
        let view = ended(&host, &id).await;
        assert_eq!(view.stop_reason, Some(StopReason::RetryAborted), "{word}");
        assert_eq!(view.stop_reason_alias, Some("retry_policy_aborted"));
        let said = view.error.expect("why");
        assert!(said.contains(text) || said.contains("deadline exceeded"), "{said}");
        assert_eq!(view.failure.is_some(), word == "deadline");
        let plain = host.spawn(&request("a", "x")).await;
        let plain = ended(&host, &plain).await.stop_reason;
        assert_ne!(plain, Some(StopReason::RetryAborted), "only of such a run");
    }
}

#[tokio::test]
async fn m_47_attempts_of_a_policy_count_the_failures_of_one_step() {
    let (mut world, _) = fails_first(3, deadline, |_| {});
    let policy = Fixed::new(RetryDecision::Retry { after: SECOND });
    world.retry_policy = Some(policy.clone());
    let first = world.start().await;
    let id = first.spawn(&request("a", "x")).await;
    assert_eq!(world.next(SECOND).await, SECOND, "exactly as decided");
    first.until(&id, "fails", |run| run.state.failed_attempts == 2).await;
    world.kill(first).await;
    let second = world.take_over().await;
    second.until(&id, "fails again", |run| run.state.failed_attempts == 3).await;
    world.next(SECOND).await;
    assert_eq!(ended(&second, &id).await.status, Status::Completed);
    let attempts: Vec<u32> = policy.asked().into_iter().map(|(.., attempt)| attempt).collect();
    assert_eq!(attempts, [1, 2, 3]);
}

#[tokio::test]
async fn m_47_a_long_pause_of_a_policy_holds_no_slot_and_is_an_hour_at_most() {
    let (mut world, _) = fails_first(1, deadline, |_| {});
    let after = Duration::from_secs(7_200);
    world.retry_policy = Some(Fixed::new(RetryDecision::Retry { after }));
    world.settings.slots = 1;
    let host = world.start().await;
    let begun = taskrun_journal::time::Clock::now(&*world.clock);
    let id = host.spawn(&request("a", "x")).await;
    let run = host.until(&id, "waits", |run| run.status() == Status::Blocked).await;
    let Hold::Wanted { not_before, .. } = run.state.hold else { panic!("{:?}", run.state.hold) };
    assert_eq!(not_before.since(begun), SECOND * 3_600);
    world.clock.advance(SECOND * 3_600);
    assert_eq!(ended(&host, &id).await.status, Status::Completed);
}

#[tokio::test]
async fn m_47_a_policy_that_retries_for_ever_is_bounded() {
    let (mut world, _) = fails_first(u32::MAX, deadline, |_| {});
    let policy = Fixed::new(RetryDecision::Retry { after: Duration::ZERO });
    world.retry_policy = Some(policy.clone());
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    let view = ended(&host, &id).await;
    assert_eq!(view.stop_reason, Some(StopReason::RetryAborted));
    assert_eq!(policy.asked().len(), 100);
}

#[tokio::test]
async fn ts_20_an_error_of_a_canceled_run_is_no_matter_of_the_policy() {
    let mut world = World::new();
    // A run's status is running before the planner is called: a run canceled between the two ends
    // as canceled.
    let called = Arc::new(Notify::new());
    let told = Arc::clone(&called);
    let planner = ClosurePlanner::new(move |_, scope| {
        told.notify_one();
        async move {
            scope.stop().asked().await;
            failed(None, "worker canceled request")
        }
    });
    world.agent("a", planner);
    let policy = Fixed::new(RetryDecision::Skip);
    world.retry_policy = Some(policy.clone());
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    called.notified().await;
    host.client().cancel(&id, None).await.expect("there");
    let view = ended(&host, &id).await;
    assert_eq!(view.status, Status::Failed);
    assert_eq!(view.error.as_deref(), Some("worker canceled request"));
    assert_eq!(policy.asked(), []);
}

#[tokio::test]
async fn c_021_the_table_of_an_agent_may_have_deadlines_and_uncoded_errors_tried_again() {
    let on = || RetryOn::new(["deadline", "uncoded"]);
    for (fail, word, text) in FAILURES {
        let (mut world, _) = fails_first(1, fail, |agent| agent.retry_on = on());
        let host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        world.next(SECOND).await;
        assert_eq!(ended(&host, &id).await.status, Status::Completed, "{word}");
        let journal = host.journal(&id).await;
        let fell = journal.iter().filter(|one| matches!(one.event, Event::StepFailed { .. }));
        assert_eq!(fell.count(), 1);

        let (mut world, seen) = fails_first(1, fail, |agent| {
            agent.retry_on = on();
            agent.retry.attempts = 1;
            agent.retry.then = RetryExhaustion::Skip { in_a_row: 1 };
        });
        let host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        assert_eq!(ended(&host, &id).await.status, Status::Completed, "{text}");
        assert_eq!(*seen.lock().expect("nobody panics"), "continue");
    }
}

/// A model that never answers in time, and counts how often it is asked.
#[derive(Default)]
struct LateModel(AtomicU32);

#[async_trait]
impl Model for LateModel {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Err(ModelError::Timeout)
    }
}

#[tokio::test]
async fn m_47_a_question_that_met_a_time_out_is_asked_again_unless_the_policy_leaves_that_out() {
    let without = RetryOn::new(["transient", "rate-limited", "unavailable", "internal"]);
    for (on, asked) in [(RetryOn::default(), 3), (without, 1)] {
        let (mut world, model) = (World::new(), Arc::new(LateModel::default()));
        let planner = ClosurePlanner::new(|_, scope: Arc<CallScope>| async move {
            let error = scope.ask(question()).await.expect_err("it is late");
            failed(Some("timeout"), &error.to_string())
        });
        let own: Arc<dyn Model> = model.clone();
        world.agent_asking("a", planner, Some(own), |agent| agent.retry_on = on);
        let host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        world.run_until(10 * SECOND, host.end(&id)).await;
        assert_eq!(host.view(&id).await.status, Status::Failed);
        assert_eq!(model.0.load(Ordering::SeqCst), asked);
    }
}
