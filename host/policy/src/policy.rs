//! A policy that was read: its tools and agents, and what each of them may do.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::channel::Channel;
use taskrun_journal::delivery::DeliverySettings;
use taskrun_journal::history::History;
use taskrun_journal::operation::Operation;
use taskrun_journal::spec::TreeBounds;

use crate::ask::AskRules;
use crate::defaults::{Defaults, LimitsOf};
use crate::engine::EnginePolicy;
use crate::files::NamedFile;
use crate::grants::Grants;
use crate::host_tools::{HOST, HostFunction, HostToolSet, TREE_DEPTH_MAX};
use crate::limits::{Budget, LimitSettings, Limits};
use crate::location::{Location, Source};
use crate::model::ModelPolicy;
use crate::named_function::NamedFunction;
use crate::pattern::{AGENTS, Pattern};
use crate::prompt::PromptPolicy;
use crate::settings::{
    AutonomySettings, DelegationSettings, Heartbeat, InterruptionPolicy, MissingFields, Retry,
    RetryOn, Upgrade,
};
use crate::subscriber::SubscriberPolicy;
use crate::timeouts::CallTimeouts;
use crate::workspace::WorkspaceLimits;

/// Largest policy file, in bytes: far beyond what a person can review.
pub const POLICY_BYTES_MAX: usize = 1 << 20;

/// Most rules of an agent: each is compared with each when the file is read, and a decision
/// looks at all of them.
pub const RULES_MAX: usize = 256;

/// Most members of an agent: whoever decides to delegate, be it a model, chooses among all of them.
pub const MEMBERS_MAX: usize = 256;

/// Longest description of an agent, in bytes: it is shown in lists and to models.
pub const DESCRIPTION_BYTES_MAX: usize = 1_024;

/// The time for which the component of a run that ended is kept, unless the policy says otherwise:
/// long enough to look into what it did.
pub const COMPONENTS_KEPT_DEFAULT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Shortest such time: hosts have what they use count as wanted every few minutes.
pub const COMPONENTS_KEPT_MIN: Duration = Duration::from_secs(60 * 60);

/// Longest such time: ten years.
pub const COMPONENTS_KEPT_MAX: Duration = Duration::from_secs(3_650 * 24 * 60 * 60);

