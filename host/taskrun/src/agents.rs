//! Agents as a host has them: models, rules and limits under one name, and the code of component
//! and tools, which may be loaded when it is wanted first.

mod contract;
mod loaded;
mod tools;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::channel::Channel;
use taskrun_journal::delivery::DeliverySettings;
use taskrun_journal::history::History;
use taskrun_journal::pin::{self, agent_of};
use taskrun_journal::spec::TreeBounds;
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::template::Prompts;
use taskrun_policy::{
    AgentRules, AskRules, AutonomySettings, Budget, DelegationSettings, Heartbeat, Limits,
    MissingFields, Retry, RetryOn, Upgrade,
};

pub(crate) use self::contract::{broken_promise, check_bounds};
pub use self::loaded::{LoadedTool, ToolsError, check_rules, functions};
pub use self::tools::{AgentTool, AgentTools, BoundTags, CallBound, schemas_are_usable};
use crate::gate::Guard;
use crate::gate::rights::AgentRights;
pub use crate::host_tools::Callee;
use crate::ports::planner::Planner;
use crate::ports::transport::Subscribers;
use crate::scope::Models;

/// A named agent: everything that is known of it without its code, and where that comes from.
#[derive(Clone)]
pub struct Agent {
    /// Its name in the policy.
    pub name: String,
    /// Its pin: its name and a digest of all that decides about its runs
    /// ([`taskrun_journal::pin`]).
    pub pin: String,
    /// Digest of its component: `blake3:` and hexadecimal digits.
    pub digest: String,
    /// True if its component has a finalizer.
    pub has_finalizer: bool,
    /// Its component and its tools.
    pub code: CodeSource,
    /// Models it may ask.
    pub models: Arc<Models>,
    /// Its rules, which bind its runs and all runs beneath them.
    pub rules: Arc<AgentRules>,
    /// The agent of its name in the policy as it is now, where this one is of an earlier policy.
    pub now: Option<AgentNow>,
    /// The policy file that its runs were accepted under, where the host has another one.
    pub origin: Option<Origin>,
    /// Prompts it may have rendered, where its rules say so.
    pub prompts: Arc<Prompts>,
    /// Limits of a step and of a run.
    pub limits: Limits,
    /// Budget of a run.
    pub budget: Budget,
    /// Agents that its runs may start runs of.
    pub members: Vec<String>,
    /// Bounds of the trees in which its runs have a part.
    pub tree: TreeBounds,
    /// True if its runs are continued after the death of their host; otherwise they fail then.
    pub durable: bool,
    /// The retries of a plan step that failed.
    pub retry: Retry,
    /// The failures after which that is done, unless the program decides about them.
    pub retry_on: RetryOn,
    /// The settings of its runs that go on by themselves; with it, those that another run starts do so unasked.
    pub autonomous: Option<AutonomySettings>,
    /// When it works on the entries that wait for it; `None` if it takes none.
    pub heartbeat: Option<Heartbeat>,
    /// The delivery of the outcomes of runs that its runs start and do not wait for.
    pub delivery: DeliverySettings,
    /// Most nudges of a conversation of it in an hour.
    pub max_nudges: u32,
    /// Of which earlier runs of their session its runs are told that converse.
    pub conversation: History,
    /// Tool calls for which a person is asked.
    pub ask: AskRules,
    /// The consequence of a tool call that lacks fields.
    pub on_missing_fields: MissingFields,
    /// The form of it that its open runs have.
    pub upgrade: Upgrade,
    /// True if its runs can be paused.
    pub interrupts: bool,
    /// The subscribers that are told of its runs.
    pub subscribers: Vec<String>,
    /// The channels that its runs have which nothing is above, by their names.
    pub channels: Vec<String>,
    /// The settings of the tasks that its runs delegate into rooms.
    pub delegation: DelegationSettings,
}

/// The current counterpart of an agent of an earlier policy.
#[derive(Clone)]
pub struct AgentNow {
    /// Its pin, or what stands for it if its components are missing
    /// ([`taskrun_journal::pin::pin_of_rules`]).
    pub pin: String,
    /// Its rules: they bind the runs of the earlier one too.
    pub rules: Arc<AgentRules>,
}

/// The policy file that runs of an agent were accepted under, on a host of another one.
#[derive(Clone)]
pub struct Origin {
    /// The path of the file.
    pub policy: String,
    /// The agent of its name in that file as it is now, where it is another one than when the runs
    /// were accepted.
    pub now: Option<AgentNow>,
}

/// The agents of other policy files as they are now, by path and name: of the files that runs on
/// this host were accepted under.
pub type Origins = BTreeMap<String, Arc<BTreeMap<String, AgentNow>>>;

impl Agent {
    /// The pin of the agent of this name in the policy as it is now.
    #[must_use]
    pub(crate) fn pin_now(&self) -> &str {
        self.now.as_ref().map_or(&self.pin, |now| &now.pin)
    }

    /// Its pin in each of the policies that bind its runs as they are now, as one text.
    #[must_use]
    pub(crate) fn pins_now(&self) -> String {
        let origin = self.origin.as_ref().and_then(|origin| origin.now.as_ref());
        pin::join(std::iter::once(self.pin_now()).chain(origin.map(|now| &*now.pin)))
    }

    /// True if runs under way of this agent are bound by another form of it as by this one. The
    /// bounds of their rounds, and the form that they are to have, are in no pin.
    #[must_use]
    pub(crate) fn binds_like(&self, other: &Self) -> bool {
        self.pin == other.pin
            && self.upgrade == other.upgrade
            && self.rounds_bounds() == other.rounds_bounds()
    }

