//! The operations of `wasi:filesystem` that take a path, held to what the own interfaces are held
//! to: nothing but files and folders is opened, none of the host's own, and what is added is
//! counted.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use cap_fs_ext::{DirExt, FollowSymlinks, OpenOptionsFollowExt, OpenOptionsSyncExt};
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};
use rustix::fs::{AtFlags, FileType, Stat, Timestamps, linkat, renameat, unlinkat, utimensat};
use rustix::io::Errno;

use super::DiskUse;
use super::path::is_temporary;
use super::place::{Fault, Place, id_of};
use super::protected::Guard;
use crate::files::disk::{Growth, Writes};

/// The flags with which a path is opened.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AccessFlags {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) create: bool,
    pub(crate) exclusive: bool,
    pub(crate) truncate: bool,
    pub(crate) folder: bool,
}

/// A file or folder that was opened.
#[derive(Debug)]
pub(crate) enum OpenEntry {
    File(File),
    Folder(File),
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// The use that ends with one name of a file.
fn freed(stat: &Stat) -> DiskUse {
    let is_last = kind(stat) == FileType::RegularFile && stat.st_nlink == 1;
    let bytes = if is_last { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 };
    DiskUse { bytes, files: 1 }
}

const ONE_FILE: Growth = Growth { written: 0, longer: 0, files: 1 };

/// Opens a file or a folder. A pipe, a device or a link is refused without waiting for anything.
pub(crate) fn open(
    place: Place,
    how: AccessFlags,
    guard: &Guard,
    writes: Option<&Writes>,
) -> Result<OpenEntry, Fault> {
    let found = place.stat_if_any(guard)?;
    let must_be_folder = how.folder || place.is_folder;
    let (dir, name) = match (place.name, found.as_ref().map(kind)) {
        (_, Some(_)) if how.create && how.exclusive => return Err(Errno::EXIST.into()),
        (None, _) | (Some(_), Some(FileType::Directory))
            if how.create || how.write || how.truncate =>
        {
            return Err(Errno::ISDIR.into());
        }
        (None, _) => return Ok(OpenEntry::Folder(place.dir.into_std_file())),
        (Some(name), Some(FileType::Directory)) => {
            let opened = place.dir.open_dir_nofollow(&name)?;
            guard.check_dir(&opened)?;
            return Ok(OpenEntry::Folder(opened.into_std_file()));
        }
        (Some(_), Some(_)) if must_be_folder => return Err(Errno::NOTDIR.into()),
        (Some(_), Some(FileType::Symlink)) => return Err(Errno::LOOP.into()),
        (Some(name), Some(FileType::RegularFile)) => (place.dir, name),
        (Some(_), Some(_)) => return Err(Errno::PERM.into()),
        (Some(_), None) if must_be_folder || !how.create => return Err(Errno::NOENT.into()),
        (Some(name), None) => (place.dir, name),
    };
    open_file(&dir, &name, how, found.is_none(), (guard, writes)).map(OpenEntry::File)
}

fn open_file(
    dir: &Dir,
    name: &str,
    how: AccessFlags,
    is_new: bool,
    (guard, writes): (&Guard, Option<&Writes>),
) -> Result<File, Fault> {
    let grant = match (is_new, writes) {
        (true, Some(writes)) => {
            guard.check_new(dir, name)?;
            Some(writes.grant(dir, ONE_FILE)?)
        }
        (true, None) => return Err(Errno::PERM.into()),
        (false, _) => None,
    };
    let mut options = OpenOptions::new();
    // A file is emptied when it is known what it is.
    options.read(how.read || !how.write).write(how.write || how.create || how.truncate);
    // What was there is not made anew if it is gone since: it would not be counted.
    options.create(is_new && !how.exclusive).create_new(is_new && how.exclusive);
    options.follow(FollowSymlinks::No).nonblock(true);
    options.custom_flags(rustix::fs::OFlags::NOCTTY.bits().cast_signed());
    let file = dir.open_with(name, &options)?.into_std();
    let stat = rustix::fs::fstat(&file)?;
    guard.check_id(id_of(&stat))?;
    if kind(&stat) != FileType::RegularFile {
        return Err(Errno::PERM.into());
    }
    if let Some(grant) = grant {
        grant.keep();
    }
    if how.truncate && stat.st_size > 0 {
        set_size(&file, 0, writes)?;
    }
    Ok(file)
}

/// Makes a file longer or shorter.
pub(crate) fn set_size(file: &File, size: u64, writes: Option<&Writes>) -> Result<(), Fault> {
    let writes = writes.ok_or(Errno::PERM)?;
    let ledgers = writes.ledgers();
    let alone = ledgers.alone();
    let stat = rustix::fs::fstat(file)?;
    let before = u64::try_from(stat.st_size).unwrap_or(0);
    if size > before {
        let growth = Growth { written: 0, longer: size - before, files: 0 };
        let grant = writes.grant(file, growth)?;
        file.set_len(size)?;
        grant.keep();
        return Ok(());
    }
    alone.take_away(|| {
        file.set_len(size)?;
        // What has no name any more was given back with it.
        Ok(DiskUse { bytes: if stat.st_nlink == 0 { 0 } else { before - size }, files: 0 })
    })
}

/// Writes all of a piece, at a place or at the end.
pub(crate) fn write(
    file: &File,
    piece: &[u8],
    position: Option<u64>,
    writes: &Writes,
) -> Result<(), Fault> {
    let _steady = writes.steady();
    let (bytes, length) = (piece.len() as u64, file.metadata()?.len());
    let end = position.unwrap_or(length).saturating_add(bytes);
    let growth = Growth { written: bytes, longer: end.saturating_sub(length), files: 0 };
    let grant = writes.grant(file, growth)?;
    let written = match position {
        Some(position) => file.write_all_at(piece, position),
        None => append(file, piece),
    };
    // A part may be there.
    grant.keep();
    Ok(written?)
}

/// Adds to the end in one step each, so that who else appends loses nothing.
#[cfg(target_os = "linux")]
fn append(file: &File, mut piece: &[u8]) -> io::Result<()> {
    use rustix::io::{ReadWriteFlags, pwritev2};

    while !piece.is_empty() {
        let written = pwritev2(file, &[io::IoSlice::new(piece)], 0, ReadWriteFlags::APPEND)?;
        piece = piece.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Elsewhere no file can be opened twice with one descriptor, once for its end.
#[cfg(not(target_os = "linux"))]
fn append(_: &File, _: &[u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn create_folder(place: Place, guard: &Guard, writes: &Writes) -> Result<(), Fault> {
    if place.stat_if_any(guard)?.is_some() {
        return Err(Errno::EXIST.into());
    }
    let (dir, name) = place.named()?;
    guard.check_new(&dir, &name)?;
    let grant = writes.grant(&dir, ONE_FILE)?;
    dir.create_dir(name)?;
    grant.keep();
    Ok(())
}

/// Gives a file a second name.
pub(crate) fn link(from: Place, to: Place, guard: &Guard, writes: &Writes) -> Result<(), Fault> {
    let _steady = writes.steady();
    let kind = kind(&from.stat(guard)?);
    if kind == FileType::Directory {
        return Err(Errno::PERM.into());
    }
    // A link to a link is one more way to what is not known here.
    if kind != FileType::RegularFile {
        return Err(Fault::Special);
    }
    if to.stat_if_any(guard)?.is_some() {
        return Err(Errno::EXIST.into());
    }
    let ((old_dir, old), (dir, name)) = (from.named()?, to.named()?);
    guard.check_new(&dir, &name)?;
    let grant = writes.grant(&dir, ONE_FILE)?;
    linkat(&old_dir, old.as_str(), &dir, name.as_str(), AtFlags::empty())?;
    grant.keep();
    writes.ledgers().note_move(old_dir.as_fd(), dir.as_fd());
    Ok(())
}

/// Moves a file or a folder, and nothing else: guests make no links, and one that is moved leads
/// elsewhere. `ways` is all that is on the way to the host's own files and to the folders in which
/// agents work, as it was when both places had been found: moved, it would take those with it, and
/// what is put in its place would be taken for the host's, or for an agent's.
pub(crate) fn rename(
    from: Place,
    to: Place,
    (guard, ways): (&Guard, &Guard),
    writes: &Writes,
) -> Result<(), Fault> {
    let ledgers = writes.ledgers();
    let alone = ledgers.alone();
    let old = from.stat(guard)?;
    let replaced = to.stat_if_any(guard)?;
    for stat in std::iter::once(&old).chain(&replaced) {
        ways.check_id(id_of(stat))?;
    }
    let ((old_dir, name), (dir, to)) = (from.named()?, to.named()?);
    ways.check_name(&old_dir, &name)?;
    ways.check_name(&dir, &to)?;
    if !matches!(kind(&old), FileType::RegularFile | FileType::Directory) {
        return Err(Fault::Special);
    }
    alone.take_away(|| {
        renameat(&old_dir, name.as_str(), &dir, to.as_str())?;
        // Two names of one file both stay.
        let replaced = replaced.filter(|replaced| id_of(replaced) != id_of(&old));
        Ok::<_, Fault>(replaced.as_ref().map_or(DiskUse::default(), freed))
    })?;
    ledgers.note_move(old_dir.as_fd(), dir.as_fd());
    Ok(())
}

/// Removes a file, a link or an empty folder, but none of the `ways`. These take long to find, so
/// they are looked for where it is no file, and before other guests are kept out.
pub(crate) fn remove(
    place: Place,
    folder: bool,
    (guard, ways): (&Guard, impl FnOnce() -> Guard),
    writes: &Writes,
) -> Result<(), Fault> {
    let was_file = kind(&place.stat(guard)?) == FileType::RegularFile;
    let ways = if was_file { Guard::default() } else { ways() };
    let ledgers = writes.ledgers();
    let alone = ledgers.alone();
    let stat = place.stat(guard)?;
    let is_file = kind(&stat) == FileType::RegularFile;
    if is_file != was_file {
        return Err(Errno::BUSY.into());
    }
    match (folder, kind(&stat)) {
        (true, FileType::Directory) | (false, FileType::RegularFile | FileType::Symlink) => {}
        (true, _) => return Err(Errno::NOTDIR.into()),
        (false, FileType::Directory) => return Err(Errno::ISDIR.into()),
        (false, _) => return Err(Errno::PERM.into()),
    }
    let (dir, name) = place.named()?;
    if !is_file {
        ways.check_id(id_of(&stat))?;
        ways.check_name(&dir, &name)?;
    }
    let flags = if folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    alone.take_away(|| {
        unlinkat(&dir, name.as_str(), flags)?;
        Ok(freed(&stat))
    })
}

pub(crate) fn read_link(place: Place, guard: &Guard) -> Result<String, Fault> {
    place.stat(guard)?;
    let (dir, name) = place.named()?;
    let target = dir.read_link_contents(name)?;
    if target.is_absolute() {
        return Err(Errno::PERM.into());
    }
    target.into_os_string().into_string().map_err(|_| Errno::ILSEQ.into())
}

pub(crate) fn set_times(place: Place, times: &Timestamps, guard: &Guard) -> Result<(), Fault> {
    place.stat(guard)?;
    match &place.name {
        Some(name) => {
            utimensat(&place.dir, name.as_str(), times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        None => rustix::fs::futimens(&place.dir, times)?,
    }
    Ok(())
}

/// The names in a folder that can be said, and what they stand for, the host's own left out.
pub(crate) fn entries(
    folder: &Dir,
    max: usize,
    guard: &Guard,
) -> Result<Vec<(String, FileType)>, Fault> {
    let mut entries = Vec::new();
    for (index, entry) in folder.entries()?.enumerate() {
        if index >= max {
            return Err(Errno::OVERFLOW.into());
        }
        // A name that is not UTF-8 cannot be said.
        let Ok(name) = entry?.file_name().into_string() else { continue };
        let Ok(stat) = rustix::fs::statat(folder, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        let is_own = is_temporary(&name)
            || guard.check_id(id_of(&stat)).is_err()
            || guard.check_name(folder, &name).is_err();
        if !is_own {
            entries.push((name, kind(&stat)));
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests;
