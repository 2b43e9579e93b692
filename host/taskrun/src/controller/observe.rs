//! Reading what runs did.

use std::sync::Arc;

use taskrun_journal::event::EventRecord;
use taskrun_journal::ids::{RunId, Seq};
use taskrun_journal::list::Head;
use taskrun_journal::message::Usage;
use taskrun_journal::progress::Children;
use taskrun_journal::run::Run;
use taskrun_journal::store::RunWatch;

use super::Client;
use super::client::{not_found, run_id};
use crate::driver::charged_with_descendants;
use crate::error::ControllerError;
use crate::scan::PAGE;

/// A run with everything beneath it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tree {
    /// The run.
    pub run: Run,
    /// The runs beneath it, parents before their children.
    pub descendants: Vec<Run>,
    /// Tokens of all of them together.
    pub usage: Usage,
}

impl Tree {
    /// The runs directly beneath one of the tree, as far as they are in it.
    #[must_use]
    pub fn children(&self, id: &RunId) -> Children {
        let mut children = Children::default();
        let is_child = |run: &&Run| run.spec.parent_run_id.as_ref() == Some(id);
        self.descendants.iter().filter(is_child).for_each(|run| children.count(run.status()));
        children
    }
}

/// The events of a run as they are written ([`Client::follow`]). Those that this process writes are
/// given without another look at the store. A stream that is read late, or no more, holds nothing up.
pub struct EventStream {
    client: Client,
    run: RunId,
    after: Seq,
    /// The registration that was made before the last look at the journal.
    watch: Option<Box<dyn RunWatch>>,
    /// True if that look found no event that was not given since: then the next ones are waited for.
    has_all: bool,
}

impl EventStream {
    /// Waits for the next events, at most `limit`; empty when the run has ended and there are none.
    ///
    /// # Errors
    /// [`ControllerError::Invalid`] for a limit of 0; [`ControllerError::NotFound`] if the run is gone;
    /// [`ControllerError::Storage`], after which it can be asked again.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the next call gives the same events.
    pub async fn next(&mut self, limit: usize) -> Result<Vec<EventRecord>, ControllerError> {
        let limit = page_of(limit)?;
        let store = Arc::clone(&self.client.controller.0.parts.store);
        loop {
            if self.has_all
                && let Some(watch) = &mut self.watch
            {
                let events = watch.events(self.after, limit).await;
                if let Some(last) = events.last() {
                    self.after = last.seq;
                    return Ok(events);
                }
            }
            // Stays so if this future is dropped before all was read.
            self.has_all = false;
            // Anew, as another run may have the id by now; first, so that nothing is missed that is
            // written after the look. The old one goes before, so that nothing of it is left.
            self.watch = None;
            self.watch.insert(store.watch(&self.run)).follow();
            let head = self.head().await?;
            let events = store.read(&self.run, self.after, limit).await?;
            if let Some(last) = events.last() {
                self.after = last.seq;
                // After the end nothing is told any more.
                self.has_all = last.seq >= head.seq && !head.has_ended;
                return Ok(events);
            }
            if head.has_ended && head.seq <= self.after {
                return Ok(events);
            }
            self.has_all = head.seq <= self.after;
        }
    }

    /// The end of the journal, if the scope admits the run.
    async fn head(&self) -> Result<Head, ControllerError> {
        let store = &self.client.controller.0.parts.store;
        let head = store.head(self.client.scope(), &self.run).await?;
        head.ok_or_else(|| not_found(self.run.as_str()))
    }
}

/// So many events at once, or the most that are read.
fn page_of(limit: usize) -> Result<usize, ControllerError> {
    if limit == 0 {
        let reason = "a page of events has at least one".to_owned();
        return Err(ControllerError::Invalid { field: "limit", reason });
    }
    Ok(limit.min(PAGE))
}

impl Client {
    /// Events after position `after`, at most `limit`; empty at the end of the journal as it is.
    ///
    /// # Errors
    /// [`ControllerError::Invalid`] for a limit of 0; [`ControllerError::NotFound`], also outside
    /// the scope; [`ControllerError::Storage`].
    pub async fn events(
        &self,
        id: &str,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<EventRecord>, ControllerError> {
        let limit = page_of(limit)?;
        let run = self.get(id).await?;
        Ok(self.controller.0.parts.store.read(run.id(), after, limit).await?)
    }

    /// Follows the journal of a run after position `after`.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn follow(&self, id: &str, after: Seq) -> Result<EventStream, ControllerError> {
        let stream = EventStream {
            client: self.clone(),
            run: run_id(id)?,
            after,
            watch: None,
            has_all: false,
        };
        stream.head().await?;
        Ok(stream)
    }

    /// A run with everything beneath it that the scope admits.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn tree(&self, id: &str) -> Result<Tree, ControllerError> {
        let run = self.get(id).await?;
        let mut descendants = self.controller.descendants(&run.spec).await?;
        descendants.retain(|run| self.scope().admits(run));
        let mut usage = Usage::default();
        for one in std::iter::once(&run).chain(&descendants) {
            usage = usage.plus(one.state.progress.usage());
        }
        Ok(Tree { run, descendants, usage })
    }

    /// The consumption that counts against the budget of a run, as the host that executes it counts:
    /// its own, that of the runs that it has left behind, and that of all others beneath it, without
    /// the tokens that these report of themselves. The runs of its tree that count are read for it.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn charged_with_descendants(&self, run: &Run) -> Result<Usage, ControllerError> {
        Ok(charged_with_descendants(&*self.controller.0.parts.store, run).await?)
    }
}
