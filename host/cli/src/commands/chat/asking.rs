//! The questions of the runs of a session, which are asked in place, one after the other.

use taskrun::error::ControllerError;
use taskrun_journal::ids::RunId;
use taskrun_journal::question::{Answer, Item};

use super::Chat;
use super::question::OpenQuestion;
use super::view::is_line;
use crate::commands::asking::asked;
use crate::failure::Outcome;
use crate::output::escape::escaped_line;

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

    /// Answers the question that is asked. A text for one that was settled meanwhile is a line.
    pub(super) async fn answer(&mut self, answer: Answer) -> Outcome<()> {
        let Some(OpenQuestion { run, item, .. }) = self.question.take() else { return Ok(()) };
        self.view.end_question();
        let answered = self.client.answer_shown(run.as_str(), &item, answer.clone()).await;
        let Err(error) = answered else { return self.attend(&run).await };
        self.view.note(&error.to_string());
        if let Answer::Text(text) = answer
            && is_settled(&error)
        {
            self.hear(&text).await?;
        }
        Ok(())
    }

    /// Leaves the question that is asked, if it is settled: answered elsewhere or by its time, or
    /// its run has ended.
    pub(super) async fn leave_settled(&mut self) -> Outcome<()> {
        // A line that the form has may be the answer, and is not lost with it.
        let waits = |question: &&OpenQuestion| question.prompt().is_some();
        let Some(question) = self.question.as_ref().filter(waits) else { return Ok(()) };
        if asked(&self.client, question.run.as_str()).await?.contains(&question.item) {
            return Ok(());
        }
        let note = format!("what {} asked is settled, and not asked any more", question.run);
        self.question = None;
        self.view.end_question();
        self.view.note(&note);
        Ok(())
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
