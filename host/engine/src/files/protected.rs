//! The host's own files: no guest gets at them, whatever the rules allow.
//!
//! They are known by what they are and by where they are: by device and inode, so that a second
//! name for one is refused as well, and by folder and name, so that one which is not there yet
//! cannot be made, nor under a name that some file system takes for the same. Both are looked up
//! anew for each operation, since a component that is built anew is another file.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use cap_std::fs::{Dir, Metadata};
use taskrun_policy::{Policy, folded};

use super::place::LINKS_MAX;
use super::{Refusal, Result, from_io};

/// The name under which a guest hears of such a file.
pub(crate) const OWN_FILES: &str = "the host's own files";

/// Name of a data directory beside its policy, unless another one is named. Wherever a folder is
/// called so it may be that of another project, with native code and the key that vouches for it,
/// so no guest gets at any.
pub const DATA_DIR: &str = ".taskrun";

/// Device and inode.
pub(super) type Id = (u64, u64);

/// Paths of the host's own files and folders. Clones are the same set.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProtectedPaths(Arc<RwLock<Paths>>);

#[derive(Debug, Default)]
struct Paths {
    /// Files, and folders with all that is in them.
    own: BTreeSet<PathBuf>,
    /// Folders in which agents work. What is in them is theirs, and that they stand there is the
    /// host's: another one in the place of one of them would be taken for it.
    workspaces: BTreeSet<PathBuf>,
    /// Arguments of commands. One may name a folder, in which there is more than the command's.
    arguments: BTreeSet<PathBuf>,
}

impl ProtectedPaths {
    pub(crate) fn add(&self, paths: impl IntoIterator<Item = PathBuf>) {
        let paths = paths.into_iter().map(as_it_is_now);
        self.write().own.extend(paths);
    }

    fn write(&self) -> RwLockWriteGuard<'_, Paths> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The files that a policy consists of: itself, its components and prompts, the scripts, cassettes
    /// and keys of its models, and the files of its subscribers with those that arguments name.
    pub(crate) fn add_policy(&self, policy: &Policy) {
        let agents = policy.agents.values().map(|agent| &agent.component);
        let tools = policy.tools.values().map(|tool| &tool.component);
        let models = policy.models.values().flat_map(|model| model.files());
        let prompts = policy.prompts.values().flat_map(|prompt| {
            let overrides = prompt.overrides.iter().map(|one| &one.template);
            std::iter::once(&prompt.template).chain(overrides).filter_map(|one| one.file.as_deref())
        });
        let engines = policy.agents.values().filter_map(|agent| agent.engine.as_ref());
        let engines = engines.filter_map(|engine| engine.component.as_ref());
        let named = agents.chain(tools).chain(engines).chain([&policy.path]).map(PathBuf::as_path);
        let subscribers = policy.subscribers.values().flat_map(|one| one.files());
        self.add(named.chain(subscribers).chain(models).chain(prompts).map(Path::to_owned));
        let arguments = policy.subscribers.values().flat_map(|one| one.arguments());
        let arguments = arguments.cloned().map(as_it_is_now);
        self.write().arguments.extend(arguments);
        let workspaces = policy.agents.values().map(|agent| agent.workspace.clone());
        self.write().workspaces.extend(workspaces.map(as_it_is_now));
    }

    fn paths(&self) -> Vec<PathBuf> {
        let (own, arguments) = {
            let paths = self.0.read().unwrap_or_else(PoisonError::into_inner);
            (paths.own.clone(), paths.arguments.clone())
        };
        // Nobody waits for the lock while the disk is asked.
        own.into_iter().chain(arguments.into_iter().filter(|path| !path.is_dir())).collect()
    }

    fn workspaces(&self) -> Vec<PathBuf> {
        let paths = self.0.read().unwrap_or_else(PoisonError::into_inner);
        paths.workspaces.iter().cloned().collect()
    }

    /// The files as they are now, and the folders in which agents work that are not there.
    pub(super) fn now(&self) -> Guard {
        let missing = self.workspaces().iter().filter_map(|path| first_missing(path)).collect();
        Guard { missing, ..Guard::of(self.paths().iter().flat_map(|path| steps(path))) }
    }

    /// The folders that they are in, those in which agents work, and those that all of these are
    /// in, as they are now, by the way that each path says and by the one without links.
    pub(super) fn ways(&self) -> Guard {
        let mut folders = BTreeSet::new();
        for file in self.paths().iter().flat_map(|path| steps(path)) {
            for path in [canonical(&file), file] {
                folders.extend(path.parent().map(Path::to_owned));
            }
        }
        for folder in self.workspaces() {
            folders.extend([canonical(&folder), folder]);
        }
        let all: BTreeSet<&Path> = folders.iter().flat_map(|path| path.ancestors()).collect();
        Guard::of(all.into_iter().flat_map(steps))
    }

    /// One of them that is `dir`, contains it, or is in it.
    pub(crate) fn overlapping(&self, dir: &Path) -> Option<PathBuf> {
        let dir = canonical(dir);
        self.paths().into_iter().find(|path| {
            let path = canonical(path);
            path.starts_with(&dir) || dir.starts_with(&path)
        })
    }

