//! Reports of outcomes for people: which there are, and dead letters that are tried again.

use taskrun_journal::delivery::{Report, ReportState};
use taskrun_journal::list::PAGE_MAX;
use taskrun_journal::store::{ReportChange, ReportQuery};

use super::Client;
use crate::error::ControllerError;

impl Client {
    /// The reports at some stages of the runs that the caller sees, at most [`PAGE_MAX`], after a
    /// place in the order in which the runs ended; 0 is the beginning.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn reports(
        &self,
        states: &[ReportState],
        after: u64,
        limit: usize,
    ) -> Result<Vec<Report>, ControllerError> {
        let query = ReportQuery::Scope { scope: self.scope().clone(), states: states.to_vec() };
        Ok(self.controller.0.parts.store.reports(&query, after, limit.min(PAGE_MAX)).await?)
    }

    /// The report of a run; `None` if nobody is told of its outcome.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn report(&self, id: &str) -> Result<Option<Report>, ControllerError> {
        let run = self.get(id).await?;
        let query = ReportQuery::Run(run.id().clone());
        Ok(self.controller.0.parts.store.reports(&query, 0, 1).await?.pop())
    }

    /// The first report that is due, now or later, of the runs that the caller sees.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn due_report(&self) -> Result<Option<Report>, ControllerError> {
        let mut after = 0;
        loop {
            let store = &self.controller.0.parts.store;
            let page = store.reports(&ReportQuery::Due, after, PAGE_MAX).await?;
            let Some(last) = page.last() else { return Ok(None) };
            after = last.place;
            for report in page {
                let run = store.get(&report.run).await?;
                if run.is_some_and(|run| self.scope().admits(&run)) {
                    return Ok(Some(report));
                }
            }
        }
    }

    /// Changes the report of a run. False if there is none, or none to which that applies.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn change_report(
        &self,
        id: &str,
        change: ReportChange,
    ) -> Result<bool, ControllerError> {
        let run = self.get(id).await?;
        let has_changed = self.controller.0.parts.store.change_report(run.id(), change).await?;
        self.controller.0.nudging.notify_one();
        Ok(has_changed)
    }
}
