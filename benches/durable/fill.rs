//! Runs as they lie in a store that was used for long.
//!
//! Runs that have ended are kept through the port, but in one step each: a new run may come with
//! its whole journal. So a million of them take a minute and not an hour, and tables and indexes
//! hold what they would hold otherwise. They belong to 1,000 owners, 20 agents, 50 teams and to
//! sessions of ten runs; one session in ten is a tree, its first run above the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use taskrun_journal::ending::Ending;
use taskrun_journal::event::{DecisionKind, Event, EventRecord};
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::machine;
use taskrun_journal::message::{Message, Role};
use taskrun_journal::pin::pin;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::StopReason;
use taskrun_journal::store::{Admission, Append, AppendOutcome, CreateOutcome, NewRun, Store};
use taskrun_journal::time::Timestamp;
use tokio::task::JoinSet;

use crate::host::{AGENT_DIGEST, ANSWERS, OTHER_PIN, TENANT};

/// When the first run was accepted, in milliseconds; each further one a millisecond later.
pub(crate) const BASE_MS: u64 = 1_700_000_000_000;
/// Runs of a session.
pub(crate) const SESSION: u64 = 10;
/// One session in so many is a tree.
pub(crate) const TREES: u64 = 10;
/// Sessions that are filled at the same time; as many transactions as fit into one commit.
const AT_ONCE: u64 = 512;

/// A host that died long ago.
const GONE: &str = "host-gone";

/// Id of the run with a number.
pub(crate) fn id(n: u64) -> RunId {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&n.to_be_bytes());
    RunId::generate(BASE_MS + n, &random)
}

fn spec(n: u64) -> RunSpec {
    let session = n / SESSION;
    let root = (session.is_multiple_of(TREES)).then(|| id(session * SESSION));
    let parent = root.clone().filter(|_| !n.is_multiple_of(SESSION));
    let own = id(n);
    RunSpec {
        tenant: TENANT.to_owned(),
        owner_user_id: format!("owner-{}", session % 1_000),
        parent_session_id: format!("session-{session}"),
        parent_app_name: session.is_multiple_of(3).then(|| format!("app-{}", session % 30)),
        agent_name: format!("agent-{}", n % 20),
        agent_digest: AGENT_DIGEST.to_owned(),
        pin: OTHER_PIN.to_owned(),
        task: "look something up and say what you found".to_owned(),
        envelope: BTreeMap::from([("taskrun.run_id".to_owned(), own.to_string())]),
        labels: BTreeMap::from([("team".to_owned(), format!("team-{}", n % 50))]),
        parent_run_id: parent,
        root_run_id: root.unwrap_or_else(|| own.clone()),
        seed: "0123456789abcdef0123456789abcdef".to_owned(),
        created_at: Timestamp(BASE_MS + n),
        ..taskrun_fixtures::spec(own.as_str())
    }
}

/// A run outside of all trees that was just accepted.
pub(crate) fn queued(n: u64) -> NewRun {
    let spec = RunSpec { parent_run_id: None, root_run_id: id(n), ..spec(n) };
    begun(spec)
}

fn begun(spec: RunSpec) -> NewRun {
    let at = spec.created_at;
    let event = Event::Queued { spec: Arc::new(spec) };
    let first = EventRecord { seq: 1, id: at.0, at, event };
    let run = machine::begin(&first).expect("a beginning");
    NewRun {
        run,
        events: vec![first],
        idempotency: None,
        task: None,
        artifacts: Vec::new(),
        admission: Admission::UNBOUNDED,
    }
}

fn started(host: &str) -> Event {
    Event::Started {
        host: HostId::new(host),
        epoch: 1,
        child_session_id: "taskrun:session".to_owned(),
        request_id: "taskrun:request".to_owned(),
        batch: None,
    }
}

