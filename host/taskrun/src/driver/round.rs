//! The end of a round of a run that goes on by itself: the run is at its end, or has its next prompt.

use taskrun_journal::autonomy::{Autonomy, AutonomyMode, RESULT_ASKS_MAX, Schedule};
use taskrun_journal::checkpoint::Checkpoint;
use taskrun_journal::event::Event;
use taskrun_journal::machine::decide::Outcome;
use taskrun_journal::plan::TerminationReason;
use taskrun_journal::status::StopReason;

use super::allowance::{Allowance, TreeSnapshot};
use super::end::End;
use super::finish::LastWord;
use super::parts::Parts;
use super::recorder::Recorder;
use super::stop::Halt;
use super::subtree::final_usage;
use super::{put_off, reports};
use crate::autonomy::within_agent;

/// Most bytes of the conversation that a round begins with, where the model of the agent has room for
/// them; with more, half of them are left. Some 60,000 tokens.
const CONVERSATION_BYTES_MAX: usize = 256 << 10;

/// Bytes for a token of a model's window: fewer than most texts have, as a round has to have room, too.
const BYTES_PER_TOKEN: usize = 2;

/// A run that answered without calling tools.
pub(super) struct Round<'a> {
    pub(super) parts: &'a Parts,
    pub(super) recorder: &'a mut Recorder,
}

/// The next thing in a run that answered.
enum AfterRound {
    /// It is at its end.
    End(Outcome),
    /// A budget is used up.
    Limit(TerminationReason),
    /// Its next round begins then.
    Deferred(Schedule),
    /// It has this prompt.
    Prompt {
        text: String,
        /// The prompt asks again for the result that the run has to give.
        wants_result: bool,
    },
}

