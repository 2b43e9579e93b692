//! The transactions on runs.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use taskrun::event::Recorded;
use taskrun::ids::RunId;
use taskrun::ports::store::{Append, Appended, Claim, Created, Idempotency, NewRun};
use taskrun::run::{Run, RunSpec};

use super::fault::Fault;
use super::row::{EventRow, json, run_by_number};
use super::schema::{By, int, label_key, status_code, time, unbits};
use crate::door;

/// What changes in a row of `runs`.
struct Mutable {
    status: i64,
    updated_at: i64,
    holder: Option<String>,
    epoch: i64,
    head: i64,
    state: String,
}

impl Mutable {
    fn new(run: &Run) -> Self {
        let state = &run.state;
        Self {
            status: status_code(run.status()),
            updated_at: time(state.updated_at),
            holder: door::holder(&state.lifecycle).map(|host| host.as_str().to_owned()),
            epoch: int(state.epoch),
            head: int(state.head),
            state: json(state),
        }
    }
}

/// A new run, made ready outside of the writing thread.
pub(crate) struct NewRow {
    run: Run,
    mutable: Mutable,
    events: Vec<EventRow>,
    idempotency: Option<Idempotency>,
}

impl NewRow {
    pub(crate) fn new(new: NewRun) -> Self {
        Self {
            mutable: Mutable::new(&new.run),
            events: new.events.iter().map(EventRow::new).collect(),
            run: new.run,
            idempotency: new.idempotency,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.mutable.state.len() + self.events.iter().map(EventRow::bytes).sum::<usize>()
    }

    pub(crate) fn create(&self, db: &Connection) -> Result<Created, Fault> {
        let spec = &self.run.spec;
        if let Some(wanted) = &self.idempotency
            && let Some((fingerprint, no)) = known_key(db, &spec.tenant, &wanted.key)?
        {
            let run = run_by_number(db, no)?;
            return Ok(if fingerprint == wanted.fingerprint {
                Created::Repeated(Box::new(run))
            } else {
                Created::Taken(run.id().clone())
            });
        }
        let mut same = db.prepare_cached("SELECT 1 FROM runs WHERE id = ?1")?;
        if same.exists([spec.id.as_str()])? {
            return Ok(Created::Taken(spec.id.clone()));
        }
        let no = self.insert_run(db)?;
        for event in &self.events {
            event.insert(db, no)?;
        }
        let mut label = db.prepare_cached("INSERT INTO labels VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
        for (name, value) in &spec.labels {
            let key = label_key(&spec.tenant, name, value);
            let (status, at) = (self.mutable.status, self.mutable.updated_at);
            label.execute(params![key, status, at, no, name, value])?;
        }
        if let Some(new) = &self.idempotency {
            db.prepare_cached("INSERT INTO idempotency VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![spec.tenant, new.key, new.fingerprint, no])?;
        }
        Ok(Created::New)
    }

    fn insert_run(&self, db: &Connection) -> Result<i64, Fault> {
        let (spec, row) = (&self.run.spec, &self.mutable);
        let tenant = spec.tenant.as_str();
        let (app, parent) = (&spec.parent_app_name, &spec.parent_run_id);
        let parent = parent.as_ref().map(RunId::as_str);
        db.prepare_cached(
            "INSERT INTO runs (id, tenant, owner, session, app, agent, parent, tenant_key,
                owner_key, session_key, app_key, agent_key, parent_key, policy_digest, priority,
                created_at, status, updated_at, holder, epoch, head, state)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17,
                ?18, ?19, ?20, ?21, ?22)",
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
            row.status,
            row.updated_at,
            row.holder,
            row.epoch,
            row.head,
            row.state,
        ])?;
        Ok(db.last_insert_rowid())
    }
}

fn known_key(db: &Connection, tenant: &str, key: &str) -> Result<Option<(String, i64)>, Fault> {
    let sql = "SELECT fingerprint, run FROM idempotency WHERE tenant = ?1 AND key = ?2";
    let mut sql = db.prepare_cached(sql)?;
    Ok(sql.query_row([tenant, key], |row| Ok((row.get(0)?, row.get(1)?))).optional()?)
}

/// Events to be added, made ready outside of the writing thread.
pub(crate) struct AppendRow {
    spec: Arc<RunSpec>,
    epoch: u64,
    expected_head: u64,
    mutable: Mutable,
    events: Vec<EventRow>,
}

/// What is compared before a row changes.
struct Present {
    no: i64,
    status: i64,
    updated_at: i64,
    holder: Option<String>,
    epoch: u64,
    head: u64,
}

