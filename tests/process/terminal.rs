//! A pseudo-terminal with the program in it.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal};
use rustix::termios::LocalModes;

use crate::descriptors::in_shell;
use crate::project::{Project, deadline};

/// A program at a terminal of its own. It is ended with this.
pub(crate) struct Terminal {
    master: File,
    child: Child,
    /// Everything that the program wrote, without escape sequences.
    seen: Arc<Mutex<String>>,
    /// The terminal as a person sees it, if it says how large it is.
    screen: Arc<Mutex<vt100::Parser>>,
    /// True once nobody writes to it any more.
    is_left: Arc<AtomicBool>,
}

impl Terminal {
    /// One that does not say how large it is.
    pub(crate) fn new(command: Command) -> Self {
        Self::sized(command, 0, 0)
    }

    /// One of so many columns and lines.
    pub(crate) fn sized(command: Command, columns: u16, lines: u16) -> Self {
        Self::open(command, "dumb", (columns, lines))
    }

    /// The same, which says that lines can be written over: others are shown no line that changes.
    pub(crate) fn rewriting(command: Command, columns: u16, lines: u16) -> Self {
        Self::open(command, "xterm", (columns, lines))
    }

    /// The program of a project at one where these keys were pressed before it began.
    pub(crate) fn typed_ahead(project: &Project, args: &[&str], keys: &str) -> Self {
        Self::typed_ahead_of(project, "exec \"$@\"", args, keys)
    }

    /// The same for a program that a script of a shell becomes.
    pub(crate) fn typed_ahead_of(
        project: &Project,
        script: &str,
        args: &[&str],
        keys: &str,
    ) -> Self {
        let gate = project.path().join("gate");
        mkfifoat(CWD, &gate, Mode::RUSR | Mode::WUSR).expect("a pipe");
        // The pipe opens when somebody writes to it.
        let script = format!(": < gate; {script}");
        let mut terminal = Self::new(in_shell(project, Command::new("sh"), &script, args));
        terminal.types(keys);
        // Keys that are shown are there to be read; Ctrl-D is not shown.
        terminal.shows(keys.trim_end_matches('\x04'), 1);
        std::fs::write(&gate, "").expect("written");
        std::fs::remove_file(&gate).expect("it is there");
        terminal
    }

    #[expect(unsafe_code, reason = "pseudo-terminals are had from the C library only")]
    fn open(mut command: Command, term: &str, (columns, lines): (u16, u16)) -> Self {
        let (mut master, mut slave) = (-1, -1);
        let size = libc::winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let (name, modes, size) = (std::ptr::null_mut(), std::ptr::null(), &raw const size);
        // SAFETY: both point to integers, and the size is there; names and modes are not asked for.
        let made = unsafe { libc::openpty(&raw mut master, &raw mut slave, name, modes, size) };
        assert_eq!(made, 0, "a pseudo-terminal");
        // SAFETY: both were opened just now, and nobody else has them.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let copy = || Stdio::from(slave.try_clone().expect("a descriptor"));
        command.stdin(copy()).stdout(copy()).stderr(copy()).env("TERM", term).env("NO_COLOR", "1");
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
        let screen = vt100::Parser::new(at_least_one(lines), at_least_one(columns), 0);
        let screen = Arc::new(Mutex::new(screen));
        let is_left = Arc::<AtomicBool>::default();
        let (drawn, leaves) = (Arc::clone(&screen), Arc::clone(&is_left));
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
                drawn.lock().unwrap_or_else(PoisonError::into_inner).process(&buffer[..count]);
            }
            leaves.store(true, Ordering::Release);
        });
        Self { master, child, seen, screen, is_left }
    }

    /// The lines of the screen as they are.
    pub(crate) fn screen(&self) -> Vec<String> {
        let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        let columns = screen.screen().size().1;
        screen.screen().rows(0, columns.get()).map(|line| line.trim_end().to_owned()).collect()
    }

    /// Waits until the screen is as it should be, and gives its lines.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&[String]) -> bool) -> Vec<String> {
        let deadline = deadline();
        loop {
            let lines = self.screen();
            if is_so(&lines) {
                return lines;
            }
            assert!(!deadline.is_over(), "{what}: it is not on the screen:\n{lines:#?}");
            std::thread::yield_now();
        }
    }

    /// Waits until a line of the screen has a text in it, and gives all of them.
    pub(crate) fn has(&self, text: &str) -> Vec<String> {
        self.until(text, |lines| lines.iter().any(|line| line.contains(text)))
    }

    /// Waits until the cursor is shown in this line and column, from 0.
    pub(crate) fn cursor_is_at(&self, line: u16, column: u16) {
        let deadline = deadline();
        loop {
            let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
            let (is_hidden, at) =
                (screen.screen().hide_cursor(), screen.screen().cursor_position());
            drop(screen);
            if !is_hidden && at == (line, column) {
                return;
            }
            assert!(!deadline.is_over(), "the cursor is at {at:?}");
            std::thread::yield_now();
        }
    }

    /// Gives the terminal another size.
    pub(crate) fn resize(&self, columns: u16, lines: u16) {
        let mut screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        screen.screen_mut().set_size(at_least_one(lines), at_least_one(columns));
        drop(screen);
        let size =
            rustix::termios::Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&self.master, size).expect("it has a size");
    }

    pub(crate) fn seen(&self) -> String {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True if the program, which has ended, left the terminal as it was: with the screen that was
    /// there before, and with what is typed shown again and read line by line.
    pub(crate) fn is_as_before(&self) -> bool {
        let deadline = deadline();
        while !self.is_left.load(Ordering::Acquire) {
            assert!(!deadline.is_over(), "somebody still has the terminal");
            std::thread::yield_now();
        }
        let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        let screen = screen.screen();
        let is_taken =
            screen.alternate_screen() || screen.hide_cursor() || screen.bracketed_paste();
        let modes = rustix::termios::tcgetattr(&self.master).expect("it has modes");
        let wanted = LocalModes::ICANON | LocalModes::ECHO;
        !is_taken && modes.local_modes.contains(wanted)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it is there");
    }

    pub(crate) fn types(&mut self, text: &str) {
        self.sends(text.as_bytes());
    }

    /// The same for bytes that need not be text.
    pub(crate) fn sends(&mut self, bytes: &[u8]) {
        self.master.write_all(bytes).expect("typed");
    }

    /// True if the program has read every line that was typed by now.
    pub(crate) fn is_read(&self) -> bool {
        let stdin = File::open(format!("/proc/{}/fd/0", self.child.id())).expect("it lives");
        rustix::io::ioctl_fionread(stdin).expect("a terminal") == 0
    }

    /// Waits until a text was shown so often.
    pub(crate) fn shows(&self, text: &str, count: usize) {
        let deadline = deadline();
        while self.seen().matches(text).count() < count {
            assert!(!deadline.is_over(), "{text:?} is not shown {count} times:\n{}", self.seen());
            std::thread::yield_now();
        }
    }

    /// Waits until a prompt is the last that was shown: what is typed earlier stands before it.
    pub(crate) fn prompts(&self) {
        let deadline = deadline();
        while !self.seen().trim_end().ends_with('>') {
            assert!(!deadline.is_over(), "there is no prompt:\n{}", self.seen());
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

/// A terminal that does not say how large it is has room for one character, where one is shown.
fn at_least_one(size: u16) -> NonZeroU16 {
    NonZeroU16::new(size).unwrap_or(NonZeroU16::MIN)
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
