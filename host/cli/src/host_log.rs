//! The log of a host and what else it says on stderr, written by a thread of its own: a reader that
//! takes nothing stops no run.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::stdio::{dup2_stderr, dup2_stdout};
use taskrun_runtime::LogFile;

use crate::output::stream;

/// Most bytes of the log that wait to be written: more than a burst has, and a reader that takes
/// nothing will not take them later. Further lines are left out.
const WAITING_BYTES_MAX: usize = 64 << 10;
/// The same with what is said beside the log, which is little.
const SAID_BYTES_MAX: usize = WAITING_BYTES_MAX + (16 << 10);
/// Longest time for the last lines at the end of the process.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// The log of this process, if it is a host's.
static HOST_LOG: OnceLock<&'static HostLog> = OnceLock::new();

/// Lines that wait for the thread that writes them.
#[derive(Debug, Default)]
struct HostLog {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// The file that is written, if it is one that this process keeps short.
    file: OnceLock<LogFile>,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: Vec<u8>,
    /// Lines of the log that came after these, and for which there was no room.
    left_out: u64,
    /// Others were taken, and are not written yet.
    is_writing: bool,
}

impl Waiting {
    fn has_room(&self, len: usize, bytes_max: usize) -> bool {
        self.lines.is_empty() || self.lines.len() + len <= bytes_max
    }
}

/// Begins to write the log of a host.
///
/// # Errors
/// If there is no thread for it.
pub(crate) fn start() -> io::Result<()> {
    let log: &'static HostLog = Box::leak(Box::default());
    let thread = std::thread::Builder::new().name("taskrun-log".to_owned());
    thread.spawn(move || log.write_on())?;
    // Only now: without the thread nothing that it takes would be told.
    HOST_LOG.set(log).ok();
    Ok(())
}

/// Takes a line of the log, unless this process is no host.
pub(crate) fn note(line: &[u8]) -> bool {
    HOST_LOG.get().inspect(|log| log.note(line)).is_some()
}

/// Takes what is said beside the log, unless this process is no host.
pub(crate) fn say(text: &[u8]) -> bool {
    HOST_LOG.get().inspect(|log| log.say(text)).is_some()
}

/// Waits until all is written, but not for long.
pub(crate) fn flush() {
    if let Some(log) = HOST_LOG.get() {
        log.flush(LAST_WAIT);
    }
}

/// Keeps the log of the background hosts of a data directory short from now on, if stderr is that.
pub(crate) fn keep_short(data_dir: &Path) {
    let file = LogFile::of(data_dir);
    if let Some(log) = HOST_LOG.get()
        && written().is_ok_and(|written| file.has_been(&written))
    {
        // Nobody else has said so.
        log.file.set(file).ok();
    }
}

/// The file that is stderr.
fn written() -> io::Result<File> {
    Ok(File::from(io::stderr().as_fd().try_clone_to_owned()?))
}

/// Has this process write to another file, if the log goes on there.
fn go_on(file: &LogFile) -> io::Result<()> {
    if let Some(next) = file.successor(&written()?)? {
        // What panics say goes there, too.
        dup2_stderr(&next)?;
        dup2_stdout(&next)?;
    }
    Ok(())
}

impl HostLog {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, line: &[u8]) {
        let mut waiting = self.waiting();
        // After one that was left out come no others, so that the gap is one.
        if waiting.left_out > 0 || !waiting.has_room(line.len(), WAITING_BYTES_MAX) {
            waiting.left_out += 1;
            return;
        }
        waiting.lines.extend_from_slice(line);
        self.changed.notify_all();
    }

    fn say(&self, text: &[u8]) {
        let mut waiting = self.waiting();
        if waiting.has_room(text.len(), SAID_BYTES_MAX) {
            waiting.lines.extend_from_slice(text);
            self.changed.notify_all();
        }
    }

    /// The lines that wait, once there are some, and the number of those left out after them. What
    /// was taken before is written.
    fn take(&self) -> (Vec<u8>, u64) {
        let mut waiting = self.waiting();
        waiting.is_writing = false;
        self.changed.notify_all();
        let wait = self.changed.wait_while(waiting, |waiting| waiting.lines.is_empty());
        let mut waiting = wait.unwrap_or_else(PoisonError::into_inner);
        waiting.is_writing = true;
        (std::mem::take(&mut waiting.lines), std::mem::take(&mut waiting.left_out))
    }

    fn write_on(&self) {
        loop {
            let (lines, left_out) = self.take();
            if left_out > 0 {
                // It waits right after these lines: there is room for it just now.
                tracing::warn!(lines = left_out, "lines of the log are left out: nobody took them");
            }
            // It may have been put aside, and removed, while this process had nothing to say.
            self.go_on();
            // Nobody listens: there is nowhere to say that.
            stream::say(String::from_utf8_lossy(&lines).into_owned()).ok();
            self.go_on();
        }
    }

    fn go_on(&self) {
        if let Some(file) = self.file.get() {
            // If the log cannot go on elsewhere, there is nowhere to say that.
            go_on(file).ok();
        }
    }

    fn flush(&self, longest: Duration) {
        let is_left = |waiting: &mut Waiting| waiting.is_writing || !waiting.lines.is_empty();
        drop(self.changed.wait_timeout_while(self.waiting(), longest, is_left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_nobody_takes_are_left_out_and_counted() {
        let log = HostLog::default();
        let line = [b'x'; 1 << 10];
        (0..64).for_each(|_| log.note(&line));
        assert_eq!(log.waiting().left_out, 0);
        (0..7).for_each(|_| log.note(&line));
        // It would fit, but is after the gap.
        log.note(b"");
        log.say(b"said\n");
        let (lines, left_out) = log.take();
        assert_eq!((lines.len(), left_out), (WAITING_BYTES_MAX + 5, 8));
        log.note(b"later\n");
        assert_eq!(log.take(), (b"later\n".to_vec(), 0));
    }

    #[test]
    fn a_line_that_is_longer_than_the_room_is_taken_where_none_waits() {
        let log = HostLog::default();
        log.note(&vec![b'x'; WAITING_BYTES_MAX * 2]);
        log.note(b"y");
        let (lines, left_out) = log.take();
        assert_eq!((lines.len(), left_out), (WAITING_BYTES_MAX * 2, 1));
    }

    #[test]
    fn the_end_waits_for_what_is_taken_and_not_for_long() {
        let log = HostLog::default();
        // Nothing is left to be written.
        log.flush(Duration::MAX);
        log.note(b"first\n");
        assert_eq!(log.take().0, b"first\n");
        // It is never written, as if its reader took nothing.
        log.flush(Duration::from_millis(1));
        assert!(log.waiting().is_writing);
    }
}
