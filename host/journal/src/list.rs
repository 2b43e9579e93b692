//! Callers, and the runs that they list.

use std::fmt;

use crate::ids::{RunId, Seq};
use crate::message::Labels;
use crate::run::Run;
use crate::spec::RunSpec;
use crate::status::{Status, StopReason};
use crate::time::Timestamp;

/// Runs on a page unless another number is asked for.
pub const PAGE_DEFAULT: usize = 16;
/// Most runs on a page.
pub const PAGE_MAX: usize = 200;
/// Most runs that are looked at for the order of their ends: those that changed last by the time of
/// day. Each costs a look at its row, and a conversation is told of a few dozen.
pub const ENDS_MAX: usize = 1_000;

/// The runs that a caller sees. The tenant always counts; each other field, where it is set,
/// narrows what can be seen. A run outside the scope looks as if it did not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Tenant.
    pub tenant: String,
    /// Only runs of this owner.
    pub owner_user_id: Option<String>,
    /// Only runs of this session: those asked for from it, and those of trees whose first run was.
    pub parent_session_id: Option<String>,
    /// Only runs asked for from this application.
    pub parent_app_name: Option<String>,
}

impl Scope {
    /// The operator of a tenant: sees all of its runs.
    #[must_use]
    pub fn tenant(tenant: &str) -> Self {
        Self {
            tenant: tenant.to_owned(),
            owner_user_id: None,
            parent_session_id: None,
            parent_app_name: None,
        }
    }

    /// The same tenant, narrowed to one owner.
    #[must_use]
    pub fn owner(mut self, owner: &str) -> Self {
        self.owner_user_id = Some(owner.to_owned());
        self
    }

    /// The same, narrowed to one parent session.
    #[must_use]
    pub fn session(mut self, session: &str) -> Self {
        self.parent_session_id = Some(session.to_owned());
        self
    }

    /// True if a run can be seen.
    #[must_use]
    pub fn admits(&self, run: &Run) -> bool {
        self.admits_spec(&run.spec)
    }

    /// The same, by what was asked for.
    #[must_use]
    pub fn admits_spec(&self, spec: &RunSpec) -> bool {
        self.admits_origin(&Origin {
            tenant: &spec.tenant,
            owner_user_id: &spec.owner_user_id,
            parent_session_id: &spec.parent_session_id,
            root_session_id: spec.root_session_id.as_deref(),
            parent_app_name: spec.parent_app_name.as_deref(),
        })
    }

    /// The same, by where it was asked for.
    #[must_use]
    pub fn admits_origin(&self, origin: &Origin<'_>) -> bool {
        let fits = |wanted: &Option<String>, has: [Option<&str>; 2]| {
            wanted.as_deref().is_none_or(|wanted| has.contains(&Some(wanted)))
        };
        let of_session = [Some(origin.parent_session_id), origin.root_session_id];
        self.tenant == origin.tenant
            && fits(&self.owner_user_id, [Some(origin.owner_user_id), None])
            && fits(&self.parent_session_id, of_session)
            && fits(&self.parent_app_name, [origin.parent_app_name, None])
    }
}

/// The person who asked for a run, and the place: all that a [`Scope`] looks at. The fields are those
/// of [`RunSpec`].
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// Tenant.
    pub tenant: &'a str,
    /// Owner.
    pub owner_user_id: &'a str,
    /// Session that it was asked for from.
    pub parent_session_id: &'a str,
    /// Session that the first run of its tree was asked for from.
    pub root_session_id: Option<&'a str>,
    /// Application that it was asked for from.
    pub parent_app_name: Option<&'a str>,
}

/// The end of a run's journal, for those who follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Position of the last event.
    pub seq: Seq,
    /// True if there will be no further one.
    pub has_ended: bool,
}

impl From<&Run> for Head {
    fn from(run: &Run) -> Self {
        Self { seq: run.state.head, has_ended: run.status().is_terminal() }
    }
}

