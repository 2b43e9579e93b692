//! The port to memory: facts by key, and by the words in them.

use async_trait::async_trait;

use crate::fact::{Fact, FactNamespace, MemoryError};
use crate::ids::RunId;
use crate::store::StoreError;

/// Keeps facts. What is acknowledged is on disk, as far as the store has one.
///
/// Facts are checked by whoever hands them over ([`Fact::check`]); a store keeps what it is given,
/// up to [`crate::fact::FACTS_MAX`] facts in a place.
#[async_trait]
pub trait Memory: Send + Sync {
    /// Changes a fact. A change of a run that it made before is [`FactOutcome::Repeated`] and is
    /// not made again, whatever became of the fact meanwhile; that is known as long as the run is.
    ///
    /// # Errors
    /// [`StoreError`]; the change may then be kept only after [`StoreError::Unknown`].
    async fn change_fact(
        &self,
        place: &FactNamespace,
        change: FactChange,
        by: Option<FactWriter>,
    ) -> Result<FactOutcome, StoreError>;

    /// The fact of this key.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn fact(&self, place: &FactNamespace, key: &str) -> Result<Option<Fact>, StoreError>;

    /// Facts in which one of these words is ([`crate::fact::query_words`]), in the order of
    /// [`crate::fact::rank`], at most `limit`.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn search_facts(
        &self,
        place: &FactNamespace,
        words: &[String],
        limit: usize,
    ) -> Result<Vec<Fact>, StoreError>;

    /// Facts after a key in the order of their keys, at most `limit`.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn facts(
        &self,
        place: &FactNamespace,
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

/// The writer of a change, so that it is made once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FactWriter {
    /// The run.
    pub run: RunId,
    /// Names the change among those of the run.
    pub change: String,
}

/// The answer to a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactOutcome {
    /// It is made.
    Done,
    /// There is no fact of that key to forget.
    Absent,
    /// It was made before.
    Repeated,
    /// No more facts fit there. Nothing has changed.
    Full,
}

impl From<StoreError> for MemoryError {
    fn from(error: StoreError) -> Self {
        Self::Storage { code: error.code().to_owned() }
    }
}
