//! Creating, changing and removing files.

use std::io::{self, Write};

use cap_fs_ext::DirExt;
use cap_std::fs::{Dir, Metadata, OpenOptions, Permissions};

use super::path::TEMPORARY;
use super::protected::Guard;
use super::{
    CancelFlag, DiskUse, RelativePath, Result, Workspace, check_regular, from_io, not_opened,
    open_regular, through_link,
};
use crate::bindings::interfaces::workspace_read::FileError;
use crate::bindings::interfaces::workspace_write::WriteMode;
use crate::files::disk::{Growth, Writes};

impl Workspace {
    /// Writes a file. What is put in the place of another appears there at once, by renaming; a
    /// crash of the machine may lose it, since the directory is not flushed to the disk.
    pub(crate) fn write(
        &self,
        path: RelativePath<'_>,
        contents: &[u8],
        mode: WriteMode,
        writes: &Writes,
        abandoned: &CancelFlag,
    ) -> Result<()> {
        let guard = self.protected.now();
        let (dir, name) = self.parent(path, &guard)?.ok_or(FileError::NotAFile)?;
        guard.check_new(&dir, name)?;
        match mode {
            WriteMode::CreateNew => create_new(&dir, name, contents, writes, abandoned),
            WriteMode::Replace => replace(&dir, name, contents, (writes, abandoned), &guard),
            WriteMode::Append => append(&dir, name, contents, (writes, abandoned), &guard),
        }
    }

    /// Makes the directories of a path that do not exist. `may_make` is asked about each before
    /// it is made.
    pub(crate) fn create_directory(
        &self,
        path: RelativePath<'_>,
        may_make: &dyn Fn(&str) -> Result<()>,
        writes: &Writes,
        abandoned: &CancelFlag,
    ) -> Result<()> {
        let guard = self.protected.now();
        let mut dir = self.directory(RelativePath::new("")?, &guard)?;
        for (prefix, name) in path.prefixes().zip(path.components()) {
            abandoned.check()?;
            guard.check_name(&dir, name)?;
            let opened = match dir.open_dir_nofollow(name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    guard.check_new(&dir, name)?;
                    may_make(prefix)?;
                    let grant = writes.grant(&dir, Growth { files: 1, ..Growth::default() })?;
                    match dir.create_dir(name) {
                        // Somebody else made it meanwhile.
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                        made => made.map_err(from_io).map(|()| grant.keep())?,
                    }
                    dir.open_dir_nofollow(name)
                }
                opened => opened,
            };
            dir = opened.map_err(|error| not_opened(&dir, name, error))?;
            guard.check_dir(&dir)?;
        }
        Ok(())
    }

    /// Removes a file or an empty directory, in which no agent works.
    pub(crate) fn remove(
        &self,
        path: RelativePath<'_>,
        writes: &Writes,
        abandoned: &CancelFlag,
    ) -> Result<()> {
        let guard = self.protected.now();
        let Some((dir, name)) = self.parent(path, &guard)? else {
            return Err(FileError::InvalidPath("the workspace itself stays".to_owned()).into());
        };
        // Looking for them takes longer than a removal, of which most are of files.
        let was_folder = dir.symlink_metadata(name).is_ok_and(|metadata| metadata.is_dir());
        let ways = if was_folder { self.protected.ways() } else { Guard::default() };
        let ledgers = writes.ledgers();
        let alone = ledgers.alone();
        let metadata = dir.symlink_metadata(name).map_err(from_io)?;
        guard.check(&metadata)?;
        if metadata.is_dir() != was_folder {
            return Err(FileError::Other("it became something else meanwhile".to_owned()).into());
        }
        if metadata.is_symlink() {
            return Err(through_link(name));
        }
        abandoned.check()?;
        alone.take_away(|| {
            if metadata.is_dir() {
                ways.check(&metadata)?;
                ways.check_name(&dir, name)?;
                dir.remove_dir(name).map_err(from_io)?;
            } else {
                check_regular(name, &metadata)?;
                dir.remove_file(name).map_err(from_io)?;
            }
            Ok(DiskUse { bytes: freed_with(&metadata), files: 1 })
        })
    }
}

/// Bytes that are gone with one name of a file: none while it has another.
#[cfg(unix)]
pub(super) fn freed_with(metadata: &Metadata) -> u64 {
    use cap_std::fs::MetadataExt;

    if metadata.is_file() && metadata.nlink() == 1 { metadata.len() } else { 0 }
}

#[cfg(not(unix))]
pub(super) fn freed_with(metadata: &Metadata) -> u64 {
    if metadata.is_file() { metadata.len() } else { 0 }
}

