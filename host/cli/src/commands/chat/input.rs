//! Lines that a person types, taken by a thread of its own: a read that nobody waits for any more does
//! not keep the program from ending.
//!
//! Whatever is read is there already, and is read under a lock. So whoever has the lock has every line
//! that was typed by now, and can discard the one that was only begun.

use std::collections::VecDeque;
use std::io::{self, BufRead, IsTerminal, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use tokio::sync::Notify;

use crate::terminal::{discard_typed, with_begun_line};

/// Most bytes of a line; a longer one is several.
const LINE_BYTES_MAX: usize = 256 << 10;
/// Bytes that are read at once: a terminal has no more of a line.
const READ_BYTES: usize = 8 << 10;
/// Lines that are read ahead.
const AHEAD: usize = 64;
/// Ctrl-D, where the terminal does not take it for the end of the input.
const END_OF_INPUT: u8 = 4;

/// The lines of stdin, each with its line break, or why there are no more.
pub(super) struct Input(Arc<Shared>);

/// The lines, between the thread that takes them and the conversation.
struct Shared {
    taken: Mutex<Taken>,
    /// Told when there is a line, or the end.
    news: Notify,
    /// Told when there is room for lines.
    room: Condvar,
}

/// Input that was read and that nobody has had yet.
#[derive(Default)]
struct Taken {
    lines: VecDeque<String>,
    pieces: Pieces,
    /// True at a terminal.
    is_typed: bool,
    is_over: bool,
    fault: Option<io::Error>,
}

impl Input {
    /// Reads stdin from now on.
    pub(super) fn stdin() -> Self {
        let taken = Taken { is_typed: io::stdin().is_terminal(), ..Taken::default() };
        let shared = Shared { taken: Mutex::new(taken), news: Notify::new(), room: Condvar::new() };
        let shared = Arc::new(shared);
        let input = Self(Arc::clone(&shared));
        std::thread::spawn(move || while shared.take() {});
        input
    }

    /// The next line; `None` at the end of the input. An empty one, without a line break, stands for
    /// a line that was begun and then discarded at the keyboard.
    ///
    /// # Errors
    /// If the input cannot be read.
    ///
    /// # Cancel safety
    /// Dropping the future loses no line.
    pub(super) async fn next(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(next) = self.0.lock().next() {
                self.0.room.notify_one();
                return next;
            }
            self.0.news.notified().await;
        }
    }

    /// The lines that were typed by now, and what was typed of another one; nothing of them comes
    /// any more. Elsewhere than at a terminal there are none: lines come in their order there,
    /// whenever they are read.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub(super) fn take_typed(&mut self) -> io::Result<(Vec<String>, String)> {
        let mut taken = self.0.lock();
        if !taken.is_typed {
            return Ok((Vec::new(), String::new()));
        }
        if !taken.is_over {
            taken.read_begun()?;
            discard_typed()?;
        }
        let begun = std::mem::take(&mut taken.pieces).begun();
        let lines = taken.lines.drain(..).collect();
        self.0.room.notify_one();
        Ok((lines, begun))
    }

    /// The beginning of the next line, as far as it is typed at a terminal. It comes with its end.
    /// Empty if a whole line comes before it.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub(super) fn begun(&mut self) -> io::Result<String> {
        let mut taken = self.0.lock();
        if !taken.is_typed || taken.is_over {
            return Ok(String::new());
        }
        taken.read_begun()?;
        Ok(if taken.lines.is_empty() { taken.pieces.begun() } else { String::new() })
    }
}

