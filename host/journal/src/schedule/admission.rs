//! The admission of new runs: the requests that were made before, and the bounds.

use super::attachment::takes_children;
use super::continuations::autonomous_place;
use super::queue::Rank;
use super::requests::{KnownKey, is_same_task, known_key, task_hash};
use super::sessions::session_of;
use crate::hold::Lane;
use crate::ids::RunId;
use crate::pin::{Pins, Ready};
use crate::run::Run;
use crate::spec::RunSpec;
use crate::status::Status;
use crate::store::{Admission, AdmissionBound, CreateOutcome, Idempotency, NewRun, SessionKey};
use crate::time::Timestamp;

/// The questions about what a store keeps, on which the admission of a run depends.
pub trait Register {
    /// The way in which the store fails.
    type Error;

    /// The run to which a key of a tenant belongs, and the fingerprint of its request.
    ///
    /// # Errors
    /// Those of the store.
    fn keyed(&mut self, tenant: &str, key: &str) -> Result<Option<(String, Run)>, Self::Error>;

    /// Completed runs with this number of a task that ended at a time or later, the last one
    /// first, up to the first that fits.
    ///
    /// # Errors
    /// Those of the store.
    fn completed(
        &mut self,
        task: u64,
        since: Timestamp,
        fits: &dyn Fn(&Run) -> bool,
    ) -> Result<Option<Run>, Self::Error>;

    /// The status of a run; `None` if there is none of that id.
    ///
    /// # Errors
    /// Those of the store.
    fn status(&mut self, id: &RunId) -> Result<Option<Status>, Self::Error>;

    /// True for a session that has ended.
    ///
    /// # Errors
    /// Those of the store.
    fn has_session_ended(&mut self, key: &SessionKey) -> Result<bool, Self::Error>;

    /// The open run that has the name which a new one is to have.
    ///
    /// # Errors
    /// Those of the store.
    fn named(&mut self, spec: &RunSpec) -> Result<Option<RunId>, Self::Error>;

    /// The open run that is autonomous in the same place as a new one
    /// ([`autonomous_place`]).
    ///
    /// # Errors
    /// Those of the store.
    fn autonomous(&mut self, spec: &RunSpec) -> Result<Option<Run>, Self::Error>;

    /// The number of runs of the tenant of a run that wait to begin.
    ///
    /// # Errors
    /// Those of the store.
    fn queued(&mut self, spec: &RunSpec) -> Result<u64, Self::Error>;

    /// The runs of the tree of a run so far, and those of them that hosts hold.
    ///
    /// # Errors
    /// Those of the store.
    fn tree(&mut self, spec: &RunSpec) -> Result<TreeSize, Self::Error>;

    /// True if an open serial run takes its turn before a new one.
    ///
    /// # Errors
    /// Those of the store.
    fn has_open_serial(&mut self, spec: &RunSpec) -> Result<bool, Self::Error>;

    /// The rank of the run of these that is taken first at a time.
    ///
    /// # Errors
    /// Those of the store.
    fn first(
        &mut self,
        ready: &Ready,
        tree_slots: u32,
        now: Timestamp,
    ) -> Result<Option<Rank>, Self::Error>;

    /// True if the report of a run is pending and a host is to look for it.
    ///
    /// # Errors
    /// Those of the store.
    fn is_due(&mut self, run: &RunId) -> Result<bool, Self::Error>;

    /// The living hosts that execute a run.
    ///
    /// # Errors
    /// Those of the store.
    fn hosts(&mut self, spec: &RunSpec) -> Result<Vec<HostLoad>, Self::Error>;
}

/// The size of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeSize {
    /// All of its runs.
    pub runs: u64,
    /// Those that hosts hold.
    pub held: u64,
}

/// The load of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLoad {
    /// The runs that it executes at once.
    pub slots: u32,
    /// The runs that it holds.
    pub held: u64,
    /// The runs that it executes.
    pub ready: Ready,
}

