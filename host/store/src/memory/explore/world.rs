//! One state of the explored runs and hosts, and the steps out of it.

mod properties;

use std::collections::BTreeSet;
use std::fmt::Write;

use taskrun_journal::event::Event;
use taskrun_journal::hold::{Hold, Wait, WaitMode};
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::machine::decide::{self, Outcome};
use taskrun_journal::question::{Answer, AwaitItem, Item};
use taskrun_journal::run::{Lifecycle, Run};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::{BlockedOn, Status, StopReason};
use taskrun_journal::store::{AppendOutcome, CreateOutcome};
use taskrun_journal::time::Timestamp;

use crate::fixtures::{self, append, new_run, wish};
use crate::memory::state::State;

/// The tree that the runs form. The first run starts the others, or each the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Two runs, the second one attached to the first.
    Pair,
    /// Three runs, each attached to the one before.
    Chain,
    /// Three runs of one session, two of them started by the first and serial, one of these
    /// attached.
    Siblings,
}

/// The kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edge {
    /// A step that hosts take of themselves, or the passing of time.
    Work,
    /// A request from outside.
    Request,
    /// A host dies.
    Crash,
}

/// The steps that may still be taken but a few times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StepBudget {
    crashes: u8,
    cancel: u8,
    pause: u8,
    resume: u8,
    answer: u8,
    questions: u8,
}

/// One state.
#[derive(Clone)]
pub(super) struct World {
    store: State,
    shape: Shape,
    now: Timestamp,
    /// The number of deaths of each host; its successor has another name.
    deaths: [u8; 2],
    left: StepBudget,
}

/// Runs that a host executes at once.
const SLOTS: usize = 2;
/// Runs of the tree that are held at once.
const TREE_SLOTS: u32 = 2;
/// Length of a pause with an end.
const PAUSE_MS: u64 = 10_000;

fn id(number: usize) -> RunId {
    RunId::new(&format!("r{number}")).expect("a valid id")
}

fn spec(shape: Shape, number: usize) -> RunSpec {
    let parent = (number > 0).then(|| match shape {
        Shape::Pair | Shape::Chain => id(number - 1),
        Shape::Siblings => id(0),
    });
    let is_sibling = shape == Shape::Siblings && number > 0;
    RunSpec {
        attached: parent.is_some() && !(is_sibling && number == 2),
        parent_run_id: parent,
        root_run_id: id(0),
        serial: is_sibling,
        ..fixtures::spec(&id(number))
    }
}

fn asked() -> Event {
    let what = AwaitItem::Clarification {
        id: "q".to_owned(),
        question: "which?".to_owned(),
        missing_fields: Vec::new(),
        restrict_to_tool: None,
        example_input: None,
        clarifying_prompt: None,
    };
    Event::Asked { item: Box::new(Item { what, tool_call_id: None, until: None, default: None }) }
}

impl World {
    /// The state in which the first run is accepted.
    pub(super) fn new(shape: Shape, crashes: u8, requests: u8) -> Self {
        let left = StepBudget {
            crashes,
            cancel: requests,
            pause: requests,
            resume: requests,
            answer: requests,
            questions: requests,
        };
        let (store, now, deaths) = (State::default(), Timestamp(1), [0; 2]);
        let mut world = Self { store, shape, now, deaths, left };
        assert!(matches!(world.create(0), CreateOutcome::New));
        world
    }

    fn runs(&self) -> usize {
        match self.shape {
            Shape::Pair => 2,
            Shape::Chain | Shape::Siblings => 3,
        }
    }

    fn all(&self) -> impl Iterator<Item = (usize, &Run)> {
        (0..self.runs()).filter_map(|number| Some((number, self.run(number)?)))
    }

    fn run(&self, number: usize) -> Option<&Run> {
        self.store.runs.get(&id(number)).map(|entry| &entry.run)
    }

    fn host(&self, number: usize) -> HostId {
        HostId::new(&format!("h{number}.{}", self.deaths[number]))
    }

    fn lives(&self, host: &HostId) -> bool {
        (0..2).any(|number| self.host(number) == *host)
    }

    fn create(&mut self, number: usize) -> CreateOutcome {
        let spec = RunSpec { created_at: self.now, ..spec(self.shape, number) };
        self.store.create(new_run(spec))
    }

