//! The events that a call puts into the journal of its run, and the wait until they are durable.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use serde::Serialize;
use taskrun_journal::event::{Event, StepPrefix};
use taskrun_journal::message::{Labels, LogLevel};
use taskrun_journal::stop::StopCause;
use tokio::sync::oneshot;

use super::log_line::log_line;
use super::tape::{Comparison, Tape};
use super::{CallScope, Open};

/// A part of a journal as people are shown it where a step differs from its record: as JSON, the
/// form in which they meet it elsewhere.
pub(crate) fn json_of(part: &impl Serialize) -> String {
    serde_json::to_string(part).expect("journals have it as JSON")
}

impl CallScope {
    /// Puts an event into the journal, unless the call has met its bound; such events are
    /// counted and dropped. Refusals have a bound of their own, so that no guest hides what it was
    /// refused behind lines of its own.
    ///
    /// A message whose text went out in parts is marked so.
    pub fn record(&self, mut event: Event) {
        let size = event.text_bytes() as u64;
        let mut open = self.open();
        if open.pushed_back.is_some() {
            return;
        }
        if let Event::AssistantMessage { message, streamed, .. } = &mut event {
            *streamed = open.sent.is_text_of(message);
        }
        if let Event::PolicyDecision { capability, .. } = &event {
            // Those that another program has on record beyond the bound are there all the same.
            if !open.refusals.admit(size) && !open.is_next_on_tape(&event) {
                open.refusals.count_dropped(capability);
                return;
            }
        } else {
            let fits = open.recorded < self.parts.limits.events
                && open.bytes.saturating_add(size) <= self.parts.limits.bytes;
            if !fits {
                drop(open);
                self.dropped.fetch_add(1, Ordering::Relaxed);
                return;
            }
            open.recorded += 1;
            open.bytes += size;
        }
        open.sent.count(&event);
        let mut played = open.tape.as_mut().map_or(Comparison::New, |tape| tape.play(&event));
        if let Comparison::Other(_) = played
            && open.has_other_rules()
        {
            open.give_up_tape(self.parts.context.turn);
            played = Comparison::New;
        }
        open.emitted += 1;
        match played {
            Comparison::Same => {}
            Comparison::New => {
                open.events.push(event);
                drop(open);
                self.parts.wake.notify_one();
            }
            Comparison::Other(recorded) => {
                drop(open);
                self.diverged(&json_of(&recorded), &json_of(&event));
            }
            Comparison::Unrecorded => {
                let left = open.tape.as_ref().map_or_else(String::new, Tape::next_left);
                drop(open);
                self.diverged(&left, &json_of(&event));
            }
        }
    }

    /// Writes a line of the guest into the log, as [`log_line`] has it.
    pub fn log(&self, level: LogLevel, source: &str, message: &str, fields: Labels) {
        let message = log_line(message.as_bytes(), 0).into_owned();
        self.record(Event::Log { level, source: source.to_owned(), message, fields });
    }

    /// True if the things that the call is given are recorded, so that it can be given the same
    /// again.
    #[must_use]
    pub fn is_journalled(&self) -> bool {
        self.parts.journal.is_some()
    }

    /// True if the call is one that is done again after a crash, and was asked to stop as the time
    /// of its run is up. A second time it would not do what it does on hearing that.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.is_journalled() && self.parts.stop.cause() == Some(StopCause::RunTimeout)
    }

    /// Puts an event of the host into the journal and returns when it is durable, or when the
    /// driver is gone that would make it so.
    pub(super) async fn record_durably(&self, event: Event) {
        let Some(journal) = &self.parts.journal else { return };
        let durable = self.keep(event).durable();
        journal.urgent.notify_one();
        // An error means that the driver is gone or lost the run: then nothing waits for anything.
        durable.await.ok();
    }

    /// Puts an answer that was given to the call among what is to be recorded. One that fills the
    /// journal is kept, as it was paid for, and the call is stopped.
    pub(super) fn keep(&self, event: Event) -> MutexGuard<'_, Open> {
        let mut open = self.open();
        self.keep_in(&mut open, event);
        open
    }

    pub(super) fn keep_in(&self, open: &mut Open, event: Event) {
        let bytes = event.journal_bytes();
        open.journal_bytes = open.journal_bytes.saturating_add(bytes);
        open.events.push(event);
        let room = self.parts.journal.as_ref().map_or(u64::MAX, |journal| journal.bytes);
        if open.journal_bytes >= room {
            self.parts.stop.force(StopCause::JournalFull);
        }
    }

    /// Takes the events recorded since the last time, in order, after the times that the call was
    /// told before them.
    #[must_use]
    pub(crate) fn take_events(&self) -> EventBatch {
        let mut open = self.open();
        let events = if open.events.is_empty() { Vec::new() } else { open.take_events() };
        EventBatch { events, waiting: DurabilityWaiters(std::mem::take(&mut open.waiting)) }
    }
}

impl Open {
    /// The events that are not taken yet, after the times that the call was told before them.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        self.place_times();
        std::mem::take(&mut self.events)
    }

    /// Comes to its end when all that was put into the journal until now is durable, once the driver is
    /// told that somebody waits; an error says that it is gone.
    pub(super) fn durable(&mut self) -> oneshot::Receiver<()> {
        let (sender, durable) = oneshot::channel();
        self.waiting.push(sender);
        durable
    }

    /// True if the step that runs again emitted this event next when it ran before.
    fn is_next_on_tape(&self, event: &Event) -> bool {
        self.tape.as_ref().is_some_and(|tape| tape.is_next(event))
    }

    /// True if the step runs again under other rules than it began with.
    pub(super) fn has_other_rules(&self) -> bool {
        self.tape.as_ref().is_some_and(Tape::has_other_rules)
    }

    /// Gives up what the tape has left, as the step goes another way.
    pub(super) fn give_up_tape(&mut self, turn: u32) {
        self.tape.as_mut().map(Tape::cut);
        self.restart(turn);
    }

    /// Puts the times that were told until now among what is not taken yet: before what the step
    /// may have said after them, and behind what it was given before them.
    pub(super) fn place_times(&mut self) {
        let is_given =
            |e: &Event| matches!(e, Event::StepRestarted { .. } | Event::OutsideAnswered { .. });
        let place = self.events.iter().rposition(is_given).map_or(0, |at| at + 1);
        self.events.splice(place..place, self.times.take());
    }

    /// Says that what the tape had left is void. What is told from now on stands behind that.
    pub(super) fn restart(&mut self, turn: u32) {
        let before = self.times.take();
        self.events.extend(before);
        let (events, readings) = (self.emitted, self.times.told());
        let kept = StepPrefix { events, readings, outside: self.outside.made() };
        self.events.push(Event::StepRestarted { turn, kept });
    }
}

/// Events of a call that is under way.
#[derive(Debug)]
pub(crate) struct EventBatch {
    /// The events, in order.
    pub events: Vec<Event>,
    /// The guests that wait for them to be durable.
    pub waiting: DurabilityWaiters,
}

/// Guests that wait until what was taken is durable. Dropping it lets them go on as well.
#[derive(Debug, Default)]
pub(crate) struct DurabilityWaiters(Vec<oneshot::Sender<()>>);

impl DurabilityWaiters {
    /// Adds others.
    pub(crate) fn join(&mut self, mut others: Self) {
        self.0.append(&mut others.0);
    }

    /// Lets the guests go on, as it is durable.
    pub(crate) fn release(self) {
        for sender in self.0 {
            // A guest that was stopped meanwhile does not listen.
            sender.send(()).ok();
        }
    }
}
