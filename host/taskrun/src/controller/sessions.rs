//! Sessions: what is started together, watched together and ended together.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use taskrun_journal::ids::RunId;
use taskrun_journal::list::{ListFilter, PAGE_MAX, Scope};
use taskrun_journal::run::Run;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::store::{Removal, RemovalOutcome, Session, SessionKey, SessionPage};

use super::{Client, Controller};
use crate::error::ControllerError;
use crate::scan::PAGE;

/// The time for which the deletion of a session waits for its runs to end.
pub const DELETE_WAIT: Duration = Duration::from_secs(5);
/// Runs removed in one transaction.
const REMOVE_PAGE: usize = 500;

/// The effect of the deletion of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionDeletion {
    /// Runs that were canceled.
    pub canceled: Vec<RunId>,
    /// Runs that had not ended in time; they stay until the session is deleted again.
    pub open: Vec<RunId>,
    /// The runs that were removed.
    pub removed: RemovalOutcome,
    /// Facts that were forgotten.
    pub facts: u64,
    /// Consents to tool calls that were bound to it, and are forgotten.
    pub consents: u64,
}

impl Client {
    /// Makes a session of the caller known. Repeated, it changes nothing and gives what is there.
    /// Of the sessions that others have under this name nothing is told, and none of them changes.
    ///
    /// # Errors
    /// [`ControllerError::Invalid`] for an empty id, [`ControllerError::NotFound`] outside the
    /// scope, [`ControllerError::SessionEnded`], [`ControllerError::Storage`].
    pub async fn create_session(&self, id: &str) -> Result<Session, ControllerError> {
        let key = self.session_key(id)?;
        let session =
            Session { key, created_at: self.controller.0.parts.clock.now(), ended_at: None };
        let session = self.controller.0.parts.sessions.open_session(session).await?;
        match session.ended_at {
            Some(_) => Err(ControllerError::SessionEnded { id: session.key.id }),
            None => Ok(session),
        }
    }

    /// The record of a session of the caller. An operator who names no owner is given that of
    /// operators.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also if it is not the caller's;
    /// [`ControllerError::Storage`].
    pub async fn session(&self, id: &str) -> Result<Session, ControllerError> {
        let key = self.session_key(id)?;
        let not_found = || ControllerError::NotFound { id: key.id.clone() };
        self.controller.0.parts.sessions.session(&key).await?.ok_or_else(not_found)
    }

    /// Ends a session of the caller, made known or not: nothing is started in it any more, and the
    /// consents that are bound to it are over. What runs goes on. An operator who names no owner
    /// ends those of all owners. Repeated, it changes nothing.
    ///
    /// # Errors
    /// [`ControllerError::Invalid`] for an empty id, [`ControllerError::NotFound`] outside the
    /// scope, [`ControllerError::Storage`].
    pub async fn end_session(&self, id: &str) -> Result<Session, ControllerError> {
        let key = self.session_key(id)?;
        Ok(self
            .controller
            .0
            .parts
            .sessions
            .end_session(&key, self.controller.0.parts.clock.now())
            .await?)
    }

    /// Ends a session, cancels what is open in it, waits at most [`DELETE_WAIT`] for that to end,
    /// removes its runs with all that was delegated in it, and forgets its facts and the consents
    /// that are bound to it: those of the caller, or, for an operator who names no owner, of
    /// everybody.
    ///
    /// # Errors
    /// Those of [`Self::end_session`].
    pub async fn delete_session(&self, id: &str) -> Result<SessionDeletion, ControllerError> {
        let session = self.end_session(id).await?;
        let in_session = SessionKey::of(self.scope(), &session.key.id).scope();
        let mut deleted = SessionDeletion::default();
        let mut open = self.controller.open_runs(&in_session).await?;
        // A run beneath another one ends because of that.
        open.sort_by_key(|run| run.spec.depth);
        for run in open {
            let run_id = run.id().clone();
            let (by, reason) =
                ((StopReason::CanceledByOwner, None), Some("the session was deleted"));
            self.controller.cancel_tree(run, by, reason).await?;
            deleted.canceled.push(run_id);
        }
        let those = self.controller.at(&in_session);
        let waits: FuturesUnordered<_> =
            deleted.canceled.iter().map(|id| those.wait(id.as_str(), Some(DELETE_WAIT))).collect();
        let waited: Vec<_> = waits.collect().await;
        for waited in waited {
            let waited = waited?;
            if waited.timed_out {
                deleted.open.push(waited.run.id().clone());
            }
        }
        let (memory, owner) =
            (&self.controller.0.parts.memory, self.scope().owner_user_id.as_deref());
        let (tenant, id) = (&session.key.tenant, &session.key.id);
        deleted.facts = memory.forget_session(tenant, owner, id).await?;
        let consents = &self.controller.0.parts.consents;
        deleted.consents = consents.remove_consents(&in_session, None, false).await?;
        // Nobody is told of what is deleted.
        self.controller.0.parts.dispatches.forget_dispatches(&in_session).await?;
        let removal = Removal {
            scope: Some(in_session),
            before: taskrun_journal::time::Timestamp(u64::MAX),
            limit: REMOVE_PAGE,
            dry_run: false,
        };
        deleted.removed = self.controller.remove_all(removal).await?;
        Ok(deleted)
    }

