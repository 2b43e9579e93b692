//! The progress of runs with the runs beneath them, as it changes.

use std::time::Duration;

use taskrun_journal::list::{ListFilter, PAGE_MAX, Scope};
use taskrun_journal::progress::{Children, Progress};
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::time::Clock;

use super::client::run_id;
use super::{Client, Controller};
use crate::error::ControllerError;

/// Shortest pause between two looks at a run for a subscriber, and so between two reports.
pub const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// The pause between two looks for runs that were started or ended beneath a run: the journal of that
/// says nothing of them.
const LOOK_BENEATH_EVERY: Duration = Duration::from_secs(1);

impl Client {
    /// The run as it is shown, with the counts of the runs beneath it.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn view(&self, id: &str) -> Result<RunView, ControllerError> {
        let run = self.get(id).await?;
        let children = self.controller.children(&run).await?;
        Ok(RunView::with_children(&run, children))
    }

    /// Subscribes to the progress of a run.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn watch_progress(&self, id: &str) -> Result<ProgressWatch, ControllerError> {
        let run = self.get(id).await?;
        Ok(ProgressWatch {
            client: self.clone(),
            id: run.id().to_string(),
            told: None,
            looked: None,
            over: false,
        })
    }
}

impl Controller {
    /// The runs that were started directly beneath a run. They are counted when this is asked, in
    /// as many steps as there are, which a tree's bound limits; so the end of a run costs nothing
    /// for the one above it. Runs that were removed count no more.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn children(&self, run: &Run) -> Result<Children, ControllerError> {
        let scope = Scope::tenant(&run.spec.tenant);
        let filter = ListFilter { parent_run_id: Some(run.id().clone()), ..ListFilter::default() };
        let (mut children, mut cursor) = (Children::default(), None);
        loop {
            let page = self.0.parts.store.list(&scope, &filter, cursor.as_ref(), PAGE_MAX).await?;
            page.runs.iter().for_each(|run| children.count(run.status()));
            cursor = page.next;
            if cursor.is_none() {
                return Ok(children);
            }
        }
    }
}

/// A subscription to the progress of a run. It reads when it is asked and holds nothing between: a
/// slow subscriber misses steps on the way, never the last one, and costs nobody anything.
pub struct ProgressWatch {
    client: Client,
    id: String,
    /// The last report.
    told: Option<Progress>,
    /// When the run was last looked at.
    looked: Option<Duration>,
    over: bool,
}

impl ProgressWatch {
    /// The progress as it is, at once for the first time and then when it differs from what was
    /// told last, at least [`PROGRESS_EVERY`] after that. What happens beneath the run is told a
    /// second later at the latest. The progress at the end of the run is told in any case; then
    /// `None` is.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`] if the run is gone; [`ControllerError::Storage`], after
    /// which it can be asked again.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the next call tells the same, or what came after it.
    pub async fn next(&mut self) -> Result<Option<Progress>, ControllerError> {
        let controller = &self.client.controller;
        let parts = &controller.0.parts;
        let (clock, store): (&dyn Clock, _) = (&*parts.clock, &parts.store);
        if self.over {
            return Ok(None);
        }
        loop {
            if let Some(at) = self.looked {
                clock.sleep_until(at + PROGRESS_EVERY).await;
            }
            let at = clock.monotonic();
            let mut watch = store.watch(&run_id(&self.id)?);
            let run = self.client.get(&self.id).await?;
            let children = controller.children(&run).await?;
            let progress = run.state.progress.with(children);
            self.looked = Some(at);
            self.over = run.status().is_terminal();
            if self.told.as_ref() != Some(&progress) {
                self.told = Some(progress.clone());
                return Ok(Some(progress));
            }
            if self.over {
                return Ok(None);
            }
            tokio::select! {
                () = watch.moved(run.state.head) => {}
                () = clock.sleep(LOOK_BENEATH_EVERY) => {}
            }
        }
    }
}
