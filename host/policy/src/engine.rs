//! Engines that decide, turn by turn, which of its tools an agent may use.

use std::path::PathBuf;
use std::time::Duration;

use crate::location::Location;
use crate::tool_lists::ToolLists;

/// Time for an engine's decision unless the policy says otherwise. A decision takes a millisecond;
/// a second is what a host that is short of processors may need for it, and a run stands still
/// meanwhile.
pub const POLICY_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest time that a policy component may take to decide: a run stands still meanwhile.
pub(crate) const ENGINE_TIMEOUT_MAX: Duration = Duration::from_secs(10);

/// The engines that decide, turn by turn, which of its tools an agent may use: `policy` of an
/// agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnginePolicy {
    /// The engine that is built in.
    pub lists: ToolLists,
    /// A component that has to allow as well, resolved.
    pub component: Option<PathBuf>,
    /// Time for the component's decision. Default [`POLICY_TIMEOUT`].
    pub timeout: Duration,
    /// Of the table.
    pub location: Location,
}