/// Which runs are listed. Empty fields admit everything; the others are all to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListFilter {
    /// One of these statuses.
    pub status: Vec<Status>,
    /// Ended for one of these reasons.
    pub stop_reason: Vec<StopReason>,
    /// This agent.
    pub agent_name: Option<String>,
    /// Called so.
    pub name: Option<String>,
    /// Started by this run.
    pub parent_run_id: Option<RunId>,
    /// In the tree of this first run, which is in it too.
    pub root_run_id: Option<RunId>,
    /// All of these labels.
    pub labels: Labels,
    /// Accepted at this time or later.
    pub since: Option<Timestamp>,
}

impl ListFilter {
    /// Runs that have not ended.
    #[must_use]
    pub fn open() -> Self {
        let is_open = |status: &Status| !status.is_terminal();
        Self { status: Status::ALL.iter().copied().filter(is_open).collect(), ..Self::default() }
    }

    /// The part of it that runs which have ended fit; `None` if none does.
    #[must_use]
    pub fn of_ended(&self) -> Option<Self> {
        let wanted = if self.status.is_empty() { Status::ALL } else { &self.status };
        let status: Vec<Status> =
            wanted.iter().copied().filter(|status| status.is_terminal()).collect();
        (!status.is_empty()).then(|| Self { status, ..self.clone() })
    }

    /// True if a run is listed.
    #[must_use]
    pub fn admits(&self, run: &Run) -> bool {
        let spec = &run.spec;
        (self.status.is_empty() || self.status.contains(&run.status()))
            && (self.stop_reason.is_empty()
                || run.stop_reason().is_some_and(|reason| self.stop_reason.contains(&reason)))
            && self.agent_name.as_ref().is_none_or(|agent| *agent == spec.agent_name)
            && self.name.as_ref().is_none_or(|name| Some(name) == spec.name.as_ref())
            && self.parent_run_id.as_ref().is_none_or(|id| Some(id) == spec.parent_run_id.as_ref())
            && self.root_run_id.as_ref().is_none_or(|id| *id == spec.root_run_id)
            && self.labels.iter().all(|(key, value)| spec.labels.get(key) == Some(value))
            && self.since.is_none_or(|since| spec.created_at >= since)
    }
}

/// A place in a listing: after this run. Opaque to callers; its text form is stable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Sort key of the last run shown.
    pub updated_at: Timestamp,
    /// Its id, which settles ties.
    pub id: RunId,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.updated_at.0, self.id)
    }
}

/// A text that is no cursor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor of this listing: {0:?}")]
pub struct InvalidCursor(pub String);

impl std::str::FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let parts = text.split_once('.').and_then(|(time, id)| {
            Some(Self { updated_at: Timestamp(time.parse().ok()?), id: RunId::new(id).ok()? })
        });
        parts.ok_or_else(|| InvalidCursor(text.to_owned()))
    }
}

/// A page of a listing: the run changed last comes first; of runs changed in the same
/// millisecond the one with the greater id.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// The runs.
    pub runs: Vec<Run>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<Cursor>,
}

/// The runs of one tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeQuery {
    /// Tenant.
    pub tenant: String,
    /// The first run of the tree, which is in it too.
    pub root_run_id: RunId,
    /// True for only the runs that count in it: those that no run above has left behind
    /// ([`crate::checkpoint::Settled`]).
    pub counted_only: bool,
}

impl TreeQuery {
    /// All runs of the tree that a run is in.
    #[must_use]
    pub fn of(spec: &RunSpec) -> Self {
        Self {
            tenant: spec.tenant.clone(),
            root_run_id: spec.root_run_id.clone(),
            counted_only: false,
        }
    }

    /// The runs that count in it.
    #[must_use]
    pub fn counted(spec: &RunSpec) -> Self {
        Self { counted_only: true, ..Self::of(spec) }
    }
}

/// A page of the runs of a tree, in the order in which they were accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct TreePage {
    /// The runs.
    pub runs: Vec<Run>,
    /// The place of the last run that was looked at, after which the next page begins; `None` at the
    /// end.
    pub next: Option<u64>,
}

/// A run that has ended, and the place of its end.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedRun {
    /// The place of its last event among all of the store, in the order in which they became
    /// durable.
    pub place: u64,
    /// The run.
    pub run: Run,
}
