//! The tables of the file.

use taskrun_journal::format::JournalFormat;
use taskrun_journal::schedule;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::Status;
use taskrun_journal::time::Timestamp;

/// Version of the tables.
pub const SCHEMA_VERSION: i64 = 14;
/// `application_id` of the file: "TASK".
pub(crate) const APPLICATION_ID: i64 = 0x5441_534b;

/// Bits of `user_version` with the version of the tables.
const TABLES_BITS: u32 = 16;

/// The content of `user_version`: the version of the tables in its lower 16 bits, and above them the
/// number of the latest format of journals, less one. Both in one number of the file's header, so
/// that a look at either needs no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileVersion {
    pub(crate) tables: i64,
    pub(crate) format: JournalFormat,
}

impl FileVersion {
    /// That of the tables of this program, with journals of this format.
    pub(crate) fn with(format: JournalFormat) -> Self {
        Self { tables: SCHEMA_VERSION, format }
    }

    /// The parts of a number.
    pub(crate) fn of(user_version: i64) -> Self {
        let later = u16::try_from(user_version >> TABLES_BITS).unwrap_or(u16::MAX);
        let format = JournalFormat(JournalFormat::FIRST.0.saturating_add(later));
        Self { tables: user_version & ((1 << TABLES_BITS) - 1), format }
    }

    /// The number of both.
    pub(crate) fn user_version(self) -> i64 {
        let later = self.format.0.saturating_sub(JournalFormat::FIRST.0);
        self.tables | i64::from(later) << TABLES_BITS
    }
}

/// The tables; those of artifacts, facts, reports, dispatches, policies and consents stand in
/// `artifacts.rs`, `facts.rs`, `outbox.rs`, `dispatches.rs`, `policies.rs` and `consents.rs`.
///
/// - What a run was asked for is not repeated in `runs`: it is the body of its first event.
/// - `no` is the order of acceptance, which is also the order of the queue. `pos` is the order in
///   which events became durable, as there is one writer at a time; others keep places in it.
///   Neither is ever used again (`AUTOINCREMENT`).
/// - No row refers to another with `REFERENCES`: all that belongs to a run goes with it in one
///   transaction, and the check costs a look at another table for each event.
/// - `status` is a code of [`status_code`]. The codes from 5 on are those of runs that ended.
/// - Columns `…_key` and `serial` are hashes (`key`) of what the other columns say in words: they
///   keep the indexes, which every change of status rewrites, small. Words settle collisions; of
///   `serial` a collision makes two sessions take turns.
/// - `sum` is a checksum of what was written, as SQLite has none: see `row.rs`.
/// - `id` and `at` of events are unsigned numbers of 64 bits, kept as the signed ones with the
///   same bits.
/// - `stop` is the word of the reason for which a run ended; it is empty until then, so its index
///   costs one entry for each run.
/// - Every index for listing is (status, what, time): without a wish for a status the eight of
///   them are merged, and so nine indexes do what eighteen would. The status comes first so that
///   unfinished runs, which change, stand close together in few pages, and only the last change
///   of a run goes to one of the many pages of finished ones. `labels` is such an index too.
/// - `tree` is set only in trees of more than one run, so that a run that starts none costs
///   nothing for it. It is less than zero for a run that counts there no longer. `queue` and `due`
///   are explained in `queue.rs`.
/// - `last_pos` is the place of the last event; 0 while none was added to those that the run was
///   accepted with.
/// - `root_session` is the session of the first run of the tree, where that is another one than
///   `session` and there is one. `named` is a hash of the name and of those among whom an open run
///   has it alone, `attached` one of the run above, `task` one of what the answer depends on.
/// - `owner` and `app` of a session are empty where it stands for those of everybody.
/// - `pins` says which hosts execute the run: see [`taskrun_journal::pin::Pins`]. `agents` of a host is
///   an object in JSON of the pins that it has, by the names of their agents. `subscribers` of a host
///   is a list in JSON.
/// - `queues` counts runs that wait to begin, `trees` the runs that count in a tree.
/// - `entered_ms` of a host is the first of its `beat_ms`, sent at its `started_at`.
pub(crate) const TABLES: &str = "
CREATE TABLE runs (
    no            INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT NOT NULL UNIQUE,
    tenant        TEXT NOT NULL,
    owner         TEXT NOT NULL,
    session       TEXT NOT NULL,
    app           TEXT,
    agent         TEXT NOT NULL,
    parent        TEXT,
    root_session  TEXT,
    name          TEXT,
    tenant_key    INTEGER NOT NULL,
    owner_key     INTEGER NOT NULL,
    session_key   INTEGER NOT NULL,
    app_key       INTEGER,
    agent_key     INTEGER NOT NULL,
    parent_key    INTEGER,
    root_key      INTEGER,
    name_key      INTEGER,
    pins          TEXT NOT NULL,
    priority      INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    tree          INTEGER,
    serial        INTEGER,
    named         INTEGER,
    attached      INTEGER,
    task          INTEGER,
    status        INTEGER NOT NULL,
    stop          TEXT,
    updated_at    INTEGER NOT NULL,
    holder        TEXT,
    queue         INTEGER,
    due           INTEGER,
    epoch         INTEGER NOT NULL,
    head          INTEGER NOT NULL,
    last_pos      INTEGER NOT NULL,
    sum           INTEGER NOT NULL,
    state         TEXT NOT NULL
) STRICT;
CREATE INDEX runs_by_tenant  ON runs (status, tenant_key, updated_at);
CREATE INDEX runs_by_owner   ON runs (status, owner_key, updated_at);
CREATE INDEX runs_by_session ON runs (status, session_key, updated_at);
CREATE INDEX runs_by_root    ON runs (status, root_key, updated_at) WHERE root_key IS NOT NULL;
CREATE INDEX runs_by_app     ON runs (status, app_key, updated_at) WHERE app_key IS NOT NULL;
CREATE INDEX runs_by_agent   ON runs (status, agent_key, updated_at);
CREATE INDEX runs_by_parent  ON runs (status, parent_key, updated_at) WHERE parent_key IS NOT NULL;
CREATE INDEX runs_by_name    ON runs (status, name_key, updated_at) WHERE name_key IS NOT NULL;
CREATE INDEX runs_by_tree    ON runs (status, tree, updated_at) WHERE tree IS NOT NULL;
CREATE INDEX runs_by_stop    ON runs (status, tenant_key, stop, updated_at)
    WHERE stop IS NOT NULL;
