//! Things that can be done to a store, drawn at random.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use taskrun_journal::artifact::Artifact;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::hold::{Wait, WaitMode};
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::list::Scope;
use taskrun_journal::machine;
use taskrun_journal::pin::Ready;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunClass;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::store::{Admission, Claim, Removal, ReportChange};
use taskrun_journal::time::Timestamp;

use crate::common::*;

/// Different artifacts.
const ARTIFACTS: u8 = 3;

/// One thing done to a store.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Create(Create),
    Claim(ClaimStep),
    Append(Change),
    Batch(Batch),
    Entries {
        agent: u8,
        limit: usize,
    },
    Repeat,
    List {
        owner: Option<u8>,
        status: Vec<Status>,
        tree: Option<u8>,
        name: Option<u8>,
        since: Option<u64>,
        limit: usize,
    },
    Read {
        id: u8,
        after: u64,
        limit: usize,
    },
    Artifact {
        /// One of those that were accepted.
        run: u8,
        number: u8,
    },
    Remove(Removal),
    OpenSession {
        session: u8,
        owner: Option<u8>,
    },
    EndSession {
        session: u8,
        owner: Option<u8>,
    },
    ReadSession {
        session: u8,
        owner: Option<u8>,
        limit: usize,
    },
    Register {
        host: u8,
        pin: u8,
        slots: u32,
    },
    Retire {
        host: u8,
    },
    Held {
        host: u8,
        after: Option<u8>,
        limit: usize,
    },
    Orphans,
    Reports {
        query: ReportsOf,
        after: u64,
        limit: usize,
    },
    NextDispatch {
        subscribers: Vec<u8>,
    },
    TakeDispatches {
        subscriber: u8,
        host: u8,
        limit: usize,
    },
    SettleDispatch {
        number: u64,
        host: u8,
        outcome: Settled,
    },
    Dispatches {
        /// One of those that were accepted, or those of an owner.
        of: Result<u8, Option<u8>>,
        after: u64,
        limit: usize,
    },
    ChangeDispatch {
        number: u64,
        change: ReportChange,
    },
    ForgetDispatches {
        owner: u8,
    },
    ChangeReport {
        /// One of those that were accepted.
        run: u8,
        change: ReportChange,
    },
}

/// The end of an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Settled {
    Delivered,
    Failed { pause_ms: Option<u64> },
    Released,
}

pub(crate) fn subscriber(number: u8) -> String {
    if number == 0 { "webhook/one".to_owned() } else { format!("command/c-{number}") }
}

/// Reports that are asked for.
#[derive(Clone, Debug)]
pub(crate) enum ReportsOf {
    /// Of the tree of one of the runs that were accepted.
    Tree(u8),
    Conversation {
        session: u8,
        owner: u8,
    },
    All {
        owner: Option<u8>,
    },
    Due,
}

#[derive(Clone, Debug)]
pub(crate) struct Create {
    pub(crate) id: u8,
    /// One of those that were accepted.
    pub(crate) parent: Option<u8>,
    pub(crate) key: Option<(u8, u8)>,
    pub(crate) completed_since: Option<u64>,
    pub(crate) owner: u8,
    pub(crate) session: u8,
    pub(crate) priority: i32,
    pub(crate) agent: u8,
    pub(crate) pin: u8,
    pub(crate) serial: bool,
    pub(crate) class: RunClass,
    pub(crate) durable: bool,
    pub(crate) finalizer: bool,
    pub(crate) name: Option<u8>,
    /// If it has a parent.
    pub(crate) attached: bool,
    /// If it has a parent: the outcome is told, in a conversation of this session where there is
    /// one.
    pub(crate) delivery: Option<Option<u8>>,
    /// The time after its end at which somebody is nudged, if anybody is.
    pub(crate) nudges: Option<u16>,
    /// If it has no parent: it is a nudge for so many of the reports that are due.
    pub(crate) nudge_for: u8,
    /// Subscribers, and whether they are told of the acceptance, too.
    pub(crate) subscribers: Vec<(u8, bool)>,
    pub(crate) admission: Admission,
}

