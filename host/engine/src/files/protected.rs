//! The host's own files: no guest gets at them, whatever the rules allow.
//!
//! They are known by what they are and by where they are: by device and inode, so that a second
//! name for one is refused as well, and by folder and name, so that one which is not there yet
//! cannot be made, nor under a name that some file system takes for the same. Both are looked up
//! anew for each operation, since a component that is built anew is another file.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use cap_std::fs::{Dir, Metadata};
use taskrun_policy::{Policy, folded};

use super::{Refusal, Result, from_io};

/// The name under which a guest hears of such a file.
pub(crate) const OWN_FILES: &str = "the host's own files";

/// Device and inode.
pub(super) type Id = (u64, u64);

/// Paths of the host's own files and folders. Clones are the same set.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProtectedPaths(Arc<RwLock<Paths>>);

#[derive(Debug, Default)]
struct Paths {
    /// Files, and folders with all that is in them.
    own: BTreeSet<PathBuf>,
    /// Arguments of commands. One may name a folder, in which there is more than the command's.
    arguments: BTreeSet<PathBuf>,
}

impl ProtectedPaths {
    pub(crate) fn add(&self, paths: impl IntoIterator<Item = PathBuf>) {
        let paths = paths.into_iter().map(as_it_is_now);
        self.0.write().unwrap_or_else(PoisonError::into_inner).own.extend(paths);
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
        self.0.write().unwrap_or_else(PoisonError::into_inner).arguments.extend(arguments);
    }

    fn paths(&self) -> Vec<PathBuf> {
        let (own, arguments) = {
            let paths = self.0.read().unwrap_or_else(PoisonError::into_inner);
            (paths.own.clone(), paths.arguments.clone())
        };
        // Nobody waits for the lock while the disk is asked.
        own.into_iter().chain(arguments.into_iter().filter(|path| !path.is_dir())).collect()
    }

    /// The files as they are now.
    pub(super) fn now(&self) -> Guard {
        Guard::of(self.paths())
    }

    /// The folders that they are in, and those that these are in, as they are now, by the way that
    /// each path says and by the one without links.
    pub(super) fn ways(&self) -> Guard {
        let paths = self.paths();
        let without_links = paths.iter().map(|path| canonical(path));
        let paths: Vec<PathBuf> = without_links.chain(paths.iter().cloned()).collect();
        Guard::of(paths.iter().flat_map(|path| path.ancestors().skip(1)).collect::<BTreeSet<_>>())
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
fn as_it_is_now(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// The path without links, as far as it exists.
fn canonical(path: &Path) -> PathBuf {
    let mut missing = Vec::new();
    for existing in path.ancestors() {
        if let Ok(canonical) = existing.canonicalize() {
            return missing.iter().rev().fold(canonical, |path, name| path.join(name));
        }
        missing.extend(existing.file_name().map(OsString::from));
    }
    path.to_owned()
}

#[cfg(unix)]
fn id_at(path: &Path) -> Option<Id> {
    use std::os::unix::fs::MetadataExt;

    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(unix)]
fn id(metadata: &Metadata) -> Option<Id> {
    use cap_std::fs::MetadataExt;

    Some((metadata.dev(), metadata.ino()))
}

/// Elsewhere files have no numbers that can be had without opening them.
#[cfg(not(unix))]
fn id_at(_: &Path) -> Option<Id> {
    None
}

#[cfg(not(unix))]
fn id(_: &Metadata) -> Option<Id> {
    None
}

/// The host's own files during one operation.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    ids: Vec<Id>,
    /// A folder, and a name in it, folded. Guests have no names that are not UTF-8.
    names: Vec<(Id, String)>,
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
        let mut places = self.names.iter().filter(|(_, own)| *own == name).peekable();
        if places.peek().is_none() {
            return Ok(());
        }
        let here = id(&dir.dir_metadata().map_err(from_io)?);
        match places.any(|(parent, _)| Some(*parent) == here) {
            true => Err(Refusal::OwnFile),
            false => Ok(()),
        }
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
mod tests {
    use std::fs;

    use super::super::{CancelFlag, ListOptions, RelativePath, Workspace};
    use super::*;
    use crate::bindings::interfaces::workspace_write::WriteMode;
    use crate::files::disk::Writes;

    fn path(text: &str) -> RelativePath<'_> {
        RelativePath::new(text).unwrap()
    }

    /// A workspace with a data directory, a policy, and a second name for the policy.
    fn fixture() -> (tempfile::TempDir, Workspace) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("sub/data/native")).unwrap();
        fs::write(root.join("sub/data/native/key"), "key").unwrap();
        fs::write(root.join("policy.toml"), "policy").unwrap();
        fs::hard_link(root.join("policy.toml"), root.join("sub/again.toml")).unwrap();
        let protected = ProtectedPaths::default();
        let own = ["sub/data", "policy.toml", "absent", "none/absent"];
        protected.add(own.map(|name| root.join(name)));
        let workspace = Workspace::open(root, protected).unwrap();
        (dir, workspace)
    }

