//! Files beneath one folder, for paths that a guest chooses.
//!
//! A path is walked component by component from the open root, and no symbolic link is ever
//! followed: each directory is opened without following, relative to the one before, so nothing
//! that is renamed or replaced meanwhile can lead outside. What is not a regular file or a
//! directory is never opened for its contents; opening does not wait for the other end of a pipe.
//! The host's own files are refused at every step, by name and by inode.

pub(crate) mod by_place;
pub(crate) mod disk;
mod folder;
mod list;
mod path;
mod place;
mod protected;
mod threads;
mod used;
mod write;

use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cap_fs_ext::{DirExt, FollowSymlinks, OpenOptionsFollowExt, OpenOptionsSyncExt};
use cap_std::fs::{Dir, File, Metadata, OpenOptions};
use taskrun_policy::{Capability, Policy};

pub(crate) use by_place::{AccessFlags, OpenEntry};
pub(crate) use folder::WorkspaceFolder;
pub(crate) use list::ListOptions;
pub(crate) use path::RelativePath;
pub(crate) use place::{Fault, Place};
pub use protected::{DATA_DIR, WorkspaceHold};
pub(crate) use protected::{Guard, OWN_FILES, ProtectedPaths};
pub(crate) use threads::FileThreads;
pub(crate) use used::DiskUse;

use crate::bindings::interfaces::workspace_read::{Entry, EntryKind, FileError};
use crate::files::disk::DiskFull;

/// Most bytes that one `read` gives.
pub(crate) const READ_BYTES_MAX: u32 = 4 << 20;

/// Why an operation on a workspace is not done.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It is about one of the host's own files.
    OwnFile,
    /// Anything else, as the guest is told it.
    Error(FileError),
}

impl From<FileError> for Refusal {
    fn from(error: FileError) -> Self {
        Self::Error(error)
    }
}

impl From<DiskFull> for Refusal {
    fn from(full: DiskFull) -> Self {
        Self::Error(full.into())
    }
}

impl From<Refusal> for FileError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::OwnFile => Self::Denied(OWN_FILES.to_owned()),
            Refusal::Error(error) => error,
        }
    }
}

pub(crate) type Result<T> = std::result::Result<T, Refusal>;

/// A folder, opened when it is first used. Clones are the same open folder, whatever becomes of its
/// name. No guest moves it away as long as one of them is there.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    folder: Arc<WorkspaceFolder>,
    opened: Arc<OnceLock<io::Result<Arc<Dir>>>>,
    protected: ProtectedPaths,
    _held: Arc<WorkspaceHold>,
}

/// Set when the caller has gone; long operations look at it between their steps.
#[derive(Debug, Clone, Default)]
pub(crate) struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(FileError::Other("the call has ended".to_owned()).into()),
            false => Ok(()),
        }
    }
}

/// Abandons the operation when dropped.
pub(crate) struct CancelOnDrop(CancelFlag);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a file operation on a thread for such, as soon as one may be used, if it is `allowed` then:
/// while it waited the rules may have become others.
///
/// # Cancel safety
/// Dropping the future abandons the operation: it ends at its next step, and its result is lost.
pub(crate) async fn blocking<T: Send + 'static>(
    threads: FileThreads,
    allowed: impl FnOnce() -> Result<()> + Send + 'static,
    work: impl FnOnce(&CancelFlag) -> Result<T> + Send + 'static,
) -> Result<T> {
    let abandoned = CancelFlag::default();
    let _guard = CancelOnDrop(abandoned.clone());
    let done = threads.run(move || {
        allowed()?;
        work(&abandoned)
    });
    done.await.unwrap_or_else(|| Err(FileError::Other("the host failed".to_owned()).into()))
}

impl Workspace {
    /// Opens a folder, wherever it lies.
    pub(crate) fn open(path: &Path, protected: ProtectedPaths) -> io::Result<Self> {
        Self::of(WorkspaceFolder::new(path, None), protected)
    }

    /// Opens the folder, which is not the host's own at this moment.
    pub(crate) fn of(folder: WorkspaceFolder, protected: ProtectedPaths) -> io::Result<Self> {
        let opened = Arc::new(OnceLock::from(Ok(folder.open(|| Ok(()))?)));
        let held = Arc::new(protected.hold_workspaces([folder.path()]));
        Ok(Self { folder: Arc::new(folder), opened, protected, _held: held })
    }

    /// The same folder by its path, to be opened where that leads then: whoever works for long has
    /// the folder that is there when a call begins to use it, and not one that was moved away.
    pub(crate) fn anew(&self) -> Self {
        Self { opened: Arc::default(), ..self.clone() }
    }

    fn opened(&self) -> io::Result<&Dir> {
        let opened = self.opened.get_or_init(|| self.open_now());
        match opened {
            Ok(root) => Ok(root),
            // Errors of the system cannot be cloned.
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        }
    }