/// The answer to a request that is not kept; `None` if it is. Nothing is asked that the answer does
/// not depend on.
///
/// # Errors
/// Those of the store.
pub fn refusal<R: Register>(
    new: &NewRun,
    register: &mut R,
) -> Result<Option<CreateOutcome>, R::Error> {
    let (spec, admission) = (&new.run.spec, &new.admission);
    if let Some(asked) = &new.idempotency
        && let Some(known) = keyed(spec, asked, register)?
    {
        return Ok(Some(known));
    }
    if let Some(task) = &new.task
        && let Some(since) = task.completed_since
        && let Some(run) = register
            .completed(task_hash(spec, task), since, &|run| is_same_task(&run.spec, spec))?
    {
        return Ok(Some(CreateOutcome::Repeated(Box::new(run))));
    }
    if register.status(&spec.id)?.is_some() {
        return Ok(Some(CreateOutcome::Taken(spec.id.clone())));
    }
    if register.has_session_ended(&session_of(spec))? {
        return Ok(Some(CreateOutcome::SessionEnded));
    }
    if let Some(parent) = &spec.parent_run_id
        && !register.status(parent)?.is_some_and(takes_children)
    {
        return Ok(Some(CreateOutcome::ParentEnded));
    }
    if let Some(holder) = register.named(spec)? {
        return Ok(Some(CreateOutcome::NameTaken(holder)));
    }
    if autonomous_place(spec).is_some()
        && let Some(open) = register.autonomous(spec)?
    {
        return Ok(Some(CreateOutcome::Locked(Box::new(open))));
    }
    for run in &spec.nudge_for {
        if !register.is_due(run)? {
            return Ok(Some(CreateOutcome::ReportsGone));
        }
    }
    Ok(full(&new.run, admission, register)?.map(CreateOutcome::Full))
}

fn keyed<R: Register>(
    spec: &RunSpec,
    asked: &Idempotency,
    register: &mut R,
) -> Result<Option<CreateOutcome>, R::Error> {
    let Some((fingerprint, run)) = register.keyed(&spec.tenant, &asked.key)? else {
        return Ok(None);
    };
    Ok(match known_key(asked, &fingerprint, &run) {
        KnownKey::Repeated => Some(CreateOutcome::Repeated(Box::new(run))),
        KnownKey::Taken => Some(CreateOutcome::Taken(run.id().clone())),
        KnownKey::Given => None,
    })
}

fn full<R: Register>(
    run: &Run,
    admission: &Admission,
    register: &mut R,
) -> Result<Option<AdmissionBound>, R::Error> {
    let spec = &run.spec;
    if admission.queue_max < u64::MAX && register.queued(spec)? >= admission.queue_max {
        return Ok(Some(AdmissionBound::Queue));
    }
    let tree = register.tree(spec)?;
    if spec.parent_run_id.is_some() && tree.runs >= admission.tree_max {
        return Ok(Some(AdmissionBound::Tree));
    }
    match admission.at_once {
        Some(slots) if !begins_at_once(run, tree, slots, register)? => {
            Ok(Some(AdmissionBound::Slots))
        }
        Some(_) | None => Ok(None),
    }
}

/// True for a new run that the next host with a free slot would claim.
fn begins_at_once<R: Register>(
    run: &Run,
    tree: TreeSize,
    tree_slots: u32,
    register: &mut R,
) -> Result<bool, R::Error> {
    let (spec, now) = (&run.spec, run.state.updated_at);
    if tree.held >= u64::from(spec.tree.slots.unwrap_or(tree_slots)) {
        return Ok(false);
    }
    if spec.serial && register.has_open_serial(spec)? {
        return Ok(false);
    }
    let rank = Rank::of(spec, Lane::Fresh, u64::MAX);
    let hosts = register.hosts(spec)?;
    // Where there is no host, the one that comes has a slot.
    let same = (hosts.is_empty()).then(|| same_pins(spec));
    let free = hosts.into_iter().filter(|host| host.held < u64::from(host.slots));
    for ready in free.map(|host| host.ready).chain(same) {
        if register.first(&ready, tree_slots, now)?.is_none_or(|first| rank < first) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The runs that are executed wherever this one is.
fn same_pins(spec: &RunSpec) -> Ready {
    let pins = Pins::accepted(spec);
    Ready::only(std::iter::once(pins.own()).chain(pins.ancestors()))
}
