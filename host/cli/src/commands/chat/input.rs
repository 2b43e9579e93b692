//! Lines that a person types, taken by a thread of its own: a read that nobody waits for any more
//! does not keep the program from ending.
//!
//! The thread reads only what is there already, and under a lock. So the holder of the lock has
//! every line that was typed by now, and can discard the one that was only begun.

use std::collections::VecDeque;
use std::io::{self, BufRead, IsTerminal, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use taskrun_journal::spec::TASK_BYTES_MAX;
use tokio::sync::Notify;

use crate::terminal::{discard_typed, is_cut_off, with_begun_line};

/// Most bytes of a line, without its line break: as many as a task may have. The rest of a longer
/// one is dropped.
pub(super) const LINE_BYTES_MAX: usize = TASK_BYTES_MAX;
/// Bytes that are read at once: a terminal has no more of a line.
const READ_BYTES: usize = 8 << 10;
/// Lines that are read ahead.
const AHEAD: usize = 64;
/// Most bytes of lines that were typed for something else and are kept to be said: more than a
/// person types while an agent is busy.
const TYPED_BYTES_MAX: usize = 1 << 20;
/// The time within which the next piece of a paste comes, once a terminal has room for it.
const PASTE_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Most such pauses, one second together: a key that is held down, or a program that types, has no
/// end.
const PASTE_PAUSES_MAX: usize = 20;
/// Most bytes that are looked through for lines that are told to be left out.
const PASTE_BYTES_MAX: usize = 4 * TYPED_BYTES_MAX;
/// For a look that does not wait.
const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Ctrl-D, where the terminal does not take it for the end of the input.
const END_OF_INPUT: u8 = 4;

/// A line of the input.
#[derive(Debug)]
pub(super) struct InputLine {
    /// The line, with its line break.
    pub(super) text: String,
    /// True if the terminal left a part of it out.
    pub(super) is_cut_off: bool,
    /// True if it has more than [`LINE_BYTES_MAX`] bytes.
    pub(super) is_too_long: bool,
}

/// The lines of stdin, or why there are no more.
#[derive(Clone)]
pub(super) struct Input(Arc<Shared>);

/// The lines, between the thread that takes them and the conversation.
struct Shared {
    ahead: Mutex<ReadAhead>,
    /// Told when there is a line, or the end.
    news: Notify,
    /// Told when there is room for lines.
    room: Condvar,
}

/// Input that was read and that nobody has had yet.
#[derive(Default)]
struct ReadAhead {
    lines: VecDeque<InputLine>,
    pieces: Pieces,
    /// True at a terminal.
    is_typed: bool,
    is_over: bool,
    fault: Option<io::Error>,
}

/// Input of a terminal that was typed for something else than what is awaited.
#[derive(Default)]
pub(super) struct TypedInput {
    /// Lines, as far as there is room for them.
    pub(super) lines: Vec<InputLine>,
    bytes: usize,
    /// The number of further lines, which are not kept.
    pub(super) left_out: usize,
    /// The beginning of the line after them.
    pub(super) begun: String,
}

impl Input {
    /// Reads stdin from now on.
    pub(super) fn stdin() -> Self {
        let ahead = ReadAhead { is_typed: io::stdin().is_terminal(), ..ReadAhead::default() };
        let shared = Shared { ahead: Mutex::new(ahead), news: Notify::new(), room: Condvar::new() };
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
    pub(super) async fn next(&mut self) -> io::Result<Option<InputLine>> {
        loop {
            if let Some(next) = self.0.lock().next() {
                self.0.room.notify_one();
                return next;
            }
            self.0.news.notified().await;
        }
    }

    /// True at a terminal.
    pub(super) fn is_typed(&self) -> bool {
        self.0.lock().is_typed
    }

    /// Everything that was typed by now; nothing of it comes any more. Elsewhere than at a terminal
    /// it is nothing: lines come in their order there, whenever they are read.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub(super) fn take_typed(&mut self) -> io::Result<TypedInput> {
        let mut ahead = self.0.lock();
        let mut typed = TypedInput::default();
        if !ahead.is_typed {
            return Ok(typed);
        }
        typed.keep(ahead.lines.drain(..));
        if !ahead.is_over {
            // A terminal has room for a piece of a long paste, and is given the next one when that
            // was read.
            let mut pauses = 0..PASTE_PAUSES_MAX;
            while typed.bytes <= PASTE_BYTES_MAX
                && (ahead.read(&NO_TIME)
                    || (!typed.lines.is_empty()
                        && pauses.next().is_some()
                        && ahead.read(&PASTE_PAUSE)))
            {
                typed.keep(ahead.lines.drain(..));
            }
            ahead.read_begun()?;
            typed.keep(ahead.lines.drain(..));
            discard_typed()?;
        }
        typed.begun = std::mem::take(&mut ahead.pieces).begun();
        self.0.room.notify_one();
        Ok(typed)
    }

    /// Lines that were typed and read, and that nobody has had; the terminal is not read for it.
    /// Elsewhere than at a terminal there are none: nobody typed them.
    pub(super) fn take_read(&mut self) -> VecDeque<InputLine> {
        let mut ahead = self.0.lock();
        if ahead.is_typed { std::mem::take(&mut ahead.lines) } else { VecDeque::new() }
    }

    /// The beginning of the next line, as far as it is typed at a terminal. It comes with its end.
    /// Empty if a whole line comes before it.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub(super) fn begun(&self) -> io::Result<String> {
        let mut ahead = self.0.lock();
        if !ahead.is_typed || ahead.is_over {
            return Ok(String::new());
        }
        ahead.read_begun()?;
        Ok(if ahead.lines.is_empty() { ahead.pieces.begun() } else { String::new() })
    }
}