/// The events that a driver writes at the end of a trivial run.
pub(crate) fn end() -> Vec<Event> {
    let message = Message::text(Role::Assistant, "It is done, and nothing was found.");
    let decided = Event::PlanDecided {
        turn: 1,
        decision: DecisionKind::FinalResponse,
        state: Vec::new(),
        reminders: Vec::new(),
        expected_children: None,
        parents: std::collections::BTreeMap::new(),
        ran_ms: 3,
    };
    let ending = Ending::completed(StopReason::FinalResponse);
    vec![
        decided,
        Event::AssistantMessage { message, usage: None, model: None, streamed: false },
        Event::Finalizing { ending },
        Event::Finished { metadata: BTreeMap::new(), finalizer_error: None },
    ]
}

/// The run after some more events, and those.
fn fold(run: &Run, events: Vec<Event>) -> (Run, Vec<EventRecord>) {
    let mut state = run.state.clone();
    let mut all = Vec::new();
    for event in events {
        let seq = state.head + 1;
        let at = Timestamp(run.spec.created_at.0 + seq);
        let recorded = EventRecord { seq, id: seq, at, event };
        state = machine::apply(state, &recorded).expect("a legal event");
        all.push(recorded);
    }
    (Run { spec: Arc::clone(&run.spec), state }, all)
}

/// The event that ends a run.
pub(crate) fn ending(run: &Run) -> Append {
    let (after, events) = fold(run, end());
    let (epoch, expected_head) = (run.state.epoch, run.state.head);
    Append {
        run: Arc::new(after),
        epoch,
        expected_head,
        events: events.into(),
        artifacts: Vec::new(),
        reports: None,
    }
}

async fn keep(store: &dyn Store, mut new: NewRun, events: Vec<Event>) -> Run {
    let (run, more) = fold(&new.run, events);
    new.run = run.clone();
    new.events.extend(more);
    let created = store.create(new).await.expect("written");
    assert!(matches!(created, CreateOutcome::New), "{created:?}");
    run
}

/// Keeps runs that have ended, with the numbers from 0 on; a multiple of [`SESSION`].
pub(crate) async fn ended(store: &Arc<dyn Store>, count: u64) {
    let sessions = count / SESSION;
    each(store, sessions, |store, session| async move {
        let ended = || [vec![started(GONE)], end()].concat();
        let numbers = session * SESSION..(session + 1) * SESSION;
        if !session.is_multiple_of(TREES) {
            for n in numbers {
                keep(&*store, begun(spec(n)), ended()).await;
            }
            return;
        }
        // A run is accepted beneath one that is open only.
        let root = keep(&*store, begun(spec(numbers.start)), vec![started(GONE)]).await;
        for n in numbers.skip(1) {
            keep(&*store, begun(spec(n)), ended()).await;
        }
        let ended = store.append(ending(&root)).await.expect("written");
        assert_eq!(ended, AppendOutcome::Done);
    })
    .await;
}

/// Keeps runs that were under way when their host died, from a number on.
pub(crate) async fn orphaned(store: &Arc<dyn Store>, from: u64, count: u64) {
    each(store, count, move |store, n| async move {
        let mut spec = queued(from + n).run.spec.as_ref().clone();
        // An agent that there is, so that they can be resumed.
        ANSWERS.clone_into(&mut spec.agent_name);
        spec.pin = pin(ANSWERS, AGENT_DIGEST);
        keep(&*store, begun(spec), vec![started(GONE)]).await;
    })
    .await;
}

/// Does something for each number below a count, for many at the same time.
async fn each<F: Future<Output = ()> + Send + 'static>(
    store: &Arc<dyn Store>,
    count: u64,
    act: impl Fn(Arc<dyn Store>, u64) -> F + Clone + Send + 'static,
) {
    let mut all = JoinSet::new();
    for first in 0..AT_ONCE.min(count) {
        let (store, act) = (Arc::clone(store), act.clone());
        all.spawn(async move {
            let mut n = first;
            while n < count {
                act(Arc::clone(&store), n).await;
                n += AT_ONCE;
            }
        });
    }
    while let Some(done) = all.join_next().await {
        done.expect("no panic");
    }
}