/// A batch of the first of those that wait.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) id: u8,
    pub(crate) agent: u8,
    pub(crate) tick: u8,
    pub(crate) entries: usize,
    pub(crate) wrong_epoch: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct ClaimStep {
    host: u8,
    pin: u8,
    limit: usize,
    tree_slots: u32,
    also: Option<u8>,
}

#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// One of those that were accepted.
    pub(crate) run: u8,
    /// The first of these that can happen to it.
    kinds: Vec<ChangeKind>,
    /// Of those that were accepted the ones of whose ends it is told, or has waited for.
    pub(crate) reports: Option<(bool, Vec<u8>)>,
    pub(crate) event_id: u64,
    pub(crate) stale: bool,
    pub(crate) wrong_epoch: bool,
}

#[derive(Clone, Debug)]
enum ChangeKind {
    Note,
    Reported,
    Decided,
    AskToCancel,
    Cancel,
    Finalize,
    End,
    Fail,
    EndWith(u8),
    WaitForRuns {
        runs: Vec<u8>,
        mode: WaitMode,
        until_ms: Option<u64>,
    },
    WaitForTime {
        until_ms: u64,
    },
    Pause,
    /// Over whatever the run is and waits for.
    PauseOver {
        until_ms: Option<u64>,
    },
    Resume,
    Lose,
    Release,
    /// Adoption of a run, held by a host or not.
    Adopt(u8),
}

impl ClaimStep {
    /// Runs with one pin or two, and the entries of all agents.
    fn ready(&self) -> Ready {
        let pins = std::iter::once(self.pin).chain(self.also).map(pin);
        let all: Vec<String> = pins.chain((0..3).map(agent)).collect();
        Ready::only(all.iter().map(String::as_str))
    }

    pub(crate) fn at(&self, now: u64) -> Claim {
        Claim {
            ready: self.ready(),
            tree_slots: self.tree_slots,
            ..wish(host(self.host).as_str(), self.limit, now)
        }
    }
}

pub(crate) fn id(id: u8) -> RunId {
    run_id(&format!("r-{id}"))
}

pub(crate) fn host(host: u8) -> HostId {
    host_id(&format!("h-{host}"))
}

pub(crate) fn agent(agent: u8) -> String {
    if agent == 0 { "researcher".to_owned() } else { format!("a-{agent}") }
}

pub(crate) fn pin(pin: u8) -> String {
    format!("p-{pin}")
}

/// Bytes that a run may have beside its record; some have equal ones.
pub(crate) fn artifact(number: u8) -> Artifact {
    Artifact::new(vec![number; usize::from(number) * 1_000])
}

/// The artifacts that these events name.
pub(crate) fn named_in(events: &[Event]) -> Vec<Artifact> {
    let name = |event: &Event| {
        let Event::Finalizing { ending } = event else { return None };
        ending.artifact.clone()
    };
    let names = events.iter().filter_map(name);
    let all = || (0..ARTIFACTS).map(artifact);
    names.filter_map(|name| all().find(|one| *one.reference() == name)).collect()
}

impl Change {
    /// The events that this stands for, if any can happen to the run.
    pub(crate) fn events(&self, run: &Run, now: u64, accepted: &[RunId]) -> Option<Vec<Event>> {
        self.kinds.iter().find_map(|kind| kind.events(run, now, accepted))
    }
}

/// One of the runs that were accepted, if there are any.
pub(crate) fn one_of(accepted: &[RunId], number: u8) -> Option<RunId> {
    accepted.get(usize::from(number) % accepted.len().max(1)).cloned()
}

