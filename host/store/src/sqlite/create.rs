//! The transaction that keeps a new run.

use std::cmp::Reverse;

use rusqlite::{Connection, OptionalExtension, params};
use taskrun_journal::hold::{Hold, Lane};
use taskrun_journal::ids::RunId;
use taskrun_journal::run::Run;
use taskrun_journal::schedule::{self, KnownKey};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{Created, Full, Idempotency, NewRun};
use taskrun_journal::time::Timestamp;

use super::change::{Mutable, Told, count_queued, held};
use super::fault::Fault;
use super::locks::Locks;
use super::queue::{self, Member, PassedOver, Queue};
use super::row::{EventRow, run_by_number};
use super::schema::{By, CANCELING, QUEUED, bits, int, label_key, serial_key, time, unbits};
use super::{attached, hosts, names, sessions, waits};

/// A new run, made ready outside of the writing thread.
pub(crate) struct NewRow {
    new: NewRun,
    mutable: Mutable,
    events: Vec<EventRow>,
    serial: Option<i64>,
    /// Value of `runs.task`.
    task: Option<i64>,
}

/// The tree that a new run would belong to.
struct Tree {
    no: Option<i64>,
    /// Runs of it so far.
    runs: u64,
    held: u64,
}

impl NewRow {
    pub(crate) fn new(new: NewRun) -> Self {
        let (id, spec) = (new.run.id(), &new.run.spec);
        Self {
            mutable: Mutable::new(&new.run),
            events: new.events.iter().map(|event| EventRow::new(id, event)).collect(),
            serial: spec.serial.then(|| serial_key(spec)),
            task: new.task.as_ref().map(|task| bits(schedule::task_hash(spec, task))),
            new,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.mutable.state.len() + self.events.iter().map(EventRow::bytes).sum::<usize>()
    }

    pub(crate) fn create(&self, db: &Connection, locks: &Locks) -> Result<Told<Created>, Fault> {
        let queue = Queue::new(db);
        let (answer, place) = self.answer(&queue, locks)?;
        Ok(Told::new(answer, place, queue))
    }

    fn answer(&self, queue: &Queue<'_>, locks: &Locks) -> Result<(Created, u64), Fault> {
        let (db, spec) = (queue.db, &self.new.run.spec);
        if let Some(asked) = &self.new.idempotency
            && let Some(known) = known_key(db, &spec.tenant, asked)?
        {
            return Ok((known, 0));
        }
        if let Some(known) = self.completed(db)? {
            return Ok((Created::Repeated(Box::new(known)), 0));
        }
        if let Some(refused) = refusal(db, spec)? {
            return Ok((refused, 0));
        }
        let tree = tree_of(db, spec)?;
        if let Some(full) = self.full(queue, locks, &tree)? {
            return Ok((Created::Full(full), 0));
        }
        Ok((Created::New, self.keep_all(queue, &tree)?))
    }

    /// The run whose result may be used instead.
    fn completed(&self, db: &Connection) -> Result<Option<Run>, Fault> {
        let since = self.new.task.as_ref().and_then(|task| task.completed_since);
        let (Some(since), Some(task)) = (since, self.task) else { return Ok(None) };
        let mut sql = db.prepare_cached(
            "SELECT no FROM runs INDEXED BY runs_by_task
             WHERE task = ?1 AND status = 5 AND updated_at >= ?2 ORDER BY updated_at DESC, no DESC",
        )?;
        let mut rows = sql.query([task, time(since)])?;
        while let Some(row) = rows.next()? {
            let run = run_by_number(db, row.get(0)?)?;
            if schedule::is_same_task(&run.spec, &self.new.run.spec) {
                return Ok(Some(run));
            }
        }
        Ok(None)
    }

    /// Keeps all of it; returns the place of the last event.
    fn keep_all(&self, queue: &Queue<'_>, tree: &Tree) -> Result<u64, Fault> {
        let no = self.keep(queue, tree)?;
        let mut place = 0;
        for event in &self.events {
            place = event.insert(queue.db, no)?;
        }
        Ok(unbits(place))
    }

    /// Keeps the run whatever the bounds are; the caller has seen to it that its id is free.
    pub(crate) fn keep_unbounded(&self, queue: &Queue<'_>) -> Result<u64, Fault> {
        self.keep_all(queue, &tree_of(queue.db, &self.new.run.spec)?)
    }

    /// Keeps the row of a run whose journal is there, under the next number, in no place of the queue.
    pub(crate) fn keep_row(mut self, queue: &Queue<'_>) -> Result<(), Fault> {
        self.mutable.hold = Hold::Nobody;
        self.keep(queue, &tree_of(queue.db, &self.new.run.spec)?)?;
        Ok(())
    }

    pub(crate) fn run(&self) -> &Run {
        &self.new.run
    }

    fn full(&self, queue: &Queue<'_>, locks: &Locks, tree: &Tree) -> Result<Option<Full>, Fault> {
        let (spec, admission) = (&self.new.run.spec, &self.new.admission);
        if admission.queue_max < u64::MAX && queued(queue.db, spec)? >= admission.queue_max {
            return Ok(Some(Full::Queue));
        }
        if spec.parent_run_id.is_some() && tree.runs >= admission.tree_max {
            return Ok(Some(Full::Tree));
        }
        match admission.at_once {
            Some(slots) if !self.begins_at_once(queue, locks, tree, slots)? => {
                Ok(Some(Full::Slots))
            }
            Some(_) | None => Ok(None),
        }
    }

    fn begins_at_once(
        &self,
        queue: &Queue<'_>,
        locks: &Locks,
        tree: &Tree,
        slots: u32,
    ) -> Result<bool, Fault> {
        let Run { spec, state } = &self.new.run;
        let (db, policy, now) = (queue.db, &spec.policy_digest, state.updated_at);
        if tree.held >= u64::from(slots) {
            return Ok(false);
        }
        if let Some(serial) = self.serial
            && queue.has_open_serial(serial, i64::MAX)?
        {
            return Ok(false);
        }
        queue.look(policy, slots, now)?;
        let rank = (queue::ready(Lane::Fresh), Reverse(i64::from(spec.priority)), i64::MAX);
        if queue
            .first(policy, slots, now, &PassedOver::default())?
            .is_some_and(|first| first.rank < rank)
        {
            return Ok(false);
        }
        let mut hosts = Vec::new();
        for host in hosts::living(db, locks)? {
            if host.policy_digest == *policy {
                hosts.push((host.slots, held(db, &host.id)?));
            }
        }
        Ok(schedule::slot_left(hosts))
    }

    /// Keeps all but the events; returns the number of the run.
    fn keep(&self, queue: &Queue<'_>, tree: &Tree) -> Result<i64, Fault> {
        let (db, spec) = (queue.db, &self.new.run.spec);
        let tree = join_tree(db, spec, tree)?;
        let alone = tree.is_none() && self.serial.is_none();
        let place = match self.mutable.hold {
            Hold::Wanted { lane, not_before: Timestamp(0) } if alone => Some(queue::ready(lane)),
            Hold::Wanted { .. }
            | Hold::Nobody
            | Hold::Beat
            | Hold::Runs { .. }
            | Hold::Host { .. } => None,
        };
        let no = self.insert_run(db, tree, place)?;
        let mut label = db.prepare_cached("INSERT INTO labels VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
        for (name, value) in &spec.labels {
            let key = label_key(&spec.tenant, name, value);
            let (status, at) = (self.mutable.status, self.mutable.updated_at);
            label.execute(params![key, status, at, no, name, value])?;
        }
        if let Some(new) = &self.new.idempotency {
            db.prepare_cached("INSERT OR REPLACE INTO idempotency VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![spec.tenant, new.key, new.fingerprint, no])?;
        }
        if self.mutable.status == QUEUED {
            count_queued(db, spec, 1)?;
        }
        if let (Some(tree), Some(_)) = (tree, &self.mutable.holder) {
            queue.hold(tree)?;
        }
        if place.is_some() {
            queue.stir();
        } else {
            let policy = spec.policy_digest.clone();
            let member = Member { no, tree, serial: self.serial, policy };
            waits::begin(queue, &member, &self.mutable.hold)?;
        }
        Ok(no)
    }

    fn insert_run(
        &self,
        db: &Connection,
        tree: Option<i64>,
        place: Option<i64>,
    ) -> Result<i64, Fault> {
        let (spec, row) = (&self.new.run.spec, &self.mutable);
        let tenant = spec.tenant.as_str();
        let app = &spec.parent_app_name;
        let parent = spec.parent_run_id.as_ref().map(RunId::as_str);
        // A one-shot run is in no session, nor is what is beneath it.
        let root = spec.root_session_id.as_deref().filter(|root| !root.is_empty());
        db.prepare_cached(
            "INSERT INTO runs (id, tenant, owner, session, app, agent, parent, tenant_key,
                owner_key, session_key, app_key, agent_key, parent_key, policy_digest, priority,
                created_at, tree, serial, status, updated_at, holder, queue, epoch, head, sum,
                state, last_pos, name, name_key, named, attached, root_session, root_key, task)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17,
                ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, 0, ?27, ?28, ?29, ?30, ?31, ?32, ?33)",
        )?
        .execute(params![
            spec.id.as_str(),
            tenant,
            spec.owner_user_id,
            spec.parent_session_id,
            app,
            spec.agent_name,
            parent,
            By::Tenant.key(tenant, tenant),
            By::Owner.key(tenant, &spec.owner_user_id),
            By::Session.key(tenant, &spec.parent_session_id),
            app.as_ref().map(|app| By::App.key(tenant, app)),
            By::Agent.key(tenant, &spec.agent_name),
            parent.map(|parent| By::Parent.key(tenant, parent)),
            spec.policy_digest,
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
            spec.name.as_ref().map(|name| By::Name.key(tenant, name)),
            names::named_key(spec),
            attached::attached_key(spec),
            root,
            root.map(|root| By::Root.key(tenant, root)),
            self.task,
        ])?;
        Ok(db.last_insert_rowid())
    }
}

/// What the request's key means; `None` if the run may have it.
fn known_key(db: &Connection, tenant: &str, asked: &Idempotency) -> Result<Option<Created>, Fault> {
    let sql = "SELECT fingerprint, run FROM idempotency WHERE tenant = ?1 AND key = ?2";
    let found = db
        .prepare_cached(sql)?
        .query_row([tenant, &asked.key], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)));
    let Some((fingerprint, no)) = found.optional()? else { return Ok(None) };
    let run = run_by_number(db, no)?;
    Ok(match schedule::known_key(asked, &fingerprint, &run) {
        KnownKey::Repeated => Some(Created::Repeated(Box::new(run))),
        KnownKey::Taken => Some(Created::Taken(run.id().clone())),
        KnownKey::Given => None,
    })
}

