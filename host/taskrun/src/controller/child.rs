//! Requests of runs for other runs beneath them, in the name of the caller.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};
use taskrun_journal::message::{Message, Role};
use taskrun_journal::narrowing::Ancestor;
use taskrun_journal::run::Run;
use taskrun_journal::runs::ChildRequest;
use taskrun_journal::spec::RunSpec;

use super::Controller;
use super::delivery::check_texts;
use crate::error::ControllerError;
use crate::scope::runs::Caller;
use crate::spawn::{RuntimeStateKeys, SpawnRequest};

/// Hexadecimal digits in the name of a session that tell it from its siblings, 64 bits.
const ROOM_DIGITS: usize = 16;

impl Controller {
    /// The request of a component, in the name of its own run.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`] for an image that the run may not name,
    /// [`ControllerError::Forbidden`] for a delivery with texts of its own.
    pub(super) async fn child_request(
        &self,
        caller: &Caller,
        child: ChildRequest,
    ) -> Result<SpawnRequest, ControllerError> {
        child.delivery.as_ref().map_or(Ok(()), check_texts)?;
        let images = self.images_for(&caller.spec, &child.images).await?;
        Ok(SpawnRequest { images, ..request_of(caller, child) })
    }
}

/// The same without its images.
fn request_of(caller: &Caller, child: ChildRequest) -> SpawnRequest {
    let spec = &caller.spec;
    let runtime_state = inherited(spec, &child);
    let child_session_id = child.in_room.then(|| {
        let digest = blake3::hash(child.key.as_deref().unwrap_or_default().as_bytes()).to_hex();
        format!("{}{}", room_of(caller), &digest[..ROOM_DIGITS])
    });
    SpawnRequest {
        owner_user_id: spec.owner_user_id.clone(),
        parent_session_id: caller.session_id.clone(),
        parent_app_name: spec.app_name.clone(),
        app_name: spec.app_name.clone(),
        child_session_id,
        name: child.name,
        narrow: child.narrow,
        agent_name: child.agent_name,
        task: child.task,
        timeout: child.timeout_ms.map(Duration::from_millis),
        runtime_state,
        runtime_state_keys: RuntimeStateKeys::of(spec),
        metadata: child.metadata,
        labels: child.labels,
        class: child.class,
        idempotency_key: child.key,
        injected_context_messages: child.context.as_deref().map(context).into_iter().collect(),
        parent_run_id: Some(spec.id.to_string()),
        attached: child.attached || child.parent_tool_call_id.is_some(),
        parent_tool_call_id: child.parent_tool_call_id,
        delivers: true,
        delivery: child.delivery,
        share_channels: child.share_channels,
        ..SpawnRequest::default()
    }
}

/// Those that stand above a run which another one starts: that one, and all above it.
pub(super) fn ancestors_beneath(parent: &Run) -> Vec<Ancestor> {
    let above = &parent.spec;
    let mut ancestors = above.ancestors.clone();
    ancestors.push(Ancestor {
        agent_name: above.agent_name.clone(),
        pin: parent.pin().to_owned(),
        narrow: above.narrow.clone(),
        autonomous: above.autonomy.is_some(),
    });
    ancestors
}

/// Stands before the context of a task.
const CONTEXT: &str = "Context of the task:\n";

/// The context of a task, as a message before it.
pub(super) fn context(text: &str) -> Message {
    Message::text(Role::User, format!("{CONTEXT}{text}"))
}

/// True for a message that is the context of a task.
pub(super) fn is_context(message: &Message) -> bool {
    message.joined_text().starts_with(CONTEXT)
}

/// The context of a task by names, of a message before it; empty where that is none.
pub(super) fn told_context(message: Option<&str>) -> Map<String, Value> {
    given_context(message.and_then(|message| message.strip_prefix(CONTEXT)))
}

/// The context of a task by names; empty where that is none.
pub(super) fn given_context(text: Option<&str>) -> Map<String, Value> {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// The state of a run with what a request for one beneath it adds; the host puts its own keys in
/// anew. An entry takes none.
fn inherited(above: &RunSpec, child: &ChildRequest) -> BTreeMap<String, String> {
    if !child.class.is_task() {
        return child.envelope.clone();
    }
    let mut state = above.given_state();
    state.extend(child.envelope.clone());
    state
}

/// The beginning of the sessions of runs in rooms of the caller's, which its own session, or that of
/// its conversation, is in; digits that are the same for the same call follow.
pub(super) fn room_of(caller: &Caller) -> String {
    let spec = &caller.spec;
    match spec.depth {
        0 => room_in(&spec.parent_session_id),
        _ => own_room_of(caller),
    }
}

/// The same in its own session, whichever conversation it takes part in.
pub(super) fn own_room_of(caller: &Caller) -> String {
    room_in(&caller.session_id)
}

fn room_in(session: &str) -> String {
    format!("{session}::task-")
}
