//! The runs that a run continues, and whose conversation it goes on with.

use taskrun_journal::event::EventRecord;
use taskrun_journal::machine;
use taskrun_journal::run::Run;

use super::ReplayError;
use crate::driver::work::Work;

/// The work of a run before anything that it did itself: that of the runs which it continues, of
/// which `before` has the journals, the latest first. Also true if one of them is not there.
pub(super) fn work(run: &Run, before: &[Vec<EventRecord>]) -> Result<(Work, bool), ReplayError> {
    let mut chain = Vec::with_capacity(before.len());
    for records in before.iter().rev() {
        let ended = machine::fold(records).map_err(ReplayError::Inconsistent)?;
        chain.push((ended, records));
    }
    let oldest = chain.first().map_or(run, |(oldest, _)| oldest);
    let is_cut = oldest.spec.continues.is_some();
    let mut work = Work::new(&oldest.spec, oldest.pin());
    for (at, (_, records)) in chain.iter().enumerate() {
        records.iter().for_each(|record| work.push_recorded(record));
        let next = chain.get(at + 1).map_or(run, |(next, _)| next);
        work.carry_on(&next.spec, next.pin());
    }
    Ok((work, is_cut))
}
