//! The rules by which Anthropic's messages refuse requests.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    Asked, ClaudeAdaptive, ClaudeBudget, EVERYWHERE, Rule, has, is_function_name, list, messages,
};

#[path = "messages_schemas.rs"]
mod schemas;

const REQUEST: &str = "https://github.com/anthropics/anthropic-sdk-python/blob/main/src/anthropic/types/message_create_params.py";
const CALLS: &str =
    "https://platform.claude.com/docs/en/agents-and-tools/tool-use/handle-tool-calls";
const THINKING: &str = "https://platform.claude.com/docs/en/build-with-claude/extended-thinking";
const ADAPTIVE: &str = "https://platform.claude.com/docs/en/build-with-claude/adaptive-thinking";
const CACHING: &str = "https://platform.claude.com/docs/en/build-with-claude/prompt-caching";
const EFFORT: &str = "https://platform.claude.com/docs/en/build-with-claude/effort";
const OUTPUTS: &str = "https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations";

/// The least tokens that may be given for reasoning.
const BUDGET_MIN: u64 = 1_024;
/// Most blocks of a request that may be marked for the cache.
const MARKS_MAX: usize = 4;

/// The rules of messages.
pub const MESSAGES: &[Rule] = &[
    Rule {
        says: "max_tokens: Field required",
        source: REQUEST,
        of: EVERYWHERE,
        is_broken: |asked| !asked.body["max_tokens"].is_u64(),
    },
    Rule {
        says: "messages: at least one message is required",
        source: REQUEST,
        of: EVERYWHERE,
        is_broken: |asked| messages(asked).is_empty(),
    },
    Rule {
        says: "messages: unexpected role; allowed are 'user' and 'assistant'",
        source: REQUEST,
        of: EVERYWHERE,
        is_broken: |asked| messages(asked).iter().any(|m| m["role"] != "user" && !is_said(m)),
    },
    Rule {
        says: "messages: all messages must have non-empty content",
        source: "https://github.com/anthropics/claude-code/issues/3196",
        of: EVERYWHERE,
        is_broken: |asked| messages(asked).iter().any(|m| list(&m["content"]).is_empty()),
    },
    Rule {
        says: "messages: text content blocks must contain non-whitespace text",
        source: "https://github.com/anthropics/claude-code/issues/23440",
        of: EVERYWHERE,
        is_broken: |asked| {
            let mut texts = blocks(asked, "text");
            texts.any(|text| text["text"].as_str().is_none_or(|text| text.trim().is_empty()))
        },
    },
    Rule {
        says: "`tool_use` ids were found without `tool_result` blocks immediately after",
        source: CALLS,
        of: EVERYWHERE,
        is_broken: |asked| {
            turns(asked).any(|(before, after)| {
                let given = ids(after, "tool_result", "tool_use_id");
                ids(before, "tool_use", "id").iter().any(|id| !given.contains(id))
            })
        },
    },
    Rule {
        says: "unexpected `tool_use_id` found in `tool_result` blocks",
        source: CALLS,
        of: EVERYWHERE,
        is_broken: |asked| {
            let first = messages(asked).first().map(|first| (&Value::Null, first));
            first.into_iter().chain(turns(asked)).any(|(before, after)| {
                let mut wanted = ids(before, "tool_use", "id");
                ids(after, "tool_result", "tool_use_id").iter().any(|id| {
                    let place = wanted.iter().position(|wanted| wanted == id);
                    place.map(|place| wanted.remove(place)).is_none()
                })
            })
        },
    },
    Rule {
        says: "`tool_use` ids must be unique",
        source: "https://github.com/BerriAI/litellm/issues/23510",
        of: EVERYWHERE,
        is_broken: |asked| {
            let mut seen = BTreeSet::new();
            blocks(asked, "tool_use").any(|call| !seen.insert(call["id"].as_str()))
        },
    },
    Rule {
        says: "tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
        source: "https://github.com/maximhq/bifrost/issues/5097",
        of: EVERYWHERE,
        is_broken: |asked| {
            let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
            let is_good = |id: &str| !id.is_empty() && id.bytes().all(good);
            blocks(asked, "tool_use").any(|call| !call["id"].as_str().is_some_and(is_good))
        },
    },
    Rule {
        says: "tools.name: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'",
        source: CALLS,
        of: EVERYWHERE,
        is_broken: |asked| {
            let offered = list(&asked.body["tools"]).iter().map(|tool| &tool["name"]);
            let called = blocks(asked, "tool_use").map(|call| &call["name"]);
            offered.chain(called).any(|name| !is_function_name(name))
        },
    },
    Rule {
        says: "`tool_result` blocks must come before anything else in the content",
        source: CALLS,
        of: EVERYWHERE,
        is_broken: |asked| {
            let is_result = |block: &Value| block["type"] == "tool_result";
            messages(asked).iter().any(|message| {
                let rest = list(&message["content"]).iter().skip_while(|block| is_result(block));
                rest.into_iter().any(is_result)
            })
        },
    },
    Rule {
        says: "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
        source: THINKING,
        of: EVERYWHERE,
        is_broken: |asked| budget(asked).is_some_and(|budget| budget < BUDGET_MIN),
    },
    Rule {
        says: "`max_tokens` must be greater than `thinking.budget_tokens`",
        source: THINKING,
        of: EVERYWHERE,
        is_broken: |asked| {
            let most = asked.body["max_tokens"].as_u64();
            budget(asked).is_some_and(|budget| most.is_some_and(|most| budget >= most))
        },
    },
    Rule {
        says: "`temperature` may only be set to 1 when thinking is enabled",
        source: THINKING,
        of: EVERYWHERE,
        is_broken: |asked| {
            let kind = &asked.body["thinking"]["type"];
            (kind == "enabled" || kind == "adaptive") && has(asked, "temperature")
        },
    },
    Rule {
        says: "expected `thinking` or `redacted_thinking`, but found another block",
        source: "https://github.com/openai/openai-agents-python/issues/1704",
        of: EVERYWHERE,
        is_broken: |asked| {
            let [.., calling, results] = messages(asked) else { return false };
            let kind = calling["content"][0]["type"].as_str().unwrap_or_default();
            budget(asked).is_some()
                && results["content"][0]["type"] == "tool_result"
                && !matches!(kind, "thinking" | "redacted_thinking")
        },
    },
    Rule {
        says: "Thinking may not be enabled when tool_choice forces tool use.",
        source: THINKING,
        of: EVERYWHERE,
        is_broken: |asked| {
            let thinks = &asked.body["thinking"]["type"];
            let forces = &asked.body["tool_choice"]["type"];
            (thinks == "enabled" || thinks == "adaptive") && (forces == "any" || forces == "tool")
        },
    },
    Rule {
        says: "thinking.signature: Field required",
        source: THINKING,
        of: EVERYWHERE,
        is_broken: |asked| {
            blocks(asked, "thinking").any(|block| {
                block["signature"].as_str().is_none_or(str::is_empty)
                    || !block["thinking"].is_string()
            })
        },
    },
    Rule {
        says: "\"thinking.type.enabled\" is not supported for this model",
        source: "https://github.com/anomalyco/opencode/issues/22863",
        of: &[ClaudeAdaptive],
        is_broken: |asked| budget(asked).is_some(),
    },
    Rule {
        says: "adaptive thinking is not supported on this model",
        source: ADAPTIVE,
        of: &[ClaudeBudget],
        is_broken: |asked| asked.body["thinking"]["type"] == "adaptive",
    },
    Rule {
        says: "this model does not support the effort parameter",
        source: EFFORT,
        of: &[ClaudeBudget],
        is_broken: |asked| asked.body["output_config"].get("effort").is_some(),
    },
    Rule {
        says: "a maximum of 4 blocks with cache_control may be provided",
        source: CACHING,
        of: EVERYWHERE,
        is_broken: |asked| marked(asked).len() > MARKS_MAX,
    },
    Rule {
        says: "cache_control: Extra inputs are not permitted",
        source: CACHING,
        of: EVERYWHERE,
        is_broken: |asked| {
            let kinds = ["thinking", "redacted_thinking"];
            marked(asked).iter().any(|block| kinds.iter().any(|kind| block["type"] == *kind))
        },
    },
    Rule {
        says: "output_config.format.schema: a keyword is not supported",
        source: OUTPUTS,
        of: EVERYWHERE,
        is_broken: schemas::has_unknown_keyword,
    },
    Rule {
        says: "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false",
        source: "https://github.com/ax-llm/ax/issues/458",
        of: EVERYWHERE,
        is_broken: schemas::has_open_object,
    },
    Rule {
        says: "output_config.format.schema: For 'array' type, 'minItems' values other than 0 or 1 are not supported",
        source: OUTPUTS,
        of: EVERYWHERE,
        is_broken: schemas::has_long_list,
    },
    Rule {
        says: "output_config.format.schema: a pattern is not supported",
        source: OUTPUTS,
        of: EVERYWHERE,
        is_broken: schemas::has_complex_pattern,
    },
    Rule {
        says: "output_config.format.schema: complex types within enums are not supported",
        source: OUTPUTS,
        of: EVERYWHERE,
        is_broken: schemas::has_complex_enum,
    },
    Rule {
        says: "output_config.format.schema: a reference leads elsewhere, or back to where it stands",
        source: OUTPUTS,
        of: EVERYWHERE,
        is_broken: schemas::has_endless_reference,
    },
    Rule {
        says: "tools.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level",
        source: "https://github.com/anthropics/claude-code/issues/40075",
        of: EVERYWHERE,
        is_broken: schemas::has_choice_at_the_top_of_a_tool,
    },
];

