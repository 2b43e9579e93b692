//! A request for a run, and how it is checked.

mod accept;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use taskrun_journal::answers::Answers;
use taskrun_journal::delivery::DeliverySettings;
use taskrun_journal::message::{Labels, Message};
use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::spec::{HOST_KEYS, RunClass, RunSpec, TreeBounds};

use crate::autonomy::AutonomyRequest;
use crate::image::ImageBytes;

pub(crate) use self::accept::{accept, digest_of_parts, fingerprint, narrowing_of, task_digest};

/// Most messages that a request puts before its task.
pub(crate) const CONTEXT_MESSAGES_MAX: usize = 256;

/// A request for a run. All of it can be serialised, so that the same request works in process
/// and through any adapter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpawnRequest {
    /// Id of the run, of the form that [`taskrun_journal::ids::check_own_id`] wants; blank for one
    /// made by the host.
    pub id: Option<String>,
    /// The name that people give the run, see [`taskrun_journal::name`]. While it is open, no other
    /// run with the same parent run has this name; of runs without one, no other of the same owner
    /// and parent session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The user who asks. Required.
    pub owner_user_id: String,
    /// Session from which it is asked. Required, unless the run is a one-shot one, which has none.
    pub parent_session_id: String,
    /// The run belongs to no session: nothing but its own journal tells of it, and what it says is
    /// carried into no other run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub one_shot: bool,
    /// Application from which it is asked.
    pub parent_app_name: Option<String>,
    /// Application it runs as.
    pub app_name: Option<String>,
    /// Session of the run; made by the host unless given.
    pub child_session_id: Option<String>,
    /// Name of the execution; made by the host unless given.
    pub request_id: Option<String>,
    /// Agent to do it. Required.
    pub agent_name: String,
    /// The task. Required.
    pub task: String,
    /// Images that belong to the task: at most
    /// [`MEDIA_MAX`](taskrun_journal::media::MEDIA_MAX), and of
    /// [`MEDIA_TOTAL_BYTES_MAX`](taskrun_journal::media::MEDIA_TOTAL_BYTES_MAX) together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<ImageBytes>,
    /// The running time that it may take: no wait in which no host has it counts. `None` and zero
    /// state no bound.
    pub timeout: Option<Duration>,
    /// State for the component; the host's own keys win over these.
    pub runtime_state: BTreeMap<String, String>,
    /// Names of the host's own keys; each not given keeps its default.
    pub runtime_state_keys: RuntimeStateKeys,
    /// Settings that win over those of the request itself.
    pub run_options: RunOptions,
    /// Messages put before the task, not part of any stored conversation.
    pub injected_context_messages: Vec<Message>,
    /// Keys and values that are shown with the run.
    pub metadata: Labels,
    /// Keys and values to find it by.
    pub labels: Labels,
    /// Higher ones first; 0 unless given.
    pub priority: i32,
    /// The same key with the same request gives the run that was started first. Not blank.
    pub idempotency_key: Option<String>,
    /// If set, the result of the same task of the same agent is used again, where one was
    /// completed within this time; an idempotency key takes the place of the task. What failed or
    /// was canceled is never used again. [`REUSE_DEFAULT`] is what most want.
    pub reuse_within: Option<Duration>,
    /// Run that starts this one.
    pub parent_run_id: Option<String>,
    /// Tool call of that run which this one is: what the run gives at its end is kept for it. Only
    /// together with [`Self::parent_run_id`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_tool_call_id: Option<String>,
    /// The run is canceled when the one that starts it ends, however that ends; otherwise
    /// it goes on. Only together with [`Self::parent_run_id`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub attached: bool,
    /// Bounds of the tree, where they are smaller than those of the agent. Beneath another run only
    /// the depth may be stated, which counts from the first run of the tree.
    #[serde(skip_serializing_if = "TreeBounds::is_open")]
    pub tree: TreeBounds,
    /// The rights of the agent that are taken away.
    #[serde(skip_serializing_if = "Narrowing::is_empty")]
    pub narrow: Narrowing,
    /// True if the run begins only when no earlier serial run of its parent session is open.
    pub serial: bool,
    /// The treatment of a run that cannot begin at once.
    pub when_full: WhenFull,
    /// True if it continues the conversation of its session: it is told of earlier runs that do, as
    /// `conversation` of its agent says, and later ones are told of it. Of no effect for a run
    /// beneath another one, which has its task from there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub converses: bool,
    /// True if a run that asks is told of the outcome when it did not wait for it, or else the next
    /// run of its conversation, as `delivery` of its agent says. Of no effect for what is attached,
    /// for the tool call of a run, and for an entry of a heartbeat.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub delivers: bool,
    /// The run goes on by itself, round after round, until it says that it is done or a budget is used
    /// up; its task is its goal. Not for an entry of a heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autonomous: Option<AutonomyRequest>,
    /// The same as this says instead. A run without one above it is told of in the conversation of
    /// its session and of the agent that this names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySettings>,
    /// The answerer of the run's questions; `None` for that of the run above it,
    /// nobody if it goes on by itself, or people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<Answers>,
    /// Autonomous run that this one continues, which has ended; see
    /// [`crate::controller::Client::continuation`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continues: Option<String>,
    /// Messages that its first turn is shown, as by [`crate::controller::Client::inject`]; they are
    /// kept with the run or not at all. A run that was there before is not told of them. Not for an
    /// entry of a heartbeat.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<String>,
    /// The subscribers that are told of it beside those of its agent: of the policy, or such that a
    /// program registers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subscribers: Vec<String>,
    /// The channels that it has beside those of its agent, by their names in the policy. Not for a run
    /// beneath another one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<String>,
    /// The channels of the run above it that it is given, by their names; other names are passed over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub share_channels: Vec<String>,
    /// By whom it is begun. One that waits for a heartbeat needs an agent that has one, and is not
    /// serial, refused for want of a slot, limited in time, nor has it state or messages of its
    /// own: nobody executes it, its task becomes part of that of a batch run.
    #[serde(skip_serializing_if = "RunClass::is_task")]
    pub class: RunClass,
}

