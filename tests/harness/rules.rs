//! Rules by which servers refuse requests, so that those of the tests refuse what real ones do.
//!
//! Each rule says where it is written. A request may break none of those of its server.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Asked;

#[path = "responses_rules.rs"]
mod responses;
pub use responses::RESPONSES;
#[path = "messages_rules.rs"]
mod messages;
pub use messages::MESSAGES;

/// A server whose rules requests are held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// The faults that every server of the protocol refuses.
    Common,
    /// OpenAI, with a model that reasons.
    OpenAi,
    /// OpenAI, with a model that does not reason.
    OpenAiWithoutReasoning,
    /// OpenAI's models at Azure.
    Azure,
    /// Mistral.
    Mistral,
    /// DeepSeek, with a model that reasons.
    DeepSeek,
    /// Kimi, with a model that reasons.
    Kimi,
    /// Anthropic, with a model that reasons as much as it finds right.
    ClaudeAdaptive,
    /// Anthropic, with a model that reasons within a budget.
    ClaudeBudget,
    /// A server that makes a prompt of the conversation by the model's template: vLLM, llama.cpp,
    /// Ollama.
    Template,
}

/// A rule: a request that breaks it is answered with 400.
pub struct Rule {
    /// The sentence of the refusal.
    pub says: &'static str,
    /// The address where it is written.
    pub source: &'static str,
    /// The servers that have it.
    pub of: &'static [Strictness],
    /// Tells if a request breaks it.
    pub is_broken: fn(&Asked) -> bool,
}

use Strictness::{
    Azure, ClaudeAdaptive, ClaudeBudget, Common, DeepSeek, Kimi, Mistral, OpenAi,
    OpenAiWithoutReasoning, Template,
};

const EVERYWHERE: &[Strictness] = &[
    Common,
    OpenAi,
    OpenAiWithoutReasoning,
    Azure,
    Mistral,
    DeepSeek,
    Kimi,
    ClaudeAdaptive,
    ClaudeBudget,
    Template,
];
const FUNCTIONS: &str = "https://platform.openai.com/docs/guides/function-calling";
const REFERENCE: &str = "https://platform.openai.com/docs/api-reference/chat/create";
const MISTRAL: &str = "https://github.com/mistralai/mistral-common/blob/main/src/mistral_common/protocol/instruct/validator.py";
const TEMPLATES: &str = "https://huggingface.co/docs/transformers/chat_templating";

