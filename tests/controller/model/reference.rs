//! A controller, in as few words as the specification allows: a table of runs, told by
//! the statuses of semantics, section 1, and its rows M-05 to M-32.
//!
//! Which wanted run is taken next is not decided here: claims are taken from the real store, where
//! [`super::process`] holds each of them against the promise of the queue.

use std::collections::{BTreeMap, BTreeSet};

use taskrun_journal::machine::decide::{CRASHES_IN_A_ROW_MAX, CRASHES_MAX};
use taskrun_journal::status::{BlockedOn, Status, StopReason};

use super::known::{End, Kind, Known, State, answered, end};

/// First and longest pause before the run of a dead host is taken up again.
const CRASH_PAUSE_MS: (u64, u64) = (500, 60_000);
/// The time of a guest that hears that it is to stop: the default.
const GRACE_MS: u64 = 5_000;
/// The time of a finalizer, and that of one of a run that was canceled.
const FINALIZER_MS: u64 = 60_000;
const FINALIZER_CANCELED_MS: u64 = 5_000;

/// Waits for the end of its pause and nothing else.
const PAUSED: State = State::Blocked { on: BlockedOn::Pause, until: None, answered: false };

/// All that is known.
#[derive(Default)]
pub(super) struct Model {
    pub(super) runs: BTreeMap<String, Known>,
    pub(super) now: u64,
    pub(super) gates: BTreeSet<String>,
    pub(super) ended_sessions: BTreeSet<usize>,
}

impl Model {
    fn known(&mut self, id: &str) -> &mut Known {
        self.runs.get_mut(id).expect("ids come from the table")
    }

    fn ids(&self, fits: impl Fn(&Known) -> bool) -> Vec<String> {
        self.runs.iter().filter(|(_, run)| fits(run)).map(|(id, _)| id.clone()).collect()
    }

    /// The end of a run, that is first heard by its finalizer if nobody has the run.
    fn finish(&mut self, id: &str, end: End) {
        let run = self.known(id);
        run.paused = false;
        match (run.kind, run.host()) {
            (Kind::Final | Kind::Slow, None) => run.state = State::Finalizing(end),
            (Kind::Final | Kind::Slow, Some(host)) => self.hear_finalizer(id, host, end),
            _ => self.conclude(id, end),
        }
    }

    fn conclude(&mut self, id: &str, end: End) {
        let at = self.now;
        self.known(id).state = State::Ended { end, at };
    }

    fn hear_finalizer(&mut self, id: &str, host: usize, end: End) {
        let (since, open) = (self.now, self.gates.contains(id));
        let run = self.known(id);
        run.state = State::InFinalizer { host, end: end.clone(), since };
        if run.kind == Kind::Final || open {
            run.told = true;
            self.conclude(id, end);
        }
    }

    /// A host took a run.
    ///
    /// # Errors
    /// If it was not to be had.
    pub(super) fn claimed(&mut self, id: &str, host: usize) -> Result<(), String> {
        let now = self.now;
        if !self.runs.contains_key(id) {
            return Err(format!("{id} is not known"));
        }
        let over = self.wait_is_over(id);
        let run = self.known(id);
        match run.state.clone() {
            _ if run.paused => return Err(format!("{id} was taken up while it is paused")),
            State::Finalizing(end) => self.hear_finalizer(id, host, end),
            State::Queued | State::Adrift { .. } => {
                run.state = State::Running { host, since: now };
                self.go_on(id);
            }
            State::Blocked { on: BlockedOn::Pause, answered: false, .. } => {
                run.state = State::Running { host, since: now };
                match run.tool_answered {
                    true => self.finish(id, answered("\"held\"")),
                    false => self.go_on(id),
                }
            }
            State::Blocked { on: BlockedOn::Children, until, .. }
                if run.looks && until.is_none_or(|until| until > now) && !over =>
            {
                self.known(id).looks = false;
                if self.waits_for(id, id) {
                    self.known(id).state = State::Running { host, since: now };
                    self.finish(id, answered("failure:cycle"));
                }
            }
            State::Blocked { answered, until, .. } => {
                let late = until.is_some_and(|until| until <= now);
                if !answered && !late && !self.wait_is_over(id) {
                    return Err(format!("{id} was taken up while it waits"));
                }
                let text = match self.known(id).answer.clone() {
                    Some(text) => Some(text),
                    None if self.known(id).kind == Kind::Ask => Some("failure:timeout".to_owned()),
                    None => None,
                };
                let end = End { result: text, ..answered_somehow() };
                self.known(id).state = State::Running { host, since: now };
                self.finish(id, end);
            }
            // A wait that was over when it began, and one that was over soon after, look alike.
            State::Ended { .. } if run.kind == Kind::Await => {}
            State::Running { .. }
            | State::Canceling { .. }
            | State::InFinalizer { .. }
            | State::Ended { .. } => {
                return Err(format!("{id} was claimed in {:?}", run.state));
            }
        }
        Ok(())
    }

