//! Autonomous runs of one conversation: they come one after the other.

use crate::ids::RunId;
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
