//! Files of the data directory in which a host tells others of itself.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The permissions of files in a data directory, whatever those of the directory are.
pub(crate) const FILE_MODE: u32 = 0o600;

/// Writes a file in place of the one before: readers see the old one or the new one.
///
/// # Errors
/// Those of the operating system.
pub(crate) fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = file.with_extension("new");
    let mut options = OpenOptions::new();
    let options = options.create(true).truncate(true).write(true).mode(FILE_MODE);
    let mut written = options.open(&new)?;
    // One that was left half written may have others.
    written.set_permissions(Permissions::from_mode(FILE_MODE))?;
    written.write_all(bytes)?;
    std::fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_owner_reads_it_whatever_was_left() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("loads-host.json");
        for left in [file.clone(), file.with_extension("new")] {
            std::fs::write(&left, "longer than what is written").expect("left");
            std::fs::set_permissions(&left, Permissions::from_mode(0o644)).expect("set");
        }
        write(&file, b"{}").expect("written");
        assert_eq!(std::fs::read(&file).expect("there"), b"{}");
        let permissions = file.metadata().expect("there").permissions();
        assert_eq!(permissions.mode() & 0o777, FILE_MODE);
        assert!(!file.with_extension("new").exists());
    }
}
