//! Runs for the tests of this crate's insides.

use std::collections::{BTreeMap, BTreeSet};

use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::history::History;
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::machine;
use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::run::Run;
use taskrun_journal::spec::{RunClass, RunSpec};
use taskrun_journal::store::{Admission, Append, Claim, NewRun};
use taskrun_journal::time::Timestamp;

/// The policy of all runs.
const POLICY: &str = "p";

/// A durable run of no other one.
pub(crate) fn spec(id: RunId) -> RunSpec {
    RunSpec {
        root_run_id: id.clone(),
        id,
        tenant: "t".to_owned(),
        owner_user_id: "o".to_owned(),
        parent_session_id: "s".to_owned(),
        parent_app_name: None,
        app_name: None,
        child_session_id: None,
        request_id: None,
        agent_name: "a".to_owned(),
        agent_digest: "d".to_owned(),
        policy_digest: POLICY.to_owned(),
        task: "x".to_owned(),
        timeout_ms: None,
        envelope: BTreeMap::new(),
        context_messages: Vec::new(),
        name: None,
        labels: BTreeMap::new(),
        metadata: BTreeMap::new(),
        parent_run_id: None,
        parent_tool_call_id: None,
        attached: false,
        root_session_id: None,
        depth: 0,
        narrow: Narrowing::default(),
        ancestors: Vec::new(),
        priority: 0,
        durable: true,
        finalizer: false,
        serial: false,
        seed: String::new(),
        history: History::None,
        class: RunClass::Task,
        entries: Vec::new(),
        created_at: Timestamp(1),
    }
}

/// A new run without bounds.
pub(crate) fn new_run(spec: RunSpec) -> NewRun {
    let at = spec.created_at;
    let queued = EventRecord { seq: 1, id: 1, at, event: Event::Queued { spec: Box::new(spec) } };
    let run = machine::begin(&queued).expect("a beginning");
    let (events, admission) = (vec![queued], Admission::UNBOUNDED);
    NewRun { run, events, idempotency: None, task: None, admission }
}

/// The run after these events, to be appended by a host of this epoch.
pub(crate) fn append(run: &Run, events: Vec<Event>, epoch: u64, at: Timestamp) -> Append {
    let expected_head = run.state.head;
    let mut run = run.clone();
    let mut recorded = Vec::with_capacity(events.len());
    for event in events {
        let seq = run.state.head + 1;
        let one = EventRecord { seq, id: seq, at, event };
        run.state = machine::apply(run.state, &one).expect("what is decided can be applied");
        recorded.push(one);
    }
    Append { run, events: recorded.into(), expected_head, epoch, artifacts: Vec::new() }
}

/// The wish of a host for runs, without finalizers.
pub(crate) fn wish(host: HostId, limit: usize, tree_slots: u32, now: Timestamp) -> Claim {
    Claim {
        host,
        policy_digest: POLICY.to_owned(),
        limit,
        finalizers: 0,
        tree_slots,
        passing_over: BTreeSet::new(),
        now,
    }
}
