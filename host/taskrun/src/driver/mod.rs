//! Drives one run from its claim until it ends or waits: plan, execute tools, plan again, until a
//! terminal decision, a limit, something to wait for, or somebody who stops it.

mod advice;
mod arguments;
mod attend;
mod await_runs;
mod beneath;
mod budgets;
mod calls;
mod children;
mod confirm;
mod conversation;
mod engines;
mod finalizer;
mod finish;
mod gate;
mod history;
mod hooks;
mod journal;
mod lease;
mod line;
mod live;
mod missing;
mod patience;
mod paused;
mod plan;
mod random;
mod settle;
mod skip;
mod step;
mod subtree;
#[cfg(test)]
mod tests;
mod time_up;
mod whole;
mod work;

use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::event::{Event, Recorded};
use taskrun_journal::fact::MemoryScope;
use taskrun_journal::machine::decide::{self, Outcome};
use taskrun_journal::memory::Memory;
use taskrun_journal::run::Run;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_journal::store::{Store, StoreError};
use taskrun_journal::time::{Clock, Random, Timestamp, millis};
use taskrun_policy::{Budget, CallRules};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub(crate) use beneath::find_beneath;
pub use conversation::{CONVERSATION_RESULT_BYTES_MAX, Conversation, Shown};
pub use finalizer::{FINALIZER_TIMEOUT, FINALIZER_TIMEOUT_CANCELED};
pub use journal::{Halt, Journal};
pub(crate) use lease::Lease;
pub(crate) use live::Live;
pub(crate) use patience::{Patience, PatientMemory, PatientRuns, PatientStore, RunClock, Stalls};

use self::work::Work;
use crate::agents::{Agent, AgentCode};
use crate::ports::call::{CallScope, RunContext, Tape};
use crate::ports::hook::Hooks;
use crate::ports::memory::MemoryAccess;
use crate::ports::planner::Decision;
use crate::ports::runs::{Caller, Runs, RunsAccess};

/// Most bytes that a plan step is given; a run whose conversation is longer fails.
pub const PLAN_INPUT_BYTES_MAX: usize = 1_000_000;

/// How long a run is left alone that could not be read.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// What the driver of a run works with.
pub(crate) struct Env {
    /// Waits while it cannot be written.
    pub(crate) store: Arc<dyn Store>,
    /// Stands still with the run.
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) stalls: Arc<Stalls>,
    pub(crate) random: Arc<dyn Random>,
    pub(crate) closing: CancellationToken,
    /// Set when this host gives its runs back, each at the next point at which nothing is lost.
    pub(crate) draining: CancellationToken,
    pub(crate) lease: Arc<Lease>,
    pub(crate) hooks: Hooks,
    /// What the components of runs may ask of the controller.
    pub(crate) runs: Arc<dyn Runs>,
    /// Facts that the components of runs may read and write.
    pub(crate) memory: Arc<dyn Memory>,
}

/// The bounds of a run.
pub(crate) struct Bounds {
    /// The rules for its calls.
    pub(crate) rules: CallRules,
    /// The budgets of the runs above it, the root's first.
    pub(crate) above: Vec<Budget>,
}

/// Drives one run.
pub(crate) struct Driver {
    env: Arc<Env>,
    /// The agent as this run has it.
    agent: Arc<Agent>,
    /// The agent's code, with the tools that the run has.
    code: Arc<AgentCode>,
    /// The rules for its calls.
    rules: CallRules,
    /// The budgets of the runs above it, the root's first.
    above: Vec<Budget>,
    /// How long it may work in all.
    wall: Option<Duration>,
    journal: Journal,
    live: Arc<Live>,
    work: Work,
    /// When this host took the run, on the clock's own time, and how long it had run before.
    began: Duration,
    ran_before: Duration,
    /// When the pause after the last failed attempt is over, and how long it was, where another host
    /// recorded it.
    cut_pause: Option<(Timestamp, Duration)>,
    /// Calls under way, whose events are to be written.
    scopes: Vec<Arc<CallScope>>,
    wake: Arc<Notify>,
    urgent: Arc<Notify>,
    /// Told when the run was paused, so that nobody sleeps over it.
    halted: Arc<Notify>,
}

/// What this execution came to.
enum End {
    /// The work is at its end.
    Done {
        /// Events that are still to be written.
        pending: Vec<Event>,
        outcome: Outcome,
    },
    /// The run waits, and is nobody's.
    Blocked,
    /// Something changed that makes another look necessary; whoever takes it up next looks.
    Released,
}

