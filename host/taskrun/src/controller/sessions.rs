//! Sessions: what is started together, watched together and ended together.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::Controller;
use super::observe::READ_PAGE;
use crate::error::ControllerError;
use crate::ids::RunId;
use crate::list::{ListFilter, PAGE_MAX, Scope};
use crate::ports::store::{Removal, Removed, Session, SessionEvent, SessionKey};
use crate::run::Run;
use crate::status::{Status, StopReason};

/// How long the deletion of a session waits for its runs to end.
pub const DELETE_WAIT: Duration = Duration::from_secs(5);
/// Runs removed in one transaction.
const REMOVE_PAGE: usize = 500;

/// What the deletion of a session did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Runs that were cancelled.
    pub canceled: Vec<RunId>,
    /// Runs that had not ended in time; they stay until the session is deleted again.
    pub open: Vec<RunId>,
    /// What was removed.
    pub removed: Removed,
    /// Facts that were forgotten.
    pub facts: u64,
}

impl Controller {
    fn session_key(scope: &Scope, id: &str) -> Result<SessionKey, ControllerError> {
        let id = id.trim();
        if id.is_empty() {
            let reason = "empty session id".to_owned();
            return Err(ControllerError::Invalid { field: "session", reason });
        }
        if scope.parent_session_id.as_deref().is_some_and(|own| own != id) {
            return Err(ControllerError::NotFound { id: id.to_owned() });
        }
        Ok(SessionKey { tenant: scope.tenant.clone(), id: id.to_owned() })
    }

    /// Makes a session known. Repeated, it changes nothing and gives what is there.
    ///
    /// # Errors
    /// [`ControllerError::Invalid`] for an empty id, [`ControllerError::NotFound`] if the session
    /// is known and not the caller's, [`ControllerError::SessionEnded`],
    /// [`ControllerError::Storage`].
    pub async fn create_session(
        &self,
        scope: &Scope,
        id: &str,
    ) -> Result<Session, ControllerError> {
        let key = Self::session_key(scope, id)?;
        let session = Session {
            key,
            owner_user_id: scope.owner_user_id.clone(),
            created_at: self.0.parts.clock.now(),
            ended_at: None,
        };
        let session = self.0.parts.sessions.open_session(session).await?;
        Self::own(scope, &session)?;
        match session.ended_at {
            Some(_) => Err(ControllerError::SessionEnded { id: session.key.id }),
            None => Ok(session),
        }
    }

    fn own(scope: &Scope, session: &Session) -> Result<(), ControllerError> {
        let owner = scope.owner_user_id.as_ref();
        match owner.is_none_or(|owner| session.owner_user_id.as_ref() == Some(owner)) {
            true => Ok(()),
            false => Err(ControllerError::NotFound { id: session.key.id.clone() }),
        }
    }

    /// What is known of a session.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also if it is not the caller's;
    /// [`ControllerError::Storage`].
    pub async fn session(&self, scope: &Scope, id: &str) -> Result<Session, ControllerError> {
        let key = Self::session_key(scope, id)?;
        let not_found = || ControllerError::NotFound { id: key.id.clone() };
        let session = self.0.parts.sessions.session(&key).await?.ok_or_else(not_found)?;
        Self::own(scope, &session)?;
        Ok(session)
    }

    /// Ends a session: nothing is started in it any more. What runs goes on. Repeated, it changes
    /// nothing.
    ///
    /// # Errors
    /// [`ControllerError::Invalid`] for an empty id, [`ControllerError::NotFound`] if the session
    /// is not the caller's, [`ControllerError::Storage`].
    pub async fn end_session(&self, scope: &Scope, id: &str) -> Result<Session, ControllerError> {
        let key = Self::session_key(scope, id)?;
        match self.0.parts.sessions.session(&key).await? {
            Some(session) => Self::own(scope, &session)?,
            // Whose it is, only an operator can say of a session that was never made known.
            None if scope.owner_user_id.is_some() => {
                return Err(ControllerError::NotFound { id: key.id });
            }
            None => {}
        }
        Ok(self.0.parts.sessions.end_session(&key, self.0.parts.clock.now()).await?)
    }

