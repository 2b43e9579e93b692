//! The permission to write the files of a store, asked for before SQLite opens one of them.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgid, getuid};
use taskrun_journal::store::StoreError;

use crate::sqlite::fault::io_error;
use crate::sqlite::store_path::{FILE_NAME, FILE_NAMES, StorePath};

/// All that a file may be given of the permissions of the database.
const MODE_MAX: u32 = 0o666;

/// Refuses files that this process may not write: for a database that may only be read SQLite makes
/// an index like that, which stays, and has all that is written later refused.
pub(super) fn check_writable(place: &StorePath) -> Result<(), StoreError> {
    for name in FILE_NAMES {
        let file = place.dir.join(name);
        let ask = |flags| rustix::fs::accessat(CWD, &file, Access::WRITE_OK, flags);
        // Log and index may be left from a time when the database could only be read.
        let is_mended = || name != FILE_NAME && unlock(place, &file) && access(ask).is_ok();
        match access(ask) {
            Err(Errno::ACCESS) if is_mended() => {}
            Err(error @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => {
                return Err(io_error(&file, &error.into()));
            }
            // What else keeps it from being written SQLite says.
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Asks for access to a file as this process has it. A sandbox that does not know `faccessat2`, as
/// that of Docker before 20.10, refuses each question with flags, whatever the file is; without
/// flags the answer is the same one where no other user's permissions were taken on.
fn access(ask: impl Fn(AtFlags) -> Result<(), Errno>) -> Result<(), Errno> {
    match ask(AtFlags::EACCESS) {
        Err(Errno::PERM) if (getuid(), getgid()) == (geteuid(), getegid()) => ask(AtFlags::empty()),
        answer => answer,
    }
}

/// Gives a file of ours the permissions of the database, with which SQLite makes it. True if it has
/// them then.
fn unlock(place: &StorePath, file: &Path) -> bool {
    let of_database = std::fs::metadata(&place.file).map(|about| about.permissions().mode());
    of_database.and_then(|mode| set_mode(file, mode & MODE_MAX)).is_ok()
}

/// Sets the permissions of a file of ours. In a folder that several users share, another one may
/// have put a link there: that is left alone, and so is what it leads to.
#[cfg(target_os = "linux")]
fn set_mode(file: &Path, mode: u32) -> io::Result<()> {
    use std::fs::{OpenOptions, Permissions};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    use rustix::fs::OFlags;

    // A handle of a place, not of what is in it: closed, it takes no locks of SQLite with it.
    let flags = (OFlags::PATH | OFlags::NOFOLLOW).bits().cast_signed();
    let handle = OpenOptions::new().read(true).custom_flags(flags).open(file)?;
    check_own(&handle.metadata()?)?;
    let same = format!("/proc/self/fd/{}", handle.as_raw_fd());
    std::fs::set_permissions(same, Permissions::from_mode(mode))
}

/// The same, of the file that has the name then, which may be another one than was looked at.
#[cfg(not(target_os = "linux"))]
fn set_mode(file: &Path, mode: u32) -> io::Result<()> {
    use rustix::fs::{Mode, RawMode};

    check_own(&std::fs::symlink_metadata(file)?)?;
    let mode = Mode::from_raw_mode(RawMode::try_from(mode).map_err(io::Error::other)?);
    Ok(rustix::fs::chmodat(CWD, file, mode, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Refuses what is no file of this user with this one name.
fn check_own(about: &Metadata) -> io::Result<()> {
    match about.is_file() && about.nlink() == 1 && about.uid() == geteuid().as_raw() {
        true => Ok(()),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs::{File, Permissions};

    use super::*;
    use crate::sqlite::store_path::{INDEX_NAME, LOG_NAME, store_path};

    /// Makes a file with these permissions.
    fn make(path: &Path, mode: u32) {
        File::create(path).expect("made");
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().expect("it is there").permissions().mode() & 0o7777
    }

    #[test]
    fn what_was_left_gets_the_permissions_to_read_and_write_of_the_database() {
        let dir = tempfile::tempdir().expect("a folder");
        let place = store_path(dir.path());
        make(&place.file, 0o770);
        let index = dir.path().join(INDEX_NAME);
        make(&index, 0o440);
        assert!(unlock(&place, &index));
        assert_eq!(mode(&index), 0o660);
        assert!(!unlock(&place, &dir.path().join(LOG_NAME)), "there is none");
    }

    #[test]
    fn a_link_is_left_alone_and_so_is_what_it_leads_to() {
        let dir = tempfile::tempdir().expect("a folder");
        let place = store_path(dir.path());
        make(&place.file, 0o660);
        let key = dir.path().join("key.pem");
        make(&key, 0o400);
        let index = dir.path().join(INDEX_NAME);
        std::os::unix::fs::symlink(&key, &index).expect("linked");
        assert!(!unlock(&place, &index));
        assert_eq!(mode(&key), 0o400);
        let log = dir.path().join(LOG_NAME);
        std::fs::hard_link(&key, &log).expect("linked");
        assert!(!unlock(&place, &log));
        assert_eq!(mode(&key), 0o400);
    }

    #[test]
    fn a_folder_in_the_place_of_a_file_is_left_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        let place = store_path(dir.path());
        make(&place.file, 0o600);
        let index = dir.path().join(INDEX_NAME);
        std::fs::create_dir(&index).expect("made");
        let before = mode(&index);
        assert!(!unlock(&place, &index));
        assert_eq!(mode(&index), before);
    }

    #[test]
    fn a_sandbox_that_does_not_know_the_question_is_asked_another_one() {
        let asked = RefCell::new(Vec::new());
        // The answer to the question with flags, and that to the one without.
        let answer = |with_flags: Result<(), Errno>, without: Result<(), Errno>| {
            asked.borrow_mut().clear();
            access(|flags| {
                asked.borrow_mut().push(flags);
                if flags.is_empty() { without } else { with_flags }
            })
        };
        assert_eq!(answer(Err(Errno::PERM), Ok(())), Ok(()));
        assert_eq!(asked.take(), [AtFlags::EACCESS, AtFlags::empty()]);
        assert_eq!(answer(Err(Errno::PERM), Err(Errno::ACCESS)), Err(Errno::ACCESS));
        // That of a file that nobody may change.
        assert_eq!(answer(Err(Errno::PERM), Err(Errno::PERM)), Err(Errno::PERM));
        assert_eq!(answer(Err(Errno::ACCESS), Ok(())), Err(Errno::ACCESS));
        assert_eq!(asked.take(), [AtFlags::EACCESS], "that is an answer");
        assert_eq!(answer(Ok(()), Err(Errno::ACCESS)), Ok(()));
    }
}