    /// The next state after these events of a run; `None` if there are none, or if the store
    /// refuses a wait in a circle.
    fn after(&self, run: &Run, events: Vec<Event>) -> Option<Self> {
        if events.is_empty() {
            return None;
        }
        let mut world = self.clone();
        let appended = world.store.append(append(run, events, run.state.epoch, self.now));
        match appended {
            AppendOutcome::Done => Some(world),
            AppendOutcome::Cycle => None,
            AppendOutcome::Missing
            | AppendOutcome::Conflict
            | AppendOutcome::Gone
            | AppendOutcome::Fenced(_)
            | AppendOutcome::Moved(_) => {
                panic!("{appended:?}")
            }
        }
    }

    /// The steps out of this state.
    pub(super) fn steps(&self) -> Vec<(Edge, String, Self)> {
        let mut steps = Vec::new();
        for host in 0..2 {
            steps.extend(
                self.claimed(host).map(|next| (Edge::Work, format!("h{host} claims"), next)),
            );
            if self.left.crashes > 0 && self.all().any(|(_, run)| self.is_held_by(run, host)) {
                let mut next = self.clone();
                next.left.crashes -= 1;
                next.deaths[host] += 1;
                steps.push((Edge::Crash, format!("h{host} dies"), next));
            }
        }
        for (number, run) in self.all() {
            let mut add = |edge, step: &str, next: Option<Self>| {
                steps.extend(next.map(|next| (edge, format!("r{number} {step}"), next)));
            };
            match run.state.hold.host() {
                Some(host) if self.lives(host) => self.work(number, run, &mut add),
                Some(_) => {
                    add(Edge::Work, "is lost", self.after(run, decide::lose(run, self.now, None)));
                }
                None => {}
            }
            self.requests(run, &mut add);
        }
        if let Some(time) = self.times().into_iter().find(|time| *time > self.now) {
            steps.push((Edge::Work, "time".to_owned(), Self { now: time, ..self.clone() }));
        }
        steps
    }

    fn is_held_by(&self, run: &Run, host: usize) -> bool {
        run.state.hold.host() == Some(&self.host(host))
    }

    fn claimed(&self, host: usize) -> Option<Self> {
        let held = self.all().filter(|(_, run)| self.is_held_by(run, host)).count();
        if held >= SLOTS {
            return None;
        }
        let mut next = self.clone();
        let runs = next.store.claim(&wish(self.host(host), 1, TREE_SLOTS, self.now));
        (!runs.is_empty()).then_some(next)
    }

    /// The steps of the host that executes a run.
    fn work(&self, number: usize, run: &Run, add: &mut impl FnMut(Edge, &str, Option<Self>)) {
        let end = |outcome| self.after(run, decide::end(run, &[], outcome));
        let work = Edge::Work;
        match &run.state.lifecycle {
            Lifecycle::Running { .. } => {}
            Lifecycle::Canceling { .. } => {
                let outcome = Outcome::Answered(StopReason::Done);
                return add(work, "ends canceled", end(outcome));
            }
            Lifecycle::Queued
            | Lifecycle::Blocked { .. }
            | Lifecycle::Finalizing { .. }
            | Lifecycle::Ended { .. } => panic!("r{number} is held and {}", run.status()),
        }
        if run.state.pause.is_some() {
            let over = decide::over(run, self.now);
            return match over.is_empty() {
                true => add(work, "pauses", self.after(run, decide::release(run, 0, Timestamp(0)))),
                false => add(work, "ends its pause", self.after(run, over)),
            };
        }
        add(work, "ends", end(Outcome::Answered(StopReason::Done)));
        let children: Vec<usize> = (1..self.runs())
            .filter(|child| spec(self.shape, *child).parent_run_id == Some(id(number)))
            .collect();
        if let Some(child) = children.iter().find(|child| self.run(**child).is_none()) {
            let mut next = self.clone();
            assert!(matches!(next.create(*child), CreateOutcome::New));
            return add(work, "starts a run", Some(next));
        }
        let runs: Vec<RunId> = children.into_iter().map(id).collect();
        let is_open = |id: &RunId| self.store.is_open(id);
        if runs.iter().any(is_open) {
            for mode in [WaitMode::All, WaitMode::Any] {
                let wait = Wait::Runs { runs: runs.clone(), mode, at: None };
                let blocked = Event::Blocked { on: BlockedOn::Children, wait, ran_ms: 0 };
                add(work, &format!("waits for {mode:?}"), self.after(run, vec![blocked]));
                if runs.len() == 1 {
                    break;
                }
            }
        }
        if self.left.questions > 0 {
            let wait = Wait::Answers { at: None };
            let blocked = Event::Blocked { on: BlockedOn::Input, wait, ran_ms: 0 };
            let next = self.after(run, vec![asked(), blocked]);
            let next = next.map(|mut next| {
                next.left.questions -= 1;
                next
            });
            add(work, "asks", next);
        }
    }

