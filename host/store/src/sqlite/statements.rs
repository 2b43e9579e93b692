//! The statements that the transactions of the scheduler cost, counted, and the instructions of
//! SQLite in them: what is decided outside of SQL is not to ask more of it than before.

use std::cell::Cell;
use std::os::raw::{c_int, c_uint, c_void};
use std::path::PathBuf;
use std::ptr;

use rusqlite::{Connection, ffi};
use taskrun_journal::delivery::{Conversation, Delivery, Strategy};
use taskrun_journal::ending::Ending;
use taskrun_journal::event::Event;
use taskrun_journal::hold::{Wait, WaitMode};
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::run::Run;
use taskrun_journal::schedule::{self, ContinuationNeeds};
use taskrun_journal::spec::{Continuation, RunSpec};
use taskrun_journal::status::{BlockedOn, StopReason};
use taskrun_journal::store::{Idempotency, NewRun, Removal};
use taskrun_journal::time::Timestamp;

use super::change::{AppendRow, MOVE_LABEL, claim};
use super::create::NewRow;
use super::definition::{plan, tables_in_memory};
use super::locks::Locks;
use super::removal::{is_needed_by_continuation, remove};
use super::row::run_by_id;
use crate::fixtures::{append, new_run, spec, wish};

thread_local! {
    static BEGUN: Cell<usize> = const { Cell::new(0) };
    static STEPS: Cell<usize> = const { Cell::new(0) };
}

extern "C" fn steps(_: *mut c_void) -> c_int {
    STEPS.set(STEPS.get() + 1);
    0
}

extern "C" fn begins(_: c_uint, _: *mut c_void, _: *mut c_void, _: *mut c_void) -> c_int {
    BEGUN.set(BEGUN.get() + 1);
    0
}

/// A store's tables in memory, each statement of which is counted.
fn counted() -> Connection {
    let db = tables_in_memory();
    let events = ffi::SQLITE_TRACE_STMT as c_uint;
    #[expect(unsafe_code, reason = "statements are traced with a feature of rusqlite alone")]
    // SAFETY: the connection is open, and the function takes nothing from its arguments.
    let code = unsafe { ffi::sqlite3_trace_v2(db.handle(), events, Some(begins), ptr::null_mut()) };
    assert_eq!(code, ffi::SQLITE_OK);
    #[expect(unsafe_code, reason = "instructions are counted with a feature of rusqlite alone")]
    // SAFETY: as above.
    unsafe {
        ffi::sqlite3_progress_handler(db.handle(), 1, Some(steps), ptr::null_mut());
    }
    db
}

/// The instructions of SQLite that something costs.
fn instructions(work: impl FnOnce()) -> usize {
    let before = STEPS.get();
    work();
    STEPS.get() - before
}

/// The statements that something costs.
fn cost(work: impl FnOnce()) -> usize {
    let before = BEGUN.get();
    work();
    BEGUN.get() - before
}

fn id(name: &str) -> RunId {
    RunId::new(name).expect("a valid id")
}

fn run(db: &Connection, name: &str) -> Run {
    run_by_id(db, &id(name)).expect("reads").expect("it is there")
}

fn creates(db: &Connection, spec: RunSpec) -> usize {
    creates_new(db, new_run(spec))
}

fn creates_new(db: &Connection, new: NewRun) -> usize {
    let row = NewRow::new(new);
    let locks = Locks::new(PathBuf::new());
    cost(|| drop(row.create(db, &locks).expect("creates")))
}

fn claims(db: &Connection) -> usize {
    let wish = wish(HostId::new("h"), 1, 9, Timestamp(2));
    let mut taken = 0;
    let cost = cost(|| taken = claim(db, &wish).expect("claims").answer.len());
    assert_eq!(taken, 1);
    cost
}

fn appends(db: &Connection, name: &str, events: Vec<Event>) -> usize {
    let run = run(db, name);
    let row = AppendRow::new(&append(&run, events, run.state.epoch, Timestamp(3)));
    cost(|| drop(row.append(db).expect("appends")))
}

fn end() -> Vec<Event> {
    vec![
        Event::Finalizing { ending: Ending::completed(StopReason::FinalResponse) },
        Event::Finished { metadata: Default::default(), finalizer_error: None },
    ]
}

fn attached(name: &str) -> RunSpec {
    let root = spec(&id("root"));
    RunSpec {
        parent_run_id: Some(root.id.clone()),
        root_run_id: root.id,
        attached: true,
        ..spec(&id(name))
    }
}

