//! The transaction that keeps a new run.

use std::slice;

use rusqlite::{Connection, OptionalExtension, params};
use taskrun_journal::dispatch::TaskEvent;
use taskrun_journal::hold::{Hold, Lane};
use taskrun_journal::ids::RunId;
use taskrun_journal::pin::Ready;
use taskrun_journal::run::Run;
use taskrun_journal::schedule::{self, HostLoad, Rank, Siblings, TreeSize};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::Status;
use taskrun_journal::store::{CreateOutcome, NewRun, SessionKey};
use taskrun_journal::time::Timestamp;

use super::change::{WriteOutcome, count_queued, held};
use super::fault::Fault;
use super::locks::Locks;
use super::queue::{self, Member, Queue};
use super::row::{EventRow, insert_events, run_by_number};
use super::run_row::MutableColumns;
use super::schema::{KeyKind, QUEUED, bits, int, label_key, serial_key, status_of, time, unbits};
use super::taken::TakenRow;
use super::{artifacts, attached, dispatches, hosts, names, outbox, sessions, waits};

/// A new run, made ready outside of the writing thread.
pub(crate) struct NewRow {
    new: NewRun,
    mutable: MutableColumns,
    events: Vec<EventRow>,
    serial: Option<i64>,
    /// Value of `runs.task`.
    task: Option<i64>,
}

/// The places of the last events of a run that is kept.
pub(crate) struct LastPlaces {
    /// That of those with which it is accepted.
    pub(crate) accepted: u64,
    /// That of the one with which it is taken, or the same.
    pub(crate) taken: u64,
}

/// The tree that a new run would belong to.
#[derive(Clone, Copy)]
pub(crate) struct Tree {
    no: Option<i64>,
    /// Runs of it so far.
    runs: u64,
    held: u64,
}