impl Shared {
    /// Waits until there is something to read, and room for it, and takes it. False at the end.
    fn take(&self) -> bool {
        can_read(None);
        let taken = self.room.wait_while(self.lock(), |taken| taken.lines.len() >= AHEAD);
        let mut taken = taken.unwrap_or_else(PoisonError::into_inner);
        // Somebody else may have taken it.
        taken.read();
        self.news.notify_one();
        !taken.is_over
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// The next line, or the end, if it is known.
    fn next(&mut self) -> Option<io::Result<Option<String>>> {
        match self.lines.pop_front() {
            Some(line) => Some(Ok(Some(line))),
            None if self.is_over => Some(self.fault.take().map_or(Ok(None), Err)),
            None => None,
        }
    }

    /// Reads once, if that does not wait. False if there is nothing to read.
    fn read(&mut self) -> bool {
        if self.is_over || !can_read(Some(&Timespec::default())) {
            return false;
        }
        let mut bytes = [0_u8; READ_BYTES];
        match retry_on_intr(|| rustix::io::read(io::stdin(), &mut bytes)) {
            Ok(0) => self.end(),
            Ok(count) => self.lines.extend(self.pieces.add(&bytes[..count])),
            Err(error) => (self.is_over, self.fault) = (true, Some(error.into())),
        }
        true
    }

    /// Reads the lines that are there, and what there is of another one.
    fn read_begun(&mut self) -> io::Result<()> {
        self.read_on();
        with_begun_line(|| self.read_on())?;
        // A key that ends the input is a byte for as long as that takes.
        if self.pieces.begun.last() == Some(&END_OF_INPUT) {
            self.pieces.begun.pop();
            self.is_over = self.pieces.begun.is_empty();
        }
        Ok(())
    }

    fn read_on(&mut self) {
        while self.lines.len() < AHEAD && self.read() {}
    }

    /// The end of the input. At a terminal it discards a line that is begun: other keys do not erase
    /// what was read of it.
    fn end(&mut self) {
        match self.pieces.rest() {
            Some(_) if self.is_typed => self.lines.push_back(String::new()),
            Some(rest) => self.lines.push_back(rest),
            None => self.is_over = true,
        }
    }
}

/// Waits for so long until stdin can be read, for ever without a time. What cannot be waited for is
/// read, which says why.
fn can_read(wait: Option<&Timespec>) -> bool {
    let stdin = io::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
    !matches!(retry_on_intr(|| poll(&mut polled, wait)), Ok(0))
}

/// Lines of what is read piece by piece. A byte that is no part of a character becomes U+FFFD.
#[derive(Default)]
struct Pieces {
    /// The line that has no end yet.
    begun: Vec<u8>,
}

impl Pieces {
    /// The lines that end with these bytes.
    fn add(&mut self, bytes: &[u8]) -> Vec<String> {
        self.begun.extend_from_slice(bytes);
        std::iter::from_fn(|| self.line()).collect()
    }

    fn line(&mut self) -> Option<String> {
        let most = &self.begun[..self.begun.len().min(LINE_BYTES_MAX)];
        let end = match most.iter().position(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if most.len() < LINE_BYTES_MAX => return None,
            // It is not cut within a character.
            None => match std::str::from_utf8(most) {
                Err(error) if error.error_len().is_none() => error.valid_up_to(),
                Ok(_) | Err(_) => most.len(),
            },
        };
        let line: Vec<u8> = self.begun.drain(..end).collect();
        Some(String::from_utf8_lossy(&line).into_owned())
    }

    /// What is there of the next line.
    fn begun(&self) -> String {
        String::from_utf8_lossy(&self.begun).into_owned()
    }

    /// The same at the end, if there is anything.
    fn rest(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.begun);
        (!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned())
    }
}

/// Lines, each with its line break, as a reader for a thread that may block.
pub(crate) struct Reader<N> {
    next: N,
    line: Vec<u8>,
    at: usize,
}

impl<N: FnMut() -> io::Result<Option<String>>> Reader<N> {
    /// Reads the lines that `next` gives, until it gives none.
    pub(crate) fn of(next: N) -> Self {
        Self { next, line: Vec::new(), at: 0 }
    }
}

impl<N: FnMut() -> io::Result<Option<String>>> Read for Reader<N> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

impl<N: FnMut() -> io::Result<Option<String>>> BufRead for Reader<N> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at >= self.line.len() {
            self.line = (self.next)()?.unwrap_or_default().into_bytes();
            self.at = 0;
        }
        Ok(&self.line[self.at..])
    }

    fn consume(&mut self, amount: usize) {
        self.at = (self.at + amount).min(self.line.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(input: &[u8]) -> Vec<String> {
        let mut pieces = Pieces::default();
        let lines = input.chunks(READ_BYTES - 1).flat_map(|bytes| pieces.add(bytes));
        let mut lines: Vec<String> = lines.collect();
        lines.extend(pieces.rest());
        lines
    }

    #[test]
    fn bytes_that_are_no_characters_end_no_input() {
        assert_eq!(all(b"one\nt\xfcwo\nthree"), ["one\n", "t\u{fffd}wo\n", "three"]);
        assert_eq!(all("broken off: \u{e9}".as_bytes().split_last().expect("bytes").1).len(), 1);
    }

    #[test]
    fn a_line_is_had_with_its_end_and_what_is_begun_is_seen_before() {
        let mut pieces = Pieces::default();
        assert_eq!(pieces.add(b"on"), Vec::<String>::new());
        assert_eq!(pieces.begun(), "on");
        assert_eq!(pieces.add(b"e\ntwo\nth"), ["one\n", "two\n"]);
        assert_eq!((pieces.begun(), pieces.rest()), ("th".to_owned(), Some("th".to_owned())));
        assert_eq!((pieces.begun(), pieces.rest()), (String::new(), None));
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_between_characters() {
        let long = format!("{}{}\n", "a".repeat(LINE_BYTES_MAX - 1), "\u{e9}".repeat(10));
        let lines = all(long.as_bytes());
        assert_eq!(lines.len(), 2);
        assert_eq!(lines.concat(), long);
    }
}
