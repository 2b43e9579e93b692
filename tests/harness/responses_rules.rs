//! The rules by which Responses refuse requests.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::responses::sealed;
use super::{
    Asked, EVERYWHERE, OpenAi, OpenAiWithoutReasoning, Rule, has, is_function_name, list, members,
};

const REFERENCE: &str = "https://platform.openai.com/docs/api-reference/responses/create";
const REQUEST: &str = "https://github.com/openai/openai-python/blob/main/src/openai/types/responses/response_create_params.py";
const ITEMS: &str = "https://github.com/openai/openai-python/blob/main/src/openai/types/responses/response_input_item_param.py";

/// Members of a request that are known and of use here.
const REQUEST_KEYS: [&str; 21] = [
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
    "truncation",
];
/// Longest id of a call.
const CALL_ID_BYTES_MAX: usize = 64;

/// The rules of Responses.
pub const RESPONSES: &[Rule] = &[
    Rule {
        says: "unknown parameter",
        source: REQUEST,
        of: EVERYWHERE,
        is_broken: |asked| members(&asked.body).any(|key| !REQUEST_KEYS.contains(&key)),
    },
    Rule {
        says: "one of 'input', 'previous_response_id', 'prompt' or 'conversation' must be provided",
        source: REFERENCE,
        of: EVERYWHERE,
        is_broken: |asked| items(asked).is_empty(),
    },
    Rule {
        says: "invalid value of 'type'; supported are 'message', 'reasoning', 'function_call' and others",
        source: ITEMS,
        of: EVERYWHERE,
        is_broken: |asked| items(asked).iter().any(|item| known_members(item).is_none()),
    },
    Rule {
        says: "invalid value: 'tool'. Supported values are: 'assistant', 'system', 'developer', and 'user'",
        source: "https://github.com/anomalyco/opencode/issues/10803",
        of: EVERYWHERE,
        is_broken: |asked| {
            let known = ["assistant", "system", "developer", "user"];
            let mut roles = of_type(asked, "message").map(|item| item["role"].as_str());
            roles.any(|role| !role.is_some_and(|role| known.contains(&role)))
        },
    },
    Rule {
        says: "unknown parameter of an item",
        source: ITEMS,
        of: EVERYWHERE,
        is_broken: |asked| {
            items(asked).iter().any(|item| {
                let known = known_members(item).unwrap_or_default();
                members(item).any(|key| !known.contains(&key))
            })
        },
    },
    Rule {
        says: "invalid type of a member of an item: it is null",
        source: ITEMS,
        of: EVERYWHERE,
        is_broken: |asked| {
            let all = items(asked).iter().filter_map(Value::as_object);
            all.flat_map(|item| item.values()).any(Value::is_null)
        },
    },
    Rule {
        says: "invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'",
        source: "https://github.com/tinyhumansai/openhuman/issues/3624",
        of: EVERYWHERE,
        is_broken: |asked| {
            of_type(asked, "message").any(|item| {
                let known: &[&str] = match item["role"].as_str() {
                    Some("assistant") => &["output_text", "refusal"],
                    Some(_) | None => &["input_text", "input_image", "input_file"],
                };
                let mut kinds = list(&item["content"]).iter().map(|part| part["type"].as_str());
                kinds.any(|kind| !kind.is_some_and(|kind| known.contains(&kind)))
            })
        },
    },
    Rule {
        says: "'phase' is 'commentary' or 'final_answer', and of an assistant",
        source: "https://github.com/openai/openai-agents-js/pull/1513",
        of: EVERYWHERE,
        is_broken: |asked| {
            let mut phased = of_type(asked, "message").filter(|item| item.get("phase").is_some());
            phased.any(|item| {
                let known = ["commentary", "final_answer"];
                item["role"] != "assistant" || !known.iter().any(|word| item["phase"] == *word)
            })
        },
    },
    Rule {
        says: "invalid 'tools.name': it does not match '^[a-zA-Z0-9_-]+$'",
        source: REFERENCE,
        of: EVERYWHERE,
        is_broken: |asked| {
            let offered = list(&asked.body["tools"]).iter().chain(of_type(asked, "function_call"));
            offered.map(|named| &named["name"]).any(|name| !is_function_name(name))
        },
    },
    Rule {
        says: "invalid schema: 'additionalProperties' is required to be supplied and to be false",
        source: "https://platform.openai.com/docs/guides/structured-outputs#supported-schemas",
        of: EVERYWHERE,
        is_broken: |asked| {
            let format = &asked.body["text"]["format"];
            let tools = list(&asked.body["tools"]).iter().map(|tool| (tool, "parameters"));
            let answer = format.is_object().then_some((format, "schema"));
            // Without a word on it, a tool is made strict.
            tools
                .chain(answer)
                .any(|(of, key)| of["strict"] != false && of[key]["additionalProperties"] != false)
        },
    },
    Rule {
        says: "invalid type of 'arguments': expected a string",
        source: ITEMS,
        of: EVERYWHERE,
        is_broken: |asked| {
            let mut arguments = of_type(asked, "function_call").map(|call| &call["arguments"]);
            arguments.any(|arguments| !arguments.is_string())
        },
    },
    Rule {
        says: "invalid type of 'output': expected a string or a list",
        source: ITEMS,
        of: EVERYWHERE,
        is_broken: |asked| {
            let mut outputs = of_type(asked, "function_call_output").map(|item| &item["output"]);
            outputs.any(|output| !output.is_string() && !output.is_array())
        },
    },
    Rule {
        says: "invalid 'call_id': string too long. Expected a string with maximum length 64",
        source: "https://github.com/decolua/9router/issues/393",
        of: EVERYWHERE,
        is_broken: |asked| {
            let mut ids = items(asked).iter().filter_map(|item| item["call_id"].as_str());
            ids.any(|id| id.len() > CALL_ID_BYTES_MAX)
        },
    },
    Rule {
        says: "no tool output found for function call",
        source: "https://github.com/openai/openai-agents-python/issues/673",
        of: EVERYWHERE,
        is_broken: |asked| {
            let answered = ids(asked, "function_call_output");
            ids(asked, "function_call").iter().any(|id| !answered.contains(id))
        },
    },
    Rule {
        says: "no tool call found for function call output",
        source: "https://github.com/continuedev/continue/issues/10092",
        of: EVERYWHERE,
        is_broken: |asked| {
            let mut called = BTreeSet::new();
            items(asked).iter().any(|item| {
                let id = item["call_id"].as_str();
                match item["type"].as_str() {
                    // Two calls of the same id have one output.
                    Some("function_call") => !called.insert(id),
                    Some("function_call_output") => !called.remove(&id),
                    Some(_) | None => false,
                }
            })
        },
    },
    Rule {
        says: "item not found. Items are not persisted when `store` is set to false",
        source: "https://github.com/vercel/ai/issues/7543",
        of: EVERYWHERE,
        is_broken: |asked| {
            let mut reasoned = of_type(asked, "reasoning");
            asked.body["store"] == false
                && reasoned.any(|item| !item["encrypted_content"].is_string())
        },
    },
    Rule {
        says: "the encrypted content could not be verified",
        source: "https://github.com/openai/codex/issues/8145",
        of: EVERYWHERE,
        is_broken: |asked| {
            of_type(asked, "reasoning").any(|item| {
                let content = item["encrypted_content"].as_str();
                content.is_some_and(|content| {
                    item["id"].as_str().is_none_or(|id| sealed(id) != content)
                })
            })
        },
    },
    Rule {
        says: "item of type 'reasoning' was provided without its required following item",
        source: "https://github.com/vercel/ai/issues/7099",
        of: EVERYWHERE,
        is_broken: |asked| {
            let all = items(asked);
            let follows = |place: usize| {
                let mut after = all[place + 1..].iter().filter(|item| item["type"] != "reasoning");
                after.next().is_some_and(|item| {
                    item["type"] == "function_call" || item["role"] == "assistant"
                })
            };
            (0..all.len()).any(|place| all[place]["type"] == "reasoning" && !follows(place))
        },
    },
    Rule {
        says: "item was provided without its required 'reasoning' item",
        source: "https://github.com/openai/openai-dotnet/issues/1050",
        of: &[OpenAi],
        is_broken: |asked| {
            // The provider knows an item of its own by its id.
            let is_own = |item: &Value| item["type"] != "reasoning" && item["id"].is_string();
            let mut after_reasoning = false;
            items(asked).iter().any(|item| {
                let of_model = item["type"] == "function_call" || item["role"] == "assistant";
                after_reasoning = item["type"] == "reasoning" || (of_model && after_reasoning);
                is_own(item) && !after_reasoning
            })
        },
    },
    Rule {
        says: "invalid 'id': expected an ID that begins with 'fc', 'rs' or 'msg'",
        source: "https://github.com/continuedev/continue/pull/11785",
        of: EVERYWHERE,
        is_broken: |asked| {
            items(asked).iter().any(|item| {
                let prefix = match item["type"].as_str() {
                    Some("function_call") => "fc",
                    Some("reasoning") => "rs",
                    Some(_) | None => "msg",
                };
                item["id"].as_str().is_some_and(|id| !id.starts_with(prefix))
            })
        },
    },
    Rule {
        says: "encrypted content is not supported with this model",
        source: "https://github.com/pydantic/pydantic-ai/issues/2865",
        of: &[OpenAiWithoutReasoning],
        is_broken: |asked| {
            list(&asked.body["include"]).iter().any(|word| *word == "reasoning.encrypted_content")
        },
    },
    Rule {
        says: "unsupported parameter: 'reasoning.effort' is not supported with this model",
        source: "https://github.com/BoundaryML/baml/pull/2708",
        of: &[OpenAiWithoutReasoning],
        is_broken: |asked| has(asked, "reasoning"),
    },
    Rule {
        says: "unsupported parameter: 'temperature' is not supported with this model",
        source: "https://github.com/OpenHands/software-agent-sdk/issues/1837",
        of: &[OpenAi],
        is_broken: |asked| has(asked, "temperature"),
    },
    Rule {
        says: "invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16",
        source: "https://github.com/earendil-works/pi/issues/6265",
        of: EVERYWHERE,
        is_broken: |asked| asked.body["max_output_tokens"].as_u64().is_some_and(|max| max < 16),
    },
];

fn items(asked: &Asked) -> &[Value] {
    list(&asked.body["input"])
}

fn of_type<'a>(asked: &'a Asked, kind: &'static str) -> impl Iterator<Item = &'a Value> {
    items(asked).iter().filter(move |item| item["type"] == kind)
}

fn ids<'a>(asked: &'a Asked, kind: &'static str) -> Vec<&'a str> {
    of_type(asked, kind).filter_map(|item| item["call_id"].as_str()).collect()
}

/// The members that an item of its type may have; `None` for a type that is not known here.
fn known_members(item: &Value) -> Option<&'static [&'static str]> {
    match item["type"].as_str() {
        Some("message") => Some(&["type", "id", "role", "content", "status", "phase"]),
        Some("reasoning") => {
            Some(&["type", "id", "summary", "content", "encrypted_content", "status"])
        }
        Some("function_call") => {
            Some(&["type", "id", "call_id", "name", "arguments", "status", "namespace"])
        }
        Some("function_call_output") => Some(&["type", "id", "call_id", "output", "status"]),
        Some(_) | None => None,
    }
}