impl Round<'_> {
    /// Gives the end of the run, if the answer is that; otherwise it has its next prompt, and that is
    /// on record in one write with the answer. `pending` is what of its step is still to be written.
    pub(super) async fn end(self, pending: Vec<Event>) -> Result<Option<End>, Halt> {
        let Some(autonomy) = self.autonomy() else {
            let outcome = Outcome::Answered(StopReason::FinalResponse);
            return Ok(Some(End::done(pending, outcome)));
        };
        let next = self.next(&autonomy, &pending).await?;
        self.settle(autonomy, next, pending).await
    }

    /// The same for a round that a skipped turn ended: it goes on as after one in which nothing was
    /// said. Of a run that does not go on by itself the turn is all that is skipped.
    pub(super) async fn skip(self, pending: Vec<Event>) -> Result<Option<End>, Halt> {
        match self.autonomy() {
            None => {
                self.recorder.record(pending).await?;
                Ok(None)
            }
            Some(autonomy) => {
                let tree = TreeSnapshot::default();
                let allowance = Allowance::new(self.parts, self.recorder, &tree);
                let next = match allowance.cap_after_round(&pending).await? {
                    Some(reason) => AfterRound::Limit(reason),
                    None => self.beyond(&autonomy),
                };
                self.settle(autonomy, next, pending).await
            }
        }
    }

    /// The way in which the run goes on by itself, if it does.
    fn autonomy(&self) -> Option<Autonomy> {
        let accepted = self.recorder.run().spec.autonomy.as_ref()?;
        Some(within_agent(accepted, &self.parts.agent))
    }

    /// Records what comes after a round with the rest of it.
    async fn settle(
        self,
        autonomy: Autonomy,
        next: AfterRound,
        mut pending: Vec<Event>,
    ) -> Result<Option<End>, Halt> {
        match next {
            AfterRound::End(outcome) => Ok(Some(End::done(pending, outcome))),
            AfterRound::Limit(reason) => {
                LastWord::new(self.parts, self.recorder).at(pending, reason).await.map(Some)
            }
            AfterRound::Deferred(Schedule { at, prompt, .. }) => {
                let rounds = &self.recorder.run().state.rounds;
                let (round, worked) = (rounds.ended + 1, rounds.worked);
                let prompt = prompt.unwrap_or(autonomy.continuation);
                let checkpoint = self.checkpoint().await?;
                let wants_result = false;
                pending.push(Event::RoundEnded { round, prompt, worked, wants_result, checkpoint });
                self.recorder.keep_fold(&mut pending);
                let time = put_off::unless_told(at, self.parts.env.clock.now());
                Err(put_off::wait_until(self.recorder, pending, time).await?)
            }
            AfterRound::Prompt { text: prompt, wants_result } => {
                let rounds = &self.recorder.run().state.rounds;
                let (round, worked) = (rounds.ended + 1, rounds.worked);
                let checkpoint = self.checkpoint().await?;
                pending.push(Event::RoundEnded { round, prompt, worked, wants_result, checkpoint });
                self.recorder.keep_fold(&mut pending);
                self.recorder.record(pending).await?;
                Ok(None)
            }
        }
    }

    /// The things that the run leaves behind at the end of the round.
    async fn checkpoint(&self) -> Result<Box<Checkpoint>, Halt> {
        let (work, models) = (self.recorder.work(), &self.parts.agent.models);
        let window = work.windows.of(models.default.as_deref(), models.context_tokens());
        let tokens = window.tokens.map(|tokens| BYTES_PER_TOKEN * tokens as usize);
        let bounds = [window.bytes, tokens].into_iter().flatten();
        let most = bounds.fold(CONVERSATION_BYTES_MAX, usize::min);
        let is_over = work.conversation.bytes() > most;
        let conversation_bytes = is_over.then_some(most as u64 / 2);
        let settled = reports::settled(self.parts, self.recorder).await?;
        let (store, run) = (&*self.parts.env.store, self.recorder.run());
        let continued = final_usage(store, run).await.map_err(Halt::Read)?;
        Ok(Box::new(Checkpoint { conversation_bytes, settled, continued, fold: None }))
    }

    /// The next thing in the run, in the order in which the reasons to end count.
    async fn next(&self, autonomy: &Autonomy, pending: &[Event]) -> Result<AfterRound, Halt> {
        let rounds = &self.recorder.run().state.rounds;
        if rounds.done.is_some() {
            return Ok(AfterRound::End(Outcome::Answered(StopReason::Done)));
        }
        let tree = TreeSnapshot::default();
        let allowance = Allowance::new(self.parts, self.recorder, &tree);
        if let Some(reason) = allowance.cap_after_round(pending).await? {
            return Ok(AfterRound::Limit(reason));
        }
        let is_bounded = autonomy.mode == AutonomyMode::Bounded;
        // A standing run that works, or waits for its time, has time to come to its result.
        let has_time = !is_bounded && (rounds.worked || rounds.scheduled.is_some());
        if autonomy.result_schema.is_some() && !has_time {
            return Ok(match rounds.asked < RESULT_ASKS_MAX {
                true => AfterRound::Prompt { text: ask(autonomy), wants_result: true },
                false => AfterRound::End(no_result(self.recorder)),
            });
        }
        if is_bounded && rounds.scheduled.is_none() {
            return Ok(AfterRound::End(Outcome::Answered(StopReason::NaturalEnd)));
        }
        Ok(self.beyond(autonomy))
    }

    /// The next thing in a run that its round does not end.
    fn beyond(&self, autonomy: &Autonomy) -> AfterRound {
        let rounds = &self.recorder.run().state.rounds;
        if autonomy.rounds.is_some_and(|most| rounds.ended + 1 >= most) {
            // Nor is it deferred: nothing would be left to do then.
            return AfterRound::Limit(TerminationReason::TurnCap);
        }
        match &rounds.scheduled {
            Some(_) if autonomy.exits_on_defer => AfterRound::End(Outcome::Deferred),
            Some(schedule) => AfterRound::Deferred(schedule.clone()),
            None => AfterRound::Prompt { text: autonomy.continuation.clone(), wants_result: false },
        }
    }
}

/// The end of a run that gave no result it may end with, as often as it was asked.
pub(super) fn no_result(recorder: &Recorder) -> Outcome {
    // The task asks for it, too.
    Outcome::NoResult { attempts: recorder.run().state.rounds.asked.min(RESULT_ASKS_MAX) + 1 }
}

/// The prompt for a result that is missing.
fn ask(autonomy: &Autonomy) -> String {
    let name = autonomy.done_name();
    format!(
        "A result is required. Call `{name}` with it, in the form that its description asks for."
    )
}
