//! A question at the terminal. The form that asks it runs in a thread of its own, and is given a
//! line when it waits for one: a line that is typed once the question is settled is none of its.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use taskrun_journal::ids::RunId;
use taskrun_journal::question::{Answer, Item};
use tokio::sync::{mpsc, oneshot};

use super::input::Reader;
use crate::commands::form::Form;
use crate::output::stream::BlockingStream;

/// A question that is asked. Dropping it ends the form without an answer.
pub(super) struct OpenQuestion {
    pub(super) run: RunId,
    pub(super) item: Item,
    words: mpsc::Receiver<FormWord>,
    /// The line that the form was given last, as it was typed.
    pub(super) given: Option<String>,
    /// The line that the form waits for.
    wanted: Option<WantedLine>,
}

/// The news of a question.
pub(super) enum QuestionNews {
    /// The form waits for a line.
    Waits,
    /// The form is filled in; without an answer at the end of the input.
    Filled(io::Result<Option<Answer>>),
}

/// A word of the form to the conversation.
enum FormWord {
    Wants(WantedLine),
    Filled(io::Result<Option<Answer>>),
}

/// A line that a form waits for.
struct WantedLine {
    /// The text that stands before it.
    prompt: String,
    line: oneshot::Sender<String>,
}

impl OpenQuestion {
    /// Asks a question of a run.
    pub(super) fn ask(run: RunId, item: Item) -> Self {
        // One at a time: a form does nothing else while it waits for a line.
        let (tell, words) = mpsc::channel(1);
        let asked = item.clone();
        // A thread that the end of the program does not wait for.
        std::thread::spawn(move || {
            let prompt = Rc::<RefCell<String>>::default();
            let shown = Shown(Rc::clone(&prompt));
            let lines = Reader::of(|| {
                let (line, typed) = oneshot::channel();
                // Where nobody hears it there is no line.
                tell.blocking_send(FormWord::Wants(WantedLine { prompt: prompt.take(), line }))
                    .ok();
                Ok(typed.blocking_recv().ok())
            });
            let filled = Form::new(lines, shown).fill(&asked);
            tell.blocking_send(FormWord::Filled(filled)).ok();
        });
        Self { run, item, words, given: None, wanted: None }
    }

    /// Returns at the next news.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(super) async fn news(&mut self) -> QuestionNews {
        match self.words.recv().await.expect("a form does not panic") {
            FormWord::Wants(wanted) => {
                self.wanted = Some(wanted);
                QuestionNews::Waits
            }
            FormWord::Filled(filled) => QuestionNews::Filled(filled),
        }
    }

    /// The text before the line that the form waits for, if it does.
    pub(super) fn prompt(&self) -> Option<&str> {
        self.wanted.as_ref().map(|wanted| wanted.prompt.as_str())
    }

    /// Gives the form the line that it waits for; `None` is the end of the input.
    pub(super) fn give(&mut self, line: Option<String>) {
        if let Some(wanted) = self.wanted.take()
            && let Some(line) = line
        {
            self.given = Some(line.clone());
            // The form is there as long as it waits.
            wanted.line.send(line).ok();
        }
    }
}

/// The text of a form, of which whole lines are shown. The rest is the prompt of a line.
struct Shown(Rc<RefCell<String>>);

impl Write for Shown {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut text = self.0.borrow_mut();
        text.push_str(&String::from_utf8_lossy(bytes));
        if let Some(end) = text.rfind('\n') {
            BlockingStream(io::stderr()).write_all(text.drain(..=end).as_str().as_bytes())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
