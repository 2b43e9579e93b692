//! A run to be kept, the conditions under which it is, and the answers.

use super::AdmissionBound;
use crate::artifact::Artifact;
use crate::event::EventRecord;
use crate::ids::RunId;
use crate::run::Run;
use crate::time::Timestamp;

/// A run to be kept.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// The record after `events`.
    pub run: Run,
    /// The journal so far.
    pub events: Vec<EventRecord>,
    /// Makes a repeated request harmless.
    pub idempotency: Option<Idempotency>,
    /// The key of its task, if its answer may be used again.
    pub task: Option<TaskKey>,
    /// Artifacts that are kept with it, as its request refers to them.
    pub artifacts: Vec<Artifact>,
    /// The conditions under which it is kept; checked in the same transaction.
    pub admission: Admission,
}

/// Bounds on what is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Most runs of a tenant that wait to begin.
    pub queue_max: u64,
    /// Most runs of one tree, ended ones included.
    pub tree_max: u64,
    /// If set, the run is kept only if it can begin at once as far as the store knows: its tree has
    /// one of its slots left, or of so many where it states no number, and so has a living host that
    /// executes it and would take no other run before; where there is no such host, no run with the
    /// same pins is before it.
    pub at_once: Option<u32>,
}

impl Admission {
    /// No bounds.
    pub const UNBOUNDED: Self = Self { queue_max: u64::MAX, tree_max: u64::MAX, at_once: None };
}

/// A caller's key for a request, unique in its tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// The key.
    pub key: String,
    /// Digest of the request; the same key with another one is a mistake of the caller.
    pub fingerprint: String,
    /// If set, the key stands for the result and not for the run: it counts only once its run is
    /// completed, and only if that was not before this time. Otherwise it is given to the new run.
    pub completed_since: Option<Timestamp>,
}

/// Names what the answer of a run depends on, among the runs of one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskKey {
    /// Digest of all of it.
    pub digest: String,
    /// If set, no run is kept where one of the same key was completed at this time or later: the
    /// answer is the last of those, whoever asked for it and why.
    pub completed_since: Option<Timestamp>,
}

/// The answer to a new run.
#[derive(Clone, Debug)]
pub enum CreateOutcome {
    /// It is kept.
    New,
    /// The same request was made before, or the same task was completed; this is its run.
    Repeated(Box<Run>),
    /// The id, or the idempotency key with another request, belongs to this run.
    Taken(RunId),
    /// It would have to wait, and may not, or one of the bounds is met.
    Full(AdmissionBound),
    /// The session it would belong to has ended.
    SessionEnded,
    /// The run it would be started by is not there, has ended, or is about to.
    ParentEnded,
    /// Its name belongs to this open run.
    NameTaken(RunId),
    /// It is autonomous, and so is this open run of the same agent in the same conversation.
    Locked(Box<Run>),
    /// It is a nudge, and one of the reports for which it would be started is not due any more. Look
    /// again.
    ReportsGone,
}

/// The answer to a new run with a claim.
#[derive(Clone, Debug)]
pub enum JointOutcome {
    /// Both are done.
    Done {
        /// The answer to the new run.
        created: CreateOutcome,
        /// The runs that the claim took.
        claimed: Vec<Run>,
    },
    /// Neither is done, as the run cannot be kept without a wait: it is given back for
    /// [`super::Store::create`].
    Busy(Box<NewRun>),
}

impl CreateOutcome {
    /// True if the request made a new run, which is kept.
    #[must_use]
    pub fn is_new(&self) -> bool {
        matches!(self, Self::New)
    }

    /// True unless there is a run of the request.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::New | Self::Repeated(_) => false,
            Self::Taken(_)
            | Self::Full(_)
            | Self::SessionEnded
            | Self::ParentEnded
            | Self::NameTaken(_)
            | Self::Locked(_)
            | Self::ReportsGone => true,
        }
    }
}
