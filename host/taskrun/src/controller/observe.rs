//! Reading what runs did.

use taskrun_journal::event::EventRecord;
use taskrun_journal::ids::{RunId, Seq};
use taskrun_journal::list::{ListFilter, PAGE_MAX, Scope};
use taskrun_journal::message::Usage;
use taskrun_journal::progress::Children;
use taskrun_journal::run::Run;

use super::client::{not_found, run_id};
use super::{Client, Controller};
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

    /// Waits for events after position `after`; empty when the run has ended and there are none.
    ///
    /// # Errors
    /// [`ControllerError::Invalid`] for a limit of 0; [`ControllerError::NotFound`], also outside
    /// the scope; [`ControllerError::Storage`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the next call gives the same events.
    pub async fn next_events(
        &self,
        id: &str,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<EventRecord>, ControllerError> {
        let limit = page_of(limit)?;
        let (store, run) = (&self.controller.0.parts.store, run_id(id)?);
        loop {
            let head = store.head(self.scope(), &run).await?.ok_or_else(|| not_found(id))?;
            if !head.has_ended && head.seq <= after {
                store.changed(&run, after.min(head.seq)).await;
            }
            // The run was admitted, so what woke this wait is read at once. Only where there is
            // nothing the run has to be looked at again: it was removed, or the wait was cut short.
            let events = store.read(&run, after, limit).await?;
            if head.has_ended || !events.is_empty() {
                return Ok(events);
            }
        }
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

impl Controller {
    /// All runs of a tree.
    pub(super) async fn whole_tree(
        &self,
        tenant: &str,
        root: &RunId,
    ) -> Result<Vec<Run>, ControllerError> {
        let scope = Scope::tenant(tenant);
        let filter = ListFilter { root_run_id: Some(root.clone()), ..ListFilter::default() };
        let (mut all, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.0.parts.store.list(&scope, &filter, cursor.as_ref(), PAGE_MAX).await?;
            all.extend(page.runs);
            cursor = page.next;
            if cursor.is_none() {
                return Ok(all);
            }
        }
    }
}
