//! The room for a store: on its disk, and by its own bound.

use std::path::Path;

use taskrun_runtime::Storage;

use super::{Check, Health};
use crate::context::Context;
use crate::output::human;
use crate::paths::shown;

/// Bytes of a disk without which a host cannot be sure to write its next commit: what a log grows by
/// until it is copied.
const NEEDED_BYTES: u64 = 32 << 20;
const WAITS: &str = "runs that cannot commit stand still, and go on when there is room: make some on \
                     that disk, or remove ended runs with `taskrun gc`";

/// Says how much room there is, and what comes of it where that is little.
pub(super) fn check(context: &Context, dir: &Path, storage: &Storage) -> Check {
    let free = match rustix::fs::statvfs(dir) {
        Ok(disk) => disk.f_bavail.saturating_mul(disk.f_frsize),
        Err(error) => {
            let detail = format!("the disk of {} says nothing: {error}", shown(dir));
            return Check::new("room", Health::Note, detail);
        }
    };
    let (bytes, bytes_max) = (storage.bytes(), context.store_bytes_max());
    let [free_shown, bytes_shown, most] = [free, bytes, bytes_max].map(human::bytes);
    let detail =
        format!("{free_shown} free on its disk; the store has {bytes_shown} of at most {most}");
    if bytes >= bytes_max {
        Check::new("room", Health::Bad, detail).hint(
            "it takes no more: raise --store-max, or remove ended runs with `taskrun gc`; runs that \
             cannot commit stand still until then",
        )
    } else if free < NEEDED_BYTES {
        Check::new("room", Health::Bad, detail).hint(WAITS)
    } else if free < context.program.defaults.workspace_reserve_bytes {
        Check::new("room", Health::Note, detail).hint("writes of guests are refused first")
    } else {
        Check::new("room", Health::Good, detail)
    }
}
