//! What the operator allows: the policy file `taskrun.toml`, read and decided about.
//!
//! A policy names models, tools and agents, and says for each agent what its components may do.
//! Everything is checked when the file is read, and every problem is reported at once with its
//! place and what to write instead. Decisions are pure: deny beats allow, and what no rule allows
//! is denied. Nothing here reads a file but [`Policy::load`] and [`Policy::check_files`].
//!
//! The crate knows records and their words from `taskrun-journal`. It knows no controller, no driver,
//! no engine and no store, and nothing in it waits.
//!
//! ```toml
//! [model.fast]
//! provider = "openai"                                  # any server that speaks its protocol
//! base_url = "http://127.0.0.1:8080/v1"
//! model    = "smollm2"
//! key_file = "secrets/openai"
//!
//! [prompt.brief]
//! template  = "Answer in one sentence: {{ question }}"   # or: file = "prompts/brief.md"
//! overrides = [{ labels = ["tier=gold"], file = "prompts/gold.md" }]
//!
//! [tool.workspace]
//! component   = "components/workspace.wasm"
//! interrupted = "ask"                                  # a call cut off by a crash
//!
//! [agent.readonly_researcher]
//! component = "components/researcher.wasm"
//! tools     = ["workspace/list", "workspace/read"]
//! model     = "fast"                                   # also allows "model: fast"
//! allow     = ["workspace-read: docs/**", "http: GET https://api.example.com/v1/**"]
//! deny      = ["workspace-write: **"]                  # linked, always refused
//! limits    = { memory = "64MiB", call = "10s", tool_calls = 40 }
//! budget    = { turns = 20, tokens = 200_000, wall = "20m" }
//! retry     = { attempts = 3, pause = "1s" }
//! heartbeat = { interval = "60s" }                     # works on entries, in batches
//! timeouts  = { "workspace/read" = "2s", "workspace/*" = "5s" }
//! policy    = { block_tags = ["slow"] }                # decided anew in each turn
//! ask       = ["tool: workspace/read"]                 # a person has to agree
//! on_missing_fields = "await_clarification"            # a call that lacks fields
//!
//! [agent.lead]
//! component = "components/lead.wasm"
//! tools     = ["agent/readonly_researcher"]            # calls it as a tool
//! members   = ["readonly_researcher"]                  # may start runs of it
//! allow     = ["controller: spawn", "controller: wait"] # by itself, from within
//! durable   = false                                    # its own runs fail with their host
//! ```

mod ask;
mod chain;
mod check;
mod error;
mod files;
mod grants;
mod http;
mod http_request;
mod limits;
mod location;
mod memory;
mod metrics;
mod model;
mod names;
mod parse;
mod parse_agent;
mod parse_callees;
mod parse_guard;
mod parse_limits;
mod parse_model;
mod path_glob;
mod place;
mod prompts;
mod quantity;
mod read;
mod rule;
mod settings;
pub mod template;
#[cfg(test)]
mod tests;
mod timeouts;
mod tool_lists;
mod workspace;

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use taskrun_journal::history::History;

pub use ask::{ASK_TIMEOUT_DEFAULT, ASK_TIMEOUT_MAX, AskRule, AskRules, Asked};
pub use chain::{AgentRules, CallRules, Chain, Denied};
pub use error::{PolicyError, PolicyErrorKind, PolicyErrors, PolicyLoadError};
pub use grants::{Decision, Grants, Preopen, Standing};
pub use http::{HostPattern, HttpSelector, Scheme};
pub use http_request::HttpTarget;
pub use limits::*;
pub use location::Location;
pub use memory::MemorySelector;
pub use metrics::MetricSelector;
pub use model::*;
pub use names::folded;
pub use parse_callees::AGENTS;
pub use parse_guard::{ENGINE_TIMEOUT_MAX, EnginePolicy, POLICY_TIMEOUT};
pub use path_glob::{GLOB_SEGMENTS_MAX, PATH_BYTES_MAX, PathGlob};
pub use prompts::{PROMPT_OVERRIDES_MAX, PromptOverridePolicy, PromptPolicy, PromptTemplate};
pub use quantity::size;
pub use rule::{
    Capability, Declared, ModelSelector, OperationSelector, PromptSelector, Rule, Selector,
    Verdict, parse_denial,
};
pub use settings::{Heartbeat, Interrupted, MissingFields, Retry, SKIPS_DEFAULT, Then};
pub use timeouts::{CallTimeouts, TIMEOUTS_MAX, is_about};
pub use tool_lists::{POLICY_LABEL_BYTES_MAX, POLICY_LABELS_MAX, PolicyDecision, ToolLists};
pub use workspace::*;

