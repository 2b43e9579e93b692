//! The journal of the run as its driver writes it, with what follows from it for the work: the one
//! place that records, and the one that says whether the run goes on.
//!
//! It knows no planner, no tool and no policy.

mod attend;
mod gathering;
#[cfg(test)]
mod tests;
mod time;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::artifact::Artifact;
use taskrun_journal::delivery::ReportsTaken;
use taskrun_journal::event::{Event, EventRecord, JournalPart};
use taskrun_journal::ids::RunId;
use taskrun_journal::machine::decide::{self, Outcome};
use taskrun_journal::plan::TerminationReason;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_journal::time::Timestamp;
use tokio::sync::Notify;

use super::conversation::Excerpt;
use super::journal::Journal;
use super::live::Live;
use super::parts::{Env, Parts};
use super::stop::{Halt, Next, Stop};
use super::work::{Work, fold};
use crate::ports::planner::ConversationView;
use crate::scan::scan;
use crate::scope::{CallScope, JournalRoom, Shortage};

/// Journal, calls under way and work of a run.
pub(super) struct Recorder {
    env: Arc<Env>,
    journal: Journal,
    live: Arc<Live>,
    work: Work,
    /// The time for which calls may go on that were asked to stop.
    grace: Duration,
    /// Most bytes of the journal.
    journal_bytes: u64,
    /// The time that the run may work in all.
    wall: Option<Duration>,
    /// The time of one round.
    round: Option<Duration>,
    /// When this host took the run, on the clock's own time, and how long it had run before.
    began: Duration,
    ran_before: Duration,
    /// When the pause after the last failed attempt is over, and how long it was, where another
    /// host recorded it.
    cut_pause: Option<(Timestamp, Duration)>,
    /// See [`Self::continued`].
    continued: Option<Vec<RunId>>,
    /// The limit of which the last step of this host had too little left for a question to a model.
    pub(super) shortage: Option<Shortage>,
    /// Calls under way, whose events are to be written.
    scopes: Vec<Arc<CallScope>>,
    wake: Arc<Notify>,
    urgent: Arc<Notify>,
    /// Told when the run was paused, so that nobody sleeps over it.
    halted: Arc<Notify>,
}