impl NewRow {
    pub(crate) fn new(new: NewRun) -> Self {
        let (id, spec) = (new.run.id(), &new.run.spec);
        Self {
            mutable: MutableColumns::new(&new.run),
            events: new.events.iter().map(|event| EventRow::new(id, event)).collect(),
            serial: spec.serial.then(|| serial_key(spec)),
            task: new.task.as_ref().map(|task| bits(schedule::task_hash(spec, task))),
            new,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let artifacts = self.new.artifacts.iter().map(|artifact| artifact.bytes().len());
        self.mutable.state.len()
            + self.events.iter().map(EventRow::bytes).sum::<usize>()
            + artifacts.sum::<usize>()
    }

    pub(crate) fn create(
        &self,
        db: &Connection,
        locks: &Locks,
    ) -> Result<WriteOutcome<CreateOutcome>, Fault> {
        let queue = Queue::new(db);
        let (answer, place) = self.answer(&queue, locks)?;
        Ok(WriteOutcome::new(answer, place, queue))
    }

    /// Keeps all of these runs, or none. Nothing is written before it is known which.
    pub(crate) fn create_all(
        rows: &[Self],
        db: &Connection,
        locks: &Locks,
    ) -> Result<WriteOutcome<Vec<CreateOutcome>>, Fault> {
        let queue = Queue::new(db);
        let (mut siblings, mut answers) = (Siblings::default(), Vec::with_capacity(rows.len()));
        for row in rows {
            let mut register = Register { queue: &queue, locks, row, tree: None };
            let answer = siblings.answer(&row.new, &mut register)?;
            let is_refusal = answer.is_refusal();
            answers.push(answer);
            if is_refusal {
                return Ok(WriteOutcome::new(answers, 0, queue));
            }
        }
        let mut place = 0;
        for (row, answer) in rows.iter().zip(&answers) {
            if answer.is_new() {
                place = row.keep_unbounded(&queue)?;
            }
        }
        Ok(WriteOutcome::new(answers, place, queue))
    }

    fn answer(&self, queue: &Queue<'_>, locks: &Locks) -> Result<(CreateOutcome, u64), Fault> {
        match self.admit(queue, locks)? {
            Ok(tree) => Ok((CreateOutcome::New, self.keep_all(queue, &tree, None)?.accepted)),
            Err(refused) => Ok((refused, 0)),
        }
    }

    /// The tree to which it will belong, or why it is not accepted.
    pub(crate) fn admit(
        &self,
        queue: &Queue<'_>,
        locks: &Locks,
    ) -> Result<Result<Tree, CreateOutcome>, Fault> {
        let mut register = Register { queue, locks, row: self, tree: None };
        if let Some(refused) = schedule::refusal(&self.new, &mut register)? {
            return Ok(Err(refused));
        }
        Ok(Ok(register.known_tree(&self.new.run.spec)?))
    }

    /// Keeps all of it, as it is accepted or as it is taken.
    pub(crate) fn keep_all(
        &self,
        queue: &Queue<'_>,
        tree: &Tree,
        taken: Option<&TakenRow>,
    ) -> Result<LastPlaces, Fault> {
        let no = self.keep(queue, tree, taken.map_or(&self.mutable, |taken| &taken.mutable))?;
        let accepted = insert_events(queue.db, no, &self.events)?.map_or(0, unbits);
        let taken = match taken.map(|taken| slice::from_ref(&taken.event)) {
            Some(event) => insert_events(queue.db, no, event)?.map_or(accepted, unbits),
            None => accepted,
        };
        for artifact in &self.new.artifacts {
            artifacts::keep(queue.db, no, &self.new.run.spec.tenant, artifact)?;
        }
        let spec = &self.new.run.spec;
        dispatches::add(queue.db, no, spec, TaskEvent::Delegated, time(spec.created_at))?;
        Ok(LastPlaces { accepted, taken })
    }

    /// Keeps the run whatever the bounds are; the caller has seen to it that its id is free.
    pub(crate) fn keep_unbounded(&self, queue: &Queue<'_>) -> Result<u64, Fault> {
        let tree = tree_of(queue.db, &self.new.run.spec)?;
        Ok(self.keep_all(queue, &tree, None)?.accepted)
    }

    /// Keeps the row of a run whose journal is there, under the next number, in no place of the
    /// queue.
    pub(crate) fn keep_row(mut self, queue: &Queue<'_>) -> Result<(), Fault> {
        self.mutable.hold = Hold::Nobody;
        self.keep(queue, &tree_of(queue.db, &self.new.run.spec)?, &self.mutable)?;
        Ok(())
    }

    /// The number of its first events.
    pub(crate) fn events(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn run(&self) -> &Run {
        &self.new.run
    }

    /// Keeps all but the events; returns the number of the run.
    fn keep(&self, queue: &Queue<'_>, tree: &Tree, mutable: &MutableColumns) -> Result<i64, Fault> {
        let (db, spec) = (queue.db, &self.new.run.spec);
        let tree = join_tree(db, spec, tree)?;
        let alone = tree.is_none() && self.serial.is_none();
        let place = match mutable.hold {
            Hold::Wanted { lane, not_before: Timestamp(0) } if alone => Some(queue::ready(lane)),
            Hold::Wanted { .. }
            | Hold::Nobody
            | Hold::Beat
            | Hold::Runs { .. }
            | Hold::Host { .. } => None,
        };
        let no = self.insert_run(db, tree, place, mutable)?;
        outbox::nudge(db, no, &spec.nudge_for)?;
        if let Some(continued) = schedule::withdrawn(spec) {
            outbox::withdraw(db, continued)?;
        }
        let mut label = db.prepare_cached("INSERT INTO labels VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
        for (name, value) in &spec.labels {
            let key = label_key(&spec.tenant, name, value);
            let (status, at) = (mutable.status, mutable.updated_at);
            label.execute(params![key, status, at, no, name, value])?;
        }
        if let Some(new) = &self.new.idempotency {
            db.prepare_cached("INSERT OR REPLACE INTO idempotency VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![spec.tenant, new.key, new.fingerprint, no])?;
        }
        if mutable.status == QUEUED {
            count_queued(db, spec, 1)?;
        }
        if let (Some(tree), Some(_)) = (tree, &mutable.holder) {
            queue.hold(tree)?;
        }
        if place.is_some() {
            queue.stir();
        } else {
            let pins = mutable.pins.as_str().to_owned();
            let member = Member { no, tree, serial: self.serial, pins };
            waits::begin(queue, &member, &mutable.hold)?;
        }
        Ok(no)
    }

    fn insert_run(
        &self,
        db: &Connection,
        tree: Option<i64>,
        place: Option<i64>,
        row: &MutableColumns,
    ) -> Result<i64, Fault> {
        let spec = &self.new.run.spec;
        let tenant = spec.tenant.as_str();
        let app = &spec.parent_app_name;
        let parent = spec.parent_run_id.as_ref().map(RunId::as_str);
        // A one-shot run is in no session, nor is what is beneath it.
        let root = spec.root_session_id.as_deref().filter(|root| !root.is_empty());
        db.prepare_cached(
            "INSERT INTO runs (id, tenant, owner, session, app, agent, parent, tenant_key,
                owner_key, session_key, app_key, agent_key, parent_key, pins, priority,
                created_at, tree, serial, status, updated_at, holder, queue, epoch, head, sum,
                state, last_pos, name, name_key, named, attached, root_session, root_key, task,
                stop)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17,
                ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, 0, ?27, ?28, ?29, ?30, ?31, ?32, ?33, ?34)",
        )?
        .execute(params![
            spec.id.as_str(),
            tenant,
            spec.owner_user_id,
            spec.parent_session_id,
            app,
            spec.agent_name,
            parent,
            KeyKind::Tenant.key(tenant, tenant),
            KeyKind::Owner.key(tenant, &spec.owner_user_id),
            KeyKind::Session.key(tenant, &spec.parent_session_id),
            app.as_ref().map(|app| KeyKind::App.key(tenant, app)),
            KeyKind::Agent.key(tenant, &spec.agent_name),
            parent.map(|parent| KeyKind::Parent.key(tenant, parent)),
            row.pins.as_str(),
            spec.priority,
            time(spec.created_at),
            tree,
            self.serial,
            row.status,
            row.updated_at,
            row.holder,
            place,
            row.epoch,
            row.head,
            row.sum,
            row.state,
            spec.name,
            spec.name.as_ref().map(|name| KeyKind::Name.key(tenant, name)),
            names::named_key(spec),
            attached::attached_key(spec),
            root,
            root.map(|root| KeyKind::Root.key(tenant, root)),
            self.task,
            row.stop,
        ])?;
        Ok(db.last_insert_rowid())
    }
}

/// The file, as the admission of a run asks about it.
struct Register<'a> {
    queue: &'a Queue<'a>,
    locks: &'a Locks,
    row: &'a NewRow,
    /// The tree of the run, once it was asked for.
    tree: Option<Tree>,
}

impl Register<'_> {
    fn known_tree(&mut self, spec: &RunSpec) -> Result<Tree, Fault> {
        let tree = match self.tree {
            Some(tree) => tree,
            None => tree_of(self.queue.db, spec)?,
        };
        self.tree = Some(tree);
        Ok(tree)
    }
}