/// Largest policy file, in bytes: far beyond what a person can review.
pub const POLICY_BYTES_MAX: usize = 1 << 20;

/// Most rules of an agent: each is compared with each when the file is read, and a decision
/// looks at all of them.
pub const RULES_MAX: usize = 256;

/// Most members of an agent: whoever decides to delegate, be it a model, chooses among all of them.
pub const MEMBERS_MAX: usize = 256;

/// Longest description of an agent, in bytes: it is shown in lists and to models.
pub const DESCRIPTION_BYTES_MAX: usize = 1_024;

/// A policy file in which nothing was found wrong.
#[derive(Debug, Clone)]
pub struct Policy {
    /// The file, as it was named when it was loaded. Relative paths in it start at its folder.
    pub path: PathBuf,
    /// BLAKE3 hash of the file's text, 64 hexadecimal digits; if prompts stand in files of their
    /// own, of their texts too once these are read.
    pub digest: String,
    /// `root` of `[workspace]`, resolved; the file's folder if there is none.
    pub workspace_root: PathBuf,
    /// By name.
    pub models: BTreeMap<String, ModelPolicy>,
    /// By id.
    pub prompts: BTreeMap<String, PromptPolicy>,
    /// By name.
    pub tools: BTreeMap<String, ToolPolicy>,
    /// By name.
    pub agents: BTreeMap<String, AgentPolicy>,
    source: location::Source,
    files: Vec<files::NamedFile>,
}

/// A tool that agents can be granted: `[tool.NAME]`. What it may do depends on the agent that
/// calls it, so it has no rules of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolPolicy {
    /// `[a-z][a-z0-9_-]{0,63}`.
    pub name: String,
    /// Its component, resolved.
    pub component: PathBuf,
    /// Its limits where no agent is concerned, as for `describe`. For a call see
    /// [`AgentPolicy::call_limits`].
    pub limits: Limits,
    /// Those of its limits that the file states.
    pub stated_limits: LimitSettings,
    /// What becomes of a call that the death of its host cut off. Default [`Interrupted::Fail`].
    /// Of no meaning for functions that are idempotent or read-only: those are called again.
    pub interrupted: Interrupted,
    /// Tags of all its functions, instead of those that the tool itself says; at most 256. Tags that
    /// allow something have to stand here.
    pub tags: Option<Vec<String>>,
    /// Of its table's header.
    pub location: Location,
}

