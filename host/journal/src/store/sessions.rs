//! The port to sessions: who they belong to, and the events of their runs.

use async_trait::async_trait;

use super::StoreError;
use crate::event::EventRecord;
use crate::ids::RunId;
use crate::list::Scope;
use crate::time::Timestamp;

/// The sessions from which runs are started, and what happens in them.
///
/// A session need not be created to be used; a name that was never mentioned is an open session. A
/// run belongs to the session from which it was asked for and to that of the first run of its tree.
///
/// A key without an owner, or without an application, covers those with one: what is known of a
/// session is also what was said of a key that covers its own. Nothing that was said of a session
/// is known of a key that covers it.
#[async_trait]
pub trait Sessions: Send + Sync {
    /// Makes a session known, unless it is. Gives what is known of it then.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn open_session(&self, session: Session) -> Result<Session, StoreError>;

    /// Ends a session, made known or not: no run is asked for from it any more, nor from those that
    /// its key covers. Consents that are bound to it are revoked in the same write, by
    /// [`crate::consent::BY_HOST`], as far as this store keeps consents. Repeated, it changes
    /// nothing; the first end counts.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn end_session(&self, key: &SessionKey, at: Timestamp) -> Result<Session, StoreError>;

    /// The record of a session.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn session(&self, key: &SessionKey) -> Result<Option<Session>, StoreError>;

    /// Events of all runs of a session after a place, in the order in which they became durable,
    /// in pages like those of [`super::Store::read`]. Place 0 is the beginning.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn read_session(
        &self,
        key: &SessionKey,
        after: u64,
        limit: usize,
    ) -> Result<SessionPage, StoreError>;

    /// The place of the last event of the whole store; 0 if there is none.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn last_place(&self) -> Result<u64, StoreError>;

    /// Returns when there may be events of a session after a place. May return early; never later
    /// than a second after the fact.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait.
    async fn session_changed(&self, key: &SessionKey, after: u64);
}

/// Names a session. The same name stands for as many sessions as there are owners who use it: none
/// of them is told of another's, ends it or waits for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey {
    /// Its tenant.
    pub tenant: String,
    /// Whose it is; `None` for the sessions of this name of all owners, which only the operator of
    /// the tenant may speak of.
    pub owner_user_id: Option<String>,
    /// The application it belongs to; `None` for those of all applications.
    pub parent_app_name: Option<String>,
    /// Its id, as in [`crate::spec::RunSpec::parent_session_id`].
    pub id: String,
}

impl SessionKey {
    /// The session of this name as somebody sees it.
    #[must_use]
    pub fn of(scope: &Scope, id: &str) -> Self {
        Self {
            tenant: scope.tenant.clone(),
            owner_user_id: scope.owner_user_id.clone(),
            parent_app_name: scope.parent_app_name.clone(),
            id: id.to_owned(),
        }
    }

    /// The runs of the session.
    #[must_use]
    pub fn scope(&self) -> Scope {
        Scope {
            tenant: self.tenant.clone(),
            owner_user_id: self.owner_user_id.clone(),
            parent_session_id: Some(self.id.clone()),
            parent_app_name: self.parent_app_name.clone(),
        }
    }
}

/// A session from which runs are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its name, and whose it is.
    pub key: SessionKey,
    /// When it was made known.
    pub created_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

/// An event of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionEvent {
    /// Its place among all events of the store; grows, with gaps.
    pub place: u64,
    /// Its run.
    pub run: RunId,
    /// The event.
    pub recorded: EventRecord,
}

/// Part of the events of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionPage {
    /// The events, in the order in which they became durable.
    pub events: Vec<SessionEvent>,
    /// The place to go on from. Every event up to it was looked at: on the last page it is the
    /// end of the whole store, so that nobody looks again at what others did. It tells that there
    /// are others, and nothing else of them.
    pub next: u64,
}