    fn open_now(&self) -> io::Result<Arc<Dir>> {
        let path = self.folder.path();
        let check = || match self.protected.containing(path) {
            Some(_) => Err(io::Error::other("it is in a folder of the host's own")),
            None => Ok(()),
        };
        self.folder.open(check).inspect_err(|error| {
            tracing::warn!(folder = %path.display(), %error, "a workspace cannot be opened");
        })
    }

    /// The open folder, for an operation of a guest.
    fn root(&self) -> Result<&Dir> {
        let told = || FileError::Other("the workspace cannot be opened".to_owned());
        self.opened().map_err(|_| told().into())
    }

    /// The path without links, and the number of the folder that is open.
    fn identity(&self) -> (PathBuf, Option<protected::Id>) {
        (protected::canonical(self.folder.path()), self.opened().ok().and_then(number))
    }

    /// Opens a directory below.
    pub(crate) fn open_folder(&self, path: &str) -> io::Result<Dir> {
        let refused = |error: FileError| io::Error::other(error.to_string());
        let path = RelativePath::new(path).map_err(refused)?;
        let opened = self.directory(path, &self.protected.now());
        opened.map_err(|refusal| refused(refusal.into()))
    }

    /// A file of the host that is in a directory below, or one that the directory is in.
    pub(crate) fn exposed_in(&self, path: &str) -> Option<PathBuf> {
        self.protected.overlapping(&self.folder.path().join(path))
    }

    /// The host's own files as they are now.
    pub(crate) fn guard(&self) -> Guard {
        self.protected.now()
    }

    /// All that is on the way to the host's own files and to the folders of agents as it is now.
    pub(crate) fn ways(&self) -> Guard {
        self.protected.ways()
    }

    /// Opens a directory below.
    fn directory(&self, path: RelativePath<'_>, guard: &Guard) -> Result<Dir> {
        walk(self.root()?, path, guard)
    }

    /// Opens the directory that the last component of a path is in, and gives that component.
    /// `None` for the workspace itself, which is in no directory of ours.
    /// A name of the host's own is refused.
    fn parent<'p>(&self, path: RelativePath<'p>, guard: &Guard) -> Result<Option<(Dir, &'p str)>> {
        let Some((above, name)) = path.split_last() else { return Ok(None) };
        let dir = walk(self.root()?, above, guard)?;
        guard.check_name(&dir, name)?;
        Ok(Some((dir, name)))
    }

    /// The entry at a path.
    pub(crate) fn stat(&self, path: RelativePath<'_>) -> Result<Entry> {
        let guard = self.protected.now();
        let metadata = match self.parent(path, &guard)? {
            Some((dir, name)) => dir.symlink_metadata(name),
            None => self.root()?.dir_metadata(),
        };
        let metadata = metadata.map_err(from_io)?;
        guard.check(&metadata)?;
        Ok(entry(path.as_str().to_owned(), &metadata))
    }

    /// Refuses a path if guests may not make the first thing that is missing on it.
    fn check_new(&self, path: RelativePath<'_>) -> Result<()> {
        let guard = self.protected.now();
        let mut dir = walk(self.root()?, RelativePath::new("")?, &guard)?;
        for name in path.components() {
            dir = match dir.open_dir_nofollow(name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return guard.check_new(&dir, name);
                }
                opened => opened.map_err(from_io)?,
            };
        }
        Ok(())
    }

    /// Part of a file.
    pub(crate) fn read(&self, path: RelativePath<'_>, offset: u64, max: u32) -> Result<Vec<u8>> {
        let guard = self.protected.now();
        let (dir, name) = self.parent(path, &guard)?.ok_or(FileError::NotAFile)?;
        let mut file = open_regular(&dir, name, OpenOptions::new().read(true), &guard)?;
        file.seek(SeekFrom::Start(offset)).map_err(from_io)?;
        let mut bytes = Vec::new();
        file.take(max.min(READ_BYTES_MAX).into()).read_to_end(&mut bytes).map_err(from_io)?;
        Ok(bytes)
    }
}

/// Tells if a path of a workspace leads to one of these files of a host, or to one that a policy
/// consists of: guests are refused those, whatever rules allow. For `workspace-write` it does, too,
/// if nothing may be made at the first name that is missing on the path.
#[must_use]
pub fn is_own_file(
    own: impl IntoIterator<Item = PathBuf>,
    policies: &[&Policy],
    (workspace, capability, path): (&Path, Capability, &str),
) -> bool {
    let protected = ProtectedPaths::default();
    protected.add(own);
    policies.iter().for_each(|policy| protected.add_policy(policy));
    let agents = policies.iter().flat_map(|policy| policy.agents.values());
    let _held = protected.hold_workspaces(agents.map(|agent| agent.workspace.as_path()));
    // Also where the folder of it is missing.
    let is_own = protected.containing(&workspace.join(path)).is_some();
    let (Ok(workspace), Ok(path)) =
        (Workspace::open(workspace, protected), RelativePath::new(path))
    else {
        return false;
    };
    let is_refused = |looked: Result<()>| matches!(looked, Err(Refusal::OwnFile));
    is_own
        || is_refused(workspace.stat(path).map(drop))
        || (capability == Capability::WorkspaceWrite && is_refused(workspace.check_new(path)))
}

