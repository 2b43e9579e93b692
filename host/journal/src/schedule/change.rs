//! The consequences of a change of one run for indexes and for other runs.

use super::delivery::{ReportRequest, Settlement, Succession};
use crate::hold::Hold;

/// A run before it changed, as far as the consequences depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    /// It waited to begin.
    pub is_queued: bool,
    /// It had ended.
    pub has_ended: bool,
    /// A host had it.
    pub is_held: bool,
    /// Its hold stays as it was, and so do its pins, by which it stands in the queue.
    pub same_hold: bool,
}

/// A run after it changed.
#[derive(Clone, Copy, Debug)]
pub struct After<'a> {
    /// It waits to begin.
    pub is_queued: bool,
    /// It has ended.
    pub has_ended: bool,
    /// Its hold.
    pub hold: &'a Hold,
    /// The request to tell of its outcome.
    pub report: Option<&'a ReportRequest>,
    /// The settlement of the reports that it was told of.
    pub settlement: Option<Settlement>,
    /// The consequence of its end for reports that waited for it.
    pub succession: Option<Succession>,
}

/// One consequence, to be applied by the store in the transaction of the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// The run no longer counts among those of its tenant and policy that wait to begin.
    Begin,
    /// The run waits for none of the runs any more for which it waited.
    EndWait,
    /// One run more of its tree is held.
    TakeSlot,
    /// One run less of its tree is held, so that another one may be claimed.
    FreeSlot,
    /// The run comes to the [`place`](super::place) of this hold.
    Place(&'a Hold),
    /// The outcome of the run is to be told: its report is pending, unless there is nobody to be told.
    Report(&'a ReportRequest),
    /// The reports that the run was told of are settled.
    Settle(Settlement),
    /// The pending reports that waited for the end of the run wait for the next one above them, or a
    /// host is to look for them.
    Succeed(Succession),
    /// The subscribers of the run are told that it has ended.
    Dispatch,
    /// The runs that are behind this one move on, where their wait is over by that.
    Wake,
    /// The name of the run is free.
    FreeName,
    /// The next serial run of the session begins, if it waited for its turn.
    NextTurn,
    /// The attached runs that this one started are canceled.
    CancelAttached,
}

/// The consequences of a change, in the order in which they are applied.
pub fn consequences<'a>(before: Before, after: After<'a>) -> impl Iterator<Item = Change<'a>> {
    let moves = !before.same_hold;
    let is_held = after.hold.host().is_some();
    let ends = after.has_ended && !before.has_ended;
    [
        (before.is_queued && !after.is_queued).then_some(Change::Begin),
        (moves && !before.is_held).then_some(Change::EndWait),
        (moves && !before.is_held && is_held).then_some(Change::TakeSlot),
        (moves && before.is_held && !is_held).then_some(Change::FreeSlot),
        moves.then_some(Change::Place(after.hold)),
        after.report.filter(|_| ends).map(Change::Report),
        after.settlement.filter(|_| ends).map(Change::Settle),
        after.succession.filter(|_| ends).map(Change::Succeed),
        ends.then_some(Change::Dispatch),
        ends.then_some(Change::Wake),
        ends.then_some(Change::FreeName),
        ends.then_some(Change::NextTurn),
        ends.then_some(Change::CancelAttached),
    ]
    .into_iter()
    .flatten()
}
