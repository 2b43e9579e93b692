//! Files in the data directory by which dead hosts told other processes of themselves.

use std::ffi::OsStr;
use std::path::Path;

use taskrun_journal::store::Hosts;

use crate::{in_force, loads};

/// Removes the files of hosts that are not in the list. A host tells of itself once it is in that: so
/// the files are looked for first, and none is of a host that begins at this moment.
pub(crate) async fn remove(data_dir: &Path, hosts: &dyn Hosts) {
    let host_of = |name: &OsStr| {
        let name = name.to_str()?;
        in_force::host_of(name).or_else(|| loads::host_of(name)).map(str::to_owned)
    };
    let entries = std::fs::read_dir(data_dir).into_iter().flatten().flatten();
    let told: Vec<_> = entries
        .filter_map(|entry| host_of(&entry.file_name()).map(|host| (host, entry.path())))
        .collect();
    let living = match hosts.hosts().await {
        Ok(living) => living,
        Err(error) => {
            tracing::warn!(%error, "files of dead hosts are not removed");
            return;
        }
    };
    for (host, file) in told {
        if living.iter().all(|one| one.id.as_str() != host) {
            std::fs::remove_file(file).ok();
        }
    }
}
