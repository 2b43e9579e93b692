//! Functions of tools, as an agent names those that it may call.

use std::fmt;

use crate::location::Location;

/// What stands before the name of an agent that is called as a tool: `agent/NAME`. No component is
/// named so.
pub const AGENTS: &str = "agent";

/// Functions of a tool that an agent may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolSelector {
    /// A tool of the policy.
    pub tool: String,
    /// One of its functions; `None`, written `*`, is all of them. Whether the tool has it is
    /// known only when its component is loaded.
    pub function: Option<String>,
    /// Where it stands.
    pub location: Location,
}

impl ToolSelector {
    /// Whether it selects this function of this tool.
    pub fn matches(&self, tool: &str, function: &str) -> bool {
        self.tool == tool && self.function.as_deref().is_none_or(|selected| selected == function)
    }
}

/// Prints it as written: `workspace/list`, `workspace/*`.
impl fmt::Display for ToolSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tool, self.function.as_deref().unwrap_or("*"))
    }
}