impl schedule::Register for Register<'_> {
    type Error = Fault;

    fn keyed(&mut self, tenant: &str, key: &str) -> Result<Option<(String, Run)>, Fault> {
        let sql = "SELECT fingerprint, run FROM idempotency WHERE tenant = ?1 AND key = ?2";
        let found = self
            .queue
            .db
            .prepare_cached(sql)?
            .query_row([tenant, key], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)));
        let Some((fingerprint, no)) = found.optional()? else { return Ok(None) };
        Ok(Some((fingerprint, run_by_number(self.queue.db, no)?)))
    }

    fn completed(
        &mut self,
        task: u64,
        since: Timestamp,
        fits: &dyn Fn(&Run) -> bool,
    ) -> Result<Option<Run>, Fault> {
        let mut sql = self.queue.db.prepare_cached(
            "SELECT no FROM runs INDEXED BY runs_by_task
             WHERE task = ?1 AND status = 5 AND updated_at >= ?2 ORDER BY updated_at DESC, no DESC",
        )?;
        let mut rows = sql.query([bits(task), time(since)])?;
        while let Some(row) = rows.next()? {
            let run = run_by_number(self.queue.db, row.get(0)?)?;
            if fits(&run) {
                return Ok(Some(run));
            }
        }
        Ok(None)
    }

    fn status(&mut self, id: &RunId) -> Result<Option<Status>, Fault> {
        let mut sql = self.queue.db.prepare_cached("SELECT status FROM runs WHERE id = ?1")?;
        let code: Option<i64> = sql.query_row([id.as_str()], |row| row.get(0)).optional()?;
        let unknown = |code| Fault::Damaged(format!("run {id}: no status has the code {code}"));
        code.map(|code| status_of(code).ok_or_else(|| unknown(code))).transpose()
    }

    fn has_session_ended(&mut self, key: &SessionKey) -> Result<bool, Fault> {
        let session = sessions::get(self.queue.db, key)?;
        Ok(session.is_some_and(|session| session.ended_at.is_some()))
    }

    fn named(&mut self, spec: &RunSpec) -> Result<Option<RunId>, Fault> {
        names::holder(self.queue.db, spec)
    }

    fn autonomous(&mut self, spec: &RunSpec) -> Result<Option<Run>, Fault> {
        names::autonomous(self.queue.db, spec)
    }

    fn queued(&mut self, spec: &RunSpec) -> Result<u64, Fault> {
        queued(self.queue.db, spec)
    }

    fn tree(&mut self, spec: &RunSpec) -> Result<TreeSize, Fault> {
        let Tree { runs, held, no: _ } = self.known_tree(spec)?;
        Ok(TreeSize { runs, held })
    }

    fn has_open_serial(&mut self, _: &RunSpec) -> Result<bool, Fault> {
        let serial = self.row.serial;
        serial.map_or(Ok(false), |serial| self.queue.has_open_serial(serial, i64::MAX))
    }

    fn first(
        &mut self,
        ready: &Ready,
        tree_slots: u32,
        now: Timestamp,
    ) -> Result<Option<Rank>, Fault> {
        self.queue.look(tree_slots, now)?;
        let first = self.queue.first((ready, Lane::Resume), tree_slots, now, &[])?;
        Ok(first.map(|first| first.rank))
    }

    fn is_due(&mut self, run: &RunId) -> Result<bool, Fault> {
        outbox::is_due(self.queue.db, run)
    }

    fn hosts(&mut self, spec: &RunSpec) -> Result<Vec<HostLoad>, Fault> {
        let mut loads = Vec::new();
        for host in hosts::living(self.queue.db, self.locks)? {
            if host.executes(spec) {
                let held = held(self.queue.db, &host.id)?;
                loads.push(HostLoad { slots: host.slots, held, ready: host.ready() });
            }
        }
        Ok(loads)
    }
}

