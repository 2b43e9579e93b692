//! Where output goes: data to stdout, talk to stderr.

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use tokio::sync::SetOnce;

use super::escape::{escaped_block, escaped_json, escaped_page};
use super::stream;
use crate::args::{Globals, OutputFormat};
use crate::failure::{Failure, Outcome};
use crate::host_log;
use crate::invocation::Invocation;

/// The pause between two looks whether output still has a reader.
const READER_LOOK: Duration = Duration::from_millis(250);

/// Knows where output goes and in which form.
#[derive(Clone, Debug)]
pub(crate) struct Printer {
    format: Option<OutputFormat>,
    quiet: bool,
    to_terminal: bool,
    talks_to_terminal: bool,
    /// The options that commands have which people are told.
    invocation: Invocation,
    /// The first fault of stdout. Nothing is written there after it: what follows a gap would be
    /// read as if there were none.
    fault: Arc<SetOnce<io::Error>>,
}

/// Styles of text. They are taken away where the stream cannot show them.
pub(crate) mod paint {
    use anstyle::{AnsiColor, Style};

    /// For parts that matter less.
    pub(crate) const DIM: Style = Style::new().dimmed();
    /// For parts that matter more.
    pub(crate) const BOLD: Style = Style::new().bold();
    /// For success.
    pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
    /// For failures.
    pub(crate) const BAD: Style = AnsiColor::Red.on_default();
    /// For parts to be noticed.
    pub(crate) const NOTE: Style = AnsiColor::Yellow.on_default();

    /// Puts a style around a text.
    #[must_use]
    pub(crate) fn with(style: Style, text: &str) -> String {
        format!("{style}{text}{style:#}")
    }
}

impl Printer {
    /// As the command line asks, on this process's streams.
    #[must_use]
    pub(crate) fn new(globals: &Globals) -> Self {
        if globals.no_color {
            anstream::ColorChoice::Never.write_global();
        }
        Self {
            format: globals.output,
            quiet: globals.quiet,
            to_terminal: io::stdout().is_terminal(),
            talks_to_terminal: io::stderr().is_terminal(),
            invocation: Invocation::default(),
            fault: Arc::default(),
        }
    }

