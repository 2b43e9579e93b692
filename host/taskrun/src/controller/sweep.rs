//! Looking after what nobody looks after: runs of dead hosts, runs of this host that it lost from
//! sight, cancellations that nobody heard, and this host's own lease.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use taskrun_journal::hold::Hold;
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::list::PAGE_MAX;
use taskrun_journal::machine::decide;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::stop::StopCause;
use taskrun_journal::store::{BEATS_PER_LEASE, PresentHost};
use tokio::time::Instant;

use super::Controller;
use crate::driver::Live;
use crate::error::ControllerError;

/// A run whose guest is not gone so long after its cancellation is taken from its host, which
/// hangs: the longest grace, and what it takes to notice.
const CANCELING_MAX: Duration = Duration::from_secs(120);

impl Controller {
    /// Frees the runs that hosts left behind when they died, and says which. They are wanted
    /// again, or ended where they are not to be continued.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn sweep(&self) -> Result<Vec<RunId>, ControllerError> {
        let mut freed = Vec::new();
        loop {
            let (some, more) = self.sweep_some().await?;
            freed.extend(some);
            if !more {
                return Ok(freed);
            }
        }
    }

    /// The same for at most [`PAGE_MAX`] of them; says also whether there may be more.
    pub(super) async fn sweep_some(&self) -> Result<(Vec<RunId>, bool), ControllerError> {
        let orphans = self.0.parts.hosts.orphans(PAGE_MAX).await?;
        let full = orphans.len() == PAGE_MAX;
        // All at the same time: the store writes together what waits together.
        let freed = try_join_all(orphans.into_iter().map(|run| async {
            let id = run.id().clone();
            Ok::<_, ControllerError>(self.free(run).await?.then_some(id))
        }));
        let freed: Vec<RunId> = freed.await?.into_iter().flatten().collect();
        // A page of runs that cannot be freed would come again for ever.
        let more = full && !freed.is_empty();
        Ok((freed, more))
    }

    /// Takes a run from the host that holds it; says whether it was this call that did.
    async fn free(&self, run: Run) -> Result<bool, ControllerError> {
        let (epoch, now) = (run.state.epoch, self.0.parts.clock.now());
        let heard = match &run.state.hold {
            Hold::Host { host } => self.0.parts.hosts.heard(host).await?,
            Hold::Nobody | Hold::Beat | Hold::Wanted { .. } | Hold::Runs { .. } => None,
        };
        // Another process may be quicker; whoever has the run then is not the one that died.
        let lose = |run: &Run| match run.state.epoch == epoch {
            true => Ok(decide::lose(run, now, heard)),
            false => Ok(Vec::new()),
        };
        match self.record(run, lose).await {
            Ok(done) => {
                if done.has_changed() && done.run.status().is_terminal() {
                    self.wake_for_reports(&done.run.spec).await;
                }
                Ok(done.has_changed())
            }
            // It was removed just now.
            Err(ControllerError::NotFound { .. }) => Ok(false),
            Err(error @ ControllerError::Inconsistent { .. }) => {
                tracing::error!(%error, "a run cannot be freed");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Sweeps again and again, for the first time at once or after the usual pause.
    pub(super) async fn sweep_loop(self, mut at_once: bool) {
        let inner = Arc::clone(&self.0);
        let every = inner.parts.settings.lease / BEATS_PER_LEASE;
        let mut unseen = HashSet::new();
        loop {
            // Real time: the life of hosts is measured in it, whatever clock the runs see.
            let pause = if std::mem::take(&mut at_once) { Duration::ZERO } else { every };
            tokio::select! {
                biased;
                () = inner.closing.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            // A host that is not heard cannot write down what it finds.
            if !inner.lease.is_fresh() {
                continue;
            }
            self.list_again().await;
            match self.sweep().await {
                Ok(freed) => {
                    for id in freed {
                        tracing::warn!(run = %id, "freed: its host died");
                    }
                }
                Err(error) => {
                    self.note(&error);
                    tracing::warn!(%error, "cannot look for runs of dead hosts");
                }
            }
            match self.look_after_own(&unseen).await {
                Ok(found) => unseen = found,
                Err(error) => tracing::warn!(%error, "cannot look after the runs of this host"),
            }
            if let Err(error) = self.end_deaf().await {
                tracing::warn!(%error, "cannot look for cancellations that nobody heard");
            }
        }
    }

    /// Passes on cancellations that came from elsewhere, and frees runs that the store says this
    /// host holds and nobody here executes: a claim whose answer was lost leaves such a run, and a
    /// driver that gave up. One that was unseen twice since it was claimed is meant: the first time it
    /// may just have been claimed, and it may have ended since the store said so. Gives those that are
    /// unseen now, each with its epoch.
    async fn look_after_own(
        &self,
        unseen: &HashSet<(RunId, u64)>,
    ) -> Result<HashSet<(RunId, u64)>, ControllerError> {
        let mut found = HashSet::new();
        for run in self.held_by(&self.0.host).await? {
            let live = self.live().get(run.id()).cloned();
            match live {
                Some(live) if run.status() == Status::Canceling => {
                    live.stop(StopCause::Canceled);
                }
                Some(_) => {}
                None => {
                    let known = (run.id().clone(), run.state.epoch);
                    if !unseen.contains(&known) {
                        found.insert(known);
                        continue;
                    }
                    // A claim whose answer is late stands in the store before its run is listed
                    // here: while it is under way nothing can be said.
                    let _no_claim = self.0.claiming.write().await;
                    let is_listed = self.live().contains_key(run.id());
                    if !is_listed && self.free(run).await? {
                        tracing::warn!(run = %known.0, "freed: nobody here executes it");
                    }
                }
            }
        }
        Ok(found)
    }

    /// Ends canceled runs whose host lives, or is leaving, and does nothing about them. One that is
    /// silent may stand still as a whole: the sweep finds out whether it is dead.
    async fn end_deaf(&self) -> Result<(), ControllerError> {
        let now = self.0.parts.clock.now();
        for PresentHost { host, silence } in self.0.parts.hosts.present_hosts().await? {
            if host.id == self.0.host || silence.is_some() {
                continue;
            }
            for run in self.held_by(&host.id).await? {
                let since = now.since(run.state.updated_at);
                if run.status() == Status::Canceling && since > CANCELING_MAX {
                    tracing::warn!(run = %run.id(), host = %host.id, "ended: its host hangs");
                    self.free(run).await?;
                }
            }
        }
        Ok(())
    }

    async fn held_by(&self, host: &HostId) -> Result<Vec<Run>, ControllerError> {
        let mut all: Vec<Run> = Vec::new();
        loop {
            let after = all.last().map(|run| run.id().clone());
            let page = self.0.parts.hosts.held(host, after.as_ref(), PAGE_MAX).await?;
            let last = page.len() < PAGE_MAX;
            all.extend(page);
            if last {
                return Ok(all);
            }
        }
    }

    /// Lets everything that is executed here stand still when the lease is nearly over, as another
    /// host may soon begin to do the same; and go on when the host is heard again, without the runs
    /// that another one took.
    pub(super) async fn lease_loop(self) {
        let inner = Arc::clone(&self.0);
        let lease = Arc::clone(&inner.lease);
        loop {
            let before = Instant::now();
            tokio::select! {
                biased;
                () = inner.closing.cancelled(), if !lease.stands() => return,
                () = tokio::time::sleep(lease.look_every()) => {}
            }
            // What stands still when the host is closed may go on as long as it is waited for.
            if inner.closing.is_cancelled() && self.executing() == 0 {
                return;
            }
            // A process that stood still as a whole may have been heard again before it looks here.
            let stood = before.elapsed() >= lease.nearly_over();
            if !lease.is_fresh() {
                let runs = self.executing();
                let begins = lease.stand();
                self.each_live(|live| live.hold(true));
                if begins && runs > 0 {
                    tracing::error!(runs, "no heartbeat was written; all stand still");
                }
                continue;
            }
            if !stood && !lease.stands() {
                continue;
            }
            match self.end_lost().await {
                Ok(lost) => {
                    lease.go_on();
                    self.each_live(|live| live.hold(false));
                    let runs = self.executing();
                    tracing::warn!(runs, lost, "heard again; what is still this host's goes on");
                }
                Err(error) => {
                    self.note(&error);
                    tracing::warn!(%error, "cannot look which runs are still this host's");
                }
            }
        }
    }

    /// Ends the guests of the runs that this host does not hold any more; says how many these are.
    async fn end_lost(&self) -> Result<usize, ControllerError> {
        // Before it is read what is held: what is claimed meanwhile is in neither list.
        let live: Vec<(RunId, Arc<Live>)> =
            self.live().iter().map(|(id, live)| (id.clone(), Arc::clone(live))).collect();
        let held = self.held_by(&self.0.host).await?;
        let held: HashSet<&RunId> = held.iter().map(Run::id).collect();
        let lost: Vec<_> = live.iter().filter(|(id, _)| !held.contains(id)).collect();
        for (id, live) in &lost {
            tracing::warn!(run = %id, "another process took it, or ended it");
            live.stop(StopCause::LeaseLost);
            live.force();
        }
        Ok(lost.len())
    }
}
