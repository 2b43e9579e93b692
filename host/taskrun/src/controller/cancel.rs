//! Canceling runs, and everything beneath them.

use std::collections::HashSet;

use taskrun_journal::ids::RunId;
use taskrun_journal::list::TreeQuery;
use taskrun_journal::machine::decide;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::stop::StopCause;
use taskrun_journal::text::cut;

use super::{Client, Controller};
use crate::error::ControllerError;
use crate::scan::scan_tree;

/// Most bytes of the reason that comes with a cancellation; a longer one is cut.
pub const REASON_BYTES_MAX: usize = 4 << 10;

/// The effect of a cancellation.
#[derive(Clone, Debug)]
pub struct CancelOutcome {
    /// The run afterwards.
    pub run: Run,
    /// True if this request changed anything about that run.
    pub changed: bool,
    /// Runs beneath it that were canceled as well, the deepest first.
    pub descendants: Vec<RunId>,
}

impl Client {
    /// Asks a run and all runs beneath it to stop, children first, and returns when the requests
    /// are durable. A run that nobody executes ends at once; one that is executed stays
    /// `canceling` until its guest is gone, in whatever process that is.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`]; some
    /// of the runs may then be canceled, and the request can be repeated.
    pub async fn cancel(
        &self,
        id: &str,
        reason: Option<&str>,
    ) -> Result<CancelOutcome, ControllerError> {
        let run = self.get(id).await?;
        self.controller.cancel_tree(run, (StopReason::CanceledByOwner, None), reason).await
    }

    /// The same without the runs beneath it, which go on.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn cancel_alone(
        &self,
        id: &str,
        reason: Option<&str>,
    ) -> Result<CancelOutcome, ControllerError> {
        let run = self.get(id).await?;
        let reason = reason.map(|reason| cut(reason, REASON_BYTES_MAX));
        let (run, changed) =
            self.controller.cancel_run(run, (StopReason::CanceledByOwner, None), reason).await?;
        self.controller.wake_for_canceled(&run, changed).await;
        Ok(CancelOutcome { run, changed, descendants: Vec::new() })
    }
}

impl Controller {
    /// The same in the name of a person, or of the run that asks.
    pub(super) async fn cancel_tree(
        &self,
        run: Run,
        (by, from): (StopReason, Option<&RunId>),
        reason: Option<&str>,
    ) -> Result<CancelOutcome, ControllerError> {
        let reason = reason.map(|reason| cut(reason, REASON_BYTES_MAX));
        let mut seen = HashSet::new();
        let mut descendants = self.cancel_descendants(&run, from, &mut seen).await?;
        let (run, changed) = self.cancel_run(run, (by, from), reason).await?;
        // What it started between the two steps; now that its own cancellation is recorded it
        // starts nothing more.
        descendants.extend(self.cancel_descendants(&run, from, &mut seen).await?);
        // Those beneath it are reported to runs that are canceled themselves.
        self.wake_for_canceled(&run, changed).await;
        Ok(CancelOutcome { run, changed, descendants })
    }

    /// Wakes who is to be told of a run that nobody executed, which has ended by its cancellation.
    async fn wake_for_canceled(&self, run: &Run, changed: bool) {
        if changed && run.status().is_terminal() {
            self.wake_for_reports(&run.spec).await;
        }
    }

    /// Cancels what is open beneath a run, the deepest first, and gives those that were not on
    /// their way out already. Whatever a run starts before its own request is recorded is found by
    /// looking again; `seen` are those that need no second request.
    async fn cancel_descendants(
        &self,
        run: &Run,
        from: Option<&RunId>,
        seen: &mut HashSet<RunId>,
    ) -> Result<Vec<RunId>, ControllerError> {
        let mut done = Vec::new();
        loop {
            let mut open = self.unseen_descendants(&run.spec, seen).await?;
            if open.is_empty() {
                return Ok(done);
            }
            open.sort_by_key(|run| std::cmp::Reverse(run.spec.depth));
            for child in open {
                let id = child.id().clone();
                let (_, changed) =
                    self.cancel_run(child, (StopReason::CanceledByParent, from), None).await?;
                if changed {
                    done.push(id);
                }
            }
        }
    }

    /// The open runs beneath a run that were not seen before, parents first; they are seen then. What
    /// is done to all beneath a run is done until there are none: it takes time, in which those that it
    /// has not reached start others.
    pub(super) async fn unseen_descendants(
        &self,
        above: &RunSpec,
        seen: &mut HashSet<RunId>,
    ) -> Result<Vec<Run>, ControllerError> {
        let mut open = self.descendants(above).await?;
        open.retain(|run| !run.status().is_terminal() && seen.insert(run.id().clone()));
        Ok(open)
    }

    /// All runs beneath a run, parents first.
    pub(super) async fn descendants(&self, above: &RunSpec) -> Result<Vec<Run>, ControllerError> {
        let mut tree = Vec::new();
        scan_tree(&*self.0.parts.store, &TreeQuery::of(above), |run| tree.push(run)).await?;
        tree.sort_by_key(|run| run.spec.depth);
        let mut inside = HashSet::from([above.id.clone()]);
        let mut descendants = Vec::new();
        for one in tree {
            if one.spec.parent_run_id.as_ref().is_some_and(|parent| inside.contains(parent)) {
                inside.insert(one.id().clone());
                descendants.push(one);
            }
        }
        Ok(descendants)
    }

    pub(super) async fn cancel_run(
        &self,
        run: Run,
        (by, from): (StopReason, Option<&RunId>),
        reason: Option<&str>,
    ) -> Result<(Run, bool), ControllerError> {
        let decide = |run: &Run| Ok(decide::cancel_from(run, by, from, reason.map(str::to_owned)));
        let done = self.record(run, decide).await?;
        let changed = done.has_changed();
        let live = self.live().get(done.run.id()).cloned();
        if let Some(live) = live.filter(|_| changed) {
            live.stop(StopCause::Canceled);
        }
        if done.run.status() == Status::Finalizing {
            // Whoever holds the last slot may wait for it.
            self.0.finalizing.notify_one();
        }
        Ok((done.run, changed))
    }
}
