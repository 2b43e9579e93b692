//! Things that can be done to a store, drawn at random.

mod draws;

use taskrun_journal::artifact::Artifact;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::hold::{Wait, WaitMode};
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::machine;
use taskrun_journal::pin::Ready;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunClass;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::store::{Admission, Claim, Removal, ReportChange};
use taskrun_journal::time::Timestamp;

pub(crate) use self::draws::{steps, steps_to_ends};
use crate::common::*;

/// Different artifacts.
const ARTIFACTS: u8 = 3;

/// Reasons for which runs end by themselves, beside that of an answer.
const REASONS: [StopReason; 4] =
    [StopReason::Done, StopReason::MaxCost, StopReason::Deferred, StopReason::AgentError];

/// One thing done to a store.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Create(Create),
    Claim(ClaimStep),
    Append(Change),
    /// A run is claimed, and ends for a reason.
    RunToEnd(StopReason),
    Batch(Batch),
    Entries {
        agent: u8,
        limit: usize,
    },
    Repeat,
    List {
        owner: Option<u8>,
        status: Vec<Status>,
        stop_reason: Vec<StopReason>,
        /// One of those that were accepted.
        tree: Option<u8>,
        name: Option<u8>,
        since: Option<u64>,
        limit: usize,
    },
    Ended {
        owner: Option<u8>,
        session: Option<u8>,
        status: Vec<Status>,
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
    /// Those that are due to conversations of an agent.
    DueTo(u8),
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
    /// If it has a parent or continues a run: the outcome is told, in a conversation of this session
    /// where there is one.
    pub(crate) delivery: Option<Option<u8>>,
    /// The time after its end at which somebody is nudged, if anybody is.
    pub(crate) nudges: Option<u16>,
    /// If it has no parent: it is a nudge for so many of the reports that are due.
    pub(crate) nudge_for: u8,
    /// If it has no parent: the run that it continues, one of those that were accepted. Its outcome is
    /// told as that of a run beneath one would be.
    pub(crate) continues: Option<u8>,
    /// Subscribers, and whether they are told of the acceptance, too.
    pub(crate) subscribers: Vec<(u8, bool)>,
    pub(crate) admission: Admission,
    /// The claim with which it comes.
    pub(crate) claim: Option<ClaimStep>,
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
    resumes: usize,
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
    EndFor(StopReason),
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
    /// One run, whatever its pin.
    pub(crate) fn of_one() -> Self {
        let (tree_slots, also) = (u32::MAX, Some(1));
        Self { host: 0, pin: 0, limit: 1, tree_slots, also, resumes: 0 }
    }

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
            resumes: self.resumes,
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

/// The end of a run for a reason, if it can end.
pub(crate) fn ended_for(reason: StopReason, run: &Run, now: u64) -> Option<Vec<Event>> {
    ChangeKind::EndFor(reason).events(run, now, &[])
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
            Self::EndFor(reason) => end_for(*reason),
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
