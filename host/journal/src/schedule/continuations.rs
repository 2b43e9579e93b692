//! Autonomous runs of one conversation: they come one after the other.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::ids::RunId;
use crate::run::Run;
use crate::spec::RunSpec;

/// The key of the request by which a run is continued: one other run continues it, whoever asks, and
/// is found by it.
#[must_use]
pub fn continuation_key(run: &RunId) -> String {
    format!("continues {run}")
}

/// Those among whom an autonomous run is the only one that is open: those of its agent in the
/// conversation of its session. `None` for a run that takes part in none.
#[must_use]
pub fn autonomous_place(spec: &RunSpec) -> Option<[&str; 5]> {
    if spec.autonomy.is_none() || spec.history.is_none() || spec.depth > 0 {
        return None;
    }
    let app = spec.parent_app_name.as_deref().unwrap_or_default();
    let RunSpec { tenant, owner_user_id, parent_session_id, agent_name, .. } = spec;
    Some([tenant, owner_user_id, app, parent_session_id, agent_name])
}

/// The run that continues another one, as far as it decides what of before is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Successor {
    /// Its id.
    pub id: RunId,
    /// True if it has not ended.
    pub is_open: bool,
    /// True if the consumption of what had ended beneath those before stands in its record.
    pub has_usage: bool,
}

impl Successor {
    /// That of a run.
    #[must_use]
    pub fn of(run: &Run) -> Self {
        Self {
            id: run.id().clone(),
            is_open: !run.status().is_terminal(),
            has_usage: run.state.rounds.continued.is_some(),
        }
    }
}

/// The needs of open runs that continue others, as far as one removal has asked for them. Each run
/// of a chain is looked at twice at most, however many of the chain are asked about. While it is
/// used no run may change.
#[derive(Clone, Debug, Default)]
pub struct ContinuationNeeds {
    /// The answers by tenant, run and `stays`.
    known: HashMap<(String, RunId, bool), bool>,
}

impl ContinuationNeeds {
    /// True if an open run continues the first one of a run's tree, or one that continues that, and
    /// needs the run: that `stays` as long as there is such an open one, or it `counts` and its
    /// consumption stands in the record of none of those that continue. `next` finds the run with a
    /// [`continuation_key`].
    ///
    /// # Errors
    /// Those of `next`; all that was asked before is then to be asked anew.
    pub fn is_needed<E>(
        &mut self,
        spec: &RunSpec,
        (stays, mut counts): (bool, bool),
        mut next: impl FnMut(String) -> Result<Option<Successor>, E>,
    ) -> Result<bool, E> {
        let (mut before, mut asked) = (spec.root_run_id.clone(), Vec::new());
        // However many continue that one: the others are not asked about what none of them needs.
        let is_needed = loop {
            if !stays && !counts {
                break false;
            }
            let place = (spec.tenant.clone(), before.clone(), stays);
            match self.known.entry(place.clone()) {
                Entry::Occupied(known) => break *known.get(),
                // It holds already here, so that a circle ends, whatever the rows of a store say.
                Entry::Vacant(unknown) => {
                    unknown.insert(false);
                }
            }
            asked.push(place);
            let Some(found) = next(continuation_key(&before))? else { break false };
            counts &= !found.has_usage;
            if found.is_open {
                break stays || counts;
            }
            before = found.id;
        };
        if is_needed {
            self.known.extend(asked.into_iter().map(|place| (place, true)));
        }
        Ok(is_needed)
    }
}
