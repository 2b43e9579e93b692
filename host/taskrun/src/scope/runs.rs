//! The port through which a component starts and watches runs beneath its own.
//!
//! Requests and answers are values that can be serialised: a plan step's are kept in the journal,
//! and the same request can be made in another process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::ids::Seq;
use taskrun_journal::runs::{RunsAnswer, RunsError, RunsRequest};
use taskrun_journal::spec::RunSpec;

/// Reaches the runs that one may see, and no other; of its own run, what was said to it.
#[async_trait]
pub trait Runs: Send + Sync {
    /// Does what is asked. A wait takes at most `longest`, whatever the request says.
    ///
    /// # Errors
    /// [`RunsError`]; nothing has changed then, except perhaps after [`RunsError::Storage`].
    /// [`RunsError::Closed`] says that this process is about to stop the caller.
    ///
    /// # Cancel safety
    /// Dropping the future gives up a wait. Any other request may have taken effect.
    async fn ask(
        &self,
        caller: &Caller,
        request: RunsRequest,
        longest: Duration,
    ) -> Result<RunsAnswer, RunsError>;

    /// The result of a tool call of the caller's own run, by the digest of its bytes and its
    /// position in the journal; `None` if that is not there.
    ///
    /// # Errors
    /// [`RunsError::Storage`], and [`RunsError::Closed`] as above.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    async fn result(
        &self,
        caller: &Caller,
        hash: &str,
        place: Seq,
    ) -> Result<Option<Arc<[u8]>>, RunsError>;

    /// The bytes of an artifact of the caller's own run, of one that it continues, of one above it or
    /// of one that it may see; `None` if none of them has it, whoever else does.
    ///
    /// # Errors
    /// As for [`Self::result`].
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    async fn artifact(&self, caller: &Caller, hash: &str) -> Result<Option<Arc<[u8]>>, RunsError>;
}

/// The call of a run that asks. Set by the host.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The run.
    pub spec: Arc<RunSpec>,
    /// Its own session, from which its children are started.
    pub session_id: String,
    /// The name by which the call is known when it is repeated: its turn, or the id of the tool
    /// call.
    pub call: String,
}

/// The access of a call to the runs beneath its own.
#[derive(Clone)]
pub struct RunsAccess {
    /// Does what is asked.
    pub runs: Arc<dyn Runs>,
    /// The call that asks.
    pub caller: Caller,
}