/// The rules of chat completions.
pub const CHAT: &[Rule] = &[
    Rule {
        says: "'messages' is too short",
        source: REFERENCE,
        of: EVERYWHERE,
        is_broken: |asked| messages(asked).is_empty(),
    },
    Rule {
        says: "'tools' is too short",
        source: REFERENCE,
        of: EVERYWHERE,
        is_broken: |asked| asked.body["tools"].as_array().is_some_and(Vec::is_empty),
    },
    Rule {
        says: "'tools.function.name' does not match '^[a-zA-Z0-9_-]{1,64}$'",
        source: REFERENCE,
        of: EVERYWHERE,
        is_broken: |asked| {
            let names = list(&asked.body["tools"]).iter().map(|tool| &tool["function"]["name"]);
            let called = calls(asked).into_iter().map(|call| &call["function"]["name"]);
            names.chain(called).any(|name| !is_function_name(name))
        },
    },
    Rule {
        says: "an assistant's message has neither content nor calls",
        source: REFERENCE,
        of: EVERYWHERE,
        is_broken: |asked| {
            let blank = |m: &Value| m["content"].as_str().is_none_or(str::is_empty);
            let assistants = messages(asked).iter().filter(|m| m["role"] == "assistant");
            assistants.into_iter().any(|m| blank(m) && list(&m["tool_calls"]).is_empty())
        },
    },
    Rule {
        says: "'tool_calls' must be followed by tool messages responding to each 'tool_call_id'",
        source: FUNCTIONS,
        of: EVERYWHERE,
        is_broken: |asked| !answered_at_once(messages(asked)),
    },
    Rule {
        says: "messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
        source: FUNCTIONS,
        of: EVERYWHERE,
        is_broken: |asked| !only_answers(messages(asked)),
    },
    Rule {
        says: "'arguments' is not of type 'string'",
        source: REFERENCE,
        of: EVERYWHERE,
        is_broken: |asked| {
            calls(asked).iter().any(|call| !call["function"]["arguments"].is_string())
        },
    },
    Rule {
        says: "'parallel_tool_calls' is only allowed when 'tools' are specified",
        source: REFERENCE,
        of: EVERYWHERE,
        is_broken: |asked| has(asked, "parallel_tool_calls") && !has(asked, "tools"),
    },
    Rule {
        says: "'stream_options' is only allowed when 'stream' is enabled",
        source: REFERENCE,
        of: EVERYWHERE,
        is_broken: |asked| has(asked, "stream_options") && asked.body["stream"] != true,
    },
    Rule {
        says: "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead",
        source: REFERENCE,
        of: &[OpenAi, Azure],
        is_broken: |asked| has(asked, "max_tokens"),
    },
    Rule {
        says: "to use function tools, use /v1/responses or set reasoning_effort to 'none'",
        source: "https://github.com/BerriAI/litellm/pull/34569",
        of: &[OpenAi],
        is_broken: |asked| has(asked, "tools") && asked.body["reasoning_effort"] != "none",
    },
    Rule {
        says: "unrecognized request argument",
        source: "https://github.com/openai/openai-python/blob/main/src/openai/types/chat/completion_create_params.py",
        of: &[OpenAi, Azure],
        is_broken: |asked| members(&asked.body).any(|key| !OPENAI_KEYS.contains(&key)),
    },
    Rule {
        says: "api-version is a required parameter",
        source: "https://learn.microsoft.com/azure/ai-foundry/openai/reference",
        of: &[Azure],
        is_broken: |asked| !asked.path.contains("?api-version=2"),
    },
    Rule {
        says: "a key is expected in the header 'api-key'",
        source: "https://learn.microsoft.com/azure/ai-foundry/openai/reference",
        of: &[Azure],
        is_broken: |asked| {
            asked.headers.contains_key("authorization") || !asked.headers.contains_key("api-key")
        },
    },
    Rule {
        says: "extra inputs are not permitted: stream_options",
        source: "https://github.com/openai/openai-agents-python/issues/442",
        of: &[Mistral],
        is_broken: |asked| has(asked, "stream_options"),
    },
    Rule {
        says: "extra inputs are not permitted: max_completion_tokens",
        source: "https://github.com/editor-code-assistant/eca/issues/231",
        of: &[Mistral],
        is_broken: |asked| has(asked, "max_completion_tokens"),
    },
    Rule {
        says: "extra inputs are not permitted: reasoning_content",
        source: "https://github.com/charmbracelet/crush/issues/1590",
        of: &[Mistral],
        is_broken: |asked| messages(asked).iter().any(|m| m.get("reasoning_content").is_some()),
    },
    Rule {
        says: "tool call id must be a-z, A-Z, 0-9, with a length of 9",
        source: MISTRAL,
        of: &[Mistral],
        is_broken: |asked| {
            let called = calls(asked).into_iter().map(|call| &call["id"]);
            let results = messages(asked).iter().filter(|m| m["role"] == "tool");
            let results = results.map(|m| &m["tool_call_id"]);
            called.chain(results).any(|id| !is_short_id(id))
        },
    },
    Rule {
        says: "unexpected role 'user' after role 'tool'",
        source: MISTRAL,
        of: &[Mistral, Template],
        is_broken: |asked| follows(asked, "tool", "user"),
    },
    Rule {
        says: "unexpected role 'system' after the first messages",
        source: MISTRAL,
        of: &[Mistral, Template],
        is_broken: |asked| {
            let spoken = messages(asked).iter().skip_while(|m| m["role"] == "system");
            spoken.into_iter().any(|m| m["role"] == "system")
        },
    },
    Rule {
        says: "expected last role user or tool",
        source: MISTRAL,
        of: &[Mistral, Template],
        is_broken: |asked| messages(asked).last().is_some_and(|m| m["role"] == "assistant"),
    },
    Rule {
        says: "conversation roles must alternate user/assistant",
        source: TEMPLATES,
        of: &[Template],
        is_broken: |asked| {
            follows(asked, "user", "user")
                || follows(asked, "assistant", "assistant")
                || follows(asked, "system", "system")
                || messages(asked)
                    .iter()
                    .find(|m| m["role"] != "system")
                    .is_some_and(|m| m["role"] != "user")
        },
    },
    Rule {
        says: "the arguments of a call are no JSON object",
        source: "https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/chat_utils.py",
        of: &[Mistral, Template],
        is_broken: |asked| {
            calls(asked).iter().any(|call| {
                let text = call["function"]["arguments"].as_str().unwrap_or_default();
                !serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object())
            })
        },
    },
    Rule {
        says: "the reasoning_content in the thinking mode must be passed back to the API",
        source: "https://api-docs.deepseek.com/guides/thinking_mode",
        of: &[DeepSeek],
        is_broken: |asked| lacks_reasoning(asked),
    },
    Rule {
        says: "thinking is enabled but reasoning_content is missing in assistant tool call message",
        source: "https://platform.moonshot.ai/docs/guide/use-kimi-k2-thinking-model",
        of: &[Kimi],
        is_broken: |asked| lacks_reasoning(asked),
    },
];