/// A policy file in which nothing was found wrong.
#[derive(Debug, Clone)]
pub struct Policy {
    /// The file, as it was named when it was loaded. Relative paths in it start at its folder.
    pub path: PathBuf,
    /// BLAKE3 hash of the file's text, 64 hexadecimal digits; if prompts stand in files of their
    /// own, of their texts too once these are read.
    pub digest: String,
    /// `root` of `[workspace]`, resolved; the file's folder if there is none.
    pub(crate) workspace_root: PathBuf,
    /// The time for which a component is kept that nothing needs: `components` of `[retention]`, from
    /// [`COMPONENTS_KEPT_MIN`] to [`COMPONENTS_KEPT_MAX`]. Default [`COMPONENTS_KEPT_DEFAULT`].
    pub components_kept: Duration,
    /// By name.
    pub models: BTreeMap<String, ModelPolicy>,
    /// By id.
    pub prompts: BTreeMap<String, PromptPolicy>,
    /// By name.
    pub tools: BTreeMap<String, ToolPolicy>,
    /// By name.
    pub agents: BTreeMap<String, AgentPolicy>,
    /// The descriptions of the agents that state one, by their names: of all of them, also
    /// [around](Self::around) a single one.
    pub descriptions: Arc<BTreeMap<String, String>>,
    /// By kind and name, as in `webhook/ci`; at most
    /// [`SUBSCRIBERS_MAX`](crate::SUBSCRIBERS_MAX).
    pub subscribers: BTreeMap<String, SubscriberPolicy>,
    /// By name; at most [`CHANNELS_MAX`](taskrun_journal::channel::CHANNELS_MAX) are those of one run.
    pub channels: BTreeMap<String, Channel>,
    pub(crate) defaults: Arc<Defaults>,
    pub(crate) source: Source,
    pub(crate) files: Vec<NamedFile>,
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
    pub(crate) stated_limits: LimitSettings,
    /// The fate of a call that the death of its host cut off. Default [`InterruptionPolicy::Fail`].
    /// Of no meaning for functions that are idempotent or read-only: those are called again.
    pub interrupted: InterruptionPolicy,
    /// Tags of all its functions, instead of those that the tool itself says; at most 256. Tags
    /// that allow something have to stand here.
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
    pub tools: Vec<Pattern>,
    /// Agents that it may call as tools, each one of the policy's and named once, in the order of
    /// the file: `agent/NAME` among its tools, or all of [`Self::members`] for `agent/*`. Its runs
    /// may start runs of them. At most [`MEMBERS_MAX`].
    pub callees: Vec<String>,
    /// The tools of the host that it may call, each once: those named under `tools`, or, for one
    /// that names none and has [`Self::members`], those of [`HostToolSet::Tasks`] that its rules
    /// allow.
    pub host_tools: Vec<HostFunction>,
    /// Bounds of the trees that begin with its runs. Default: see [`Self::tree_depth`].
    pub tree: TreeBounds,
    /// Agents that its runs may start runs of, each one of the policy's and named once, in the
    /// order of the file; all of the policy's, itself included, if the file says `["*"]`. At most
    /// [`MEMBERS_MAX`]. Default none.
    pub members: Vec<String>,
    /// The model it gets when it names none; always one of the policy's.
    pub model: Option<String>,
    /// The folder that its rules about files start at, resolved. Default the workspace's root.
    pub workspace: PathBuf,
    /// The workspace's root, out of which that folder must not lead by a link. `None` for an agent
    /// that has the root itself.
    pub workspace_root: Option<PathBuf>,
    /// The bounds of that folder: those of the policy's `[workspace]`.
    pub workspace_limits: WorkspaceLimits,
    /// The rules for all that it and the tools that it calls do: all who ask share them.
    pub grants: Arc<Grants>,
    /// Limits of its plan steps and of its run. For a tool call see [`AgentPolicy::call_limits`].
    pub limits: Limits,
    /// Those of its limits that the file states.
    pub(crate) stated_limits: LimitSettings,
    /// Time-outs of calls of single functions, instead of `call` of its limits. Default none.
    pub timeouts: CallTimeouts,
    /// The budget of one of its runs.
    pub budget: Budget,
    /// If set, its runs are continued after the death of their host; otherwise they fail then.
    /// Default `true`.
    pub durable: bool,
    /// The further attempts at a plan step that failed in a way that may pass. At most
    /// [`RETRY_ATTEMPTS_MAX`](crate::RETRY_ATTEMPTS_MAX) attempts, the first pause at most
    /// [`RETRY_PAUSE_MAX`](crate::RETRY_PAUSE_MAX).
    pub retry: Retry,
    /// The failures of a plan step after which that is done.
    pub retry_on: RetryOn,
    /// The settings of its runs that go on by themselves. With it, those that another run starts do
    /// so too. Default as in [`AutonomySettings`] for runs that are asked to, and none beneath others.
    pub autonomous: Option<AutonomySettings>,
    /// When it works on the entries that wait for it, every
    /// [`HEARTBEAT_INTERVAL_MIN`](crate::HEARTBEAT_INTERVAL_MIN) to
    /// [`HEARTBEAT_INTERVAL_MAX`](crate::HEARTBEAT_INTERVAL_MAX). Default never; a file may say so
    /// with an interval of zero.
    pub heartbeat: Option<Heartbeat>,
    /// The delivery of the outcomes of runs that its runs start and do not wait for. Default: with
    /// the next run of the conversation.
    pub delivery: DeliverySettings,
    /// Most runs that hosts start in an hour of a conversation so that it is told of outcomes. At
    /// most [`NUDGES_MAX`](crate::NUDGES_MAX); default [`NUDGES_DEFAULT`](crate::NUDGES_DEFAULT).
    pub max_nudges: u32,
    /// Of which earlier runs of their session its runs are told that converse. Default those of
    /// the same agent.
    pub conversation: History,
    /// The engines that decide, turn by turn, which of its tools it may use. Default none: it may
    /// use all of them in every turn.
    pub engine: Option<EnginePolicy>,
    /// Which of its calls need the consent of a person. Default none.
    pub ask: AskRules,
    /// The functions that its rules about calls name each by itself, none of a policy that is kept:
    /// its tools have to have them. See [`NamedFunction`].
    pub named_functions: Vec<NamedFunction>,
    /// The consequence of a tool call that lacks fields. Default: its planner decides.
    pub on_missing_fields: MissingFields,
    /// The form of it that its open runs have. Default: the one that they were accepted with.
    pub upgrade: Upgrade,
    /// True if its runs can be paused. Default true.
    pub interrupts: bool,
    /// The subscribers that are told of its runs, each once: of [`Policy::subscribers`], or such that
    /// a program registers. At most
    /// [`SUBSCRIPTIONS_MAX`](taskrun_journal::dispatch::SUBSCRIPTIONS_MAX). Default none.
    pub subscribers: Vec<String>,
    /// The channels that its runs have which nothing is above, each once: of [`Policy::channels`]. At
    /// most [`CHANNELS_MAX`](taskrun_journal::channel::CHANNELS_MAX). Default none.
    pub channels: Vec<String>,
    /// The settings of the tasks that its runs delegate into rooms of their own.
    pub delegation: DelegationSettings,
    pub(crate) defaults: Arc<Defaults>,
    /// Of its table's header.
    pub location: Location,
}

