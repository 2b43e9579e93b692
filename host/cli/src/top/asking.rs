//! A question of a run that is asked on the screen. The form that asks it runs in a thread of its
//! own, which is given lines and whose text is shown.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::Arc;

use taskrun_journal::ids::RunId;
use taskrun_journal::question::{Answer, Item};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::commands::chat::input::Reader;
use crate::commands::form::Form;

/// Lines that were sent and that the form has not read yet.
const AHEAD: usize = 8;
/// Most bytes of the text that are kept, of its end.
const TEXT_BYTES_MAX: usize = 256 << 10;

/// A question that is asked. Dropping it ends the form without an answer.
pub(super) struct Asking {
    pub(super) run: RunId,
    pub(super) item: Item,
    lines: mpsc::Sender<io::Result<String>>,
    text: Arc<watch::Sender<String>>,
    changes: watch::Receiver<String>,
    form: JoinHandle<io::Result<Option<Answer>>>,
}

/// The news of a form.
pub(super) enum FormNews {
    /// Its text has changed.
    Text,
    /// It was filled in.
    Filled(Answer),
    /// It cannot be filled in.
    Failed,
}

impl Asking {
    /// Asks a question of a run.
    pub(super) fn new(run: RunId, item: Item) -> Self {
        let (lines, mut typed) = mpsc::channel(AHEAD);
        let (text, changes) = watch::channel(String::new());
        let text = Arc::new(text);
        let (asked, shown) = (item.clone(), Arc::clone(&text));
        let form = tokio::task::spawn_blocking(move || {
            let written = Rc::<RefCell<String>>::default();
            let output = FormText(Rc::clone(&written));
            let lines = Reader::of(|| {
                // A question is shown as a whole, with the prompt of its line.
                append(&shown, &written.take());
                typed.blocking_recv().transpose()
            });
            Form::new(lines, output).fill(&asked)
        });
        Self { run, item, lines, text, changes, form }
    }

    /// The text so far; empty until the form waits for its first line. Its last line is the one that
    /// is typed in.
    pub(super) fn text(&self) -> String {
        self.text.borrow().clone()
    }

    /// Gives the form a line, which stands in the text from now on; false if it reads none.
    pub(super) fn send(&self, line: &str) -> bool {
        let Ok(place) = self.lines.try_reserve() else { return false };
        append(&self.text, &format!("{}\n", crate::output::escape::escaped_line(line)));
        place.send(Ok(format!("{line}\n")));
        true
    }

    /// Returns at the next news.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the next call gives the same.
    pub(super) async fn news(&mut self) -> FormNews {
        tokio::select! {
            biased;
            Ok(()) = self.changes.changed() => FormNews::Text,
            filled = &mut self.form => match filled {
                Ok(Ok(Some(answer))) => FormNews::Filled(answer),
                Ok(Ok(None) | Err(_)) | Err(_) => FormNews::Failed,
            }
        }
    }
}

/// The text that a form has written since it waited for a line.
struct FormText(Rc<RefCell<String>>);

impl Write for FormText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().push_str(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn append(text: &watch::Sender<String>, more: &str) {
    text.send_modify(|text| {
        text.push_str(more);
        let over = text.len().saturating_sub(TEXT_BYTES_MAX);
        let over = (over..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.drain(..over);
    });
}