/// An agent: `[agent.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentPolicy {
    /// `[a-z][a-z0-9_-]{0,63}`.
    pub name: String,
    /// For people and for models that choose an agent. At most [`DESCRIPTION_BYTES_MAX`].
    pub description: Option<String>,
    /// Its planner's component, resolved.
    pub component: PathBuf,
    /// The tools it may call, in the order of the file. Default none.
    pub tools: Vec<ToolSelector>,
    /// Agents that it may call as tools, each one of the policy's and named once, in the order of
    /// the file: `agent/NAME` among its tools, or all of [`Self::members`] for `agent/*`. Its runs
    /// may start runs of them. At most [`MEMBERS_MAX`].
    pub callees: Vec<String>,
    /// Agents that its runs may start runs of, each one of the policy's and named once, in the
    /// order of the file; all of the policy's, itself included, if the file says `["*"]`. At most
    /// [`MEMBERS_MAX`]. Default none.
    pub members: Vec<String>,
    /// The model it gets when it names none; always one of the policy's.
    pub model: Option<String>,
    /// The folder that its rules about files start at, resolved. Default the workspace's root.
    pub workspace: PathBuf,
    /// What that folder may hold: those of the policy's `[workspace]`.
    pub workspace_limits: WorkspaceLimits,
    /// What it and the tools that it calls may do.
    pub grants: Grants,
    /// Limits of its plan steps and of its run. For a tool call see [`AgentPolicy::call_limits`].
    pub limits: Limits,
    /// Those of its limits that the file states.
    pub stated_limits: LimitSettings,
    /// How long calls of single functions may take, instead of `call` of its limits. Default none.
    pub timeouts: CallTimeouts,
    /// What one of its runs may spend.
    pub budget: Budget,
    /// Whether its runs are continued after the death of their host; otherwise they fail then.
    /// Default `true`.
    pub durable: bool,
    /// How a plan step that failed in a way that may pass is tried again. At most
    /// [`RETRY_ATTEMPTS_MAX`] attempts, the first pause at most [`RETRY_PAUSE_MAX`].
    pub retry: Retry,
    /// When it works on the entries that wait for it, every [`HEARTBEAT_INTERVAL_MIN`] to
    /// [`HEARTBEAT_INTERVAL_MAX`]. Default never; a file may say so with an interval of zero.
    pub heartbeat: Option<Heartbeat>,
    /// Of which earlier runs of their session its runs are told that converse. Default those of
    /// the same agent.
    pub conversation: History,
    /// Who decides, turn by turn, which of its tools it may use. Default nobody: it may use all of
    /// them in every turn.
    pub engine: Option<EnginePolicy>,
    /// Which of its calls need the consent of a person. Default none.
    pub ask: AskRules,
    /// What follows from a tool call that lacks fields. Default: its planner decides.
    pub on_missing_fields: MissingFields,
    /// Of its table's header.
    pub location: Location,
}

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

impl Policy {
    /// Reads and checks a policy file, and the files of its prompts. The other files that it names
    /// are not looked at; see [`Policy::check_files`].
    ///
    /// # Errors
    ///
    /// [`PolicyLoadError::Read`] if the file cannot be read, [`PolicyLoadError::Invalid`] if
    /// anything in it is wrong.
    pub fn load(path: &Path) -> Result<Self, PolicyLoadError> {
        let unreadable = |source| PolicyLoadError::Read { path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let mut text = String::new();
        // One byte more than allowed, so that a file that is too large is seen to be.
        file.take(POLICY_BYTES_MAX as u64 + 1).read_to_string(&mut text).map_err(unreadable)?;
        let mut policy = Self::parse(&text, path)?;
        policy.read_prompts()?;
        Ok(policy)
    }

    /// Checks the text of a policy file. `path` says where relative paths start and is named in
    /// locations; it is not read.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the text. If it is not TOML, only that.
    pub fn parse(text: &str, path: &Path) -> Result<Self, PolicyErrors> {
        parse::parse(text, path)
    }

    /// Checks that every component and script that the policy names is a file, that every
    /// workspace is a folder, and that no agent's workspace leads out of the root by a symbolic
    /// link. What is true at this moment need not be true later: whoever opens a file checks
    /// again.
    ///
    /// # Errors
    ///
    /// All files that are not so, each with the place where the policy names it.
    pub fn check_files(&self) -> Result<(), PolicyErrors> {
        files::check(&self.source, &self.files)
    }
}

impl AgentPolicy {
    /// Agents that its runs may start runs of, in whatever way.
    pub fn all_members(&self) -> Vec<String> {
        let mut all = self.members.clone();
        all.extend(self.callees.iter().filter(|name| !self.members.contains(name)).cloned());
        all
    }

    /// Whether the agent may call this function of this tool.
    pub fn may_call(&self, tool: &str, function: &str) -> bool {
        self.tools.iter().any(|selector| selector.matches(tool, function))
    }

    /// The limits of a call of `tool` by this agent: of each limit that both state the smaller,
    /// of one that only one states that, of one that none states the default.
    pub fn call_limits(&self, tool: &ToolPolicy) -> Limits {
        self.stated_limits.narrowed_by(&tool.stated_limits).over_defaults(Some(TOOL_CALLS_DEFAULT))
    }

    /// The time-outs of its calls of `tool`, which are never longer than the tool's own limit.
    pub fn call_timeouts(&self, tool: &ToolPolicy) -> CallTimeouts {
        self.timeouts.within(tool.stated_limits.call)
    }
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
