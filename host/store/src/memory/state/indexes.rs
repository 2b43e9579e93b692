//! The places of runs in the queue, in lists and in other indexes.

use std::cmp::Reverse;
use std::convert::Infallible;

use taskrun_journal::hold::Hold;
use taskrun_journal::ids::RunId;
use taskrun_journal::list::{
    Cursor, ENDS_MAX, EndedRun, ListFilter, Page, Scope, TreePage, TreeQuery,
};
use taskrun_journal::pin::Pins;
use taskrun_journal::run::{Lifecycle, Run};
use taskrun_journal::schedule::{self, Rank, WaitState};
use taskrun_journal::status::Status;
use taskrun_journal::time::Timestamp;

use super::{Entry, State, is_open};
use crate::memory::lists::ListKey;
use crate::memory::queue::QueuePosition;

impl State {
    /// Keeps in mind that the result of a run may be used again.
    pub(super) fn keep_task(&mut self, run: &Run, number: u64) {
        if run.status() == Status::Completed
            && let Some(task) = self.runs.get(run.id()).and_then(|entry| entry.task)
        {
            let completed = self.tasks.entry(task).or_default();
            completed.insert((run.state.updated_at, number), run.id().clone());
        }
    }

    /// Puts a run where its hold says.
    pub(super) fn place(&mut self, id: &RunId) {
        let Some(entry) = self.runs.get(id) else { return };
        let Ok::<_, Infallible>(place) = schedule::place(&entry.run.state.hold, |all| {
            let open = all.iter().filter(|id| is_open(&self.runs, id));
            Ok(open.map(|id| (*id).clone()).collect())
        });
        let wanted = place.wanted();
        if let WaitState::Behind { open, mode, until: _ } = place {
            self.waits.begin(id, open, mode);
        }
        if let Some(entry) = self.runs.get_mut(id) {
            entry.wanted = wanted;
        }
        self.reposition(id);
    }

    /// Puts a run where it belongs in the queue.
    pub(super) fn reposition(&mut self, id: &RunId) {
        let Some(entry) = self.runs.get_mut(id) else { return };
        let (spec, wanted) = (&entry.run.spec, entry.wanted);
        let pins = self.queue.number(Pins::of(&entry.run));
        let is_behind = || {
            let first = self.queue.first_serial(&schedule::turn_of(spec));
            Ok::<_, Infallible>(first != Some(id))
        };
        let rank = wanted.filter(|(_, time)| *time <= self.now).and_then(|(lane, _)| {
            let Ok(behind) = schedule::waits_its_turn(lane, spec.serial, is_behind);
            (!behind).then(|| Rank::of(spec, lane, entry.number))
        });
        let time = wanted.map(|(_, time)| time).filter(|time| time.0 > 0);
        let position = QueuePosition { wanted: wanted.is_some(), rank, time, pins };
        let place = (Reverse(spec.priority), entry.number);
        if rank.is_some() && entry.run.status() == Status::Finalizing {
            self.finalizers.insert(place, id.clone());
        } else {
            self.finalizers.remove(&place);
        }
        self.stirred |= self.queue.reposition(spec, entry.position, position);
        entry.position = position;
    }

    /// Moves the runs whose time has come, or has not come yet by this clock.
    pub(in crate::memory) fn set_now(&mut self, now: Timestamp) {
        let was = std::mem::replace(&mut self.now, now);
        let (from, to) = (was.min(now), was.max(now));
        if from < to {
            for id in self.queue.between(from, to) {
                self.reposition(&id);
            }
        }
    }

    pub(super) fn index(&mut self, run: &Run, number: u64) {
        self.lists.add(run);
        self.index_state(run, number);
    }

    /// Has a run stand where its record says, and no longer where the one before said.
    pub(super) fn reindex(&mut self, (old, run): (&Run, &Run), number: u64) {
        self.lists.change(old, run);
        self.unindex_state(old, number);
        self.index_state(run, number);
    }

    fn index_state(&mut self, run: &Run, number: u64) {
        let id = run.id();
        if run.state.hold == Hold::Beat {
            self.entries.add(run, number);
        }
        if let Lifecycle::Ended { finished_at, .. } = run.state.lifecycle {
            self.ended.insert((finished_at, number), id.clone());
        }
        if let Some(host) = run.state.hold.host() {
            self.held.entry(host.clone()).or_default().insert(id.clone());
        }
    }