    /// Removes runs that the caller sees and that ended before a time, with all that belongs to
    /// them, and says what it did. Runs that are still needed stay. `dry_run` removes nothing.
    /// Consents that are over are removed by [`Self::remove_consents`].
    ///
    /// # Errors
    /// [`ControllerError::Storage`]; some runs may be removed then.
    pub async fn gc(
        &self,
        before: taskrun_journal::time::Timestamp,
        dry_run: bool,
    ) -> Result<RemovalOutcome, ControllerError> {
        let removal = Removal {
            scope: Some(self.scope().clone()),
            before,
            limit: if dry_run { usize::MAX } else { REMOVE_PAGE },
            dry_run,
        };
        self.controller.remove_all(removal).await
    }

    /// Gives back to the file system what nothing uses of the store's file, piece by piece and at most
    /// for so long, and says how many bytes of it are left. It takes longer the more there is.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn give_back_room(&self, longest: Duration) -> Result<u64, ControllerError> {
        let parts = &self.controller.0.parts;
        let (scope, before) = (Some(self.scope().clone()), taskrun_journal::time::Timestamp(0));
        let piece = Removal { scope, before, limit: 0, dry_run: false };
        let (end, mut unused) = (parts.machine.monotonic().saturating_add(longest), u64::MAX);
        loop {
            let began = parts.machine.monotonic();
            let left = parts.store.remove(piece.clone()).await?.unused;
            let is_less = left < unused;
            unused = left;
            let now = parts.machine.monotonic();
            if unused == 0 || !is_less || now >= end {
                return Ok(unused);
            }
            // Hosts, which are processes of their own, come to write in half of the time.
            parts.machine.sleep(now.saturating_sub(began)).await;
        }
    }

    /// Events of the runs of a session after a place, in the order in which they became durable,
    /// at most `limit`; of runs outside the scope none. Place 0 is the beginning. There are no more
    /// if the page has none.
    ///
    /// # Errors
    /// [`ControllerError::Invalid`] for an empty id, [`ControllerError::NotFound`],
    /// [`ControllerError::Storage`].
    pub async fn session_events(
        &self,
        id: &str,
        after: u64,
        limit: usize,
    ) -> Result<SessionPage, ControllerError> {
        let key = self.session_key(id)?;
        let limit = limit.clamp(1, PAGE);
        Ok(self.controller.0.parts.sessions.read_session(&key, after, limit).await?)
    }

    /// The same, waiting until there are some.
    ///
    /// # Errors
    /// Those of [`Self::session_events`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the next call gives the same events.
    pub async fn next_session_events(
        &self,
        id: &str,
        mut after: u64,
        limit: usize,
    ) -> Result<SessionPage, ControllerError> {
        let key = self.session_key(id)?;
        loop {
            let page = self.session_events(id, after, limit).await?;
            if !page.events.is_empty() {
                return Ok(page);
            }
            after = page.next;
            self.controller.0.parts.sessions.session_changed(&key, after).await;
        }
    }

    /// The place after which the events of a session are those that happen from now on. It tells that
    /// there are others, and nothing else of them.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn last_place(&self) -> Result<u64, ControllerError> {
        Ok(self.controller.0.parts.sessions.last_place().await?)
    }

    fn session_key(&self, id: &str) -> Result<SessionKey, ControllerError> {
        let id = id.trim();
        if id.is_empty() {
            let reason = "empty session id".to_owned();
            return Err(ControllerError::Invalid { field: "session", reason });
        }
        if self.scope().parent_session_id.as_deref().is_some_and(|own| own != id) {
            return Err(ControllerError::NotFound { id: id.to_owned() });
        }
        Ok(SessionKey::of(self.scope(), id))
    }
}

impl Controller {
    async fn open_runs(&self, scope: &Scope) -> Result<Vec<Run>, ControllerError> {
        let open = Status::ALL.iter().copied().filter(|status| !status.is_terminal());
        let filter = ListFilter { status: open.collect(), ..ListFilter::default() };
        let (mut all, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.0.parts.store.list(scope, &filter, cursor.as_ref(), PAGE_MAX).await?;
            all.extend(page.runs);
            cursor = page.next;
            if cursor.is_none() {
                return Ok(all);
            }
        }
    }

    async fn remove_all(&self, removal: Removal) -> Result<RemovalOutcome, ControllerError> {
        let mut all = RemovalOutcome::default();
        loop {
            let removed = self.0.parts.store.remove(removal.clone()).await?;
            all.runs += removed.runs;
            all.events += removed.events;
            all.bytes += removed.bytes;
            all.kept = removed.kept;
            all.unused = removed.unused;
            if removal.dry_run || removed.runs < removal.limit as u64 {
                return Ok(all);
            }
        }
    }
}
