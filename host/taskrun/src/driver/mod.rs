//! Drives one run from its claim to its end: plan, execute tools, plan again, until a terminal
//! decision, a limit, or somebody stops it.

mod calls;
mod conversation;
mod finish;
mod journal;
mod live;
mod step;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use conversation::{CONVERSATION_RESULT_BYTES_MAX, Conversation, Shown};
pub use journal::{Halt, Journal};
pub(crate) use live::Live;

use crate::agents::Agent;
use crate::event::{Event, Recorded};
use crate::machine::decide::Outcome;
use crate::ports::call::{CallFailure, CallScope, RunContext, StopCause};
use crate::ports::planner::{Decision, TerminationReason};
use crate::ports::store::Store;
use crate::run::Run;
use crate::status::StopReason;
use crate::time::{Clock, Random};

/// Most bytes that a plan step is given; a run whose conversation is longer fails.
pub const PLAN_INPUT_BYTES_MAX: usize = 1_000_000;
/// How long events of a running call are gathered before they are written together.
const FLUSH: Duration = Duration::from_millis(50);
/// A call shorter than this is over before anybody could ask another process to cancel it, so
/// only then does its driver begin to listen for others.
const LISTEN_AFTER: Duration = Duration::from_millis(20);

/// What every driver of a host shares.
pub(crate) struct Env {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<dyn Random>,
    pub(crate) closing: CancellationToken,
}

/// Drives one run.
pub(crate) struct Driver {
    env: Arc<Env>,
    agent: Arc<Agent>,
    journal: Journal,
    live: Arc<Live>,
    conversation: Conversation,
    began: Duration,
    /// Calls under way, whose events are to be written.
    scopes: Vec<Arc<CallScope>>,
    wake: Arc<Notify>,
    text: step::StepText,
}

/// What the work came to, with events that are still to be written.
struct Done {
    pending: Vec<Event>,
    outcome: Outcome,
}

impl Driver {
    pub(crate) fn new(env: Arc<Env>, agent: Arc<Agent>, run: Run, live: Arc<Live>) -> Self {
        let conversation = Conversation::new(&run.spec);
        let journal = Journal::new(
            Arc::clone(&env.store),
            Arc::clone(&env.clock),
            Arc::clone(&env.random),
            run,
        );
        let began = env.clock.monotonic();
        Self {
            env,
            agent,
            journal,
            live,
            conversation,
            began,
            scopes: Vec::new(),
            wake: Arc::new(Notify::new()),
            text: step::StepText::default(),
        }
    }

    /// Works until the run is at its end, and records that.
    pub(crate) async fn drive(mut self) {
        let id = self.journal.run().id().clone();
        let done = match self.work().await {
            Ok(done) => done,
            Err(Halt::Fenced) => {
                tracing::warn!(run = %id, "ended or taken over by another process");
                return;
            }
            Err(Halt::Store(error)) => {
                tracing::error!(run = %id, %error, "the journal cannot be written");
                Done { pending: Vec::new(), outcome: Outcome::PersistFailed(error.to_string()) }
            }
            Err(Halt::Inconsistent(detail)) => {
                tracing::error!(run = %id, %detail, "the journal is inconsistent");
                Done { pending: Vec::new(), outcome: Outcome::HostFailed(detail) }
            }
        };
        self.journal.end(&done.pending, &done.outcome, &self.env.closing).await;
    }

    async fn work(&mut self) -> Result<Done, Halt> {
        loop {
            if let Some(reason) = self.cap_before_step() {
                return self.finalize(reason).await;
            }
            let step = self.step(None).await?;
            let mut pending = step.pending;
            let plan = match step.outcome {
                Ok(plan) => plan,
                Err(outcome) => return Ok(Done { pending, outcome }),
            };
            match plan.decision {
                Decision::FinalResponse(_) => {
                    let outcome = Outcome::Answered(StopReason::FinalResponse);
                    return Ok(Done { pending, outcome });
                }
                Decision::FinalToolResult(result) => {
                    let outcome = step::tool_result_outcome(&result);
                    return Ok(Done { pending, outcome });
                }
                Decision::Await(_) => {
                    let text = "the agent wants to wait for an answer from outside, which this \
                                host does not offer";
                    let outcome = Outcome::Refused(text.to_owned());
                    return Ok(Done { pending, outcome });
                }
                Decision::ToolCalls(requests) => {
                    if self.tool_calls_left() == Some(0) {
                        calls::refuse_all(&mut pending, &requests);
                        self.write(pending).await?;
                        return self.finalize(TerminationReason::ToolCap).await;
                    }
                    if let Some(done) = self.execute(pending, requests).await? {
                        return Ok(done);
                    }
                }
            }
        }
    }

    /// The limit that forbids another ordinary step.
    fn cap_before_step(&self) -> Option<TerminationReason> {
        let (run, budget) = (&self.journal.run().state, &self.agent.budget);
        // The first step always happens: there is nothing that a last word could be about.
        if run.turns == 0 {
            return None;
        }
        if budget.turns.is_some_and(|turns| run.turns >= turns) {
            return Some(TerminationReason::TurnCap);
        }
        if budget.tokens.is_some_and(|tokens| run.progress.total_tokens >= tokens) {
            return Some(TerminationReason::TokenCap);
        }
        let spent = self.env.clock.monotonic().saturating_sub(self.began);
        if budget.wall.is_some_and(|wall| spent >= wall) {
            return Some(TerminationReason::TimeBudget);
        }
        None
    }

