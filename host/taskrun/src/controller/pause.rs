//! Pausing and resuming runs, and telling them something.

use std::collections::HashSet;
use std::time::Duration;

use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::ids::RunId;
use taskrun_journal::machine;
use taskrun_journal::machine::decide::{self, PauseRefusal};
use taskrun_journal::run::Run;
use taskrun_journal::text::cut;
use taskrun_journal::time::random_u64;

use super::{Client, Controller, REASON_BYTES_MAX};
use crate::error::ControllerError;

/// A request to pause a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PauseRequest {
    /// In words, shown with the run; at most [`REASON_BYTES_MAX`] bytes of it.
    pub reason: Option<String>,
    /// When the pause is over in any case; `None` if only a word ends it.
    pub timeout: Option<Duration>,
    /// True if everything beneath the run is paused too, also what is accepted there meanwhile. What
    /// a step that is under way starts afterwards is not.
    pub tree: bool,
}

/// A request to resume a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResumeRequest {
    /// In words, for the record; at most [`REASON_BYTES_MAX`] bytes of it. No agent is shown it.
    pub note: Option<String>,
    /// Messages of the user that the next turn is shown.
    pub messages: Vec<String>,
    /// True if everything beneath the run is resumed too, without the messages.
    pub tree: bool,
}

/// The effect of a request to pause or to resume.
#[derive(Clone, Debug)]
pub struct PauseOutcome {
    /// The run afterwards.
    pub run: Run,
    /// True if the request changed anything about that run.
    pub changed: bool,
    /// Runs beneath it that were paused or resumed as well, parents first.
    pub descendants: Vec<RunId>,
}

impl Client {
    /// Pauses a run, and returns when that is durable. From then on nothing of it begins: no plan
    /// step and no tool call. What is under way in whatever process comes to its end and is
    /// recorded, and may be the end of the run; then the run is `blocked`, on `pause`, without a
    /// slot, and its budget of time stands still. A run in the queue stays `queued` and is not
    /// taken; one that waits goes on waiting, and takes answers. A pause survives its host.
    ///
    /// A run that is paused already stays as it is.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::RunEnded`] if it
    /// has ended or is on its way out; [`ControllerError::Invalid`] for an entry of a heartbeat, and
    /// for a run that takes no pause, which one of a tree is passed over;
    /// [`ControllerError::Storage`].
    pub async fn pause(
        &self,
        id: &str,
        request: &PauseRequest,
    ) -> Result<PauseOutcome, ControllerError> {
        let by = self.principal.name.as_str();
        let until =
            request.timeout.map(|timeout| self.controller.0.parts.clock.now().plus(timeout));
        let reason = request.reason.as_deref().map(|reason| cut(reason, REASON_BYTES_MAX));
        let decide = |run: &Run| decide::pause(run, by, reason, until);
        let run = self.get(id).await?;
        let (run, changed) = self.controller.write_to(run, &decide).await?;
        let descendants = self.controller.write_descendants(&run, request.tree, &decide).await?;
        Ok(PauseOutcome { run, changed, descendants })
    }

    /// Ends the pause of a run, and returns when that is durable. The run goes on where it stood:
    /// before new work, where nothing else keeps it waiting. One that is not paused stays as it is.
    ///
    /// # Errors
    /// Those of [`Self::pause`]; [`ControllerError::Invalid`] if there are messages and the run is
    /// not paused, or one of them is blank; [`ControllerError::Limit`] if more than
    /// [`taskrun_journal::pause::INBOX_MESSAGES_MAX`] messages, or
    /// [`taskrun_journal::pause::INBOX_BYTES_MAX`] bytes, would wait for the next turn.
    pub async fn resume(
        &self,
        id: &str,
        request: &ResumeRequest,
    ) -> Result<PauseOutcome, ControllerError> {
        let by = self.principal.name.as_str();
        request.messages.iter().try_for_each(|text| not_blank("messages", text))?;
        let note = request.note.as_deref().map(|note| cut(note, REASON_BYTES_MAX));
        let run = self.get(id).await?;
        let decide = |run: &Run| decide::resume(run, by, note, &request.messages);
        let (run, changed) = self.controller.write_to(run, &decide).await?;
        let decide = |run: &Run| decide::resume(run, by, note, &[]);
        let descendants = self.controller.write_descendants(&run, request.tree, &decide).await?;
        Ok(PauseOutcome { run, changed, descendants })
    }

    /// Tells a run something, and returns when that is durable. The next turn is shown it, as a
    /// message of the user under the heading `[Inbox]` together with whatever else was told since
    /// the turn before. A run that is deferred until a wake-up of its own is woken by it, and no
    /// other. A run that ends before has not heard it.
    ///
    /// # Errors
    /// Those of [`Self::pause`]; [`ControllerError::Invalid`] for a blank text;
    /// [`ControllerError::Limit`] as in [`Self::resume`].
    pub async fn inject(&self, id: &str, text: &str) -> Result<Run, ControllerError> {
        self.inject_by(id, self.principal.name.as_str(), text).await
    }

    /// The same in the name of somebody.
    pub(super) async fn inject_by(
        &self,
        id: &str,
        by: &str,
        text: &str,
    ) -> Result<Run, ControllerError> {
        not_blank("text", text)?;
        let run = self.get(id).await?;
        let (run, _) =
            self.controller.write_to(run, &|run: &Run| decide::inject(run, by, text)).await?;
        Ok(run)
    }