CREATE INDEX runs_by_created ON runs (tenant_key, created_at);
CREATE INDEX runs_held       ON runs (holder, no) WHERE holder IS NOT NULL;
CREATE INDEX runs_queued     ON runs (queue, priority DESC, no)
    WHERE queue IS NOT NULL;
CREATE INDEX runs_grouped    ON runs (tree, pins, queue, priority DESC, no)
    WHERE tree IS NOT NULL AND queue IS NOT NULL;
CREATE INDEX runs_due        ON runs (due) WHERE queue >= 5;
CREATE INDEX runs_serial     ON runs (serial, no) WHERE serial IS NOT NULL AND status < 5;
CREATE INDEX runs_named      ON runs (named) WHERE named IS NOT NULL AND status < 5;
CREATE INDEX runs_by_task    ON runs (task, updated_at) WHERE task IS NOT NULL AND status = 5;
CREATE INDEX runs_attached   ON runs (attached) WHERE attached IS NOT NULL AND status < 5;

CREATE TABLE events (
    pos  INTEGER PRIMARY KEY AUTOINCREMENT,
    run  INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    id   INTEGER NOT NULL,
    at   INTEGER NOT NULL,
    sum  INTEGER NOT NULL,
    body TEXT NOT NULL,
    UNIQUE (run, seq)
) STRICT;

