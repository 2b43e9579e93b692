//! Lines on a terminal, with a spinner below them; or into a pipe, without.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::lines::Line;
use super::progress::Progress;
use crate::output::Printer;
use crate::output::escape::escaped_block;

/// The time between two frames of the spinner.
const TICK: Duration = Duration::from_millis(120);
/// Columns where the terminal does not say.
const WIDTH_DEFAULT: usize = 80;

/// Shows a run as it goes.
pub(crate) struct Screen {
    printer: Printer,
    bar: Option<ProgressBar>,
    /// Text of the agent that does not fill a line yet.
    partial: String,
    width: usize,
    notes: Notes,
    indent: &'static str,
}

/// Where lines about the run go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notes {
    /// To stderr, as talk.
    Stderr,
    /// To stdout, between the text.
    Stdout,
}

impl Screen {
    /// With a spinner if a person sits there who wants to see one.
    #[must_use]
    pub(crate) fn new(printer: &Printer, notes: Notes) -> Self {
        let wanted = printer.talks_to_terminal() && !printer.is_quiet();
        let bar = wanted.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let is_plain = anstream::ColorChoice::global() == anstream::ColorChoice::Never;
            let template = if is_plain {
                "{msg}{spinner} {elapsed} {prefix}"
            } else {
                "{msg}{spinner:.cyan} {elapsed:.dim} {prefix:.dim}"
            };
            let style = ProgressStyle::with_template(template);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.enable_steady_tick(TICK);
            bar
        });
        let width = printer.width().unwrap_or(WIDTH_DEFAULT).max(2);
        Self { printer: printer.clone(), bar, partial: String::new(), width, notes, indent: "" }
    }

    /// With everything a little to the right.
    #[must_use]
    pub(crate) fn indented(mut self) -> Self {
        self.indent = "   ";
        self.width = self.width.saturating_sub(self.indent.len()).max(2);
        self
    }

    /// Shows a line.
    pub(crate) fn show(&mut self, line: &Line) {
        match line {
            Line::Text(text) => self.text(text),
            Line::TextEnd => self.end_text(),
            Line::Note(note) => {
                self.end_text();
                self.note(note);
            }
        }
    }

    /// Shows numbers in the spinner's line.
    pub(crate) fn progress(&self, progress: &Progress) {
        if let Some(bar) = &self.bar {
            bar.set_prefix(progress.text());
        }
    }

    /// Takes the spinner away.
    pub(crate) fn end(&mut self) {
        self.end_text();
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn note(&self, note: &str) {
        let print = || match self.notes {
            Notes::Stderr => self.printer.talk(format!("{}{note}", self.indent)),
            Notes::Stdout => self.printer.line(format!("{}{note}", self.indent)),
        };
        self.above(print);
    }

    fn text(&mut self, text: &str) {
        self.partial.push_str(&escaped_block(text));
        while let Some(end) = self.partial.find('\n') {
            let line: String = self.partial.drain(..=end).collect();
            self.print(line.trim_end_matches('\n'));
        }
        if self.bar.is_some() {
            while self.partial.chars().count() >= self.width {
                let piece = first_piece(&self.partial, self.width);
                let line: String = self.partial.drain(..piece).collect();
                self.print(line.trim_end());
            }
        }
        self.show_partial();
    }

    fn end_text(&mut self) {
        if !self.partial.is_empty() {
            let line = std::mem::take(&mut self.partial);
            self.print(&line);
        }
    }

    fn print(&self, line: &str) {
        // The spinner is drawn again below the line, and must not repeat it.
        self.show_partial();
        self.above(|| self.printer.line(format!("{}{line}", self.indent).trim_end()));
    }

    /// Prints whole lines above the spinner.
    pub(crate) fn above(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    fn show_partial(&self) {
        if let Some(bar) = &self.bar {
            let above = if self.partial.is_empty() {
                String::new()
            } else {
                format!("{}{}\n", self.indent, self.partial)
            };
            bar.set_message(above);
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.end();
    }
}

/// Bytes of the words that fit into `width` columns; of one long word, what fits.
fn first_piece(text: &str, width: usize) -> usize {
    let end = |chars| text.char_indices().nth(chars).map_or(text.len(), |(end, _)| end);
    let fits = end(width - 1);
    // A space just behind what fits is not printed.
    match text[..end(width)].rfind(' ') {
        Some(space) if space > 0 => space + 1,
        Some(_) | None => fits,
    }
}

#[cfg(test)]
mod tests {
    use super::first_piece;

    #[test]
    fn lines_break_between_words() {
        assert_eq!(first_piece("hello world again", 12), 12);
        assert_eq!(first_piece("hello world again", 11), 6);
        assert_eq!(first_piece("äääääääää", 5), 8);
    }
}
