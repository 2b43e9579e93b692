//! Messages, and the small values that go with results.

use taskrun_journal::media::Media;
use taskrun_journal::message as host;
use taskrun_journal::tool::ToolFailure;

use super::{labels_from_guest, labels_to_guest};
use crate::bindings::interfaces::types as guest;

impl From<host::Role> for guest::Role {
    fn from(role: host::Role) -> Self {
        match role {
            host::Role::System => Self::System,
            host::Role::User => Self::User,
            host::Role::Assistant => Self::Assistant,
            host::Role::Tool => Self::Tool,
        }
    }
}

impl From<guest::Role> for host::Role {
    fn from(role: guest::Role) -> Self {
        match role {
            guest::Role::System => Self::System,
            guest::Role::User => Self::User,
            guest::Role::Assistant => Self::Assistant,
            guest::Role::Tool => Self::Tool,
        }
    }
}

impl From<&host::Message> for guest::Message {
    fn from(message: &host::Message) -> Self {
        Self { role: message.role.into(), parts: message.parts.iter().map(Into::into).collect() }
    }
}

impl From<guest::Message> for host::Message {
    fn from(message: guest::Message) -> Self {
        let parts = message.parts.into_iter().map(Into::into).collect();
        Self { role: message.role.into(), parts }
    }
}

impl From<&host::Part> for guest::Part {
    fn from(part: &host::Part) -> Self {
        match part {
            host::Part::Text(text) => Self::Text(text.clone()),
            host::Part::Thinking(block) => Self::Thinking(block.clone().into()),
            host::Part::ToolUse(call) => Self::ToolUse(call.clone().into()),
            host::Part::ToolAnswer(answer) => Self::ToolAnswer(guest::ToolAnswer {
                tool_call_id: answer.tool_call_id.clone(),
                content: answer.content.clone(),
                is_error: answer.is_error,
                media: answer.media.iter().cloned().map(Into::into).collect(),
            }),
            host::Part::Json(json) => Self::Json(json.clone()),
            host::Part::Media(media) => Self::Media(media.clone().into()),
        }
    }
}

impl From<guest::Part> for host::Part {
    fn from(part: guest::Part) -> Self {
        match part {
            guest::Part::Text(text) => Self::Text(text),
            guest::Part::Thinking(block) => Self::Thinking(block.into()),
            guest::Part::ToolUse(call) => Self::ToolUse(call.into()),
            guest::Part::ToolAnswer(answer) => Self::ToolAnswer(host::ToolAnswer {
                tool_call_id: answer.tool_call_id,
                content: answer.content,
                is_error: answer.is_error,
                media: answer.media.into_iter().map(Into::into).collect(),
            }),
            guest::Part::Json(json) => Self::Json(json),
            guest::Part::Media(media) => Self::Media(media.into()),
        }
    }
}

impl From<Media> for guest::Media {
    fn from(media: Media) -> Self {
        Self { media_type: media.media_type, hash: media.hash, size: media.size }
    }
}

impl From<guest::Media> for Media {
    fn from(media: guest::Media) -> Self {
        Self { media_type: media.media_type, hash: media.hash, size: media.size }
    }
}

impl From<host::Thinking> for guest::Thinking {
    fn from(block: host::Thinking) -> Self {
        Self { text: block.text, signature: block.signature }
    }
}

impl From<guest::Thinking> for host::Thinking {
    fn from(block: guest::Thinking) -> Self {
        Self { text: block.text, signature: block.signature }
    }
}

impl From<host::ToolUse> for guest::ToolUse {
    fn from(call: host::ToolUse) -> Self {
        Self { tool_call_id: call.tool_call_id, name: call.name, payload: call.payload }
    }
}

impl From<guest::ToolUse> for host::ToolUse {
    fn from(call: guest::ToolUse) -> Self {
        Self { tool_call_id: call.tool_call_id, name: call.name, payload: call.payload }
    }
}

impl From<host::Usage> for guest::Usage {
    fn from(usage: host::Usage) -> Self {
        let host::Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens,
            cached_tokens,
            cache_write_tokens,
            reasoning_tokens,
            ..
        } = usage;
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens,
            cached_tokens,
            cache_write_tokens,
            reasoning_tokens,
        }
    }
}