    /// Tells a run that is not kept yet something; gives what is to be kept with it.
    pub(super) fn tell_from_the_start(
        &self,
        run: &mut Run,
        texts: &[String],
    ) -> Result<Vec<EventRecord>, ControllerError> {
        let (by, at) = (self.principal.name.as_str(), run.spec.created_at);
        let mut recorded = Vec::with_capacity(texts.len());
        for text in texts {
            not_blank("messages", text)?;
            let decided = decide::inject(run, by, text).map_err(|why| refused(run.id(), why))?;
            for event in decided {
                let id = random_u64(&*self.controller.0.parts.random);
                let one = EventRecord { seq: run.state.head + 1, id, at, event };
                run.state = machine::apply(run.state.clone(), &one)
                    .expect("a run at its beginning may be told something");
                recorded.push(one);
            }
        }
        Ok(recorded)
    }

    /// True if these texts are what a run was told when it was accepted: the request that is made
    /// again, as its answer was lost, was kept with them.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn was_told_from_the_start(
        &self,
        id: &str,
        texts: &[String],
    ) -> Result<bool, ControllerError> {
        // They stand behind the event of the acceptance.
        let mut told = Vec::with_capacity(texts.len());
        while told.len() < texts.len() {
            let after = told.len() as u64 + 1;
            let page = self.events(id, after, texts.len() - told.len()).await?;
            let read = page.len();
            for EventRecord { event, .. } in page {
                let Event::Injected { text, .. } = event else { return Ok(false) };
                told.push(text);
            }
            if read == 0 {
                return Ok(false);
            }
        }
        Ok(told == texts)
    }
}

impl Client {
    /// Wakes a run early that is deferred until a wake-up of its own, and returns when that is
    /// durable. Its next turn is told by whom, and `text` if there is any.
    ///
    /// # Errors
    /// Those of [`Self::inject`]; [`ControllerError::Invalid`] if the run is not deferred.
    pub async fn wake(&self, id: &str, text: &str) -> Result<Run, ControllerError> {
        let by = self.principal.name.as_str();
        let words = match text.trim() {
            "" => format!("You are woken early, by {by}."),
            text => format!("You are woken early, by {by}: {text}"),
        };
        let run = self.get(id).await?;
        let decide = |run: &Run| decide::wake(run, by, &words);
        let (run, _) = self.controller.write_to(run, &decide).await?;
        Ok(run)
    }
}

impl Controller {
    /// Does the same to everything open beneath a run, parents first, also to what is accepted there
    /// meanwhile, and gives those that this changed.
    async fn write_descendants(
        &self,
        run: &Run,
        wanted: bool,
        decide: &(impl Fn(&Run) -> Result<Vec<Event>, PauseRefusal> + Sync),
    ) -> Result<Vec<RunId>, ControllerError> {
        let mut done = Vec::new();
        if !wanted {
            return Ok(done);
        }
        let mut seen = HashSet::new();
        loop {
            let mut open = self.unseen_descendants(&run.spec, &mut seen).await?;
            if open.is_empty() {
                return Ok(done);
            }
            open.retain(|one| decide(one).is_ok_and(|events| !events.is_empty()));
            for one in open {
                match self.write_to(one, decide).await {
                    Ok((one, true)) => done.push(one.spec.id.clone()),
                    // It ended meanwhile, or was removed.
                    Ok((_, false))
                    | Err(ControllerError::RunEnded { .. } | ControllerError::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Records what is decided about a run; says whether that was anything.
    async fn write_to(
        &self,
        run: Run,
        decide: &(impl Fn(&Run) -> Result<Vec<Event>, PauseRefusal> + Sync),
    ) -> Result<(Run, bool), ControllerError> {
        let decide = |run: &Run| decide(run).map_err(|why| refused(run.id(), why));
        let done = self.record(run, decide).await?;
        let changed = done.has_changed();
        Ok((done.run, changed))
    }
}

fn not_blank(field: &'static str, text: &str) -> Result<(), ControllerError> {
    match text.trim() {
        "" => Err(ControllerError::Invalid { field, reason: "the message is empty".to_owned() }),
        _ => Ok(()),
    }
}

fn refused(id: &RunId, why: PauseRefusal) -> ControllerError {
    let invalid = |field, reason: String| ControllerError::Invalid { field, reason };
    match why {
        PauseRefusal::Ended => ControllerError::RunEnded { id: id.clone() },
        PauseRefusal::Entry => invalid(
            "id",
            format!("run {id} is an entry of a heartbeat; its batch run does the work"),
        ),
        PauseRefusal::NeverPaused => invalid(
            "id",
            format!(
                "run {id} takes no pause: `interrupts` of its agent or the request says so; it \
                 can be canceled"
            ),
        ),
        PauseRefusal::NotDeferred => invalid("id", format!("run {id} is not deferred")),
        PauseRefusal::NotPaused => {
            invalid("messages", format!("run {id} is not paused; tell it by inject"))
        }
        PauseRefusal::Full { kind, cap } => ControllerError::Limit { kind, cap },
    }
}
