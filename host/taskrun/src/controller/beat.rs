//! Heartbeats: entries that wait are taken into batch runs, and end with them.
//!
//! The store keeps a batch and what it takes in one step, one open batch at a time of each beat
//! and one of each tick. So any number of hosts may tick, and may die on any line here.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use taskrun_journal::ending::Ending;
use taskrun_journal::event::EventRecord;
use taskrun_journal::hold::Hold;
use taskrun_journal::ids::RunId;
use taskrun_journal::list::Scope;
use taskrun_journal::machine::decide::EntryOutcome;
use taskrun_journal::machine::{self, decide};
use taskrun_journal::run::Run;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::store::{Admission, Append, BatchOutcome, NewBatch, NewRun, StoreError};
use taskrun_journal::time::{Timestamp, random_u64};
use taskrun_policy::Heartbeat;
use tokio_util::sync::CancellationToken;

use super::repeated::RepeatedWarning;
use super::{Client, Controller};
use crate::agents::Agent;
use crate::batch;
use crate::clock::time_comes;
use crate::error::{ControllerError, NotAnEntry};
use crate::spawn::SpawnRequest;

/// Most looks at entries that somebody changes in the same moment. After these they wait for the
/// next tick.
const LOOKS_MAX: u32 = 8;
/// Pause before an entry is taken up again whose batch cannot be read.
const SETTLE_RETRY: Duration = Duration::from_secs(1);

impl Client {
    /// Says that a batch run is done with one of its entries, and with what result: the entry is
    /// completed, and the batch goes on. Said again with the same result it changes nothing.
    ///
    /// # Errors
    /// [`ControllerError::Invalid`] for a result that is empty or has more than
    /// [`batch::ENTRY_RESULT_BYTES_MAX`] bytes, [`ControllerError::NotFound`] for batch and entry,
    /// also outside the scope, [`ControllerError::NotAnEntry`] if the batch does not work on this
    /// entry any more, or never did; [`ControllerError::Storage`].
    pub async fn complete_entry(
        &self,
        batch: &str,
        entry: &str,
        result: &str,
    ) -> Result<Run, ControllerError> {
        self.settle_one(batch, entry, EntryOutcome::Done(result.trim())).await
    }

    /// Says that a batch run could not do one of its entries, and why: the entry fails, and the
    /// batch goes on. Said again with the same reason it changes nothing.
    ///
    /// # Errors
    /// Those of [`Self::complete_entry`].
    pub async fn fail_entry(
        &self,
        batch: &str,
        entry: &str,
        reason: &str,
    ) -> Result<Run, ControllerError> {
        self.settle_one(batch, entry, EntryOutcome::Failed(reason.trim())).await
    }

    async fn settle_one(
        &self,
        batch: &str,
        entry: &str,
        outcome: EntryOutcome<'_>,
    ) -> Result<Run, ControllerError> {
        let (EntryOutcome::Done(result) | EntryOutcome::Failed(result)) = outcome;
        if result.is_empty() || result.len() > batch::ENTRY_RESULT_BYTES_MAX {
            let reason = format!("a result has 1 to {} bytes", batch::ENTRY_RESULT_BYTES_MAX);
            return Err(ControllerError::Invalid { field: "result", reason });
        }
        loop {
            let batch = self.get(batch).await?;
            let run = self.get(entry).await?;
            if was_said(&run, &batch, outcome) {
                return Ok(run);
            }
            may_acknowledge(&run, &batch)?;
            let epoch = run.state.epoch;
            let acknowledge = |run: &Run| match run.state.epoch == epoch {
                true => Ok(decide::acknowledge(run, batch.id(), outcome)),
                // Another process took it up to end it: the batch is to be looked at anew.
                false => Ok(Vec::new()),
            };
            let done = self.controller.record(run, acknowledge).await?;
            if done.has_changed() {
                return Ok(done.run);
            }
        }
    }
}

