//! One way for all questions of a guest: checked, numbered, looked up on the tape, put to whoever
//! answers, and recorded before the answer is used.

use std::future::Future;

use serde::Serialize;
use taskrun_journal::completion::ModelError;
use taskrun_journal::event::{Event, HostAnswer};
use taskrun_journal::fact::MemoryError;
use taskrun_journal::runs::RunsError;
use taskrun_journal::stop::StopCause;
use tokio::sync::oneshot;

use super::CallScope;
use super::digest::{digest, name_in};
use super::tape::{Lookup, Tape};

/// A question of a guest to a model, the controller or memory, with its type of answer.
pub trait Question: Send + Sync {
    /// The thing that is asked for.
    type Answer: Send;
    /// The reason for which there is none.
    type Error: From<StopNotice> + Send;
    /// The one who is asked, for this call.
    type Source: Send;

    /// The kind of question, in words.
    const KIND: &'static str;

    /// The question as the guest put it, of which its digest is made: with nothing that another
    /// policy would have made otherwise, so that the answer is found under other rules too.
    fn asked(&self) -> impl Serialize + Send + '_;

    /// The digest of [`Self::asked`].
    fn digest(&self, _scope: &CallScope) -> impl Future<Output = String> + Send {
        digest(&self.asked())
    }

    /// Holds the question to its bounds, and finds who answers it. A refusal is not recorded.
    ///
    /// # Errors
    /// [`Self::Error`] if this call may not ask it.
    fn admit(&mut self, scope: &CallScope) -> Result<Self::Source, Self::Error>;

    /// The name in the policy of the model that is asked; `None` where another one is asked.
    fn model_of(source: &Self::Source) -> Option<&str>;

    /// Takes note that the question is asked, whether its answer is on the tape or not. The digest
    /// is the same for every program.
    fn begin(&mut self, scope: &CallScope, digest: &str);

    /// Puts the question. The future is dropped when the call is asked to stop.
    fn put(
        self,
        scope: &CallScope,
        source: Self::Source,
        call: u32,
    ) -> impl Future<Output = HostAnswer> + Send;

    /// Takes the answer into account, and gives it as the guest is given it.
    ///
    /// # Errors
    /// [`Misfit`] if it answers another kind of question.
    fn accept(
        scope: &CallScope,
        answer: HostAnswer,
        origin: Origin,
    ) -> Result<Result<Self::Answer, Self::Error>, Misfit>;
}

/// The place from which an answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was given just now.
    Live,
    /// It was given to the step that this one repeats.
    Tape,
}

/// An answer to another kind of question than was asked, in words.
#[derive(Debug)]
pub struct Misfit(pub(super) String);

/// The call is asked to stop, so there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopNotice;

impl From<StopNotice> for ModelError {
    fn from(StopNotice: StopNotice) -> Self {
        Self::Canceled
    }
}

impl From<StopNotice> for RunsError {
    fn from(StopNotice: StopNotice) -> Self {
        Self::Canceled
    }
}

impl From<StopNotice> for MemoryError {
    fn from(StopNotice: StopNotice) -> Self {
        Self::Canceled
    }
}

/// A question that has its place in the call.
pub(super) struct QuestionKey {
    /// Its number, from 0.
    pub(super) call: u32,
    /// Its name in the journal.
    name: String,
    /// The model that is asked, by its name in the policy.
    model: Option<String>,
}

impl QuestionKey {
    /// The event that records an answer to it.
    pub(super) fn answered(&self, answer: HostAnswer) -> Event {
        let (call, request) = (self.call, self.name.clone());
        // An answer says itself who gave it.
        let model = self.model.clone().filter(|_| answer.model_error().is_some());
        Event::HostAnswered { call, request, model, answer: Box::new(answer) }
    }
}

