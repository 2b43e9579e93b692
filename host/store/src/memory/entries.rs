//! Entries that wait for a heartbeat.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use taskrun_journal::ids::RunId;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;

/// The waiting entries of all agents.
#[derive(Clone, Default)]
pub(super) struct Entries {
    by_agent: HashMap<String, Groups>,
}

/// The entries of one agent.
type Groups = BTreeMap<Group, BTreeSet<EntryOrder>>;
/// Tenant, owner, session and application.
type Group = (String, String, String, Option<String>);
/// Priority, order of acceptance, and which: the smaller one comes first.
type EntryOrder = (Reverse<i32>, u64, RunId);

fn group_of(spec: &RunSpec) -> Group {
    let app = spec.parent_app_name.clone();
    (spec.tenant.clone(), spec.owner_user_id.clone(), spec.parent_session_id.clone(), app)
}

fn place_of(spec: &RunSpec, number: u64) -> EntryOrder {
    (Reverse(spec.priority), number, spec.id.clone())
}

impl Entries {
    /// Takes note of an entry that waits.
    pub(super) fn add(&mut self, run: &Run, number: u64) {
        let spec = &run.spec;
        let groups = self.by_agent.entry(spec.agent_name.clone()).or_default();
        groups.entry(group_of(spec)).or_default().insert(place_of(spec, number));
    }

    /// Forgets an entry that waited.
    pub(super) fn remove(&mut self, run: &Run, number: u64) {
        let spec = &run.spec;
        let Some(groups) = self.by_agent.get_mut(&spec.agent_name) else { return };
        let group = group_of(spec);
        let Some(places) = groups.get_mut(&group) else { return };
        places.remove(&place_of(spec, number));
        if places.is_empty() {
            groups.remove(&group);
        }
        if groups.is_empty() {
            self.by_agent.remove(&spec.agent_name);
        }
    }

    /// True if an entry waits for one of these agents.
    pub(super) fn are_awaited(&self, agents: &BTreeSet<String>) -> bool {
        self.by_agent.keys().any(|agent| agents.contains(agent))
    }

    /// The first entries of each group of an agent.
    pub(super) fn waiting(&self, agent: &str, limit: usize) -> Vec<Vec<RunId>> {
        if limit == 0 {
            return Vec::new();
        }
        let groups = self.by_agent.get(agent);
        let first = |places: &BTreeSet<EntryOrder>| {
            places.iter().take(limit).map(|(_, _, id)| id.clone()).collect()
        };
        groups.into_iter().flat_map(|groups| groups.values()).map(first).collect()
    }
}
