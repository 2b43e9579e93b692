//! A disk that takes no writes any more when it is told to, and takes them again: the kernel
//! refuses each write to files that are open already.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A way in which the kernel is made to refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Files and folder become immutable: nothing is written, made or removed in it by anybody, as
    /// on a file system that the kernel has made read-only. Takes a file system that knows this,
    /// and a user who may.
    Immutable,
    /// This process may not write to any file, wherever in it: anybody may do that to himself, on
    /// every file system. What it writes is refused with another code (`EFBIG`); SQLite tells them
    /// apart from a full disk, and not from each other.
    NoBytes,
}

impl Way {
    pub(super) const ALL: [Self; 2] = [Self::Immutable, Self::NoBytes];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Immutable => "immutable",
            Self::NoBytes => "no-bytes",
        }
    }

    pub(super) fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.word() == word)
    }
}

/// The disk under a store.
pub(super) struct Disk {
    way: Way,
    folder: PathBuf,
}

impl Disk {
    pub(super) fn new(way: Way, folder: &Path) -> Self {
        Self { way, folder: folder.to_owned() }
    }

    /// Nothing if the kernel can be made to refuse so here, or else the reason why not.
    pub(super) fn check(&self) -> io::Result<()> {
        let probe = self.folder.join("probe");
        let file = File::create(&probe)?;
        let refused = self.refuse().map(|()| writes(&file));
        self.accept()?;
        fs::remove_file(probe)?;
        match refused? {
            Err(_) => writes(&file),
            Ok(()) => Err(io::Error::other("what is open stays writable")),
        }
    }

    /// From now on nothing can be written.
    pub(super) fn refuse(&self) -> io::Result<()> {
        self.set(true)
    }

    /// From now on everything can be written again.
    pub(super) fn accept(&self) -> io::Result<()> {
        self.set(false)
    }

    fn set(&self, refuses: bool) -> io::Result<()> {
        match self.way {
            Way::NoBytes => {
                let limit = getrlimit(Resource::Fsize);
                let current = if refuses { Some(0) } else { limit.maximum };
                Ok(setrlimit(Resource::Fsize, Rlimit { current, ..limit })?)
            }
            Way::Immutable => {
                set_immutable(&self.folder, refuses)?;
                for entry in fs::read_dir(&self.folder)? {
                    let path = entry?.path();
                    // The index of the log is memory that processes share; no part of it is ever
                    // written by a call that could be refused.
                    if path.is_file() && !path.to_string_lossy().ends_with("-shm") {
                        set_immutable(&path, refuses)?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// True if a byte can be written to a file that was opened before.
fn writes(file: &File) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    file.write_at(b"x", 0).map(drop)
}

#[cfg(target_os = "linux")]
fn set_immutable(path: &Path, immutable: bool) -> io::Result<()> {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    let file = File::open(path)?;
    let mut flags = ioctl_getflags(&file)?;
    flags.set(IFlags::IMMUTABLE, immutable);
    Ok(ioctl_setflags(&file, flags)?)
}

#[cfg(not(target_os = "linux"))]
fn set_immutable(_path: &Path, _immutable: bool) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
