//! Folds of journals that are kept, so that a host which takes up a run that lives for months does not
//! read all of it.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use taskrun_journal::artifact::{ARTIFACT_BYTES_MAX, Artifact};
use taskrun_journal::checkpoint::FoldRef;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::ids::Seq;
use taskrun_journal::run::Run;
use taskrun_journal::store::StoreError;
use taskrun_journal::time::Timestamp;

use super::Work;
use crate::driver::journal::Journal;

/// The form of what is kept, and of the way from a journal to it: one of another form is of no use.
/// A fold of each kind of thing is in `fold/form-3.json`, and a test fails where it becomes another one
/// while this stays.
const FORM: u32 = 3;
/// Bytes of a journal for which none is kept: they are read in a few milliseconds.
const UNFOLDED_BYTES_MIN: u64 = 64 << 10;
/// Bytes of a journal for each byte of the last one: they cost a quarter of the journal then.
const UNFOLDED_PER_BYTE: u64 = 4;

/// A fold as it is kept.
#[derive(Serialize, Deserialize)]
struct Fold<W> {
    form: u32,
    program: String,
    seq: Seq,
    work: W,
}

/// The program that this is: another one may come to something else.
fn program() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// The fold after these events, the last of which ends a round, where so much was written since the last
/// one that another is to be kept, and nothing is under way then.
pub(in crate::driver) fn after(
    work: &Work,
    run: &Run,
    events: &[Event],
) -> Option<(FoldRef, Artifact)> {
    let last = run.state.rounds.fold.as_ref().map_or(0, |fold| fold.artifact.size);
    if work.unfolded_bytes < UNFOLDED_BYTES_MIN.max(UNFOLDED_PER_BYTE * last) {
        return None;
    }
    let (mut work, mut seq) = (work.clone(), run.state.head);
    for event in events {
        seq += 1;
        // Neither counts: those with results of tools are on record. Nor do the bytes, which are counted
        // anew from the end of a round on.
        let (id, at) = (0, Timestamp(0));
        work.push_with_bytes(&EventRecord { seq, id, at, event: event.clone() }, 0);
    }
    work.unfolded_bytes = 0;
    if !work.is_at_rest() {
        return None;
    }
    let fold = Fold { form: FORM, program: program(), seq, work };
    let bytes = serde_json::to_vec(&fold).ok().filter(|bytes| bytes.len() <= ARTIFACT_BYTES_MAX)?;
    let artifact = Artifact::new(bytes);
    Some((FoldRef { seq, artifact: artifact.reference().clone() }, artifact))
}

/// The last fold of a journal that is kept, and the position after which it goes on; `None` if there is
/// none that is of any use.
///
/// # Errors
/// [`StoreError`], but for [`StoreError::Corrupt`].
pub(in crate::driver) async fn kept(journal: &Journal) -> Result<Option<(Work, Seq)>, StoreError> {
    let run = journal.run();
    let Some(FoldRef { seq, artifact }) = &run.state.rounds.fold else { return Ok(None) };
    let bytes = match journal.artifact(&artifact.hash).await {
        Err(error @ StoreError::Corrupt { .. }) => {
            tracing::warn!(run = %run.id(), %error, "the journal is folded from its beginning");
            None
        }
        found => found?,
    };
    Ok(bytes.and_then(|bytes| of_bytes(&bytes, *seq)))
}

/// The fold up to a position, if that is what these bytes are.
pub(super) fn of_bytes(bytes: &[u8], seq: Seq) -> Option<(Work, Seq)> {
    let fold: Fold<Work> = serde_json::from_slice(bytes).ok()?;
    let is_of_use = fold.form == FORM && fold.program == program() && fold.seq == seq;
    is_of_use.then_some((fold.work, seq))
}
