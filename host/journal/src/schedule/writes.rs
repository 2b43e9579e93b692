//! Checks of the records that stores are given, before anything is written.

use crate::event::EventRecord;
use crate::ids::Seq;
use crate::run::Run;
use crate::store::{Append, Idempotency, NewBatch, NewRun};

/// # Panics
/// If the journal does not begin at 1 or does not end where the record says: a bug of the caller
/// that would be kept for ever.
pub fn check_new(new: &NewRun) {
    check_journal(0, &new.events, &new.run);
}

/// # Panics
/// If the events do not follow `expected_head` or do not end where the record says.
pub fn check_append(append: &Append) {
    check_journal(append.expected_head, &append.events, &append.run);
}

/// # Panics
/// Like [`check_new`] and [`check_append`], and if the batch has no key, which names its beat.
pub fn check_batch(batch: &NewBatch) -> &Idempotency {
    check_new(&batch.run);
    batch.entries.iter().for_each(check_append);
    let id = batch.run.run.id();
    batch.run.idempotency.as_ref().unwrap_or_else(|| panic!("batch {id} has no beat"))
}

fn check_journal(head: Seq, events: &[EventRecord], run: &Run) {
    let in_order = (head + 1..).zip(events).all(|(seq, recorded)| recorded.seq == seq);
    assert!(in_order, "events of run {} do not follow position {head}", run.id());
    let end = head + events.len() as u64;
    assert!(
        run.state.head == end,
        "record of run {} ends at {} and its journal at {end}",
        run.id(),
        run.state.head
    );
}
