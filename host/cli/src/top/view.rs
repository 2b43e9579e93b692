//! Everything that is drawn, and what keys change of it.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use taskrun_journal::ids::RunId;
use taskrun_journal::question::ANSWER_BYTES_MAX;
use taskrun_journal::time::Timestamp;

use super::rows::{Row, short_id};
use crate::output::escape::excerpt;

/// Characters of a message that are shown; the screen cuts it where it ends.
const MESSAGE_CHARS_MAX: usize = 400;

/// Everything that is drawn.
pub(super) struct View {
    pub(super) rows: Vec<Row>,
    /// The rows before these, on earlier pages.
    pub(super) before: usize,
    /// True if there are more.
    pub(super) more: bool,
    pub(super) selected: Option<RunId>,
    pub(super) page: Page,
    /// The stage of the question that is on the page, if one is.
    pub(super) question: QuestionStage,
    /// Said below the rows until the next key.
    pub(super) message: Option<String>,
    /// The reason why the rows are not those of now.
    pub(super) trouble: Option<String>,
    /// True if the screen has no room for any of this, as it was drawn last.
    pub(super) is_too_small: bool,
}

/// The part of the screen above the last line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// The open runs.
    Runs,
    /// One run, from this line of its text on.
    Run { text: String, from: usize },
    /// The open runs, and a question about the cancellation of this one.
    Cancel(RunId),
    /// A question of a run: the text of its form, how many lines above its end it is looked at, and
    /// the line that is being typed.
    Ask { text: String, up: usize, typed: String },
}

/// The stage of a question on the screen. Keys from before it was there to be seen are no answer
/// to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuestionStage {
    /// It is not on the screen.
    New,
    /// It is, but for the prompt. Some keys from before may not be read yet.
    Drawn,
    /// Keys are its answer.
    Open,
}

/// The meaning of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Nothing,
    Quit,
    Look,
    Back,
    NextPage,
    PageBefore,
    Answer(RunId),
    /// To give the form this line.
    Send(String),
    /// To leave the form without an answer.
    Unanswered,
    Pause(RunId),
    Resume(RunId),
    Cancel(RunId),
}

impl View {
    pub(super) fn new() -> Self {
        Self {
            rows: Vec::new(),
            before: 0,
            more: false,
            selected: None,
            page: Page::Runs,
            question: QuestionStage::New,
            message: None,
            trouble: None,
            is_too_small: false,
        }
    }

    /// Shows these rows. The selected one stays selected as long as it is on the page, and on the
    /// page of a run also after that.
    pub(super) fn show(&mut self, rows: Vec<Row>) {
        self.rows = rows;
        let is_shown = self.place().is_some() || matches!(self.page, Page::Run { .. });
        if !is_shown {
            self.selected = self.rows.first().map(|row| row.id.clone());
        }
    }

    /// Shows a page on which something is asked.
    pub(super) fn ask(&mut self, page: Page) {
        (self.page, self.question) = (page, QuestionStage::New);
    }

    /// The page stands on the screen.
    pub(super) fn was_drawn(&mut self) {
        let is_asked = match &self.page {
            Page::Cancel(_) => true,
            Page::Ask { text, .. } => !text.is_empty(),
            Page::Runs | Page::Run { .. } => false,
        };
        if is_asked && self.question == QuestionStage::New {
            self.question = QuestionStage::Drawn;
        }
    }

    /// True if a question is on the page to which keys are no answer yet.
    fn is_early(&self) -> bool {
        let asks = matches!(self.page, Page::Cancel(_) | Page::Ask { .. });
        asks && self.question != QuestionStage::Open
    }

