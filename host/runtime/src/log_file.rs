//! The log of background hosts.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Size over which the log is emptied before a host starts.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// Bytes of the tail that is looked at.
const TAIL_BYTES_MAX: u64 = 8 << 10;

pub(crate) fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("host.log")
}

/// Opens the log for a host, and says where its part begins.
pub(crate) fn open(data_dir: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path(data_dir))?;
    let mut len = file.metadata()?.len();
    if len > LOG_BYTES_MAX {
        file.set_len(0)?;
        len = 0;
    }
    Ok((file, len))
}

/// The last lines of the log after a place in it.
pub(crate) fn tail(data_dir: &Path, after: u64, lines_max: usize) -> Vec<String> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path(data_dir))?;
        let len = file.metadata()?.len();
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