impl AppendRow {
    pub(crate) fn new(append: &Append) -> Self {
        Self {
            spec: Arc::clone(&append.run.spec),
            epoch: append.epoch,
            expected_head: append.expected_head,
            mutable: Mutable::new(&append.run),
            events: append.events.iter().map(EventRow::new).collect(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.mutable.state.len() + self.events.iter().map(EventRow::bytes).sum::<usize>()
    }

    pub(crate) fn append(&self, db: &Connection) -> Result<Appended, Fault> {
        let Some(present) = present(db, &self.spec.id)? else { return Ok(Appended::Missing) };
        if present.head == self.expected_head && present.epoch == self.epoch {
            replace(db, &present, &self.spec, &self.mutable, &self.events)?;
            Ok(Appended::Done)
        } else if self.is_kept(db, present.no)? {
            Ok(Appended::Done)
        } else if present.epoch != self.epoch {
            Ok(Appended::Fenced(present.epoch))
        } else {
            Ok(Appended::Moved(present.head))
        }
    }

    /// Whether exactly these events stand at their places.
    fn is_kept(&self, db: &Connection, no: i64) -> Result<bool, Fault> {
        let mut sql = db.prepare_cached("SELECT id FROM events WHERE run = ?1 AND seq = ?2")?;
        for event in &self.events {
            let id: Option<i64> = sql.query_row([no, event.seq], |row| row.get(0)).optional()?;
            if id != Some(event.id) {
                return Ok(false);
            }
        }
        Ok(!self.events.is_empty())
    }
}

fn present(db: &Connection, id: &RunId) -> Result<Option<Present>, Fault> {
    let sql = "SELECT no, status, updated_at, holder, epoch, head FROM runs WHERE id = ?1";
    let row = db.prepare_cached(sql)?.query_row([id.as_str()], |row| {
        Ok(Present {
            no: row.get(0)?,
            status: row.get(1)?,
            updated_at: row.get(2)?,
            holder: row.get(3)?,
            epoch: unbits(row.get(4)?),
            head: unbits(row.get(5)?),
        })
    });
    Ok(row.optional()?)
}

/// Most appends change no status; they name no column that stands in an index.
fn replace(
    db: &Connection,
    present: &Present,
    spec: &RunSpec,
    row: &Mutable,
    events: &[EventRow],
) -> Result<(), Fault> {
    for event in events {
        event.insert(db, present.no)?;
    }
    let same_place = (present.status, present.updated_at) == (row.status, row.updated_at)
        && present.holder == row.holder;
    if same_place {
        db.prepare_cached("UPDATE runs SET epoch = ?2, head = ?3, state = ?4 WHERE no = ?1")?
            .execute(params![present.no, row.epoch, row.head, row.state])?;
        return Ok(());
    }
    db.prepare_cached(
        "UPDATE runs SET status = ?2, updated_at = ?3, holder = ?4, epoch = ?5, head = ?6,
            state = ?7 WHERE no = ?1",
    )?
    .execute(params![
        present.no,
        row.status,
        row.updated_at,
        row.holder,
        row.epoch,
        row.head,
        row.state
    ])?;
    let mut label = db.prepare_cached(
        "UPDATE labels SET status = ?5, updated_at = ?6
         WHERE key = ?1 AND status = ?2 AND updated_at = ?3 AND run = ?4",
    )?;
    for (name, value) in &spec.labels {
        let key = label_key(&spec.tenant, name, value);
        let (status, at) = (present.status, present.updated_at);
        label.execute(params![key, status, at, present.no, row.status, row.updated_at])?;
    }
    Ok(())
}

/// Takes queued runs. One that is damaged is left where it is and does not keep the others from
/// being taken.
pub(crate) fn claim(db: &Connection, claim: &Claim) -> Result<Vec<Run>, Fault> {
    let mut queue = db.prepare_cached(
        "SELECT no FROM runs INDEXED BY runs_queued WHERE status = 0 AND policy_digest = ?1
         ORDER BY priority DESC, no LIMIT 1 OFFSET ?2",
    )?;
    let mut runs = Vec::new();
    let mut damaged = 0;
    while runs.len() < claim.limit {
        let next = queue.query_row(params![claim.policy_digest, damaged], |row| row.get(0));
        let Some(no) = next.optional()? else { break };
        match claim_one(db, claim, no) {
            Ok(run) => runs.push(run),
            Err(Fault::Damaged(detail)) => {
                tracing::error!(detail, "a queued run cannot be taken");
                damaged += 1;
            }
            Err(fault @ Fault::Sqlite(_)) => return Err(fault),
        }
    }
    Ok(runs)
}

fn claim_one(db: &Connection, claim: &Claim, no: i64) -> Result<Run, Fault> {
    let run = run_by_number(db, no)?;
    let id = run.id().clone();
    let damaged = |detail: &str| Fault::Damaged(format!("run {id}, record: {detail}"));
    let claimed = door::claimed(run, &claim.host, claim.now);
    let (run, recorded): (Run, Recorded) = claimed
        .map_err(|detail| damaged(&detail))?
        .ok_or_else(|| damaged("it is in the queue and not queued"))?;
    let present = present(db, &id)?.ok_or_else(|| damaged("it has another id"))?;
    replace(db, &present, &run.spec, &Mutable::new(&run), &[EventRow::new(&recorded)])?;
    Ok(run)
}
