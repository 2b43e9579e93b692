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

use super::parts::Parts;
use super::recorder::Recorder;
use super::stop::{Halt, Next};
use crate::ports::planner::FinalizeInput;
use crate::scope::{CallScope, CallScopeParts, Remaining, ScopeLimits, Services};

/// Longest that a finalizer may take, where the agent's `step` allows more: it is asked for a few
/// words, and the run keeps its slot.
pub const FINALIZER_TIMEOUT: Duration = Duration::from_secs(60);
/// The same for a run that was canceled: whoever cancels waits for it.
pub const FINALIZER_TIMEOUT_CANCELED: Duration = Duration::from_secs(5);

/// The finalizer of a run whose outcome is fixed.
pub(super) struct Finalizer<'a> {
    pub(super) parts: &'a Parts,
    pub(super) recorder: &'a mut Recorder,
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
        let (metadata, finalizer_error) = match self.ask().await {
            Ok(Ok(metadata)) => (metadata, None),
            Ok(Err(error)) => {
                tracing::warn!(run = %id, error, "the finalizer added nothing");
                (Labels::new(), Some(error))
            }
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
        let finished = Event::Finished { metadata, finalizer_error };
        let decide = |run: &Run| match run.status() {
            Status::Finalizing => vec![finished.clone()],
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

    async fn ask(&mut self) -> Result<Result<Labels, String>, Halt> {
        let (parts, run) = (self.parts, self.recorder.run());
        let Lifecycle::Finalizing { ending, finalizer_began, .. } = &run.state.lifecycle else {
            return Ok(Ok(Labels::new()));
        };
        if *finalizer_began || !parts.code.planner.has_finalizer() {
            return Ok(Err("the finalizer was cut off".to_owned()));
        }
        let input = FinalizeInput {
            run: parts.context(run, run.state.turns),
            ending: ending.clone(),
            result: run.state.reply.result(),
            metadata: run.spec.metadata.clone(),
        };
        let timeout = timeout(ending.status, parts.agent.limits.step);
        self.recorder.stand().await?;
        self.recorder.commit(|_| vec![Event::FinalizerStarted]).await?;
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
            services: Services { prompts: Arc::clone(&parts.agent.prompts), ..Services::default() },
            remaining: Remaining::default(),
            // The journal is closed to everything but the end.
            limits: ScopeLimits { events: 0, bytes: 0 },
            wake: self.recorder.wake(),
            journal: None,
            tape: None,
        }));
        let planner = Arc::clone(&parts.code.planner);
        let limit_ms = taskrun_journal::time::millis(timeout);
        // The outcome is fixed and must not hang on a mistake in here.
        let asked = AssertUnwindSafe(planner.finalize(input, scope)).catch_unwind();
        let answer = tokio::select! {
            biased;
            answer = asked => answer.unwrap_or(Err(CallAbort::Internal)),
            () = parts.env.clock.sleep(timeout) => Err(CallAbort::Deadline { limit_ms }),
        };
        drop(entered);
        Ok(match answer {
            Ok(Ok(metadata)) => Ok(trimmed(metadata)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(failure) => Err(failure.to_string()),
        })
    }
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