    fn tool_calls_left(&self) -> Option<u32> {
        let used = self.journal.run().state.tool_calls;
        self.agent.limits.tool_calls.map(|cap| cap.saturating_sub(used))
    }

    /// Records events of the work. Those that a cancellation forbids are left out.
    async fn write(&mut self, events: Vec<Event>) -> Result<(), Halt> {
        let written = self
            .journal
            .commit(|run| {
                let canceling = run.status() == crate::status::Status::Canceling;
                let allowed = |event: &&Event| {
                    !(canceling && matches!(event, Event::ToolCallScheduled { .. }))
                };
                events.iter().filter(allowed).cloned().collect()
            })
            .await?;
        self.take_in(&written);
        Ok(())
    }

    fn take_in(&mut self, written: &[Recorded]) {
        for recorded in written {
            self.conversation.push(&recorded.event);
        }
        if self.journal.is_canceling() {
            self.live.request(StopCause::Canceled);
        }
    }

    /// Waits for a call while writing down what it reports, listening for others who write to
    /// the journal, and keeping the time.
    async fn attend<T>(&mut self, call: impl Future<Output = T> + Send) -> Result<T, Halt> {
        self.check_time();
        tokio::pin!(call);
        let live = Arc::clone(&self.live);
        let clock = Arc::clone(&self.env.clock);
        let store = Arc::clone(&self.env.store);
        let (grace, time_left) = (self.agent.limits.grace, self.time_left());
        let stopping = async {
            live.asked().await;
            // From when it was first seen, however many calls end meanwhile.
            let since = clock.monotonic().saturating_sub(live.asked_at(clock.monotonic()));
            clock.sleep(grace.saturating_sub(since)).await;
        };
        let timeout = async {
            match time_left {
                Some(left) => clock.sleep(left).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(stopping, timeout);
        let (mut timed_out, mut forced) = (false, false);
        loop {
            let id = self.journal.run().id().clone();
            let head = self.journal.run().state.head;
            let wake = Arc::clone(&self.wake);
            // Real time, not the clock's: these two only trade latency against writes, and mean
            // nothing to the run.
            let flush = async {
                wake.notified().await;
                tokio::time::sleep(FLUSH).await;
            };
            let others = async {
                tokio::time::sleep(LISTEN_AFTER).await;
                store.changed(&id, head).await;
            };
            tokio::pin!(flush, others);
            loop {
                tokio::select! {
                    biased;
                    result = &mut call => {
                        self.check_time();
                        return Ok(result);
                    }
                    () = &mut timeout, if !timed_out => {
                        timed_out = true;
                        live.request(StopCause::RunTimeout);
                    }
                    () = &mut stopping, if !forced => {
                        forced = true;
                        live.force();
                    }
                    () = &mut flush => {
                        self.flush().await?;
                        break;
                    }
                    () = &mut others => {
                        match self.journal.catch_up().await {
                            // What cannot be read now is asked for again.
                            Ok(()) | Err(Halt::Store(_)) => {}
                            Err(halt) => return Err(halt),
                        }
                        self.take_in(&[]);
                        // The wait for more to write may have been cut short by this.
                        self.flush().await?;
                        break;
                    }
                }
            }
        }
    }

    /// Writes down what the calls under way have reported.
    async fn flush(&mut self) -> Result<(), Halt> {
        let mut events = Vec::new();
        for scope in &self.scopes {
            events.extend(scope.take_events());
        }
        self.text.take(&events);
        self.write(events).await
    }

    /// Calls that answer at once leave no moment in which a timer is looked at.
    fn check_time(&self) {
        if self.time_left() == Some(Duration::ZERO) {
            self.live.request(StopCause::RunTimeout);
        }
    }

    /// What is left of the run's own time-out.
    fn time_left(&self) -> Option<Duration> {
        let run = self.journal.run();
        let timeout = Duration::from_millis(run.spec.timeout_ms?);
        Some(timeout.saturating_sub(self.env.clock.monotonic().saturating_sub(self.began)))
    }

    fn context(&self, turn: u32) -> RunContext {
        let run = self.journal.run();
        let spec = &run.spec;
        RunContext {
            run_id: spec.id.to_string(),
            parent_run_id: spec.parent_run_id.as_ref().map(ToString::to_string),
            root_run_id: spec.root_run_id.to_string(),
            session_id: run.execution().map_or_else(String::new, |e| e.child_session_id.clone()),
            parent_session_id: spec.parent_session_id.clone(),
            owner_user_id: spec.owner_user_id.clone(),
            app_name: spec.app_name.clone(),
            agent_name: spec.agent_name.clone(),
            turn,
            attempt: 1,
            depth: spec.depth,
            parent_tool_call_id: None,
            labels: spec.labels.clone(),
            envelope: spec.envelope.clone(),
        }
    }

    /// The stop that somebody asked for while a call answered in its own way.
    fn stopped(&self) -> Option<CallFailure> {
        self.live.cause().map(|cause| CallFailure::Stopped { cause })
    }
}
