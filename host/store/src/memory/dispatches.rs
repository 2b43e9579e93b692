//! Dispatches of runs.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use taskrun_journal::dispatch::{
    AttemptOutcome, CLOCK_LEEWAY, Dispatch, DispatchKey, DispatchState, LATEST_LOOK, TaskEvent,
    is_overlong, keeps_host,
};
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::list::Scope;
use taskrun_journal::schedule;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{DispatchClaim, DispatchQuery, ReportChange};
use taskrun_journal::time::Timestamp;

use super::state::State;

#[derive(Clone, Default)]
pub(super) struct DispatchTable {
    /// The number of the last one that was ever made.
    last: u64,
    rows: BTreeMap<u64, Dispatch>,
    /// Those that are still to be handed over, by subscriber.
    open: HashMap<String, BTreeSet<(Timestamp, u64)>>,
    of_runs: HashMap<RunId, BTreeSet<u64>>,
}

impl DispatchTable {
    pub(super) fn add(&mut self, spec: &RunSpec, event: TaskEvent, due: Timestamp) {
        for subscriber in schedule::subscribers(spec, event) {
            let key =
                DispatchKey { run: spec.id.clone(), event, subscriber: subscriber.to_owned() };
            let of_run = self.of_runs.entry(spec.id.clone()).or_default();
            if of_run.iter().any(|number| self.rows.get(number).is_some_and(|row| row.key == key)) {
                continue;
            }
            self.last += 1;
            of_run.insert(self.last);
            self.put(Dispatch {
                number: self.last,
                key,
                state: DispatchState::Pending,
                due,
                attempts: 0,
                taken_by: None,
                error: None,
            });
        }
    }

    fn put(&mut self, row: Dispatch) {
        if row.state.is_open() {
            let open = self.open.entry(row.key.subscriber.clone()).or_default();
            open.insert((row.due, row.number));
        }
        self.rows.insert(row.number, row);
    }

    fn pull(&mut self, number: u64) -> Option<Dispatch> {
        let row = self.rows.remove(&number)?;
        if let Some(open) = self.open.get_mut(&row.key.subscriber) {
            open.remove(&(row.due, number));
        }
        Some(row)
    }

    fn alter(&mut self, number: u64, change: impl FnOnce(&mut Dispatch)) {
        if let Some(mut row) = self.pull(number) {
            change(&mut row);
            self.put(row);
        }
    }

    fn open_of(&self, subscriber: &str) -> impl Iterator<Item = &Dispatch> {
        let open = self.open.get(subscriber).into_iter().flatten();
        open.filter_map(|(_, number)| self.rows.get(number))
    }

    /// Those of a subscriber that were put off before the clock was set back.
    fn overlong(&self, subscriber: &str, now: Timestamp) -> impl Iterator<Item = u64> {
        let open = self.open.get(subscriber).into_iter().flatten().rev();
        let latest = open.take_while(move |(due, _)| *due > now.plus(CLOCK_LEEWAY));
        let latest = latest.take(LATEST_LOOK).filter_map(|(_, number)| self.rows.get(number));
        let overlong =
            latest.filter(move |row| is_overlong(row.state, row.attempts, row.due.since(now)));
        overlong.map(|row| row.number)
    }

    /// True if a host has something due soon for one of its subscribers.
    pub(super) fn keep_host(&self, subscribers: &BTreeSet<String>) -> bool {
        let mut open = subscribers.iter().flat_map(|one| self.open_of(one));
        open.any(|row| keeps_host(row.attempts))
    }

    /// True if a dispatch of a run is still to be handed over.
    pub(super) fn is_open(&self, run: &RunId) -> bool {
        let mut rows = self.of_run(run);
        rows.any(|row| row.state.is_open())
    }

    fn of_run(&self, run: &RunId) -> impl Iterator<Item = &Dispatch> {
        let numbers = self.of_runs.get(run).into_iter().flatten();
        numbers.filter_map(|number| self.rows.get(number))
    }

    pub(super) fn remove(&mut self, run: &RunId) {
        for number in self.of_runs.remove(run).unwrap_or_default() {
            self.pull(number);
        }
    }