/// Members of a request that OpenAI knows and that are of use here.
const OPENAI_KEYS: [&str; 24] = [
    "frequency_penalty",
    "logit_bias",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "metadata",
    "model",
    "parallel_tool_calls",
    "presence_penalty",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning_effort",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "tools",
    "verbosity",
];

/// The first rule of a server that a request breaks.
#[must_use]
pub fn broken(asked: &Asked, strictness: Strictness) -> Option<&'static Rule> {
    let path = asked.path.split('?').next().unwrap_or_default();
    let rules = match path.rsplit('/').next() {
        Some("completions") => CHAT,
        Some("responses") => RESPONSES,
        Some("messages") => MESSAGES,
        Some(_) | None => &[],
    };
    rules.iter().find(|rule| rule.of.contains(&strictness) && (rule.is_broken)(asked))
}

/// The body of a refusal by a rule.
pub(super) fn refusal(rule: &Rule) -> String {
    let message = format!("{} ({})", rule.says, rule.source);
    json!({ "error": { "message": message, "type": "invalid_request_error" } }).to_string()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn messages(asked: &Asked) -> &[Value] {
    list(&asked.body["messages"])
}

fn calls(asked: &Asked) -> Vec<&Value> {
    messages(asked).iter().flat_map(|message| list(&message["tool_calls"])).collect()
}

fn members(body: &Value) -> impl Iterator<Item = &str> {
    body.as_object().into_iter().flat_map(|body| body.keys().map(String::as_str))
}

fn has(asked: &Asked, key: &str) -> bool {
    asked.body.get(key).is_some()
}

fn follows(asked: &Asked, before: &str, after: &str) -> bool {
    messages(asked).windows(2).any(|two| two[0]["role"] == before && two[1]["role"] == after)
}

fn is_function_name(name: &Value) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    name.as_str().is_some_and(|name| (1..=64).contains(&name.len()) && name.bytes().all(good))
}

fn is_short_id(id: &Value) -> bool {
    id.as_str().is_some_and(|id| id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()))
}

fn ids(message: &Value) -> Vec<&str> {
    list(&message["tool_calls"]).iter().filter_map(|call| call["id"].as_str()).collect()
}

/// Tells if each call, whose id is that of no other, is answered once and before anything else.
fn answered_at_once(messages: &[Value]) -> bool {
    messages.iter().enumerate().all(|(place, message)| {
        let wanted = ids(message);
        let results = messages[place + 1..].iter().take_while(|m| m["role"] == "tool");
        let given: Vec<&str> = results.filter_map(|m| m["tool_call_id"].as_str()).collect();
        let (mut sorted, mut unique) = (given, BTreeSet::from_iter(wanted.iter().copied()));
        sorted.retain(|id| unique.remove(id));
        wanted.is_empty() || (unique.is_empty() && sorted.len() == wanted.len())
    })
}

/// Tells if results stand only behind the calls that they answer.
fn only_answers(messages: &[Value]) -> bool {
    let mut open: Vec<&str> = Vec::new();
    messages.iter().all(|message| {
        if message["role"] != "tool" {
            open = ids(message);
            return true;
        }
        let id = message["tool_call_id"].as_str();
        let place = open.iter().position(|call| Some(*call) == id);
        place.map(|place| open.remove(place)).is_some()
    })
}

fn lacks_reasoning(asked: &Asked) -> bool {
    let calling = messages(asked).iter().filter(|m| !list(&m["tool_calls"]).is_empty());
    calling.into_iter().any(|message| !message["reasoning_content"].is_string())
}