impl ChangeKind {
    fn events(&self, run: &Run, now: u64, accepted: &[RunId]) -> Option<Vec<Event>> {
        let events = match self {
            Self::Note => vec![note("n")],
            Self::Reported => vec![reported()],
            Self::Decided => vec![decided(run.state.turns + 1)],
            Self::AskToCancel => vec![cancel()],
            Self::Cancel => machine::decide::cancel(run, StopReason::CanceledByOwner, None),
            Self::Finalize => end()[..1].to_vec(),
            Self::End => end(),
            Self::Fail => failed(),
            Self::EndWith(number) => end_naming(&artifact(*number)),
            Self::WaitForRuns { runs, mode, until_ms } => {
                // Sometimes one that nobody knows.
                let one = |run: &u8| match run {
                    0 => Some(run_id("never-heard-of")),
                    run => one_of(accepted, *run),
                };
                let runs = runs.iter().filter_map(one).collect();
                let at = until_ms.map(|later| Timestamp(now + later));
                vec![blocked(Wait::Runs { runs, mode: *mode, at })]
            }
            Self::WaitForTime { until_ms } => {
                vec![blocked(Wait::Time { at: Timestamp(now + until_ms) })]
            }
            Self::Pause => vec![blocked(Wait::Word)],
            Self::PauseOver { until_ms } => {
                let until = until_ms.map(|later| Timestamp(now + later));
                machine::decide::pause(run, "b", None, until).unwrap_or_default()
            }
            Self::Resume => machine::decide::resume(run, "b", None, &[]).unwrap_or_default(),
            Self::Lose => machine::decide::lose(run, Timestamp(now), None),
            Self::Release => machine::decide::release(run, 0, Timestamp(0)),
            Self::Adopt(number) => machine::decide::adopted(run, &pin(*number), "b"),
        };
        let mut state = run.state.clone();
        for event in &events {
            let (seq, event) = (state.head + 1, event.clone());
            let recorded = EventRecord { seq, id: 0, at: Timestamp(now), event };
            state = machine::apply(state, &recorded).ok()?;
        }
        (!events.is_empty()).then_some(events)
    }
}

fn creations() -> impl Strategy<Value = Create> {
    let key = (option::of((0..3_u8, 0..2_u8)), option::weighted(0.3, 0..3_000_u64));
    let place = (0..24_u8, option::weighted(0.6, any::<u8>()), 0..2_u8, 0..2_u8);
    let kind = (-1..2_i32, 0..2_u8, prop_oneof![4 => Just(0_u8), 1 => Just(1)]);
    let class = prop_oneof![3 => Just(RunClass::Task), 1 => Just(RunClass::Heartbeat)];
    let flags = (proptest::bool::weighted(0.3), proptest::bool::weighted(0.8), class);
    let delivery = option::weighted(0.5, option::weighted(0.7, 0..2_u8));
    let nudge = (option::weighted(0.6, 0..300_u16), prop_oneof![3 => Just(0_u8), 2 => 1..4_u8]);
    let ends = (
        proptest::bool::weighted(0.2),
        option::weighted(0.4, 0..3_u8),
        any::<bool>(),
        (delivery, nudge),
    );
    let bound = |max| prop_oneof![4 => Just(u64::MAX), 1 => 0..max];
    let admission = (bound(4_u64), bound(5_u64), option::weighted(0.2, 0..3_u32));
    let subscribers = vec((0..3_u8, any::<bool>()), 0..3);
    (place, key, kind, (flags, ends), (admission, subscribers)).prop_map(
        |(
            (id, parent, owner, session),
            (key, completed_since),
            (priority, agent, pin),
            ((serial, durable, class), (finalizer, name, attached, (delivery, nudge))),
            ((queue_max, tree_max, at_once), subscribers),
        )| Create {
            id,
            parent,
            key,
            completed_since,
            owner,
            session,
            priority,
            agent,
            pin,
            serial,
            durable,
            finalizer,
            name,
            attached,
            delivery,
            nudges: nudge.0,
            nudge_for: nudge.1,
            class,
            subscribers,
            admission: Admission { queue_max, tree_max, at_once },
        },
    )
}