    /// True if a run of this agent that is under way, by its pin and whether it goes on by itself,
    /// is bound as it was when this form takes the place of the one before.
    #[must_use]
    pub(crate) fn binds_run_like(&self, before: &Self, (pin, is_autonomous): (&str, bool)) -> bool {
        let is_to_adopt =
            self.upgrade == Upgrade::Adopt && before.upgrade != self.upgrade && self.pin != pin;
        let has_other_rounds = is_autonomous && self.rounds_bounds() != before.rounds_bounds();
        self.pin == before.pin && !is_to_adopt && !has_other_rounds
    }

    /// The most rounds of its runs and their longest deferral, as they bind those under way.
    fn rounds_bounds(&self) -> (Option<u32>, Option<Duration>) {
        let usual = AutonomySettings::default();
        let stated = self.autonomous.as_ref().unwrap_or(&usual);
        (stated.rounds, stated.max_defer)
    }

    /// Its rules, as they bind its runs and all runs beneath those.
    #[must_use]
    pub(crate) fn rights(&self) -> AgentRights<'_> {
        let origin = self.origin.as_ref().and_then(|origin| origin.now.as_ref());
        AgentRights {
            rules: &self.rules,
            now: self.now.iter().chain(origin).map(|now| &now.rules).collect(),
            models: self.models.by_name.keys().map(String::as_str).collect(),
            prompts: self.prompts.ids().collect(),
        }
    }
}

/// The code of an agent, ready to be called.
#[derive(Clone)]
pub struct AgentCode {
    /// Its component.
    pub planner: Arc<dyn Planner>,
    /// Tools it may call.
    pub tools: AgentTools,
    /// Which engines decide about its tools.
    pub guard: Guard,
    /// Bytes of native code in memory, by the digests of the components: agents share those that are
    /// the same.
    pub native: BTreeMap<String, u64>,
}

/// Where the code of an agent comes from.
#[derive(Clone)]
pub enum CodeSource {
    /// It is loaded.
    Loaded(Arc<AgentCode>),
    /// It is loaded when a run wants it, which may take minutes where it is compiled.
    OnDemand(Arc<dyn LoadCode>),
}

/// The reason that the code of an agent does not load, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadFault {
    /// A component of it is at fault: it does not load here, however often that is tried. A run that
    /// has not begun fails.
    #[error("{words}")]
    Component {
        /// The fault for people, with the places of the host that it is about.
        words: String,
        /// The fault for guests and models, without those.
        for_guest: String,
    },
    /// Something else is: it may load in a moment, and runs wait for that.
    #[error("{0}")]
    Host(String),
}

impl LoadFault {
    /// A fault of a component in words that name no place of the host.
    #[must_use]
    pub fn of_component(words: String) -> Self {
        Self::Component { for_guest: words.clone(), words }
    }

    /// The fault for guests and models.
    #[must_use]
    pub fn for_guest(&self) -> &str {
        match self {
            Self::Component { for_guest, .. } => for_guest,
            Self::Host(_) => "it cannot be loaded now",
        }
    }
}

/// Loads the code of one agent.
#[async_trait]
pub trait LoadCode: Send + Sync {
    /// Loads it. Two calls at once may do the work twice.
    ///
    /// # Errors
    /// [`LoadFault`].
    ///
    /// # Cancel safety
    /// Dropping the future gives up the load.
    async fn load(&self) -> Result<AgentCode, LoadFault>;

    /// The functions that the agent may call, under their qualified names, if they are known
    /// without its code.
    fn functions(&self) -> Option<Arc<Vec<ToolSpec>>>;
}

impl CodeSource {
    /// The code, if it is loaded.
    #[must_use]
    pub fn loaded(&self) -> Option<&Arc<AgentCode>> {
        match self {
            Self::Loaded(code) => Some(code),
            Self::OnDemand(_) => None,
        }
    }
}

/// An agent of the policy that does not load.
#[derive(Clone)]
pub struct UnusableAgent {
    /// Its pin and its rules.
    pub now: AgentNow,
    /// The reason in words for people, in one line.
    pub reason: String,
}

/// All agents of a host, under one policy.
#[derive(Clone, Default)]
pub struct Agents {
    /// The file of the policy.
    pub policy: Arc<str>,
    /// The agents by name.
    pub by_name: BTreeMap<String, Arc<Agent>>,
    /// Agents that the policy has, and of which no run can begin, as they do not load. Those that
    /// were accepted with them as they were before go on, within their rules.
    pub unusable: BTreeMap<String, UnusableAgent>,
    /// The descriptions of agents, which stand in the tools of those that start runs of them, and in
    /// no pin.
    pub descriptions: Arc<BTreeMap<String, String>>,
    /// The subscribers of the policy.
    pub subscribers: Subscribers,
    /// The channels of the policy, by their names.
    pub channels: BTreeMap<String, Channel>,
    /// The agents of other files, which bind the runs that were accepted under those.
    pub origins: Origins,
}

impl Agents {
    /// True if the policy has an agent of this name.
    #[must_use]
    pub(crate) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name) || self.unusable.contains_key(name)
    }

    /// The names of all agents of the policy.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.by_name.keys().chain(self.unusable.keys())
    }

    /// The agent of this name under this policy; `None` if it has none.
    #[must_use]
    pub fn now(&self, name: &str) -> Option<AgentNow> {
        let usable = self.by_name.get(name).map(|agent| AgentNow {
            pin: agent.pin_now().to_owned(),
            rules: Arc::clone(agent.now.as_ref().map_or(&agent.rules, |now| &now.rules)),
        });
        usable.or_else(|| self.unusable.get(name).map(|agent| agent.now.clone()))
    }

    /// The agent with this pin.
    #[must_use]
    pub(crate) fn with_pin(&self, pin: &str) -> Option<&Arc<Agent>> {
        self.by_name.get(agent_of(pin)).filter(|agent| agent.pin == pin)
    }
}