impl Tree {
    /// True if no other run of it is known.
    pub(crate) fn is_unknown(&self) -> bool {
        self.no.is_none()
    }
}

/// Runs of the tenant of a run that wait to begin.
fn queued(db: &Connection, spec: &RunSpec) -> Result<u64, Fault> {
    let sql = "SELECT runs FROM queues WHERE tenant = ?1";
    let mut sql = db.prepare_cached(sql)?;
    let runs = sql.query_row([&spec.tenant], |row| row.get(0));
    Ok(runs.optional()?.map_or(0, unbits))
}

/// A run of the root's name that is in another tree is none of this one.
fn tree_of(db: &Connection, spec: &RunSpec) -> Result<Tree, Fault> {
    let root = spec.root_run_id.as_str();
    let sql = "SELECT no, runs, held FROM trees WHERE root = ?1";
    let known = db.prepare_cached(sql)?.query_row([root], |row| {
        Ok(Tree { no: row.get(0)?, runs: unbits(row.get(1)?), held: unbits(row.get(2)?) })
    });
    if let Some(known) = known.optional()? {
        return Ok(known);
    }
    let mut sql =
        db.prepare_cached("SELECT holder IS NOT NULL FROM runs WHERE id = ?1 AND tree IS NULL")?;
    let held: Option<bool> = if spec.root_run_id == spec.id {
        None
    } else {
        sql.query_row([root], |row| row.get(0)).optional()?
    };
    Ok(Tree { no: None, runs: held.map_or(0, |_| 1), held: u64::from(held == Some(true)) })
}

/// Counts a new run in its tree; returns the number of that, unless the run is alone in it.
fn join_tree(db: &Connection, spec: &RunSpec, tree: &Tree) -> Result<Option<i64>, Fault> {
    let is_root = spec.root_run_id == spec.id;
    if let Some(no) = tree.no {
        // Of an earlier root of this id runs may be kept, which have all ended.
        let sql = "UPDATE trees SET runs = runs + 1, slots = iif(?2, ?3, slots) WHERE no = ?1";
        db.prepare_cached(sql)?.execute(params![no, is_root, spec.tree.slots])?;
        return Ok(Some(no));
    }
    if is_root {
        return Ok(None);
    }
    let root = spec.root_run_id.as_str();
    db.prepare_cached(
        "INSERT INTO trees (root, runs, held, full, slots) VALUES (?1, ?2, ?3, 0, ?4)",
    )?
    .execute(params![root, int(tree.runs + 1), int(tree.held), spec.tree.slots])?;
    let no = db.last_insert_rowid();
    db.prepare_cached("UPDATE runs SET tree = ?2 WHERE id = ?1 AND tree IS NULL")?
        .execute(params![root, no])?;
    Ok(Some(no))
}