/// The number of an open folder.
fn number(dir: &Dir) -> Option<protected::Id> {
    protected::id(&dir.dir_metadata().ok()?)
}

fn walk(root: &Dir, path: RelativePath<'_>, guard: &Guard) -> Result<Dir> {
    let mut dir = root.try_clone().map_err(from_io)?;
    guard.check_dir(&dir)?;
    for name in path.components() {
        guard.check_name(&dir, name)?;
        dir = dir.open_dir_nofollow(name).map_err(|error| not_opened(&dir, name, error))?;
        guard.check_dir(&dir)?;
    }
    Ok(dir)
}

/// The refusal for a directory or a file that could not be opened. The system's answer for a link
/// differs from one system to another.
fn not_opened(dir: &Dir, name: &str, error: io::Error) -> Refusal {
    match dir.symlink_metadata(name) {
        Ok(metadata) if metadata.is_symlink() => through_link(name),
        Ok(_) | Err(_) => from_io(error),
    }
}

fn through_link(name: &str) -> Refusal {
    FileError::InvalidPath(format!("{name:?} is a link; links are not followed")).into()
}

/// Opens a regular file and nothing else, and none of the host's own.
fn open_regular(dir: &Dir, name: &str, options: &mut OpenOptions, guard: &Guard) -> Result<File> {
    // Opening a device can have an effect, so look first; what is opened is looked at again.
    match dir.symlink_metadata(name) {
        Ok(metadata) => {
            guard.check(&metadata)?;
            check_regular(name, &metadata)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(from_io(error)),
    }
    options.follow(FollowSymlinks::No).nonblock(true);
    #[cfg(unix)]
    {
        use cap_std::fs::OpenOptionsExt;
        options.custom_flags(rustix::fs::OFlags::NOCTTY.bits().cast_signed());
    }
    let file = dir.open_with(name, options).map_err(|error| not_opened(dir, name, error))?;
    let metadata = file.metadata().map_err(from_io)?;
    guard.check(&metadata)?;
    check_regular(name, &metadata)?;
    Ok(file)
}

fn check_regular(name: &str, metadata: &Metadata) -> Result<()> {
    if metadata.is_symlink() {
        return Err(through_link(name));
    }
    if metadata.is_file() { Ok(()) } else { Err(FileError::NotAFile.into()) }
}

fn entry(path: String, metadata: &Metadata) -> Entry {
    let kind = if metadata.is_file() {
        EntryKind::File
    } else if metadata.is_dir() {
        EntryKind::Directory
    } else {
        EntryKind::Other
    };
    let size = if metadata.is_file() { metadata.len() } else { 0 };
    let modified_at = metadata.modified().ok().and_then(|time| {
        let since = time.into_std().duration_since(std::time::UNIX_EPOCH).ok()?;
        Some(taskrun_journal::time::millis(since))
    });
    Entry { path, kind, size, modified_at }
}

/// The case for a guest. Everything that speaks of the host stays in the host's log.
#[expect(clippy::wildcard_enum_match_arm, reason = "not our enum, and an open one")]
fn from_io(error: io::Error) -> Refusal {
    use io::ErrorKind as Kind;

    let told = match error.kind() {
        Kind::NotFound => FileError::NotFound,
        Kind::AlreadyExists => FileError::AlreadyExists,
        Kind::NotADirectory => FileError::NotADirectory,
        Kind::IsADirectory => FileError::NotAFile,
        Kind::DirectoryNotEmpty => FileError::Other("the directory is not empty".to_owned()),
        Kind::StorageFull | Kind::QuotaExceeded => {
            FileError::Limit("no space is left in the workspace".to_owned())
        }
        Kind::FileTooLarge => FileError::Limit("the file would be too large".to_owned()),
        Kind::PermissionDenied => {
            FileError::Other("the operating system does not permit it".to_owned())
        }
        Kind::ReadOnlyFilesystem => FileError::Other("the workspace is read-only".to_owned()),
        Kind::InvalidFilename => {
            FileError::InvalidPath("the file system does not take this name".to_owned())
        }
        _ => {
            tracing::debug!(%error, "a file operation failed");
            FileError::Other("the file operation failed".to_owned())
        }
    };
    told.into()
}

#[cfg(test)]
mod tests;