fn is_said(message: &Value) -> bool {
    message["role"] == "assistant"
}

/// All blocks of a kind, those of the instructions included.
fn blocks<'a>(asked: &'a Asked, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let said = messages(asked).iter().flat_map(|message| list(&message["content"]));
    said.chain(list(&asked.body["system"])).filter(move |block| block["type"] == kind)
}

/// Each message with the one after it; the last one of an assistant with none.
fn turns(asked: &Asked) -> impl Iterator<Item = (&Value, &Value)> {
    let last = messages(asked).last().map(|last| (last, &Value::Null));
    messages(asked).windows(2).map(|two| (&two[0], &two[1])).chain(last)
}

fn ids<'a>(message: &'a Value, kind: &str, key: &str) -> Vec<&'a str> {
    let all = list(&message["content"]).iter().filter(|block| block["type"] == kind);
    all.filter_map(|block| block[key].as_str()).collect()
}

fn budget(asked: &Asked) -> Option<u64> {
    let thinking = &asked.body["thinking"];
    let budget = thinking["budget_tokens"].as_u64();
    (thinking["type"] == "enabled").then_some(budget.unwrap_or_default())
}

/// The parts that are marked for the cache; the request itself is a mark on its last block.
fn marked(asked: &Asked) -> Vec<&Value> {
    let said = messages(asked).iter().flat_map(|message| list(&message["content"]));
    let all = said.chain(list(&asked.body["system"])).chain(list(&asked.body["tools"]));
    let is_marked = |block: &&Value| block.get("cache_control").is_some();
    all.chain([&asked.body]).filter(is_marked).collect()
}