/// Why a run cannot be kept, whatever the bounds are.
fn refusal(db: &Connection, spec: &RunSpec) -> Result<Option<Created>, Fault> {
    let mut status = db.prepare_cached("SELECT status FROM runs WHERE id = ?1")?;
    let mut status = |id: &RunId| -> Result<Option<i64>, Fault> {
        Ok(status.query_row([id.as_str()], |row| row.get(0)).optional()?)
    };
    if status(&spec.id)?.is_some() {
        return Ok(Some(Created::Taken(spec.id.clone())));
    }
    let session = sessions::get(db, &schedule::session_of(spec))?;
    if session.is_some_and(|session| session.ended_at.is_some()) {
        return Ok(Some(Created::SessionEnded));
    }
    match &spec.parent_run_id {
        Some(parent) if status(parent)?.is_none_or(|status| status >= CANCELING) => {
            Ok(Some(Created::ParentEnded))
        }
        Some(_) | None => Ok(names::holder(db, spec)?.map(Created::NameTaken)),
    }
}

/// Runs of the tenant that wait to begin under the policy of a run.
fn queued(db: &Connection, spec: &RunSpec) -> Result<u64, Fault> {
    let sql = "SELECT runs FROM queues WHERE tenant = ?1 AND policy_digest = ?2";
    let mut sql = db.prepare_cached(sql)?;
    let runs = sql.query_row([&spec.tenant, &spec.policy_digest], |row| row.get(0));
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
    if let Some(no) = tree.no {
        db.prepare_cached("UPDATE trees SET runs = runs + 1 WHERE no = ?1")?.execute([no])?;
        return Ok(Some(no));
    }
    let root = spec.root_run_id.as_str();
    if root == spec.id.as_str() {
        return Ok(None);
    }
    db.prepare_cached("INSERT INTO trees (root, runs, held, full) VALUES (?1, ?2, ?3, 0)")?
        .execute(params![root, int(tree.runs + 1), int(tree.held)])?;
    let no = db.last_insert_rowid();
    db.prepare_cached("UPDATE runs SET tree = ?2 WHERE id = ?1 AND tree IS NULL")?
        .execute(params![root, no])?;
    Ok(Some(no))
}