impl Controller {
    /// Lets the heart of an agent beat once, at whatever time: makes a batch run of the entries
    /// that wait for it, of each owner, session and application one, unless the last one there has
    /// not ended. Gives the batches that were made. Entries beyond
    /// [`super::Settings::tree_slots`] wait for the next beat.
    ///
    /// # Errors
    /// [`ControllerError::NotStarted`], [`ControllerError::Closed`], [`ControllerError::Invalid`]
    /// if there is no such agent or it has no heartbeat, [`ControllerError::Storage`]; batches may
    /// have been made then.
    pub async fn beat(&self, agent: &str) -> Result<Vec<Run>, ControllerError> {
        if !self.0.started.load(Ordering::Acquire) {
            return Err(ControllerError::NotStarted);
        }
        if self.0.closing.is_cancelled() {
            return Err(ControllerError::Closed);
        }
        let invalid = |what: &str| {
            let reason = format!("agent {agent:?} {what}");
            ControllerError::Invalid { field: "agent_name", reason }
        };
        let agents = self.agents();
        let known = agents.by_name.get(agent);
        let known = known.ok_or_else(|| invalid("is unknown"))?;
        let heartbeat = known.heartbeat.as_ref().ok_or_else(|| invalid("has no heartbeat"))?;
        // No tick of the clock has such a name.
        let tick = format!("by hand {:016x}", random_u64(&*self.0.parts.random));
        self.tick(known, heartbeat, &tick).await
    }