fn create_new(
    dir: &Dir,
    name: &str,
    contents: &[u8],
    writes: &Writes,
    abandoned: &CancelFlag,
) -> Result<()> {
    abandoned.check()?;
    let bytes = contents.len() as u64;
    let grant = writes.grant(dir, Growth { written: bytes, longer: bytes, files: 1 })?;
    // A link in this place exists, wherever it leads.
    let mut file =
        dir.open_with(name, OpenOptions::new().write(true).create_new(true)).map_err(from_io)?;
    match file.write_all(contents) {
        Ok(()) => {
            grant.keep();
            Ok(())
        }
        Err(error) => {
            // A part of a file is not a file.
            dir.remove_file(name).ok();
            grant.discard();
            Err(from_io(error))
        }
    }
}

fn append(
    dir: &Dir,
    name: &str,
    contents: &[u8],
    (writes, abandoned): (&Writes, &CancelFlag),
    guard: &Guard,
) -> Result<()> {
    let bytes = contents.len() as u64;
    let files = u64::from(existing(dir, name, guard)?.is_none());
    let grant = writes.grant(dir, Growth { written: bytes, longer: bytes, files })?;
    abandoned.check()?;
    let mut options = OpenOptions::new();
    // What was there is not made anew if it is gone since: it would not be counted.
    let mut file = open_regular(dir, name, options.append(true).create(files == 1), guard)?;
    let written = abandoned.check().and_then(|()| file.write_all(contents).map_err(from_io));
    // A part may be there, or an empty file.
    grant.keep();
    written
}

/// The file that a name stands for, if for any: a regular file, and none of the host's own.
fn existing(dir: &Dir, name: &str, guard: &Guard) -> Result<Option<Metadata>> {
    match dir.symlink_metadata(name) {
        Ok(metadata) => {
            guard.check(&metadata)?;
            check_regular(name, &metadata)?;
            Ok(Some(metadata))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(from_io(error)),
    }
}

fn replace(
    dir: &Dir,
    name: &str,
    contents: &[u8],
    (writes, abandoned): (&Writes, &CancelFlag),
    guard: &Guard,
) -> Result<()> {
    let before = existing(dir, name, guard)?;
    let bytes = contents.len() as u64;
    let room = before.as_ref().map_or(0, freed_with);
    let growth = Growth {
        written: bytes,
        longer: bytes.saturating_sub(room),
        files: u64::from(before.is_none()),
    };
    let grant = writes.grant(dir, growth)?;
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|_| FileError::Other("the host failed".to_owned()))?;
    let temporary = format!("{TEMPORARY}{:016x}", u64::from_le_bytes(random));
    let mut file = dir
        .open_with(&temporary, OpenOptions::new().write(true).create_new(true))
        .map_err(from_io)?;
    let written = file
        .write_all(contents)
        .and_then(|()| match &before {
            Some(metadata) => file.set_permissions(plain(metadata.permissions())),
            None => Ok(()),
        })
        .map_err(from_io)
        .and_then(|()| abandoned.check())
        .and_then(|()| {
            let ledgers = writes.ledgers();
            let alone = ledgers.alone();
            // What is there may be something else by now, and less.
            let replaced = existing(dir, name, guard)?;
            let freed = replaced.as_ref().map_or(0, freed_with);
            let missing = Growth {
                written: 0,
                longer: room.saturating_sub(freed),
                files: u64::from(before.is_some() && replaced.is_none()),
            };
            let more = writes.grant(dir, missing)?;
            alone.take_away(|| -> Result<DiskUse> {
                // Replaces a link that somebody puts there just then, and does not follow it.
                dir.rename(&temporary, dir, name).map_err(from_io)?;
                let longer = growth.longer + missing.longer + freed;
                let files = growth.files + missing.files - u64::from(replaced.is_none());
                Ok(DiskUse { bytes: longer.saturating_sub(bytes), files })
            })?;
            more.keep();
            Ok(())
        });
    match written {
        Ok(()) => grant.keep(),
        Err(_) => {
            dir.remove_file(&temporary).ok();
            grant.discard();
        }
    }
    written
}

/// The permissions without set-id bits: a program that runs as its owner was one person's; what a
/// guest writes in its place is not.
#[cfg(unix)]
fn plain(permissions: Permissions) -> Permissions {
    use cap_std::fs::PermissionsExt;

    Permissions::from_mode(permissions.mode() & 0o777)
}

#[cfg(not(unix))]
fn plain(permissions: Permissions) -> Permissions {
    permissions
}