/// The time that a result is used again unless the request says otherwise.
pub const REUSE_DEFAULT: Duration = Duration::from_secs(300);

/// The treatment of a run that cannot begin at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// It waits in the queue, unless that is full too.
    #[default]
    Wait,
    /// It is refused.
    Refuse,
}

/// Settings of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunOptions {
    /// Application it runs as; wins over [`SpawnRequest::app_name`].
    pub app_name: Option<String>,
}

/// Names under which the host puts its own keys into a run's state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuntimeStateKeys {
    /// Instead of `taskrun.run`.
    pub run: Option<String>,
    /// Instead of `taskrun.run_id`.
    pub run_id: Option<String>,
    /// Instead of `taskrun.parent_session_id`.
    pub parent_session_id: Option<String>,
}

impl RuntimeStateKeys {
    /// The names that a run has, for a run beneath it.
    pub(crate) fn of(spec: &RunSpec) -> Self {
        match spec.envelope_keys.clone() {
            None => Self::default(),
            Some([run, run_id, parent_session_id]) => Self {
                run: Some(run),
                run_id: Some(run_id),
                parent_session_id: Some(parent_session_id),
            },
        }
    }

    /// All names, where one at least was chosen.
    fn chosen(&self) -> Option<[String; 3]> {
        let Self { run, run_id, parent_session_id } = self;
        let chosen = [run, run_id, parent_session_id].map(|key| some_text(key.as_deref()));
        let any = chosen.iter().any(Option::is_some);
        let [run, run_id, session] = chosen;
        let [run_key, id_key, session_key] = HOST_KEYS.map(str::to_owned);
        any.then(|| {
            [run.unwrap_or(run_key), run_id.unwrap_or(id_key), session.unwrap_or(session_key)]
        })
    }
}

fn some_text(text: Option<&str>) -> Option<String> {
    text.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
}
