//! The parts of a component under one agent's grants that no call changes.

use std::path::PathBuf;
use std::sync::Arc;

use taskrun::ports::planner::ConversationView;
use taskrun_policy::{AgentPolicy, Grants, Limits, Preopen, ToolPolicy, WorkspaceLimits};

use crate::engine::Engine;
use crate::files::Workspace;
use crate::files::disk::Bounds;
use crate::guest_memory::BeginBytes;

/// The grants and limits under which a component is linked.
#[derive(Debug, Clone)]
pub struct AgentGrants {
    /// Agent that the component is, or works for.
    pub agent: String,
    /// The name that marks its lines in the run's log: the agent's or the tool's.
    pub source: String,
    /// The agent's rules.
    pub grants: Arc<Grants>,
    /// Limits of one call.
    pub limits: Limits,
    /// Folder that rules about files start at.
    pub workspace: PathBuf,
    /// Folder out of which that one must not lead by a link; `None` if any will do.
    pub workspace_root: Option<PathBuf>,
    /// The bounds on what that folder may hold.
    pub workspace_limits: WorkspaceLimits,
}

impl AgentGrants {
    /// For the agent's own component.
    #[must_use]
    pub fn of_agent(agent: &AgentPolicy) -> Self {
        Self {
            agent: agent.name.clone(),
            source: agent.name.clone(),
            grants: Arc::clone(&agent.grants),
            limits: agent.limits.clone(),
            workspace: agent.workspace.clone(),
            workspace_root: agent.workspace_root.clone(),
            workspace_limits: agent.workspace_limits,
        }
    }

    /// For a tool that the agent calls.
    #[must_use]
    pub fn of_tool(agent: &AgentPolicy, tool: &ToolPolicy) -> Self {
        Self { source: tool.name.clone(), limits: agent.call_limits(tool), ..Self::of_agent(agent) }
    }
}

impl AgentGrants {
    /// For a policy that decides about the agent's tools. The agent's rules give it nothing.
    #[must_use]
    pub(crate) fn of_policy(agent: &AgentPolicy) -> Self {
        Self { source: format!("policy of {}", agent.name), ..Self::of_agent(agent) }
    }
}

/// The purpose of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A plan step, a finalizer or a tool call.
    Call,
    /// A tool's description: nothing but the log can be used.
    Describe,
}

/// A component under one agent's grants: everything that its calls share.
pub(crate) struct Guest {
    pub(crate) engine: Arc<Engine>,
    pub(crate) digest: String,
    pub(crate) source: String,
    pub(crate) limits: Limits,
    /// Bytes of memory that an instance begins with.
    pub(crate) begin_bytes: BeginBytes,
    /// The workspace if the component may use files. Each call opens it for itself.
    pub(crate) workspace: Option<Workspace>,
    /// The bounds on what it adds to the workspace, if it has one.
    pub(crate) bounds: Option<Arc<Bounds>>,
    /// Folders for WASI's file system.
    pub(crate) preopens: Vec<Preopen>,
    pub(crate) hears_cancellation: bool,
    /// The part of the conversation that later steps of an agent are given.
    pub(crate) view: ConversationView,
}
