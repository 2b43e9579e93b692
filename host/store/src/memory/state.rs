//! The content of the memory, and the transactions on it.

mod indexes;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use taskrun_journal::artifact::Artifact;
use taskrun_journal::checkpoint::{Settled, ends_round};
use taskrun_journal::dispatch::TaskEvent;
use taskrun_journal::event::EventRecord;
use taskrun_journal::hold::Lane;
use taskrun_journal::ids::{HostId, RunId, Seq};
use taskrun_journal::run::{Lifecycle, Run};
use taskrun_journal::schedule::{
    self, After, Before, Change, ReportRequest, Settlement, Siblings, Succession, WaitState,
};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{
    Append, AppendOutcome, BatchOutcome, CreateOutcome, Host, Idempotency, NewBatch, NewRun,
    PolicyRevision, SessionKey,
};
use taskrun_journal::time::Timestamp;

use super::artifacts::Artifacts;
use super::consents::ConsentTable;
use super::dispatches::DispatchTable;
use super::entries::Entries;
use super::facts::Facts;
use super::lists::Lists;
use super::outbox::Outbox;
use super::queue::{Queue, QueuePosition};
use super::sessions::{Chunk, Timelines};
use super::waits::Waits;

#[derive(Clone, Default)]
pub(super) struct State {
    pub(super) runs: HashMap<RunId, Entry>,
    accepted: u64,
    pub(super) lists: Lists,
    pub(super) queue: Queue,
    pub(super) entries: Entries,
    waits: Waits,
    /// Runs whose time was not after this stand in the queue.
    pub(super) now: Timestamp,
    pub(super) held: BTreeMap<HostId, BTreeSet<RunId>>,
    /// By tenant and key: the fingerprint of the request, and its run.
    pub(super) keys: HashMap<(String, String), (String, RunId)>,
    /// Open runs with a name.
    pub(super) names: HashMap<[String; 5], RunId>,
    /// Completed runs, by the number of their task.
    pub(super) tasks: HashMap<u64, BTreeMap<(Timestamp, u64), RunId>>,
    pub(super) hosts: BTreeMap<HostId, Host>,
    pub(super) timelines: Timelines,
    pub(super) artifacts: Artifacts,
    pub(super) facts: Facts,
    pub(super) consents: ConsentTable,
    pub(super) outbox: Outbox,
    pub(super) dispatches: DispatchTable,
    /// By the paths of their files.
    pub(super) policies: BTreeMap<String, PolicyRevision>,
    /// Wanted runs that wait for their finalizer alone, in the order in which they are taken.
    pub(super) finalizers: BTreeMap<(Reverse<i32>, u64), RunId>,
    /// Ended runs, then in the order of acceptance.
    pub(super) ended: BTreeMap<(Timestamp, u64), RunId>,
    /// There may be a run more to claim than when this was last set to false.
    pub(super) stirred: bool,
    /// Runs that ended with the ones that started them since this was last emptied.
    pub(super) canceled: Vec<CanceledRun>,
}

#[derive(Clone)]
pub(super) struct Entry {
    pub(super) run: Run,
    /// Order of acceptance.
    pub(super) number: u64,
    pub(super) journal: Vec<Chunk>,
    /// Where its events stand beside those of others.
    pub(super) sessions: Vec<Arc<SessionKey>>,
    /// Its idempotency key, as long as that was not given to another run.
    pub(super) key: Option<String>,
    /// The number of its task.
    task: Option<u64>,
    /// Names of the artifacts that it refers to.
    pub(super) artifacts: BTreeSet<String>,
    /// The lane in which it is wanted, and the time from which on.
    wanted: Option<(Lane, Timestamp)>,
    position: QueuePosition,
}

/// A run that was canceled as its parent ended.
#[derive(Clone)]
pub(super) struct CanceledRun {
    pub(super) spec: Arc<RunSpec>,
    pub(super) head: Seq,
    /// True if a host has to stop it, or its finalizer is to be heard.
    pub(super) open: bool,
    /// Place of the last event of the store before it was canceled, and of the last one of that.
    pub(super) places: (u64, u64),
}

impl Entry {
    /// The place of its last event.
    fn last_place(&self) -> u64 {
        self.journal.last().map_or(0, Chunk::last_place)
    }

    /// The parts of the journal that may hold `limit` events after a position.
    pub(super) fn chunks_after(&self, after: Seq, limit: usize) -> Vec<Arc<[EventRecord]>> {
        let ends_before = |chunk: &Chunk| chunk.events.last().is_none_or(|r| r.seq <= after);
        let first = self.journal.partition_point(ends_before);
        let chunks = self.journal[first..].iter().take(limit);
        chunks.map(|chunk| Arc::clone(&chunk.events)).collect()
    }

