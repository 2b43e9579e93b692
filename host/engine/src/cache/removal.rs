//! Files that nobody needs any more are removed by the time of their last use.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};
use taskrun::clock::SystemClock;
use taskrun_journal::time::{Clock, Timestamp, millis};

use super::{Cache, CacheError, Content, TEMPORARY};

/// Age from which a file that is read has its time renewed: few reads write, and what was read
/// within an hour is known to have been.
const RENEWED_AFTER: Duration = Duration::from_secs(30 * 60);
/// Age of a file under the name for the time of its writing at which nobody writes it any more.
const LEFT_AFTER: Duration = Duration::from_secs(60 * 60);

/// An amount of files of a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CachedFiles {
    /// Their number.
    pub count: u64,
    /// All of their bytes.
    pub bytes: u64,
}

impl CachedFiles {
    fn add(&mut self, file: &CachedFile) {
        self.count += 1;
        self.bytes += file.bytes;
    }
}

/// A file of a cache that is not its key.
struct CachedFile {
    path: PathBuf,
    bytes: u64,
    used_at: SystemTime,
    name: Name,
}

/// The name of such a file.
enum Name {
    /// Something about a component, or about a file.
    Entry(blake3::Hash, Content),
    /// The same in a form that this version does not read.
    OtherForm,
    /// A file that is being written.
    Temporary,
}

impl Name {
    fn parse(name: &str) -> Option<Self> {
        let (stem, extension) = name.rsplit_once('.')?;
        if extension == TEMPORARY {
            return stem.starts_with('.').then_some(Self::Temporary);
        }
        let content = Content::ALL.into_iter().find(|content| content.extension() == extension)?;
        let (component, fits) = stem.split_once('-')?;
        let component = blake3::Hash::from_hex(component).ok()?;
        // Versions before had no form in it.
        let form = content.form().to_string();
        let is_read = fits.rsplit_once('-').is_some_and(|(_, last)| last == form);
        Some(if is_read { Self::Entry(component, content) } else { Self::OtherForm })
    }
}

impl Cache {
    /// All files but the key.
    ///
    /// # Errors
    /// [`CacheError::Io`], if they cannot be looked at.
    pub fn files(&self) -> Result<CachedFiles, CacheError> {
        let mut all = CachedFiles::default();
        self.list()?.iter().for_each(|file| all.add(file));
        Ok(all)
    }

    /// Removes what no process has read for this long by `age`, which gives the age of a time, but
    /// for what belongs to components that are needed; with `dry_run` it says how much that is, and
    /// removes nothing. Of a needed component there may be native code of several versions of the
    /// engine, or for several processors: the one that was used last stays. Of what other versions
    /// keep in another form nothing is needed. What another process wants that is gone by then is
    /// made anew by it.
    ///
    /// # Errors
    /// [`CacheError::Io`], if the files cannot be looked at, or one cannot be removed; some may be
    /// gone then.
    pub fn remove_unneeded(
        &self,
        (older_than, dry_run): (Duration, bool),
        age: impl Fn(SystemTime) -> Duration,
        is_needed: impl Fn(&blake3::Hash) -> bool,
    ) -> Result<CachedFiles, CacheError> {
        let files = self.list()?;
        let mut last_uses = HashMap::new();
        for file in &files {
            if let Name::Entry(component, content) = file.name {
                let last = last_uses.entry((component, content)).or_insert(file.used_at);
                *last = file.used_at.max(*last);
            }
        }
        let is_last = |file: &CachedFile, component, content| {
            last_uses.get(&(component, content)) == Some(&file.used_at)
        };
        let mut removed = CachedFiles::default();
        for file in &files {
            let age = age(file.used_at);
            let stays = match file.name {
                Name::Temporary => age <= LEFT_AFTER,
                // A version that reads it has it count as used.
                Name::OtherForm => age <= older_than,
                // There is one for each role of the component.
                Name::Entry(component, Content::Description) => {
                    age <= older_than || is_needed(&component)
                }
                Name::Entry(component, content) => {
                    age <= older_than
                        || (is_needed(&component) && is_last(file, component, content))
                }
            };
            if !stays && (dry_run || remove(file)?) {
                removed.add(file);
            }
        }
        Ok(removed)
    }

    fn list(&self) -> Result<Vec<CachedFile>, CacheError> {
        let failed = |source| CacheError::Io { path: self.dir.to_path_buf(), source };
        let mut files = Vec::new();
        for entry in fs::read_dir(&*self.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Some(name) = entry.file_name().to_str().and_then(Name::parse) else { continue };
            let meta = match entry.metadata() {
                Ok(meta) => meta,
                // It has got its own name, or another process has removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            if meta.is_file() {
                let used_at = meta.modified().map_err(failed)?;
                files.push(CachedFile { path: entry.path(), bytes: meta.len(), used_at, name });
            }
        }
        Ok(files)
    }
}

/// Removes a file; false if another process has done so.
fn remove(file: &CachedFile) -> Result<bool, CacheError> {
    match fs::remove_file(&file.path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(CacheError::Io { path: file.path.clone(), source }),
    }
}

/// Has a file of ours count as used now, unless it was lately.
pub(super) fn renew(file: &File) -> io::Result<()> {
    let modified = file.metadata()?.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    let age = SystemClock::new().now().since(Timestamp(millis(modified)));
    if age < RENEWED_AFTER {
        return Ok(());
    }
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    futimens(file, &times).map_err(io::Error::from)
}

#[cfg(test)]
mod tests;