    /// The work of the guest until it parks.
    fn go_on(&mut self, id: &str) {
        let open = self.gates.contains(id);
        let run = self.known(id);
        match run.kind {
            Kind::Quick | Kind::Slow => self.finish(id, answered("quick")),
            Kind::Fail => self.finish(id, end(Status::Failed, StopReason::AgentError)),
            Kind::Gate | Kind::Stubborn | Kind::Final | Kind::Mortal => {
                if open {
                    self.finish(id, answered("released"));
                }
            }
            Kind::Once if run.in_tool => self.finish(id, answered("failure:interrupted")),
            Kind::Again | Kind::Once => {
                if !run.in_tool {
                    // A plan step was decided: it is no longer the same crash again.
                    run.crashes.0 = 0;
                }
                run.in_tool = true;
                if open {
                    self.finish(id, answered("\"held\""));
                }
            }
            Kind::Ask => self.block(id, BlockedOn::Input),
            Kind::Await => self.begin_wait(id),
        }
    }

    fn block(&mut self, id: &str, on: BlockedOn) {
        let now = self.now;
        let run = self.known(id);
        let until = run.wait_ms.map(|ms| now + ms);
        run.state = State::Blocked { on, until, answered: false };
    }

    fn begin_wait(&mut self, id: &str) {
        let run = self.runs[id].clone();
        let visible = |one: &String| self.runs.get(one).is_some_and(|r| r.owner == run.owner);
        if run.awaited.is_empty() || !run.awaited.iter().all(visible) {
            self.finish(id, answered("failure:invalid"));
        } else if self.wait_is_over(id) {
            self.finish(id, answered_somehow());
        } else if self.waits_for(id, id) {
            self.finish(id, answered("failure:cycle"));
        } else {
            self.block(id, BlockedOn::Children);
        }
    }

    /// True if what a run waits for is there.
    pub(super) fn wait_is_over(&self, id: &str) -> bool {
        let run = &self.runs[id];
        let is_open = |one: &String| self.runs.get(one).is_some_and(Known::is_open);
        match run.any {
            _ if run.kind != Kind::Await => false,
            false => !run.awaited.iter().any(is_open),
            true => !run.awaited.iter().all(is_open),
        }
    }

    /// True if a run that began to wait would wait for another, through whichever others.
    fn waits_for(&self, id: &str, other: &str) -> bool {
        let (mut ahead, mut seen) = (self.runs[id].awaited.clone(), BTreeSet::new());
        while let Some(next) = ahead.pop() {
            if next == other {
                return true;
            }
            let waits = |run: &&Known| {
                let is_waiting =
                    matches!(run.state, State::Blocked { on: BlockedOn::Children, .. });
                is_waiting && !run.paused && !run.looks
            };
            if let Some(run) = self.runs.get(&next).filter(waits)
                && !self.wait_is_over(&next)
                && seen.insert(next.clone())
            {
                ahead.extend(run.awaited.iter().cloned());
            }
        }
        false
    }

    /// Pauses a run that has not begun its way out.
    pub(super) fn pause(&mut self, id: &str) {
        let run = self.known(id);
        run.paused = true;
        if let State::Adrift { .. } = run.state {
            run.state = PAUSED;
        }
    }

    /// Resumes it.
    pub(super) fn resume(&mut self, id: &str) {
        let run = self.known(id);
        let was = std::mem::replace(&mut run.paused, false);
        run.looks |= was && matches!(run.state, State::Blocked { on: BlockedOn::Children, .. });
    }

