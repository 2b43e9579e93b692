//! The folder of a workspace, by its path: opened where the path leads at that moment, and never
//! out of the folder in which it has to lie.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cap_fs_ext::DirExt;
use cap_std::ambient_authority;
use cap_std::fs::Dir;

use super::number;
use super::protected::{Id, as_it_is_now};

/// The path of a workspace's folder, as a policy says it.
#[derive(Debug)]
pub(crate) struct WorkspaceFolder {
    path: PathBuf,
    /// The folder in which it has to lie, where links lead, too.
    root: Option<PathBuf>,
    last: Mutex<LastFolder>,
}

/// The folder that was there the last time.
#[derive(Debug, Default)]
struct LastFolder {
    /// It, as long as a call has it open: calls that find the same one have one descriptor for all
    /// of them.
    open: Weak<Dir>,
    /// Its number. It was found then to be one that may be used.
    checked: Option<Id>,
}

impl WorkspaceFolder {
    pub(crate) fn new(path: &Path, root: Option<&Path>) -> Self {
        let root = root.map(|root| as_it_is_now(root.to_owned()));
        Self { path: as_it_is_now(path.to_owned()), root, last: Mutex::default() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens it as it is now. One that is another than the last time has to pass the check.
    pub(super) fn open(&self, check: impl FnOnce() -> io::Result<()>) -> io::Result<Arc<Dir>> {
        let found = self.find()?;
        let id = number(&found);
        // The lock is not held while the disk is asked.
        let is_checked = id.is_some() && self.last().checked == id;
        if !is_checked {
            check()?;
        }
        let mut last = self.last();
        last.checked = id;
        if let Some(open) = last.open.upgrade()
            && number(&open) == id
        {
            return Ok(open);
        }
        let found = Arc::new(found);
        last.open = Arc::downgrade(&found);
        Ok(found)
    }

    fn last(&self) -> MutexGuard<'_, LastFolder> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens it; here, and only here, links are followed. That it lies in its root is decided by
    /// what is opened: a link that is put in its way meanwhile leads nowhere else.
    fn find(&self) -> io::Result<Dir> {
        let Some(root) = &self.root else { return open(&self.path) };
        let below = self.path.strip_prefix(root).map_err(|_| leads_out())?;
        let outer = open(root)?;
        if below.as_os_str().is_empty() {
            return Ok(outer);
        }
        match outer.open_dir(below) {
            // A link that leads out, or that says from `/` on where it leads.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.open_without_links(root, outer)
            }
            opened => opened,
        }
    }

    /// Opens it by the path that it has without links, following none.
    fn open_without_links(&self, root: &Path, outer: Dir) -> io::Result<Dir> {
        let (real, root) = (self.path.canonicalize()?, root.canonicalize()?);
        let below = real.strip_prefix(&root).map_err(|_| leads_out())?;
        below.iter().try_fold(outer, |dir, name| dir.open_dir_nofollow(name))
    }
}

fn open(path: &Path) -> io::Result<Dir> {
    Dir::open_ambient_dir(path, ambient_authority())
}

fn leads_out() -> io::Error {
    io::Error::other("it leads out of the workspace's root")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// The text of the file `name` in the folder `sub` of a root.
    fn found(root: &Path) -> io::Result<String> {
        let folder = WorkspaceFolder::new(&root.join("sub"), Some(root));
        folder.open(|| Ok(()))?.read_to_string("name")
    }

    #[test]
    fn a_folder_in_the_place_of_another_is_checked_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("w");
        fs::create_dir(&path).expect("made");
        let folder = WorkspaceFolder::new(&path, None);
        let refuse = || Err(io::Error::other("it may not be used"));
        folder.open(|| Ok(())).expect("it passes");
        folder.open(refuse).expect("it passed before");
        fs::rename(&path, dir.path().join("old")).expect("moved");
        fs::create_dir(&path).expect("another one");
        for _ in 0..2 {
            folder.open(refuse).expect_err("it never passed");
        }
        folder.open(|| Ok(())).expect("it passes");
        folder.open(refuse).expect("it passed before");
    }

    #[test]
    fn a_folder_is_opened_beneath_its_root_alone_by_links_of_either_kind() {
        let dir = tempfile::tempdir().expect("a folder");
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        for folder in [root.join("deep/in"), outside.clone()] {
            fs::create_dir_all(&folder).expect("made");
            fs::write(folder.join("name"), folder.as_os_str().as_encoded_bytes()).expect("written");
        }
        let sub = root.join("sub");
        assert!(found(&root).is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
        for inside in ["deep/in".into(), "deep/../deep/in".into(), root.join("deep/in")] {
            symlink(&inside, &sub).expect("linked");
            let name = found(&root).expect("it lies in the root");
            assert!(name.ends_with("deep/in"), "{}: {name}", inside.display());
            fs::remove_file(&sub).expect("removed");
        }
        for out in [outside.clone(), "../outside".into(), "deep/../../outside".into(), "/".into()] {
            symlink(&out, &sub).expect("linked");
            let error = found(&root).expect_err("it leads out");
            assert!(error.to_string().contains("leads out"), "{}: {error}", out.display());
            fs::remove_file(&sub).expect("removed");
        }
        // The root itself may be a link, wherever that leads.
        symlink("deep/in", &sub).expect("linked");
        let link = dir.path().join("link");
        symlink(&root, &link).expect("linked");
        assert!(found(&link).expect("it lies in the root").ends_with("deep/in"));
    }

    #[test]
    fn a_folder_that_is_swapped_for_a_link_out_while_it_is_opened_is_never_that() {
        let dir = tempfile::tempdir().expect("a folder");
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        fs::create_dir_all(root.join("sub")).expect("made");
        fs::create_dir(&outside).expect("made");
        fs::write(root.join("sub/name"), "inside").expect("written");
        fs::write(outside.join("name"), "outside").expect("written");
        symlink(&outside, root.join("link")).expect("linked");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let (sub, spare, link) = (root.join("sub"), root.join("spare"), root.join("link"));
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    for (from, to) in [(&sub, &spare), (&link, &sub), (&sub, &link), (&spare, &sub)]
                    {
                        fs::rename(from, to).expect("moved");
                    }
                }
            });
            // It is the folder at times.
            let opened = std::iter::repeat_with(|| found(&root).ok()).flatten();
            let seen: Vec<String> = opened.take(100).collect();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(seen.iter().all(|name| name == "inside"), "{seen:?}");
        });
    }
}
