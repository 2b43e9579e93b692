//! A request for a run, and how it is checked.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use taskrun_journal::answers::{ANSWERS_BYTES_MAX, Answers};
use taskrun_journal::delivery::DeliverySettings;
use taskrun_journal::history::History;
use taskrun_journal::ids::RunId;
use taskrun_journal::list::Scope;
use taskrun_journal::message::{Labels, Message};
use taskrun_journal::name::check_name;
use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::spec::{
    ENTRY_BYTES_MAX, KEY_BYTES_MAX, KEYS_MAX, RunClass, RunSpec, TASK_BYTES_MAX, TreeBounds,
};
use taskrun_journal::time::{Timestamp, millis};

use crate::agents::{Agent, Agents};
use crate::autonomy::{AutonomyRequest, accepted};
use crate::error::ControllerError;
use crate::image::ImageBytes;

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
    /// The time that it may run, from when it leaves the queue.
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
    /// The same key with the same request gives the run that was started first.
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

/// The host's own keys in a run's state, unless the request names others.
const HOST_KEYS: [&str; 3] = ["taskrun.run", "taskrun.run_id", "taskrun.parent_session_id"];

/// The host's own keys in the state of a run.
pub(crate) fn host_keys(spec: &RunSpec) -> [&str; 3] {
    spec.envelope_keys.as_ref().map_or(HOST_KEYS, |keys| keys.each_ref().map(String::as_str))
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

fn invalid(field: &'static str, reason: impl Into<String>) -> ControllerError {
    ControllerError::Invalid { field, reason: reason.into() }
}

fn some_text(text: Option<&str>) -> Option<String> {
    text.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
}

/// Checks a request, in the order owner, parent session, task, agent, scope, name, sizes, and gives
/// what is kept of it.
///
/// # Errors
/// [`ControllerError::Invalid`] with the first thing that is wrong, or
/// [`ControllerError::Forbidden`] if the caller asks in the name of somebody else.
pub(crate) fn accept(
    request: &SpawnRequest,
    scope: &Scope,
    agents: &Agents,
    fresh_id: RunId,
    now: Timestamp,
) -> Result<RunSpec, ControllerError> {
    let owner = some_text(Some(&request.owner_user_id))
        .ok_or_else(|| invalid("owner_user_id", "empty owner"))?;
    let session = session(request)?;
    let task = some_text(Some(&request.task)).ok_or_else(|| invalid("task", "empty task"))?;
    let agent = agents.by_name.get(request.agent_name.trim()).ok_or_else(|| {
        let known: Vec<_> = agents.by_name.keys().map(String::as_str).collect();
        let name = &request.agent_name;
        invalid("agent_name", format!("unknown agent {name:?}; known are: {}", known.join(", ")))
    })?;
    check_scope(request, scope)?;
    if let Some(name) = &request.name {
        check_name(name).map_err(|error| invalid("name", error.to_string()))?;
    }
    if request.attached && request.parent_run_id.is_none() {
        let reason = "a run is attached to the run that starts it, and none is named";
        return Err(invalid("attached", reason));
    }
    if request.parent_tool_call_id.is_some() && request.parent_run_id.is_none() {
        let reason = "a run is the tool call of a run that starts it, and none is named";
        return Err(invalid("parent_tool_call_id", reason));
    }
    check_tree(request)?;
    check_sizes(request)?;
    let durable = match request.class {
        RunClass::Task => agent.durable,
        // What becomes of it is the batch run's fate, whichever host writes it down.
        RunClass::Heartbeat => {
            check_entry(request, agent)?;
            true
        }
    };
    let id = match some_text(request.id.as_deref()) {
        Some(text) => RunId::new(&text).map_err(|error| invalid("id", error.to_string()))?,
        None => fresh_id,
    };
    let autonomy = match request.class {
        RunClass::Task => {
            accepted(request.autonomous.as_ref(), agent, request.parent_run_id.is_some())?
        }
        RunClass::Heartbeat => None,
    };
    let mut envelope = request.runtime_state.clone();
    let envelope_keys = request.runtime_state_keys.chosen();
    let [run_key, id_key, session_key] =
        envelope_keys.clone().unwrap_or_else(|| HOST_KEYS.map(str::to_owned));
    envelope.insert(run_key, "true".to_owned());
    envelope.insert(id_key, id.to_string());
    if !session.is_empty() {
        envelope.insert(session_key, session.clone());
    }
    Ok(RunSpec {
        root_run_id: id.clone(),
        id,
        tenant: scope.tenant.clone(),
        owner_user_id: owner,
        parent_session_id: session,
        parent_app_name: some_text(request.parent_app_name.as_deref()),
        app_name: some_text(request.run_options.app_name.as_deref())
            .or_else(|| some_text(request.app_name.as_deref())),
        child_session_id: some_text(request.child_session_id.as_deref()),
        request_id: some_text(request.request_id.as_deref()),
        agent_name: agent.name.clone(),
        agent_digest: agent.digest.clone(),
        pin: agent.pin.clone(),
        task,
        images: Vec::new(),
        timeout_ms: request.timeout.filter(|t| !t.is_zero()).map(millis),
        envelope,
        envelope_keys,
        context_messages: request.injected_context_messages.clone(),
        name: request.name.clone(),
        labels: request.labels.clone(),
        metadata: request.metadata.clone(),
        parent_run_id: None,
        parent_tool_call_id: some_text(request.parent_tool_call_id.as_deref()),
        root_session_id: None,
        attached: request.attached,
        depth: 0,
        tree: agent.tree,
        narrow: Narrowing {
            no_pause: request.narrow.no_pause || !agent.interrupts,
            ..request.narrow.clone()
        },
        ancestors: Vec::new(),
        priority: request.priority,
        durable,
        finalizer: agent.has_finalizer,
        serial: request.serial,
        serial_in: None,
        seed: String::new(),
        history: history_of(request, agent),
        delivery: None,
        autonomy,
        continues: None,
        subscriptions: Vec::new(),
        channels: Vec::new(),
        class: request.class,
        answers: answers_of(request, agent)?,
        entries: Vec::new(),
        nudge_for: Vec::new(),
        hops: 0,
        created_at: now,
    })
}

fn answers_of(request: &SpawnRequest, agent: &Agent) -> Result<Answers, ControllerError> {
    let Some(answers) = &request.answers else {
        let stated = || agent.autonomous.as_ref().and_then(|settings| settings.answers.clone());
        // Whoever starts one that goes on by itself is not there to answer.
        return Ok(match request.autonomous {
            Some(_) => stated().unwrap_or(Answers::Nobody),
            None => Answers::Inbox,
        });
    };
    let text = match answers {
        Answers::Inbox | Answers::Nobody => return Ok(answers.clone()),
        Answers::Refuse { reason: text } | Answers::Fixed { text } => text,
    };
    match text.trim().is_empty() || text.len() > ANSWERS_BYTES_MAX {
        true => {
            let reason = format!("the text has to have 1 to {ANSWERS_BYTES_MAX} bytes");
            Err(invalid("answers", reason))
        }
        false => Ok(answers.clone()),
    }
}

/// The session that the run belongs to; empty for a one-shot run.
fn session(request: &SpawnRequest) -> Result<String, ControllerError> {
    match (some_text(Some(&request.parent_session_id)), request.one_shot) {
        (Some(session), false) => Ok(session),
        (None, false) => Err(invalid("parent_session_id", "empty parent session id")),
        (Some(_), true) => {
            Err(invalid("parent_session_id", "a one-shot run belongs to no session"))
        }
        (None, true) if request.serial => {
            Err(invalid("serial", "a one-shot run has no session to be serial in"))
        }
        (None, true) => Ok(String::new()),
    }
}

/// Of what a run is told. Entries of a heartbeat are no part of a conversation, nor is the batch
/// that works on them.
fn history_of(request: &SpawnRequest, agent: &Agent) -> History {
    let converses = request.converses
        && !request.one_shot
        && request.parent_run_id.is_none()
        && request.class.is_task();
    if converses { agent.conversation } else { History::None }
}

/// A caller who sees only what belongs to somebody asks only in the name of that one.
fn check_scope(request: &SpawnRequest, scope: &Scope) -> Result<(), ControllerError> {
    let app = request.parent_app_name.as_deref().unwrap_or_default();
    let doors = [
        ("owner", &scope.owner_user_id, request.owner_user_id.as_str()),
        ("parent session", &scope.parent_session_id, request.parent_session_id.as_str()),
        ("parent application", &scope.parent_app_name, app),
    ];
    for (what, own, asked) in doors {
        if own.as_deref().is_some_and(|own| own != asked.trim()) {
            let reason = format!("runs may be started for the caller's own {what} only");
            return Err(ControllerError::Forbidden { reason });
        }
    }
    Ok(())
}

fn check_tree(request: &SpawnRequest) -> Result<(), ControllerError> {
    let TreeBounds { depth: _, runs, slots } = request.tree;
    if request.parent_run_id.is_some() && (runs.is_some() || slots.is_some()) {
        let reason = "runs and slots of a tree are stated with its first run";
        return Err(invalid("tree", reason));
    }
    if runs == Some(0) || slots == Some(0) {
        return Err(invalid("tree", "a tree has at least one run and one slot"));
    }
    Ok(())
}

fn check_entry(request: &SpawnRequest, agent: &Agent) -> Result<(), ControllerError> {
    if agent.heartbeat.is_none() {
        let name = &agent.name;
        let reason = format!(
            "agent {name} has no heartbeat; give it one in the policy: \
             heartbeat = {{ interval = \"60s\" }}"
        );
        return Err(invalid("class", reason));
    }
    if request.task.trim().len() > ENTRY_BYTES_MAX {
        let reason = format!("the task of an entry has more than {ENTRY_BYTES_MAX} bytes");
        return Err(invalid("task", reason));
    }
    let refused = [
        ("timeout", request.timeout.is_some()),
        ("serial", request.serial),
        ("when_full", request.when_full == WhenFull::Refuse),
        ("runtime_state", !request.runtime_state.is_empty()),
        ("injected_context_messages", !request.injected_context_messages.is_empty()),
        ("images", !request.images.is_empty()),
        ("autonomous", request.autonomous.is_some()),
        ("tree", !request.tree.is_open()),
    ];
    match refused.into_iter().find(|(_, given)| *given) {
        Some((field, _)) => {
            Err(invalid(field, format!("an entry of a heartbeat takes no {field}")))
        }
        None => Ok(()),
    }
}

fn check_sizes(request: &SpawnRequest) -> Result<(), ControllerError> {
    let keys = &request.runtime_state_keys;
    let texts = [
        ("id", request.id.as_deref()),
        ("owner_user_id", Some(request.owner_user_id.as_str())),
        ("parent_session_id", Some(request.parent_session_id.as_str())),
        ("parent_app_name", request.parent_app_name.as_deref()),
        ("app_name", request.app_name.as_deref()),
        ("run_options", request.run_options.app_name.as_deref()),
        ("child_session_id", request.child_session_id.as_deref()),
        ("request_id", request.request_id.as_deref()),
        ("idempotency_key", request.idempotency_key.as_deref()),
        ("parent_run_id", request.parent_run_id.as_deref()),
        ("parent_tool_call_id", request.parent_tool_call_id.as_deref()),
        ("runtime_state_keys", keys.run.as_deref()),
        ("runtime_state_keys", keys.run_id.as_deref()),
        ("runtime_state_keys", keys.parent_session_id.as_deref()),
    ];
    for (field, text) in texts {
        if text.is_some_and(|text| text.len() > KEY_BYTES_MAX) {
            return Err(invalid(field, format!("{field} has more than {KEY_BYTES_MAX} bytes")));
        }
    }
    if request.injected_context_messages.len() > CONTEXT_MESSAGES_MAX {
        let reason = format!("more than {CONTEXT_MESSAGES_MAX} messages are put before the task");
        return Err(invalid("injected_context_messages", reason));
    }
    let bytes: usize = request.injected_context_messages.iter().map(Message::bytes).sum::<usize>()
        + request.task.len();
    if bytes > TASK_BYTES_MAX {
        return Err(invalid("task", format!("the task has more than {TASK_BYTES_MAX} bytes")));
    }
    taskrun_policy::check_narrowing_sizes(&request.narrow)?;
    let maps = [
        ("labels", &request.labels),
        ("metadata", &request.metadata),
        ("runtime_state", &request.runtime_state),
    ];
    for (field, map) in maps {
        if map.len() > KEYS_MAX {
            return Err(invalid(field, format!("{field} have more than {KEYS_MAX} keys")));
        }
        if map.iter().any(|(key, value)| key.len().max(value.len()) > KEY_BYTES_MAX) {
            let reason = format!("a key or value of {field} has more than {KEY_BYTES_MAX} bytes");
            return Err(invalid(field, reason));
        }
        if map.keys().any(|key| key.trim().is_empty()) {
            return Err(invalid(field, format!("a key of {field} is blank")));
        }
    }
    Ok(())
}

/// Digest of all that the answer to a task depends on and that is known when it is asked for: the
/// agent in its present version and what its policy allows, the words, what stands before them, the
/// state given to it, session and applications, and what the request and those above take away: who
/// may less is not given what somebody found who may more.
#[must_use]
pub(crate) fn task_digest(spec: &RunSpec, request: &SpawnRequest) -> String {
    // In the state that is kept the host's own keys name the run.
    let given = (
        &spec.context_messages,
        &request.runtime_state,
        &request.runtime_state_keys,
        (&spec.parent_app_name, &spec.app_name),
        (&spec.parent_run_id, &spec.root_session_id, &spec.history, &spec.class),
        (&spec.narrow, &spec.ancestors),
        &spec.images,
    );
    let given = serde_json::to_string(&given).expect("texts and numbers can be written as JSON");
    let autonomy = spec.autonomy.as_ref().map(|autonomy| {
        serde_json::to_string(autonomy).expect("texts and numbers can be written as JSON")
    });
    let task = spec.task.to_lowercase();
    let (session, agent) = (&*spec.parent_session_id, &*spec.agent_name);
    let mut parts = vec![session, agent, &spec.agent_digest, &spec.pin, &task, &given];
    parts.extend(autonomy.as_deref());
    digest_of_parts(&parts)
}

/// Digest of texts, each with its length, so that no others give the same.
#[must_use]
pub(crate) fn digest_of_parts(parts: &[&str]) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// Digest of everything in a request that says what is to be done, so that a repeated key can
/// be told from a reused one.
#[must_use]
pub(crate) fn fingerprint(request: &SpawnRequest) -> String {
    let canonical = SpawnRequest { idempotency_key: None, ..request.clone() };
    let text = serde_json::to_vec(&canonical).unwrap_or_default();
    blake3::hash(&text).to_hex().to_string()
}
