//! Requests of a plan step itself to what is outside of its run. They are answered from its record
//! where it runs again, and recorded otherwise, as far as there is room.

use serde::Serialize;
use taskrun_journal::event::Event;
use taskrun_journal::outside::{OUTSIDE_BYTES_MAX, OutsideAnswer};

use super::ask::StopNotice;
use super::digest::{digest, name_in};
use super::tape::OutsideLookup;
use super::{CallScope, Open};

/// A request to files, a server or the host's account.
pub struct OutsideRequest<A> {
    /// The thing that the step does by it, in words such as "reads a file".
    pub what: &'static str,
    /// All of it, of which its digest is made.
    pub asked: A,
    /// True if it may change something: then it is on record before the step goes on.
    pub changes: bool,
}

/// The reply to such a request, as it is live.
pub trait OutsideReply: Sized + Send {
    /// The number of its bytes, roughly.
    fn bytes(&self) -> usize;

    /// The reply as the journal keeps it; `None` if the step is to be given none of it again, as a
    /// rule refused it or the call stops.
    fn kept(&self) -> Option<OutsideAnswer>;

    /// The reply that was kept; `None` if it was one to another kind of request.
    fn given(answer: OutsideAnswer) -> Option<Self>;
}

/// The requests of a call to what is outside of its run.
#[derive(Default)]
pub(super) struct Outside {
    made: u32,
    /// Bytes of those that are on record.
    bytes: u64,
    /// True once one was too long: then none is recorded any more.
    is_full: bool,
}

impl Outside {
    /// Requests that were made in all.
    pub(super) fn made(&self) -> u32 {
        self.made
    }
}

impl CallScope {
    /// Makes a request to what is outside of the run, once rules and bounds have allowed it. A call
    /// that is not made again has it `live`; a plan step is given what it was given before, and
    /// what it is given live is recorded.
    ///
    /// # Errors
    /// [`StopNotice`] if the step does something else than its record says, or if it is held against
    /// one that has no answer; it is stopped then.
    ///
    /// # Cancel safety
    /// Dropping the future drops `live`; what that has changed stays.
    pub async fn ask_outside<A: Serialize + Send + Sync, R: OutsideReply>(
        &self,
        request: OutsideRequest<A>,
        live: impl Future<Output = R> + Send,
    ) -> Result<R, StopNotice> {
        if !self.is_journalled() {
            return Ok(live.await);
        }
        let OutsideRequest { what, asked, changes } = request;
        let digest = digest(&asked).await;
        let name = name_in(self.parts.services.format, &digest);
        let (number, found, is_whole) = self.look_up_outside(&digest);
        let note = || self.note_question((number, true), what, &asked);
        if self.wants_question((number, true)) {
            note();
        }
        let given = match found {
            OutsideLookup::Answer(answer) | OutsideLookup::Moved(answer) => Some(*answer),
            OutsideLookup::NotKept if is_whole => {
                let why =
                    format!("{what}, and more than {OUTSIDE_BYTES_MAX} bytes of such answers");
                return Err(self.not_recorded(format!("{why}, which are not recorded")));
            }
            OutsideLookup::NotKept => {
                self.open().outside.is_full = true;
                None
            }
            OutsideLookup::Nothing if is_whole => {
                return Err(self.not_recorded(format!("{what}, which is not recorded")));
            }
            OutsideLookup::Nothing => None,
            OutsideLookup::Other(known) => {
                note();
                return Err(self.diverged(&known, &format!("another request, {name} ({what})")));
            }
            OutsideLookup::Unrecorded(left) => {
                note();
                let found = format!("request {number}, which is not recorded ({what})");
                return Err(self.diverged(&left, &found));
            }
        };
        match given {
            Some(answer) => {
                let event = answered(number, &name, Some(answer.clone()));
                self.open().outside.bytes += event.journal_bytes();
                R::given(answer.clone()).ok_or_else(|| self.diverged(&format!("{answer:?}"), what))
            }
            None => {
                let reply = live.await;
                self.keep_outside(number, &name, &reply, changes).await;
                Ok(reply)
            }
        }
    }

    /// Numbers a request and looks for its answer. Also true if the call is held against the record
    /// of a whole step.
    fn look_up_outside(&self, digest: &str) -> (u32, OutsideLookup, bool) {
        let mut open = self.open();
        let number = open.outside.made;
        open.outside.made += 1;
        let since = self.parts.services.digests_since;
        let Some(tape) = open.tape.as_mut() else {
            return (number, OutsideLookup::Nothing, false);
        };
        let found = tape.outside(number, digest, since);
        let is_whole = tape.is_whole();
        if let OutsideLookup::Moved(answer) = &found {
            let name = name_in(self.parts.services.format, digest);
            let event = answered(number, &name, Some(OutsideAnswer::clone(answer)));
            open.place_times();
            self.keep_in(&mut open, event);
        }
        (number, found, is_whole)
    }

    /// Records a reply, if there is room for it, and says that there was none otherwise.
    async fn keep_outside<R: OutsideReply>(
        &self,
        number: u32,
        name: &str,
        reply: &R,
        changes: bool,
    ) {
        let Some(event) = self.event_of_outside(number, name, reply) else { return };
        // What follows from it must not be on record without it.
        self.open().place_times();
        if changes {
            // A step that is asked to stop meanwhile hears that where it next looks.
            self.unless_stopped(self.record_durably(event)).await.ok();
        } else {
            drop(self.keep(event));
            self.parts.wake.notify_one();
        }
    }

    fn event_of_outside<R: OutsideReply>(
        &self,
        number: u32,
        name: &str,
        reply: &R,
    ) -> Option<Event> {
        let mut open = self.open();
        if open.outside.is_full {
            return None;
        }
        let room = self.room_outside(&open);
        let is_short = reply.bytes() as u64 <= room;
        let event = match is_short {
            true => answered(number, name, Some(reply.kept()?)),
            false => answered(number, name, None),
        };
        let bytes = event.journal_bytes();
        open.outside.bytes += bytes;
        if is_short && bytes <= room {
            return Some(event);
        }
        open.outside.is_full = true;
        Some(answered(number, name, None))
    }

    /// Bytes for which there is room. What a run pays for has the other half of its journal.
    fn room_outside(&self, open: &Open) -> u64 {
        let journal = self.parts.journal.as_ref().map_or(u64::MAX, |journal| journal.bytes);
        let left = journal.saturating_sub(open.journal_bytes) / 2;
        left.min(OUTSIDE_BYTES_MAX.saturating_sub(open.outside.bytes))
    }
}

fn answered(number: u32, name: &str, answer: Option<OutsideAnswer>) -> Event {
    Event::OutsideAnswered { number, request: name.to_owned(), answer: answer.map(Box::new) }
}
