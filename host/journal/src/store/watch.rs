//! Waiting for what happens to a run.

use async_trait::async_trait;

use crate::event::EventRecord;
use crate::ids::Seq;
use crate::run::Run;

/// A registration for what happens to a run from then on, whichever process does it
/// ([`super::Store::watch`]).
///
/// Each wait may return early, and never later than a second after the fact. One that returned without
/// what was waited for is a request to read the run: once it was read, the next wait is for what came
/// after that.
///
/// # Cancel safety
/// Dropping a future gives up that wait; the next one misses nothing. Dropping the registration gives
/// up all of them.
#[async_trait]
pub trait RunWatch: Send + Sync {
    /// Returns when the journal may reach beyond `after`, or when the run may have ended.
    async fn moved(&mut self, after: Seq);

    /// Has the store keep the events that are written from now on at hand for [`Self::events`], as far
    /// as it does so.
    fn follow(&mut self);

    /// Returns as [`Self::moved`] does, with the events that follow `after`, at most `limit`, where the
    /// store has them at hand; none otherwise.
    async fn events(&mut self, after: Seq, limit: usize) -> Vec<EventRecord>;

    /// Returns when the run may have ended: with the run as it has ended where the store has it at hand.
    /// Another run may have the id by then; its specification is another one.
    async fn ended(&mut self) -> Option<Run>;
}
