//! The conversation as a terminal shows it.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};

use rustix::termios::tcgetwinsize;
use taskrun_journal::event::{DialogEvent, EventRecord, EventView, LifecycleEvent};
use taskrun_journal::ids::RunId;
use taskrun_journal::message::LogLevel;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::Status;
use unicode_width::UnicodeWidthStr;

use super::input::Input;
use crate::follow::{Lines, Notes, Screen};
use crate::output::Printer;
use crate::output::escape::{escaped_line, excerpt, indented};
use crate::output::human;
use crate::output::paint::{DIM, NOTE, with};
use crate::output::status_text;
use crate::output::stream::BlockingStream;

/// Characters of a task that are shown in a note.
const TASK_CHARS_MAX: usize = 60;
/// Stands before what a person says.
pub(super) const PROMPT: &str = "> ";
/// Back to the beginning of the row; it and everything below it is cleared.
const CLEAR_DOWN: &str = "\r\x1b[J";

/// A run of the session, as far as it is shown.
enum Shown {
    /// A line of the conversation that is under way.
    Line(Box<(Lines, Screen)>),
    /// A background run: its agent.
    Background(String),
    /// One that is shown no more, or by the run that called it.
    Nothing,
}

/// The terminal.
pub(super) struct View {
    printer: Printer,
    runs: BTreeMap<RunId, Shown>,
    /// The prompt that stands in the last line.
    prompt: Option<String>,
    /// True while something is asked.
    asks: bool,
    is_terminal: bool,
    /// The input, for what stands behind the prompt.
    input: Input,
}

impl View {
    pub(super) fn new(printer: &Printer, input: Input) -> Self {
        let is_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        let (printer, runs) = (printer.clone(), BTreeMap::new());
        Self { printer, runs, prompt: None, asks: false, is_terminal, input }
    }

    /// True if this prompt does not stand in the last line, and is to.
    pub(super) fn lacks(&self, prompt: &str) -> bool {
        self.is_terminal && self.prompt.as_deref() != Some(prompt)
    }

    /// Shows that a line is awaited, behind this text, and what is typed of it by now.
    pub(super) fn prompt(&mut self, prompt: &str, begun: &str) {
        self.clear();
        self.prompt = Some(prompt.to_owned());
        write_now(&format!("{prompt}{}", escaped_line(begun)));
    }

    /// Shows a line that was typed before it was awaited, as if it were typed.
    pub(super) fn repeat(&mut self, line: &str) {
        if !self.is_terminal {
            return;
        }
        self.prompt(PROMPT, line.trim_end());
        self.prompt = None;
        write_now("\n");
    }

    /// The line was typed, with its end.
    pub(super) fn typed(&mut self) {
        self.prompt = None;
    }

    /// Makes room for something else in the line of the prompt.
    pub(super) fn clear(&mut self) {
        clear(&mut self.prompt, &self.input);
    }

    /// Something is asked from now on. No part of the terminal moves meanwhile.
    pub(super) fn begin_question(&mut self) {
        self.rest();
        self.asks = true;
    }

    /// It is asked no more.
    pub(super) fn end_question(&mut self) {
        self.asks = false;
    }

    pub(super) fn note(&mut self, text: &str) {
        self.print(|printer| printer.talk(with(DIM, &format!("· {text}"))));
    }

    /// A text of a run, whole.
    pub(super) fn guest_text(&mut self, text: &str) {
        self.print(|printer| printer.guest_text(text));
    }

    /// Prints whole lines: above the moving part of the terminal, if there is one.
    fn print(&mut self, print: impl FnOnce(&Printer)) {
        self.clear();
        let moves = self.runs.values().find_map(|shown| match shown {
            Shown::Line(line) => Some(&line.1),
            Shown::Background(_) | Shown::Nothing => None,
        });
        match moves {
            Some(screen) => screen.above(|| print(&self.printer)),
            None => print(&self.printer),
        }
    }

    /// A line of the conversation that was said before, or elsewhere.
    pub(super) fn said(&mut self, task: &str) {
        self.clear();
        self.printer.line(format!("{PROMPT}{}", indented(task, "  ")));
    }

    /// An answer that was given before.
    pub(super) fn answered(&mut self, run: &Run, answer: Option<&str>) {
        match answer {
            Some(answer) => self.printer.guest_text(answer),
            // There was nothing to tell.
            None if run.spec.is_nudge() && run.status() == Status::Completed => {}
            None => self.note(&format!("{} {}", run.id(), status_text(run))),
        }
    }

    /// Whatever comes of this run is shown no more.
    pub(super) fn forget(&mut self, run: &RunId) {
        self.runs.insert(run.clone(), Shown::Nothing);
    }

    /// True for a run of which nothing was shown yet.
    pub(super) fn is_new(&self, run: &RunId) -> bool {
        !self.runs.contains_key(run)
    }

