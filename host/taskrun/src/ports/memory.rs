//! The port to memory: facts by key, and by the words in them.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::store::StoreError;
use crate::ids::RunId;
use crate::memory::{Fact, FactPlace, InvalidFact, MemoryScope};

/// Keeps facts. What is acknowledged is on disk, as far as the store has one.
///
/// Facts are checked by whoever hands them over ([`Fact::check`]); a store keeps what it is given,
/// up to [`crate::memory::FACTS_MAX`] facts in a place.
#[async_trait]
pub trait Memory: Send + Sync {
    /// Changes a fact. A change of a run that it made before is [`FactChanged::Repeated`] and is not
    /// made again, whatever became of the fact meanwhile; that is known as long as the run is.
    ///
    /// # Errors
    /// [`StoreError`]; the change may then be kept only after [`StoreError::Unknown`].
    async fn change_fact(
        &self,
        place: &FactPlace,
        change: FactChange,
        by: Option<FactWriter>,
    ) -> Result<FactChanged, StoreError>;

    /// The fact of this key.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn fact(&self, place: &FactPlace, key: &str) -> Result<Option<Fact>, StoreError>;

    /// Facts in which one of these words is ([`crate::memory::query_words`]), in the order of
    /// [`crate::memory::rank`], at most `limit`.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn search_facts(
        &self,
        place: &FactPlace,
        words: &[String],
        limit: usize,
    ) -> Result<Vec<Fact>, StoreError>;

    /// Facts after a key in the order of their keys, at most `limit`.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn facts(
        &self,
        place: &FactPlace,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Fact>, StoreError>;

    /// Forgets all facts of a session of a tenant, those of one owner or of all, and says how many.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn forget_session(
        &self,
        tenant: &str,
        owner: Option<&str>,
        session: &str,
    ) -> Result<u64, StoreError>;
}

/// A change of one fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FactChange {
    /// Keep it, in place of the one that has its key.
    Put(Fact),
    /// Forget the one of this key.
    Delete(String),
}

/// Who makes a change, so that it is made once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FactWriter {
    /// The run.
    pub run: RunId,
    /// Names the change among those of the run.
    pub change: String,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactChanged {
    /// It is made.
    Done,
    /// There is no fact of that key to forget.
    Absent,
    /// It was made before.
    Repeated,
    /// No more facts fit there. Nothing has changed.
    Full,
}

/// What lets a call reach memory.
#[derive(Clone)]
pub struct MemoryAccess {
    /// Keeps the facts.
    pub memory: Arc<dyn Memory>,
    /// The facts of the session.
    pub session: FactPlace,
    /// Those of the tenant.
    pub tenant: FactPlace,
    /// The run, and what the call is known by when it is repeated; `None` for a call that belongs
    /// to no run.
    pub writer: Option<(RunId, String)>,
}

impl std::fmt::Debug for MemoryAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryAccess").field("session", &self.session).finish_non_exhaustive()
    }
}

impl MemoryAccess {
    /// Where the facts of a scope are.
    #[must_use]
    pub fn place(&self, scope: MemoryScope) -> &FactPlace {
        match scope {
            MemoryScope::Session => &self.session,
            MemoryScope::Tenant => &self.tenant,
        }
    }
}

/// What is asked of memory, in these scopes, the nearest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "operation")]
pub enum MemoryRequest {
    /// The fact of a key, of the first scope that has one.
    Get {
        /// The key.
        key: String,
        /// Where to look.
        scopes: Vec<MemoryScope>,
    },
    /// Facts with words of a query, those of the first scope before those of the next.
    Search {
        /// The query, as the guest wrote it.
        query: String,
        /// At most so many, and at most [`crate::memory::SEARCH_MAX`].
        limit: u32,
        /// Where to look.
        scopes: Vec<MemoryScope>,
    },
}

impl MemoryRequest {
    /// What it asks, in a word.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        match self {
            Self::Get { .. } => "get",
            Self::Search { .. } => "search",
        }
    }
}

/// Why memory did not answer, or a change was not made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case", tag = "error")]
pub enum MemoryError {
    /// The call belongs to nobody who has a memory.
    #[error("there is no memory here")]
    Absent,
    /// Part of the request cannot be accepted.
    #[error("{reason}")]
    Invalid {
        /// Which part.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A bound was met.
    #[error("limit met: {kind} ({cap})")]
    Limit {
        /// Which.
        kind: String,
        /// The bound.
        cap: u64,
    },
    /// The run is being stopped.
    #[error("the run is being stopped")]
    Canceled,
    /// The store failed.
    #[error("the store failed: {code}")]
    Storage {
        /// The word for programs.
        code: String,
    },
}

impl From<InvalidFact> for MemoryError {
    fn from(invalid: InvalidFact) -> Self {
        Self::Invalid { field: invalid.field.to_owned(), reason: invalid.reason }
    }
}

impl From<StoreError> for MemoryError {
    fn from(error: StoreError) -> Self {
        Self::Storage { code: error.code().to_owned() }
    }
}
