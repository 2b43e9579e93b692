//! Holds of runs, and the waits of those that no host has.

use serde::{Deserialize, Serialize};

use crate::ids::{HostId, RunId};
use crate::status::BlockedOn;
use crate::time::Timestamp;

/// The host that has a run, or the condition under which one may have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// Nobody: it waits for an answer, or has ended.
    Nobody,
    /// Nobody, until the heartbeat of its agent takes it into a batch: an entry
    /// ([`crate::spec::RunClass::Heartbeat`]) that waits.
    Beat,
    /// Any host with a free slot may take it.
    Wanted {
        /// Before whom.
        lane: Lane,
        /// Not before this; zero for at once.
        not_before: Timestamp,
    },
    /// Nobody until other runs have ended; the store makes it wanted then. So an entry waits for
    /// the batch that works on it.
    Runs {
        /// The runs.
        runs: Vec<RunId>,
        /// The number of them that have to end.
        mode: WaitMode,
        /// When it is wanted in any case.
        until: Option<Timestamp>,
    },
    /// This host.
    Host {
        /// Its name.
        host: HostId,
    },
}

impl Hold {
    /// Wanted at once by whoever has a slot, before new work.
    pub(crate) const RESUME: Self = Self::Wanted { lane: Lane::Resume, not_before: Timestamp(0) };

    /// The host that has the run.
    #[must_use]
    pub fn host(&self) -> Option<&HostId> {
        match self {
            Self::Host { host } => Some(host),
            Self::Nobody | Self::Beat | Self::Wanted { .. } | Self::Runs { .. } => None,
        }
    }
}

/// Which runs are taken first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// Those that were executed before.
    Resume,
    /// Those that never were.
    Fresh,
}

/// The number of several runs that have to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitMode {
    /// Every one.
    All,
    /// The first.
    Any,
}

/// The end of the wait of a blocked run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "until")]
pub enum Wait {
    /// An answer to every open item, or the time.
    Answers {
        /// The time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<Timestamp>,
    },
    /// The end of other runs, or the time.
    Runs {
        /// The runs.
        runs: Vec<RunId>,
        /// The number of them that have to end.
        mode: WaitMode,
        /// The time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<Timestamp>,
    },
    /// Somebody's word.
    Word,
    /// A time, and nothing else.
    Time {
        /// The time.
        at: Timestamp,
    },
}

/// Something asked of the outside, as far as it is shown with the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Await {
    /// Id of the item.
    pub id: String,
    /// The kind of answer that it needs.
    pub on: BlockedOn,
    /// The question; at most [`crate::run::SUMMARY_CHARS_MAX`] characters.
    pub prompt: String,
    /// True once it is answered.
    pub answered: bool,
}
