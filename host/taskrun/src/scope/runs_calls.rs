//! Asking the controller, through the tape and the journal.

use std::time::Duration;

use taskrun_journal::event::{ControllerAnswer, Event};
use taskrun_journal::runs::{ANSWERS_BYTES_MAX, ChildRequest, RunsAnswer, RunsError, RunsRequest};

use super::CallScope;
use super::digest::digest;
use super::tape::Answered;

/// How much of a call's time a wait leaves it, at most; a guest that is told that the time is up
/// is to be able to say so.
const WAIT_MARGIN_MAX: Duration = Duration::from_secs(1);

impl CallScope {
    /// Asks for something about the runs beneath the call's own.
    ///
    /// # Errors
    /// [`RunsError`]: [`RunsError::NotStarted`] if the call belongs to no run,
    /// [`RunsError::Canceled`] if the run is being stopped, [`RunsError::Limit`] if the call was
    /// given too much already, or the controller's.
    ///
    /// # Cancel safety
    /// Dropping the future gives up a wait. Any other request may have taken effect.
    pub async fn ask_controller(&self, request: RunsRequest) -> Result<RunsAnswer, RunsError> {
        let access = self.parts.runs.as_ref().ok_or(RunsError::NotStarted)?;
        request.check()?;
        if self.open().controller_bytes >= ANSWERS_BYTES_MAX {
            let kind = "controller-bytes".to_owned();
            return Err(RunsError::Limit { kind, cap: ANSWERS_BYTES_MAX as u64 });
        }
        let digest = digest(&request).await;
        let operation = request.operation().to_string();
        let request = match request {
            RunsRequest::Spawn(child) => RunsRequest::Spawn(Box::new(self.named(*child, &digest))),
            other @ (RunsRequest::List(_)
            | RunsRequest::Get { .. }
            | RunsRequest::Cancel { .. }
            | RunsRequest::CancelTree { .. }
            | RunsRequest::Pause { .. }
            | RunsRequest::Resume { .. }
            | RunsRequest::Wait { .. }
            | RunsRequest::Provide { .. }
            | RunsRequest::Subscribe { .. }) => other,
        };
        let (call, recorded) = self.recorded_answer(&digest).ok_or(RunsError::Canceled)?;
        let answer = match recorded {
            Some(Answered::Controller(answer)) => (*answer).into(),
            Some(other @ (Answered::Model(_) | Answered::Memory(_))) => {
                self.diverged(&format!("{other:?}"), "a question to the controller");
                return Err(RunsError::Canceled);
            }
            None => {
                let asked = access.runs.ask(&access.caller, request, self.longest_wait());
                let answer = tokio::select! {
                    biased;
                    () = self.parts.stop.asked() => return Err(RunsError::Canceled),
                    answer = asked => answer,
                };
                self.keep_controller_answer(call, operation, digest, &answer).await?;
                answer
            }
        };
        let bytes = answer.as_ref().map_or(0, RunsAnswer::bytes);
        let mut open = self.open();
        open.controller_bytes = open.controller_bytes.saturating_add(bytes);
        drop(open);
        answer
    }

    /// Gives a request for a run the key under which it is made again when the call is: that of
    /// the guest, or one made from the call, the request and the equal ones before it. So the
    /// order in which a repeated step asks does not matter, nor what else it asks.
    fn named(&self, mut child: ChildRequest, digest: &str) -> ChildRequest {
        let Some(access) = &self.parts.runs else { return child };
        let run = access.caller.spec.id.as_str();
        child.key = Some(match &child.key {
            Some(key) => key_of(&["key", run, key]),
            None => {
                let mut open = self.open();
                let before = open.spawns.entry(digest.to_owned()).or_default();
                let number = before.to_string();
                *before = before.saturating_add(1);
                drop(open);
                key_of(&["call", run, &access.caller.call, digest, &number])
            }
        });
        child
    }

    /// The longest wait that leaves the guest time to go on.
    fn longest_wait(&self) -> Duration {
        let left = self.time_left();
        left.saturating_sub((left / 10).min(WAIT_MARGIN_MAX))
    }

    /// Records an answer and returns when that is durable: a child that a step was told of is the
    /// same one when the step runs again.
    async fn keep_controller_answer(
        &self,
        call: u32,
        operation: String,
        request: String,
        answer: &Result<RunsAnswer, RunsError>,
    ) -> Result<(), RunsError> {
        match answer {
            // This process is about to stop the call; whoever runs it again asks for itself.
            Err(RunsError::Closed) => {
                self.parts.stop.asked().await;
                return Err(RunsError::Canceled);
            }
            Err(RunsError::Canceled) => return Ok(()),
            Ok(_)
            | Err(
                RunsError::NotFound { .. }
                | RunsError::AlreadyExists { .. }
                | RunsError::NotStarted
                | RunsError::SessionEnded
                | RunsError::Invalid { .. }
                | RunsError::Forbidden { .. }
                | RunsError::Limit { .. }
                | RunsError::NotAwaitable { .. }
                | RunsError::Storage { .. },
            ) => {}
        }
        if !self.is_journalled() {
            return Ok(());
        }
        let answer = Box::new(ControllerAnswer::from(answer.clone()));
        let durable =
            self.record_durably(Event::ControllerAnswered { call, operation, request, answer });
        tokio::select! {
            biased;
            () = self.parts.stop.asked() => Err(RunsError::Canceled),
            () = durable => Ok(()),
        }
    }
}

/// The name of a child for the controller. Beginning with a word of the host's own, it meets no
/// key that a person would choose.
fn key_of(parts: &[&str]) -> String {
    let mut hash = blake3::Hasher::new();
    for part in parts {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    format!("taskrun.child:{}", &hash.finalize().to_hex()[..32])
}
