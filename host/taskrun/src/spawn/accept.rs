//! The checks of a request, and what is kept of one that is accepted.

use std::fmt::Write;

use taskrun_journal::answers::{ANSWERS_BYTES_MAX, Answers};
use taskrun_journal::history::History;
use taskrun_journal::ids::RunId;
use taskrun_journal::list::Scope;
use taskrun_journal::message::{Message, Part};
use taskrun_journal::name::check_name;
use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::spec::{
    ENTRY_BYTES_MAX, HOST_KEYS, KEY_BYTES_MAX, KEYS_MAX, RunClass, RunSpec, TASK_BYTES_MAX,
    TreeBounds,
};
use taskrun_journal::time::{Timestamp, millis};

use super::{CONTEXT_MESSAGES_MAX, SpawnRequest, WhenFull, some_text};
use crate::agents::{Agent, Agents};
use crate::autonomy::accepted;
use crate::error::{ControllerError, tell_known};

/// Checks a request, in the order owner, parent session, task, agent, scope, key, name, sizes, and
/// gives what is kept of it.
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
        let (name, known) = (&request.agent_name, tell_known(agents.by_name.keys()));
        invalid("agent_name", format!("unknown agent {name:?}; {known}"))
    })?;
    check_scope(request, scope)?;
    // As if it were none, a repeated request would start another run.
    if request.idempotency_key.as_deref().is_some_and(|key| key.trim().is_empty()) {
        return Err(invalid("idempotency_key", "empty idempotency key"));
    }
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
        narrow: narrowing_of(request, agent),
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

fn invalid(field: &'static str, reason: impl Into<String>) -> ControllerError {
    ControllerError::Invalid { field, reason: reason.into() }
}

/// The narrowing that is kept of a request for a run of an agent.
pub(crate) fn narrowing_of(request: &SpawnRequest, agent: &Agent) -> Narrowing {
    let no_pause = request.narrow.no_pause || !agent.interrupts;
    Narrowing { no_pause, ..request.narrow.clone() }
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

/// A caller belongs to a tenant, and one who sees only what belongs to somebody asks only in the
/// name of that one.
fn check_scope(request: &SpawnRequest, scope: &Scope) -> Result<(), ControllerError> {
    if scope.tenant.trim().is_empty() {
        return Err(invalid("tenant", "empty tenant"));
    }
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
    if request.task.len() > TASK_BYTES_MAX {
        return Err(invalid("task", format!("the task has more than {TASK_BYTES_MAX} bytes")));
    }
    let before: usize = request.injected_context_messages.iter().map(Message::bytes).sum();
    if before + request.task.len() > TASK_BYTES_MAX {
        let reason =
            format!("the task and the messages before it have more than {TASK_BYTES_MAX} bytes");
        return Err(invalid("injected_context_messages", reason));
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
/// state given to it, session and applications, who answers what it asks, and what the request and
/// those above take away: who may less is not given what somebody found who may more.
#[must_use]
pub(crate) fn task_digest(spec: &RunSpec, request: &SpawnRequest) -> String {
    let before = text_of_messages(&spec.context_messages);
    // In the state that is kept the host's own keys name the run.
    let given = (
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
    let answers = (spec.answers != Answers::Inbox)
        .then(|| serde_json::to_string(&spec.answers).expect("texts can be written as JSON"));
    let task = spec.task.to_lowercase();
    let (session, agent) = (&*spec.parent_session_id, &*spec.agent_name);
    let mut parts = vec![session, agent, &spec.agent_digest, &spec.pin, &task, &before, &given];
    parts.extend(autonomy.as_deref());
    parts.extend(answers.as_deref());
    digest_of_parts(&parts)
}

/// A text that other messages do not have. It holds the words of each message as they are, which costs a
/// copy, where JSON would look at each byte: messages before a task may be long, and are digested with
/// each run.
fn text_of_messages(messages: &[Message]) -> String {
    let bytes: usize = messages.iter().map(|message| message.bytes() + 32).sum();
    let mut all = String::with_capacity(bytes);
    for Message { role, parts } in messages {
        write!(all, "{} {};", role.as_str(), parts.len()).expect("a text takes any");
        for part in parts {
            let json;
            let (kind, text) = match part {
                Part::Text(text) => ("text", text),
                other @ (Part::Thinking(_)
                | Part::ToolUse(_)
                | Part::ToolAnswer(_)
                | Part::Json(_)
                | Part::Media(_)) => {
                    json = serde_json::to_string(other).expect("parts can be written as JSON");
                    ("json", &json)
                }
            };
            write!(all, "{kind} {}:{text};", text.len()).expect("a text takes any");
        }
    }
    all
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

#[cfg(test)]
mod tests {
    use taskrun_journal::message::Role;

    use super::*;

    #[test]
    fn other_messages_have_another_text() {
        let text = |text: &str| Part::Text(text.to_owned());
        let json = |text: &str| Part::Json(text.to_owned());
        let user = |parts: Vec<Part>| Message { role: Role::User, parts: parts.into() };
        let all = [
            vec![],
            vec![user(vec![])],
            vec![user(vec![text("")])],
            vec![user(vec![text("ab")])],
            vec![user(vec![text("a"), text("b")])],
            vec![user(vec![text("a")]), user(vec![text("b")])],
            vec![user(vec![text("a;text 1:b")])],
            vec![user(vec![text("a")]), Message::text(Role::Assistant, "b")],
            vec![user(vec![json("ab")])],
            vec![user(vec![text(r#"{"json":"ab"}"#)])],
        ];
        let texts: std::collections::BTreeSet<_> =
            all.iter().map(|one| text_of_messages(one)).collect();
        assert_eq!(texts.len(), all.len(), "{texts:?}");
    }
}