CREATE TABLE labels (
    key        INTEGER NOT NULL,
    status     INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    run        INTEGER NOT NULL,
    name       TEXT NOT NULL,
    value      TEXT NOT NULL,
    PRIMARY KEY (status, key, updated_at, run, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency (
    tenant      TEXT NOT NULL,
    key         TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    run         INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_run ON idempotency (run);

CREATE TABLE queues (
    tenant TEXT PRIMARY KEY,
    runs   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE trees (
    no   INTEGER PRIMARY KEY,
    root TEXT NOT NULL UNIQUE,
    runs INTEGER NOT NULL,
    held INTEGER NOT NULL,
    full INTEGER NOT NULL,
    slots INTEGER
) STRICT;
CREATE INDEX trees_full ON trees (held) WHERE full = 1 AND slots IS NULL;

CREATE TABLE waits (
    run    INTEGER NOT NULL,
    waiter INTEGER NOT NULL,
    any    INTEGER NOT NULL,
    PRIMARY KEY (run, waiter)
) STRICT, WITHOUT ROWID;
CREATE INDEX waits_waiter ON waits (waiter, run);

CREATE TABLE sessions (
    tenant     TEXT NOT NULL,
    id         TEXT NOT NULL,
    owner      TEXT NOT NULL,
    app        TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    ended_at   INTEGER,
    PRIMARY KEY (tenant, id, owner, app)
) STRICT, WITHOUT ROWID;

CREATE TABLE hosts (
    id         TEXT PRIMARY KEY,
    pid        INTEGER NOT NULL,
    policy     TEXT NOT NULL,
    agents     TEXT NOT NULL,
    subscribers TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    slots      INTEGER NOT NULL,
    lease_ms   INTEGER NOT NULL,
    beat_ms    INTEGER NOT NULL,
    entered_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
";

/// The number that stands for a status in the file. Numbers are never given another meaning;
/// that those of ended runs begin with 5 also stands in an index.
pub(crate) fn status_code(status: Status) -> i64 {
    match status {
        Status::Queued => QUEUED,
        Status::Running => 1,
        Status::Blocked => 2,
        Status::Canceling => 3,
        Status::Finalizing => FINALIZING,
        Status::Completed => TERMINAL,
        Status::Failed => 6,
        Status::Canceled => 7,
    }
}

/// The status that has a code.
pub(crate) fn status_of(code: i64) -> Option<Status> {
    Status::ALL.iter().copied().find(|status| status_code(*status) == code)
}

/// Code of [`Status::Queued`].
pub(crate) const QUEUED: i64 = 0;
/// Code of [`Status::Finalizing`].
pub(crate) const FINALIZING: i64 = 4;
/// The first code of a run that ended.
pub(crate) const TERMINAL: i64 = 5;

/// The words by which a run is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyKind {
    Tenant,
    Owner,
    Session,
    App,
    Agent,
    Parent,
    Name,
    /// The session of the first run of its tree.
    Root,
}

impl KeyKind {
    /// Column of the word, column of its hash, and index.
    pub(crate) fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Tenant => ("tenant", "tenant_key", "runs_by_tenant"),
            Self::Owner => ("owner", "owner_key", "runs_by_owner"),
            Self::Session => ("session", "session_key", "runs_by_session"),
            Self::App => ("app", "app_key", "runs_by_app"),
            Self::Agent => ("agent", "agent_key", "runs_by_agent"),
            Self::Parent => ("parent", "parent_key", "runs_by_parent"),
            Self::Name => ("name", "name_key", "runs_by_name"),
            Self::Root => ("root_session", "root_key", "runs_by_root"),
        }
    }

    /// Value of the hash column.
    pub(crate) fn key(self, tenant: &str, word: &str) -> i64 {
        bits(schedule::hash(&[self.names().0, tenant, word]))
    }
}

/// Value of `runs.serial`.
pub(crate) fn serial_key(spec: &RunSpec) -> i64 {
    let turn = schedule::turn_of(spec);
    let owner = turn.owner_user_id.unwrap_or_default();
    bits(schedule::hash(&["serial", &turn.tenant, &owner, &turn.id]))
}

/// Value of `labels.key`.
pub(crate) fn label_key(tenant: &str, name: &str, value: &str) -> i64 {
    bits(schedule::hash(&["label", tenant, name, value]))
}

/// The signed number with the same bits.
pub(crate) fn bits(number: u64) -> i64 {
    i64::from_ne_bytes(number.to_ne_bytes())
}

/// The unsigned number with the same bits.
pub(crate) fn unbits(number: i64) -> u64 {
    u64::from_ne_bytes(number.to_ne_bytes())
}

/// A count, or a time that is compared and sorted by.
pub(crate) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Like [`int`].
pub(crate) fn time(time: Timestamp) -> i64 {
    int(time.0)
}
