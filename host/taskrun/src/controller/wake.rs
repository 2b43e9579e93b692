//! Waking deferred runs that are to be told of the outcome of another one.
//!
//! A deferred run looks at nothing. So whoever executed or ended the run that has ended wakes the one
//! that is told of it, and whoever executed the one that defers itself looks for what came in between.
//! Either may die before it does: then the run is told when its own wake-up comes.

use taskrun_journal::delivery::Delivery;
use taskrun_journal::machine::decide;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{ReportQuery, StoreError};

use super::Controller;
use crate::error::ControllerError;

/// Most pending outcomes of a tree that are looked at.
const REPORTS_MAX: usize = 64;

impl Controller {
    /// Wakes who is to be told after a run was executed or ended here: the run above it, if it has
    /// ended, or itself, if it is deferred.
    pub(super) async fn wake_for_reports(&self, spec: &RunSpec) {
        let woken = match (&spec.delivery, &spec.autonomy) {
            (None, None) => return,
            (delivery, autonomy) => {
                self.wake_those_told(spec, delivery.as_ref(), autonomy.is_some()).await
            }
        };
        if let Err(error) = woken {
            tracing::warn!(run = %spec.id, %error, "who is to be told is not woken");
        }
    }

    async fn wake_those_told(
        &self,
        spec: &RunSpec,
        delivery: Option<&Delivery>,
        may_defer: bool,
    ) -> Result<(), ControllerError> {
        let store = &self.0.parts.store;
        let Some(run) = store.get(&spec.id).await? else { return Ok(()) };
        if let (Some(delivery), true) = (delivery, run.status().is_terminal()) {
            if let Some(above) = self.nearest_open(delivery).await? {
                self.wake_for(above, &run).await?;
            }
            return Ok(());
        }
        if !may_defer || run.state.rounds.due.is_none() {
            return Ok(());
        }
        let tree = ReportQuery::Tree(spec.root_run_id.clone());
        for report in store.reports(&tree, 0, REPORTS_MAX).await? {
            let Some(ended) = store.get(&report.run).await? else { continue };
            let Some(delivery) = &ended.spec.delivery else { continue };
            let above = self.nearest_open(delivery).await?;
            if above.is_some_and(|above| above.id() == run.id()) {
                return self.wake_for(run, &ended).await;
            }
        }
        Ok(())
    }

    /// The nearest run above one that has ended which has not.
    async fn nearest_open(&self, delivery: &Delivery) -> Result<Option<Run>, StoreError> {
        for above in &delivery.above {
            let found = self.0.parts.store.get(above).await?;
            if let Some(open) = found.filter(|above| !above.status().is_terminal()) {
                return Ok(Some(open));
            }
        }
        Ok(None)
    }

    /// Wakes a run, if it is deferred, as another one has ended.
    async fn wake_for(&self, run: Run, ended: &Run) -> Result<(), ControllerError> {
        if run.state.rounds.due.is_none() {
            return Ok(());
        }
        let text = format!("Run {} of agent {} has ended.", ended.id(), ended.spec.agent_name);
        // Whatever stands against it, such as a full inbox, leaves it to its own wake-up.
        let wake = |run: &Run| Ok(decide::wake(run, "host", &text).unwrap_or_default());
        self.record(run, wake).await.map(|_| ())
    }
}