    /// Opens the gate of a run.
    pub(super) fn release(&mut self, id: &str, alive: &BTreeSet<usize>) {
        self.gates.insert(id.to_owned());
        let now = self.now;
        let run = self.known(id);
        match run.state.clone() {
            State::Running { host, since } if alive.contains(&host) => {
                match (run.paused, run.kind) {
                    // What is under way comes to its end, and nothing more begins.
                    (true, Kind::Again | Kind::Once) => {
                        run.tool_answered = true;
                        run.ran_ms += now - since;
                        run.state = PAUSED;
                    }
                    _ => self.go_on_released(id),
                }
            }
            State::Canceling { by, host, .. } if alive.contains(&host) => {
                self.finish(id, end(Status::Canceled, by))
            }
            State::InFinalizer { host, end, .. } if alive.contains(&host) => {
                self.known(id).told = true;
                self.conclude(id, end);
            }
            State::Queued
            | State::InFinalizer { .. }
            | State::Running { .. }
            | State::Canceling { .. }
            | State::Adrift { .. }
            | State::Blocked { .. }
            | State::Finalizing(_)
            | State::Ended { .. } => {}
        }
    }

    fn go_on_released(&mut self, id: &str) {
        match self.known(id).kind {
            Kind::Again | Kind::Once => self.finish(id, answered("\"held\"")),
            Kind::Gate | Kind::Stubborn | Kind::Final | Kind::Mortal => {
                self.finish(id, answered("released"));
            }
            Kind::Quick | Kind::Slow | Kind::Ask | Kind::Await | Kind::Fail => {}
        }
    }

    /// The runs beneath a run.
    pub(super) fn beneath(&self, id: &str) -> Vec<String> {
        let children = self.ids(|run| run.parent.as_deref() == Some(id));
        let deeper: Vec<_> = children.iter().flat_map(|child| self.beneath(child)).collect();
        children.into_iter().chain(deeper).collect()
    }

    /// Cancels one run; says whether that changed anything. A guest on a dead host cannot be asked.
    pub(super) fn cancel(&mut self, id: &str, by: StopReason, alive: &BTreeSet<usize>) -> bool {
        let since = self.now;
        let run = self.known(id);
        match run.state {
            State::Running { host, .. } if run.kind == Kind::Stubborn || !alive.contains(&host) => {
                run.state = State::Canceling { host, by, since };
            }
            State::Queued
            | State::Adrift { .. }
            | State::Blocked { .. }
            | State::Running { .. } => self.finish(id, end(Status::Canceled, by)),
            State::Canceling { .. }
            | State::Finalizing(_)
            | State::InFinalizer { .. }
            | State::Ended { .. } => return false,
        }
        true
    }

    /// Time passes; `hosts` are alive. What dead ones hold stands still.
    pub(super) fn advance(&mut self, ms: u64, alive: &BTreeSet<usize>) {
        self.now += ms;
        let now = self.now;
        for id in self.ids(|run| run.host().is_some_and(|host| alive.contains(&host))) {
            let run = self.known(&id);
            match run.state.clone() {
                State::Running { since, .. } => {
                    if run.timeout_ms.is_some_and(|timeout| now - since >= timeout) {
                        self.finish(&id, end(Status::Failed, StopReason::RunTimeout));
                    }
                }
                State::Canceling { by, since, .. } if now - since >= GRACE_MS => {
                    self.finish(&id, end(Status::Canceled, by));
                }
                State::InFinalizer { end, since, .. } if now - since >= finalizer_ms(&end) => {
                    self.conclude(&id, end);
                }
                State::Canceling { .. }
                | State::InFinalizer { .. }
                | State::Queued
                | State::Adrift { .. }
                | State::Blocked { .. }
                | State::Finalizing(_)
                | State::Ended { .. } => {}
            }
        }
    }

    /// True if the time of a run may be up, as it ran before its host died.
    pub(super) fn may_time_out(&self, run: &Known) -> bool {
        let State::Running { since, .. } = run.state else { return false };
        run.timeout_ms.is_some_and(|timeout| run.ran_ms + self.now - since >= timeout)
    }

    /// The run's time was up.
    pub(super) fn time_out(&mut self, id: &str) {
        self.finish(id, end(Status::Failed, StopReason::RunTimeout));
    }

