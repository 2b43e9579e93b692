//! Names of open runs.

use crate::spec::RunSpec;

/// Those among whom an open run has its name alone, and that name; `None` without one.
#[must_use]
pub fn name_place(spec: &RunSpec) -> Option<[&str; 5]> {
    let name = spec.name.as_deref()?;
    Some(match &spec.parent_run_id {
        Some(parent) => ["run", &spec.tenant, parent.as_str(), "", name],
        None => ["session", &spec.tenant, &spec.owner_user_id, &spec.parent_session_id, name],
    })
}
