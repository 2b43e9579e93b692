//! The input of plan steps, as the guest is given it: a conversation may be long, so its texts go from
//! the host's memory into the guest's without a copy between.

use taskrun::ports::planner as host;
use taskrun_journal::reminders::{Attachment, Reminder};
use taskrun_journal::{media, message, plan, tool};
use wasmtime::component::{ComponentType, Lower};

use crate::bindings::agent::exports::taskrun::plugin::planner as guest;
use crate::bindings::interfaces::types;

/// `plan-input`.
#[derive(ComponentType, Lower)]
#[component(record)]
pub(crate) struct StartInput<'a> {
    messages: Vec<Message<'a>>,
    run: types::RunContext,
    reminders: Vec<guest::Reminder>,
}

/// `plan-resume-input`.
#[derive(ComponentType, Lower)]
#[component(record)]
pub(crate) struct ResumeInput<'a> {
    messages: Vec<Message<'a>>,
    run: types::RunContext,
    reminders: Vec<guest::Reminder>,
    #[component(name = "tool-outputs")]
    tool_outputs: Vec<ToolOutput<'a>>,
    finalize: Option<guest::Termination>,
}

/// `message`.
#[derive(ComponentType, Lower)]
#[component(record)]
pub(crate) struct Message<'a> {
    role: types::Role,
    parts: &'a [Part<'a>],
}

/// `part`.
#[derive(ComponentType, Lower)]
#[component(variant)]
pub(crate) enum Part<'a> {
    #[component(name = "text")]
    Text(&'a str),
    #[component(name = "thinking")]
    Thinking(Thinking<'a>),
    #[component(name = "tool-use")]
    ToolUse(ToolUse<'a>),
    #[component(name = "tool-answer")]
    ToolAnswer(ToolAnswer<'a>),
    #[component(name = "json")]
    Json(&'a str),
    #[component(name = "media")]
    Media(Media<'a>),
}

/// `thinking`.
#[derive(ComponentType, Lower)]
#[component(record)]
pub(crate) struct Thinking<'a> {
    text: &'a str,
    signature: Option<&'a str>,
}

/// `tool-use`.
#[derive(ComponentType, Lower)]
#[component(record)]
pub(crate) struct ToolUse<'a> {
    #[component(name = "tool-call-id")]
    tool_call_id: &'a str,
    name: &'a str,
    payload: &'a str,
}

/// `tool-answer`.
#[derive(ComponentType, Lower)]
#[component(record)]
pub(crate) struct ToolAnswer<'a> {
    #[component(name = "tool-call-id")]
    tool_call_id: &'a str,
    content: &'a str,
    #[component(name = "is-error")]
    is_error: bool,
    media: Vec<Media<'a>>,
}

/// `media`.
#[derive(ComponentType, Lower)]
#[component(record)]
pub(crate) struct Media<'a> {
    #[component(name = "media-type")]
    media_type: &'a str,
    hash: &'a str,
    size: u64,
}

/// `tool-output`.
#[derive(ComponentType, Lower)]
#[component(record)]
pub(crate) struct ToolOutput<'a> {
    name: &'a str,
    #[component(name = "tool-call-id")]
    tool_call_id: &'a str,
    payload: &'a str,
    outcome: ToolOutcome<'a>,
    #[component(name = "result-bytes")]
    result_bytes: u64,
    #[component(name = "result-omitted")]
    result_omitted: Option<&'a str>,
    #[component(name = "server-data")]
    server_data: Option<&'a str>,
    bounds: Option<types::Bounds>,
    telemetry: Option<types::Telemetry>,
    #[component(name = "children-count")]
    children_count: u32,
    #[component(name = "run-link")]
    run_link: Option<&'a str>,
    media: Vec<Media<'a>>,
}

/// `tool-outcome`.
#[derive(ComponentType, Lower)]
#[component(variant)]
pub(crate) enum ToolOutcome<'a> {
    #[component(name = "value")]
    Value(&'a str),
    #[component(name = "failure")]
    Failure(Box<types::ToolFailure>),
}

/// The parts of all messages of a conversation, one message after the other.
pub(crate) fn parts(messages: &[message::Message]) -> Vec<Part<'_>> {
    messages.iter().flat_map(|message| &message.parts).map(Into::into).collect()
}

/// A conversation over its [`parts`].
pub(crate) fn messages<'a>(
    messages: &[message::Message],
    mut parts: &'a [Part<'a>],
) -> Vec<Message<'a>> {
    let over_parts = |message: &message::Message| {
        let (own, rest) = parts.split_at(message.parts.len());
        parts = rest;
        Message { role: message.role.into(), parts: own }
    };
    messages.iter().map(over_parts).collect()
}

