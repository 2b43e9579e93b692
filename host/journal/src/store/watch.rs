//! Waiting for what happens to a run.

use std::sync::Arc;

use async_trait::async_trait;

use crate::event::EventRecord;
use crate::ids::Seq;
use crate::run::Run;
use crate::spec::RunSpec;

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
    /// The specification of the run, if the store takes it to be open without a look, by what this process
    /// wrote, and expects to tell its end here. `None` where it would have to look. While this process
    /// stood still others may have ended or removed the run unnoticed, so whoever trusts this looks at
    /// the run after a while.
    fn known_open(&self) -> Option<Arc<RunSpec>>;

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
