//! The log of background hosts.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Size over which the log is put aside, in the place of the one that was before.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// Bytes of the tail that is looked at.
const TAIL_BYTES_MAX: u64 = 8 << 10;

/// The log of the background hosts of a data directory, which all of them write, each to its end.
/// One that is too long gets another name, and all go on in the next.
#[derive(Clone, Debug)]
pub struct LogFile(PathBuf);

impl LogFile {
    /// The log of a data directory. Nothing is opened yet.
    #[must_use]
    pub fn of(data_dir: &Path) -> Self {
        Self(path(data_dir))
    }

    /// True if a file is the log, or the one that was put aside last.
    #[must_use]
    pub fn has_been(&self, file: &File) -> bool {
        let metadata = file.metadata();
        metadata.is_ok_and(|file| is_at(&self.0, &file) || is_at(&aside(&self.0), &file))
    }

    /// The file in which the log goes on, if that is another one than the file that is written: it
    /// became too long, or somebody else has put it aside or removed it. It waits while somebody
    /// else does so just now.
    ///
    /// # Errors
    /// If files cannot be looked at, renamed or made. Then the one that is written stays in use.
    pub fn successor(&self, written: &File) -> io::Result<Option<File>> {
        let metadata = written.metadata()?;
        if metadata.len() <= LOG_BYTES_MAX && is_at(&self.0, &metadata) {
            return Ok(None);
        }
        put_aside(&self.0)?;
        append(&self.0).map(Some)
    }
}

pub(crate) fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("host.log")
}

/// The place of a log that became too long.
fn aside(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

fn is_at(path: &Path, file: &Metadata) -> bool {
    let id = |of: &Metadata| (of.dev(), of.ino());
    fs::metadata(path).is_ok_and(|there| id(&there) == id(file))
}

/// Puts the log aside if it is too long.
fn put_aside(path: &Path) -> io::Result<()> {
    let log = append(path)?;
    log.lock()?;
    let metadata = log.metadata()?;
    // Another process may have done so while this one waited: then the next one is short.
    if metadata.len() > LOG_BYTES_MAX && is_at(path, &metadata) {
        fs::rename(path, aside(path))?;
    }
    Ok(())
}

/// Opens the log for a host, and says where its part begins.
pub(crate) fn open(data_dir: &Path) -> io::Result<(File, u64)> {
    let path = path(data_dir);
    put_aside(&path)?;
    let file = append(&path)?;
    let len = file.metadata()?.len();
    Ok((file, len))
}

/// The last lines of the log after a place in it.
pub(crate) fn tail(data_dir: &Path, after: u64, lines_max: usize) -> Vec<String> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path(data_dir))?;
        let len = file.metadata()?.len();
        // One that is shorter was begun later, and is looked at from its beginning.
        let after = if after > len { 0 } else { after };
        file.seek(SeekFrom::Start(after.max(len.saturating_sub(TAIL_BYTES_MAX))))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    // Without a log there is nothing to be shown.
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(lines_max)..].iter().map(|line| (*line).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A log that is too long, with a last line.
    fn long(data_dir: &Path, last: &str) -> io::Result<File> {
        let mut log = append(&path(data_dir))?;
        let lines = "a line\n".repeat(LOG_BYTES_MAX as usize / 7 + 1);
        writeln!(log, "{lines}{last}")?;
        Ok(log)
    }

    fn last_aside(data_dir: &Path) -> io::Result<String> {
        let text = fs::read_to_string(aside(&path(data_dir)))?;
        Ok(text.lines().last().unwrap_or_default().to_owned())
    }

    #[test]
    fn a_log_that_is_too_long_is_put_aside_before_a_host_starts() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        long(folder.path(), "its last words")?;
        let (mut log, begins) = open(folder.path())?;
        assert_eq!((begins, log.metadata()?.len()), (0, 0));
        assert_eq!(last_aside(folder.path())?, "its last words");
        writeln!(log, "hello")?;
        assert_eq!(tail(folder.path(), begins, 2), ["hello"]);
        // Of a host that wrote much, its part began in the log that was put aside.
        assert_eq!(tail(folder.path(), LOG_BYTES_MAX, 2), ["hello"]);
        let (_, begins) = open(folder.path())?;
        assert_eq!(begins, 6, "a short one is gone on with");
        Ok(())
    }

    #[test]
    fn all_that_write_a_log_go_on_in_the_next_one_and_put_it_aside_once() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let file = LogFile::of(folder.path());
        let (first, second) = (append(&path(folder.path()))?, append(&path(folder.path()))?);
        assert!(file.successor(&first)?.is_none(), "it is short");
        long(folder.path(), "the last of it")?;
        let mut first_next = file.successor(&first)?.expect("it is too long");
        writeln!(first_next, "one")?;
        assert!(file.has_been(&second) && file.has_been(&first_next));
        let mut second_next = file.successor(&second)?.expect("it is put aside");
        writeln!(second_next, "two")?;
        assert_eq!(fs::read_to_string(path(folder.path()))?, "one\ntwo\n");
        assert_eq!(last_aside(folder.path())?, "the last of it");
        assert!(file.successor(&second_next)?.is_none(), "the next one is short");
        fs::remove_file(path(folder.path()))?;
        assert!(file.successor(&first_next)?.is_some(), "it is gone on with in a file with a name");
        let other = File::create(folder.path().join("other"))?;
        assert!(!file.has_been(&other));
        Ok(())
    }
}