impl InputLine {
    fn whole(text: String) -> Self {
        Self { text, is_cut_off: false, is_too_long: false }
    }
}

impl Shared {
    /// Waits until there is something to read, and room for it, and takes it. False at the end.
    fn take(&self) -> bool {
        can_read(None);
        let ahead = self.room.wait_while(self.lock(), |ahead| ahead.lines.len() >= AHEAD);
        let mut ahead = ahead.unwrap_or_else(PoisonError::into_inner);
        // Somebody else may have taken it.
        ahead.read(&NO_TIME);
        self.news.notify_one();
        !ahead.is_over
    }

    fn lock(&self) -> MutexGuard<'_, ReadAhead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TypedInput {
    /// Keeps lines, or counts them once there is no room: none comes after one that is left out.
    fn keep(&mut self, lines: impl Iterator<Item = InputLine>) {
        for line in lines {
            self.bytes += line.text.len();
            if self.bytes <= TYPED_BYTES_MAX {
                self.lines.push(line);
            } else {
                self.left_out += 1;
            }
        }
    }
}

impl ReadAhead {
    /// The next line, or the end, if it is known.
    fn next(&mut self) -> Option<io::Result<Option<InputLine>>> {
        match self.lines.pop_front() {
            Some(line) => Some(Ok(Some(line))),
            None if self.is_over => Some(self.fault.take().map_or(Ok(None), Err)),
            None => None,
        }
    }

    /// Reads once, if there is something to read within a time.
    fn read(&mut self, within: &Timespec) -> bool {
        if self.is_over || !can_read(Some(within)) {
            return false;
        }
        let mut bytes = [0_u8; READ_BYTES];
        match retry_on_intr(|| rustix::io::read(io::stdin(), &mut bytes)) {
            Ok(0) => self.end(),
            Ok(count) => {
                let bytes = &bytes[..count];
                self.pieces.is_cut_off |= self.is_typed && is_cut_off(bytes);
                self.lines.extend(self.pieces.add(bytes));
            }
            // Another program that has it took it, which also made it one that does not block.
            Err(Errno::AGAIN) => return false,
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
        while self.lines.len() < AHEAD && self.read(&NO_TIME) {}
    }

    /// The end of the input. At a terminal it discards a line that is begun: other keys do not erase
    /// what was read of it.
    fn end(&mut self) {
        match self.pieces.rest() {
            Some(_) if self.is_typed => self.lines.push_back(InputLine::whole(String::new())),
            Some(rest) => self.lines.push_back(rest),
            None => self.is_over = true,
        }
    }
}

/// Waits for so long until stdin can be read, for ever without a time. Input that cannot be waited
/// for counts as readable, as the read says why.
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
    /// True if the terminal left a part of it out.
    is_cut_off: bool,
    /// True if a part of it was dropped, for which a line has no room.
    is_too_long: bool,
}

