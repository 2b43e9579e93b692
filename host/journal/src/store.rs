//! The port to stores: journal, records, queue and hosts.
//!
//! A store keeps what it is given and decides nothing: events come with the record they lead to,
//! and [`crate::schedule`] says what follows from them for indexes and for other runs.
//! Everything that a method acknowledged is on disk, as far as the store has one, and becomes
//! visible to readers at that moment and not before.

mod creation;
mod dispatches;
mod error;
mod hosts;
mod policies;
mod reports;
mod sessions;
mod watch;

use std::sync::Arc;

use async_trait::async_trait;

use crate::artifact::Artifact;
use crate::delivery::{Report, ReportsTaken};
use crate::event::{EventRecord, JournalPart};
use crate::ids::{HostId, RunId, Seq};
use crate::list::{Cursor, EndedRun, Head, ListFilter, Page, Scope, TreePage, TreeQuery};
use crate::pin::{Pins, Ready};
use crate::run::Run;
use crate::time::Timestamp;

pub use self::creation::{Admission, CreateOutcome, Idempotency, JointOutcome, NewRun, TaskKey};
pub use self::dispatches::{DispatchClaim, DispatchQuery, Dispatches};
pub use self::error::{AdmissionBound, StoreError};
pub use self::hosts::{BEATS_PER_LEASE, Host, Hosts, LEASE, PresentHost, Stay};
pub use self::policies::{Policies, PolicyRevision, PolicyText};
pub use self::reports::{ReportChange, ReportQuery};
pub use self::sessions::{Session, SessionEvent, SessionKey, SessionPage, Sessions};
pub use self::watch::RunWatch;

/// Journal, records and queue.
///
/// Beside what it is given, a store applies the consequences of each change
/// ([`crate::schedule::consequences`]) in the transaction of that change:
/// - a run that waits for other runs ([`crate::hold::Hold::Runs`]) becomes wanted, in the lane of
///   those that resume, when enough of them have ended. Its record does not change; whoever
///   claims it looks for itself;
/// - a wanted run whose tree has no slot left, or which is serial and not the first of its
///   session, is passed over until there is one;
/// - a run that is canceled, claimed or ended waits for nothing any more;
/// - when a run ends, those that it started and that are attached to it
///   ([`crate::spec::RunSpec::attached`]) are canceled, as [`crate::machine::decide::cancel`] says,
///   and so on beneath those that end by that;
/// - when a run ends whose outcome is to be delivered ([`crate::spec::RunSpec::delivery`]), its report
///   is pending; but there is none where nobody is to be told
///   ([`crate::schedule::ReportRequest::is_wanted`]). Ending a session makes dead letters of the
///   pending reports of its conversations;
/// - when a run ends that was told of reports, they are delivered, pending again, or dead
///   ([`crate::schedule::Settlement`]). When a round of it ends they are delivered
///   ([`crate::checkpoint::ends_round`]), and the runs that it leaves behind
///   ([`crate::checkpoint::Settled`]) count no longer in their tree;
/// - a report for which a host is to look ([`crate::schedule::ReportRequest::delay`]) is due when no
///   run above it is open; while one is it waits for the end of the nearest
///   ([`crate::schedule::Succession`]). A run that is a nudge
///   ([`crate::spec::RunSpec::nudge_for`]) is kept only if each of its reports is due, and they wait
///   for its end from then on;
/// - when a run is accepted that continues another one, and whose outcome is to be delivered, a pending
///   report of that one is gone ([`crate::schedule::withdrawn`]);
/// - when a run is accepted, and when one ends, each of its subscribers
///   ([`crate::spec::RunSpec::subscriptions`]) that is told of that has a dispatch, which is due at
///   once ([`crate::schedule::subscribers`]);
/// - a name ([`crate::spec::RunSpec::name`]) belongs to one open run of those with the same parent
///   run, or, without one, of those with the same tenant, owner and parent session. It is free
///   again as soon as that has ended.
#[async_trait]
pub trait Store: Send + Sync {
    /// Keeps a new run with its first events. Nothing is kept unless the answer is
    /// [`CreateOutcome::New`].
    ///
    /// # Errors
    /// [`StoreError`]; the run may then exist only after [`StoreError::Unknown`].
    async fn create(&self, run: NewRun) -> Result<CreateOutcome, StoreError>;