    /// A run of the session is there.
    pub(super) fn add(&mut self, spec: &RunSpec, level: LogLevel) {
        let is_line = is_line(spec);
        let shown = if is_line {
            self.clear();
            let mut screen = Screen::new(&self.printer, Notes::Stderr);
            if self.asks {
                screen.end();
            }
            Shown::Line(Box::new((Lines::new(level), screen)))
        } else if spec.parent_tool_call_id.is_some() {
            Shown::Nothing
        } else {
            let task = excerpt(&spec.task, TASK_CHARS_MAX);
            let agent = escaped_line(&spec.agent_name).into_owned();
            self.note(&format!("{agent} {} works in the background: {task}", spec.id));
            Shown::Background(agent)
        };
        self.runs.insert(spec.id.clone(), shown);
    }

    /// True for a background run that is under way.
    pub(super) fn is_background(&self, run: &RunId) -> bool {
        matches!(self.runs.get(run), Some(Shown::Background(_)))
    }

    /// True while a line of the conversation is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.runs.values().any(|shown| matches!(shown, Shown::Line(_)))
    }

    /// Runs that have not ended.
    pub(super) fn open(&self) -> Vec<RunId> {
        let open = self.runs.iter().filter(|(_, shown)| !matches!(shown, Shown::Nothing));
        open.map(|(id, _)| id.clone()).collect()
    }

    /// Shows an event of a run. Gives true if the run has ended by it.
    pub(super) fn show(&mut self, run: &RunId, recorded: &EventRecord) -> bool {
        let view = recorded.event.view();
        let has_ended = matches!(view, EventView::Lifecycle(LifecycleEvent::Finished { .. }));
        let is_asked_in_place = matches!(
            view,
            EventView::Dialog(DialogEvent::Asked { .. } | DialogEvent::Answered { .. })
                | EventView::Lifecycle(
                    LifecycleEvent::Blocked { .. } | LifecycleEvent::Resumed { .. }
                )
        );
        if let Some(Shown::Line(line)) = self.runs.get_mut(run)
            && !is_asked_in_place
        {
            let (lines, screen) = &mut **line;
            let shown = lines.of(recorded);
            if !shown.is_empty() {
                clear(&mut self.prompt, &self.input);
            }
            shown.iter().for_each(|line| screen.show(line));
            screen.progress(lines.progress());
        }
        has_ended
    }

    /// Takes the moving part of the terminal away while somebody types.
    pub(super) fn rest(&mut self) {
        self.clear();
        for shown in self.runs.values_mut() {
            if let Shown::Line(line) = shown {
                line.1.end();
            }
        }
    }

    /// A run has ended.
    pub(super) fn ended(&mut self, run: &Run) {
        self.clear();
        match self.runs.insert(run.id().clone(), Shown::Nothing) {
            Some(Shown::Line(mut line)) => {
                line.1.end();
                let is_silent = run.spec.is_nudge() && run.status() == Status::Completed;
                let has_answer = has_answer(run) || is_silent;
                if run.ending().is_some_and(|end| end.error.is_some()) || !has_answer {
                    let error = run.ending().and_then(|end| end.error.clone()).unwrap_or_default();
                    let text = format!("! {}: {}", status_text(run), excerpt(&error, 200));
                    self.printer.talk(with(NOTE, text.trim_end_matches(": ")));
                }
                for line in human::answer_images(run) {
                    self.note(&line);
                }
            }
            Some(Shown::Background(agent)) => {
                self.note(&format!("{agent} {} has {}", run.id(), run.status()));
            }
            Some(Shown::Nothing) | None => {}
        }
    }
}

/// Clears a prompt and what is typed behind it, if there is one: every row that they take.
fn clear(prompt: &mut Option<String>, input: &Input) {
    let Some(prompt) = prompt.take() else { return };
    // Of a terminal that is gone nothing is cleared.
    let begun = input.begun().unwrap_or_default();
    let columns = tcgetwinsize(std::io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    match rows_above(&format!("{prompt}{begun}"), columns) {
        0 => write_now(CLEAR_DOWN),
        rows => write_now(&format!("\x1b[{rows}A{CLEAR_DOWN}")),
    }
}

/// The number of rows that a line takes above its last one. A terminal that does not say how many
/// columns it has breaks none.
fn rows_above(line: &str, columns: usize) -> usize {
    escaped_line(line).width().saturating_sub(1).checked_div(columns).unwrap_or(0)
}

/// Writes a text that ends no line.
fn write_now(text: &str) {
    let mut stderr = BlockingStream(std::io::stderr().lock());
    write!(stderr, "{text}").and_then(|()| stderr.flush()).ok();
}

fn has_answer(run: &Run) -> bool {
    run.state.reply.result().is_some()
}

/// True for a run that is a line of the conversation.
pub(super) fn is_line(spec: &RunSpec) -> bool {
    spec.depth == 0 && !spec.history.is_none() && spec.class.is_task()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_fills_a_row_takes_no_further_one() {
        let rows = |columns| rows_above("> \u{6f22}456789", columns);
        assert_eq!([20, 10, 9, 5, 4].map(rows), [0, 0, 1, 1, 2]);
        assert_eq!(rows(0), 0);
    }
}
