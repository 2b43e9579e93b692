//! The turns that serial runs take.

use super::sessions::session_of;
use crate::spec::RunSpec;
use crate::store::SessionKey;

/// Those whose serial runs take turns: of a session as its owner has it, whichever applications
/// ask from there.
#[must_use]
pub fn turn_of(spec: &RunSpec) -> SessionKey {
    SessionKey { parent_app_name: None, ..session_of(spec) }
}