    /// Ends a session, cancels what is open in it, waits at most [`DELETE_WAIT`] for that to end,
    /// removes its runs and forgets its facts: those of the caller, or of everybody.
    ///
    /// # Errors
    /// Those of [`Self::end_session`].
    pub async fn delete_session(
        &self,
        scope: &Scope,
        id: &str,
    ) -> Result<Deleted, ControllerError> {
        let session = self.end_session(scope, id).await?;
        let in_session = Scope { parent_session_id: Some(session.key.id.clone()), ..scope.clone() };
        let mut deleted = Deleted::default();
        for run in self.open_runs(&in_session).await? {
            let run_id = run.id().clone();
            for below in self.beneath(&run).await?.into_iter().rev() {
                self.cancel_run(below, StopReason::CanceledByParent, None).await?;
            }
            self.cancel_run(run, StopReason::CanceledByOwner, Some("the session was deleted"))
                .await?;
            deleted.canceled.push(run_id);
        }
        let waits: FuturesUnordered<_> = deleted
            .canceled
            .iter()
            .map(|id| self.wait(&in_session, id.as_str(), Some(DELETE_WAIT)))
            .collect();
        let waited: Vec<_> = waits.collect().await;
        for waited in waited {
            let waited = waited?;
            if waited.timed_out {
                deleted.open.push(waited.run.id().clone());
            }
        }
        let (memory, owner) = (&self.0.parts.memory, scope.owner_user_id.as_deref());
        let (tenant, id) = (&session.key.tenant, &session.key.id);
        deleted.facts = memory.forget_session(tenant, owner, id).await?;
        let removal = Removal {
            tenant: Some(session.key.tenant),
            session: Some(session.key.id),
            before: crate::time::Timestamp(u64::MAX),
            limit: REMOVE_PAGE,
            dry_run: false,
        };
        deleted.removed = self.remove_all(removal).await?;
        Ok(deleted)
    }

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

    /// Removes runs of the tenant that ended before a time, with all that belongs to them, and
    /// says what it did. Runs under which another one is open stay. `dry_run` removes nothing.
    ///
    /// # Errors
    /// [`ControllerError::Storage`]; some runs may be removed then.
    pub async fn gc(
        &self,
        scope: &Scope,
        before: crate::time::Timestamp,
        dry_run: bool,
    ) -> Result<Removed, ControllerError> {
        let removal = Removal {
            tenant: Some(scope.tenant.clone()),
            session: scope.parent_session_id.clone(),
            before,
            limit: if dry_run { usize::MAX } else { REMOVE_PAGE },
            dry_run,
        };
        self.remove_all(removal).await
    }

    async fn remove_all(&self, removal: Removal) -> Result<Removed, ControllerError> {
        let mut all = Removed::default();
        loop {
            let removed = self.0.parts.store.remove(removal.clone()).await?;
            all.runs += removed.runs;
            all.events += removed.events;
            all.bytes += removed.bytes;
            all.kept = removed.kept;
            if removal.dry_run || removed.runs < removal.limit as u64 {
                return Ok(all);
            }
        }
    }

    /// Events of the runs of a session after a place, in the order in which they became durable,
    /// at most `limit`; of runs outside the scope none. Place 0 is the beginning. The second part
    /// is the place to go on from.
    ///
    /// # Errors
    /// [`ControllerError::Invalid`] for an empty id, [`ControllerError::NotFound`],
    /// [`ControllerError::Storage`].
    pub async fn session_events(
        &self,
        scope: &Scope,
        id: &str,
        after: u64,
        limit: usize,
    ) -> Result<(Vec<SessionEvent>, u64), ControllerError> {
        let key = Self::session_key(scope, id)?;
        let limit = limit.clamp(1, READ_PAGE);
        let page = self.0.parts.sessions.read_session(&key, after, limit).await?;
        let next = page.last().map_or(after, |last| last.place);
        let mut seen = std::collections::HashMap::new();
        let mut visible = Vec::with_capacity(page.len());
        for event in page {
            let admitted = match seen.get(&event.run) {
                Some(known) => *known,
                None => {
                    let run = self.0.parts.store.get(&event.run).await?;
                    let admitted = run.is_some_and(|run| scope.admits(&run));
                    seen.insert(event.run.clone(), admitted);
                    admitted
                }
            };
            if admitted {
                visible.push(event);
            }
        }
        Ok((visible, next))
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
        scope: &Scope,
        id: &str,
        mut after: u64,
        limit: usize,
    ) -> Result<(Vec<SessionEvent>, u64), ControllerError> {
        let key = Self::session_key(scope, id)?;
        loop {
            let (events, next) = self.session_events(scope, id, after, limit).await?;
            if !events.is_empty() {
                return Ok((events, next));
            }
            if next == after {
                self.0.parts.sessions.session_changed(&key, after).await;
            }
            after = next;
        }
    }
}
