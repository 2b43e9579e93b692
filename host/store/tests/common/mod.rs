//! Fixtures of the tests: runs to keep, and both stores behind one type.
#![allow(dead_code, reason = "not every test file uses all of it")]

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rusqlite::Connection;
pub(crate) use taskrun_fixtures::{new_run, run_id};
use taskrun_journal::artifact::Artifact;
use taskrun_journal::consent::Consents;
use taskrun_journal::ending::Ending;
use taskrun_journal::event::{DecisionKind, Event};
use taskrun_journal::hold::{Wait, WaitMode};
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::list::TreeQuery;
use taskrun_journal::machine;
use taskrun_journal::memory::Memory;
use taskrun_journal::message::Usage;
use taskrun_journal::pin::{Ready, agent_of};
use taskrun_journal::reply::Reply;
use taskrun_journal::run::Run;
use taskrun_journal::spec::{Continuation, RunClass, RunSpec};
use taskrun_journal::status::{BlockedOn, StopReason};
use taskrun_journal::store::{
    Append, AppendOutcome, Claim, CreateOutcome, Dispatches, Host, Hosts, Idempotency,
    JointOutcome, LEASE, NewBatch, NewRun, Policies, Removal, SessionKey, Sessions, Store,
};
use taskrun_journal::time::Timestamp;
use taskrun_store::{Durability, MemoryStore, SqliteOptions, SqliteStore, StoreThreads};
use tempfile::TempDir;

/// Policy under which the runs of the tests were accepted.
pub(crate) const PIN: &str = "pin-1";

/// A store of either kind.
pub(crate) trait Both:
    Store + Sessions + Hosts + Memory + Dispatches + Policies + Consents
{
}
impl<T: Store + Sessions + Hosts + Memory + Dispatches + Policies + Consents> Both for T {}

/// A store under test.
pub(crate) struct Fixture {
    pub(crate) store: Arc<dyn Both>,
    memory: Option<Arc<MemoryStore>>,
    pub(crate) dir: Option<TempDir>,
}

impl Fixture {
    pub(crate) fn memory() -> Self {
        let store = Arc::new(MemoryStore::new());
        Self { store: Arc::clone(&store) as Arc<dyn Both>, memory: Some(store), dir: None }
    }

    pub(crate) fn sqlite(threads: StoreThreads) -> Self {
        let dir = tempfile::tempdir().expect("a folder for the test");
        let store = SqliteStore::open(dir.path(), SqliteOptions { threads, ..options() });
        let store = Arc::new(store.expect("opens"));
        Self { store, memory: None, dir: Some(dir) }
    }

    /// Registers a host and lets its process die, as far as the store can tell.
    pub(crate) async fn let_die(&self, host: &HostId) {
        let host = host_of(host, PIN);
        match (&self.memory, &self.dir) {
            (Some(memory), _) => {
                memory.register(host.clone()).await.expect("registers");
                memory.forget(&host.id);
            }
            (None, dir) => {
                let other = open(dir.as_ref().expect("SQLite has a folder"));
                other.register(host).await.expect("registers");
            }
        }
    }
}

/// Options for tests: no wait for the disk, as no test cuts the power.
pub(crate) fn options() -> SqliteOptions {
    SqliteOptions { durability: Durability::Process, ..SqliteOptions::default() }
}

pub(crate) fn open(dir: &TempDir) -> SqliteStore {
    SqliteStore::open(dir.path(), options()).expect("the store opens")
}

pub(crate) fn host_id(text: &str) -> HostId {
    HostId::new(text)
}

pub(crate) fn host_of(id: &HostId, pin: &str) -> Host {
    Host {
        id: id.clone(),
        pid: std::process::id(),
        policy: "taskrun.toml".to_owned(),
        agents: Arc::new([agent_of(pin).to_owned(), "researcher".to_owned()].into()),
        subscribers: Arc::new(["webhook/one".to_owned()].into()),
        started_at: Timestamp(1_000),
        slots: 4,
        lease: LEASE,
    }
}