    /// The answer if exactly these events stand at their places, or others under their ids.
    fn known(&self, events: &[EventRecord]) -> Option<AppendOutcome> {
        let first = events.first()?;
        let chunks = self.chunks_after(first.seq - 1, events.len());
        let kept = chunks.iter().flat_map(|chunk| chunk.iter()).filter(|r| r.seq >= first.seq);
        let mut known = 0;
        for (kept, event) in kept.zip(events) {
            if kept == event {
                known += 1;
            } else if kept.id == event.id {
                return Some(AppendOutcome::Conflict);
            }
        }
        (known == events.len()).then_some(AppendOutcome::Done)
    }
}

impl State {
    pub(super) fn create(&mut self, new: NewRun) -> CreateOutcome {
        let Ok(refused) = schedule::refusal(&new, self);
        if let Some(refused) = refused {
            return refused;
        }
        self.keep(new);
        CreateOutcome::New
    }

    pub(super) fn create_all(&mut self, news: Vec<NewRun>) -> Vec<CreateOutcome> {
        let (mut siblings, mut answers) = (Siblings::default(), Vec::with_capacity(news.len()));
        for new in &news {
            let Ok(answer) = siblings.answer(new, self);
            let is_refusal = answer.is_refusal();
            answers.push(answer);
            if is_refusal {
                return answers;
            }
        }
        for (new, answer) in news.into_iter().zip(&answers) {
            if answer.is_new() {
                self.keep(new);
            }
        }
        answers
    }

    pub(super) fn batch(&mut self, new: NewBatch) -> BatchOutcome {
        let NewBatch { run, entries } = new;
        if let Some(tick) = &run.idempotency
            && let Some((made_in, last)) = self.known(&run.run.spec, tick)
            && let Some(refused) = schedule::no_batch(tick, made_in, &last.run)
        {
            return refused;
        }
        let is_next = |append: &Append| {
            self.runs.get(append.run.id()).is_some_and(|entry| {
                let state = &entry.run.state;
                (state.head, state.epoch) == (append.expected_head, append.epoch)
            })
        };
        if self.runs.contains_key(run.run.id()) || !entries.iter().all(is_next) {
            return BatchOutcome::Moved;
        }
        self.keep(run);
        for append in entries {
            self.replace(Arc::unwrap_or_clone(append.run), append.events.into_records());
        }
        BatchOutcome::New
    }

    /// The run to which a key was given, and the fingerprint of its request.
    fn known(&self, spec: &RunSpec, asked: &Idempotency) -> Option<(&str, &Entry)> {
        let (fingerprint, id) = self.keys.get(&(spec.tenant.clone(), asked.key.clone()))?;
        Some((fingerprint, self.runs.get(id)?))
    }

    fn keep(&mut self, new: NewRun) {
        let NewRun { run, events, idempotency, task, artifacts: brought, admission: _ } = new;
        let spec = Arc::clone(&run.spec);
        let key = idempotency.as_ref().map(|asked| (spec.tenant.clone(), asked.key.clone()));
        if let (Some(asked), Some(key)) = (idempotency, key.clone()) {
            let given = self.keys.insert(key, (asked.fingerprint, spec.id.clone()));
            if let Some(entry) = given.and_then(|(_, id)| self.runs.get_mut(&id)) {
                entry.key = None;
            }
        }
        let number = self.accepted;
        self.accepted += 1;
        let sessions = self.timelines.keys(&spec);
        let journal = vec![self.timelines.push(&sessions, &spec, events.into())];
        let (key, position) = (key.map(|(_, key)| key), QueuePosition::default());
        self.index(&run, number);
        if spec.serial && !run.status().is_terminal() {
            self.queue.open_serial(schedule::turn_of(&spec), number, &spec.id);
        }
        if let Some(place) = schedule::name_place(&spec).filter(|_| !run.status().is_terminal()) {
            self.names.insert(place.map(str::to_owned), spec.id.clone());
        }
        let artifacts = BTreeSet::new();
        let task = task.map(|task| schedule::task_hash(&spec, &task));
        if is_queued(&run) {
            self.queue.count_waiting(&spec, true);
        }
        if run.state.hold.host().is_some() {
            self.queue.hold(&spec);
        }
        self.outbox.nudge(&spec);
        if let Some(continued) = schedule::withdrawn(&spec) {
            self.outbox.withdraw(continued);
        }
        let wanted = None;
        let entry =
            Entry { run, number, journal, sessions, key, task, artifacts, wanted, position };
        self.runs.insert(spec.id.clone(), entry);
        self.keep_artifacts(&spec.id, &brought);
        self.dispatches.add(&spec, TaskEvent::Delegated, spec.created_at);
        self.place(&spec.id);
    }