    fn requests(&self, run: &Run, add: &mut impl FnMut(Edge, &str, Option<Self>)) {
        let mut request = |step, left: fn(&mut StepBudget) -> &mut u8, events: Vec<Event>| {
            let mut world = self.clone();
            let times = left(&mut world.left);
            if *times > 0 {
                *times -= 1;
                add(Edge::Request, step, world.after(run, events));
            }
        };
        let cancel = decide::cancel(run, StopReason::CanceledByOwner, None);
        request("is canceled", |left| &mut left.cancel, cancel);
        let pause = |until| decide::pause(run, "b", None, until).unwrap_or_default();
        request("is paused", |left| &mut left.pause, pause(None));
        let until = Some(self.now.plus(std::time::Duration::from_millis(PAUSE_MS)));
        request("is paused for a time", |left| &mut left.pause, pause(until));
        let resume = decide::resume(run, "b", None, &[]).unwrap_or_default();
        request("is resumed", |left| &mut left.resume, resume);
        let is_answerable = match run.status() {
            Status::Running | Status::Blocked => run.state.awaits.iter().any(|one| !one.answered),
            Status::Queued
            | Status::Canceling
            | Status::Finalizing
            | Status::Completed
            | Status::Failed
            | Status::Canceled => false,
        };
        if is_answerable {
            let (item, answer) = ("q".to_owned(), Answer::Text("this".to_owned()));
            let answered = Event::Answered { item, answer, by: "b".to_owned(), by_default: false };
            request("is answered", |left| &mut left.answer, vec![answered]);
        }
    }

    /// All times at which something may happen of itself, in order.
    fn times(&self) -> BTreeSet<Timestamp> {
        let of_hold = |hold: &Hold| match hold {
            Hold::Wanted { not_before, .. } => Some(*not_before),
            Hold::Runs { until, .. } => *until,
            Hold::Nobody | Hold::Beat | Hold::Host { .. } => None,
        };
        let times = self.all().flat_map(|(_, run)| {
            let pause = run.state.pause.as_ref();
            let then = pause.and_then(|pause| pause.then.as_ref()).and_then(of_hold);
            [of_hold(&run.state.hold), pause.and_then(|pause| pause.until), then]
        });
        times.flatten().collect()
    }

    /// The same text for states that differ in positions, epochs, ids and times alone.
    pub(super) fn key(&self) -> String {
        let times: Vec<Timestamp> = self.times().into_iter().filter(|t| *t > self.now).collect();
        let time = |at: Timestamp| times.iter().position(|one| *one == at).map_or(0, |at| at + 1);
        // The two hosts are alike: they are told apart by the first run that they hold.
        let mut named: Vec<HostId> = Vec::new();
        let mut host = |host: &HostId| {
            if !self.lives(host) {
                return 9;
            }
            named.iter().position(|one| one == host).unwrap_or_else(|| {
                named.push(host.clone());
                named.len() - 1
            })
        };
        let mut hold_text = |hold: &Hold| match hold {
            Hold::Nobody => "-".to_owned(),
            Hold::Beat => "b".to_owned(),
            Hold::Wanted { lane, not_before } => format!("w{lane:?}{}", time(*not_before)),
            Hold::Runs { runs, mode, until } => {
                format!("r{runs:?}{mode:?}{:?}", until.map(time))
            }
            Hold::Host { host: name } => format!("h{}", host(name)),
        };
        let mut key = format!("{:?}", self.left);
        for (number, run) in self.all() {
            let state = &run.state;
            let _ = write!(key, "|{number}{}", run.status());
            match &state.lifecycle {
                Lifecycle::Queued | Lifecycle::Running { .. } => {}
                Lifecycle::Blocked { on, .. } => key.push_str(on.as_str()),
                Lifecycle::Canceling { by, .. } => key.push_str(by.as_str()),
                Lifecycle::Finalizing { ending, .. } | Lifecycle::Ended { ending, .. } => {
                    key.push_str(ending.stop_reason.as_str());
                }
            }
            key.push_str(&hold_text(&state.hold));
            if let Some(pause) = &state.pause {
                let then = pause.then.as_ref().map(&mut hold_text);
                let _ = write!(key, "p{:?}{then:?}", pause.until.map(time));
            }
            let answered = state.awaits.iter().map(|one| one.answered);
            let _ = write!(key, "{:?}{}", answered.collect::<Vec<_>>(), state.crashes.in_a_row);
            key.push_str(&self.store.index_of(run.id(), time));
        }
        key
    }
}