impl<'a> StartInput<'a> {
    /// The input of the first step, over the parts of its conversation.
    pub(crate) fn new(input: &'a host::PlanInput, parts: &'a [Part<'a>]) -> Self {
        Self {
            messages: messages(&input.messages, parts),
            run: (&input.run).into(),
            reminders: input.reminders.iter().map(reminder).collect(),
        }
    }
}

impl<'a> ResumeInput<'a> {
    /// The input of a later step, over the parts of its conversation.
    pub(crate) fn new(
        input: &'a host::PlanInput,
        resume: &'a host::Resume,
        parts: &'a [Part<'a>],
    ) -> Self {
        let StartInput { messages, run, reminders } = StartInput::new(input, parts);
        Self {
            messages,
            run,
            reminders,
            tool_outputs: resume.tool_outputs.iter().map(Into::into).collect(),
            finalize: resume.finalize.as_ref().map(termination),
        }
    }
}

impl<'a> From<&'a message::Part> for Part<'a> {
    fn from(part: &'a message::Part) -> Self {
        match part {
            message::Part::Text(text) => Self::Text(text),
            message::Part::Thinking(block) => Self::Thinking(Thinking {
                text: &block.text,
                signature: block.signature.as_deref(),
            }),
            message::Part::ToolUse(call) => Self::ToolUse(ToolUse {
                tool_call_id: &call.tool_call_id,
                name: &call.name,
                payload: &call.payload,
            }),
            message::Part::ToolAnswer(answer) => Self::ToolAnswer(ToolAnswer {
                tool_call_id: &answer.tool_call_id,
                content: &answer.content,
                is_error: answer.is_error,
                media: answer.media.iter().map(Into::into).collect(),
            }),
            message::Part::Json(json) => Self::Json(json),
            message::Part::Media(media) => Self::Media(media.into()),
        }
    }
}

impl<'a> From<&'a media::Media> for Media<'a> {
    fn from(media: &'a media::Media) -> Self {
        Self { media_type: &media.media_type, hash: &media.hash, size: media.size }
    }
}

impl<'a> From<&'a tool::ToolOutput> for ToolOutput<'a> {
    fn from(output: &'a tool::ToolOutput) -> Self {
        Self {
            name: &output.name,
            tool_call_id: &output.tool_call_id,
            payload: &output.payload,
            outcome: match &output.outcome {
                tool::ToolOutcome::Value(value) => ToolOutcome::Value(value),
                tool::ToolOutcome::Failure(failure) => {
                    ToolOutcome::Failure(Box::new(failure.clone().into()))
                }
            },
            result_bytes: output.result_bytes,
            result_omitted: output.result_omitted.as_deref(),
            server_data: output.server_data.as_deref(),
            bounds: output.bounds.as_ref().map(Into::into),
            telemetry: output.telemetry.as_ref().map(Into::into),
            children_count: output.children_count,
            run_link: output.run_link.as_deref(),
            media: output.media.iter().map(Into::into).collect(),
        }
    }
}

fn reminder(reminder: &Reminder) -> guest::Reminder {
    guest::Reminder {
        id: reminder.id.clone(),
        text: reminder.text.clone(),
        attachment: match reminder.attachment {
            Attachment::RunStart => types::Attachment::RunStart,
            Attachment::UserTurn => types::Attachment::UserTurn,
        },
    }
}

fn termination(termination: &plan::Termination) -> guest::Termination {
    let reason = match termination.reason {
        plan::TerminationReason::TimeBudget => guest::TerminationReason::TimeBudget,
        plan::TerminationReason::ToolCap => guest::TerminationReason::ToolCap,
        plan::TerminationReason::FailureCap => guest::TerminationReason::FailureCap,
        plan::TerminationReason::TurnCap => guest::TerminationReason::TurnCap,
        plan::TerminationReason::TokenCap => guest::TerminationReason::TokenCap,
        plan::TerminationReason::CostCap => guest::TerminationReason::CostCap,
    };
    guest::Termination { reason, message: termination.message.clone() }
}

/// A message as a guest is shown it, for tests.
#[cfg(test)]
pub(crate) fn as_shown(message: &message::Message) -> types::Message {
    let own = |media: &Media<'_>| types::Media {
        media_type: media.media_type.to_owned(),
        hash: media.hash.to_owned(),
        size: media.size,
    };
    let one = std::slice::from_ref(message);
    let parts = parts(one);
    let shown = messages(one, &parts).remove(0);
    let parts = shown.parts.iter().map(|part| match part {
        Part::Text(text) => types::Part::Text((*text).to_owned()),
        Part::Json(json) => types::Part::Json((*json).to_owned()),
        Part::Media(media) => types::Part::Media(own(media)),
        Part::Thinking(Thinking { text, signature }) => types::Part::Thinking(types::Thinking {
            text: (*text).to_owned(),
            signature: signature.map(str::to_owned),
        }),
        Part::ToolUse(ToolUse { tool_call_id, name, payload }) => {
            types::Part::ToolUse(types::ToolUse {
                tool_call_id: (*tool_call_id).to_owned(),
                name: (*name).to_owned(),
                payload: (*payload).to_owned(),
            })
        }
        Part::ToolAnswer(ToolAnswer { tool_call_id, content, is_error, media }) => {
            types::Part::ToolAnswer(types::ToolAnswer {
                tool_call_id: (*tool_call_id).to_owned(),
                content: (*content).to_owned(),
                is_error: *is_error,
                media: media.iter().map(own).collect(),
            })
        }
    });
    types::Message { role: shown.role, parts: parts.collect() }
}
