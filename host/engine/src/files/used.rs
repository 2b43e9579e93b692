//! The use of folders of a workspace.

use cap_fs_ext::DirExt;
use cap_std::fs::Dir;

use super::protected::Guard;
use super::{Refusal, RelativePath, Workspace};

/// Most folders below each other, as in a listing: each on the way keeps one open. A workspace that
/// is nested deeper counts as full, so that nothing is hidden where it is not counted.
const DEPTH_MAX: usize = 64;

/// Bytes of length, and the number of files, folders and links.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DiskUse {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
}

impl DiskUse {
    pub(crate) fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.files = self.files.saturating_add(other.files);
    }

    pub(crate) fn subtract(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_sub(other.bytes);
        self.files = self.files.saturating_sub(other.files);
    }

    /// The larger of both, in bytes and in files.
    pub(crate) fn at_least(self, other: Self) -> Self {
        Self { bytes: self.bytes.max(other.bytes), files: self.files.max(other.files) }
    }
}

impl Workspace {
    /// The use of these folders, the host's own files left out. Stops when there are more than
    /// `files_max`: a workspace with so many is full. What cannot be read is not counted.
    pub(crate) fn used(&self, folders: &[String], files_max: u32) -> DiskUse {
        let guard = &self.protected.now();
        let mut count = Count { guard, files_max: files_max.into(), used: DiskUse::default() };
        let is_whole = |(index, folder): &(usize, &String)| {
            let mut others = folders.iter().enumerate().filter(|(other, _)| other != index);
            !others.any(|(other, wider)| {
                is_inside(folder, wider) && (wider != *folder || other < *index)
            })
        };
        for (_, folder) in folders.iter().enumerate().filter(is_whole) {
            let opened = RelativePath::new(folder)
                .map_err(Refusal::from)
                .and_then(|path| self.directory(path, guard));
            if let Ok(dir) = opened
                && count.enter(&dir, 0).is_none()
            {
                break;
            }
        }
        count.used
    }
}

/// True if a folder is another one or below it.
fn is_inside(folder: &str, wider: &str) -> bool {
    wider.is_empty()
        || folder.strip_prefix(wider).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

struct Count<'a> {
    guard: &'a Guard,
    files_max: u64,
    used: DiskUse,
}

impl Count<'_> {
    /// Adds what is below a folder. `None` ends the count: there is more than is counted.
    fn enter(&mut self, dir: &Dir, depth: usize) -> Option<()> {
        if depth > DEPTH_MAX {
            self.used.files = self.used.files.max(self.files_max + 1);
            return None;
        }
        let Ok(entries) = dir.entries() else { return Some(()) };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Ok(metadata) = dir.symlink_metadata(&name) else { continue };
            let is_own = |name: &str| self.guard.check_name(dir, name).is_err();
            if self.guard.check(&metadata).is_err() || name.to_str().is_some_and(is_own) {
                continue;
            }
            self.used.files += 1;
            if self.used.files > self.files_max {
                return None;
            }
            if metadata.is_file() {
                self.used.bytes = self.used.bytes.saturating_add(metadata.len());
            } else if metadata.is_dir()
                && let Ok(inner) = dir.open_dir_nofollow(&name)
            {
                self.enter(&inner, depth + 1)?;
            }
        }
        Some(())
    }
}
