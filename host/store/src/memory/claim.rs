//! Claims: the runs that a host takes from the queue.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::convert::Infallible;

use taskrun_journal::hold::{Hold, Lane};
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::pin::Pins;
use taskrun_journal::run::Run;
use taskrun_journal::schedule::{self, ClaimCounts, NextRun, Rank};
use taskrun_journal::status::Status;
use taskrun_journal::store::{Claim, CreateOutcome, NewRun, Prospect, Stay};
use taskrun_journal::time::Timestamp;

use super::state::State;

impl State {
    pub(super) fn claim(&mut self, claim: &Claim) -> Vec<Run> {
        self.set_now(claim.now);
        let mut runs = Vec::new();
        let mut taken = ClaimCounts::new(claim);
        loop {
            let Ok::<_, Infallible>(next) = schedule::next_claimed(
                claim,
                taken,
                |lane| {
                    let first = self.queue.first((&claim.ready, lane), claim.tree_slots);
                    Ok(first.map(|(_, id)| id))
                },
                || Ok(self.first_finalizer(claim)),
            );
            let Some(NextRun { run: id, is_finalizer }) = next else { break };
            let Some(entry) = self.runs.get(id) else { break };
            let claimed = schedule::claimed(entry.run.clone(), &claim.host, claim.now);
            let Ok(Some((run, recorded))) = claimed else {
                unreachable!("a wanted run can be claimed: {claimed:?}")
            };
            taken.add(&run, is_finalizer);
            runs.push(run.clone());
            self.replace(run, [recorded].into());
        }
        runs
    }

    /// Keeps a run and then takes some. If it is taken it is no work for others.
    pub(super) fn create_and_claim(
        &mut self,
        new: NewRun,
        claim: &Claim,
    ) -> (CreateOutcome, Vec<Run>) {
        let (id, was_stirred) = (new.run.id().clone(), self.stirred);
        let created = self.create(new);
        if !created.is_new() {
            return (created, Vec::new());
        }
        let is_stirred = std::mem::replace(&mut self.stirred, was_stirred);
        let runs = self.claim(claim);
        if !runs.iter().any(|run| *run.id() == id) {
            self.stirred |= is_stirred;
        }
        (created, runs)
    }

    pub(super) fn prospect(&self, claim: &Claim) -> Prospect {
        let moves = claim.now != self.now && self.queue.has_between(self.now, claim.now);
        let all = (&claim.ready, Lane::Resume);
        let first = || self.queue.first(all, claim.tree_slots).is_some();
        if moves || first() || self.first_finalizer(claim).is_some() {
            return Prospect::Claim;
        }
        match self.queue.firsts().next() {
            Some(_) => Prospect::Unready,
            None => Prospect::Nothing,
        }
    }

    /// True if a host has a reason to stay.
    pub(super) fn is_needed(&self, host: &HostId, stay: &Stay) -> bool {
        let is_awaited = self.hosts.get(host).is_some_and(|host| {
            let later = stay.until.map_or_else(BTreeMap::new, |until| self.queue.later(until));
            self.queue.is_wanted(&host.ready(), &stay.without, &later)
                || self.entries.are_awaited(&host.agents)
                || self.outbox.are_due(&host.agents)
                || self.dispatches.keep_host(&host.subscribers)
        });
        is_awaited || self.held.contains_key(host)
    }

    /// The run that waits for its finalizer alone and is to be taken first. The owner of whose runs
    /// the fewest are in their finalizers comes first, so that nobody's keep those of others waiting.
    fn first_finalizer(&self, claim: &Claim) -> Option<&RunId> {
        if self.finalizers.is_empty() {
            return None;
        }
        let mut under_way: HashMap<[&str; 2], usize> = HashMap::new();
        for entry in self.held.values().flatten().filter_map(|id| self.runs.get(id)) {
            if entry.run.status() == Status::Finalizing {
                *under_way.entry(owner_of(&entry.run)).or_default() += 1;
            }
        }
        let waiting = self.finalizers.values().filter_map(|id| Some((id, &self.runs.get(id)?.run)));
        let ready = waiting.filter(|(_, run)| claim.ready.includes(&Pins::of(run), Lane::Resume));
        // Of several with as few under way the first is given.
        let first =
            ready.min_by_key(|(_, run)| under_way.get(&owner_of(run)).copied().unwrap_or_default());
        first.map(|(id, _)| id)
    }

    pub(super) fn wanted(&self) -> Vec<Pins> {
        let ids = self.queue.firsts().chain(self.finalizers.values());
        let mut ranked: Vec<_> = ids.filter_map(|id| self.standing_in_queue(id)).collect();
        ranked.sort();
        let mut seen = HashSet::new();
        let pins = ranked.into_iter().map(|(_, pins)| pins);
        pins.filter(|pins| seen.insert(pins.clone())).collect()
    }

    /// Those of open runs, and of those that ended since, each once, sorted.
    pub(super) fn pins(&self, ended_since: Option<Timestamp>) -> Vec<Pins> {
        let is_asked_for = |run: &&Run| {
            !run.status().is_terminal()
                || ended_since.is_some_and(|since| run.state.updated_at >= since)
        };
        let runs = self.runs.values().map(|entry| &entry.run).filter(is_asked_for);
        let pins: BTreeSet<Pins> = runs.map(Pins::of).collect();
        pins.into_iter().collect()
    }

    /// The rank and the pins of a wanted run.
    fn standing_in_queue(&self, id: &RunId) -> Option<(Rank, Pins)> {
        let entry = self.runs.get(id)?;
        let lane = match entry.run.state.hold {
            Hold::Wanted { lane, .. } => lane,
            // It waited for other runs that have ended.
            Hold::Nobody | Hold::Beat | Hold::Runs { .. } | Hold::Host { .. } => Lane::Resume,
        };
        let spec = &entry.run.spec;
        Some((Rank::of(spec, lane, entry.number), Pins::of(&entry.run)))
    }
}

/// The owner of a run, in its tenant.
fn owner_of(run: &Run) -> [&str; 2] {
    [&run.spec.tenant, &run.spec.owner_user_id]
}