impl End {
    fn done(pending: Vec<Event>, outcome: Outcome) -> Self {
        Self::Done { pending, outcome }
    }

    fn failed(failure: CallAbort) -> Self {
        Self::done(Vec::new(), Outcome::Failed(failure))
    }
}

impl Driver {
    pub(crate) fn new(
        env: Arc<Env>,
        (agent, code): (Arc<Agent>, Arc<AgentCode>),
        bounds: Bounds,
        run: Run,
        live: Arc<Live>,
    ) -> Self {
        let work = Work::new(&run.spec);
        let ran_before = Duration::from_millis(run.state.ran_ms);
        let journal = Journal::new(
            Arc::clone(&env.store),
            Arc::clone(&env.clock),
            Arc::clone(&env.random),
            run,
        );
        let began = env.clock.monotonic();
        Self {
            env,
            wall: agent.budget.wall,
            agent,
            code,
            rules: bounds.rules,
            above: bounds.above,
            journal,
            live,
            work,
            began,
            ran_before,
            cut_pause: None,
            scopes: Vec::new(),
            wake: Arc::new(Notify::new()),
            urgent: Arc::new(Notify::new()),
            halted: Arc::new(Notify::new()),
        }
    }

    /// Works until the run is at its end or has to wait, and records that.
    pub(crate) async fn drive(mut self) {
        if self.journal.run().status() == Status::Finalizing {
            // The finalizer is shown the state that the run came to under another host.
            if let Err(halt) = self.read_all().await {
                let id = self.journal.run().id();
                tracing::warn!(run = %id, %halt, "cannot be finalized; the run is given back");
                return self.give_back_after(READ_PAUSE).await;
            }
        } else {
            let id = self.journal.run().id().clone();
            let end = match self.execute_run().await {
                Ok(end) => end,
                Err(Halt::Fenced) => {
                    tracing::warn!(run = %id, "ended or taken over by another process");
                    return;
                }
                Err(Halt::Lease) if self.is_paused() => return self.give_back().await,
                Err(Halt::Lease) => {
                    tracing::warn!(run = %id, "the run is given back");
                    self.give_back().await;
                    return;
                }
                Err(Halt::Store(error) | Halt::Read(error))
                    if matches!(error, StoreError::Replaced { .. }) =>
                {
                    return self.env.lease.note(&error);
                }
                // The store would have been asked again, had this host not given the run up.
                Err(Halt::Store(error)) if error.is_passing() => {
                    tracing::warn!(run = %id, %error, "not recorded; the run is given back");
                    return self.give_back().await;
                }
                Err(Halt::Read(error)) => {
                    tracing::warn!(run = %id, %error, "cannot be read; the run is given back");
                    return self.give_back_after(READ_PAUSE).await;
                }
                Err(Halt::Store(error)) => {
                    tracing::error!(run = %id, %error, "the journal cannot be written");
                    End::done(Vec::new(), Outcome::PersistFailed(error.to_string()))
                }
                Err(Halt::Inconsistent(detail)) => {
                    tracing::error!(run = %id, %detail, "the journal is inconsistent");
                    End::done(Vec::new(), Outcome::HostFailed(detail))
                }
                Err(Halt::Cycle) => {
                    End::done(Vec::new(), Outcome::HostFailed("a wait in a circle".to_owned()))
                }
            };
            match end {
                End::Blocked => return,
                End::Released => return self.give_back().await,
                End::Done { outcome: Outcome::Failed(failure), .. } if is_given_back(&failure) => {
                    return self.give_back().await;
                }
                End::Done { pending, outcome } => {
                    self.journal.end(&pending, &outcome, &self.env.closing).await;
                }
            }
        }
        self.run_finalizer().await;
    }

    /// Puts the run back where any host may take it up.
    pub(super) async fn give_back(&mut self) {
        self.give_back_after(Duration::ZERO).await;
    }

    /// The same, with a pause in which nobody takes it.
    async fn give_back_after(&mut self, pause: Duration) {
        let not_before = match pause.is_zero() {
            true => Timestamp(0),
            false => self.env.clock.now().plus(pause),
        };
        let ran_ms = self.ran_ms();
        let release = |run: &Run| decide::release(run, ran_ms, not_before);
        if let Err(error) = self.journal.commit(release).await {
            let id = self.journal.run().id();
            tracing::warn!(run = %id, %error, "cannot be given back; it is found by the sweep");
        }
    }