/// A request, accepted at 1,000 ms.
pub(crate) fn spec(id: &str) -> RunSpec {
    RunSpec {
        tenant: "acme".to_owned(),
        owner_user_id: "ann".to_owned(),
        parent_session_id: "s-1".to_owned(),
        agent_name: "researcher".to_owned(),
        pin: PIN.to_owned(),
        task: "look it up".to_owned(),
        created_at: Timestamp(1_000),
        ..taskrun_fixtures::spec(id)
    }
}

/// The share of a run in one that it continues, which did nothing.
pub(crate) fn continuation(run: RunId) -> Continuation {
    Continuation {
        run,
        turns: 0,
        rounds: 0,
        tool_calls: 0,
        ran_ms: 0,
        usage: Usage::default(),
        is_final: false,
        reply: Reply::default(),
        due: None,
    }
}

/// The same, started by another run.
pub(crate) fn child(id: &str, parent: &RunSpec) -> RunSpec {
    RunSpec {
        parent_run_id: Some(parent.id.clone()),
        root_run_id: parent.root_run_id.clone(),
        depth: parent.depth + 1,
        ..spec(id)
    }
}

/// An entry that waits for the heartbeat of its agent.
pub(crate) fn entry(id: &str) -> RunSpec {
    RunSpec { class: RunClass::Heartbeat, ..spec(id) }
}

/// A batch run that takes entries as they stand, in this tick.
pub(crate) fn batch_of(id: &str, tick: &str, entries: &[&Run]) -> NewBatch {
    let batch =
        RunSpec { entries: entries.iter().map(|entry| entry.id().clone()).collect(), ..spec(id) };
    let now = Timestamp(2_000);
    let take = |entry: &&Run| {
        let event = machine::decide::take(entry, &batch.id, &host_id("h"), now);
        next(entry, 70, now.0, vec![event.expect("it waits")])
    };
    let entries = entries.iter().map(take).collect();
    NewBatch { entries, run: keyed(new_run(batch), "beat", tick) }
}

/// The session of the runs of [`spec`], as their owner has it.
pub(crate) fn session_key() -> SessionKey {
    SessionKey {
        tenant: "acme".to_owned(),
        owner_user_id: Some("ann".to_owned()),
        parent_app_name: None,
        id: "s-1".to_owned(),
    }
}

/// Removes what ended before a time, of all tenants.
pub(crate) fn all_before(before: u64) -> Removal {
    Removal { scope: None, before: Timestamp(before), limit: 100, dry_run: false }
}

pub(crate) fn keyed(mut new: NewRun, key: &str, fingerprint: &str) -> NewRun {
    new.idempotency = Some(Idempotency {
        key: key.to_owned(),
        fingerprint: fingerprint.to_owned(),
        completed_since: None,
    });
    new
}

/// Keeps a new run and returns its record.
pub(crate) async fn create(store: &dyn Both, spec: RunSpec) -> Run {
    let new = new_run(spec);
    let run = new.run.clone();
    let created = store.create(new).await.expect("creates");
    assert!(matches!(created, CreateOutcome::New), "{created:?}");
    run
}

