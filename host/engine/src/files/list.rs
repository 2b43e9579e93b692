//! Listing directories, within bounds on entries, depth and work.

use std::io;

use cap_fs_ext::DirExt;
use cap_std::fs::Dir;
use rustix::io::Errno;
use taskrun_policy::PATH_BYTES_MAX;

use super::path::is_visible;
use super::protected::Guard;
use super::{CancelFlag, RelativePath, Result, Workspace, entry, from_io};
use crate::bindings::interfaces::workspace_read::{Entry, EntryKind, FileError, Listing};

/// Most entries of one listing.
const ENTRIES_MAX: u32 = 10_000;
/// Most entries that one listing looks at, shown or not: a fraction of a second of work.
const VISITED_MAX: u32 = 100_000;
/// Most directories below the one that is listed: each on the way keeps one open.
const DEPTH_MAX: usize = 64;

/// The extent of a listing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListOptions {
    /// True if the directories below are listed too.
    pub(crate) recursive: bool,
    /// Most entries of the listing.
    pub(crate) limit: u32,
    /// Most bytes of the entries with their paths.
    pub(crate) bytes: u64,
}

impl ListOptions {
    /// Entries that are kept: one more than are shown, to know that there are more.
    fn kept(self) -> usize {
        self.limit.min(ENTRIES_MAX) as usize + 1
    }

    /// Most bytes that the listing takes while it is put together.
    pub(crate) fn bytes_at_once(self) -> u64 {
        let largest = (size_of::<Entry>() + PATH_BYTES_MAX) as u64;
        2 * self.bytes.min(self.kept() as u64 * largest) + largest
    }
}

fn bytes_of(entry: &Entry) -> u64 {
    (size_of::<Entry>() + entry.path.len()) as u64
}

struct Walk<'a> {
    wanted: ListOptions,
    shows: &'a dyn Fn(&str, EntryKind) -> bool,
    abandoned: &'a CancelFlag,
    guard: &'a Guard,
    visited: u32,
    /// Most entries that are of use: one more than are shown, to know that there are more.
    kept: usize,
    found: Vec<Entry>,
    /// Of those that were found and are kept.
    found_bytes: u64,
    /// True if some were left out because of their bytes.
    cut: bool,
}

impl Workspace {
    /// The entries of a directory for which `shows` says yes; nothing is looked for below a
    /// directory that is not shown.
    pub(crate) fn list(
        &self,
        path: RelativePath<'_>,
        wanted: ListOptions,
        shows: &dyn Fn(&str, EntryKind) -> bool,
        abandoned: &CancelFlag,
    ) -> Result<Listing> {
        let guard = &self.protected.now();
        let dir = self.directory(path, guard)?;
        let kept = wanted.kept();
        let (visited, found, found_bytes, cut) = (0, Vec::new(), 0, false);
        let mut walk =
            Walk { wanted, shows, abandoned, guard, visited, kept, found, found_bytes, cut };
        walk.enter(&dir, path.as_str(), 0)?;
        walk.forget();
        let mut entries = walk.found;
        let truncated = walk.cut || entries.len() >= kept;
        entries.truncate(kept - 1);
        Ok(Listing { entries, truncated })
    }
}

/// True for an error about the directory that was to be looked into, and not about the host.
fn is_its_own(error: &io::Error) -> bool {
    let of_it = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP, Errno::ACCESS, Errno::PERM];
    Errno::from_io_error(error).is_some_and(|error| of_it.contains(&error))
}

impl Walk<'_> {
    /// Keeps the first entries by path, as many as are of use.
    fn forget(&mut self) {
        self.found.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        self.found.truncate(self.kept);
        self.found_bytes = 0;
        for (index, entry) in self.found.iter().enumerate() {
            let bytes = self.found_bytes + bytes_of(entry);
            if bytes > self.wanted.bytes {
                self.found.truncate(index);
                self.cut = true;
                break;
            }
            self.found_bytes = bytes;
        }
    }

    fn keep(&mut self, entry: Entry) {
        self.found_bytes += bytes_of(&entry);
        self.found.push(entry);
        if self.found.len() >= 2 * self.kept || self.found_bytes > 2 * self.wanted.bytes {
            self.forget();
        }
    }

    fn enter(&mut self, dir: &Dir, path: &str, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(FileError::Limit(format!(
                "directories are nested deeper than {DEPTH_MAX}"
            ))
            .into());
        }
        let items = match dir.entries() {
            Ok(items) => items,
            // One below that may not be read, or is gone, takes nothing from the others.
            Err(error) if depth > 0 && is_its_own(&error) => return Ok(()),
            Err(error) => return Err(from_io(error)),
        };
        for item in items {
            self.abandoned.check()?;
            self.visited += 1;
            if self.visited > VISITED_MAX {
                let limit = format!("there are more than {VISITED_MAX} entries to look at");
                return Err(FileError::Limit(limit).into());
            }
            let item = item.map_err(from_io)?;
            // A name that is not UTF-8 cannot be said in a path.
            let Ok(name) = item.file_name().into_string() else { continue };
            if !is_visible(&name) {
                continue;
            }
            let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            // Nor can one that is too long.
            if below.len() > PATH_BYTES_MAX {
                continue;
            }
            // What was removed meanwhile is not there, and neither are the host's own files.
            let Ok(metadata) = dir.symlink_metadata(&name) else { continue };
            if self.guard.check_name(dir, &name).and(self.guard.check(&metadata)).is_err() {
                continue;
            }
            let entry = entry(below, &metadata);
            if !(self.shows)(&entry.path, entry.kind) {
                continue;
            }
            if self.wanted.recursive && entry.kind == EntryKind::Directory {
                let inner = match dir.open_dir_nofollow(&name) {
                    Ok(inner) => inner,
                    // It is gone by now, or something else stands there.
                    Err(error) if is_its_own(&error) => continue,
                    Err(error) => return Err(from_io(error)),
                };
                self.guard.check_dir(&inner)?;
                let inner_path = entry.path.clone();
                self.keep(entry);
                self.enter(&inner, &inner_path, depth + 1)?;
            } else {
                self.keep(entry);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_goes_on_after_errors_of_a_folder_and_not_after_those_of_the_host() {
        let own = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP, Errno::ACCESS, Errno::PERM];
        let of_host = [Errno::MFILE, Errno::NFILE, Errno::IO, Errno::NOMEM, Errno::STALE];
        for (errors, goes_on) in [(own, true), (of_host, false)] {
            for error in errors {
                assert_eq!(is_its_own(&io::Error::from(error)), goes_on, "{error:?}");
            }
        }
        assert!(!is_its_own(&io::Error::other("not of the system")));
    }
}