    /// One whose output nobody reads.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn unread() -> Self {
        let printer = Self::new(&Globals::default());
        printer.fault.set(io::ErrorKind::BrokenPipe.into()).ok();
        printer
    }

    /// The same in a form that is used if none was asked for.
    #[must_use]
    pub(crate) fn with_default(&self, format: OutputFormat) -> Self {
        Self { format: self.format.or(Some(format)), ..self.clone() }
    }

    /// The same for a command line that has these options.
    #[must_use]
    pub(crate) fn called_with(self, invocation: Invocation) -> Self {
        Self { invocation, ..self }
    }

    /// The options of the command line that commands have which people are told.
    #[must_use]
    pub(crate) fn invocation(&self) -> &Invocation {
        &self.invocation
    }

    /// A text of this program, which may be pasted: its commands have the options of the command
    /// line that say where its runs are.
    #[must_use]
    pub(crate) fn completed(&self, text: &str) -> String {
        self.invocation.complete(text).into_owned()
    }

    /// The same for the hint of a failure.
    #[must_use]
    pub(crate) fn complete(&self, mut failure: Box<Failure>) -> Box<Failure> {
        failure.hint = failure.hint.take().map(|hint| self.completed(&hint));
        failure
    }

    /// The same for a command alone.
    #[must_use]
    pub(crate) fn command(&self, command: &str) -> String {
        self.invocation.command(command).into_owned()
    }

    /// The form asked for, if one was.
    #[must_use]
    pub(crate) fn asked(&self) -> Option<OutputFormat> {
        self.format
    }

    /// The form of the output.
    #[must_use]
    pub(crate) fn format(&self) -> OutputFormat {
        self.format.unwrap_or(OutputFormat::Table)
    }

    /// True if a person sees stdout.
    #[must_use]
    pub(crate) fn is_terminal(&self) -> bool {
        self.to_terminal
    }

    /// True if a person sees stderr.
    #[must_use]
    pub(crate) fn talks_to_terminal(&self) -> bool {
        self.talks_to_terminal
    }

    /// True if only data and errors are wanted.
    #[must_use]
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Columns of the terminal; `None` if stdout is none, or it does not say.
    #[must_use]
    pub(crate) fn width(&self) -> Option<usize> {
        if !self.to_terminal {
            return None;
        }
        // A terminal of which nobody has said how large it is has none.
        comfy_table::Table::new().width().map(usize::from).filter(|columns| *columns > 0)
    }

    /// Prints lines of data. What reaches a terminal of them are characters that are shown, line
    /// breaks, and styles; so it is also if a caller forgot to escape.
    pub(crate) fn line(&self, text: impl Display) {
        self.print(|| {
            let line = format!("{}\n", escaped_page(&text.to_string()));
            Ok(stream::styled(line, &io::stdout()))
        });
    }

    /// Prints text of a guest as data: as it is into a pipe, without control characters into a
    /// terminal.
    pub(crate) fn guest_text(&self, text: &str) {
        if self.to_terminal {
            self.line(escaped_block(text));
        } else {
            self.print(|| Ok(format!("{text}\n")));
        }
    }

    /// Prints a JSON document, in which strings have escapes for what could command a terminal.
    pub(crate) fn json(&self, value: &impl Serialize) {
        self.print(|| {
            let text = serde_json::to_string_pretty(value)?;
            Ok(format!("{}\n", escaped_json(&text)))
        });
    }

    /// Prints a line of JSON, likewise.
    pub(crate) fn json_line(&self, value: &impl Serialize) {
        self.print(|| {
            let text = serde_json::to_string(value)?;
            Ok(format!("{}\n", escaped_json(&text)))
        });
    }

    /// Prints a file as it is: one of this program's own, or one that no terminal is shown.
    pub(crate) fn file(&self, bytes: &[u8]) {
        self.print(|| Ok(bytes));
    }

    /// All that was printed has been written.
    ///
    /// # Errors
    /// If some of it cannot be; a silent failure if nobody reads it any more.
    pub(crate) fn written(&self) -> Outcome<()> {
        self.fault.get().map_or(Ok(()), |fault| Err(Failure::of_output(fault)))
    }

    /// Returns when something that was printed cannot be written, or nobody reads it. A command that
    /// prints without an end has its end there; others do the rest of their work.
    pub(crate) async fn fails(&self) -> Box<Failure> {
        Failure::of_output(self.fault.wait().await)
    }

    fn print<B: AsRef<[u8]>>(&self, data: impl FnOnce() -> io::Result<B>) {
        if self.fault.initialized() {
            return;
        }
        if let Err(fault) = data().and_then(|data| stream::print(data.as_ref())) {
            // Of two at once either is the first.
            self.fault.set(fault).ok();
        }
    }

    /// Says something to the person at the terminal, unless they want it quiet.
    pub(crate) fn talk(&self, text: impl Display) {
        if !self.quiet {
            self.say(text);
        }
    }

    /// The same of a text of this program, whose commands may be pasted.
    pub(crate) fn advise(&self, text: &str) {
        self.talk(self.completed(text));
    }

    /// Says why something was not done, to people and, unless they alone listen, to programs. The
    /// commands of its hint may be pasted.
    pub(crate) fn tell_failure(&self, failure: Box<Failure>, to_programs: bool) {
        let failure = self.complete(failure);
        self.say(failure.text());
        if to_programs && !self.talks_to_terminal {
            self.say(failure.json());
        }
    }

    /// Says something that must be heard.
    pub(crate) fn say(&self, text: impl Display) {
        let line = format!("{}\n", escaped_page(&text.to_string()));
        if !host_log::say(line.as_bytes()) {
            // Nobody listens: there is nowhere to say that.
            stream::say(line).ok();
        }
    }
}

/// Returns when stdout has lost its reader, also if nothing is printed. A command that follows
/// something ends then; it may be long before it would print the next line, and learn it so.
pub(crate) async fn reader_is_gone() {
    let mut look = tokio::time::interval(READER_LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while has_reader() {
        look.tick().await;
    }
}

/// True unless the system says that nothing which is written to stdout arrives anywhere.
fn has_reader() -> bool {
    let stdout = io::stdout();
    // Faults are told without being asked for.
    let mut polled = PollFd::new(&stdout, PollFlags::empty());
    let asked = std::slice::from_mut(&mut polled);
    let is_told = poll(asked, Some(&Timespec::default())).is_ok_and(|told| told > 0);
    !(is_told && polled.revents().intersects(PollFlags::ERR | PollFlags::HUP))
}