#[test]
fn no_change_of_a_run_costs_more_statements_than_it_did() {
    let db = counted();
    let root = spec(&id("root"));
    let mut costs = vec![("create", creates(&db, root)), ("claim", claims(&db))];
    let chunk = Event::AssistantChunk { text: "x".to_owned() };
    costs.push(("append", appends(&db, "root", vec![chunk])));
    costs.push(("create a child", creates(&db, attached("child"))));
    costs.push(("claim it", claims(&db)));
    let (runs, mode) = (vec![id("child")], WaitMode::All);
    let wait = Wait::Runs { runs, mode, at: None };
    let blocked = Event::Blocked { on: BlockedOn::Children, wait, ran_ms: 0 };
    costs.push(("wait", appends(&db, "root", vec![blocked])));
    costs.push(("end and wake", appends(&db, "child", end())));
    costs.push(("claim again", claims(&db)));
    creates(&db, attached("one"));
    creates(&db, attached("two"));
    costs.push(("end with two attached", appends(&db, "root", end())));
    let known = [
        ("create", 6),
        ("claim", 9),
        ("append", 3),
        ("create a child", 15),
        ("claim it", 13),
        ("wait", 10),
        ("end and wake", 19),
        ("claim again", 12),
        ("end with two attached", 37),
    ];
    assert_eq!(costs, known);
}

#[test]
fn events_that_come_together_are_written_together_in_their_order() {
    let db = counted();
    creates(&db, spec(&id("root")));
    claims(&db);
    let chunks = |count| vec![Event::AssistantChunk { text: "x".to_owned() }; count];
    let alone = appends(&db, "root", chunks(1));
    assert_eq!(appends(&db, "root", chunks(20)), alone + 2, "eight at a time");
    let mut sql = db.prepare("SELECT seq FROM events ORDER BY pos").expect("a statement");
    let seqs = sql.query_map([], |row| row.get(0)).expect("reads");
    let seqs = seqs.collect::<rusqlite::Result<Vec<i64>>>().expect("numbers");
    assert_eq!(seqs, (1..=23).collect::<Vec<i64>>());
    let last = "SELECT max(pos), (SELECT last_pos FROM runs) FROM events";
    let last: (i64, i64) =
        db.query_row(last, [], |row| Ok((row.get(0)?, row.get(1)?))).expect("reads");
    assert_eq!(last, (23, 23));
}

#[test]
fn a_label_moves_with_its_run_as_the_one_row_of_its_key() {
    let db = tables_in_memory();
    let plan = plan(&db, MOVE_LABEL);
    let whole = "PRIMARY KEY (status=? AND key=? AND updated_at=? AND run=? AND name=?)";
    assert!(plan.contains(whole), "{plan}");
}

/// A run beneath `root` whose outcome is told in the conversation.
fn told(name: &str) -> RunSpec {
    let conversation =
        Conversation { session: "s".to_owned(), app: None, agent: "lead".to_owned() };
    let (above, conversation) = (vec![id("root")], Some(conversation));
    let delivery = Delivery { above, conversation, ..Delivery::default() };
    RunSpec { attached: false, delivery: Some(delivery), ..attached(name) }
}

/// A run beneath `root` of which the conversation is told at once.
fn nudging(name: &str, root: &str) -> RunSpec {
    let mut spec = told(name);
    (spec.parent_run_id, spec.root_run_id) = (Some(id(root)), id(root));
    if let Some(delivery) = &mut spec.delivery {
        (delivery.above, delivery.strategy) = (vec![id(root)], Strategy::Immediate);
    }
    spec
}

/// Adds the report of a run beneath an open one of the tree.
fn pending(db: &Connection, nth: usize) {
    creates(db, told(&format!("r{nth}")));
    claims(db);
    appends(db, &format!("r{nth}"), end());
}

/// Adds a report that is due, of a tree of its own.
fn due(db: &Connection, nth: usize) {
    let (root, child) = (format!("of-r{nth}"), format!("r{nth}"));
    creates(db, spec(&id(&root)));
    claims(db);
    creates(db, nudging(&child, &root));
    claims(db);
    appends(db, &root, end());
    appends(db, &child, end());
}

