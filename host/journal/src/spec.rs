//! The request of a run, as it was accepted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::answers::Answers;
use crate::autonomy::{Autonomy, Schedule};
use crate::channel::Channel;
use crate::delivery::Delivery;
use crate::dispatch::Subscription;
use crate::fact::{FactNamespace, MemoryScope, OwnerSession};
use crate::history::History;
use crate::ids::RunId;
use crate::media::Media;
use crate::message::{Labels, Message, Usage};
use crate::narrowing::{Ancestor, Narrowing};
use crate::reply::Reply;
use crate::time::Timestamp;

/// Most labels, metadata keys or envelope keys of a run.
pub const KEYS_MAX: usize = 64;
/// Most bytes of one key or value of those.
pub const KEY_BYTES_MAX: usize = 4 << 10;
/// Most bytes of a task. It is shown to a model whole; larger inputs belong into the workspace.
pub const TASK_BYTES_MAX: usize = 256 << 10;
/// Most bytes of an entry's task: a few of them make up one task.
pub const ENTRY_BYTES_MAX: usize = 64 << 10;

/// The host's own keys in the state of a run, unless the request names others: that it is one, its
/// id, and the session from which it was asked.
pub const HOST_KEYS: [&str; 3] = ["taskrun.run", "taskrun.run_id", "taskrun.parent_session_id"];

/// The request of a run, as accepted. Never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// Id of the run.
    pub id: RunId,
    /// Tenant it belongs to.
    pub tenant: String,
    /// The user that asked.
    pub owner_user_id: String,
    /// Session from which it was asked.
    pub parent_session_id: String,
    /// Application from which it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_app_name: Option<String>,
    /// Application it runs as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_name: Option<String>,
    /// Session of the run, where the caller fixed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child_session_id: Option<String>,
    /// Name of its execution, where the caller fixed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Agent that does it.
    pub agent_name: String,
    /// Digest of that agent's component.
    pub agent_digest: String,
    /// Pin of the agent as it was accepted: the run is executed with the component, the tools and
    /// the settings of then, within the rules and the limits of then and now.
    pub pin: String,
    /// The task, trimmed.
    pub task: String,
    /// The images that belong to the task, which are kept with the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Media>,
    /// The time that it may run; waiting in the queue does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// State given to the component: the caller's keys with the host's over them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub envelope: BTreeMap<String, String>,
    /// The names of the host's own keys in that state, where the caller chose them: that the
    /// component belongs to a run, the run's id, and its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envelope_keys: Option<[String; 3]>,
    /// Messages put before the task; not part of any stored conversation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context_messages: Vec<Message>,
    /// The run's name, see [`crate::name`]; while it is open no other run of the same place
    /// has this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Keys and values to find it by.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Keys and values that are shown with it.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub metadata: Labels,
    /// Run that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// Tool call of that run which this one is: its end is the call's result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_tool_call_id: Option<String>,
    /// True if it is canceled when the run that started it ends, however that ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub attached: bool,
    /// First run of its tree.
    pub root_run_id: RunId,
    /// Session from which that was asked for, where it is another one than this run's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_session_id: Option<String>,
    /// Runs above it.
    pub depth: u32,
    /// Bounds of its tree: the smallest depth of its own agent and of those above it, and the numbers
    /// of runs and slots of the first one.
    #[serde(default, skip_serializing_if = "TreeBounds::is_open")]
    pub tree: TreeBounds,
    /// The narrowing of the request.
    #[serde(default, skip_serializing_if = "Narrowing::is_empty")]
    pub narrow: Narrowing,
    /// The runs above it, the root first: it may do nothing that one of their agents may not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ancestors: Vec<Ancestor>,
    /// Higher ones first.
    pub priority: i32,
    /// True if the run is continued after the death of its host; otherwise it fails then.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub durable: bool,
    /// True if the agent has a finalizer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub finalizer: bool,
    /// True if it begins only when no earlier serial run of its parent session is open.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub serial: bool,
    /// The name of those with which it takes turns if it is serial, where they are others than the runs
    /// of its parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial_in: Option<String>,
    /// Where the random numbers of its plan steps come from, so that a step that runs again is
    /// given the same; 32 hexadecimal digits.
    #[serde(default)]
    pub seed: String,
    /// Of which earlier runs of its session it is told.
    #[serde(default, skip_serializing_if = "History::is_none")]
    pub history: History,
    /// The delivery of its outcome; `None` if nobody is told who does not wait for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Delivery>,
    /// The settings of a run that goes on by itself; `None` for one that its first answer ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autonomy: Option<Autonomy>,
    /// The answerer of its questions.
    #[serde(default, skip_serializing_if = "Answers::is_inbox")]
    pub answers: Answers,
    /// The run that it continues, with what it has of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<Box<Continuation>>,
    /// The subscribers outside of the runs that are told of it, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subscriptions: Vec<Subscription>,
    /// The channels that it has, each of one name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<Channel>,
    /// By whom it is begun.
    #[serde(default, skip_serializing_if = "RunClass::is_task")]
    pub class: RunClass,
    /// The entries that it works on, if it is the batch run of a heartbeat.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<RunId>,
    /// The runs of whose outcomes it is to be told, if it is a nudge ([`crate::delivery::Strategy`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nudge_for: Vec<RunId>,
    /// Nudges from which its tree comes, one after the other: at most
    /// [`HOPS_MAX`](crate::delivery::HOPS_MAX).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hops: u32,
    /// When it was accepted.
    pub created_at: Timestamp,
}

