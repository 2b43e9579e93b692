//! Checkpoints of runs that live for months: the ends of rounds at which something is left behind, so
//! that the next round costs what the first one did.

use serde::{Deserialize, Serialize};

use crate::artifact::ArtifactRef;
use crate::event::{Event, EventRecord};
use crate::ids::{RunId, Seq};
use crate::message::Usage;

/// The things that a run leaves behind at the end of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Checkpoint {
    /// Most bytes of the conversation that the next round begins with: what is older is left out for
    /// good. Without it nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation_bytes: Option<u64>,
    /// The runs beneath it that have ended and count no longer in its tree.
    #[serde(skip_serializing_if = "Settled::is_none")]
    pub settled: Settled,
    /// The consumption beneath the runs that it continues since it was accepted, once these have ended
    /// with everything beneath them; it is in no later checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continued: Option<Usage>,
    /// The fold of the journal up to here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fold: Option<FoldRef>,
}

impl Checkpoint {
    /// True if nothing is left behind.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// True if one of these events ends a round: what the run was told by then stands in its
/// conversation for good.
#[must_use]
pub fn ends_round(events: &[EventRecord]) -> bool {
    ended_rounds(events).next().is_some()
}

/// The checkpoints of the rounds that these events end.
fn ended_rounds(events: &[EventRecord]) -> impl Iterator<Item = &Checkpoint> {
    events.iter().filter_map(|recorded| {
        let Event::RoundEnded { checkpoint, .. } = &recorded.event else { return None };
        Some(&**checkpoint)
    })
}

/// Runs that have ended and of which nobody is to be told any more. With the event that names them they
/// count no longer in their tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// The runs.
    pub runs: Vec<RunId>,
    /// The consumption of all of them, which counts as that of the run above them from here on.
    pub usage: Usage,
}

impl Settled {
    /// The runs that these events leave behind.
    pub fn in_events(events: &[EventRecord]) -> impl Iterator<Item = &RunId> {
        ended_rounds(events).flat_map(|checkpoint| &checkpoint.settled.runs)
    }

    /// True if there are none.
    #[must_use]
    pub(crate) fn is_none(&self) -> bool {
        self.runs.is_empty()
    }
}

/// A fold of a journal that is kept as an artifact of the run. It is a cache: where it is missing,
/// damaged or of another program, the journal is folded from its beginning, with the same result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoldRef {
    /// The position of the event that names it, as its writer expected it. Where it stands somewhere
    /// else, somebody wrote before it what the fold does not have, and it is of no use.
    pub seq: Seq,
    /// Its bytes.
    pub artifact: ArtifactRef,
}
