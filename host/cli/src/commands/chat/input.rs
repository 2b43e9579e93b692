//! Lines that a person types, read by a thread of its own: a read that nobody waits for any more does
//! not keep the program from ending.

use std::io::{self, BufRead, Read};
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};

/// Most bytes of a line; a longer one is several.
const LINE_BYTES_MAX: u64 = 256 << 10;
/// Lines that are read ahead.
const AHEAD: usize = 64;

/// The lines, shared by those who ask for them one after the other.
#[derive(Clone)]
pub(crate) struct Input(Arc<Mutex<mpsc::Receiver<String>>>);

impl Input {
    /// Reads stdin from now on.
    pub(super) fn stdin() -> Self {
        let (lines, input) = mpsc::channel(AHEAD);
        std::thread::spawn(move || {
            let mut stdin = io::stdin().lock();
            loop {
                let mut line = String::new();
                match stdin.by_ref().take(LINE_BYTES_MAX).read_line(&mut line) {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
                if lines.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        Self::of(input)
    }

    /// The lines of another thread, each with its line break.
    pub(crate) fn of(lines: mpsc::Receiver<String>) -> Self {
        Self(Arc::new(Mutex::new(lines)))
    }

    /// The next line; `None` at the end of the input.
    pub(super) async fn next(&self) -> Option<String> {
        self.0.lock().await.recv().await
    }

    /// The lines as a reader for a thread that may block.
    pub(crate) fn reader(&self) -> Reader {
        Reader { input: self.clone(), line: Vec::new(), at: 0 }
    }
}

/// The lines as a reader.
pub(crate) struct Reader {
    input: Input,
    line: Vec<u8>,
    at: usize,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for Reader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at >= self.line.len() {
            self.line =
                self.input.0.blocking_lock().blocking_recv().unwrap_or_default().into_bytes();
            self.at = 0;
        }
        Ok(&self.line[self.at..])
    }

    fn consume(&mut self, amount: usize) {
        self.at = (self.at + amount).min(self.line.len());
    }
}
