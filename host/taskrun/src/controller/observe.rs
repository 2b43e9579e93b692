//! Waiting for runs, and reading what they did.

use std::time::Duration;

use serde::Serialize;

use super::Controller;
use crate::error::ControllerError;
use crate::event::{Event, Recorded, Seq};
use crate::list::Scope;
use crate::message::{Role, ToolUse};
use crate::ports::tool::ToolOutcome;
use crate::run::Run;
use crate::status::Status;
use crate::time::Timestamp;

/// Entries of a transcript unless another number is asked for.
pub const TRANSCRIPT_DEFAULT: usize = 40;
/// Most entries of a transcript.
pub const TRANSCRIPT_MAX: usize = 200;
/// Events read at once.
const READ_PAGE: usize = 1_000;

/// What a wait came to.
#[derive(Clone, Debug)]
pub struct Waited {
    /// The run as it stands.
    pub run: Run,
    /// Whether the run is not what was waited for: the time was up, or it ended otherwise.
    pub timed_out: bool,
}

/// What a run's conversation was, for people and for agents that supervise others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transcript {
    /// Id of the run.
    pub id: String,
    /// Its status.
    pub status: Status,
    /// Its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_session_id: Option<String>,
    /// The last entries, the oldest of them first.
    pub events: Vec<TranscriptEntry>,
    /// Whether there are earlier ones.
    pub truncated: bool,
}

/// One entry of a transcript. Absent fields are left out of the JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TranscriptEntry {
    /// Position in the journal, as text.
    pub id: String,
    /// Who: `user`, the agent's name, or the tool's.
    pub author: String,
    /// Kind of the event.
    pub object: &'static str,
    /// Role in the conversation.
    pub role: &'static str,
    /// Text, or a tool's result as JSON.
    pub content: String,
    /// Id of the tool call that this answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_id: Option<String>,
    /// Name of the tool that answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// Tools that are called.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolUse>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When it was recorded.
    #[serde(serialize_with = "crate::time::rfc3339::serialize")]
    pub timestamp: Timestamp,
}

impl TranscriptEntry {
    /// The entry that an event is; `None` for events that are no part of the conversation.
    #[must_use]
    pub fn of(run: &Run, recorded: &Recorded) -> Option<Self> {
        let entry = |author: &str, role: Role, content: String| Self {
            id: recorded.seq.to_string(),
            author: author.to_owned(),
            object: recorded.event.kind(),
            role: role.as_str(),
            content,
            tool_id: None,
            tool_name: None,
            tool_calls: Vec::new(),
            error: None,
            timestamp: recorded.at,
        };
        match &recorded.event {
            Event::Queued { spec } => Some(entry("user", Role::User, spec.task.clone())),
            Event::AssistantMessage { message, .. } => {
                let agent = &run.spec.agent_name;
                let mut entry = entry(agent, Role::Assistant, message.joined_text());
                entry.tool_calls = message.tool_uses().cloned().collect();
                Some(entry)
            }
            Event::ToolResult { output, .. } => {
                let (content, error) = match &output.outcome {
                    ToolOutcome::Value(value) => (value.clone(), None),
                    ToolOutcome::Failure(failure) => {
                        (String::new(), Some(failure.error.message.clone()))
                    }
                };
                let mut entry = entry(&output.name, Role::Tool, content);
                entry.tool_id = Some(output.tool_call_id.clone());
                entry.tool_name = Some(output.name.clone());
                entry.error = error;
                Some(entry)
            }
            Event::Started { .. }
            | Event::AssistantChunk { .. }
            | Event::ToolCallArgsDelta { .. }
            | Event::ThinkingBlock { .. }
            | Event::PlannerNote { .. }
            | Event::Usage { .. }
            | Event::ToolCallScheduled { .. }
            | Event::PolicyDecision { .. }
            | Event::Log { .. }
            | Event::PlanDecided { .. }
            | Event::FinalizeRequested { .. }
            | Event::Blocked { .. }
            | Event::Unblocked
            | Event::CancelRequested { .. }
            | Event::Finalizing { .. }
            | Event::Finished { .. } => None,
        }
    }
}

impl Controller {
    /// Waits until the run has ended, at most `timeout`; zero looks once, `None` waits for ever.
    /// Never cancels the run.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait and leaves the run as it is.
    pub async fn wait(
        &self,
        scope: &Scope,
        id: &str,
        timeout: Option<Duration>,
    ) -> Result<Waited, ControllerError> {
        self.wait_for(scope, id, timeout, |run| run.status().is_terminal()).await
    }

    /// Waits until `reached` says yes of the run, which it is asked after every change.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait.
    pub async fn wait_for(
        &self,
        scope: &Scope,
        id: &str,
        timeout: Option<Duration>,
        reached: impl Fn(&Run) -> bool + Send,
    ) -> Result<Waited, ControllerError> {
        let clock = &self.0.parts.clock;
        let time_is_up = async {
            match timeout {
                Some(timeout) => clock.sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(time_is_up);
        loop {
            let run = self.get(scope, id).await?;
            if reached(&run) {
                return Ok(Waited { run, timed_out: false });
            }
            // An ended run changes no more: whoever waits for anything else of it waits in vain.
            if timeout == Some(Duration::ZERO) || run.status().is_terminal() {
                return Ok(Waited { run, timed_out: true });
            }
            let head = run.state.head;
            tokio::select! {
                biased;
                () = self.0.parts.store.changed(run.id(), head) => {}
                () = &mut time_is_up => {
                    let run = self.get(scope, id).await?;
                    let timed_out = !reached(&run);
                    return Ok(Waited { run, timed_out });
                }
            }
        }
    }

    /// Events after position `after`, at most `limit`; empty at the end of the journal as it is.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn events(
        &self,
        scope: &Scope,
        id: &str,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Recorded>, ControllerError> {
        let run = self.get(scope, id).await?;
        Ok(self.0.parts.store.read(run.id(), after, limit.clamp(1, READ_PAGE)).await?)
    }

    /// Waits for events after position `after`; empty when the run has ended and there are none.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the next call gives the same events.
    pub async fn next_events(
        &self,
        scope: &Scope,
        id: &str,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Recorded>, ControllerError> {
        loop {
            let run = self.get(scope, id).await?;
            let events =
                self.0.parts.store.read(run.id(), after, limit.clamp(1, READ_PAGE)).await?;
            if !events.is_empty() || run.status().is_terminal() {
                return Ok(events);
            }
            self.0.parts.store.changed(run.id(), after.min(run.state.head)).await;
        }
    }

    /// The last `limit` entries of the conversation; [`TRANSCRIPT_MAX`] if more are asked for.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn transcript(
        &self,
        scope: &Scope,
        id: &str,
        limit: usize,
    ) -> Result<Transcript, ControllerError> {
        let run = self.get(scope, id).await?;
        let limit = limit.clamp(1, TRANSCRIPT_MAX);
        let mut entries = std::collections::VecDeque::with_capacity(limit + 1);
        let (mut after, mut truncated) = (0, false);
        loop {
            let page = self.0.parts.store.read(run.id(), after, READ_PAGE).await?;
            let Some(last) = page.last() else { break };
            after = last.seq;
            for entry in page.iter().filter_map(|recorded| TranscriptEntry::of(&run, recorded)) {
                entries.push_back(entry);
                if entries.len() > limit {
                    entries.pop_front();
                    truncated = true;
                }
            }
        }
        Ok(Transcript {
            id: run.spec.id.to_string(),
            status: run.status(),
            child_session_id: run.execution().map(|e| e.child_session_id.clone()),
            events: entries.into(),
            truncated,
        })
    }
}