/// Asserts that a wait for work goes on when a run is taken as it is kept, and is over when one is left.
/// Nobody may have a reason to look at the store before.
pub(crate) async fn only_a_run_that_was_left_wakes(store: &dyn Both) {
    let mut context = Context::from_waker(Waker::noop());
    let mut idle = pin!(store.work());
    assert_eq!(idle.as_mut().poll(&mut context), Poll::Pending);
    let (_, taken) = both(store, new_run(spec("r")), wish("h", 1, 2_000)).await;
    assert_eq!(ids(&taken), ["r"]);
    assert_eq!(idle.as_mut().poll(&mut context), Poll::Pending);
    let not_ready = RunSpec { pin: "not ready".to_owned(), ..spec("other") };
    let (_, taken) = both(store, new_run(not_ready), wish("h", 1, 2_000)).await;
    assert_eq!(taken, []);
    assert_eq!(idle.as_mut().poll(&mut context), Poll::Ready(()));
    // And one whose time has come meanwhile, which is none of this host's.
    let all = |now| Claim { ready: Ready::All, ..wish("other", 9, now) };
    let other = store.claim(all(2_000)).await.expect("claims").remove(0);
    let (host, not_before) = (host_id("other"), Timestamp(5_000));
    let lost = Event::Lost { host, epoch: 2, not_before, crashed: false, ran_ms: 0 };
    append(store, next(&other, 90, 3_000, vec![lost])).await;
    assert_eq!(store.claim(all(3_000)).await.expect("claims"), []);
    let mut idle = pin!(store.work());
    assert_eq!(idle.as_mut().poll(&mut context), Poll::Pending);
    let (_, taken) = both(store, new_run(spec("late")), wish("h", 1, 6_000)).await;
    assert_eq!(ids(&taken), ["late"]);
    assert_eq!(idle.as_mut().poll(&mut context), Poll::Ready(()));
}

/// Keeps a new run and takes runs, in one request.
pub(crate) async fn both(store: &dyn Both, new: NewRun, claim: Claim) -> (CreateOutcome, Vec<Run>) {
    match store.create_and_claim(new, claim).await.expect("answers") {
        JointOutcome::Done { created, claimed } => (created, claimed),
        JointOutcome::Busy(_) => panic!("nobody is in its way"),
    }
}

/// Keeps an append and returns the record after it.
pub(crate) async fn append(store: &dyn Both, append: Append) -> Run {
    let run = Run::clone(&append.run);
    assert_eq!(store.append(append).await.expect("appends"), AppendOutcome::Done);
    run
}

/// The append of some events to a run as it stands, with ids from `id` on.
pub(crate) fn next(run: &Run, id: u64, at: u64, events: Vec<Event>) -> Append {
    taskrun_fixtures::append(run, id, Timestamp(at), events)
}

/// The append with which a run ends, with these bytes beside its record.
pub(crate) fn end_with(run: &Run, id: u64, at: u64, bytes: &[u8]) -> Append {
    let artifact = Artifact::new(bytes);
    let events = end_naming(&artifact);
    Append { artifacts: vec![artifact], ..next(run, id, at, events) }
}

/// The events with which a run ends that has an artifact.
pub(crate) fn end_naming(artifact: &Artifact) -> Vec<Event> {
    let mut events = end();
    if let Some(Event::Finalizing { ending }) = events.first_mut() {
        ending.artifact = Some(artifact.reference().clone());
    }
    events
}

pub(crate) fn note(text: &str) -> Event {
    Event::PlannerNote { text: text.to_owned(), labels: BTreeMap::new() }
}

pub(crate) fn cancel() -> Event {
    Event::CancelRequested {
        by: StopReason::CanceledByOwner,
        from: None,
        reason: Some("no more".to_owned()),
    }
}

/// A question, and the answer that ends the wait for it.
pub(crate) fn asked_and_answered(item: &str) -> [Event; 2] {
    [taskrun_fixtures::asked(item), taskrun_fixtures::answered(item)]
}

/// An event that gives up the slot until something happens.
pub(crate) fn blocked(wait: Wait) -> Event {
    let on = match wait {
        Wait::Answers { .. } => BlockedOn::Input,
        Wait::Runs { .. } => BlockedOn::Children,
        Wait::Word => BlockedOn::Pause,
        Wait::Time { .. } => BlockedOn::Schedule,
    };
    taskrun_fixtures::blocked(on, wait)
}

/// A wait for runs, without a time.
pub(crate) fn for_runs(runs: &[&str], mode: WaitMode) -> Event {
    for_runs_until(runs, mode, None)
}

