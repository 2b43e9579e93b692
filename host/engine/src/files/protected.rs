//! The host's own files: no guest gets at them, whatever the rules allow.
//!
//! They are known by what they are and by where they are: by device and inode, so that a second
//! name for one is refused as well, and by folder and name, so that one which is not there yet
//! cannot be made, nor under a name that some file system takes for the same. Both are looked up
//! anew for each operation, since a component that is built anew is another file.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockWriteGuard};

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
    /// host's: another one in the place of one of them would be taken for it. Each has the number
    /// of holds that keep it there.
    workspaces: BTreeMap<PathBuf, usize>,
    /// Arguments of commands. One may name a folder, in which there is more than the command's.
    arguments: BTreeSet<PathBuf>,
}

/// Keeps folders in which agents work where they are, for as long as it is there itself.
#[derive(Debug)]
pub struct WorkspaceHold {
    folders: BTreeSet<PathBuf>,
    of: ProtectedPaths,
}

impl Drop for WorkspaceHold {
    fn drop(&mut self) {
        let mut paths = self.of.write();
        for folder in &self.folders {
            let Some(holds) = paths.workspaces.get_mut(folder) else { continue };
            *holds -= 1;
            if *holds == 0 {
                paths.workspaces.remove(folder);
            }
        }
    }
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
    }

    /// Keeps guests from moving or removing folders in which agents work, and from making those
    /// that are missing.
    #[must_use]
    pub(crate) fn hold_workspaces<'p>(
        &self,
        folders: impl IntoIterator<Item = &'p Path>,
    ) -> WorkspaceHold {
        WorkspaceHold { folders: self.keep_workspaces(folders), of: self.clone() }
    }

    /// The same for good. Gives the folders.
    pub(crate) fn keep_workspaces<'p>(
        &self,
        folders: impl IntoIterator<Item = &'p Path>,
    ) -> BTreeSet<PathBuf> {
        let folders = folders.into_iter().map(|folder| as_it_is_now(folder.to_owned()));
        let folders: BTreeSet<PathBuf> = folders.collect();
        let mut paths = self.write();
        for folder in &folders {
            *paths.workspaces.entry(folder.clone()).or_default() += 1;
        }
        folders
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
        paths.workspaces.keys().cloned().collect()
    }

    /// The files as they are now.
    pub(super) fn now(&self) -> Guard {
        let guard = Guard::of(self.paths().iter().flat_map(|path| steps(path)));
        Guard { of: self.clone(), ..guard }
    }

    /// The folders in which agents work that are not there now: of each the first name that is
    /// missing.
    fn missing(&self) -> Vec<(Id, String)> {
        self.workspaces().iter().filter_map(|path| first_missing(path)).collect()
    }

    /// They, the folders in which agents work, and all that is on the way to any of these, as it is
    /// now. A name is among them whether or not anything is there, and guests move nothing to it or
    /// away. A folder that another call makes there meanwhile is empty, so that the way leads
    /// through no further name of a folder that was open before.
    pub(super) fn ways(&self) -> Guard {
        let mut places = BTreeMap::new();
        for path in self.paths().iter().chain(&self.workspaces()) {
            add_places(&mut places, path);
        }
        Guard::of(places.into_keys())
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

/// Adds each place that a path leads through, with the target of a link there: a name in a folder
/// whose own path is without links. Places that the target of a link leads through are on the way,
/// too. Beneath what is missing the way is as the path says it.
fn add_places(places: &mut BTreeMap<PathBuf, Option<PathBuf>>, path: &Path) {
    let reversed = |path: &Path| path.iter().rev().map(OsStr::to_owned).collect::<Vec<_>>();
    let (mut here, mut rest, mut links) = (PathBuf::new(), reversed(path), 0);
    while let Some(name) = rest.pop() {
        match name.to_str() {
            Some(".") => continue,
            Some("..") => {
                here.pop();
                continue;
            }
            Some(_) | None => {}
        }
        // The `/` that a path begins with leads there from everywhere.
        let place = here.join(name);
        let target = places.entry(place.clone()).or_insert_with(|| place.read_link().ok());
        match target.as_deref().filter(|_| links < LINKS_MAX) {
            Some(target) => {
                links += 1;
                rest.extend(reversed(target));
            }
            None => here = place,
        }
    }
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
    /// Those in folders that are missing.
    unplaced: Vec<PathBuf>,
    /// The paths of which it was made.
    of: ProtectedPaths,
    /// Names of missing folders that agents are to find as people make them, found when something is
    /// to be made. Guests make none of these meanwhile.
    missing: OnceLock<Vec<(Id, String)>>,
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
            let (Some(parent), Some(name)) = (path.parent(), name) else { continue };
            match id_at(parent) {
                Some(parent) => guard.names.push((parent, folded(name))),
                None => guard.unplaced.push(path.to_owned()),
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

    /// Refuses a name at which something is to be made: one of the host's own files, whose folder
    /// may have been made since the operation began, or a folder that agents are to find as people
    /// make it.
    pub(super) fn check_new(&self, dir: &Dir, name: &str) -> Result<()> {
        if !self.unplaced.is_empty() {
            Self::of(&self.unplaced).check_name(dir, name)?;
        }
        check_places(self.missing.get_or_init(|| self.of.missing()), dir, &folded(name))
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
