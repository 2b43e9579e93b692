//! The properties of states and of steps.

use std::collections::BTreeSet;

use taskrun_journal::event::Event;
use taskrun_journal::hold::{Hold, Lane, WaitMode};
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::run::Run;
use taskrun_journal::store::AppendOutcome;

use super::World;
use crate::fixtures::{append, wish};

impl World {
    /// True if no host has anything to do, now or later, before somebody asks for it.
    pub(in crate::memory::explore) fn is_settled(&self) -> bool {
        self.all().all(|(number, run)| {
            let is_asked = run.state.awaits.iter().any(|one| !one.answered);
            match &run.state.hold {
                Hold::Nobody => run.status().is_terminal() || run.state.pause.is_some() || is_asked,
                Hold::Runs { runs, until: None, .. } => {
                    runs.iter().any(|id| self.store.is_open(id)) && !self.is_over(&run.state.hold)
                }
                // The one before it is paused, or waits for an answer.
                Hold::Wanted { lane: Lane::Fresh, .. } => self.waits_its_turn(number, run),
                Hold::Runs { until: Some(_), .. }
                | Hold::Beat
                | Hold::Wanted { lane: Lane::Resume, .. }
                | Hold::Host { .. } => false,
            }
        })
    }

    /// True for a wait for runs of which enough have ended.
    fn is_over(&self, hold: &Hold) -> bool {
        let Hold::Runs { runs, mode, .. } = hold else { return false };
        let mut ended = runs.iter().map(|id| !self.store.is_open(id));
        match mode {
            WaitMode::All => ended.all(|ended| ended),
            WaitMode::Any => ended.any(|ended| ended),
        }
    }

    /// True for a serial run before which another one was accepted that has not ended.
    fn waits_its_turn(&self, number: usize, run: &Run) -> bool {
        let is_ahead = |(other, ahead): (usize, &Run)| {
            other < number && ahead.spec.serial && !ahead.status().is_terminal()
        };
        run.spec.serial && self.all().any(is_ahead)
    }

    /// True for a run that a host with free slots takes, as its record and those of others say.
    fn is_wanted(&self, number: usize, run: &Run) -> bool {
        match &run.state.hold {
            Hold::Wanted { lane: Lane::Resume, not_before } => *not_before <= self.now,
            Hold::Wanted { lane: Lane::Fresh, not_before } => {
                *not_before <= self.now && !self.waits_its_turn(number, run)
            }
            hold @ Hold::Runs { until, .. } => {
                self.is_over(hold) || until.is_some_and(|until| until <= self.now)
            }
            Hold::Nobody | Hold::Beat | Hold::Host { .. } => false,
        }
    }

    /// # Errors
    /// The property that the state does not have.
    pub(in crate::memory::explore) fn check(&self) -> Result<(), String> {
        for (number, run) in self.all() {
            let holders: Vec<_> =
                self.store.held.iter().filter(|(_, runs)| runs.contains(run.id())).collect();
            let holder = run.state.hold.host();
            if holders.len() > 1 || holders.first().map(|(host, _)| *host) != holder {
                return Err(format!(
                    "r{number} is held by {holders:?}, and its record says {holder:?}"
                ));
            }
            let parent = run.spec.parent_run_id.as_ref().filter(|_| run.spec.attached);
            if parent.is_some_and(|parent| !self.store.is_open(parent))
                && taskrun_journal::schedule::takes_children(run.status())
            {
                return Err(format!("r{number} outlives the run to which it is attached"));
            }
            if holder.is_some() && run.state.epoch > 1 {
                let note = Event::AssistantChunk { text: String::new() };
                let late = append(run, vec![note], run.state.epoch - 1, self.now);
                let answer = self.store.clone().append(late);
                if answer != AppendOutcome::Fenced(run.state.epoch) {
                    return Err(format!("a host that lost r{number} wrote on: {answer:?}"));
                }
            }
        }
        let wanted: BTreeSet<&RunId> = self
            .all()
            .filter(|(number, run)| self.is_wanted(*number, run))
            .map(|(_, run)| run.id())
            .collect();
        let taken = self.store.clone().claim(&wish(HostId::new("probe"), 99, u32::MAX, self.now));
        let taken: BTreeSet<&RunId> = taken.iter().map(Run::id).collect();
        match wanted == taken {
            true => Ok(()),
            false => Err(format!("{wanted:?} are wanted and {taken:?} can be claimed")),
        }
    }

    /// # Errors
    /// The property that the step to the next state does not have.
    pub(in crate::memory::explore) fn check_step(&self, next: &Self) -> Result<(), String> {
        for (number, run) in self.all() {
            let Some(after) = next.run(number) else { return Err(format!("r{number} is gone")) };
            let (was, is) = (run.state.hold.host(), after.state.hold.host());
            if was.is_some() && is.is_some() && was != is {
                return Err(format!("r{number} is taken from {was:?} by {is:?}"));
            }
            if run.status().is_terminal() && run != after {
                return Err(format!("r{number} changes after its end"));
            }
        }
        Ok(())
    }
}