impl From<guest::Usage> for host::Usage {
    fn from(usage: guest::Usage) -> Self {
        let guest::Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens,
            cached_tokens,
            cache_write_tokens,
            reasoning_tokens,
        } = usage;
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens,
            cached_tokens,
            cache_write_tokens,
            reasoning_tokens,
            ..Self::default()
        }
    }
}

impl From<&host::Bounds> for guest::Bounds {
    fn from(bounds: &host::Bounds) -> Self {
        Self {
            returned: bounds.returned,
            total: bounds.total,
            truncated: bounds.truncated,
            continuation: bounds.continuation.clone(),
            refinement: bounds.refinement.clone(),
        }
    }
}

impl From<guest::Bounds> for host::Bounds {
    fn from(bounds: guest::Bounds) -> Self {
        let guest::Bounds { returned, total, truncated, continuation, refinement } = bounds;
        Self { returned, total, truncated, continuation, refinement }
    }
}

impl From<&host::Telemetry> for guest::Telemetry {
    fn from(telemetry: &host::Telemetry) -> Self {
        Self {
            duration: telemetry.duration_ms,
            usage: telemetry.usage.map(Into::into),
            model: telemetry.model.clone(),
            extra: telemetry.extra.clone(),
        }
    }
}

impl From<guest::Telemetry> for host::Telemetry {
    fn from(telemetry: guest::Telemetry) -> Self {
        Self {
            duration_ms: telemetry.duration,
            usage: telemetry.usage.map(Into::into),
            model: telemetry.model,
            extra: telemetry.extra,
        }
    }
}

impl From<host::ToolError> for guest::ToolError {
    fn from(error: host::ToolError) -> Self {
        Self { code: error.code, message: error.message, causes: error.causes }
    }
}

impl From<guest::ToolError> for host::ToolError {
    fn from(error: guest::ToolError) -> Self {
        Self { code: error.code, message: error.message, causes: error.causes }
    }
}

impl From<ToolFailure> for guest::ToolFailure {
    fn from(failure: ToolFailure) -> Self {
        let retry_hint = failure.retry_hint.map(|hint| (*hint).into());
        Self { error: failure.error.into(), retry_hint }
    }
}

impl From<guest::ToolFailure> for ToolFailure {
    fn from(failure: guest::ToolFailure) -> Self {
        let retry_hint = failure.retry_hint.map(|hint| Box::new(hint.into()));
        Self { error: failure.error.into(), retry_hint }
    }
}

impl From<host::RetryReason> for guest::RetryReason {
    fn from(reason: host::RetryReason) -> Self {
        match reason {
            host::RetryReason::InvalidArguments => Self::InvalidArguments,
            host::RetryReason::MissingFields => Self::MissingFields,
            host::RetryReason::MalformedResponse => Self::MalformedResponse,
            host::RetryReason::Timeout => Self::Timeout,
            host::RetryReason::RateLimited => Self::RateLimited,
            host::RetryReason::ToolUnavailable => Self::ToolUnavailable,
        }
    }
}

impl From<guest::RetryReason> for host::RetryReason {
    fn from(reason: guest::RetryReason) -> Self {
        match reason {
            guest::RetryReason::InvalidArguments => Self::InvalidArguments,
            guest::RetryReason::MissingFields => Self::MissingFields,
            guest::RetryReason::MalformedResponse => Self::MalformedResponse,
            guest::RetryReason::Timeout => Self::Timeout,
            guest::RetryReason::RateLimited => Self::RateLimited,
            guest::RetryReason::ToolUnavailable => Self::ToolUnavailable,
        }
    }
}

impl From<host::RetryHint> for guest::RetryHint {
    fn from(hint: host::RetryHint) -> Self {
        Self {
            reason: hint.reason.into(),
            tool: hint.tool,
            restrict_to_tool: hint.restrict_to_tool,
            missing_fields: hint.missing_fields,
            example_input: hint.example_input,
            prior_input: hint.prior_input,
            clarifying_question: hint.clarifying_question,
            message: hint.message,
        }
    }
}

impl From<guest::RetryHint> for host::RetryHint {
    fn from(hint: guest::RetryHint) -> Self {
        Self {
            reason: hint.reason.into(),
            tool: hint.tool,
            restrict_to_tool: hint.restrict_to_tool,
            missing_fields: hint.missing_fields,
            example_input: hint.example_input,
            prior_input: hint.prior_input,
            clarifying_question: hint.clarifying_question,
            message: hint.message,
        }
    }
}