    /// Keeps a new run as [`Self::create`] does and then takes runs as [`Self::claim`] does, in one
    /// transaction. The claim takes what comes first in the queue, which need not be the new run. Where
    /// the run is not kept, no run is taken; where none can be taken, as what the queue has is damaged,
    /// the run is kept all the same. [`JointOutcome::Busy`] if the run cannot be kept at once.
    ///
    /// # Errors
    /// [`StoreError`]; all of it may then be kept only after [`StoreError::Unknown`].
    async fn create_and_claim(&self, run: NewRun, claim: Claim)
    -> Result<JointOutcome, StoreError>;

    /// Keeps new runs beneath one run, all or none: the answers are in their order, each is
    /// [`CreateOutcome::New`] or [`CreateOutcome::Repeated`], and they stop at the first other one,
    /// for which nothing is kept. Bounds hold for all of them together; their keys and ids differ.
    ///
    /// # Errors
    /// [`StoreError`]; all of them may then exist only after [`StoreError::Unknown`].
    async fn create_all(&self, runs: Vec<NewRun>) -> Result<Vec<CreateOutcome>, StoreError>;

    /// Keeps a batch run and adds to the journals of the entries that it takes, all or nothing.
    ///
    /// The key of the batch names its beat, and the fingerprint the tick. A key stands for the
    /// last batch of its beat, for as long as that is kept.
    ///
    /// # Errors
    /// [`StoreError`]; all of it may then be kept only after [`StoreError::Unknown`].
    async fn batch(&self, batch: NewBatch) -> Result<BatchOutcome, StoreError>;

    /// Entries that wait for the heartbeat of an agent of this name
    /// ([`crate::hold::Hold::Beat`]), those of one tenant, owner, session and application together:
    /// of each such group at most `limit`, the highest priority first, then in the order of
    /// acceptance.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn entries(&self, agent_name: &str, limit: usize) -> Result<Vec<Vec<RunId>>, StoreError>;

    /// Adds events to a journal and replaces the record, in one step, if the journal still ends
    /// at `expected_head` and the run's epoch is still `epoch`.
    ///
    /// Idempotent: the same append again is [`AppendOutcome::Done`]. Events are the same if all of
    /// them are, with their times; other ones under the ids of those that are kept are
    /// [`AppendOutcome::Conflict`].
    ///
    /// # Errors
    /// [`StoreError`]; the events may then be kept only after [`StoreError::Unknown`].
    async fn append(&self, append: Append) -> Result<AppendOutcome, StoreError>;

    /// Takes wanted runs for a host and records [`crate::machine::decide::claim`] for each: those
    /// that resume before those that never began, then highest priority first, then in the order
    /// of acceptance. No run is given to two hosts, and no tree gets more slots than allowed.
    ///
    /// After them it takes runs that wait for their finalizer alone, whatever is held of their
    /// tree, the highest priority first, then in the order of acceptance.
    ///
    /// # Errors
    /// [`StoreError`]; runs may then be claimed only after [`StoreError::Unknown`].
    async fn claim(&self, claim: Claim) -> Result<Vec<Run>, StoreError>;

    /// The prospects of a claim, found out without writing anything, so that a host that has
    /// nothing to do writes nothing.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn prospect(&self, claim: &Claim) -> Result<Prospect, StoreError>;

    /// The pins of the runs that a claim of all would find now, those of full trees included: each
    /// once, in the order in which their best runs would be taken.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn wanted(&self) -> Result<Vec<Pins>, StoreError>;

