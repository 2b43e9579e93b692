//! The agent's finalizer: asked once, when the outcome is fixed.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use taskrun_journal::ending::EndStatus;
use taskrun_journal::event::Event;
use taskrun_journal::message::Labels;
use taskrun_journal::run::{Lifecycle, Run};
use taskrun_journal::status::Status;
use taskrun_journal::stop::CallAbort;

use super::allowance::{Allowance, TreeSnapshot};
use super::lease::Standstill;
use super::parts::Parts;
use super::recorder::Recorder;
use super::results::dropped_notes;
use super::stop::{Halt, Next};
use crate::ports::planner::FinalizeInput;
use crate::scope::{
    CallScope, CallScopeParts, PushBackRoom, Remaining, ScopeEnd, ScopeLimits, Services,
};

/// Longest that a finalizer may take, where the agent's `step` allows more: it is asked for a few
/// words, and the run keeps its slot.
pub const FINALIZER_TIMEOUT: Duration = Duration::from_secs(60);
/// The same for a run that was canceled: whoever cancels waits for it.
pub const FINALIZER_TIMEOUT_CANCELED: Duration = Duration::from_secs(5);
/// Events that a finalizer may put into the journal: it is asked for a few words.
const EVENTS_MAX: u32 = 100;
/// Bytes of those events.
const LOG_BYTES_MAX: u64 = 64 << 10;

/// The finalizer of a run whose outcome is fixed.
pub(super) struct Finalizer<'a> {
    pub(super) parts: &'a Parts,
    pub(super) recorder: &'a mut Recorder,
}

/// The end of a finalizer.
struct FinalizerEnd {
    /// The metadata that it adds, or why it adds none.
    added: Result<Labels, String>,
    /// The events that go on record with the end of the run.
    events: Vec<Event>,
}

impl FinalizerEnd {
    /// That of a finalizer that is not asked.
    fn unasked(added: Result<Labels, String>) -> Self {
        Self { added, events: Vec::new() }
    }
}

