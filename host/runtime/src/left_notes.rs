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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    use taskrun_journal::ids::HostId;
    use taskrun_journal::store::Host;
    use taskrun_journal::time::Timestamp;
    use taskrun_store::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn files_of_hosts_that_are_not_in_the_list_are_removed_and_no_others() {
        let (folder, store) = (tempfile::tempdir().expect("a folder"), MemoryStore::new());
        let living = Host {
            id: HostId::new("living"),
            pid: 1,
            policy: String::new(),
            agents: Arc::new(BTreeSet::new()),
            subscribers: Arc::new(BTreeSet::new()),
            started_at: Timestamp(1),
            slots: 1,
            lease: Duration::from_secs(1),
        };
        store.register(living).await.expect("registers");
        let kept = ["policy-living.json", "loads-living.json", "policy-dead.txt", "taskrun.db"];
        let left = ["policy-dead.json", "loads-dead.json"];
        for name in kept.iter().chain(&left) {
            std::fs::write(folder.path().join(name), "").expect("written");
        }
        remove(folder.path(), &store).await;
        let is_there = |name: &&str| folder.path().join(name).exists();
        assert!(kept.iter().all(is_there));
        assert!(!left.iter().any(is_there));
    }
}
