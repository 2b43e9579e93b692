//! The questions of the runs of a session, which are asked in place, one after the other.

use taskrun::error::ControllerError;
use taskrun_journal::ids::RunId;
use taskrun_journal::question::{Answer, Item};
use taskrun_journal::store::SessionEvent;

use super::input::{InputLine, LINE_BYTES_MAX};
use super::question::OpenQuestion;
use super::view::is_line;
use super::{Chat, unreadable};
use crate::commands::answer::from_file;
use crate::commands::asking::asked;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::escape::escaped_line;
use crate::output::human;
use crate::shell;
use crate::terminal::cut_off;

impl Chat<'_> {
    /// Asks the next question, if there is one and none is asked.
    pub(super) async fn ask_next(&mut self) -> Outcome<()> {
        while self.question.is_none() {
            if let Some((run, item)) = self.questions.pop_front() {
                self.ask(run, item).await?;
            } else if let Some(run) = self.asking.pop_first() {
                let items = asked(&self.client, run.as_str()).await?;
                self.questions.extend(items.into_iter().map(|item| (run.clone(), item)));
            } else {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn ask(&mut self, run: RunId, item: Item) -> Outcome<()> {
        // It may have been settled while another one was asked.
        if !asked(&self.client, run.as_str()).await?.contains(&item) {
            return Ok(());
        }
        let record = match self.client.get(run.as_str()).await {
            Err(ControllerError::NotFound { .. }) => return Ok(()),
            read => read?,
        };
        self.view.begin_question();
        if !is_line(&record.spec) {
            let agent = escaped_line(&record.spec.agent_name).into_owned();
            self.view.note(&format!("{agent} {run} asks:"));
        }
        self.question = Some(OpenQuestion::ask(run, item));
        Ok(())
    }

    /// The form waits for a line. A line that was typed before its question was there to be seen is
    /// no answer to it. Its further lines may be typed ahead.
    pub(super) fn begin_answer(&mut self) -> Outcome<()> {
        if self.question.as_ref().is_some_and(|question| question.given.is_none()) {
            self.set_aside(Some("said after the answer, as it was typed before the question"))?;
        }
        Ok(())
    }

    /// Sets lines aside that were typed for something else than what is awaited from now on, to be
    /// said when nothing is asked, and tells of them with this `note`. One that was only begun is
    /// not said.
    fn set_aside(&mut self, note: Option<&str>) -> Outcome<()> {
        let typed = self.input.take_typed().map_err(unreadable)?;
        for line in typed.lines {
            if self.is_refused(&line, None) {
                continue;
            }
            let line = line.text;
            if line.trim().is_empty() {
                continue;
            }
            if let Some(note) = note {
                self.view.note(&format!("{note}: {}", escaped_line(line.trim())));
            }
            self.aside.push_back(line);
        }
        if typed.left_out > 0 {
            let lines = human::count(typed.left_out as u64, "more line");
            self.view.note(&format!("not said: {lines}"));
        }
        let begun = typed.begun.trim();
        if !begun.is_empty() {
            self.view.note(&format!("not sent: {}", escaped_line(begun)));
        }
        Ok(())
    }

    /// Refuses a line that is not whole, and goes on waiting for one: its beginning may say
    /// something else than the whole. True if it was refused.
    ///
    /// # Errors
    /// If a line of a pipe was to be an answer: the next one is none.
    pub(super) fn refuses(&mut self, line: &InputLine) -> Outcome<bool> {
        let question = self.question.as_ref();
        let answer = question.map(|question| from_file(&question.run, &question.item));
        let give = answer.clone();
        let is_refused = self.is_refused(line, answer);
        if is_refused && !self.input.is_typed() {
            self.has_refused = true;
            if let Some(give) = give {
                let message = format!("the answer has more than {LINE_BYTES_MAX} bytes");
                return Err(Failure::usage("too-long", message).hint(format!(
                    "no line after it was said, and what runs goes on; `{give}` answers instead"
                )));
            }
        }
        Ok(is_refused)
    }

    /// The end of the input.
    ///
    /// # Errors
    /// If a line of it was refused.
    pub(super) fn end(&self) -> Outcome {
        if !self.has_refused {
            return Ok(Exit::Completed);
        }
        Err(Failure::usage("too-long", "not every line was said")
            .hint("put large inputs into files of the workspace and name them; what runs goes on"))
    }

    /// Tells why a line that is not whole is refused, and where a terminal cut it off the command
    /// that takes a longer one: this one for an answer. False for every other line.
    fn is_refused(&mut self, line: &InputLine, answer: Option<String>) -> bool {
        if line.is_too_long {
            let what = if answer.is_some() { "answer" } else { "task" };
            self.view.note(&format!("not said: the {what} has more than {LINE_BYTES_MAX} bytes"));
        } else if line.is_cut_off {
            let command = answer.unwrap_or_else(|| {
                let session = shell::option("--session", &self.session, "SESSION");
                format!("taskrun run {} @FILE {session}", self.agent)
            });
            let command = self.context.printer.command(&command);
            self.view.note(&escaped_line(&cut_off(&command)));
        }
        line.is_too_long || line.is_cut_off
    }

    /// Gives the question that is asked the line that was typed; `None` is the end of the input. A
    /// line for one that is settled by now is said.
    pub(super) async fn give(&mut self, line: Option<String>) -> Outcome<()> {
        // The form would refuse a line that is no answer, and nobody would hear it.
        if let Some(line) = &line
            && self.leave_settled().await?
        {
            return self.hear(line).await;
        }
        if let Some(question) = &mut self.question {
            question.give(line);
        }
        Ok(())
    }

    /// Answers the question that is asked. If it was settled meanwhile, the last line that was
    /// typed for it is said; after any other failure it is asked again.
    pub(super) async fn answer(&mut self, answer: Answer) -> Outcome<()> {
        let Some(OpenQuestion { run, item, given, .. }) = self.question.take() else {
            return Ok(());
        };
        self.view.end_question();
        let answered = self.client.answer_shown(run.as_str(), &item, answer).await;
        let Err(error) = answered else { return self.attend(&run).await };
        self.view.note(&error.to_string());
        if !is_settled(&error) {
            self.questions.push_front((run, item));
        } else if let Some(line) = given {
            self.hear(&line).await?;
        }
        Ok(())
    }

    /// True if one of these events may settle the question that is asked.
    pub(super) fn may_settle(&self, events: &[SessionEvent]) -> bool {
        let question = self.question.as_ref();
        question.is_some_and(|question| events.iter().any(|event| event.run == question.run))
    }

    /// Leaves the question that is asked, if it is settled: answered elsewhere or by its time, or
    /// its run has ended. Gives true if it was left.
    pub(super) async fn leave_settled(&mut self) -> Outcome<bool> {
        // A line that the form has may be the answer, and is not lost with it.
        let waits = |question: &&OpenQuestion| question.prompt().is_some();
        let Some(question) = self.question.as_ref().filter(waits) else { return Ok(false) };
        if asked(&self.client, question.run.as_str()).await?.contains(&question.item) {
            return Ok(false);
        }
        let note = format!("what {} asked is settled, and not asked any more", question.run);
        self.question = None;
        self.view.end_question();
        self.view.note(&note);
        self.set_aside(None)?;
        Ok(true)
    }
}

/// True if an answer was refused as nobody waits for it any more.
fn is_settled(error: &ControllerError) -> bool {
    matches!(
        error,
        ControllerError::NotAwaitable { .. }
            | ControllerError::NotFound { .. }
            | ControllerError::RunEnded { .. }
    )
}
