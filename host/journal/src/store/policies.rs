//! The port to policies: of each file that runs are accepted or executed under, the text in force.

use async_trait::async_trait;

use super::StoreError;
use crate::time::Timestamp;

/// The policies in force, by their files.
///
/// A store keeps the text that was read from a file last. It binds the runs that were accepted under
/// that file where a host of another file executes them, and where the file cannot be read any more.
#[async_trait]
pub trait Policies: Send + Sync {
    /// Puts a text in force for its file, in one write, unless the one in force stays so
    /// ([`PolicyRevision::stays_before`]); gives what is in force then.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn apply_policy(&self, text: PolicyText) -> Result<PolicyRevision, StoreError>;

    /// The text in force of a file.
    ///
    /// # Errors
    /// [`StoreError`]; [`StoreError::Corrupt`] if there is one and it was lost to damage.
    async fn policy_in_force(&self, path: &str) -> Result<Option<PolicyRevision>, StoreError>;
}

/// A text of a policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyText {
    /// The absolute path of the file.
    pub path: String,
    /// The digest of its text and of its prompts.
    pub digest: String,
    /// The text.
    pub text: String,
    /// The time at which the file was last known to have it, as it was put in force.
    pub read_at: Timestamp,
}

/// A text that is in force for its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRevision {
    /// The text, as it was read first.
    pub policy: PolicyText,
    /// The number of texts of this file that were in force, with this one; from 1.
    pub number: u64,
}

impl PolicyRevision {
    /// True if it stays in force where a text of its file is applied: it is that text, or was read
    /// later. Between reading and applying lies loading, and others read and apply meanwhile. The
    /// time stays that of the first reading, so that those who find their text in force write
    /// nothing. An earlier text may replace one that was read once more, so whoever applies one
    /// looks at the file after that.
    #[must_use]
    pub fn stays_before(&self, text: &PolicyText) -> bool {
        self.policy.digest == text.digest || self.policy.read_at > text.read_at
    }
}
