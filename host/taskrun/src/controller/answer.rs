//! Answering what runs ask.

use std::ops::ControlFlow;

use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::hold::Await;
use taskrun_journal::ids::RunId;
use taskrun_journal::question::{Answer, AnswerRefusal, Item};
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;

use super::{Client, Controller};
use crate::error::ControllerError;
use crate::scan::{WHOLE, scan};

impl Client {
    /// Answers something that a run asked; without `item` the only open one. Answers may come in
    /// any order; when the last one is there the run is wanted again. An answer that does not fit
    /// is refused to whoever gave it, and the run stays as it was.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::NotAwaitable`] if
    /// nothing of that name is asked, or not any more; [`ControllerError::Invalid`] if the answer
    /// does not fit; [`ControllerError::Storage`].
    pub async fn answer(
        &self,
        id: &str,
        item: Option<&str>,
        answer: Answer,
    ) -> Result<Run, ControllerError> {
        self.answer_if(id, item, answer, |_| true).await
    }

    /// The same for a question that somebody was shown. If another one of its name is open by now,
    /// as somebody else was quicker, that is not answered.
    ///
    /// # Errors
    /// As [`Self::answer`].
    pub async fn answer_shown(
        &self,
        id: &str,
        shown: &Item,
        answer: Answer,
    ) -> Result<Run, ControllerError> {
        self.answer_if(id, Some(shown.id()), answer, |asked| asked == shown).await
    }

    async fn answer_if(
        &self,
        id: &str,
        item: Option<&str>,
        answer: Answer,
        is_meant: impl Fn(&Item) -> bool,
    ) -> Result<Run, ControllerError> {
        let by = self.principal.name.as_str();
        if by.trim().is_empty() {
            let reason = "an answer has somebody who gave it".to_owned();
            return Err(ControllerError::Invalid { field: "by", reason });
        }
        let run = self.get(id).await?;
        let name = match open_item(&run, item) {
            Ok(name) => name,
            Err(error) => return Err(self.controller.why_not(&run, item, error).await?),
        };
        let asked = self.controller.asked(run.id(), &name).await?;
        let asked = asked.ok_or_else(|| not_awaitable(&run, AnswerRefusal::UnknownItem))?;
        if !is_meant(&asked) {
            return Err(not_awaitable(&run, AnswerRefusal::Answered));
        }
        asked.check(&answer).map_err(|error| ControllerError::Invalid {
            field: "answer",
            reason: error.to_string(),
        })?;
        let event =
            Event::Answered { item: name.clone(), answer, by: by.to_owned(), by_default: false };
        // Within a turn no two questions have the same name; a later one may have it again.
        let turn = run.state.turns;
        let decide = |run: &Run| match (is_open(run, &name), listens(run)) {
            (true, _) if run.state.turns == turn => Ok(vec![event.clone()]),
            (true | false, true) => Err(not_awaitable(run, AnswerRefusal::Answered)),
            (true | false, false) => Err(not_awaitable(run, AnswerRefusal::Ended)),
        };
        Ok(self.controller.record(run, decide).await?.run)
    }

    /// The open questions of a run, in the order asked.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn asks(&self, id: &str) -> Result<Vec<Item>, ControllerError> {
        let run = self.get(id).await?;
        let mut items = Vec::new();
        if listens(&run) {
            for open in run.state.awaits.iter().filter(|one| !one.answered) {
                items.extend(self.controller.asked(run.id(), &open.id).await?);
            }
        }
        Ok(items)
    }
}

impl Controller {
    /// The same refusal, or that it was answered already: a run that went on, or has ended since,
    /// does not know any more what it asked, and its journal does.
    async fn why_not(
        &self,
        run: &Run,
        item: Option<&str>,
        error: ControllerError,
    ) -> Result<ControllerError, ControllerError> {
        let ControllerError::NotAwaitable { why, .. } = &error else { return Ok(error) };
        let is_ended = match why {
            AnswerRefusal::UnknownItem => false,
            AnswerRefusal::Ended => true,
            AnswerRefusal::Answered => return Ok(error),
        };
        if is_ended && item.is_none() {
            return Ok(error);
        }
        let mut answered = false;
        let last_word = |recorded: EventRecord| {
            if let Event::Asked { item: asked } = &recorded.event
                && item.is_none_or(|name| name == asked.id())
            {
                answered = false;
            } else if let Event::Answered { item: name, .. } = &recorded.event
                && item.is_none_or(|item| item == name)
            {
                answered = true;
            }
            ControlFlow::Continue(())
        };
        scan(&*self.0.parts.store, run.id(), WHOLE, last_word).await?;
        Ok(if answered { not_awaitable(run, AnswerRefusal::Answered) } else { error })
    }

