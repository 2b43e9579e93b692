//! Files in the data directory by which dead hosts told other processes of themselves.

use std::ffi::OsStr;
use std::path::Path;

use taskrun_journal::store::Hosts;

use crate::{in_force, loads};

/// Removes the files of hosts whose processes are gone: one that stands still may go on, and would
/// not tell again. A host tells of itself once it is in the list: so the files are looked for
/// first, and none is of a host that begins at this moment.
pub(crate) async fn remove(data_dir: &Path, hosts: &dyn Hosts) {
    let host_of = |name: &OsStr| {
        let name = name.to_str()?;
        in_force::host_of(name).or_else(|| loads::host_of(name)).map(str::to_owned)
    };
    let entries = std::fs::read_dir(data_dir).into_iter().flatten().flatten();
    let told: Vec<_> = entries
        .filter_map(|entry| host_of(&entry.file_name()).map(|host| (host, entry.path())))
        .collect();
    let present = match hosts.present_hosts().await {
        Ok(present) => present,
        Err(error) => {
            tracing::warn!(%error, "files of dead hosts are not removed");
            return;
        }
    };
    for (host, file) in told {
        if present.iter().all(|one| one.host.id.as_str() != host) {
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
    use taskrun_store::{SqliteOptions, SqliteStore};

    use super::*;

    fn host(id: &str, lease: Duration) -> Host {
        Host {
            id: HostId::new(id),
            pid: 1,
            policy: String::new(),
            agents: Arc::new(BTreeSet::new()),
            subscribers: Arc::new(BTreeSet::new()),
            started_at: Timestamp(1),
            slots: 1,
            lease,
        }
    }

    #[tokio::test]
    async fn files_of_hosts_whose_processes_are_gone_are_removed_and_no_others() {
        let [folder, data] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let store = SqliteStore::open(data.path(), SqliteOptions::default()).expect("opens");
        store.register(host("living", Duration::from_secs(60))).await.expect("registers");
        // Each of its signs of life is late.
        store.register(host("silent", Duration::ZERO)).await.expect("registers");
        let kept = [
            "policy-living.json",
            "loads-living.json",
            "policy-silent.json",
            "loads-silent.json",
            "policy-dead.txt",
            "taskrun.db",
        ];
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