pub(crate) fn for_runs_until(runs: &[&str], mode: WaitMode, at: Option<u64>) -> Event {
    let runs = runs.iter().map(|id| run_id(id)).collect();
    blocked(Wait::Runs { runs, mode, at: at.map(Timestamp) })
}

/// The two events with which a run ends well.
pub(crate) fn end() -> Vec<Event> {
    vec![taskrun_fixtures::completed(), taskrun_fixtures::finished()]
}

/// The same, for a reason.
pub(crate) fn end_for(reason: StopReason) -> Vec<Event> {
    vec![taskrun_fixtures::finalizing(Ending::completed(reason)), taskrun_fixtures::finished()]
}

/// The two events with which a run fails by itself.
pub(crate) fn failed() -> Vec<Event> {
    let ending = Ending::failed(StopReason::AgentError, "it broke");
    vec![taskrun_fixtures::finalizing(ending), taskrun_fixtures::finished()]
}

/// A plan step decides that tools are called.
pub(crate) fn decided(turn: u32) -> Event {
    Event::PlanDecided {
        turn,
        decision: DecisionKind::ToolCalls,
        state: Vec::new(),
        reminders: Vec::new(),
        expected_children: None,
        parents: BTreeMap::new(),
        ran_ms: 0,
    }
}

/// The run is told of another one.
pub(crate) fn reported() -> Event {
    Event::Reported { runs: vec![run_id("other")], text: "it ended".to_owned() }
}

pub(crate) fn wish(host: &str, limit: usize, now: u64) -> Claim {
    Claim {
        host: host_id(host),
        limit,
        finalizers: 0,
        tree_slots: u32::MAX,
        ready: Ready::only([PIN, "researcher"]),
        resumes: 0,
        now: Timestamp(now),
    }
}

/// The runs of a tree, read in pages of so many.
pub(crate) async fn runs_of_tree(store: &dyn Both, query: &TreeQuery, limit: usize) -> Vec<Run> {
    let (mut runs, mut after) = (Vec::new(), None);
    loop {
        let page = store.tree(query, after, limit).await.expect("reads");
        assert!(page.runs.len() <= limit.max(1), "{} runs on a page", page.runs.len());
        runs.extend(page.runs);
        after = page.next;
        if after.is_none() {
            return runs;
        }
    }
}

pub(crate) fn ids(runs: &[Run]) -> Vec<&str> {
    runs.iter().map(|run| run.id().as_str()).collect()
}

/// The result of a future before a deadline that only a hanging store reaches.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    let deadline = Duration::from_secs(60);
    tokio::time::timeout(deadline, future).await.expect("it happens before the deadline")
}

/// Another connection to the file, of a program that keeps its checksums. The store was opened in
/// this process before.
pub(crate) fn stranger(dir: &TempDir) -> Connection {
    let flags = rusqlite::OpenFlags::default();
    let file = dir.path().join("taskrun.db");
    Connection::open_with_flags_and_vfs(file, flags, "taskrun").expect("opens")
}

/// Polls until something holds, before a deadline that only a hanging store reaches.
pub(crate) async fn spin_until_async(mut check: impl FnMut() -> bool) {
    within(async {
        while !check() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// A process that could not mount a small disk may have no mounts of its own, and failed for no other
/// reason. That the test did nothing is said past what is captured of tests that pass.
pub(crate) fn assert_mounts_are_refused(output: &std::process::Output) {
    let why = String::from_utf8_lossy(&output.stderr);
    let refusals =
        ["not permitted", "ermission denied", "No space left on device", "Invalid argument"];
    assert!(refusals.iter().any(|refusal| why.contains(refusal)), "{why}");
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let said = format!("{name} DID NOTHING: this process may have no mounts of its own: {why}\n");
    std::io::Write::write_all(&mut std::io::stderr(), said.as_bytes()).expect("somebody hears it");
}
