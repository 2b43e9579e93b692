//! A pseudo-terminal with the program in it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use crate::project::deadline;

/// A program at a terminal of its own. It is ended with this.
pub(crate) struct Terminal {
    master: File,
    child: Child,
    /// Everything that the program wrote, without escape sequences.
    seen: Arc<Mutex<String>>,
}

impl Terminal {
    #[expect(unsafe_code, reason = "pseudo-terminals are had from the C library only")]
    pub(crate) fn new(mut command: Command) -> Self {
        let (mut master, mut slave) = (-1, -1);
        let (name, modes, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
        // SAFETY: both point to integers; names, modes and sizes are not asked for.
        let made = unsafe { libc::openpty(&raw mut master, &raw mut slave, name, modes, size) };
        assert_eq!(made, 0, "a pseudo-terminal");
        // SAFETY: both were opened just now, and nobody else has them.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let copy = || Stdio::from(slave.try_clone().expect("a descriptor"));
        command
            .stdin(copy())
            .stdout(copy())
            .stderr(copy())
            .env("TERM", "dumb")
            .env("NO_COLOR", "1");
        let own = master.as_raw_fd();
        // SAFETY: between fork and exec these only make system calls.
        unsafe {
            command.pre_exec(move || {
                libc::close(own);
                // The terminal becomes that of the program, so that Ctrl-C reaches it.
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().expect("starts");
        drop(command);
        drop(slave);
        let seen = Arc::<Mutex<String>>::default();
        let (mut reads, shared) = (master.try_clone().expect("a descriptor"), Arc::clone(&seen));
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let mut buffer = [0; 4096];
            // The end of the program is an error here.
            while let Ok(count) = reads.read(&mut buffer)
                && count > 0
            {
                bytes.extend_from_slice(&buffer[..count]);
                let text = plain(&String::from_utf8_lossy(&bytes));
                *shared.lock().unwrap_or_else(PoisonError::into_inner) = text;
            }
        });
        Self { master, child, seen }
    }

    pub(crate) fn seen(&self) -> String {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn types(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).expect("typed");
    }

    /// Waits until a text was shown so often.
    pub(crate) fn shows(&self, text: &str, count: usize) {
        let deadline = deadline();
        while self.seen().matches(text).count() < count {
            assert!(!deadline.is_over(), "{text:?} is not shown {count} times:\n{}", self.seen());
            std::thread::yield_now();
        }
    }

    /// The exit code, once the program has ended.
    pub(crate) fn ends(&mut self) -> i32 {
        let deadline = deadline();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.code().unwrap_or(-1);
            }
            assert!(!deadline.is_over(), "it does not end:\n{}", self.seen());
            std::thread::yield_now();
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The text as it would stand on paper: without escape sequences, and of a line that was written over
/// the last text.
fn plain(text: &str) -> String {
    let mut lines = String::new();
    for line in text.replace("\r\n", "\n").split('\n') {
        let last = line.rsplit('\r').next().unwrap_or_default();
        let mut shown = String::new();
        let mut chars = last.chars();
        while let Some(c) = chars.next() {
            if c == '\x1b' {
                // Up to the letter that ends it.
                let mut rest = chars.by_ref().skip_while(|c| !c.is_ascii_alphabetic());
                rest.next();
            } else {
                shown.push(c);
            }
        }
        lines.push_str(shown.trim_end());
        lines.push('\n');
    }
    lines
}
