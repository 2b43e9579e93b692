//! Claims: the runs that a host takes from the queue.

use std::collections::BTreeSet;
use std::convert::Infallible;

use taskrun_journal::ids::RunId;
use taskrun_journal::run::Run;
use taskrun_journal::schedule::{self, ClaimCounts, NextRun};
use taskrun_journal::store::Claim;

use super::state::State;

impl State {
    pub(super) fn claim(&mut self, claim: &Claim) -> Vec<Run> {
        self.set_now(claim.now);
        let mut runs = Vec::new();
        let mut finalizers = 0;
        loop {
            let policy = &claim.policy_digest;
            let is_taken = |id: &RunId| self.is_taken(id, &claim.passing_over);
            let taken = ClaimCounts { runs: runs.len(), finalizers };
            let Ok::<_, Infallible>(next) = schedule::next_claimed(
                claim,
                taken,
                || Ok(self.queue.first(policy, claim.tree_slots, is_taken).map(|(_, id)| id)),
                || Ok(self.first_finalizer(claim)),
            );
            let Some(NextRun { run: id, is_finalizer }) = next else { break };
            finalizers += usize::from(is_finalizer);
            let Some(entry) = self.runs.get(id) else { break };
            let claimed = schedule::claimed(entry.run.clone(), &claim.host, claim.now);
            let Ok(Some((run, recorded))) = claimed else {
                unreachable!("a wanted run can be claimed: {claimed:?}")
            };
            runs.push(run.clone());
            self.replace(run, [recorded].into());
        }
        runs
    }

    fn first_finalizer(&self, claim: &Claim) -> Option<&RunId> {
        let is_of_policy = |id: &&RunId| {
            self.runs.get(*id).is_some_and(|of| of.run.spec.policy_digest == claim.policy_digest)
        };
        let finalizers = self.finalizers.values().filter(is_of_policy);
        finalizers.into_iter().find(|id| self.is_taken(id, &claim.passing_over))
    }

    /// True for a run that is of none of these agents.
    fn is_taken(&self, id: &RunId, passing_over: &BTreeSet<String>) -> bool {
        passing_over.is_empty()
            || self.runs.get(id).is_none_or(|of| !passing_over.contains(&of.run.spec.agent_name))
    }

    pub(super) fn wanted_agents(&self, policy: &str) -> BTreeSet<String> {
        let finalizers = self.finalizers.values();
        let runs = self.queue.firsts(policy).chain(finalizers).filter_map(|id| self.runs.get(id));
        let specs = runs.map(|of| &of.run.spec).filter(|spec| spec.policy_digest == policy);
        specs.map(|spec| spec.agent_name.clone()).collect()
    }
}
