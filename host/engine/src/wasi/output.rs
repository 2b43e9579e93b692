//! Standard output and error as lines of the run's log. Nothing that a guest writes there can
//! end it, block it or fill the host: a long line is cut and says so, and the scope counts what is
//! too much.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use taskrun::scope::{CallScope, LOG_LINE_BYTES_MAX, log_line};
use taskrun_journal::message::{Labels, LogLevel};
use tokio::io::AsyncWrite;
use wasmtime_wasi::async_trait;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};

use crate::guest::Guest;

/// Most bytes of one write.
const WRITE_BYTES_MAX: usize = 64 << 10;

/// Most lines of one write that are an entry of the log each: an entry takes the host's time, also
/// when the log is full. Further lines share entries.
const LINES_MAX: usize = 1_000;

/// One of the two outputs of a call.
pub(super) struct Output(Arc<Lines>);

struct Lines {
    scope: Arc<CallScope>,
    source: String,
    stream: &'static str,
    open: Mutex<OpenLine>,
}

/// The line that has not ended.
#[derive(Default)]
struct OpenLine {
    bytes: Vec<u8>,
    /// Bytes beyond those that a line has, which are counted and forgotten.
    beyond: u64,
    /// Carriage returns that came last. They are of the line only if more of it follows.
    returns: usize,
}

impl OpenLine {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.returns == 0
    }

    fn add(&mut self, text: &[u8]) {
        let returns = text.iter().rev().take_while(|byte| **byte == b'\r').count();
        let text = &text[..text.len() - returns];
        if !text.is_empty() {
            let before = std::mem::take(&mut self.returns);
            let kept = before.min(self.room());
            self.bytes.resize(self.bytes.len() + kept, b'\r');
            self.count_beyond(before - kept);
            let (kept, beyond) = text.split_at(text.len().min(self.room()));
            self.bytes.extend_from_slice(kept);
            self.count_beyond(beyond.len());
        }
        self.returns = self.returns.saturating_add(returns);
    }

    fn room(&self) -> usize {
        LOG_LINE_BYTES_MAX.saturating_sub(self.bytes.len())
    }

    fn count_beyond(&mut self, bytes: usize) {
        self.beyond = self.beyond.saturating_add(bytes as u64);
    }

    /// Ends the line: its text as the log has it, without what ends it.
    fn end(&mut self) -> String {
        let Self { bytes, beyond, returns: _ } = std::mem::take(self);
        log_line(&bytes, beyond).into_owned()
    }
}

impl Output {
    pub(super) fn new(guest: &Guest, scope: &Arc<CallScope>, stream: &'static str) -> Self {
        let (scope, source) = (Arc::clone(scope), guest.source.clone());
        Self(Arc::new(Lines { scope, source, stream, open: Mutex::default() }))
    }
}

impl Lines {
    fn write(&self, bytes: &[u8]) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut lines, mut shared) = (0_usize, None);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = match piece.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (piece, false),
            };
            open.add(text);
            if ends {
                lines += 1;
                let line = open.end();
                if lines <= LINES_MAX {
                    self.log(&line);
                } else {
                    shared = Some(self.share(shared.take(), line));
                }
            }
        }
        if let Some(text) = shared {
            self.log(&text);
        }
    }

    /// An entry of several lines with one more. What has no room for it is logged before.
    fn share(&self, entry: Option<String>, line: String) -> String {
        match entry {
            Some(mut text) if text.len() + 1 + line.len() <= LOG_LINE_BYTES_MAX => {
                text.push('\n');
                text.push_str(&line);
                text
            }
            Some(full) => {
                self.log(&full);
                line
            }
            None => line,
        }
    }

    fn log(&self, text: &str) {
        let level = if self.stream == "stderr" { LogLevel::Warn } else { LogLevel::Info };
        let fields = Labels::from([("stream".to_owned(), self.stream.to_owned())]);
        self.scope.log(level, &self.source, text, fields);
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let open = self.open.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !open.is_empty() {
            let rest = open.end();
            self.log(&rest);
        }
    }
}

impl IsTerminal for Output {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Output {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(Writer(Arc::clone(&self.0)))
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(Writer(Arc::clone(&self.0)))
    }
}

struct Writer(Arc<Lines>);

#[async_trait]
impl Pollable for Writer {
    async fn ready(&mut self) {}
}

