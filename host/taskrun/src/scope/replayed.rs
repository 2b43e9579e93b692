//! A call that is held against the record of a whole step: nothing outside answers it.

use serde::Serialize;
use taskrun_journal::stop::StopCause;
use taskrun_journal::text::cut;

use super::CallScope;
use super::ask::StopNotice;
use super::tape::Tape;

/// Most bytes of a question that are kept to be shown: a conversation that fills a model's window
/// has fewer.
const QUESTION_BYTES_MAX: usize = 4 << 20;

/// The number of a question in its step, from 0; true for those to what is outside of the run, which
/// are numbered by themselves.
pub(crate) type QuestionNumber = (u32, bool);

/// The notes about a call that is held against the record of a whole step.
#[derive(Default)]
pub(super) struct Replayed {
    /// The question to note in any case.
    wanted: Option<QuestionNumber>,
    /// The question that was to be noted, or that differs.
    question: Option<NotedQuestion>,
    /// The thing that the call wanted from outside and no record has, in words.
    unrecorded: Option<String>,
}

/// A question as the guest put it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotedQuestion {
    /// Its number in its step, from 0.
    pub number: u32,
    /// True for one to what is outside of the run; these are numbered by themselves.
    pub is_outside: bool,
    /// Its kind, in words.
    pub kind: &'static str,
    /// It, as JSON; cut if it is very long.
    pub text: String,
}

/// The findings about a call that was held against the record of a whole step.
#[derive(Debug, Default)]
pub(crate) struct ReplayEnd {
    /// The rest of the record.
    pub(crate) tape: Tape,
    /// The question that was to be noted, or that differs.
    pub(crate) question: Option<NotedQuestion>,
    /// The thing that the call wanted from outside and no record has, in words.
    pub(crate) unrecorded: Option<String>,
}

impl CallScope {
    /// Says that the call is about to get something from outside, or to change something there, of
    /// which no record is made: a file, an answer over HTTP.
    ///
    /// # Errors
    /// [`StopNotice`] if nothing outside answers the call, as it is held against its record; it is
    /// stopped then.
    pub fn reach_out(&self, for_what: &str) -> Result<(), StopNotice> {
        match self.open().tape.as_ref().is_some_and(Tape::is_whole) {
            true => Err(self.not_recorded(format!("{for_what}, which is not recorded"))),
            false => Ok(()),
        }
    }

    /// Stops a call that is held against its record, and that wants something which is not in it.
    pub(super) fn not_recorded(&self, what: String) -> StopNotice {
        self.open().replayed.unrecorded.get_or_insert(what);
        self.parts.stop.force(StopCause::Diverged);
        StopNotice
    }

    /// Has the question with this number noted as the guest puts it.
    pub(crate) fn want_question(&self, number: QuestionNumber) {
        self.open().replayed.wanted = Some(number);
    }

    /// True if that is the question to be noted.
    pub(super) fn wants_question(&self, number: QuestionNumber) -> bool {
        self.open().replayed.wanted == Some(number)
    }

    /// Notes a question.
    pub(super) fn note_question(
        &self,
        (number, is_outside): QuestionNumber,
        kind: &'static str,
        asked: &impl Serialize,
    ) {
        let text = serde_json::to_string(asked).expect("a request has text keys only");
        let text = cut(&text, QUESTION_BYTES_MAX).to_owned();
        let mut open = self.open();
        let question = NotedQuestion { number, is_outside, kind, text };
        open.replayed.question.get_or_insert(question);
    }

    /// Ends the comparison with the record, before [`Self::finish`] would take what is left for a
    /// difference.
    pub(crate) fn end_replay(&self) -> ReplayEnd {
        let mut open = self.open();
        ReplayEnd {
            tape: open.tape.take().unwrap_or_default(),
            question: open.replayed.question.take(),
            unrecorded: open.replayed.unrecorded.take(),
        }
    }
}