    /// The pins of all open runs, and with a time of those, too, that ended then or later: each
    /// once, in the order of their texts.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn pins(&self, ended_since: Option<Timestamp>) -> Result<Vec<Pins>, StoreError>;

    /// The record; `None` if there is no such run.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn get(&self, id: &RunId) -> Result<Option<Run>, StoreError>;

    /// The end of the journal of a run that the scope admits; `None` if there is no such run, or it
    /// is outside of the scope. It is what [`Self::get`] says of it, and may be told for less.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn head(&self, scope: &Scope, id: &RunId) -> Result<Option<Head>, StoreError> {
        let run = self.get(id).await?.filter(|run| scope.admits(run));
        Ok(run.as_ref().map(Head::from))
    }

    /// A page of the runs that scope and filter admit, in the order of [`Page`].
    ///
    /// # Errors
    /// [`StoreError`].
    async fn list(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError>;

    /// The runs that scope and filter admit and that have ended, at most `limit`, the one that
    /// ended last first: in the order in which their ends became durable, which no clock changes.
    /// With the place of an end those that ended before it. Of more than [`crate::list::ENDS_MAX`]
    /// that fit only so many are looked at, the first in the order of [`Page`].
    ///
    /// # Errors
    /// [`StoreError`].
    async fn ended(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<EndedRun>, StoreError>;

    /// A page of the runs of a tree after a place, at most `limit`. They are in the order in which they
    /// were accepted, which no change of a run changes: the pages together have each run once that is
    /// in the tree while they are read. A page that is not the last may have fewer runs, or none.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn tree(
        &self,
        query: &TreeQuery,
        after: Option<u64>,
        limit: usize,
    ) -> Result<TreePage, StoreError>;

    /// Events of a journal after position `after`, in order, at most `limit`, and of as many bytes
    /// together as [`PAGE_BYTES_MAX`]; one that has more comes alone. Empty at the end of the
    /// journal, and for an unknown run.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn read(
        &self,
        id: &RunId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<EventRecord>, StoreError>;

    /// The bytes of an artifact that was kept with this run; `None` if there is no such run, or
    /// none of that name was kept with it.
    ///
    /// # Errors
    /// [`StoreError`]; [`StoreError::Corrupt`] if the bytes are not those of the name.
    async fn artifact(&self, id: &RunId, hash: &str) -> Result<Option<Arc<[u8]>>, StoreError>;

    /// Reports after a place in the order of the ends of their runs, at most `limit`.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn reports(
        &self,
        query: &ReportQuery,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Report>, StoreError>;

    /// Changes the report of a run. False if there is none, or none to which that applies.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn change_report(&self, run: &RunId, change: ReportChange) -> Result<bool, StoreError>;

    /// Registers for what happens to the run `id`, also if there is none: a caller that reads the run
    /// after that misses nothing. It costs no look at the store.
    fn watch(&self, id: &RunId) -> Box<dyn RunWatch>;

    /// Returns when there may be wanted runs, whichever process made them so, or when the time of
    /// one has come. May return early; never later than a second after the fact.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait.
    async fn work(&self);

    /// Removes runs that ended before a time, oldest first, with everything that belongs to them:
    /// journals, labels, idempotency keys, and artifacts that no other run refers to. A run stays under
    /// which another one is still open, or above which one is, unless it counts no longer in its tree;
    /// so does a batch one of whose entries is open, a run that an open one continues, a run of whose
    /// outcome an open run was told or a conversation may still be told, and a run with a dispatch that
    /// is to be handed over. A run beneath one that an open run continues stays until that has been
    /// told of it, and until its consumption stands in the record of a run that continues
    /// ([`crate::rounds::Rounds::continued`]). Its report and its dispatches go with it.
    /// One call is one transaction.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn remove(&self, removal: Removal) -> Result<RemovalOutcome, StoreError>;
}