    async fn execute_run(&mut self) -> Result<End, Halt> {
        self.find_wall().await?;
        let mut tape = None;
        let state = &self.journal.run().state;
        // Before it began it did nothing, but may have been told something.
        if state.epoch > 1 || !state.inbox.is_empty() {
            self.read_all().await?;
            if self.journal.is_canceling() {
                self.live.request(StopCause::Canceled);
            }
        }
        if self.stays_paused().await? {
            return Ok(End::Released);
        }
        if self.journal.run().state.epoch > 1 {
            if let Some(end) = self.settle().await? {
                return Ok(end);
            }
            // The work keeps it too: what is recorded from here on continues it.
            tape = Some(self.work.tape.clone());
            if let Some(reason) = self.work.finalize {
                return self.last_word(reason, tape).await;
            }
        }
        self.carry_history().await?;
        self.turns(tape).await
    }

    /// Turn after turn; the first step may have been begun by another host.
    async fn turns(&mut self, mut tape: Option<Tape>) -> Result<End, Halt> {
        loop {
            if self.stays_paused().await? {
                return Ok(End::Released);
            }

            if self.is_journal_full() {
                return Ok(End::failed(self.journal_limit()));
            }
            if let Some(reason) = self.cap_before_step().await? {
                return self.finalize(Vec::new(), reason).await;
            }
            let step = self.step_with_retries(None, tape.take()).await?;
            let mut pending = step.pending;
            let plan = match step.outcome {
                Ok(plan) => plan,
                Err(Outcome::Exhausted(reason)) => return self.finalize(pending, reason).await,
                Err(outcome) => match self.skip_or_end(pending, outcome).await? {
                    Some(end) => return Ok(end),
                    None => continue,
                },
            };
            match plan.decision {
                Decision::FinalResponse(_) => {
                    return Ok(End::done(pending, Outcome::Answered(StopReason::FinalResponse)));
                }
                Decision::FinalToolResult(result) => {
                    return Ok(End::done(pending, step::tool_result_outcome(&result)));
                }
                Decision::Await(items) => {
                    let now = self.env.clock.now();
                    pending.extend(items.into_iter().map(|ask| {
                        let item = taskrun_journal::question::Item::asked(ask, now);
                        Event::Asked { item: Box::new(item) }
                    }));
                    self.write(pending).await?;
                }
                Decision::AwaitRuns(mut wait) => {
                    let call = wait.call.take().expect("a plan that was checked has one");
                    self.await_runs(pending, wait, call).await?;
                }
                Decision::ToolCalls(requests) => {
                    if let Some(reason) = self.cap_before_calls(&pending, &requests).await? {
                        calls::refuse_all(&mut pending, &requests);
                        return self.finalize(pending, reason).await;
                    }
                    self.note_children(&mut pending, &requests, plan.expected_children);
                    self.execute(pending, requests).await?;
                }
            }
            if let Some(end) = self.settle().await? {
                return Ok(end);
            }
        }
    }

    /// Whether the journal has as many bytes as it may. What is under way then comes to its end, and
    /// nothing more begins.
    fn is_journal_full(&self) -> bool {
        self.work.journal_bytes >= self.agent.limits.journal_bytes
    }

    fn journal_limit(&self) -> CallAbort {
        let limit = self.agent.limits.journal_bytes;
        CallAbort::Limit { what: "bytes of the run's journal".to_owned(), limit }
    }

    fn tool_calls_left(&self) -> Option<u32> {
        let used = self.journal.run().state.tool_calls;
        self.agent.limits.tool_calls.map(|cap| cap.saturating_sub(used))
    }

    /// Records events of the work, without those that somebody else made void in this moment. While
    /// the host stands still nothing begins: neither before it is on record nor after, should that
    /// have taken so long that another host may have taken the run.
    async fn write(&mut self, events: Vec<Event>) -> Result<(), Halt> {
        let begins = events.iter().any(is_effect);
        if begins {
            self.env.lease.pass(&self.live, &self.env.stalls).await?;
        }
        let written = self
            .journal
            .commit(|run| {
                events.iter().filter(|event| may_be_written(run, event)).cloned().collect()
            })
            .await?;
        self.take_in(&written);
        if begins {
            self.env.lease.pass(&self.live, &self.env.stalls).await?;
        }
        Ok(())
    }

    fn take_in(&mut self, written: &[Recorded]) {
        // What others wrote before it comes first.
        let meanwhile = self.journal.read_meanwhile();
        for recorded in meanwhile.iter().chain(written) {
            self.work.push_recorded(recorded);
        }
        if self.journal.is_canceling() {
            self.live.request(StopCause::Canceled);
        }
        if self.is_paused() {
            self.halted.notify_waiters();
        }
    }