/// The instructions of an end whose outcome is told, and of that of a run which would be told of the
/// others, where there are so many reports of the conversation.
fn ends_beside(reports: usize, add: impl Fn(&Connection, usize)) -> [usize; 2] {
    let db = counted();
    creates(&db, spec(&id("root")));
    claims(&db);
    (0..reports).for_each(|nth| add(&db, nth));
    creates(&db, told("last"));
    claims(&db);
    let last = instructions(|| {
        appends(&db, "last", end());
    });
    let rows: i64 = db
        .query_row("SELECT count(*) FROM outbox WHERE state = 0", [], |row| row.get(0))
        .expect("counts");
    assert_eq!(usize::try_from(rows), Ok(reports + 1));
    let root = instructions(|| {
        appends(&db, "root", end());
    });
    [last, root]
}

fn costs_no_more(add: impl Fn(&Connection, usize) + Copy) {
    let (alone, beside) = (ends_beside(0, add), ends_beside(1_000, add));
    for (alone, beside) in alone.into_iter().zip(beside) {
        assert!(alone > 100, "instructions are counted: {alone}");
        assert!(beside * 5 <= alone * 6, "{beside} instructions beside them, {alone} without");
    }
}

#[test]
fn an_end_costs_no_more_beside_a_thousand_reports_that_are_pending() {
    costs_no_more(pending);
}

#[test]
fn an_end_costs_no_more_beside_a_thousand_reports_that_are_due() {
    costs_no_more(due);
}

/// Adds a run that continues another one, beneath which nothing was open any more.
fn continues(db: &Connection, name: &str, before: &str) {
    let continued = Continuation {
        run: id(before),
        turns: 0,
        rounds: 0,
        tool_calls: 0,
        ran_ms: 0,
        usage: Default::default(),
        is_final: true,
        reply: Default::default(),
        due: None,
    };
    let new = new_run(RunSpec { continues: Some(Box::new(continued)), ..spec(&id(name)) });
    let key = schedule::continuation_key(&id(before));
    let once = Idempotency { key, fingerprint: String::new(), completed_since: None };
    creates_new(db, NewRun { idempotency: Some(once), ..new });
}

/// Adds so many runs after `root`, each of which continues the one before; the last one is open.
fn continues_often(db: &Connection, count: usize) {
    let mut before = "root".to_owned();
    for nth in 0..count {
        let name = format!("c{nth}");
        continues(db, &name, &before);
        if nth + 1 < count {
            claims(db);
            appends(db, &name, end());
        }
        before = name;
    }
}

/// The statements by which it is found that none of so many runs, each of which continues the one
/// before, needs a run beneath the first one.
fn asks_continuations(count: usize) -> usize {
    let db = counted();
    creates(&db, spec(&id("root")));
    claims(&db);
    creates(&db, attached("child"));
    claims(&db);
    appends(&db, "child", end());
    appends(&db, "root", end());
    continues_often(&db, count);
    let child = run(&db, "child");
    let no = db.query_row("SELECT no FROM runs WHERE id = 'child'", [], |row| row.get(0));
    let no = no.expect("it is there");
    cost(|| {
        let needs = &mut ContinuationNeeds::default();
        let is_needed = is_needed_by_continuation(&db, (no, true), &child, needs).expect("reads");
        assert!(!is_needed, "what it used stands in the record of the first of them");
    })
}

#[test]
fn a_run_that_is_removed_costs_no_more_where_many_continue_the_one_above_it() {
    let one = asks_continuations(1);
    assert!(one > 0, "statements are counted");
    assert_eq!(asks_continuations(20), one);
}

/// The statements of a removal where so many runs continue one that has ended, each the one before.
fn removes_continuations(count: usize, is_last_open: bool) -> usize {
    let db = counted();
    creates(&db, spec(&id("root")));
    claims(&db);
    appends(&db, "root", end());
    continues_often(&db, count);
    let (mut runs, mut kept) = (0, count as u64);
    if !is_last_open {
        claims(&db);
        appends(&db, &format!("c{}", count - 1), end());
        (runs, kept) = (kept + 1, 0);
    }
    let (before, limit) = (Timestamp(u64::MAX), usize::MAX);
    let removal = Removal { scope: None, before, limit, dry_run: true };
    cost(|| {
        let removed = remove(&db, &removal).expect("looks");
        assert_eq!((removed.runs, removed.kept), (runs, kept));
    })
}

#[test]
fn a_removal_costs_no_more_for_a_run_of_a_long_chain_than_for_one_of_a_short_chain() {
    for is_last_open in [false, true] {
        let [short, long] = [20, 40].map(|count| removes_continuations(count, is_last_open));
        assert!(short > 20, "statements are counted: {short}");
        assert!(long <= short * 2, "{long} statements for 40, {short} for 20");
    }
}
