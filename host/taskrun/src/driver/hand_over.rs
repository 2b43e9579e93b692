//! Handing a conversation over to another agent.

use std::ops::ControlFlow;

use taskrun_journal::event::CallWait;
use taskrun_journal::history::HISTORY_BYTES_MAX;
use taskrun_journal::message::{Message, Part, Role};
use taskrun_journal::run::{Lifecycle, Run};
use taskrun_journal::spec::TASK_BYTES_MAX;
use taskrun_journal::store::{Store, StoreError};
use taskrun_policy::HostFunction;

use super::history::shortened;
use super::work::{Call, Work};
use crate::scan::{WHOLE, scan};
use crate::spawn::CONTEXT_MESSAGES_MAX;

/// The words of a run's conversation beside its task, before the turn that is under way: what the
/// user and the agent said and showed, the last of it where all is too long. Results of tools are the
/// caller's. A call that is repeated is given the same.
///
/// # Errors
/// [`StoreError`].
pub(crate) async fn conversation_before_call(
    store: &dyn Store,
    run: &Run,
) -> Result<Vec<Message>, StoreError> {
    let mut work = Work::new(&run.spec, run.pin());
    let see = |recorded| {
        work.push_recorded(&recorded);
        ControlFlow::Continue(())
    };
    scan(store, run.id(), WHOLE, see).await?;
    let most = HISTORY_BYTES_MAX.min(TASK_BYTES_MAX.saturating_sub(run.spec.task.len()));
    let (mut said, mut bytes) = (Vec::new(), 0);
    for message in work.conversation.before_turn().rev() {
        let text = message.joined_text();
        if matches!(message.role, Role::Tool) || text.trim().is_empty() {
            continue;
        }
        let images = message.images().cloned().map(Part::Media);
        let parts = [Part::Text(shortened(&text))].into_iter().chain(images).collect();
        let message = Message { role: message.role, parts };
        bytes += message.bytes();
        if bytes > most || said.len() == CONTEXT_MESSAGES_MAX {
            break;
        }
        said.push(message);
    }
    said.reverse();
    Ok(said)
}

/// The run to which a call has handed the conversation over.
pub(super) fn callee(call: &Call) -> Option<&taskrun_journal::ids::RunId> {
    match &call.parked {
        Some(CallWait::Child { run })
            if call.request.name == HostFunction::TransferToAgent.qualified() =>
        {
            Some(run)
        }
        Some(CallWait::Child { .. } | CallWait::Runs { .. } | CallWait::Answer { .. }) | None => {
            None
        }
    }
}

/// The agent that has the conversation after this run: its own, or the one to which it handed it on
/// in turn.
pub(super) fn holder(run: &Run) -> String {
    let handed_on = match &run.state.lifecycle {
        Lifecycle::Ended { ending, .. } => ending.handed_to.clone(),
        Lifecycle::Queued
        | Lifecycle::Running { .. }
        | Lifecycle::Blocked { .. }
        | Lifecycle::Canceling { .. }
        | Lifecycle::Finalizing { .. } => None,
    };
    handed_on.unwrap_or_else(|| run.spec.agent_name.clone())
}
