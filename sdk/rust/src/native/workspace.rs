//! A workspace in memory.

use super::Host;
use crate::bindings::agent::taskrun::plugin::workspace_read::FileError;

const PATH_MAX: usize = 4_096;

/// Refuses what is not of the contract's form.
fn check(path: &str) -> Result<(), FileError> {
    if path.len() > PATH_MAX {
        return Err(FileError::InvalidPath(format!("longer than {PATH_MAX} bytes")));
    }
    if path.contains('\0') {
        return Err(FileError::InvalidPath("it has a zero byte".into()));
    }
    if !path.is_empty() && path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(FileError::InvalidPath("it has an empty part, `.` or `..`".into()));
    }
    Ok(())
}

fn is_directory(host: &Host, path: &str) -> bool {
    let below = format!("{path}/");
    path.is_empty()
        || host.directories.contains(path)
        || host.files.keys().chain(&host.directories).any(|known| known.starts_with(&below))
}

pub(crate) mod workspace_read {
    use super::{FileError, check, is_directory};
    use crate::{
        bindings::agent::taskrun::plugin::workspace_read::{Entry, EntryKind, Listing},
        native::{Host, host},
    };
    use std::collections::BTreeMap;

    const ENTRIES_MAX: u32 = 10_000;
    const READ_MAX: u32 = 4 << 20;

    /// The entries of a directory, sorted by path.
    ///
    /// # Errors
    ///
    /// When there is no such directory.
    pub fn list(path: &str, recursive: bool, limit: u32) -> Result<Listing, FileError> {
        check(path)?;
        host(|host| {
            if host.files.contains_key(path) {
                return Err(FileError::NotADirectory);
            }
            if !is_directory(host, path) {
                return Err(FileError::NotFound);
            }
            let mut entries = below(host, path);
            if !recursive {
                let prefix = if path.is_empty() { 0 } else { path.len() + 1 };
                entries.retain(|entry| !entry.path[prefix..].contains('/'));
            }
            let limit = limit.min(ENTRIES_MAX) as usize;
            let truncated = entries.len() > limit;
            entries.truncate(limit);
            Ok(Listing { entries, truncated })
        })
    }

    /// Everything below `path`, and the directories that follow from it.
    fn below(host: &Host, path: &str) -> Vec<Entry> {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let mut found = BTreeMap::new();
        let files = host.files.iter().map(|(path, contents)| (path, Some(contents.len())));
        let directories = host.directories.iter().map(|path| (path, None));
        for (known, size) in files.chain(directories) {
            let Some(rest) = known.strip_prefix(&prefix) else { continue };
            for (at, _) in rest.match_indices('/') {
                found.entry(format!("{prefix}{}", &rest[..at])).or_insert(None);
            }
            found.insert(known.clone(), size);
        }
        found
            .into_iter()
            .map(|(path, size)| Entry {
                path,
                kind: if size.is_some() { EntryKind::File } else { EntryKind::Directory },
                size: size.unwrap_or(0) as u64,
                modified_at: None,
            })
            .collect()
    }

    /// The entry at `path`.
    ///
    /// # Errors
    ///
    /// When nothing does.
    pub fn stat(path: &str) -> Result<Entry, FileError> {
        check(path)?;
        host(|host| {
            let (kind, size) = match host.files.get(path) {
                Some(contents) => (EntryKind::File, contents.len() as u64),
                None if is_directory(host, path) => (EntryKind::Directory, 0),
                None => return Err(FileError::NotFound),
            };
            Ok(Entry { path: path.to_owned(), kind, size, modified_at: None })
        })
    }

    /// Up to `max_bytes` of a file from `offset`.
    ///
    /// # Errors
    ///
    /// When it is not a file.
    pub fn read(path: &str, offset: u64, max_bytes: u32) -> Result<Vec<u8>, FileError> {
        check(path)?;
        host(|host| {
            let Some(contents) = host.files.get(path) else {
                let error = if is_directory(host, path) {
                    FileError::NotAFile
                } else {
                    FileError::NotFound
                };
                return Err(error);
            };
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(contents.len());
            let rest = &contents[from..];
            Ok(rest[..rest.len().min(max_bytes.min(READ_MAX) as usize)].to_vec())
        })
    }
}

pub(crate) mod workspace_write {
    use super::{FileError, check, is_directory};
    use crate::{bindings::agent::taskrun::plugin::workspace_write::WriteMode, native::host};

    /// Writes a file.
    ///
    /// # Errors
    ///
    /// When its directory does not exist, a directory stands there, or the mode forbids it.
    pub fn write(path: &str, contents: &[u8], mode: WriteMode) -> Result<(), FileError> {
        check(path)?;
        host(|host| {
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            if host.files.contains_key(parent) {
                return Err(FileError::NotADirectory);
            }
            if !is_directory(host, parent) {
                return Err(FileError::NotFound);
            }
            if is_directory(host, path) {
                return Err(FileError::NotAFile);
            }
            match mode {
                WriteMode::CreateNew if host.files.contains_key(path) => {
                    return Err(FileError::AlreadyExists);
                }
                WriteMode::CreateNew | WriteMode::Replace => {
                    host.files.insert(path.to_owned(), contents.to_vec());
                }
                WriteMode::Append => {
                    host.files.entry(path.to_owned()).or_default().extend_from_slice(contents);
                }
            }
            Ok(())
        })
    }

    /// Makes a directory and those above it.
    ///
    /// # Errors
    ///
    /// When a file stands in the way.
    pub fn create_directory(path: &str) -> Result<(), FileError> {
        check(path)?;
        host(|host| {
            let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
            if ends.map(|at| &path[..at]).any(|above| host.files.contains_key(above)) {
                return Err(FileError::AlreadyExists);
            }
            if !path.is_empty() {
                host.directories.insert(path.to_owned());
            }
            Ok(())
        })
    }

    /// Removes a file or an empty directory.
    ///
    /// # Errors
    ///
    /// When nothing is there, or the directory is not empty.
    pub fn remove(path: &str) -> Result<(), FileError> {
        check(path)?;
        host(|host| {
            if host.files.remove(path).is_some() {
                return Ok(());
            }
            let below = format!("{path}/");
            if host.files.keys().chain(&host.directories).any(|known| known.starts_with(&below)) {
                return Err(FileError::Other("the directory is not empty".into()));
            }
            if host.directories.remove(path) { Ok(()) } else { Err(FileError::NotFound) }
        })
    }
}