    /// Forgets that a run's result may be used again.
    pub(in crate::memory) fn forget_task(&mut self, entry: &Entry) {
        let Some(task) = entry.task else { return };
        if let Some(completed) = self.tasks.get_mut(&task) {
            completed.remove(&(entry.run.state.updated_at, entry.number));
            if completed.is_empty() {
                self.tasks.remove(&task);
            }
        }
    }

    pub(in crate::memory) fn unindex(&mut self, run: &Run, number: u64) {
        self.lists.remove(run);
        self.unindex_state(run, number);
    }

    fn unindex_state(&mut self, run: &Run, number: u64) {
        let id = run.id();
        if run.state.hold == Hold::Beat {
            self.entries.remove(run, number);
        }
        if let Lifecycle::Ended { finished_at, .. } = run.state.lifecycle {
            self.ended.remove(&(finished_at, number));
        }
        if let Some(host) = run.state.hold.host()
            && let Some(held) = self.held.get_mut(host)
        {
            held.remove(id);
            if held.is_empty() {
                self.held.remove(host);
            }
        }
    }

    pub(in crate::memory) fn list(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Page {
        let mut runs: Vec<Run> = self
            .admitted(scope, filter, after)
            .take(limit.saturating_add(1))
            .map(|entry| entry.run.clone())
            .collect();
        let next = (runs.len() > limit).then(|| runs.truncate(limit)).and_then(|()| runs.last());
        let next =
            next.map(|run| Cursor { updated_at: run.state.updated_at, id: run.id().clone() });
        Page { runs, next }
    }

    pub(in crate::memory) fn ended(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        before: Option<u64>,
        limit: usize,
    ) -> Vec<EndedRun> {
        let Some(filter) = filter.of_ended() else { return Vec::new() };
        let entries = self.admitted(scope, &filter, None).take(ENDS_MAX);
        let mut ends: Vec<(u64, &Entry)> =
            entries.map(|entry| (entry.last_place(), entry)).collect();
        ends.sort_unstable_by_key(|(place, _)| Reverse(*place));
        let earlier =
            ends.into_iter().filter(|(place, _)| before.is_none_or(|before| *place < before));
        earlier
            .take(limit)
            .map(|(place, entry)| EndedRun { place, run: entry.run.clone() })
            .collect()
    }

    pub(in crate::memory) fn tree(
        &self,
        query: &TreeQuery,
        after: Option<u64>,
        limit: usize,
    ) -> TreePage {
        let all = self.lists.runs(&ListKey::of_tree(query)).filter_map(|id| self.runs.get(id));
        let later = all.filter(|entry| after.is_none_or(|after| entry.number > after));
        // Of an earlier root of this id runs may be kept, which may be those of others.
        let mut entries: Vec<&Entry> =
            later.filter(|entry| entry.run.spec.tenant == query.tenant).collect();
        entries.sort_unstable_by_key(|entry| entry.number);
        let more = entries.len() > limit;
        entries.truncate(limit);
        let next = entries.last().filter(|_| more).map(|entry| entry.number);
        TreePage { runs: entries.into_iter().map(|entry| entry.run.clone()).collect(), next }
    }

    /// The runs that scope and filter admit, the one that changed last at the front.
    fn admitted(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        after: Option<&Cursor>,
    ) -> impl Iterator<Item = &Entry> {
        self.lists
            .newest_first(&ListKey::of(scope, filter), after)
            .filter_map(|id| self.runs.get(id))
            .filter(|entry| scope.admits(&entry.run) && filter.admits(&entry.run))
    }
}

#[cfg(test)]
impl State {
    /// The position of a run in the indexes, in words.
    pub(in crate::memory) fn index_of(
        &self,
        id: &RunId,
        time: impl Fn(Timestamp) -> usize,
    ) -> String {
        let Some(entry) = self.runs.get(id) else { return String::new() };
        let QueuePosition { wanted, rank, time: at, pins: _ } = entry.position;
        let lane = entry.wanted.map(|(lane, at)| (lane, time(at)));
        let held = self.queue.held(&entry.run.spec.root_run_id);
        let (behind, at) = (self.waits.open_of(id), at.map(time));
        format!("{wanted}{}{at:?}{lane:?}{held}{behind:?}", rank.is_some())
    }
}