impl Pieces {
    /// The lines that end with these bytes.
    fn add(&mut self, bytes: &[u8]) -> Vec<InputLine> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let words = piece.strip_suffix(b"\n").unwrap_or(piece);
            let room = LINE_BYTES_MAX.saturating_sub(self.begun.len());
            self.is_too_long |= words.len() > room;
            self.begun.extend_from_slice(&words[..words.len().min(room)]);
            if words.len() < piece.len() {
                self.begun.push(b'\n');
                lines.push(std::mem::take(self).line());
            }
        }
        lines
    }

    /// The line that these are.
    fn line(self) -> InputLine {
        let text = String::from_utf8_lossy(&self.begun).into_owned();
        // What stands for bytes that are no characters has more of them.
        let is_too_long = self.is_too_long || text.trim().len() > LINE_BYTES_MAX;
        InputLine { text, is_cut_off: self.is_cut_off, is_too_long }
    }

    /// The beginning of the next line, as far as it is there.
    fn begun(&self) -> String {
        String::from_utf8_lossy(&self.begun).into_owned()
    }

    /// The same at the end, if there is anything.
    fn rest(&mut self) -> Option<InputLine> {
        let rest = std::mem::take(self);
        (!rest.begun.is_empty()).then(|| rest.line())
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

    fn added(pieces: &mut Pieces, bytes: &[u8]) -> Vec<String> {
        pieces.add(bytes).into_iter().map(|line| line.text).collect()
    }

    fn rest(pieces: &mut Pieces) -> Option<String> {
        pieces.rest().map(|line| line.text)
    }

    fn all(input: &[u8]) -> Vec<String> {
        let mut pieces = Pieces::default();
        let lines = input.chunks(READ_BYTES - 1).flat_map(|bytes| added(&mut pieces, bytes));
        let mut lines: Vec<String> = lines.collect();
        lines.extend(rest(&mut pieces));
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
        assert_eq!(added(&mut pieces, b"on"), Vec::<String>::new());
        assert_eq!(pieces.begun(), "on");
        assert_eq!(added(&mut pieces, b"e\ntwo\nth"), ["one\n", "two\n"]);
        assert_eq!((pieces.begun(), rest(&mut pieces)), ("th".to_owned(), Some("th".to_owned())));
        assert_eq!((pieces.begun(), rest(&mut pieces)), (String::new(), None));
    }

    #[test]
    fn lines_for_which_there_is_no_room_are_counted_and_none_is_kept_after_one_of_them() {
        let mut typed = TypedInput::default();
        let long = "x".repeat(TYPED_BYTES_MAX - 2);
        let lines = |texts: &[&str]| -> Vec<InputLine> {
            texts.iter().map(|text| InputLine::whole((*text).to_owned())).collect()
        };
        typed.keep(lines(&[long.as_str(), "a\n"]).into_iter());
        typed.keep(lines(&["b\n", "c\n", "d\n"]).into_iter());
        let kept: Vec<&str> = typed.lines.iter().map(|line| line.text.as_str()).collect();
        assert!(kept == [long.as_str(), "a\n"], "{} lines", kept.len());
        assert_eq!(typed.left_out, 3);
    }

    #[test]
    fn a_line_that_is_too_long_is_one_that_says_so_and_the_next_one_is_whole() {
        let lines = |input: &str| -> Vec<(usize, bool)> {
            let mut pieces = Pieces::default();
            let chunks = input.as_bytes().chunks(READ_BYTES - 1);
            let mut lines: Vec<_> = chunks.flat_map(|bytes| pieces.add(bytes)).collect();
            lines.extend(pieces.rest());
            lines.iter().map(|line| (line.text.trim().len(), line.is_too_long)).collect()
        };
        let most = "a".repeat(LINE_BYTES_MAX);
        assert_eq!(lines(&format!("{most}\nb\n")), [(LINE_BYTES_MAX, false), (1, false)]);
        let expected = [(LINE_BYTES_MAX, true), (1, false)];
        assert_eq!(lines(&format!("{most}{most}c\nb\n")), expected);
        assert_eq!(lines(&format!("{most}c")), [(LINE_BYTES_MAX, true)], "without a line break");
        let bytes = [b"\xfc".repeat(LINE_BYTES_MAX).as_slice(), b"\n"].concat();
        let line = Pieces::default().add(&bytes).remove(0);
        assert!(line.is_too_long, "with what stands for its bytes it has {}", line.text.len());
    }
}
