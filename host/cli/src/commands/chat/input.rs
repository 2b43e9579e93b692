//! Lines that a person types, read by a thread of its own: a read that nobody waits for any more does
//! not keep the program from ending.

use std::io::{self, BufRead, Read};

use tokio::sync::mpsc;

/// Most bytes of a line; a longer one is several.
const LINE_BYTES_MAX: u64 = 256 << 10;
/// Lines that are read ahead.
const AHEAD: usize = 64;

/// The lines of stdin, each with its line break, or why there are no more.
pub(super) struct Input(mpsc::Receiver<io::Result<String>>);

impl Input {
    /// Reads stdin from now on.
    pub(super) fn stdin() -> Self {
        let (lines, input) = mpsc::channel(AHEAD);
        std::thread::spawn(move || {
            let mut pieces = Pieces { input: io::stdin().lock(), held: Vec::new() };
            while let Some(line) = pieces.next().transpose() {
                let is_last = line.is_err();
                if lines.blocking_send(line).is_err() || is_last {
                    return;
                }
            }
        });
        Self(input)
    }

    /// The next line; `None` at the end of the input.
    ///
    /// # Errors
    /// If the input cannot be read.
    ///
    /// # Cancel safety
    /// Dropping the future loses no line.
    pub(super) async fn next(&mut self) -> io::Result<Option<String>> {
        self.0.recv().await.transpose()
    }
}

/// The lines of a reader. A byte that is no part of a character becomes U+FFFD.
struct Pieces<R> {
    input: R,
    /// The beginning of a character, where a line was cut within it.
    held: Vec<u8>,
}

impl<R: BufRead> Pieces<R> {
    fn next(&mut self) -> io::Result<Option<String>> {
        let mut line = std::mem::take(&mut self.held);
        let read = self.input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        if read as u64 == LINE_BYTES_MAX
            && let Err(error) = std::str::from_utf8(&line)
            && error.error_len().is_none()
        {
            self.held = line.split_off(error.valid_up_to());
        }
        Ok(Some(String::from_utf8_lossy(&line).into_owned()))
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
        let mut pieces = Pieces { input, held: Vec::new() };
        std::iter::from_fn(|| pieces.next().expect("is read")).collect()
    }

    #[test]
    fn bytes_that_are_no_characters_end_no_input() {
        assert_eq!(all(b"one\nt\xfcwo\nthree"), ["one\n", "t\u{fffd}wo\n", "three"]);
        assert_eq!(all("broken off: \u{e9}".as_bytes().split_last().expect("bytes").1).len(), 1);
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_between_characters() {
        let most = usize::try_from(LINE_BYTES_MAX).expect("a length");
        let long = format!("{}{}\n", "a".repeat(most - 1), "\u{e9}".repeat(10));
        let lines = all(long.as_bytes());
        assert_eq!(lines.len(), 2);
        assert_eq!(lines.concat(), long);
    }
}
