//! The schedule: which run is executed next, and what the change of one run means for others.
//!
//! All of it is pure. A store keeps rows and indexes, answers queries, and applies what is decided
//! here; it decides nothing itself, so that every store decides alike.

mod admission;
mod attachment;
mod change;
mod claim;
mod continuations;
mod delivery;
mod dispatch;
mod names;
mod queue;
mod requests;
mod sessions;
mod siblings;
#[cfg(test)]
mod tests;
mod turns;
mod waits;
mod writes;

pub use self::admission::{HostLoad, Register, TreeSize, refusal};
pub use self::attachment::{canceled_with_parent, ends_with, takes_children};
pub use self::change::{After, Before, Change, consequences};
pub use self::claim::{
    ClaimCounts, NextRun, RESUMES_IN_A_ROW, claimed, next_claimed, resumes_in_a_row,
};
pub use self::continuations::{ContinuationNeeds, Successor, autonomous_place, continuation_key};
pub use self::delivery::{
    ReportRequest, Settled, Settlement, Succession, conversation_key, delay_of, due, withdrawn,
};
pub use self::dispatch::subscribers;
pub use self::names::name_place;
pub use self::queue::Rank;
pub use self::requests::{no_batch, task_hash};
pub use self::sessions::{covers, known_session, widest, widest_of};
pub use self::siblings::Siblings;
pub use self::turns::{turn_of, waits_its_turn};
pub use self::waits::{WaitState, is_woken, place};
pub use self::writes::{check_append, check_batch, check_new};

use crate::dispatch::CLOCK_LEEWAY;
use crate::run::RunState;
use crate::time::Timestamp;

/// A number for a list of texts, the same on every machine and in every version.
#[must_use]
pub fn hash(parts: &[&str]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}

/// The time of an event that a store adds by itself to a run in this state: `now`, or that of the last
/// event, as far as the record has it, where that is later. A host that asks a store for something
/// looked at the clock before, and may have waited for the store while others wrote. A time that is
/// earlier by more than [`CLOCK_LEEWAY`] is that of a clock that was set back, and stays as it is.
fn time_after(state: &RunState, now: Timestamp) -> Timestamp {
    // Of a run that nobody executes only the last change of its status is on record.
    let last = state.uncounted.map_or(state.updated_at, |stretch| stretch.until);
    if last.since(now) <= CLOCK_LEEWAY { last.max(now) } else { now }
}
