//! Waking deferred runs that are to be told of the outcome of another one.
//!
//! A deferred run looks at nothing. So whoever executed or ended the run that has ended wakes the one
//! that is told of it, and whoever executed the one that defers itself looks for what came in between.
//! Either may die before it does: then the run is told when its own wake-up comes.

use taskrun_journal::delivery::Delivery;
use taskrun_journal::ids::RunId;
use taskrun_journal::list::{ListFilter, PAGE_MAX, Scope};
use taskrun_journal::machine::decide;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::Status;
use taskrun_journal::store::{ReportQuery, StoreError};

use super::Controller;
use crate::driver::continued_runs;
use crate::error::ControllerError;

/// Most pending outcomes of a tree that are looked at.
const REPORTS_MAX: usize = 64;

impl Controller {
    /// Wakes the run that is to be told after one was executed or ended here: the run above it, or
    /// the one that continues that, if it has ended, or itself, if it is deferred.
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
            let told = match self.nearest_open(delivery).await? {
                Some(above) => Some(above),
                None => self.deferred_continuation(delivery).await?,
            };
            if let Some(told) = told {
                self.wake_for(told, &run).await?;
            }
            return Ok(());
        }
        if !may_defer || run.state.rounds.due.is_none() {
            return Ok(());
        }
        let continued = continued_runs(&**store, spec).await?;
        for root in std::iter::once(&spec.root_run_id).chain(&continued) {
            let tree = ReportQuery::Tree(root.clone());
            for report in store.reports(&tree, 0, REPORTS_MAX).await? {
                let Some(ended) = store.get(&report.run).await? else { continue };
                let Some(delivery) = &ended.spec.delivery else { continue };
                let is_told = match self.nearest_open(delivery).await? {
                    Some(above) => above.id() == run.id(),
                    None => first_above(delivery).is_some_and(|first| continued.contains(first)),
                };
                if is_told {
                    return self.wake_for(run, &ended).await;
                }
            }
        }
        Ok(())
    }

    /// The deferred run that is told of an outcome for which no run above is open, as it continues
    /// the first of those. No index of the store's port leads from a run to the one that continues
    /// it, so it is looked for among the blocked ones of its agent and owner.
    async fn deferred_continuation(&self, delivery: &Delivery) -> Result<Option<Run>, StoreError> {
        let store = &self.0.parts.store;
        let Some(first) = first_above(delivery) else { return Ok(None) };
        let first = store.get(first).await?.filter(|first| first.spec.autonomy.is_some());
        let Some(first) = first else { return Ok(None) };
        let of = &first.spec;
        let mut scope = Scope::tenant(&of.tenant).owner(&of.owner_user_id);
        scope.parent_app_name.clone_from(&of.parent_app_name);
        let filter = ListFilter {
            status: vec![Status::Blocked],
            agent_name: Some(of.agent_name.clone()),
            ..ListFilter::default()
        };
        let mut cursor = None;
        loop {
            let page = store.list(&scope, &filter, cursor.as_ref(), PAGE_MAX).await?;
            for run in page.runs.into_iter().filter(|run| run.state.rounds.due.is_some()) {
                if continued_runs(&**store, &run.spec).await?.contains(first.id()) {
                    return Ok(Some(run));
                }
            }
            cursor = page.next;
            if cursor.is_none() {
                return Ok(None);
            }
        }
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

/// The first run of the tree of one whose outcome comes to no conversation: another run may
/// continue that.
fn first_above(delivery: &Delivery) -> Option<&RunId> {
    delivery.above.last().filter(|_| delivery.conversation.is_none())
}
