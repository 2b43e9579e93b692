//! Files that are on the disk with the folders in which they stand.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// Most files that are remembered.
const FILES_MAX: usize = 1 << 12;

/// The files whose folders this process has synced since they are there. A run that is accepted
/// looks at all that it needs, and each folder that is synced again holds up the commits of all
/// other runs.
#[derive(Clone, Debug, Default)]
pub(super) struct SyncedFiles(Arc<Mutex<HashMap<PathBuf, Identity>>>);

/// One of the files that stood at a path one after the other: its number, which another one may have
/// after it, and the time at which it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    inode: u64,
    created_at: SystemTime,
}

impl Identity {
    /// That of the file at a path; `None` where the file system does not tell.
    fn of(path: &Path) -> Option<Self> {
        let meta = path.metadata().ok()?;
        Some(Self { inode: meta.ino(), created_at: meta.created().ok()? })
    }
}

impl SyncedFiles {
    /// Syncs the folders of a file, unless that was done since the file is there.
    pub(super) fn sync<E>(
        &self,
        path: &Path,
        sync: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let found = Identity::of(path);
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_some() && known().get(path).copied() == found {
            return Ok(());
        }
        sync()?;
        if let Some(found) = found {
            let mut known = known();
            if known.len() >= FILES_MAX {
                known.clear();
            }
            known.insert(path.to_owned(), found);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_synced_once_for_each_file_that_comes_to_a_path() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("blob");
        let files = SyncedFiles::default();
        let syncs = |times: usize| {
            let mut count = 0;
            for _ in 0..times {
                let sync = || -> Result<(), ()> {
                    count += 1;
                    Ok(())
                };
                files.sync(&path, sync).expect("synced");
            }
            count
        };
        assert_eq!(syncs(2), 2, "a file that is not there is nobody's that was synced");
        std::fs::write(&path, b"one").expect("written");
        assert_eq!(syncs(3), 1);
        // The number of the first one is free, and is often given to the next one.
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, b"two").expect("written");
        assert_eq!(syncs(3), 1, "another one");
        let other = dir.path().join("other");
        std::fs::write(&other, b"three").expect("written");
        std::fs::rename(&other, &path).expect("moved");
        assert_eq!(syncs(2), 1, "one in its place");
        assert_eq!(files.sync(&path, || Err("unasked")), Ok(()));
    }

    #[test]
    fn folders_that_could_not_be_synced_are_tried_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("blob");
        std::fs::write(&path, b"one").expect("written");
        let files = SyncedFiles::default();
        assert_eq!(files.sync(&path, || Err("full")), Err("full"));
        assert_eq!(files.sync(&path, || Err("full")), Err("full"));
        assert_eq!(files.sync(&path, || Ok::<_, &str>(())), Ok(()));
        assert_eq!(files.sync(&path, || Err("unasked")), Ok(()));
    }
}