    #[track_caller]
    fn assert_refused<T: std::fmt::Debug>(result: Result<T>) {
        assert!(matches!(&result, Err(Refusal::OwnFile)), "{result:?}");
    }

    #[test]
    fn nothing_is_done_to_them_under_any_name() {
        let (dir, workspace) = fixture();
        let (writes, there) = (Writes::of(&workspace), CancelFlag::default());
        let names = ["sub/data", "sub/data/native/key", "policy.toml", "sub/again.toml", "absent"];
        for name in names {
            assert_refused(workspace.stat(path(name)));
            assert_refused(workspace.read(path(name), 0, 10));
            for mode in [WriteMode::Replace, WriteMode::Append] {
                assert_refused(workspace.write(path(name), b"x", mode, &writes, &there));
            }
            assert_refused(workspace.remove(path(name), &writes, &there));
        }
        let aliases = ["Policy.TOML", "ABSENT", "policy.toml.", "absent:x", "ab\u{17f}ent"];
        for new in ["sub/data/new", "absent", "absent/new", "policy.toml"].iter().chain(&aliases) {
            assert_refused(workspace.write(path(new), b"x", WriteMode::CreateNew, &writes, &there));
            assert_refused(workspace.create_directory(path(new), &|_| Ok(()), &writes, &there));
        }
        assert_eq!(fs::read(dir.path().join("policy.toml")).unwrap(), b"policy");
        assert_eq!(fs::read(dir.path().join("sub/data/native/key")).unwrap(), b"key");
        assert!(!dir.path().join("absent").exists());
        // Whoever makes the folder does not get to what would be in it.
        workspace.create_directory(path("none"), &|_| Ok(()), &writes, &there).unwrap();
        assert_refused(workspace.write(
            path("none/absent"),
            b"x",
            WriteMode::CreateNew,
            &writes,
            &there,
        ));
    }

    #[test]
    fn listings_do_not_show_them() {
        let (_dir, workspace) = fixture();
        let wanted = ListOptions { recursive: true, limit: 100, bytes: 1 << 20 };
        let there = CancelFlag::default();
        let listing = workspace.list(path(""), wanted, &|_, _| true, &there).unwrap();
        let paths: Vec<&str> = listing.entries.iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!(paths, ["sub"]);
        assert_refused(workspace.list(path("sub/data"), wanted, &|_, _| true, &there));
        assert!(workspace.open_folder("sub/data/native").is_err());
        assert!(workspace.open_folder("sub").is_ok());
    }

    #[test]
    fn a_file_that_is_built_anew_is_protected_as_well() {
        let (dir, workspace) = fixture();
        let (own, other) = (dir.path().join("policy.toml"), dir.path().join("other"));
        fs::write(&other, "new").unwrap();
        fs::rename(&other, &own).unwrap();
        fs::rename(&own, dir.path().join("moved")).unwrap();
        fs::hard_link(dir.path().join("moved"), &own).unwrap();
        assert_refused(workspace.read(path("moved"), 0, 10));
    }

    #[test]
    fn folders_overlap_through_links_and_before_they_exist() {
        let (dir, workspace) = fixture();
        let (root, link) = (dir.path(), dir.path().join("link"));
        std::os::unix::fs::symlink(root.join("sub"), &link).unwrap();
        let protected = &workspace.protected;
        for folder in ["", "sub", "link", "none", "absent", "absent/below", "sub/data/native"] {
            assert!(protected.overlapping(&root.join(folder)).is_some(), "{folder}");
        }
        assert!(protected.overlapping(&root.join("notes")).is_none());
        assert!(protected.containing(root).is_none());
        assert!(protected.containing(&link.join("data")).is_some());
    }
}