impl Recorder {
    pub(super) fn new(parts: &Parts, run: Run, live: Arc<Live>) -> Self {
        let env = Arc::clone(&parts.env);
        let work = Work::new(&run.spec, run.pin());
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
            journal,
            live,
            work,
            grace: parts.agent.limits.grace,
            journal_bytes: parts.agent.limits.journal_bytes,
            wall: parts.agent.budget.wall,
            round: parts.agent.budget.round,
            began,
            ran_before,
            cut_pause: None,
            continued: None,
            shortage: None,
            scopes: Vec::new(),
            wake: Arc::default(),
            urgent: Arc::default(),
            halted: Arc::default(),
        }
    }

    /// That of a run whose journal was folded before, and in which nothing is written.
    pub(super) fn over(parts: &Parts, run: Run, live: Arc<Live>, work: Work) -> Self {
        Self { work, ..Self::new(parts, run, live) }
    }

    /// The work, for whoever lent it.
    pub(super) fn into_work(self) -> Work {
        self.work
    }

    /// The run after everything that was written or read here.
    pub(super) fn run(&self) -> &Run {
        self.journal.run()
    }

    /// The same, to look at beside what is written meanwhile.
    pub(super) fn shared_run(&self) -> Arc<Run> {
        self.journal.shared_run()
    }

    /// Has artifacts kept with the run by the next write, whose events refer to them.
    pub(super) fn keep(&mut self, artifacts: impl IntoIterator<Item = Artifact>) {
        self.journal.keep(artifacts);
    }

    /// The work as the journal has it.
    pub(super) fn work(&self) -> &Work {
        &self.work
    }

    /// The conversation as a planner is given it: [`Work::excerpt`].
    pub(super) fn excerpt(
        &mut self,
        max: usize,
        model: (Option<&str>, Option<u32>),
        view: ConversationView,
    ) -> Option<Excerpt> {
        self.work.excerpt(max, model, view)
    }

    /// Goes on with the engines of this host, which may be behind the rules already.
    pub(super) fn guard(&mut self, is_behind: bool) {
        self.work.guard(is_behind);
    }

    /// The runs that it continues, as long as there may be outcomes beneath them of which it is to
    /// be told; `None` before the first look.
    pub(super) fn continued(&mut self) -> &mut Option<Vec<RunId>> {
        &mut self.continued
    }

    /// The calls under way.
    pub(super) fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// Notified by calls that have something to record.
    pub(super) fn wake(&self) -> Arc<Notify> {
        Arc::clone(&self.wake)
    }

    /// Room in the journal for what a plan step does.
    pub(super) fn room(&self) -> JournalRoom {
        JournalRoom {
            urgent: Arc::clone(&self.urgent),
            bytes: self.journal_bytes.saturating_sub(self.work.journal_bytes),
        }
    }

    /// Lets the run work for at most so long in all.
    pub(super) fn bound_time(&mut self, wall: Option<Duration>) {
        self.wall = wall;
    }

    /// Records from now on what a call reports.
    pub(super) fn enter(&mut self, scope: &Arc<CallScope>) {
        self.scopes.push(Arc::clone(scope));
    }

    /// Does not any more: the call has ended.
    pub(super) fn leave(&mut self, scope: &Arc<CallScope>) {
        self.scopes.retain(|one| !Arc::ptr_eq(one, scope));
    }

    /// Goes on with what is next, unless something forbids it. A pause whose time is over is ended
    /// first.
    ///
    /// # Errors
    /// [`Halt::Stopped`] with the gravest reason; those of [`Self::record`].
    pub(super) async fn go_on(&mut self, next: Next) -> Result<(), Halt> {
        let now = self.env.clock.now();
        let over = |run: &Run| decide::over(run, now);
        if !over(self.run()).is_empty() {
            self.commit(over).await?;
        }
        match self.stop(next) {
            Some(stop) => Err(stop.into()),
            None => Ok(()),
        }
    }

    /// The gravest reason that forbids what is next, as far as is known here.
    pub(super) fn stop(&self, next: Next) -> Option<Stop> {
        let timed_out = self.is_timed_out();
        let reasons = [
            self.live.cause().map(Stop::Asked),
            self.env.draining.is_cancelled().then_some(Stop::HandOver),
            self.run().state.pause.is_some().then_some(Stop::Paused),
            timed_out.then_some(Stop::TimedOut),
            (self.work.journal_bytes >= self.journal_bytes).then_some(Stop::JournalFull),
            self.is_out_of_time().then_some(Stop::Limit(TerminationReason::TimeBudget)),
        ];
        reasons.into_iter().flatten().find(|stop| stop.forbids(next))
    }

    /// The stop for which the work was asked to end, for a call that answered in its own way.
    pub(super) fn asked(&self) -> Option<CallAbort> {
        self.live.cause().map(|cause| CallAbort::Stopped { cause })
    }

    /// The failure of a run whose journal is full.
    pub(super) fn journal_limit(&self) -> CallAbort {
        let limit = self.journal_bytes;
        CallAbort::Limit { what: "bytes of the run's journal".to_owned(), limit }
    }

    /// Records events of the work, without those that somebody else made void in this moment. While
    /// the host stands still nothing begins: neither before it is on record nor after, should that
    /// have taken so long that another host may have taken the run.
    pub(super) async fn record(&mut self, events: Vec<Event>) -> Result<(), Halt> {
        self.record_awaited(events, &[]).await
    }

    /// The same, where some of the events are results of waits for these runs, which have ended.
    pub(super) async fn record_awaited(
        &mut self,
        events: Vec<Event>,
        awaited: &[RunId],
    ) -> Result<(), Halt> {
        let begins = events.iter().any(is_effect);
        if begins {
            self.stand().await?;
        }
        let written = self.journal.add(events, may_be_written, awaited).await?;
        self.take_in(&written);
        if begins {
            self.stand().await?;
        }
        Ok(())
    }

    /// Records that the run is told of the ends of others. False if one of the reports is gone.
    pub(super) async fn report(&mut self, runs: Vec<RunId>, text: String) -> Result<bool, Halt> {
        let is_told = |run: &Run| run.status() == Status::Running && run.state.pause.is_none();
        let decide = |run: &Run| match is_told(run) {
            true => {
                let event = Event::Reported { runs: runs.clone(), text: text.clone() };
                (vec![event], Some(ReportsTaken::Told(runs.clone())))
            }
            false => (Vec::new(), None),
        };
        let Some(written) = self.journal.commit_reports(decide).await? else { return Ok(false) };
        self.take_in(&written);
        Ok(true)
    }

    /// Waits while the host stands still.
    ///
    /// # Errors
    /// [`Stop::Lease`] if the host gives the run up meanwhile.
    pub(super) async fn stand(&self) -> Result<(), Halt> {
        Ok(self.env.lease.pass(&self.live, &self.env.stalls).await?)
    }

    /// Records what `decide` says of the run as it stands, and says whether that was anything.
    pub(super) async fn commit(
        &mut self,
        decide: impl FnMut(&Run) -> Vec<Event> + Send,
    ) -> Result<bool, Halt> {
        let written = self.journal.commit(decide).await?;
        self.take_in(&written);
        Ok(!written.is_empty())
    }

    fn take_in(&mut self, written: &JournalPart) {
        // What others wrote before it comes first.
        let meanwhile = self.journal.read_meanwhile();
        meanwhile.iter().for_each(|recorded| self.work.push_recorded(recorded));
        for (recorded, json) in written.with_json() {
            self.work.push_with_bytes(recorded, json.len() as u64);
        }
        self.heed_cancellation();
        if self.run().state.pause.is_some() {
            self.halted.notify_waiters();
        }
    }

    fn heed_cancellation(&self) {
        if self.run().status() == Status::Canceling {
            self.live.stop(StopCause::Canceled);
        }
    }

    /// Makes what the run was told a part of the conversation. To be done between two steps and
    /// not before one that runs again, which is to be shown what it was shown before.
    pub(super) async fn show_inbox(&mut self) -> Result<(), Halt> {
        let shown = |run: &Run| {
            let messages = run.state.inbox.messages;
            match run.status() == Status::Running && messages > 0 {
                true => vec![Event::InboxShown { messages }],
                false => Vec::new(),
            }
        };
        self.commit(shown).await?;
        Ok(())
    }

    /// Has the fold of the journal kept with the last of these events, which ends a round, where it is
    /// time for that.
    pub(super) fn keep_fold(&mut self, events: &mut [Event]) {
        let Some((fold, artifact)) = fold::after(&self.work, self.run(), events) else { return };
        if let Some(Event::RoundEnded { checkpoint, .. }) = events.last_mut() {
            checkpoint.fold = Some(fold);
            self.keep([artifact]);
        }
    }

    /// Reads the journal of a run that another host executed before: the whole, or what follows on the
    /// last fold of it that is kept.
    pub(super) async fn read_all(&mut self) -> Result<(), Halt> {
        let after = match fold::kept(&self.journal).await.map_err(Halt::Read)? {
            Some((work, after)) => {
                self.work = work;
                after
            }
            None => {
                self.work = self.carried_work().await?;
                0
            }
        };
        let (work, cut_pause) = (&mut self.work, &mut self.cut_pause);
        let see = |recorded: &EventRecord| {
            work.push_recorded(recorded);
            if let Event::StepFailed { retry_after_ms, .. } = recorded.event {
                let pause = Duration::from_millis(retry_after_ms);
                *cut_pause = Some((recorded.at.plus(pause), pause));
            }
        };
        let last = self.journal.replay(after, see).await.map_err(Halt::Read)?;
        let head = self.run().state.head;
        if last < head {
            return Err(Halt::Inconsistent(format!("it ends at {last} and not at {head}")));
        }
        self.heed_cancellation();
        Ok(())
    }

    /// The work before anything that this run did: that of the runs which it continues.
    async fn carried_work(&self) -> Result<Work, Halt> {
        let (store, run) = (&*self.env.store, self.journal.run());
        let (mut chain, mut next) = (vec![run.clone()], run.spec.continues.clone());
        while let Some(continued) = next {
            // One that was removed since is not told of.
            let Some(before) = store.get(&continued.run).await.map_err(Halt::Read)? else { break };
            next = before.spec.continues.clone();
            chain.push(before);
        }
        let mut chain = chain.iter().rev();
        let first = chain.next().unwrap_or(run);
        let (mut work, mut before) = (Work::new(&first.spec, first.pin()), first);
        for run in chain {
            let known = (0, before.state.head);
            scan(store, before.id(), known, |recorded| {
                work.push_recorded(&recorded);
                ControlFlow::Continue(())
            })
            .await
            .map_err(Halt::Read)?;
            work.carry_on(&run.spec, run.pin());
            before = run;
        }
        Ok(work)
    }

    /// Reads the events that others wrote meanwhile.
    pub(super) async fn catch_up(&mut self) -> Result<(), Halt> {
        self.journal.catch_up().await?;
        self.take_in(&JournalPart::default());
        Ok(())
    }

    /// Records the end of the run, and goes on trying while the store refuses.
    pub(super) async fn end(&mut self, pending: &[Event], outcome: &Outcome) {
        self.journal.end(pending, outcome, &self.env.closing).await;
    }

    /// Records what `decide` says, like [`Self::end`].
    pub(super) async fn persist(&mut self, decide: impl FnMut(&Run) -> Vec<Event> + Send) {
        self.journal.persist(decide, &self.env.closing).await;
    }

    /// Puts the run back where any host may take it up.
    pub(super) async fn give_back(&mut self) {
        self.give_back_after(Duration::ZERO).await;
    }

    /// The same, with a pause in which nobody takes it.
    pub(super) async fn give_back_after(&mut self, pause: Duration) {
        let not_before = match pause.is_zero() {
            true => Timestamp(0),
            false => self.env.clock.now().plus(pause),
        };
        let ran_ms = self.ran_ms();
        let release = |run: &Run| decide::release(run, ran_ms, not_before);
        if let Err(error) = self.journal.commit(release).await {
            let id = self.run().id();
            tracing::warn!(run = %id, %error, "cannot be given back; it is found by the sweep");
        }
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

/// True if an event of the work still fits, whatever others wrote to the journal meanwhile: a
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
