//! Files: a line in JSON for each event.

use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use taskrun::ports::transport::{News, Transport, TransportError, TransportKind};

/// A file to which lines are added.
pub(super) struct File {
    path: PathBuf,
    whole: bool,
    /// Held while a line is added.
    adding: Arc<Mutex<()>>,
}

impl File {
    pub(super) fn new(path: PathBuf, whole: bool) -> Self {
        Self { path, whole, adding: Arc::default() }
    }
}

/// Adds a line and waits for the disk. After a line that the death of a host cut off it begins a new
/// one. Other hosts add theirs in between: each write goes to the end.
fn add(path: &Path, line: &str) -> io::Result<()> {
    let nofollow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(nofollow)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut last = [b'\n'];
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    let begin = if last == *b"\n" { "" } else { "\n" };
    file.write_all(format!("{begin}{line}\n").as_bytes())?;
    file.sync_all()
}

#[async_trait]
impl Transport for File {
    fn kind(&self) -> TransportKind {
        TransportKind::Program
    }

    async fn idle(&self) {}

    async fn interrupt(&self, _reason: &str) {}

    async fn deliver(&self, news: &News) -> Result<(), TransportError> {
        let (path, line) = (self.path.clone(), news.to_json(self.whole));
        let adding = Arc::clone(&self.adding);
        let added = tokio::task::spawn_blocking(move || {
            let _alone = adding.lock().unwrap_or_else(PoisonError::into_inner);
            add(&path, &line)
        });
        let failed = |words: String| TransportError(format!("{}: {words}", self.path.display()));
        match added.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed("it could not be written".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_begins_after_one_that_was_cut_off() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        add(&path, "one").expect("added");
        std::fs::write(&path, "one\ntw").expect("written");
        add(&path, "two").expect("added");
        add(&path, "three").expect("added");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "one\ntw\ntwo\nthree\n");
    }

    #[test]
    fn nothing_is_written_through_a_link_nor_into_a_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        std::fs::write(&target, "own").expect("written");
        std::os::unix::fs::symlink(&target, &link).expect("linked");
        assert!(add(&link, "x").is_err());
        assert!(add(folder.path(), "x").is_err());
        assert_eq!(std::fs::read_to_string(&target).expect("read"), "own");
    }
}
