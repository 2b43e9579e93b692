//! The words of a program on standard error: of one that goes on, and of a wait that says why its
//! run does not.

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};

use crate::project::{PATIENCE, Project, deadline};

/// The lines of a program at which nobody has looked.
pub(crate) struct ErrorLines(Receiver<String>);

impl ErrorLines {
    /// All those of a program from now on.
    pub(crate) fn of(program: &mut Child) -> Self {
        let stderr = BufReader::new(program.stderr.take().expect("a pipe"));
        let (line, lines) = channel();
        // To its end, whoever looks: a pipe that nobody reads is full at some time, or closed.
        std::thread::spawn(move || {
            for text in stderr.lines().map_while(Result::ok) {
                line.send(text).ok();
            }
        });
        Self(lines)
    }

    /// Waits for a line with these words, and passes over those before it.
    pub(crate) fn until(&self, words: &str) -> String {
        let deadline = deadline();
        loop {
            let line = self.0.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|error| panic!("never: {words:?}: {error}"));
            if line.contains(words) {
                return line;
            }
            assert!(!deadline.is_over(), "never: {words:?}");
        }
    }
}

impl Project {
    /// Waits for a run until that says why it does not go on. Each wait starts a host if none is
    /// there.
    pub(crate) fn is_told_why(&self, id: &str, why: &str) {
        let told = || self.run(&["wait", id, "--timeout", "2s"]).stderr;
        self.until(why, || told().contains(why));
    }
}
