//! The files of a policy as they were when they were read, to tell whether they have changed since.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use taskrun_policy::{Defaults, Files, Policy};
use tokio::time::Instant;

use crate::policy_file::{Disk, PolicyLoadError, parse_policy};

/// The time for which a change has to stand before it is read: editors write in pieces.
const SETTLED_AFTER: Duration = Duration::from_millis(300);

/// The files of a policy by device, inode, size and times, and the folders of its agents by device
/// and inode: where these are as they were, nothing was written that matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesSeen(Vec<FileSeen>);

/// A path and what stands there: device, inode, size, and times of change in nanoseconds.
type FileSeen = (PathBuf, Option<[i128; 5]>);

impl FilesSeen {
    /// Looks at a policy file and reads it, looks at all that it names and reads its prompts. Each
    /// file is looked at before it is read: one that is replaced in between is another one at the
    /// next look.
    ///
    /// # Errors
    /// [`PolicyLoadError`].
    pub fn load(path: &Path, defaults: &Arc<Defaults>) -> Result<(Policy, Self), PolicyLoadError> {
        Self::load_from(&Disk, path, defaults)
    }

    /// The same with files that are read in another way than they are looked at.
    ///
    /// # Errors
    /// [`PolicyLoadError`].
    pub(crate) fn load_from(
        files: &dyn Files,
        path: &Path,
        defaults: &Arc<Defaults>,
    ) -> Result<(Policy, Self), PolicyLoadError> {
        let file = look(path);
        let mut policy = parse_policy(files, path, defaults)?;
        let seen = Self::beside(file, &policy);
        policy.read_prompts(files);
        Ok((policy, seen))
    }

    /// Looks at the files of a policy, those of its prompts, components and models among them.
    #[must_use]
    pub fn of(policy: &Policy) -> Self {
        Self::beside(look(&policy.path), policy)
    }

    /// Looks at one file.
    pub(crate) fn of_file(path: &Path) -> Self {
        Self(vec![look(path)])
    }

    fn beside(file: FileSeen, policy: &Policy) -> Self {
        let named = policy.files_read().map(look);
        let folders: BTreeSet<&Path> =
            policy.agents.values().map(|agent| agent.workspace.as_path()).collect();
        let folders = folders.into_iter().map(|path| (path.to_owned(), folder(path)));
        Self(std::iter::once(file).chain(named).chain(folders).collect())
    }

    /// Those that are not as they were.
    pub(crate) fn changed_since(&self, before: &Self) -> Vec<PathBuf> {
        let changed = self.0.iter().filter(|one| !before.0.contains(one));
        changed.map(|(path, _)| path.clone()).collect()
    }

    /// True if a file was there.
    pub(crate) fn has(&self, path: &Path) -> bool {
        self.0.iter().any(|(known, found)| known == path && found.is_some())
    }
}

/// Files as the last look found them, where these are others than those that were read last, and
/// since when. They are read once they have stood for a moment.
#[derive(Clone, Debug, Default)]
pub struct UnsettledFiles(Option<(FilesSeen, Instant)>);

impl UnsettledFiles {
    /// True if these files, which are others than those that were read last, have stood for a
    /// moment. Those that are found for the first time have not.
    pub fn have_settled(&mut self, found: &FilesSeen) -> bool {
        match &self.0 {
            Some((before, since)) if before == found => since.elapsed() >= SETTLED_AFTER,
            Some(_) | None => {
                self.0 = Some((found.clone(), Instant::now()));
                false
            }
        }
    }

    /// Forgets what was found: it was read, or is again as it was when that was done.
    pub fn forget(&mut self) {
        self.0 = None;
    }

    /// Makes what was found as old as it has to be.
    #[cfg(test)]
    pub(crate) fn age(&mut self) {
        let (_, since) = self.0.as_mut().expect("it was found");
        *since = since.checked_sub(SETTLED_AFTER).expect("a time");
    }
}

fn look(path: &Path) -> FileSeen {
    (path.to_owned(), path.metadata().ok().map(|meta| known(&meta)))
}

/// A folder, whose size and times change with what is in it.
fn folder(path: &Path) -> Option<[i128; 5]> {
    let meta = path.metadata().ok().filter(Metadata::is_dir)?;
    Some([i128::from(meta.dev()), i128::from(meta.ino()), 0, 0, 0])
}

fn known(meta: &Metadata) -> [i128; 5] {
    let nanos = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    [
        i128::from(meta.dev()),
        i128::from(meta.ino()),
        i128::from(meta.size()),
        nanos(meta.mtime(), meta.mtime_nsec()),
        nanos(meta.ctime(), meta.ctime_nsec()),
    ]
}