impl Policy {
    /// The text of the file.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.source.text
    }

    /// The settings of its agents and tools where it states none.
    #[must_use]
    pub fn defaults(&self) -> &Arc<Defaults> {
        &self.defaults
    }

    /// The files that decide what the policy means, beside its own: those of its prompts, its
    /// components and what its models read.
    pub fn files_read(&self) -> impl Iterator<Item = &Path> {
        let agents = self.agents.values().flat_map(|agent| self.files_of(agent));
        let tools = self.tools.values().map(|tool| tool.component.as_path());
        let models = self.models.values().flat_map(ModelPolicy::files_read);
        let prompts = self.prompts.values().flat_map(PromptPolicy::templates);
        let prompts = prompts.filter_map(|template| template.file.as_deref());
        agents.chain(tools).chain(models).chain(prompts)
    }

    /// The part of it by which one of its agents is loaded: all but the agents that it does not call.
    #[must_use]
    pub fn around(&self, agent: &AgentPolicy) -> Self {
        let Self {
            path,
            digest,
            workspace_root,
            components_kept,
            models,
            prompts,
            tools,
            agents,
            descriptions,
            subscribers,
            channels,
            defaults,
            source,
            files,
        } = self;
        let is_needed = |name: &String| *name == agent.name || agent.callees.contains(name);
        let needed = agents.iter().filter(|(name, _)| is_needed(name));
        Self {
            path: path.clone(),
            digest: digest.clone(),
            workspace_root: workspace_root.clone(),
            components_kept: *components_kept,
            models: models.clone(),
            prompts: prompts.clone(),
            tools: tools.clone(),
            agents: needed.map(|(name, agent)| (name.clone(), agent.clone())).collect(),
            descriptions: Arc::clone(descriptions),
            subscribers: subscribers.clone(),
            channels: channels.clone(),
            defaults: Arc::clone(defaults),
            source: source.clone(),
            files: files.clone(),
        }
    }

    /// The texts of the prompts that stand in files of their own, as far as they were read.
    #[must_use]
    pub fn prompt_files(&self) -> BTreeMap<PathBuf, String> {
        let all = self.prompts.values().flat_map(PromptPolicy::templates);
        all.filter_map(|one| Some((one.file.clone()?, one.text.clone()?))).collect()
    }
}

impl AgentPolicy {
    /// Agents that its runs may start runs of, in whatever way.
    pub fn all_members(&self) -> Vec<String> {
        let mut all = self.members.clone();
        all.extend(self.callees.iter().filter(|name| !self.members.contains(name)).cloned());
        all
    }

    /// The levels of runs that there may be beneath a run at the top where a run of this agent has
    /// a part in the tree: as its policy says, or else the smallest that the sets say which it
    /// starts runs by.
    #[must_use]
    pub fn tree_depth(&self) -> u32 {
        let by_sets = HostToolSet::ALL.into_iter().filter(|set| {
            self.host_tools.iter().any(|function| {
                function.set() == Some(*set) && function.operation() == Some(Operation::Spawn)
            })
        });
        let by_sets = by_sets.map(HostToolSet::depth).min().unwrap_or(TREE_DEPTH_MAX);
        self.tree.depth.unwrap_or(by_sets)
    }

    /// Tells if the agent may call the function of this qualified name, `tool/function`.
    pub fn may_call(&self, name: &str) -> bool {
        self.tools.iter().any(|pattern| pattern.matches_name(name))
    }

    /// Tells if the agent may call the agent, or the tool of the host, of this qualified name.
    pub fn calls_without_component(&self, name: &str) -> bool {
        match name.split_once('/') {
            Some((AGENTS, callee)) => self.callees.iter().any(|name| name == callee),
            Some((HOST, function)) => self.host_tools.iter().any(|own| own.as_str() == function),
            _ => false,
        }
    }

    /// Tells if the agent may call any function of this tool.
    pub fn uses_tool(&self, tool: &str) -> bool {
        let all = Pattern::all_of(tool);
        self.tools.iter().any(|pattern| pattern.overlaps(&all))
    }

    /// The limits of a call of `tool` by this agent: of each limit that both state the smaller,
    /// of one that only one states that, of one that none states the default.
    pub fn call_limits(&self, tool: &ToolPolicy) -> Limits {
        let stated = self.stated_limits.narrowed_by(&tool.stated_limits);
        self.defaults.limits(&stated, LimitsOf::Agent)
    }

    /// The time-outs of its calls of `tool`, which are never longer than the tool's own limit.
    pub fn call_timeouts(&self, tool: &ToolPolicy) -> CallTimeouts {
        self.timeouts.within(tool.stated_limits.call)
    }
}

/// The functions of an agent, by patterns.
pub(crate) fn functions(
    tools: &[Pattern],
    callees: &[String],
    host_tools: &[HostFunction],
) -> Vec<Pattern> {
    let callees = callees.iter().map(|name| Pattern::Name(format!("{AGENTS}/{name}")));
    let host_tools = host_tools.iter().map(|function| Pattern::Name(function.qualified()));
    tools.iter().cloned().chain(callees).chain(host_tools).collect()
}
