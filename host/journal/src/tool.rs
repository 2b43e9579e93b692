//! Tools as they describe themselves, and how calls of them ended.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::artifact::ArtifactRef;
use crate::media::Media;
use crate::message::{Bounds, RetryHint, Telemetry, ToolError};

/// Promises a tool makes about a function; the host acts on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolHints {
    /// Changes nothing anywhere.
    pub read_only: bool,
    /// May destroy what cannot be had back.
    pub destructive: bool,
    /// A repeated call with the same id has no further effect.
    pub idempotent: bool,
    /// Its answer ends the run.
    pub terminal: bool,
    /// Its results carry bounds.
    pub bounded: bool,
}

/// One function of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// The function's own name, or the qualified one where an agent sees it.
    pub name: String,
    /// A few words for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The purpose, for a model.
    pub description: String,
    /// JSON schema of the arguments.
    pub input_schema: String,
    /// JSON schema of the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<String>,
    /// Promises.
    pub hints: ToolHints,
    /// The time that a call may take, by the tool's own account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// Words that policies select by, by the word of the policy or, where that states none, of the
    /// tool. They may take a call away or have somebody asked about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Those of them that the policy states. They alone allow anything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stated_tags: Vec<String>,
}

impl ToolSpec {
    /// True if it has one of these tags, by whosever word: for what takes away.
    #[must_use]
    pub fn is_tagged(&self, tags: &[String]) -> bool {
        self.tags.iter().any(|tag| tags.contains(tag))
    }

    /// True if the policy says that it has one of these tags: for what allows.
    #[must_use]
    pub fn is_stated_as(&self, tags: &[String]) -> bool {
        self.stated_tags.iter().any(|tag| tags.contains(tag))
    }

    /// The function as two policies have it at once: its tags are those of both, and those that
    /// both state allow. `stated` are those that the other one states, and `claimed` those of the
    /// tool itself, which count where a policy states none.
    #[must_use]
    pub fn with_tags_of(self, stated: Option<&[String]>, claimed: &[String]) -> Self {
        let Self { mut tags, mut stated_tags, .. } = self;
        let more = stated.unwrap_or(claimed).iter().filter(|tag| !tags.contains(tag));
        let more: Vec<String> = more.cloned().collect();
        tags.extend(more);
        stated_tags.retain(|tag| stated.is_some_and(|stated| stated.contains(tag)));
        Self { tags, stated_tags, ..self }
    }
}

/// A call that failed by the tool's own account, or was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolFailure {
    /// The error.
    pub error: ToolError,
    /// Advice for a further try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_hint: Option<Box<RetryHint>>,
}

/// The outcome of a tool call, as planners and the journal see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolOutcome {
    /// The result, as JSON.
    Value(String),
    /// The failure.
    Failure(ToolFailure),
}

impl ToolOutput {
    /// An output without anything beside its outcome.
    #[must_use]
    pub fn plain(name: &str, tool_call_id: &str, payload: &str, outcome: ToolOutcome) -> Self {
        let result_bytes = match &outcome {
            ToolOutcome::Value(value) => value.len() as u64,
            ToolOutcome::Failure(_) => 0,
        };
        Self {
            name: name.to_owned(),
            tool_call_id: tool_call_id.to_owned(),
            payload: payload.to_owned(),
            outcome,
            result_bytes,
            result_omitted: None,
            server_data: None,
            bounds: None,
            telemetry: None,
            children_count: 0,
            run_link: None,
            artifact: None,
            media: Vec::new(),
        }
    }

    /// Bytes of everything in it that somebody outside wrote.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let optional = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let bounds = self.bounds.as_ref();
        let telemetry = self.telemetry.as_ref();
        self.name.len()
            + self.tool_call_id.len()
            + self.payload.len()
            + self.outcome.bytes()
            + optional(&self.server_data)
            + bounds.map_or(0, |b| optional(&b.continuation) + optional(&b.refinement))
            + telemetry.map_or(0, |t| optional(&t.model) + optional(&t.extra))
    }
}

impl ToolOutcome {
    fn bytes(&self) -> usize {
        match self {
            Self::Value(value) => value.len(),
            Self::Failure(failure) => {
                let hint = failure.retry_hint.as_ref().map_or(0, |hint| {
                    let texts = [
                        &hint.example_input,
                        &hint.prior_input,
                        &hint.clarifying_question,
                        &hint.message,
                    ];
                    texts.into_iter().flatten().map(String::len).sum::<usize>()
                        + hint.missing_fields.iter().map(String::len).sum::<usize>()
                        + hint.tool.len()
                });
                let causes: usize = failure.error.causes.iter().map(String::len).sum();
                failure.error.message.len() + causes + hint
            }
        }
    }
}

/// A tool call that was executed, refused, or answered from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolOutput {
    /// Qualified name of the tool.
    pub name: String,
    /// Id of the call.
    pub tool_call_id: String,
    /// The arguments, as JSON.
    pub payload: String,
    /// The outcome.
    pub outcome: ToolOutcome,
    /// Size of the whole result in bytes.
    pub result_bytes: u64,
    /// Why the result was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_omitted: Option<String>,
    /// Data for the agent and the operator, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_data: Option<String>,
    /// The part of a larger result that this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
    /// The cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<Telemetry>,
    /// Names the whole result, where it is left out of what a planner is given; never in a journal,
    /// which has it whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactRef>,
    /// Runs that were started for the call.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub children_count: u32,
    /// The run that did the work, for an agent called as a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_link: Option<String>,
    /// Images that belong to the result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub media: Vec<Media>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the serialiser wants a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}