    /// A wait that was over ended before anybody saw it.
    pub(super) fn wait_ended(&mut self, id: &str) {
        let at = self.now;
        self.known(id).state = State::Ended { end: answered_somehow(), at };
    }

    /// Runs that hosts left behind when they died are found.
    pub(super) fn sweep(&mut self, alive: &BTreeSet<usize>) {
        let now = self.now;
        for id in self.ids(|run| run.host().is_some_and(|host| !alive.contains(&host))) {
            let run = self.known(&id);
            let state = std::mem::replace(&mut run.state, State::Adrift { not_before: 0 });
            if let State::Canceling { by, .. } = state {
                self.finish(&id, end(Status::Canceled, by));
                continue;
            }
            // A finalizer begins once.
            if let State::InFinalizer { end, .. } = state {
                self.conclude(&id, end);
                continue;
            }
            let (in_a_row, total) = run.crashes;
            let killer = in_a_row >= CRASHES_IN_A_ROW_MAX || total >= CRASHES_MAX;
            if run.kind == Kind::Mortal || killer {
                self.finish(&id, end(Status::Failed, StopReason::InterruptedByRestart));
                continue;
            }
            let pause = (CRASH_PAUSE_MS.0 << in_a_row).min(CRASH_PAUSE_MS.1);
            run.crashes = (in_a_row + 1, total + 1);
            run.state = match run.paused {
                true => PAUSED,
                false => State::Adrift { not_before: now + pause },
            };
        }
    }

    /// A host dies: how long its runs ran is known to nobody.
    pub(super) fn kill(&mut self, host: usize) {
        let now = self.now;
        for run in self.runs.values_mut() {
            if let State::Running { host: holder, since } = run.state
                && holder == host
            {
                run.ran_ms += now - since;
            }
        }
    }

    /// A host gives its runs back.
    pub(super) fn hand_over(&mut self, host: usize) {
        self.kill(host);
        for id in self.ids(|run| run.host() == Some(host)) {
            match self.known(&id).state.clone() {
                State::Canceling { by, .. } => self.finish(&id, end(Status::Canceled, by)),
                State::Running { .. } if self.known(&id).paused => self.known(&id).state = PAUSED,
                State::Running { .. } => self.known(&id).state = State::Adrift { not_before: 0 },
                State::InFinalizer { end, .. } => self.conclude(&id, end),
                State::Queued
                | State::Adrift { .. }
                | State::Blocked { .. }
                | State::Finalizing(_)
                | State::Ended { .. } => {}
            }
        }
    }

    /// A host is closed: what runs there is canceled.
    pub(super) fn close(&mut self, host: usize) {
        for id in self.ids(|run| run.host() == Some(host)) {
            match self.known(&id).state.clone() {
                State::InFinalizer { end, .. } => self.conclude(&id, end),
                State::Canceling { by, .. } => self.finish(&id, end(Status::Canceled, by)),
                State::Queued
                | State::Running { .. }
                | State::Adrift { .. }
                | State::Blocked { .. }
                | State::Finalizing(_)
                | State::Ended { .. } => {
                    self.finish(&id, end(Status::Canceled, StopReason::HostShutdown));
                }
            }
        }
    }

    /// Removes what ended before; gives the number of removed and of kept ones.
    pub(super) fn gc(&mut self, before: u64) -> (u64, u64) {
        let old = self.ids(|run| matches!(run.state, State::Ended { at, .. } if at < before));
        let above_open = |id: &String| self.beneath(id).iter().any(|one| self.runs[one].is_open());
        let open = self.ids(Known::is_open);
        let beneath_open: BTreeSet<String> = open.iter().flat_map(|id| self.beneath(id)).collect();
        let needed = |id: &String| beneath_open.contains(id) || above_open(id);
        let (kept, gone): (Vec<_>, Vec<_>) = old.into_iter().partition(needed);
        gone.iter().for_each(|id| {
            self.runs.remove(id);
        });
        (gone.len() as u64, kept.len() as u64)
    }
}

/// An answer that is told by other runs.
fn answered_somehow() -> End {
    end(Status::Completed, StopReason::FinalResponse)
}

fn finalizer_ms(end: &End) -> u64 {
    if end.status == Status::Canceled { FINALIZER_CANCELED_MS } else { FINALIZER_MS }
}