fn changes() -> impl Strategy<Value = Change> {
    let mode = prop_oneof![Just(WaitMode::All), Just(WaitMode::Any)];
    let until = option::weighted(0.4, 0..800_u64);
    let runs = (vec(0..64_u8, 0..4), mode, until)
        .prop_map(|(runs, mode, until_ms)| ChangeKind::WaitForRuns { runs, mode, until_ms });
    let what = prop_oneof![
        2 => Just(ChangeKind::Note),
        2 => Just(ChangeKind::Reported),
        2 => Just(ChangeKind::Decided),
        1 => Just(ChangeKind::Fail),
        1 => Just(ChangeKind::AskToCancel),
        1 => Just(ChangeKind::Cancel),
        1 => Just(ChangeKind::Finalize),
        2 => Just(ChangeKind::End),
        2 => (0..ARTIFACTS).prop_map(ChangeKind::EndWith),
        5 => runs,
        1 => (0..800_u64).prop_map(|until_ms| ChangeKind::WaitForTime { until_ms }),
        1 => Just(ChangeKind::Pause),
        3 => option::weighted(0.4, 0..800_u64).prop_map(|until_ms| ChangeKind::PauseOver { until_ms }),
        3 => Just(ChangeKind::Resume),
        2 => Just(ChangeKind::Lose),
        1 => Just(ChangeKind::Release),
        3 => (0..3_u8).prop_map(ChangeKind::Adopt),
    ];
    let flags = (proptest::bool::weighted(0.05), proptest::bool::weighted(0.05));
    let kinds = vec(what, 3..8);
    let reports = option::weighted(0.3, (any::<bool>(), vec(any::<u8>(), 1..4)));
    let change = (any::<u8>(), kinds, reports, any::<u64>(), flags);
    change.prop_map(|(run, kinds, reports, event_id, flags)| Change {
        run,
        kinds,
        reports,
        event_id: event_id / 2,
        stale: flags.0,
        wrong_epoch: flags.1,
    })
}

fn removals() -> impl Strategy<Value = Removal> {
    let session = option::weighted(0.3, (0..2_u8).prop_map(|session| format!("s-{session}")));
    let owner = option::weighted(0.3, (0..2_u8).prop_map(|owner| format!("o-{owner}")));
    let tenant = prop_oneof![Just("acme"), Just("nobody")];
    let scope = (tenant, owner, session).prop_map(|(tenant, owner, session)| Scope {
        owner_user_id: owner,
        parent_session_id: session,
        ..Scope::tenant(tenant)
    });
    let scope = option::weighted(0.5, scope);
    (scope, 0..8_000_u64, 0..4_usize, any::<bool>()).prop_map(|(scope, before, limit, dry_run)| {
        Removal { scope, before: Timestamp(before), limit, dry_run }
    })
}

