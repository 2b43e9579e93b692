//! Where a path of WASI leads. Such paths may go through `..` and through links; neither leads
//! out of the folder that they start at.

use std::collections::VecDeque;
use std::io;

use cap_fs_ext::DirExt;
use cap_std::fs::Dir;
use rustix::fs::{AtFlags, Stat, statat};
use rustix::io::Errno;
use taskrun_policy::PATH_BYTES_MAX;

use super::Refusal;
use super::path::is_temporary;
use super::protected::{Guard, Id};
use crate::files::disk::DiskFull;

/// Most links on a path: what Linux allows.
pub(super) const LINKS_MAX: u32 = 40;
/// Most folders that are opened on a path: each `..` is a walk from the beginning.
const OPENS_MAX: u32 = 4_096;

/// A folder, and a name in it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) dir: Dir,
    /// `None` is the folder itself.
    pub(crate) name: Option<String>,
    /// True if the path says by its end that a folder is meant.
    pub(crate) is_folder: bool,
}

/// The reason that an operation of WASI is refused.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The system's error, or the one that it would give.
    Io(io::Error),
    /// It is about one of the host's own files.
    Own,
    /// The path leads out of the folder that it starts at.
    Out,
    /// It is about what is neither a file nor a folder, and stays where it is.
    Special,
    /// It would break a bound.
    Full(DiskFull),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Errno> for Fault {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

impl From<DiskFull> for Fault {
    fn from(full: DiskFull) -> Self {
        Self::Full(full)
    }
}

/// A guard says nothing else than that a file is the host's own, or what the system said.
impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::OwnFile => Self::Own,
            Refusal::Error(_) => Self::Io(Errno::PERM.into()),
        }
    }
}

/// Device and inode of what was looked at.
pub(crate) fn id_of(stat: &Stat) -> Id {
    #[expect(
        clippy::unnecessary_cast,
        reason = "the type of a device differs from system to system"
    )]
    (stat.st_dev as u64, stat.st_ino as u64)
}

impl Place {
    /// Follows a guest's path from an open folder. The last name is followed only if `follow`
    /// says so, and need not be there.
    pub(crate) fn find(root: &Dir, path: &str, follow: bool, guard: &Guard) -> Result<Self, Fault> {
        if path.is_empty() {
            return Err(Errno::NOENT.into());
        }
        if path.len() > PATH_BYTES_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        if path.starts_with('/') {
            return Err(Fault::Out);
        }
        guard.check_dir(root)?;
        let mut walk = Walk { root, guard, dir: root.try_clone()?, above: Vec::new(), opens: 0 };
        let mut rest: VecDeque<String> = path.split('/').map(str::to_owned).collect();
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            match name.as_str() {
                "" | "." => continue,
                ".." => {
                    walk.leave()?;
                    continue;
                }
                // What is being written, and not there yet.
                _ if is_temporary(&name) => return Err(Errno::PERM.into()),
                _ => {}
            }
            guard.check_name(&walk.dir, &name)?;
            let is_last = rest.iter().all(|name| matches!(name.as_str(), "" | "."));
            let is_folder = is_last && !rest.is_empty();
            let found = walk.dir.symlink_metadata(&name);
            match found {
                Ok(found) if found.is_symlink() && (follow || is_folder || !is_last) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP.into());
                    }
                    let target = walk.dir.read_link_contents(&name)?;
                    let target = target.to_str().ok_or(Errno::ILSEQ)?;
                    if target.starts_with('/') {
                        return Err(Fault::Out);
                    }
                    for name in target.rsplit('/') {
                        rest.push_front(name.to_owned());
                    }
                }
                _ if is_last => {
                    return Ok(Self { dir: walk.dir, name: Some(name), is_folder });
                }
                Ok(_) => walk.enter(name)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Self { dir: walk.dir, name: None, is_folder: true })
    }

    /// The name, where the folder itself cannot be meant.
    pub(crate) fn named(self) -> Result<(Dir, String), Fault> {
        match self.name {
            Some(name) => Ok((self.dir, name)),
            None => Err(Errno::BUSY.into()),
        }
    }

    /// The status of the file. None of the host's own files has one.
    pub(crate) fn stat(&self, guard: &Guard) -> Result<Stat, Fault> {
        let stat = match &self.name {
            Some(name) => statat(&self.dir, name.as_str(), AtFlags::SYMLINK_NOFOLLOW)?,
            None => rustix::fs::fstat(&self.dir)?,
        };
        guard.check_id(id_of(&stat))?;
        Ok(stat)
    }

    /// The same, where it is no mistake that nothing is there.
    pub(crate) fn stat_if_any(&self, guard: &Guard) -> Result<Option<Stat>, Fault> {
        match self.stat(guard) {
            Ok(stat) => Ok(Some(stat)),
            Err(Fault::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(fault) => Err(fault),
        }
    }
}

/// The folder that a path has come to, and the names that lead there from its root.
struct Walk<'a> {
    root: &'a Dir,
    guard: &'a Guard,
    dir: Dir,
    above: Vec<String>,
    opens: u32,
}

impl Walk<'_> {
    fn enter(&mut self, name: String) -> Result<(), Fault> {
        self.dir = self.open(&self.dir, &name)?;
        self.opens += 1;
        self.above.push(name);
        Ok(())
    }

    /// Goes where the folder before is by now: what is open keeps no way back.
    fn leave(&mut self) -> Result<(), Fault> {
        self.above.pop().ok_or(Fault::Out)?;
        let mut dir = self.root.try_clone()?;
        for name in &self.above {
            dir = self.open(&dir, name)?;
        }
        self.opens = self.opens.saturating_add(u32::try_from(self.above.len()).unwrap_or(u32::MAX));
        self.dir = dir;
        Ok(())
    }

    fn open(&self, dir: &Dir, name: &str) -> Result<Dir, Fault> {
        if self.opens > OPENS_MAX {
            return Err(Errno::LOOP.into());
        }
        let opened = dir.open_dir_nofollow(name)?;
        self.guard.check_dir(&opened)?;
        Ok(opened)
    }
}
