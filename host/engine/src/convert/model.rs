//! Questions to models and their answers.

use taskrun_journal::completion as host;
use taskrun_journal::media::MediaBytes;
use taskrun_journal::tool::ToolSpec;

use crate::bindings::interfaces::model as guest;
use crate::bindings::interfaces::types::{Media, Part};

/// Bytes of what a guest asks, the tools left out.
pub(crate) fn request_bytes(request: &guest::CompletionRequest) -> usize {
    let parts = request.messages.iter().flat_map(|message| &message.parts);
    let media = |one: &Media| one.media_type.len() + one.hash.len();
    let bytes = |part: &Part| match part {
        Part::Text(text) | Part::Json(text) => text.len(),
        Part::Thinking(block) => block.text.len(),
        Part::ToolUse(call) => call.name.len() + call.payload.len(),
        Part::ToolAnswer(answer) => {
            answer.content.len() + answer.media.iter().map(media).sum::<usize>()
        }
        Part::Media(one) => media(one),
    };
    let schema = request.response_schema.as_ref().map_or(0, String::len);
    let stops = crate::measure::texts(&request.stop_sequences);
    let choice = match &request.tool_choice {
        guest::ToolChoice::Tool(name) => name.len(),
        guest::ToolChoice::Auto | guest::ToolChoice::None | guest::ToolChoice::Required => 0,
    };
    parts.map(|part| crate::measure::ITEM_BYTES + bytes(part)).sum::<usize>()
        + schema
        + stops
        + choice
}

/// `tools` are those that the guest's choice comes to.
pub(crate) fn request_from_guest(
    request: guest::CompletionRequest,
    tools: Vec<ToolSpec>,
) -> host::CompletionRequest {
    host::CompletionRequest {
        model: request.model,
        messages: request.messages.into_iter().map(Into::into).collect(),
        tools,
        max_tokens: request.max_tokens,
        temperature: request.temperature,
        tool_choice: match request.tool_choice {
            guest::ToolChoice::Auto => host::ToolChoice::Auto,
            guest::ToolChoice::None => host::ToolChoice::None,
            guest::ToolChoice::Required => host::ToolChoice::Required,
            guest::ToolChoice::Tool(name) => host::ToolChoice::Tool(name),
        },
        stop_sequences: request.stop_sequences,
        response_schema: request.response_schema,
        media: MediaBytes::default(),
        tokens_left: None,
    }
}

impl From<host::CompletionStop> for guest::CompletionStop {
    fn from(stop: host::CompletionStop) -> Self {
        match stop {
            host::CompletionStop::EndTurn => Self::EndTurn,
            host::CompletionStop::ToolUse => Self::ToolUse,
            host::CompletionStop::MaxTokens => Self::MaxTokens,
            host::CompletionStop::StopSequence => Self::StopSequence,
            host::CompletionStop::ContextWindow => Self::ContextWindow,
            host::CompletionStop::MalformedCall => Self::MalformedCall,
            host::CompletionStop::Other(_) => Self::Other,
        }
    }
}

impl From<host::Completion> for guest::Completion {
    fn from(completion: host::Completion) -> Self {
        Self {
            message: (&completion.message).into(),
            usage: completion.usage.into(),
            stop: completion.stop.into(),
            model: completion.model,
        }
    }
}

impl From<host::Chunk> for guest::Chunk {
    fn from(chunk: host::Chunk) -> Self {
        match chunk {
            host::Chunk::Text(text) => Self::Text(text),
            host::Chunk::Thinking(block) => Self::Thinking(block.into()),
            host::Chunk::ToolCallDelta { tool_call_id, name, delta } => {
                Self::ToolCallDelta(guest::ToolCallDelta { tool_call_id, name, delta })
            }
            host::Chunk::ToolCall(call) => Self::ToolCall(call.into()),
            host::Chunk::Usage(usage) => Self::Usage(usage.into()),
            host::Chunk::Stop { reason, model: _ } => Self::Stop(reason.into()),
        }
    }
}

/// An error as the guest may see it. A refusal names the policy file, which is for operators, as
/// are the provider's address and what it says about the key, its account and pauses.
pub(crate) fn error_to_guest(error: host::ModelError) -> guest::ModelError {
    match error {
        host::ModelError::Denied(_) => {
            guest::ModelError::Denied("the policy does not give this agent that model".to_owned())
        }
        host::ModelError::UnknownModel(name) => guest::ModelError::UnknownModel(name),
        host::ModelError::RateLimited { retry_after_ms, said: _ } => {
            guest::ModelError::RateLimited(retry_after_ms)
        }
        host::ModelError::Unavailable(text) => guest::ModelError::Unavailable(text),
        host::ModelError::Unauthorized(_) => guest::ModelError::Other(
            "the provider does not accept the host's credentials".to_owned(),
        ),
        host::ModelError::NoQuota(_) => {
            guest::ModelError::Other("the provider's account has no quota left".to_owned())
        }
        error @ (host::ModelError::Overloaded { .. } | host::ModelError::CutOff) => {
            guest::ModelError::Unavailable(error.to_string())
        }
        host::ModelError::Unreachable(_) => {
            guest::ModelError::Unavailable("the provider cannot be reached".to_owned())
        }
        host::ModelError::InvalidRequest(text) => guest::ModelError::InvalidRequest(text),
        host::ModelError::NotFound(hash) => guest::ModelError::NotFound(hash),
        error @ host::ModelError::ContextWindow(_) => {
            guest::ModelError::InvalidRequest(error.to_string())
        }
        host::ModelError::Refused(text) => guest::ModelError::Refused(text),
        host::ModelError::Misfit(text) => guest::ModelError::Misfit(text),
        error @ (host::ModelError::Malformed(_) | host::ModelError::TooLarge(_)) => {
            guest::ModelError::Other(error.to_string())
        }
        host::ModelError::Budget(text) => guest::ModelError::Budget(text),
        host::ModelError::Timeout => guest::ModelError::Timeout,
        host::ModelError::Canceled => guest::ModelError::Canceled,
        host::ModelError::Other(text) => guest::ModelError::Other(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_does_not_name_the_policy_file() {
        let error =
            host::ModelError::Denied("denied by \"model: *\" (/etc/taskrun.toml:1:1)".into());
        let guest::ModelError::Denied(text) = error_to_guest(error) else { panic!("denied") };
        assert!(!text.contains("taskrun.toml"), "{text}");
    }

    #[test]
    fn a_guest_is_not_told_where_the_provider_is_or_what_it_says_of_the_key() {
        let told = |error| format!("{:?}", error_to_guest(error));
        let text = told(host::ModelError::Unreachable("10.0.0.7:8080 refuses".into()));
        assert!(text.contains("cannot be reached") && !text.contains("10.0.0.7"), "{text}");
        let text = told(host::ModelError::Unauthorized("sk-1 has expired".into()));
        assert!(text.contains("credentials") && !text.contains("sk-1"), "{text}");
        let text = told(host::ModelError::NoQuota("status 429: org-7 pays".into()));
        assert!(text.contains("no quota left") && !text.contains("org-7"), "{text}");
        let said = || Some("status 429: org-7 is slow".to_owned());
        let busy = host::ModelError::Overloaded { retry_after_ms: None, said: said() };
        let text = told(busy);
        assert!(text.contains("is overloaded") && !text.contains("org-7"), "{text}");
        let limited = host::ModelError::RateLimited { retry_after_ms: Some(5), said: said() };
        assert!(matches!(error_to_guest(limited), guest::ModelError::RateLimited(Some(5))));
    }
}