/// Some steps, one after another.
pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let slots = prop_oneof![1..4_u32, Just(u32::MAX)];
    let kind = prop_oneof![4 => Just(0_u8), 1 => Just(1)];
    let also = option::weighted(0.3, 0..2_u8);
    let claim = (0..3_u8, kind, 0..6_usize, slots, also).prop_map(
        |(host, pin, limit, tree_slots, also)| {
            Step::Claim(ClaimStep { host, pin, limit, tree_slots, also })
        },
    );
    let status = proptest::sample::subsequence(Status::ALL.to_vec(), 0..3);
    let (owner, tree) = (option::of(0..2_u8), option::weighted(0.3, 0..24_u8));
    let (name, since) = (option::weighted(0.3, 0..3_u8), option::of(0..6_000_u64));
    let list = (owner, status, tree, (name, since), 0..5_usize).prop_map(
        |(owner, status, tree, (name, since), limit)| Step::List {
            owner,
            status,
            tree,
            name,
            since,
            limit,
        },
    );
    let read = (0..24_u8, 0..6_u64, 0..6_usize);
    let held = (0..3_u8, option::of(0..24_u8), 0..5_usize);
    let batch = (0..24_u8, 0..2_u8, 0..4_u8, 1..4_usize, proptest::bool::weighted(0.1)).prop_map(
        |(id, agent, tick, entries, wrong_epoch)| {
            Step::Batch(Batch { id, agent, tick, entries, wrong_epoch })
        },
    );
    let entries = (0..2_u8, 0..4_usize).prop_map(|(agent, limit)| Step::Entries { agent, limit });
    let query = prop_oneof![
        any::<u8>().prop_map(ReportsOf::Tree),
        (0..2_u8, 0..2_u8).prop_map(|(session, owner)| ReportsOf::Conversation { session, owner }),
        option::of(0..2_u8).prop_map(|owner| ReportsOf::All { owner }),
        Just(ReportsOf::Due),
    ];
    let reports = (query, prop_oneof![Just(0_u64), 0..200_u64], 0..6_usize)
        .prop_map(|(query, after, limit)| Step::Reports { query, after, limit });
    let changes_of =
        [ReportChange::Retry, ReportChange::Drop, ReportChange::Quiet, ReportChange::Block];
    let change = proptest::sample::select(changes_of.to_vec());
    let settled = prop_oneof![
        2 => Just(Settled::Delivered),
        3 => option::weighted(0.8, 0..800_u64).prop_map(|pause_ms| Settled::Failed { pause_ms }),
        1 => Just(Settled::Released),
    ];
    let of = prop_oneof![any::<u8>().prop_map(Ok), option::of(0..2_u8).prop_map(Err)];
    let dispatch = prop_oneof![
        2 => vec(0..3_u8, 0..3).prop_map(|subscribers| Step::NextDispatch { subscribers }),
        4 => (0..3_u8, 0..3_u8, 0..5_usize).prop_map(|(subscriber, host, limit)| {
            Step::TakeDispatches { subscriber, host, limit }
        }),
        4 => (1..30_u64, 0..3_u8, settled)
            .prop_map(|(number, host, outcome)| Step::SettleDispatch { number, host, outcome }),
        2 => (of, 0..20_u64, 0..9_usize)
            .prop_map(|(of, after, limit)| Step::Dispatches { of, after, limit }),
        1 => (1..30_u64, change.clone())
            .prop_map(|(number, change)| Step::ChangeDispatch { number, change }),
    ];
    let dispatch = prop_oneof![
        30 => dispatch,
        1 => (0..2_u8).prop_map(|owner| Step::ForgetDispatches { owner }),
    ];
    let step = prop_oneof![
        4 => batch,
        1 => entries,
        8 => creations().prop_map(Step::Create),
        10 => claim,
        14 => changes().prop_map(Step::Append),
        1 => Just(Step::Repeat),
        2 => list,
        1 => read.prop_map(|(id, after, limit)| Step::Read { id, after, limit }),
        3 => (any::<u8>(), 0..ARTIFACTS).prop_map(|(run, number)| Step::Artifact { run, number }),
        2 => removals().prop_map(Step::Remove),
        1 => (0..2_u8, option::of(0..2_u8))
            .prop_map(|(session, owner)| Step::OpenSession { session, owner }),
        // Rarely, as nothing is created after it.
        1 => (0..40_u8, option::of(0..2_u8))
            .prop_map(|(session, owner)| Step::EndSession { session, owner }),
        1 => (0..2_u8, option::of(0..2_u8), 1..6_usize)
            .prop_map(|(session, owner, limit)| Step::ReadSession { session, owner, limit }),
        1 => (0..3_u8, 0..2_u8, 0..4_u32)
            .prop_map(|(host, pin, slots)| Step::Register { host, pin, slots }),
        1 => (0..3_u8).prop_map(|host| Step::Retire { host }),
        1 => held.prop_map(|(host, after, limit)| Step::Held { host, after, limit }),
        1 => Just(Step::Orphans),
        4 => reports,
        8 => dispatch,
        2 => (any::<u8>(), change).prop_map(|(run, change)| Step::ChangeReport { run, change }),
    ];
    vec(step, 1..120)
}