/// A run that another one continues, and where that begins therefore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Continuation {
    /// The run, which has ended.
    pub run: RunId,
    /// Its turns.
    pub turns: u32,
    /// Its rounds.
    pub rounds: u32,
    /// Its tool calls.
    pub tool_calls: u32,
    /// The time that it ran, in milliseconds.
    pub ran_ms: u64,
    /// The usage of the run, with everything beneath it.
    pub usage: Usage,
    /// True if that stays as it is: nothing was open beneath the run any more, nor beneath those
    /// that it continues in turn.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_final: bool,
    /// Its answer.
    pub reply: Reply,
    /// The wake-up for which it ended: this one is deferred until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Schedule>,
}

/// Bounds of a tree of runs; what is not stated is bounded by the host alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeBounds {
    /// The most levels beneath the first run of the tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// The most runs, ended ones included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<u64>,
    /// The runs that hosts execute at once. The same in all runs of a tree, as stores go by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
}

impl TreeBounds {
    /// True if nothing is stated.
    #[must_use]
    pub fn is_open(&self) -> bool {
        *self == Self::default()
    }

    /// Of each bound the smaller.
    #[must_use]
    pub fn least(&self, other: &Self) -> Self {
        fn of<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        Self {
            depth: of(self.depth, other.depth),
            runs: of(self.runs, other.runs),
            slots: of(self.slots, other.slots),
        }
    }
}

/// By whom a run is begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunClass {
    /// By the first host with a free slot.
    #[default]
    Task,
    /// By the heartbeat of its agent, which takes it into a batch with others: an entry. No host
    /// executes it itself and it takes no slot; the batch run works on it.
    Heartbeat,
}

impl RunClass {
    /// True if it is the usual one, which is not written down.
    #[must_use]
    pub fn is_task(&self) -> bool {
        match self {
            Self::Task => true,
            Self::Heartbeat => false,
        }
    }
}

impl RunSpec {
    /// True if a host started it so that somebody is told of outcomes.
    #[must_use]
    pub fn is_nudge(&self) -> bool {
        !self.nudge_for.is_empty()
    }

    /// The host's own keys in its state.
    #[must_use]
    pub fn host_keys(&self) -> [&str; 3] {
        self.envelope_keys.as_ref().map_or(HOST_KEYS, |keys| keys.each_ref().map(String::as_str))
    }

    /// Its state without the host's own keys.
    #[must_use]
    pub fn given_state(&self) -> BTreeMap<String, String> {
        let keys = self.host_keys();
        let given = self.envelope.iter().filter(|(key, _)| !keys.contains(&key.as_str()));
        given.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Where the facts of a scope are for it: those of a session are those of its whole tree.
    #[must_use]
    pub fn fact_namespace(&self, scope: MemoryScope) -> FactNamespace {
        let session = match scope {
            MemoryScope::Session => {
                let session = self.root_session_id.as_ref().unwrap_or(&self.parent_session_id);
                // A one-shot run has none: its tree remembers for itself.
                let id = match session.is_empty() {
                    true => self.root_run_id.to_string(),
                    false => session.clone(),
                };
                Some(OwnerSession { owner_user_id: self.owner_user_id.clone(), id })
            }
            MemoryScope::Tenant => None,
        };
        FactNamespace { tenant: self.tenant.clone(), session }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the serialiser wants a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the serialiser wants a reference")]
fn is_yes(durable: &bool) -> bool {
    *durable
}