/// Most bytes of the events of one page, as JSON, unless a single one has more: few enough that
/// every reader of a process may hold a page, and more than most journals have.
pub const PAGE_BYTES_MAX: usize = 4 << 20;

/// A batch run to be kept, and the entries that it takes.
#[derive(Clone, Debug)]
pub struct NewBatch {
    /// The run. It has a key; no bound holds for it, nor does the end of its session, as its
    /// entries were accepted before.
    pub run: NewRun,
    /// The events that say in the journals of the entries that the batch took them.
    pub entries: Vec<Append>,
}

/// The answer to a batch. Nothing is kept unless it is [`BatchOutcome::New`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchOutcome {
    /// It is kept and has its entries.
    New,
    /// The last batch of the beat has not ended.
    Open(RunId),
    /// The tick made this batch, which has ended.
    Repeated(RunId),
    /// One of the entries is not as the batch believes, or the id of the run is taken. Look again.
    Moved,
}

/// Events to be added.
#[derive(Clone, Debug)]
pub struct Append {
    /// The record after `events`.
    pub run: Arc<Run>,
    /// Epoch of the writer.
    pub epoch: u64,
    /// Where the journal ends for the writer.
    pub expected_head: Seq,
    /// The events, the first at `expected_head + 1`.
    pub events: JournalPart,
    /// The artifacts to which the events refer; kept with the run, in the same step.
    pub artifacts: Vec<Artifact>,
    /// The reports that the events tell of.
    pub reports: Option<ReportsTaken>,
}

/// The answer to an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendOutcome {
    /// It is kept, now or since an earlier attempt.
    Done,
    /// An event that is kept has the place and the id of one of these, and says something else.
    /// Stop: the writer has lost count of what it wrote.
    Conflict,
    /// Somebody else wrote since; the journal ends here now. Read on, decide again.
    Moved(Seq),
    /// Another host holds the run, under this epoch. Stop.
    Fenced(u64),
    /// There is no such run.
    Missing,
    /// The run would wait for runs one of which waits for it, or for itself.
    Cycle,
    /// One of the reports of which the run would be told is not pending any more. Look again.
    Gone,
}

/// A wish for work.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The host.
    pub host: HostId,
    /// Most runs to take.
    pub limit: usize,
    /// Most runs to take beyond that of those that are [`crate::status::Status::Finalizing`].
    pub finalizers: usize,
    /// Most runs of one tree that are held at once, by whichever hosts, where its runs state no number.
    pub tree_slots: u32,
    /// The runs that are taken; all others stay where they are, and keep none of these waiting.
    pub ready: Ready,
    /// The runs in a row that the host took before and that had been executed. After
    /// [`RESUMES_IN_A_ROW`](crate::schedule::RESUMES_IN_A_ROW), within the claim too, it is the turn
    /// of one that never was, if there is one behind no run of its tree and pins that was.
    pub resumes: usize,
    /// The time to be recorded.
    pub now: Timestamp,
}

/// The prospects of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// It would find nothing and change nothing.
    Nothing,
    /// Runs are wanted, none of which it would take, as they are not ready.
    Unready,
    /// It may find something, or may have to put runs where they belong at its time.
    Claim,
}

/// Which runs are to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Only what this caller sees; `None` for the runs of all tenants.
    pub scope: Option<Scope>,
    /// Only those that ended before.
    pub before: Timestamp,
    /// Most runs to remove. With 0 only room that nothing uses is given back.
    pub limit: usize,
    /// Remove nothing, only say what would be.
    pub dry_run: bool,
}

/// The amounts that were removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovalOutcome {
    /// Runs.
    pub runs: u64,
    /// Their events.
    pub events: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Runs that are old enough and stay, as they are still needed.
    pub kept: u64,
    /// Bytes of the store's file that nothing uses, and that further removals give back.
    pub unused: u64,
}