impl OutputStream for Writer {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        if bytes.len() > WRITE_BYTES_MAX {
            return Err(StreamError::trap("more was written than was permitted"));
        }
        self.0.write(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_BYTES_MAX)
    }

    fn write_zeroes(&mut self, len: usize) -> StreamResult<()> {
        match len > WRITE_BYTES_MAX {
            true => Err(StreamError::trap("more was written than was permitted")),
            false => self.write(vec![0; len].into()),
        }
    }
}

impl AsyncWrite for Writer {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.0.write(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use taskrun::clock::{SeededRandom, SystemClock};
    use taskrun::scope::{
        CallScopeParts, CurrentRules, Remaining, RunContext, ScopeLimits, Services, StopSignal,
    };
    use taskrun_journal::event::Event;
    use taskrun_policy::CallRules;

    use super::*;

    /// An output whose log has room for all.
    fn lines() -> (Arc<CallScope>, Lines) {
        let scope = Arc::new(CallScope::new(CallScopeParts {
            context: RunContext::default(),
            stop: StopSignal::never(),
            deadline: Duration::from_secs(60),
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SeededRandom::new(1)),
            models: None,
            rules: CurrentRules::fixed(CallRules::nothing()),
            pins: Vec::new(),
            runs: None,
            tools: Arc::default(),
            state: BTreeMap::new(),
            services: Services::default(),
            remaining: Remaining::default(),
            limits: ScopeLimits { events: u32::MAX, bytes: u64::MAX },
            wake: Arc::default(),
            journal: None,
            tape: None,
        }));
        let (source, stream) = ("a".to_owned(), "stdout");
        let lines = Lines { scope: Arc::clone(&scope), source, stream, open: Mutex::default() };
        (scope, lines)
    }

    /// The entries of a log.
    fn logged(scope: &CallScope) -> Vec<String> {
        let text = |event| {
            let Event::Log { message, .. } = event else { panic!("{event:?}") };
            message
        };
        scope.finish().events.into_iter().map(text).collect()
    }

    #[test]
    fn line_breaks_alone_are_little_work() {
        let (scope, lines) = lines();
        lines.write(&[b'\n'; WRITE_BYTES_MAX]);
        lines.write(b"one more\n");
        let entries = logged(&scope);
        assert!(entries.len() < LINES_MAX + 20, "{}", entries.len());
        assert_eq!(entries.last().map(String::as_str), Some("one more"));
    }

    #[test]
    fn a_long_line_ends_with_the_number_of_bytes_that_are_left_out() {
        let (scope, lines) = lines();
        for part in [&[b'x'; 5_000][..], &[b'x'; 4_000], b"\nshort\r\n", &[b'y'; 9_000]] {
            lines.write(part);
        }
        drop(lines);
        let cut = |of: &str| format!("{}… (829 bytes more)", of.repeat(8_171));
        assert_eq!(logged(&scope), [cut("x"), "short".to_owned(), cut("y")]);
    }

    #[test]
    fn what_ends_a_line_is_no_part_of_it() {
        let (scope, lines) = lines();
        let whole = "x".repeat(LOG_LINE_BYTES_MAX);
        let x = whole.as_str();
        for part in [x, "\r\n", x, "\r", "\r\n", x, "\r", "y\r\n", "a\r", "b\r\n"] {
            lines.write(part.as_bytes());
        }
        let cut = format!("{}… (23 bytes more)", "x".repeat(8_171));
        assert_eq!(logged(&scope), [whole.clone(), whole, cut, "a\rb".to_owned()]);
    }

    #[test]
    fn bytes_that_are_no_text_are_left_out_by_their_own_number() {
        let (scope, lines) = lines();
        lines.write(&[0xff; 3_000]);
        lines.write(b"\r\n");
        let expected = format!("{}… (277 bytes more)", "\u{fffd}".repeat(2_723));
        assert_eq!(logged(&scope), [expected]);
    }

    #[test]
    fn lines_of_one_write_are_all_logged() {
        let (scope, lines) = lines();
        let written: Vec<String> = (0..4_000).map(|line| format!("the line {line}")).collect();
        let text = written.join("\r\n");
        assert!(text.len() < WRITE_BYTES_MAX, "one write");
        lines.write(text.as_bytes());
        lines.write(b" goes on");
        drop(lines);
        let entries = logged(&scope);
        assert_eq!(entries[..LINES_MAX], written[..LINES_MAX], "an entry each");
        assert!(entries.len() < LINES_MAX + 20, "{}", entries.len());
        assert!(entries.iter().all(|entry| entry.len() <= LOG_LINE_BYTES_MAX));
        assert_eq!(entries.join("\n"), format!("{} goes on", written.join("\n")));
    }
}