    /// One of them that is `dir` or contains it.
    pub(crate) fn containing(&self, dir: &Path) -> Option<PathBuf> {
        let dir = canonical(dir);
        self.paths().into_iter().find(|path| dir.starts_with(canonical(path)))
    }
}

/// A relative path means what it means now.
pub(super) fn as_it_is_now(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// The path to which a link leads, whether or not anything is there.
fn led_to(link: &Path) -> Option<PathBuf> {
    let target = link.read_link().ok()?;
    Some(link.parent()?.join(target))
}

/// A path, and each to which its last name leads by links. Nothing may be at the last one, and who
/// makes it has made what the first one names.
fn steps(path: &Path) -> Vec<PathBuf> {
    let mut steps = vec![path.to_owned()];
    while steps.len() <= LINKS_MAX as usize
        && let Some(next) = steps.last().and_then(|last| led_to(last))
    {
        steps.push(next);
    }
    steps
}

/// The path without links, as far as it exists, also where a link leads to what does not.
pub(super) fn canonical(path: &Path) -> PathBuf {
    let (mut existing, mut missing, mut links) = (path.to_owned(), Vec::<OsString>::new(), 0);
    loop {
        if let Ok(canonical) = existing.canonicalize() {
            return missing.iter().rev().fold(canonical, |path, name| path.join(name));
        }
        if let Some(next) = led_to(&existing).filter(|_| links < LINKS_MAX) {
            links += 1;
            existing = next;
            continue;
        }
        missing.extend(existing.file_name().map(OsString::from));
        if !existing.pop() {
            return path.to_owned();
        }
    }
}

/// The first name on the way to a folder at which nothing is, and the folder that it is missing in.
fn first_missing(path: &Path) -> Option<(Id, String)> {
    if path.exists() {
        return None;
    }
    canonical(path)
        .ancestors()
        .find_map(|one| Some((id_at(one.parent()?)?, folded(one.file_name()?.to_str()?))))
}

#[cfg(unix)]
fn id_at(path: &Path) -> Option<Id> {
    use std::os::unix::fs::MetadataExt;

    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(unix)]
pub(super) fn id(metadata: &Metadata) -> Option<Id> {
    use cap_std::fs::MetadataExt;

    Some((metadata.dev(), metadata.ino()))
}

/// Elsewhere files have no numbers that can be had without opening them.
#[cfg(not(unix))]
fn id_at(_: &Path) -> Option<Id> {
    None
}

#[cfg(not(unix))]
pub(super) fn id(_: &Metadata) -> Option<Id> {
    None
}

/// The host's own files during one operation.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    ids: Vec<Id>,
    /// A folder, and a name in it, folded. Guests have no names that are not UTF-8.
    names: Vec<(Id, String)>,
    /// The same of folders that agents are to find as people make them.
    missing: Vec<(Id, String)>,
}

/// Refuses a name in a directory that is one of these, and folded.
fn check_places(places: &[(Id, String)], dir: &Dir, name: &str) -> Result<()> {
    let mut places = places.iter().filter(|(_, own)| *own == name).peekable();
    if places.peek().is_none() {
        return Ok(());
    }
    let here = id(&dir.dir_metadata().map_err(from_io)?);
    match places.any(|(parent, _)| Some(*parent) == here) {
        true => Err(Refusal::OwnFile),
        false => Ok(()),
    }
}

impl Guard {
    fn of<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Self {
        let mut guard = Self::default();
        for path in paths {
            let path = path.as_ref();
            guard.ids.extend(id_at(path));
            let name = path.file_name().and_then(OsStr::to_str);
            if let (Some(parent), Some(name)) = (path.parent().and_then(id_at), name) {
                guard.names.push((parent, folded(name)));
            }
        }
        guard
    }

    /// Refuses a name in a directory, whether or not anything is there.
    pub(super) fn check_name(&self, dir: &Dir, name: &str) -> Result<()> {
        let name = folded(name);
        if name == folded(DATA_DIR) {
            return Err(Refusal::OwnFile);
        }
        check_places(&self.names, dir, &name)
    }

    /// Refuses a name at which something is to be made, where an agent's folder is missing.
    pub(super) fn check_new(&self, dir: &Dir, name: &str) -> Result<()> {
        check_places(&self.missing, dir, &folded(name))
    }

    /// Refuses a file or directory by what it is.
    pub(super) fn check(&self, metadata: &Metadata) -> Result<()> {
        match id(metadata).is_some_and(|id| self.ids.contains(&id)) {
            true => Err(Refusal::OwnFile),
            false => Ok(()),
        }
    }

    /// The same, by its number.
    pub(super) fn check_id(&self, id: Id) -> Result<()> {
        match self.ids.contains(&id) {
            true => Err(Refusal::OwnFile),
            false => Ok(()),
        }
    }

    /// Refuses an open directory by what it is.
    pub(super) fn check_dir(&self, dir: &Dir) -> Result<()> {
        match self.ids.is_empty() {
            true => Ok(()),
            false => self.check(&dir.dir_metadata().map_err(from_io)?),
        }
    }
}

#[cfg(test)]
mod tests;
