//! Files that were read before, known by everything that changes with their bytes.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use taskrun_journal::time::Timestamp;

use crate::cache::Entry;

/// Age of a file from which its identity stands for its bytes: a change within the tick of the file
/// system's clock in which the file was read would leave its times as they are.
const SETTLED: Duration = Duration::from_secs(3);

/// Device, inode, size and times of a file, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileIdentity(blake3::Hash);

impl FileIdentity {
    pub(crate) fn of(meta: &Metadata) -> Self {
        let mut hasher = blake3::Hasher::new();
        for number in [meta.dev(), meta.ino(), meta.size()] {
            hasher.update(&number.to_le_bytes());
        }
        for number in [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()] {
            hasher.update(&number.to_le_bytes());
        }
        Self(hasher.finalize())
    }

    /// The entry under which its digest is kept.
    pub(crate) fn entry(self) -> Entry {
        Entry { component: self.0, compatibility: blake3::hash(b"file") }
    }
}

/// True if the file has not changed for so long that a change from now on will show in its times.
pub(crate) fn is_settled(meta: &Metadata, now: Timestamp) -> bool {
    let changed = meta.mtime().max(meta.ctime());
    let settled = u64::try_from(changed).unwrap_or(0).saturating_add(SETTLED.as_secs());
    settled.saturating_mul(1_000) < now.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_settled_when_a_change_would_show() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("a.wasm");
        std::fs::write(&path, "one").expect("written");
        let meta = std::fs::metadata(&path).expect("it is there");
        let after = u64::try_from(meta.ctime() + 4).expect("after 1970") * 1_000;
        assert!(is_settled(&meta, Timestamp(after)));
        assert!(!is_settled(&meta, Timestamp(after - 2_000)));
    }
}
