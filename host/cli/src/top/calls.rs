//! The tool calls under way of a run, by its journal.

use taskrun::controller::Client;
use taskrun_journal::event::{CallEvent, EventRecord, EventView};
use taskrun_journal::ids::Seq;
use taskrun_journal::run::Run;
use taskrun_journal::time::Timestamp;

use crate::failure::Outcome;

/// Events at the end of a journal in which calls are looked for at first: as many as a turn may have
/// calls under way, and what they tell meanwhile. A call that has told more before is not named.
const FIRST_EVENTS: u64 = 256;
/// Events by which a journal may have grown between two looks. Where it has grown by more, it is
/// looked at as if for the first time.
const EVENTS_MAX: u64 = 1_000;

/// The tool calls under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tool {
    /// The one that began first.
    pub(super) name: String,
    pub(super) since: Timestamp,
    /// The others.
    pub(super) others: usize,
}

/// The tool calls that have begun and not ended, up to a position of a journal.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    head: Seq,
    /// Ids, names and beginnings, in the order of these.
    open: Vec<(String, String, Timestamp)>,
}

impl Calls {
    /// Those of a run as it is, from those that were known of it. Its journal is read where it has
    /// grown since.
    ///
    /// # Errors
    /// Those of reading it.
    pub(super) async fn of(client: &Client, run: &Run, known: Option<Self>) -> Outcome<Self> {
        let head = run.state.head;
        let known = known.filter(|known| head.saturating_sub(known.head) <= EVENTS_MAX);
        let (mut calls, events) = match known {
            Some(known) if known.head == head => return Ok(known),
            Some(known) => {
                let grown = head.saturating_sub(known.head);
                (known, last_events(client, run, grown).await?)
            }
            None => (Self::default(), last_events(client, run, FIRST_EVENTS).await?),
        };
        calls.fold(&events);
        calls.head = calls.head.max(head);
        Ok(calls)
    }

    pub(super) fn fold(&mut self, events: &[EventRecord]) {
        for recorded in events {
            self.head = recorded.seq;
            let EventView::Call(event) = recorded.event.view() else { continue };
            match event {
                CallEvent::ToolCallScheduled { tool_call_id, name, .. } => {
                    let call = (tool_call_id.to_owned(), name.to_owned(), recorded.at);
                    self.open.push(call);
                }
                CallEvent::ToolResult { output, .. } => {
                    self.open.retain(|(id, _, _)| *id != output.tool_call_id);
                }
                CallEvent::ToolCallParked { tool_call_id, .. } => {
                    self.open.retain(|(id, _, _)| id != tool_call_id);
                }
                CallEvent::ToolCallRepeated { .. }
                | CallEvent::ChildRunLinked { .. }
                | CallEvent::ToolCallUpdated { .. }
                | CallEvent::ToolAuthorization { .. }
                | CallEvent::Marked { .. } => {}
            }
        }
    }

    pub(super) fn first(&self) -> Option<Tool> {
        let (_, name, since) = self.open.first()?;
        let others = self.open.len() - 1;
        Some(Tool { name: name.clone(), since: *since, others })
    }
}

/// The last events of a run as it was read, and what came since, as many as that.
///
/// # Errors
/// Those of reading its journal.
pub(super) async fn last_events(
    client: &Client,
    run: &Run,
    events: u64,
) -> Outcome<Vec<EventRecord>> {
    let after = run.state.head.saturating_sub(events);
    let most = usize::try_from(events).unwrap_or(usize::MAX);
    Ok(client.events(run.id().as_str(), after, most).await?)
}
