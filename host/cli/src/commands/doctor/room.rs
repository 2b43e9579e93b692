//! The room for a store: on its disk, and by its own bound.

use std::path::Path;

use taskrun_policy::Policy;
use taskrun_runtime::Storage;

use super::{Check, Health};
use crate::context::Context;
use crate::output::human;
use crate::paths::shown;

/// Bytes of a disk without which a host cannot be sure to write its next commits: a log of 16 MiB,
/// and as much where that is copied to.
const NEEDED_BYTES: u64 = 32 << 20;
/// Files that a host makes when it begins and as a run of another agent is accepted, with room for its
/// neighbours: the logs of the store, notes, and what is kept of components and policies.
const NEEDED_FILES: u64 = 64;

/// Says how much room there is, and what comes of it where that is little. The store may be fuller by
/// what its log has, and less full by what was removed from it.
pub(super) fn check(
    context: &Context,
    dir: &Path,
    storage: &Storage,
    policy: Option<&Policy>,
) -> Check {
    let (free, files) = match rustix::fs::statvfs(dir) {
        Ok(disk) => {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            // Some file systems count no files.
            (free, (disk.f_files > 0).then_some(disk.f_favail))
        }
        Err(error) => {
            let detail = format!("the disk of {} says nothing: {error}", shown(dir));
            return Check::new("room", Health::Note, detail);
        }
    };
    let (bytes, bytes_max) = (storage.bytes(), context.store_bytes_max());
    let [free_shown, bytes_shown, most] = [free, bytes, bytes_max].map(human::bytes);
    let detail =
        format!("{free_shown} free on its disk; the store has {bytes_shown} of at most {most}");
    if free < NEEDED_BYTES {
        return Check::new("room", Health::Bad, detail).hint(
            "make some on that disk: runs that cannot commit stand still, and go on when there is room",
        );
    }
    if let Some(files) = files.filter(|files| *files < NEEDED_FILES) {
        let detail = format!("{detail}; {} can be made on that disk", human::count(files, "file"));
        return Check::new("room", Health::Bad, detail)
            .hint("remove some there: without files nothing is kept, and no run is accepted");
    }
    if bytes.saturating_add(NEEDED_BYTES) > bytes_max {
        return Check::new("room", Health::Note, detail).hint(
            "where it takes no more, raise --store-max, or remove ended runs with `taskrun gc`: runs \
             that cannot commit stand still until then",
        );
    }
    let agents = policy.into_iter().flat_map(|policy| policy.agents.values());
    let reserve = agents.map(|agent| agent.workspace_limits.reserve_bytes).max();
    if free < reserve.unwrap_or(0) {
        let reserve = human::bytes(reserve.unwrap_or(0));
        let hint = format!("guests may not write where less than {reserve} stay free");
        return Check::new("room", Health::Note, detail).hint(&hint);
    }
    Check::new("room", Health::Good, detail)
}