    /// The row that is selected.
    pub(super) fn place(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.rows.iter().position(|row| row.id == *selected)
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "keys are those of another crate, and most of them mean nothing"
    )]
    pub(super) fn key(&mut self, key: KeyEvent) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::Nothing;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && key.code == KeyCode::Char('c') {
            return Wish::Quit;
        }
        // What other keys are about is not seen.
        if self.is_too_small {
            return if key.code == KeyCode::Char('q') { Wish::Quit } else { Wish::Nothing };
        }
        if self.is_early() {
            return Wish::Nothing;
        }
        self.message = None;
        match &mut self.page {
            Page::Cancel(id) => {
                let id = id.clone();
                self.page = Page::Runs;
                if key.code == KeyCode::Char('y') { Wish::Cancel(id) } else { Wish::Nothing }
            }
            Page::Run { from, .. } => match key.code {
                KeyCode::Up | KeyCode::Char('k') => {
                    *from = from.saturating_sub(1);
                    Wish::Nothing
                }
                KeyCode::Down | KeyCode::Char('j') => {
                    *from = from.saturating_add(1);
                    Wish::Nothing
                }
                KeyCode::Char('q') | KeyCode::Esc | KeyCode::Enter => Wish::Back,
                code => self.about_run(code),
            },
            Page::Ask { up, typed, .. } => match key.code {
                KeyCode::Esc => Wish::Unanswered,
                KeyCode::Enter => {
                    *up = 0;
                    Wish::Send(std::mem::take(typed))
                }
                KeyCode::Up => {
                    *up = up.saturating_add(1);
                    Wish::Nothing
                }
                KeyCode::Down => {
                    *up = up.saturating_sub(1);
                    Wish::Nothing
                }
                KeyCode::Backspace => {
                    typed.pop();
                    Wish::Nothing
                }
                KeyCode::Char('u') if is_control => {
                    typed.clear();
                    Wish::Nothing
                }
                KeyCode::Char(character) if !is_control => {
                    self.insert(character.encode_utf8(&mut [0; 4]));
                    Wish::Nothing
                }
                _ => Wish::Nothing,
            },
            Page::Runs => match key.code {
                KeyCode::Char('q') | KeyCode::Esc => Wish::Quit,
                KeyCode::Up | KeyCode::Char('k') => self.step(false),
                KeyCode::Down | KeyCode::Char('j') => self.step(true),
                KeyCode::PageDown | KeyCode::Char('n') if self.more => Wish::NextPage,
                KeyCode::PageUp | KeyCode::Char('b') if self.before > 0 => Wish::PageBefore,
                KeyCode::Enter if self.selected.is_some() => Wish::Look,
                code => self.about_run(code),
            },
        }
    }

    /// Takes what was pasted, where something is typed. Its line breaks become blanks: a line of a
    /// form is one line, and what is sent is what is seen.
    pub(super) fn paste(&mut self, text: &str) {
        let line = text.trim_end_matches(['\r', '\n']).replace("\r\n", " ");
        self.insert(&line.replace(['\r', '\n'], " "));
    }

    fn insert(&mut self, text: &str) {
        if self.is_too_small || self.is_early() {
            return;
        }
        let Page::Ask { typed, .. } = &mut self.page else { return };
        if typed.len() + text.len() < ANSWER_BYTES_MAX {
            typed.push_str(text);
        } else {
            self.message = Some(format!("a line has less than {ANSWER_BYTES_MAX} bytes"));
        }
    }

    /// A key that means the selected run on every page.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "keys are those of another crate, and most of them mean nothing"
    )]
    fn about_run(&mut self, code: KeyCode) -> Wish {
        let Some(id) = self.selected.clone() else { return Wish::Nothing };
        if code == KeyCode::Char('c') {
            self.ask(Page::Cancel(id));
            return Wish::Nothing;
        }
        match code {
            KeyCode::Char('a') => Wish::Answer(id),
            KeyCode::Char('p') => Wish::Pause(id),
            KeyCode::Char('r') => Wish::Resume(id),
            _ => Wish::Nothing,
        }
    }

    fn step(&mut self, down: bool) -> Wish {
        let place = self.place();
        let next = match (place, down) {
            (Some(place), true) => place.saturating_add(1),
            (Some(place), false) => place.saturating_sub(1),
            (None, _) => 0,
        };
        if let Some(row) = self.rows.get(next) {
            self.selected = Some(row.id.clone());
        }
        Wish::Nothing
    }

    /// True if the last line is more than the keys.
    pub(super) fn is_said(&self) -> bool {
        let is_asked = matches!(self.page, Page::Cancel(_));
        is_asked || self.message.is_some() || self.trouble.is_some()
    }

    /// The question at the bottom, a message, or the keys. A narrow screen cuts its end.
    pub(super) fn last_line(&self) -> String {
        match (&self.page, &self.message, &self.trouble) {
            (Page::Cancel(id), _, _) => {
                let id = short_id(id);
                match self.question {
                    QuestionStage::Open => {
                        format!("y cancels {id} and all beneath it, any other key does not")
                    }
                    QuestionStage::New | QuestionStage::Drawn => {
                        format!("cancel {id} and all beneath it?")
                    }
                }
            }
            (_, Some(message), _) | (_, None, Some(message)) => excerpt(message, MESSAGE_CHARS_MAX),
            (Page::Runs, None, None) => {
                "↑↓ select  ⏎ look  a answer  p pause  r resume  c cancel  n b pages  q quit"
                    .to_owned()
            }
            (Page::Run { .. }, None, None) => {
                "↑↓ scroll  a answer  p pause  r resume  c cancel  q back".to_owned()
            }
            (Page::Ask { .. }, None, None) => "⏎ send  esc leave it unanswered".to_owned(),
        }
    }

    pub(super) fn title(&self, now: Timestamp) -> String {
        let (first, last) = (self.before + 1, self.before + self.rows.len());
        let shown = match (self.rows.is_empty(), self.more) {
            (true, _) => "no open runs".to_owned(),
            (false, true) => format!("open runs {first} to {last}, and more"),
            (false, false) => format!("open runs {first} to {last}"),
        };
        format!("taskrun top  {shown}  {now}")
    }
}