impl CallScope {
    /// Asks, and records the answer before it gives it: a step that runs again is given what it was
    /// given before, and nothing is paid or done twice.
    ///
    /// # Errors
    /// The question's own. All of them have a case for a call that is asked to stop.
    ///
    /// # Cancel safety
    /// Dropping the future gives up a wait and cancels a request to a provider. Any other request
    /// may have taken effect.
    pub async fn ask<Q: Question>(&self, mut question: Q) -> Result<Q::Answer, Q::Error> {
        let source = question.admit(self)?;
        let model = Q::model_of(&source).map(str::to_owned);
        let (key, recorded) = self.number(&mut question, model).await?;
        let (answer, origin) = match recorded {
            Some(answer) => (answer, Origin::Tape),
            None => {
                let put = question.put(self, source, key.call);
                let answer = self.unless_stopped(put).await?;
                if self.is_journalled() {
                    self.keep_answer(&key, answer.clone()).await?;
                }
                (answer, Origin::Live)
            }
        };
        match Q::accept(self, answer, origin) {
            Ok(answer) => answer,
            Err(Misfit(given)) => Err(self.diverged(&given, Q::KIND).into()),
        }
    }

    /// Gives a question its number, and finds its recorded answer. Where there is none, the step
    /// was cut off here, or goes another way under other rules: what came after it on the tape is
    /// void. A step that asks something else than before under the same rules is stopped.
    pub(super) async fn number<Q: Question>(
        &self,
        question: &mut Q,
        model: Option<String>,
    ) -> Result<(QuestionKey, Option<HostAnswer>), StopNotice> {
        let digest = question.digest(self).await;
        question.begin(self, &digest);
        let (call, found, restart) = self.look_up(&digest);
        if let (Some(durable), Some(journal)) = (restart, &self.parts.journal) {
            // Before it is asked for again, so that whoever counts finds each time on record.
            journal.urgent.notify_one();
            self.unless_stopped(async { durable.await.ok() }).await?;
        }
        if self.wants_question((call, false)) {
            self.note_question((call, false), Q::KIND, &question.asked());
        }
        let name = name_in(self.parts.services.format, &digest);
        let key = QuestionKey { call, name, model };
        match found {
            Lookup::Answer(answer) => Ok((key, Some(*answer))),
            Lookup::Moved(answer) => {
                self.keep_answer(&key, HostAnswer::clone(&answer)).await?;
                Ok((key, Some(*answer)))
            }
            Lookup::Nothing => Ok((key, None)),
            Lookup::Other(known) => {
                self.note_question((call, false), Q::KIND, &question.asked());
                Err(self.diverged(&known, &format!("another question, {}", key.name)))
            }
            Lookup::Unrecorded(left) => {
                self.note_question((call, false), Q::KIND, &question.asked());
                let found = format!("question {call}, which is not recorded ({})", Q::KIND);
                Err(self.diverged(&left, &found))
            }
        }
    }

    /// Numbers a question and looks for its answer. Where the step is begun again at it, what is told
    /// last comes to its end when that is durable.
    fn look_up(&self, digest: &str) -> (u32, Lookup, Option<oneshot::Receiver<()>>) {
        let mut open = self.open();
        let call = open.questions;
        open.questions += 1;
        let since = self.parts.services.digests_since;
        let found = open.tape.as_mut();
        let found = found.map_or(Lookup::Nothing, |tape| tape.answer(call, digest, since));
        let mut restart = None;
        if let Lookup::Nothing | Lookup::Moved(_) = found
            && open.tape.as_mut().is_some_and(Tape::cut)
        {
            open.restart(self.parts.context.turn);
            restart = Some(open.durable());
        }
        (call, found, restart)
    }

    /// Records an answer and returns when that is durable. What was cut short as the call stops is
    /// not one.
    pub(super) async fn keep_answer(
        &self,
        key: &QuestionKey,
        answer: HostAnswer,
    ) -> Result<(), StopNotice> {
        if answer.is_canceled() || !self.is_journalled() {
            return Ok(());
        }
        self.forget_wait(key.call);
        self.unless_stopped(self.record_durably(key.answered(answer))).await
    }

    /// The outcome of some work, unless the call is asked to stop before: then the work is dropped.
    pub(super) async fn unless_stopped<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, StopNotice> {
        tokio::select! {
            biased;
            () = self.parts.stop.asked() => Err(StopNotice),
            done = work => Ok(done),
        }
    }

    /// Stops a step that does something else than when it ran before.
    pub(super) fn diverged(&self, recorded: &str, found: &str) -> StopNotice {
        let mut open = self.open();
        if open.divergence.is_none() {
            open.divergence = Some((recorded.to_owned(), found.to_owned()));
        }
        drop(open);
        self.parts.stop.force(StopCause::Diverged);
        StopNotice
    }
}
