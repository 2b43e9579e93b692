//! The agents that are known by their pins, and the bounds of their code.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::agents::{Agent, AgentCode, Agents, CodeSource, LoadFault};

/// Most bytes of native code that is kept ready at once: twenty components of an interpreted language,
/// or thousands of small ones.
const NATIVE_BYTES_MAX: u64 = 512 << 20;

/// The agents that runs are pinned to, as far as they are known.
#[derive(Default)]
pub(super) struct Known {
    /// Counts the changes of the policy: what was loaded under an earlier one is not kept.
    pub(super) generation: u64,
    /// Counts the loads and the runs that began.
    pub(super) begun: u64,
    /// True if there was no room for an agent that is wanted.
    pub(super) is_short: bool,
    pub(super) by_pin: BTreeMap<String, Entry>,
    /// Code of the policies before that runs under way have still.
    pub(super) past: Vec<Weak<AgentCode>>,
}

/// An agent, by its pin.
pub(super) struct Entry {
    /// The agent, once it is known, of a pin that the policy as it is now does not have.
    pub(super) earlier: Option<Arc<Agent>>,
    pub(super) standing: Standing,
    /// The last run that began, or the load, by its number.
    pub(super) used: u64,
}

/// The state of an agent and its code.
pub(super) enum Standing {
    /// It is being looked for, and its code loaded if that is wanted.
    Loading(Want),
    /// The agent is known, and nobody wanted its code.
    Found,
    Ready(Arc<AgentCode>),
    /// It did not load, at this time of the monotonic clock.
    Failed(LoadFault, Duration),
}

/// The parts of a pin that are wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// The agent, which stands above the one of a run.
    Agent,
    /// The agent and its code.
    Code,
}

impl Known {
    /// True if the code of an agent of the policy as it is now is there, or does not load.
    pub(super) fn is_settled(&self, pin: &str, agents: &Agents) -> bool {
        let is_loaded =
            |agent: &Arc<Agent>| matches!(agent.code, CodeSource::Loaded(_)) && agent.pin == pin;
        agents.with_pin(pin).is_some_and(is_loaded)
            || self.by_pin.get(pin).is_some_and(|entry| match entry.standing {
                Standing::Ready(_) | Standing::Failed(..) => true,
                Standing::Loading(_) | Standing::Found => false,
            })
    }

    /// True if the code of one more agent may be loaded. Where there is as much as there may be,
    /// agents of which no run is under way become `cold`, the one whose runs began longest ago before
    /// the others.
    pub(super) fn make_room(
        &mut self,
        agents_max: usize,
        live: &BTreeSet<String>,
        cold: &mut Vec<Standing>,
    ) -> bool {
        self.past.retain(|code| code.strong_count() > 0);
        while self.is_full(agents_max) {
            let idle = self.by_pin.iter_mut().filter(|(pin, entry)| {
                matches!(entry.standing, Standing::Ready(_)) && !live.contains(*pin)
            });
            let Some((_, oldest)) = idle.min_by_key(|(_, entry)| entry.used) else { return false };
            cold.push(std::mem::replace(&mut oldest.standing, Standing::Found));
        }
        true
    }

    /// True if there is as much code as there may be, that which is on its way included, and that of
    /// earlier policies which runs under way have still.
    fn is_full(&self, agents_max: usize) -> bool {
        let past: Vec<_> = self.past.iter().filter_map(Weak::upgrade).collect();
        let (mut loaded, mut native) = (past.len(), BTreeMap::new());
        for code in &past {
            native.extend(code.native.iter().map(|(digest, bytes)| (digest, *bytes)));
        }
        for entry in self.by_pin.values() {
            match &entry.standing {
                Standing::Loading(Want::Code) => loaded += 1,
                Standing::Ready(code) => {
                    loaded += 1;
                    native.extend(code.native.iter().map(|(digest, bytes)| (digest, *bytes)));
                }
                Standing::Loading(Want::Agent) | Standing::Found | Standing::Failed(..) => {}
            }
        }
        loaded >= agents_max || native.into_values().sum::<u64>() >= NATIVE_BYTES_MAX
    }
}
