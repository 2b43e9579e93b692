//! The port to the policy as it changes: agents as they are now, and as they were when runs were
//! accepted.

use std::time::Duration;

use async_trait::async_trait;

use crate::agents::{Agent, Agents, Origins};

/// The pause after a look that found a change which may go on.
pub const UNSETTLED_PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for a policy to settle: a file that is written without end keeps no run waiting.
pub const UNSETTLED_AT_MOST: Duration = Duration::from_secs(2);

/// The agents of a policy over time, and those of the files that other runs of the store were
/// accepted under.
#[async_trait]
pub trait Deployments: Send + Sync {
    /// Looks if the policy has changed since it was looked at last. A policy with a mistake changes
    /// nothing.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the look; what it would have found is found by the next one.
    async fn look(&self, since: Settling) -> PolicyLook;

    /// The agent with this pin, as it was when runs were accepted with it, within what the agent of
    /// that name is given by the policy as it is now, and by the file that they were accepted under
    /// as that is now.
    ///
    /// # Errors
    /// Why there is none that could execute these runs, in words.
    async fn pinned(&self, pin: &str) -> Result<Agent, String>;
}

/// The changes that count at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settling {
    /// Those that have stood for a moment.
    Awaited,
    /// Any, also one that is seen for the first time.
    Over,
    /// All that may be: somebody says that there is one, and the policy is read though it looks the
    /// same.
    Told,
}

/// The outcome of a look at the policy.
pub enum PolicyLook {
    /// It is as it was.
    Same,
    /// It was changed just now, and may be changed further.
    Unsettled,
    /// It was changed.
    Changed(PolicyChange),
    /// It is as it was, and another file that runs were accepted under was changed: these are the
    /// agents of all such files now.
    OriginsChanged(Origins),
}

/// A policy that took the place of another one.
pub struct PolicyChange {
    /// Its agents.
    pub agents: Agents,
    /// The names of the models that are others than before, of those that are gone and of those
    /// that were not there. Where there are any, runs of all agents are concerned; otherwise those
    /// of agents whose pins have changed.
    pub models: Vec<String>,
}
