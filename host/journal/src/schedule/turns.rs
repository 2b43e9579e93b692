//! The turns that serial runs take.

use super::sessions::session_of;
use crate::hold::Lane;
use crate::spec::RunSpec;
use crate::store::SessionKey;

/// Those whose serial runs take turns: of a session as its owner has it, whichever applications
/// ask from there, or of the rooms of one name.
#[must_use]
pub fn turn_of(spec: &RunSpec) -> SessionKey {
    let session = session_of(spec);
    let id = spec.serial_in.clone().unwrap_or(session.id);
    SessionKey { parent_app_name: None, id, ..session }
}

/// True for a wanted run that stays behind an earlier one: a serial run begins when every open
/// serial run of its session that was accepted before has ended. One that has begun goes on.
/// `is_behind` asks for such an earlier run.
///
/// # Errors
/// Those of `is_behind`.
pub fn waits_its_turn<E>(
    lane: Lane,
    is_serial: bool,
    is_behind: impl FnOnce() -> Result<bool, E>,
) -> Result<bool, E> {
    match lane {
        Lane::Resume => Ok(false),
        Lane::Fresh if is_serial => is_behind(),
        Lane::Fresh => Ok(false),
    }
}