    /// Reads the whole journal of a run that another host executed before.
    async fn read_all(&mut self) -> Result<(), Halt> {
        self.work = Work::new(&self.journal.run().spec);
        let (work, cut_pause) = (&mut self.work, &mut self.cut_pause);
        let see = |recorded: &Recorded| {
            work.push_recorded(recorded);
            if let Event::StepFailed { retry_after_ms, .. } = recorded.event {
                let pause = Duration::from_millis(retry_after_ms);
                *cut_pause = Some((recorded.at.plus(pause), pause));
            }
        };
        let last = self.journal.replay(see).await.map_err(Halt::Read)?;
        match self.journal.run().state.head {
            head if last < head => {
                Err(Halt::Inconsistent(format!("it ends at {last} and not at {head}")))
            }
            _ => Ok(()),
        }
    }

    /// Reads what others wrote meanwhile.
    async fn read_others(&mut self) -> Result<(), Halt> {
        self.journal.catch_up().await?;
        self.take_in(&[]);
        Ok(())
    }

    /// How long the run has been running, here and before.
    fn ran(&self) -> Duration {
        self.ran_before + self.env.clock.monotonic().saturating_sub(self.began)
    }

    fn ran_ms(&self) -> u64 {
        millis(self.ran())
    }

    /// What is left of the run's own time-out.
    fn time_left(&self) -> Option<Duration> {
        let timeout = Duration::from_millis(self.journal.run().spec.timeout_ms?);
        Some(timeout.saturating_sub(self.ran()))
    }

    fn context(&self, turn: u32) -> RunContext {
        let run = self.journal.run();
        let spec = &run.spec;
        RunContext {
            run_id: spec.id.to_string(),
            parent_run_id: spec.parent_run_id.as_ref().map(ToString::to_string),
            root_run_id: spec.root_run_id.to_string(),
            tenant: spec.tenant.clone(),
            session_id: run.execution().map_or_else(String::new, |e| e.child_session_id.clone()),
            parent_session_id: spec.parent_session_id.clone(),
            owner_user_id: spec.owner_user_id.clone(),
            app_name: spec.app_name.clone(),
            agent_name: spec.agent_name.clone(),
            turn,
            attempt: run.state.failed_attempts + 1,
            depth: spec.depth,
            parent_tool_call_id: spec.parent_tool_call_id.clone(),
            labels: spec.labels.clone(),
            envelope: spec.envelope.clone(),
        }
    }

    /// What a call, known by this name, may reach of the runs beneath this one.
    fn runs_access(&self, call: String) -> RunsAccess {
        let run = self.journal.run();
        let session_id = run.execution().map_or_else(String::new, |e| e.child_session_id.clone());
        let caller = Caller { spec: Arc::clone(&run.spec), session_id, call };
        RunsAccess { runs: Arc::clone(&self.env.runs), caller }
    }

    /// The facts that a call may reach. One that may change some is known by a name.
    fn memory_access(&self, call: Option<String>) -> MemoryAccess {
        let spec = &self.journal.run().spec;
        MemoryAccess {
            memory: Arc::clone(&self.env.memory),
            session: spec.fact_place(MemoryScope::Session),
            tenant: spec.fact_place(MemoryScope::Tenant),
            writer: call.map(|call| (spec.id.clone(), call)),
        }
    }

    /// The stop that somebody asked for while a call answered in its own way.
    fn stopped(&self) -> Option<CallAbort> {
        self.live.cause().map(|cause| CallAbort::Stopped { cause })
    }
}

/// Events with which something begins outside of the journal.
fn is_effect(event: &Event) -> bool {
    is_call(event) || matches!(event, Event::Asked { .. })
}

/// Events with which a tool call begins.
fn is_call(event: &Event) -> bool {
    matches!(event, Event::ToolCallScheduled { .. } | Event::ToolCallRepeated { .. })
}

/// Whether an event of the work still fits, whatever others wrote to the journal meanwhile: a
/// cancellation forbids effects, a pause puts calls off, and what somebody answered is not
/// answered again.
fn may_be_written(run: &Run, event: &Event) -> bool {
    if let Event::Answered { item, .. } = event {
        let open = run.state.awaits.iter().any(|one| one.id == *item && !one.answered);
        return open && run.status() == Status::Running;
    }
    if run.state.pause.is_some() && is_call(event) {
        return false;
    }
    !(is_effect(event) && run.status() == Status::Canceling)
}

/// Whether a run that was stopped so is to be continued by another host.
fn is_given_back(failure: &CallAbort) -> bool {
    matches!(failure, CallAbort::Stopped { cause: StopCause::HandOver | StopCause::LeaseLost })
}