impl Finalizer<'_> {
    /// Asks the finalizer and records the end, if the run is at that point and held here.
    pub(super) async fn run(mut self) {
        let run = self.recorder.run();
        if run.status() != Status::Finalizing || run.state.hold.host().is_none() {
            return;
        }
        let id = run.id().clone();
        if self.recorder.stop(Next::Finalizer).is_some() {
            // It is asked once; a host that is about to end would only cut it off.
            return self.recorder.give_back().await;
        }
        let FinalizerEnd { added, mut events } = match self.ask().await {
            Ok(end) => end,
            Err(Halt::Stopped(stop)) => {
                tracing::warn!(run = %id, %stop, "the run is given back");
                return self.recorder.give_back().await;
            }
            Err(halt) => {
                // Whoever finds the run knows whether the finalizer had begun.
                tracing::warn!(run = %id, %halt, "the finalizer was not asked");
                return;
            }
        };
        let (metadata, finalizer_error) = match added {
            Ok(metadata) => (metadata, None),
            Err(error) => {
                tracing::warn!(run = %id, error, "the finalizer added nothing");
                (Labels::new(), Some(error))
            }
        };
        events.push(Event::Finished { metadata, finalizer_error });
        let decide = |run: &Run| match run.status() {
            Status::Finalizing => events.clone(),
            Status::Queued
            | Status::Running
            | Status::Blocked
            | Status::Canceling
            | Status::Completed
            | Status::Failed
            | Status::Canceled => Vec::new(),
        };
        self.recorder.persist(decide).await;
    }

    async fn ask(&mut self) -> Result<FinalizerEnd, Halt> {
        let (parts, run) = (self.parts, self.recorder.run());
        let Lifecycle::Finalizing { ending, finalizer_began, .. } = &run.state.lifecycle else {
            return Ok(FinalizerEnd::unasked(Ok(Labels::new())));
        };
        if *finalizer_began || !parts.code.planner.has_finalizer() {
            return Ok(FinalizerEnd::unasked(Err("the finalizer was cut off".to_owned())));
        }
        let input = FinalizeInput {
            run: parts.context(run, run.state.turns),
            ending: ending.clone(),
            result: run.state.reply.result(),
            metadata: run.spec.metadata.clone(),
        };
        let timeout = timeout(ending.status, parts.agent.limits.step);
        let push_backs = PushBackRoom {
            held: Arc::clone(&parts.env.held_models),
            spent: Duration::from_millis(run.state.pushed_back_ms),
        };
        self.recorder.stand().await?;
        let remaining = self.remaining().await;
        self.recorder.commit(|_| vec![Event::FinalizerStarted]).await?;
        // That may have taken so long that another host may have taken the run.
        self.recorder.stand().await?;
        let (signal, entered) = self.recorder.live().enter_finalizer();
        let scope = Arc::new(CallScope::new(CallScopeParts {
            context: input.run.clone(),
            stop: signal.clone(),
            deadline: timeout,
            clock: Arc::clone(&parts.env.clock),
            random: Arc::clone(&parts.env.random),
            models: Some(Arc::clone(&parts.agent.models)),
            rules: Arc::clone(&parts.bounds.rules),
            pins: Vec::new(),
            runs: None,
            tools: Arc::default(),
            state: self.recorder.work().conversation.state().clone(),
            services: Services {
                prompts: Arc::clone(&parts.agent.prompts),
                push_backs: Some(push_backs),
                ..Services::default()
            },
            remaining,
            limits: ScopeLimits { events: EVENTS_MAX, bytes: LOG_BYTES_MAX },
            wake: self.recorder.wake(),
            journal: None,
            tape: None,
        }));
        let planner = Arc::clone(&parts.code.planner);
        let limit_ms = taskrun_journal::time::millis(timeout);
        let (env, live) = (&parts.env, self.recorder.live());
        let answer = {
            // The outcome is fixed and must not hang on a mistake in here.
            let asked = planner.finalize(input, Arc::clone(&scope));
            let asked = AssertUnwindSafe(asked).catch_unwind();
            let limit = env.clock.sleep(timeout);
            tokio::pin!(asked, limit);
            // It stands still with its host, and so does its time.
            let mut standstill = Standstill::new(&env.lease, live, &env.stalls);
            loop {
                let stands = standstill.holds();
                tokio::select! {
                    biased;
                    () = standstill.changed() => {}
                    answer = &mut asked, if !stands => {
                        break answer.unwrap_or(Err(CallAbort::Internal));
                    }
                    () = &mut limit => break Err(CallAbort::Deadline { limit_ms }),
                }
            }
        };
        drop(entered);
        let added = match answer {
            Ok(Ok(metadata)) => Ok(trimmed(metadata)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(failure) => Err(failure.to_string()),
        };
        Ok(FinalizerEnd { added, events: on_record(scope.finish()) })
    }

    /// The rest of the budget, with what is kept for the last word. Where it cannot be read no model
    /// is asked, as what an answer costs would be held to nothing.
    async fn remaining(&self) -> Remaining {
        let (run, tree) = (self.recorder.run(), TreeSnapshot::default());
        let allowance = Allowance::new(self.parts, self.recorder, &tree);
        match allowance.remaining(run.state.turns, true).await {
            Ok(remaining) => remaining,
            Err(halt) => {
                tracing::warn!(run = %run.id(), %halt, "the finalizer is left no budget");
                Remaining { tokens: Some(0), ..Remaining::default() }
            }
        }
    }
}

/// The events of a finalizer that go on record: its lines and refusals, and what it used. Nothing
/// else that it says counts, as the outcome is fixed.
fn on_record(end: ScopeEnd) -> Vec<Event> {
    let notes = dropped_notes(&end);
    let ScopeEnd { events, usage, .. } = end;
    let is_kept = |event: &Event| matches!(event, Event::PolicyDecision { .. } | Event::Log { .. });
    let kept = events.into_iter().filter(is_kept);
    kept.chain(notes).chain(usage.map(|usage| Event::Usage { usage })).collect()
}

/// The time of the finalizer of a run that ends so, of an agent whose steps may take `step`.
fn timeout(ending: EndStatus, step: Duration) -> Duration {
    step.min(match ending {
        EndStatus::Completed | EndStatus::Failed => FINALIZER_TIMEOUT,
        EndStatus::Canceled => FINALIZER_TIMEOUT_CANCELED,
    })
}

/// Without the white space around keys and values, and without keys that are nothing else.
fn trimmed(metadata: Labels) -> Labels {
    let pairs = metadata.into_iter().map(|(k, v)| (k.trim().to_owned(), v.trim().to_owned()));
    pairs.filter(|(key, _)| !key.is_empty()).collect()
}
