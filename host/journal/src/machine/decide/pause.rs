//! Pausing and resuming runs, and telling them something.

use crate::event::Event;
use crate::pause::{INBOX_BYTES_MAX, INBOX_MESSAGES_MAX, PauseEnd};
use crate::run::{Lifecycle, Run};
use crate::spec::RunClass;
use crate::time::Timestamp;

/// Why a run is not paused, resumed or told something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseRefusal {
    /// It has ended, or is on its way out.
    Ended,
    /// It is an entry of a heartbeat: nothing of its own could stop or hear.
    Entry,
    /// It is not paused, so the messages would come to nobody.
    NotPaused,
    /// Its policy or its request says that nobody pauses it.
    NeverPaused,
    /// It waits for no wake-up that it wanted.
    NotDeferred,
    /// More may not wait for its next turn.
    Full {
        /// `inbox` for messages, `inbox-bytes` for what they hold.
        kind: &'static str,
        /// The bound.
        cap: u64,
    },
}

/// The events that a request to pause a run records; empty if it is paused already, whatever was
/// asked for then.
///
/// # Errors
/// [`PauseRefusal::Ended`], [`PauseRefusal::Entry`], [`PauseRefusal::NeverPaused`].
pub fn pause(
    run: &Run,
    by: &str,
    reason: Option<&str>,
    until: Option<Timestamp>,
) -> Result<Vec<Event>, PauseRefusal> {
    listens(run)?;
    if run.spec.narrow.no_pause {
        return Err(PauseRefusal::NeverPaused);
    }
    let requested =
        Event::PauseRequested { by: by.to_owned(), reason: reason.map(str::to_owned), until };
    Ok(if run.state.pause.is_some() { Vec::new() } else { vec![requested] })
}

/// The events that a request to resume a run records; empty if it is not paused.
///
/// # Errors
/// [`PauseRefusal::Ended`], [`PauseRefusal::Entry`], [`PauseRefusal::Full`];
/// [`PauseRefusal::NotPaused`] if there are messages.
pub fn resume(
    run: &Run,
    by: &str,
    note: Option<&str>,
    messages: &[String],
) -> Result<Vec<Event>, PauseRefusal> {
    listens(run)?;
    if run.state.pause.is_none() {
        return if messages.is_empty() { Ok(Vec::new()) } else { Err(PauseRefusal::NotPaused) };
    }
    has_room(run, messages)?;
    Ok(vec![Event::PauseEnded {
        why: PauseEnd::Resumed,
        by: Some(by.to_owned()),
        note: note.map(str::to_owned),
        messages: messages.to_vec(),
    }])
}

/// The events that a message to a run records.
///
/// # Errors
/// [`PauseRefusal::Ended`], [`PauseRefusal::Entry`], [`PauseRefusal::Full`].
pub fn inject(run: &Run, by: &str, text: &str) -> Result<Vec<Event>, PauseRefusal> {
    listens(run)?;
    let (text, by) = (text.to_owned(), by.to_owned());
    has_room(run, std::slice::from_ref(&text))?;
    Ok(vec![Event::Injected { text, by }])
}

/// The events that wake a deferred run early, with a message that says so.
///
/// # Errors
/// [`PauseRefusal::NotDeferred`] if it is not deferred, and those of [`inject`].
pub fn wake(run: &Run, by: &str, text: &str) -> Result<Vec<Event>, PauseRefusal> {
    listens(run)?;
    match run.state.rounds.due {
        Some(_) => inject(run, by, text),
        None => Err(PauseRefusal::NotDeferred),
    }
}

/// The events that the host that took up a run records if the time of its pause is over.
#[must_use]
pub fn over(run: &Run, now: Timestamp) -> Vec<Event> {
    match &run.state.pause {
        Some(pause) if pause.is_over(now) => ends(run, PauseEnd::DeadlineExceeded),
        Some(_) | None => Vec::new(),
    }
}

/// The event that ends the pause of a run, if there is one.
pub(super) fn ends(run: &Run, why: PauseEnd) -> Vec<Event> {
    let ended = Event::PauseEnded { why, by: None, note: None, messages: Vec::new() };
    if run.state.pause.is_some() { vec![ended] } else { Vec::new() }
}

fn listens(run: &Run) -> Result<(), PauseRefusal> {
    match (&run.state.lifecycle, run.spec.class) {
        (
            Lifecycle::Canceling { .. } | Lifecycle::Finalizing { .. } | Lifecycle::Ended { .. },
            _,
        ) => Err(PauseRefusal::Ended),
        (
            Lifecycle::Queued | Lifecycle::Running { .. } | Lifecycle::Blocked { .. },
            RunClass::Heartbeat,
        ) => Err(PauseRefusal::Entry),
        (
            Lifecycle::Queued | Lifecycle::Running { .. } | Lifecycle::Blocked { .. },
            RunClass::Task,
        ) => Ok(()),
    }
}

fn has_room(run: &Run, messages: &[String]) -> Result<(), PauseRefusal> {
    let inbox = run.state.inbox.with(messages);
    if inbox.messages > INBOX_MESSAGES_MAX {
        return Err(PauseRefusal::Full { kind: "inbox", cap: u64::from(INBOX_MESSAGES_MAX) });
    }
    if inbox.bytes > INBOX_BYTES_MAX {
        return Err(PauseRefusal::Full { kind: "inbox-bytes", cap: INBOX_BYTES_MAX });
    }
    Ok(())
}
