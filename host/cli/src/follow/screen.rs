//! Lines on a terminal, with a spinner below them; or into a pipe, without.

use std::borrow::Cow;
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
    /// Text of the agent that does not fill a line yet; `None` between two messages.
    partial: Option<String>,
    width: usize,
    notes: Notes,
    indent: &'static str,
    /// True where the text goes into a pipe, which gets it as it is.
    is_data: bool,
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
            let bar = bar(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(TICK);
            bar
        });
        let width = printer.width().unwrap_or(WIDTH_DEFAULT).max(2);
        // With notes between them the lines are a page of this program.
        let is_data = !printer.is_terminal() && notes == Notes::Stderr;
        Self { printer: printer.clone(), bar, partial: None, width, notes, indent: "", is_data }
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
                // A note that goes elsewhere breaks no line.
                if !self.is_data {
                    self.end_text();
                }
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
        if text.is_empty() {
            return;
        }
        let text = match self.is_data {
            true => Cow::Borrowed(text),
            false => escaped_block(text),
        };
        let page = self.take_page(&text);
        // The spinner is drawn again below the page, and must not repeat it.
        self.show_partial();
        if let Some(page) = page {
            self.print(&page);
        }
    }

    /// The whole lines that there are with a further text, and of a line that has no end yet the
    /// rows that it fills on a terminal. The rest is kept.
    fn take_page(&mut self, text: &str) -> Option<String> {
        let mut partial = self.partial.take().unwrap_or_default();
        let mut end = text.rfind('\n').map_or(0, |last| partial.len() + last + 1);
        partial.push_str(text);
        let mut lines: Vec<&str> = partial[..end].split_terminator('\n').collect();
        if self.bar.is_some() && !self.is_data {
            while partial[end..].chars().nth(self.width - 1).is_some() {
                let row = &partial[end..][..first_piece(&partial[end..], self.width)];
                end += row.len();
                lines.push(row);
            }
        }
        let page = (!lines.is_empty()).then(|| self.page(&lines));
        partial.replace_range(..end, "");
        self.partial = Some(partial);
        page
    }

    /// Lines as they are printed.
    fn page(&self, lines: &[&str]) -> String {
        if self.is_data {
            return lines.join("\n");
        }
        let line = |line: &&str| format!("{}{line}", self.indent).trim_end().to_owned();
        lines.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn end_text(&mut self) {
        // A message that ends with a line break is data with it.
        if let Some(rest) = self.partial.take()
            && (self.is_data || !rest.is_empty())
        {
            self.show_partial();
            self.print(&self.page(&[&rest]));
        }
    }

    fn print(&self, page: &str) {
        self.above(|| match self.is_data {
            true => self.printer.guest_text(page),
            false => self.printer.line(page),
        });
    }

    /// Prints whole lines above the spinner.
    pub(crate) fn above(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    fn show_partial(&self) {
        let Some(bar) = &self.bar else { return };
        bar.set_message(match self.partial.as_deref().unwrap_or_default() {
            "" => String::new(),
            partial if self.is_data => {
                format!("{}\n", escaped_block(last_piece(partial, self.width - 1)))
            }
            partial => format!("{}{partial}\n", self.indent),
        });
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.end();
    }
}

/// A spinner with the text that has no end yet above it.
fn bar(target: ProgressDrawTarget) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, target);
    let is_plain = anstream::ColorChoice::global() == anstream::ColorChoice::Never;
    let template = if is_plain {
        "{msg}{spinner} {elapsed} {prefix}"
    } else {
        "{msg}{spinner:.cyan} {elapsed:.dim} {prefix:.dim}"
    };
    let style = ProgressStyle::with_template(template);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar
}

/// The last characters of a text.
fn last_piece(text: &str, chars: usize) -> &str {
    let begin = text.char_indices().rev().take(chars).last();
    begin.map_or("", |(begin, _)| &text[begin..])
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
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use indicatif::TermLike;

    use super::*;

    #[test]
    fn lines_break_between_words() {
        assert_eq!(first_piece("hello world again", 12), 12);
        assert_eq!(first_piece("hello world again", 11), 6);
        assert_eq!(first_piece("äääääääää", 5), 8);
        let last = |text, chars| last_piece(text, chars).to_owned();
        assert_eq!([last("aäb", 2), last("aäb", 9), last("", 2)], ["äb", "aäb", ""]);
    }

    /// A terminal that counts what is drawn.
    #[derive(Clone, Debug, Default)]
    struct Canvas {
        draws: Arc<AtomicUsize>,
        bytes: Arc<AtomicUsize>,
    }

    impl TermLike for Canvas {
        fn width(&self) -> u16 {
            80
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.bytes.fetch_add(text.len(), Ordering::Relaxed);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            self.draws.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    fn screen(bar: Option<ProgressBar>, is_data: bool) -> Screen {
        let (printer, notes) = (Printer::unread(), Notes::Stderr);
        Screen { printer, bar, partial: None, width: 80, notes, indent: "", is_data }
    }

    #[test]
    fn a_large_text_is_drawn_a_few_times_however_many_lines_it_has() {
        for text in ["a line of it\n".repeat(2_000), "words ".repeat(40_000)] {
            for is_data in [false, true] {
                let canvas = Canvas::default();
                let target = ProgressDrawTarget::term_like(Box::new(canvas.clone()));
                let mut screen = screen(Some(bar(target)), is_data);
                screen.show(&Line::Text(text.clone()));
                screen.show(&Line::TextEnd);
                let draws = canvas.draws.load(Ordering::Relaxed);
                let bytes = canvas.bytes.load(Ordering::Relaxed);
                assert!((1..=8).contains(&draws), "{draws} draws");
                assert!(bytes < text.len(), "{bytes} bytes are drawn for {}", text.len());
            }
        }
    }

    #[test]
    fn a_terminal_is_shown_whole_lines_and_the_rows_that_a_longer_one_fills() {
        let mut screen = screen(Some(ProgressBar::hidden()), false).indented();
        screen.width = 11;
        assert_eq!(screen.take_page("one"), None);
        let page = screen.take_page(" \n\nhello world again, and").expect("lines");
        assert_eq!(page, "   one\n\n   hello\n   world");
        assert_eq!(screen.partial.as_deref(), Some("again, and"));
    }

    #[test]
    fn a_pipe_is_given_lines_as_they_are() {
        let mut screen = screen(Some(ProgressBar::hidden()), true);
        assert_eq!(screen.take_page("a\tb  "), None);
        let page = screen.take_page("\n\n\u{200d}c \nlong ").expect("lines");
        assert_eq!(page, "a\tb  \n\n\u{200d}c ");
        assert_eq!(screen.take_page(&"x".repeat(100)), None);
        screen.show(&Line::Note("a note".to_owned()));
        assert!(screen.partial.as_deref().is_some_and(|partial| partial.starts_with("long x")));
    }
}