    fn drop_one(&mut self, number: u64) {
        if let Some(row) = self.pull(number)
            && let Some(numbers) = self.of_runs.get_mut(&row.key.run)
        {
            numbers.remove(&number);
        }
    }

    pub(super) fn settle(&mut self, number: u64, host: &HostId, outcome: AttemptOutcome) -> bool {
        let may = self.rows.get(&number).is_some_and(|row| row.takes(host, &outcome));
        if may {
            self.alter(number, |row| row.end_attempt(outcome));
        }
        may
    }

    pub(super) fn change(&mut self, number: u64, change: ReportChange) -> bool {
        let known = self.rows.get(&number);
        if !known.is_some_and(|row| change.applies_to_dispatch(row.state)) {
            return false;
        }
        match change {
            ReportChange::Retry => {
                self.alter(number, |row| {
                    (row.state, row.due) = (DispatchState::Pending, Timestamp(0));
                    row.attempts = 0;
                });
            }
            ReportChange::Drop => self.drop_one(number),
            ReportChange::Quiet | ReportChange::Block => return false,
        }
        true
    }
}

impl State {
    pub(super) fn next_dispatch(
        &self,
        subscribers: &BTreeSet<String>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let mut overlong = subscribers.iter().flat_map(|one| self.dispatches.overlong(one, now));
        if overlong.next().is_some() {
            return Some(Timestamp(0));
        }
        let open = subscribers.iter().flat_map(|one| self.dispatches.open_of(one));
        open.map(|row| if self.is_left(row) { Timestamp(0) } else { row.due }).min()
    }

    /// True for one that is taken by a host which is in the list no more.
    fn is_left(&self, row: &Dispatch) -> bool {
        row.taken_by.as_ref().is_some_and(|host| !self.hosts.contains_key(host))
    }

    pub(super) fn take_dispatches(&mut self, claim: DispatchClaim) -> Vec<Dispatch> {
        let open = self.dispatches.open_of(&claim.subscriber);
        let left: Vec<u64> = open.filter(|row| self.is_left(row)).map(|row| row.number).collect();
        for number in left {
            self.dispatches.alter(number, |row| {
                (row.state, row.taken_by, row.due) = (DispatchState::Pending, None, Timestamp(0));
            });
        }
        let overlong: Vec<u64> = self.dispatches.overlong(&claim.subscriber, claim.now).collect();
        for number in overlong {
            self.dispatches.alter(number, |row| {
                let is_taken = row.state == DispatchState::Taken;
                row.due = if is_taken { claim.until } else { Timestamp(0) };
            });
        }
        let open = self.dispatches.open_of(&claim.subscriber);
        let due = open.take_while(|row| row.due <= claim.now).take(claim.limit);
        let due: Vec<u64> = due.map(|row| row.number).collect();
        for number in &due {
            self.dispatches.alter(*number, |row| {
                (row.state, row.due) = (DispatchState::Taken, claim.until);
                row.taken_by = Some(claim.host.clone());
            });
        }
        due.iter().filter_map(|number| self.dispatches.rows.get(number).cloned()).collect()
    }

    pub(super) fn list_dispatches(
        &self,
        query: &DispatchQuery,
        after: u64,
        limit: usize,
    ) -> Vec<Dispatch> {
        let rows = self.dispatches.rows.range(after.saturating_add(1)..).map(|(_, row)| row);
        let asked = rows.filter(|row| match query {
            DispatchQuery::Run(run) => row.key.run == *run,
            DispatchQuery::Scope { scope, states } => {
                states.contains(&row.state) && self.is_admitted(scope, row)
            }
        });
        asked.take(limit).cloned().collect()
    }

    fn is_admitted(&self, scope: &Scope, row: &Dispatch) -> bool {
        self.runs.get(&row.key.run).is_some_and(|entry| scope.admits(&entry.run))
    }

    /// Forgets those of the runs that a caller sees which are still to be handed over.
    pub(super) fn forget_dispatches(&mut self, scope: &Scope) -> u64 {
        let rows = self.dispatches.rows.values();
        let open = rows.filter(|row| row.state.is_open() && self.is_admitted(scope, row));
        let numbers: Vec<u64> = open.map(|row| row.number).collect();
        numbers.iter().for_each(|number| self.dispatches.drop_one(*number));
        numbers.len() as u64
    }
}