    /// The item of a run that was last asked under this name.
    async fn asked(&self, id: &RunId, name: &str) -> Result<Option<Item>, ControllerError> {
        let mut found = None;
        let last_asked = |recorded: EventRecord| {
            if let Event::Asked { item } = recorded.event
                && item.id() == name
            {
                found = Some(*item);
            }
            ControlFlow::Continue(())
        };
        scan(&*self.0.parts.store, id, WHOLE, last_asked).await?;
        Ok(found)
    }
}

fn is_open(run: &Run, name: &str) -> bool {
    let open = |one: &Await| one.id == name && !one.answered;
    listens(run) && run.state.awaits.iter().any(open)
}

/// True if a run still takes answers; one on its way out does not.
fn listens(run: &Run) -> bool {
    match run.status() {
        Status::Running | Status::Blocked => true,
        Status::Queued
        | Status::Canceling
        | Status::Finalizing
        | Status::Completed
        | Status::Failed
        | Status::Canceled => false,
    }
}

fn not_awaitable(run: &Run, why: AnswerRefusal) -> ControllerError {
    ControllerError::NotAwaitable { id: run.id().clone(), why }
}

fn open_item(run: &Run, item: Option<&str>) -> Result<String, ControllerError> {
    if !listens(run) && run.status() != Status::Queued {
        return Err(not_awaitable(run, AnswerRefusal::Ended));
    }
    let mut open = run.state.awaits.iter().filter(|one| !one.answered);
    match item {
        Some(name) if is_open(run, name) => Ok(name.to_owned()),
        Some(name) if run.state.awaits.iter().any(|one| one.id == name) => {
            Err(not_awaitable(run, AnswerRefusal::Answered))
        }
        Some(_) => Err(not_awaitable(run, AnswerRefusal::UnknownItem)),
        None => match (open.next(), open.next()) {
            (Some(only), None) => Ok(only.id.clone()),
            (Some(_), Some(_)) => {
                let reason = "several things are asked; say which one is answered".to_owned();
                Err(ControllerError::Invalid { field: "item", reason })
            }
            (None, _) => Err(not_awaitable(run, AnswerRefusal::UnknownItem)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{
        answered, asked, blocked, cancel_requested, completed, lost, run, started,
    };
    use taskrun_journal::hold::Wait;

    #[test]
    fn a_run_takes_answers_until_it_is_on_its_way_out() {
        let wait = || blocked(Wait::Answers { at: None });
        let answer = || taskrun_journal::event::Event::Answered {
            item: "q".to_owned(),
            answer: Answer::Text("this".to_owned()),
            by: "b".to_owned(),
            by_default: false,
        };
        let table = [
            (vec![started(), asked("q")], true),
            (vec![started(), asked("q"), wait()], true),
            (vec![started(), asked("q"), lost(2)], true),
            (vec![started(), asked("q"), answered("q")], false),
            (vec![started(), asked("q"), cancel_requested()], false),
            (vec![started(), asked("q"), wait(), cancel_requested(), completed()], false),
            (vec![started(), asked("q"), completed()], false),
            (vec![started()], false),
            (vec![], false),
        ];
        for (events, expected) in table {
            let run = run(events.clone());
            assert_eq!(is_open(&run, "q"), expected, "{events:?}");
            assert_eq!(open_item(&run, None).is_ok(), expected, "{events:?}");
            assert_eq!(open_item(&run, Some("q")).is_ok(), expected, "{events:?}");
            // What is open can be answered: the journal takes it.
            let recorded = taskrun_journal::event::EventRecord {
                seq: run.state.head + 1,
                id: 1,
                at: taskrun_journal::time::Timestamp(1),
                event: answer(),
            };
            let applied = taskrun_journal::machine::apply(run.state.clone(), &recorded);
            assert_eq!(applied.is_ok(), expected, "{events:?}");
        }
    }
}