    /// Begins to tick for each agent that has a heartbeat, and ticks for those of the policy before
    /// no more.
    pub(super) fn begin_beating(&self) {
        let beating = self.0.closing.child_token();
        let mut before = self.0.beating.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *before, beating.clone()).cancel();
        drop(before);
        for agent in self.agents().by_name.values() {
            if let Some(heartbeat) = &agent.heartbeat {
                let (controller, agent) = (self.clone(), Arc::clone(agent));
                let beats = controller.beat_loop(agent, heartbeat.clone(), beating.clone());
                self.0.tasks.spawn(beats);
            }
        }
    }

    async fn beat_loop(self, agent: Arc<Agent>, heartbeat: Heartbeat, beating: CancellationToken) {
        let inner = Arc::clone(&self.0);
        let (clock, times) = (&inner.parts.clock, &heartbeat.times);
        let warning = RepeatedWarning::default();
        let missed = times.last_until(clock.now());
        if let Some(missed) = missed
            && !beating.is_cancelled()
        {
            self.make_up(&agent, &heartbeat, missed, &warning).await;
        }
        loop {
            let Some(next) = times.next_after(clock.now()) else { return };
            tokio::select! {
                biased;
                () = beating.cancelled() => return,
                () = time_comes(&**clock, next) => {}
            }
            // Later, if the machine stood still meanwhile; never earlier, whatever its clock does.
            let tick = times.last_until(clock.now()).map_or(next, |last| last.max(next));
            self.beat_at(&agent, &heartbeat, tick, &warning).await;
        }
    }

    /// Beats once for the times that no host was there for: where entries have waited since before
    /// the last of them, which that makes up for all of them.
    async fn make_up(
        &self,
        agent: &Agent,
        heartbeat: &Heartbeat,
        missed: Timestamp,
        warning: &RepeatedWarning,
    ) {
        let limit = self.entries_max();
        let waited = match self.0.parts.store.entries(&agent.name, limit).await {
            Ok(groups) => self.have_waited(&groups.concat(), missed).await,
            Err(error) => Err(error.into()),
        };
        match waited {
            Ok(true) => self.beat_at(agent, heartbeat, missed, warning).await,
            Ok(false) => {}
            Err(error) => self.tell_missed(agent, &error, warning),
        }
    }

    /// Tells that a heartbeat was missed. A fault that stays has each further one missed, too.
    fn tell_missed(&self, agent: &Agent, error: &ControllerError, warning: &RepeatedWarning) {
        const TEXT: &str = "a heartbeat was missed";
        match warning.told(self.0.parts.clock.monotonic()) {
            Some(left_out) => tracing::warn!(agent = agent.name, %error, left_out, "{TEXT}"),
            None => tracing::debug!(agent = agent.name, %error, "{TEXT}"),
        }
    }

    /// True if one of these entries was there before a time.
    async fn have_waited(&self, ids: &[RunId], time: Timestamp) -> Result<bool, ControllerError> {
        let waiting = self.waiting(ids).await?;
        Ok(waiting.iter().any(|run| run.spec.created_at < time))
    }

    async fn beat_at(
        &self,
        agent: &Agent,
        heartbeat: &Heartbeat,
        time: Timestamp,
        warning: &RepeatedWarning,
    ) {
        match self.tick(agent, heartbeat, &heartbeat.times.name(time)).await {
            Ok(made) => {
                for batch in made {
                    tracing::info!(agent = agent.name, run = %batch.id(), "heartbeat");
                }
            }
            Err(error) => self.tell_missed(agent, &error, warning),
        }
    }

    async fn tick(
        &self,
        agent: &Agent,
        heartbeat: &Heartbeat,
        tick: &str,
    ) -> Result<Vec<Run>, ControllerError> {
        let parts = &self.0.parts;
        let groups = parts.store.entries(&agent.name, self.entries_max()).await?;
        let mut made = Vec::new();
        for group in groups {
            made.extend(self.batch_of(heartbeat, &group, tick).await?);
        }
        Ok(made)
    }

    /// Most entries of a batch.
    fn entries_max(&self) -> usize {
        usize::try_from(self.0.parts.settings.tree_slots).unwrap_or(usize::MAX)
    }

    /// Makes the batch of one group, if there is still an entry and the beat is free.
    async fn batch_of(
        &self,
        heartbeat: &Heartbeat,
        group: &[RunId],
        tick: &str,
    ) -> Result<Option<Run>, ControllerError> {
        for _ in 0..LOOKS_MAX {
            let waiting = self.waiting(group).await?;
            let (entries, task) = batch::fill(heartbeat, waiting, self.entries_max());
            let Some(new) = self.new_batch(&entries, task, tick)? else { return Ok(None) };
            let run = new.run.run.clone();
            match self.0.parts.store.batch(new).await? {
                BatchOutcome::New => return Ok(Some(run)),
                BatchOutcome::Open(_) | BatchOutcome::Repeated(_) => return Ok(None),
                BatchOutcome::Moved => {}
            }
        }
        Ok(None)
    }

    /// Those of the entries that still wait. One that cannot be read keeps no other one waiting.
    async fn waiting(&self, ids: &[RunId]) -> Result<Vec<Run>, ControllerError> {
        let mut waiting = Vec::with_capacity(ids.len());
        for id in ids {
            match self.0.parts.store.get(id).await {
                Ok(found) => waiting.extend(found.filter(|run| run.state.hold == Hold::Beat)),
                Err(error @ StoreError::Corrupt { .. }) => {
                    tracing::error!(run = %id, %error, "an entry is left out");
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(waiting)
    }

    /// A batch run in the name of those who made the entries; `None` without any.
    fn new_batch(
        &self,
        entries: &[Run],
        task: String,
        tick: &str,
    ) -> Result<Option<NewBatch>, ControllerError> {
        let Some(first) = entries.first().map(|entry| &entry.spec) else { return Ok(None) };
        let now = self.0.parts.clock.now();
        let (name, value) = batch::LABEL;
        let request = SpawnRequest {
            owner_user_id: first.owner_user_id.clone(),
            parent_session_id: first.parent_session_id.clone(),
            parent_app_name: first.parent_app_name.clone(),
            app_name: first.app_name.clone(),
            agent_name: first.agent_name.clone(),
            task,
            priority: first.priority,
            labels: [(name.to_owned(), value.to_owned())].into(),
            ..SpawnRequest::default()
        };
        let mut spec = self.accept(&Scope::tenant(&first.tenant), &request, now)?;
        spec.entries = entries.iter().map(|entry| entry.id().clone()).collect();
        // It works in the place of its entries: beneath whichever run left them, within the rules,
        // the budgets and the tree of that, and whoever answers those answers it.
        spec.parent_run_id.clone_from(&first.parent_run_id);
        spec.root_session_id.clone_from(&first.root_session_id);
        spec.narrow = first.narrow.clone();
        spec.ancestors.clone_from(&first.ancestors);
        spec.answers = first.answers.clone();
        spec.hops = entries.iter().map(|entry| entry.spec.hops).max().unwrap_or_default();
        if first.parent_run_id.is_some() {
            spec.root_run_id = first.root_run_id.clone();
            spec.depth = first.depth;
            spec.tree = first.tree;
        }
        self.open_channels(&mut spec, &[])?;
        let (run, queued) = self.begun(spec);
        let taken = entries.iter().filter_map(|entry| self.take(entry, run.id(), now));
        Ok(Some(NewBatch {
            entries: taken.collect::<Result<_, _>>()?,
            run: NewRun {
                run,
                events: vec![queued],
                idempotency: Some(batch::beat_of(first, tick)),
                // Its entries are others each time.
                task: None,
                artifacts: Vec::new(),
                admission: Admission::UNBOUNDED,
            },
        }))
    }

    fn take(
        &self,
        entry: &Run,
        batch: &RunId,
        now: Timestamp,
    ) -> Option<Result<Append, ControllerError>> {
        let event = decide::take(entry, batch, &self.0.host, now)?;
        let id = random_u64(&*self.0.parts.random);
        let recorded = EventRecord { seq: entry.state.head + 1, id, at: now, event };
        let append = |state| Append {
            run: Arc::new(Run { spec: Arc::clone(&entry.spec), state }),
            epoch: entry.state.epoch,
            expected_head: entry.state.head,
            events: vec![recorded.clone()].into(),
            artifacts: Vec::new(),
            reports: None,
        };
        let applied = machine::apply(entry.state.clone(), &recorded).map(append);
        Some(applied.map_err(|error| ControllerError::Inconsistent {
            id: entry.id().clone(),
            detail: error.to_string(),
        }))
    }

    /// Ends an entry that this host took up as its batch had ended; gives what is left to do of
    /// it, which is its finalizer.
    pub(super) async fn settle_entry(&self, entry: Run, batch: &RunId) -> Option<Run> {
        let parts = &self.0.parts;
        let mut journal = self.journal(entry);
        match parts.store.get(batch).await {
            Ok(batch) => {
                let decide = |run: &Run| decide::end_with_batch(run, batch.as_ref());
                journal.persist(decide, &self.0.closing).await;
            }
            Err(error) => {
                tracing::warn!(run = %journal.run().id(), %error, "its batch cannot be read");
            }
        }
        match journal.run().status() {
            Status::Finalizing => return Some(journal.run().clone()),
            // It has not ended yet as far as can be told: looked at again later.
            Status::Running => {
                let later = parts.clock.now().plus(SETTLE_RETRY);
                let decide = |run: &Run| decide::release(run, run.state.ran_ms, later);
                journal.persist(decide, &self.0.closing).await;
            }
            Status::Queued
            | Status::Blocked
            | Status::Canceling
            | Status::Completed
            | Status::Failed
            | Status::Canceled => {}
        }
        None
    }
}

/// True if the same was said of the entry before, as by a tool call that is repeated.
fn was_said(entry: &Run, batch: &Run, outcome: EntryOutcome<'_>) -> bool {
    let is_its = entry.execution().is_some_and(|e| e.batch.as_ref() == Some(batch.id()));
    let result = match outcome {
        EntryOutcome::Done(result) => result,
        EntryOutcome::Failed(reason) => {
            let failed = Ending::failed(StopReason::AgentError, reason);
            return is_its && entry.ending() == Some(&failed);
        }
    };
    let mut reply = taskrun_journal::reply::Reply::default();
    reply.count(&decide::said(result));
    let is_done = entry.ending().is_some_and(|ending| ending.stop_reason == StopReason::Done);
    is_its && is_done && entry.state.reply == reply
}

fn may_acknowledge(entry: &Run, batch: &Run) -> Result<(), ControllerError> {
    let refused = |why| Err(ControllerError::NotAnEntry { id: entry.id().clone(), why });
    if !batch.spec.entries.contains(entry.id()) {
        return refused(NotAnEntry::OfThisBatch);
    }
    match batch.status() {
        Status::Running | Status::Blocked => {}
        Status::Queued => return refused(NotAnEntry::BatchNotBegun),
        Status::Canceling
        | Status::Finalizing
        | Status::Completed
        | Status::Failed
        | Status::Canceled => return refused(NotAnEntry::BatchEnded),
    }
    match entry.status() {
        Status::Running => Ok(()),
        Status::Queued
        | Status::Blocked
        | Status::Canceling
        | Status::Finalizing
        | Status::Completed
        | Status::Failed
        | Status::Canceled => refused(NotAnEntry::Ended),
    }
}