impl From<&taskrun::scope::RunContext> for guest::RunContext {
    fn from(run: &taskrun::scope::RunContext) -> Self {
        Self {
            run_id: run.run_id.clone(),
            parent_run_id: run.parent_run_id.clone(),
            root_run_id: run.root_run_id.clone(),
            session_id: run.session_id.clone(),
            parent_session_id: run.parent_session_id.clone(),
            owner_user_id: run.owner_user_id.clone(),
            app_name: run.app_name.clone(),
            agent_name: run.agent_name.clone(),
            turn: run.turn,
            attempt: run.attempt,
            depth: run.depth,
            parent_tool_call_id: run.parent_tool_call_id.clone(),
            labels: labels_to_guest(&run.labels),
            envelope: labels_to_guest(&run.envelope),
        }
    }
}

impl From<&taskrun_journal::tool::ToolSpec> for guest::ToolSpec {
    fn from(spec: &taskrun_journal::tool::ToolSpec) -> Self {
        let hints = spec.hints;
        Self {
            name: spec.name.clone(),
            title: spec.title.clone(),
            description: spec.description.clone(),
            input_schema: spec.input_schema.clone(),
            output_schema: spec.output_schema.clone(),
            hints: guest::ToolHints {
                read_only: hints.read_only,
                destructive: hints.destructive,
                idempotent: hints.idempotent,
                terminal: hints.terminal,
                bounded: hints.bounded,
            },
            timeout: spec.timeout.map(taskrun_journal::time::millis),
            tags: spec.tags.clone(),
        }
    }
}

impl From<guest::ToolSpec> for taskrun_journal::tool::ToolSpec {
    fn from(spec: guest::ToolSpec) -> Self {
        let hints = spec.hints;
        Self {
            name: spec.name,
            title: spec.title,
            description: spec.description,
            input_schema: spec.input_schema,
            output_schema: spec.output_schema,
            hints: taskrun_journal::tool::ToolHints {
                read_only: hints.read_only,
                destructive: hints.destructive,
                idempotent: hints.idempotent,
                terminal: hints.terminal,
                bounded: hints.bounded,
            },
            timeout: spec.timeout.map(std::time::Duration::from_millis),
            tags: spec.tags,
            stated_tags: Vec::new(),
        }
    }
}

/// Labels of a guest's remark.
pub(crate) fn annotation(
    text: String,
    labels: Vec<(String, String)>,
) -> taskrun_journal::plan::Annotation {
    taskrun_journal::plan::Annotation { text, labels: labels_from_guest(labels) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_way_there_and_back() {
        let message = host::Message {
            role: host::Role::Tool,
            parts: vec![
                host::Part::Text("t".into()),
                host::Part::Thinking(host::Thinking {
                    text: "h".into(),
                    signature: Some("s".into()),
                }),
                host::Part::ToolUse(host::ToolUse {
                    tool_call_id: "1".into(),
                    name: "a/b".into(),
                    payload: "{}".into(),
                }),
                host::Part::ToolAnswer(host::ToolAnswer {
                    tool_call_id: "1".into(),
                    content: "c".into(),
                    is_error: true,
                    media: vec![Media {
                        media_type: "image/png".to_owned(),
                        hash: "0".repeat(64),
                        size: 7,
                    }],
                }),
                host::Part::Json("[1]".into()),
            ]
            .into(),
        };
        let there = guest::Message::from(&message);
        assert_eq!(host::Message::from(there), message);
    }

    #[test]
    fn hints_and_bounds_survive_the_way_there_and_back() {
        let hint = host::RetryHint {
            missing_fields: vec!["a".into()],
            message: Some("m".into()),
            restrict_to_tool: true,
            ..host::RetryHint::new(host::RetryReason::MissingFields, "a/b")
        };
        assert_eq!(host::RetryHint::from(guest::RetryHint::from(hint.clone())), hint);
        let bounds = host::Bounds {
            returned: 1,
            total: Some(2),
            truncated: true,
            continuation: Some("{}".into()),
            refinement: None,
        };
        assert_eq!(host::Bounds::from(guest::Bounds::from(&bounds)), bounds);
    }
}
