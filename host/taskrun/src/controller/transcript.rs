//! The conversation of a run, for reading.

use std::collections::VecDeque;

use serde::Serialize;

use super::Controller;
use super::observe::READ_PAGE;
use crate::error::ControllerError;
use crate::event::{Event, Recorded, Seq};
use crate::list::Scope;
use crate::message::{Role, ToolError, ToolUse};
use crate::ports::tool::ToolOutcome;
use crate::run::Run;
use crate::status::Status;
use crate::time::Timestamp;

/// Entries of a transcript unless another number is asked for.
pub const TRANSCRIPT_DEFAULT: usize = 40;
/// Most entries of a transcript.
pub const TRANSCRIPT_MAX: usize = 200;

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
    /// Where the page of earlier ones ends; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Seq>,
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
    /// The word for that of the tool that failed, or of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// How long the tool took; absent for a call that was refused or did not begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
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
            error_code: None,
            duration_ms: None,
            timestamp: recorded.at,
        };
        match &recorded.event {
            Event::Queued { spec } => Some(entry("user", Role::User, spec.task.clone())),
            Event::Injected { text, by } => Some(entry(by, Role::User, text.clone())),
            Event::PauseEnded { messages, by, .. } if !messages.is_empty() => {
                Some(entry(by.as_deref().unwrap_or("user"), Role::User, messages.join("\n")))
            }
            Event::PauseEnded { .. } => None,
            Event::AssistantMessage { message, .. } => {
                let agent = &run.spec.agent_name;
                let mut entry = entry(agent, Role::Assistant, message.joined_text());
                entry.tool_calls = message.tool_uses().cloned().collect();
                Some(entry)
            }
            Event::ToolResult { output, duration_ms, refused } => {
                let (content, error) = match &output.outcome {
                    ToolOutcome::Value(value) => (value.clone(), None),
                    ToolOutcome::Failure(failure) => (String::new(), Some(&failure.error)),
                };
                let mut entry = entry(&output.name, Role::Tool, content);
                entry.tool_id = Some(output.tool_call_id.clone());
                entry.tool_name = Some(output.name.clone());
                entry.error = error.map(with_causes);
                entry.error_code = error.and_then(|error| error.code.clone());
                entry.duration_ms = refused.is_none().then_some(*duration_ms);
                Some(entry)
            }
            Event::Started { .. }
            | Event::Resumed { .. }
            | Event::Lost { .. }
            | Event::AssistantChunk { .. }
            | Event::ToolCallArgsDelta { .. }
            | Event::ThinkingBlock { .. }
            | Event::PlannerNote { .. }
            | Event::PromptRendered { .. }
            | Event::HistoryCarried { .. }
            | Event::Usage { .. }
            | Event::ToolCallScheduled { .. }
            | Event::ToolCallRepeated { .. }
            | Event::ToolCallParked { .. }
            | Event::ChildRunLinked { .. }
            | Event::ToolCallUpdated { .. }
            | Event::FinalToolResult { .. }
            | Event::ModelAnswered { .. }
            | Event::ControllerAnswered { .. }
            | Event::MemoryAnswered { .. }
            | Event::MemoryAppended { .. }
            | Event::MetricsRecorded { .. }
            | Event::ModelWait { .. }
            | Event::ClockRead { .. }
            | Event::StepRestarted { .. }
            | Event::ReplayDiverged { .. }
            | Event::StepFailed { .. }
            | Event::TurnSkipped { .. }
            | Event::Asked { .. }
            | Event::Answered { .. }
            | Event::PolicyDecision { .. }
            | Event::ToolAuthorization { .. }
            | Event::Log { .. }
            | Event::PlanDecided { .. }
            | Event::FinalizeRequested { .. }
            | Event::Blocked { .. }
            | Event::Unblocked
            | Event::PauseRequested { .. }
            | Event::InboxShown { .. }
            | Event::CancelRequested { .. }
            | Event::Finalizing { .. }
            | Event::FinalizerStarted
            | Event::Finished { .. } => None,
        }
    }
}

/// What went wrong and what led to it, in a line of its own each.
fn with_causes(error: &ToolError) -> String {
    let causes = error.causes.iter().map(|cause| format!("\ncaused by: {cause}"));
    std::iter::once(error.message.clone()).chain(causes).collect()
}

impl Controller {
    /// The last `limit` entries of the conversation, or the last before a position;
    /// [`TRANSCRIPT_MAX`] if more are asked for.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn transcript(
        &self,
        scope: &Scope,
        id: &str,
        before: Option<Seq>,
        limit: usize,
    ) -> Result<Transcript, ControllerError> {
        let run = self.get(scope, id).await?;
        let limit = limit.clamp(1, TRANSCRIPT_MAX);
        let before = before.unwrap_or(Seq::MAX);
        let mut entries = VecDeque::with_capacity(limit + 1);
        let (mut after, mut truncated) = (0, false);
        loop {
            let page = self.0.parts.store.read(run.id(), after, READ_PAGE).await?;
            let Some(last) = page.last().filter(|_| after < before) else { break };
            after = last.seq;
            let earlier = page.iter().filter(|recorded| recorded.seq < before);
            for entry in earlier.filter_map(|recorded| TranscriptEntry::of(&run, recorded)) {
                entries.push_back(entry);
                if entries.len() > limit {
                    entries.pop_front();
                    truncated = true;
                }
            }
        }
        let first = entries.front().and_then(|entry| entry.id.parse().ok());
        Ok(Transcript {
            id: run.spec.id.to_string(),
            status: run.status(),
            child_session_id: run.execution().map(|e| e.child_session_id.clone()),
            events: entries.into(),
            truncated,
            before: first.filter(|_| truncated),
        })
    }
}