    pub(super) fn append(&mut self, append: Append) -> AppendOutcome {
        let Some(entry) = self.runs.get(append.run.id()) else { return AppendOutcome::Missing };
        let state = &entry.run.state;
        let (head, epoch) = (state.head, state.epoch);
        if head == append.expected_head && epoch == append.epoch {
            let hold = &append.run.state.hold;
            if *hold != state.hold && self.waits.would_be_cycle(append.run.id(), hold) {
                return AppendOutcome::Cycle;
            }
            if !self.outbox.may_take(append.reports.as_ref()) {
                return AppendOutcome::Gone;
            }
            if let Some(taken) = &append.reports {
                self.outbox.take(append.run.id(), taken);
            }
            self.keep_artifacts(append.run.id(), &append.artifacts);
            let settled: Vec<RunId> = Settled::in_events(&append.events).cloned().collect();
            let root = append.run.spec.root_run_id.clone();
            if ends_round(&append.events) {
                self.outbox.deliver(append.run.id());
            }
            self.replace(Arc::unwrap_or_clone(append.run), append.events.into_records());
            self.settle_runs(&root, &settled);
            AppendOutcome::Done
        } else if let Some(known) = entry.known(&append.events) {
            known
        } else if epoch != append.epoch {
            AppendOutcome::Fenced(epoch)
        } else {
            AppendOutcome::Moved(head)
        }
    }

    /// Has runs that ended count no longer in the tree of this root.
    fn settle_runs(&mut self, root: &RunId, runs: &[RunId]) {
        for id in runs {
            let entry = self.runs.get(id).filter(|entry| entry.run.status().is_terminal());
            if let Some(entry) = entry.filter(|entry| entry.run.spec.root_run_id == *root) {
                self.lists.settle(&entry.run);
            }
        }
    }

    fn keep_artifacts(&mut self, id: &RunId, artifacts: &[Artifact]) {
        let Some(entry) = self.runs.get_mut(id) else { return };
        for artifact in artifacts {
            if entry.artifacts.insert(artifact.reference().hash.clone()) {
                self.artifacts.keep(&entry.run.spec.tenant, artifact);
            }
        }
    }

    /// Replaces a record that is there.
    pub(super) fn replace(&mut self, run: Run, events: Arc<[EventRecord]>) {
        let id = run.id().clone();
        let Some(entry) = self.runs.get_mut(&id) else { return };
        if !events.is_empty() {
            entry.journal.push(self.timelines.push(&entry.sessions, &run.spec, events));
        }
        let number = entry.number;
        let old = std::mem::replace(&mut entry.run, run.clone());
        let same_hold = old.state.hold == run.state.hold && old.pin() == run.pin();
        let same_status = old.status() == run.status();
        if same_hold && same_status && old.state.updated_at == run.state.updated_at {
            return;
        }
        self.reindex((&old, &run), number);
        let before = Before {
            is_queued: is_queued(&old),
            has_ended: old.status().is_terminal(),
            is_held: old.state.hold.host().is_some(),
            same_hold,
        };
        let (is_queued, has_ended) = (is_queued(&run), run.status().is_terminal());
        let (report, settlement) = (ReportRequest::of(&run), Settlement::of(&run));
        let after = After {
            is_queued,
            has_ended,
            hold: &run.state.hold,
            report: report.as_ref(),
            settlement,
            succession: Succession::of(&run),
        };
        // Among the finalizers that wait it stands by its status.
        if same_hold {
            self.reposition(&id);
        }
        for change in schedule::consequences(before, after) {
            self.apply(&run, number, change);
        }
    }

    fn apply(&mut self, run: &Run, number: u64, change: Change<'_>) {
        let (id, spec) = (run.id(), &run.spec);
        match change {
            Change::Begin => self.queue.count_waiting(spec, false),
            Change::EndWait => self.waits.end(id),
            Change::TakeSlot => self.queue.hold(spec),
            Change::FreeSlot => self.stirred |= self.queue.release(spec),
            Change::Place(_) => self.place(id),
            Change::Report(request) => self.report(run, request),
            Change::Settle(settlement) => self.settle(run, settlement),
            Change::Succeed(succession) => self.succeed(run, succession),
            Change::Dispatch => {
                self.dispatches.add(spec, TaskEvent::Completed, run.state.updated_at);
            }
            Change::Wake => {
                self.keep_task(run, number);
                for waiter in self.waits.ended(id) {
                    if let Some(entry) = self.runs.get_mut(&waiter) {
                        entry.wanted = WaitState::<RunId>::RESUME.wanted();
                    }
                    self.reposition(&waiter);
                }
            }
            Change::FreeName => {
                if let Some(place) = schedule::name_place(spec) {
                    self.names.remove(&place.map(str::to_owned));
                }
            }
            Change::NextTurn => {
                if spec.serial {
                    let turn = schedule::turn_of(spec);
                    self.queue.end_serial(&turn, number);
                    if let Some(next) = self.queue.first_serial(&turn).cloned() {
                        self.reposition(&next);
                    }
                }
            }
            Change::CancelAttached => self.cancel_attached(run),
        }
    }

    /// True for a run that is there and has not ended.
    pub(super) fn is_open(&self, id: &RunId) -> bool {
        is_open(&self.runs, id)
    }
}

fn is_open(runs: &HashMap<RunId, Entry>, id: &RunId) -> bool {
    runs.get(id).is_some_and(|entry| !entry.run.status().is_terminal())
}

fn is_queued(run: &Run) -> bool {
    matches!(run.state.lifecycle, Lifecycle::Queued)
}
