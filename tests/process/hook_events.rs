//! The events of which hooks of other systems are told, each as one that a run of this program has.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use taskrun_examples::{BRIEFER, CHAT, NOTES};
use taskrun_tests::provider::{Provider, Reply};
use tokio::runtime::Runtime;

use crate::project::Project;

fn project(provider: &Provider) -> Project {
    let project = Project::new();
    for (name, bytes) in [("chat", CHAT.bytes), ("briefer", BRIEFER.bytes), ("notes", NOTES.bytes)]
    {
        project.write(&format!("components/{name}.wasm"), bytes);
    }
    let policy = format!(
        r#"[model.default]
provider = "anthropic"
model = "m-1"
base_url = "{}"

[prompt.brief]
template = "Answer: {{{{ question }}}}"

[tool.scripted]
component = "components/scripted-tool.wasm"

[tool.notes]
component = "components/notes.wasm"

[tool.workspace]
component = "components/workspace.wasm"

[agent.worker]
component = "components/scripted.wasm"
tools = ["scripted/*"]

[agent.boss]
component = "components/scripted.wasm"
tools = ["scripted/*", "notes/keep", "agent/worker", "workspace/read"]
allow = ["memory: session", "memory-write: session", "workspace-read: docs/**"]
deny = ["workspace-read: docs/private/**", "workspace-write: **"]
ask = ["tool: scripted/change"]

[agent.briefer]
component = "components/briefer.wasm"
allow = ["prompts: *"]

[agent.talker]
component = "components/chat.wasm"
model = "default"
tools = ["scripted/lookup"]
"#,
        provider.base_url()
    );
    project.write("taskrun.toml", policy.as_bytes());
    project
}

/// A model that reasons and calls a tool.
fn reasons_and_calls() -> Reply {
    let delta = |index: u64, delta: Value| json!({ "type": "content_block_delta", "index": index, "delta": delta });
    let call = json!({ "type": "tool_use", "id": "t1", "name": "scripted__lookup", "input": {} });
    Reply::events(&[
        json!({ "type": "message_start", "message": { "model": "m-1", "usage": { "input_tokens": 30 } } }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "thinking" } }),
        delta(0, json!({ "type": "thinking_delta", "thinking": "It will say." })),
        delta(0, json!({ "type": "signature_delta", "signature": "c2lnbmVk" })),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "content_block_start", "index": 1, "content_block": call }),
        delta(1, json!({ "type": "input_json_delta", "partial_json": "{\"result\":" })),
        delta(1, json!({ "type": "input_json_delta", "partial_json": "1}" })),
        json!({ "type": "content_block_stop", "index": 1 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" }, "usage": { "output_tokens": 10 } }),
        json!({ "type": "message_stop" }),
    ])
}

fn answers() -> Reply {
    let text = json!({ "type": "text_delta", "text": "One." });
    Reply::events(&[
        json!({ "type": "message_start", "message": { "model": "m-1", "usage": { "input_tokens": 60 } } }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text" } }),
        json!({ "type": "content_block_delta", "index": 0, "delta": text }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": 5 } }),
        json!({ "type": "message_stop" }),
    ])
}

/// A run that asks for everything, is paused and calls all kinds of tools.
fn asks_and_calls(project: &Project) -> String {
    let call = |id: &str, name: &str, args: Value| json!({ "call": { "id": id, "name": name, "args": args } });
    let fails = json!({ "fail": { "message": "no", "hint": { "reason": "rate-limited" } } });
    let beneath = json!({ "steps": [
        [call("x", "scripted/lookup", json!({})), call("y", "scripted/lookup", json!({}))],
        [{ "reply": "done" }],
    ] });
    let clarification = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let question = json!({ "questions": { "id": "form", "tool-name": "t", "tool-call-id": "q",
        "questions": [{ "id": "colour", "prompt": "Which colour?", "options": [["r", "red"]] }] } });
    let outside = json!({ "external-tools": { "id": "crm",
        "items": [{ "name": "crm/find", "tool-call-id": "o" }] } });
    let script = json!({ "steps": [
        [{ "thought": "first the tools" }, call("fails", "scripted/lookup", fails),
            call("keeps", "notes/keep", json!({ "key": "k", "text": "v" })),
            call("denied", "workspace/read", json!({ "path": "docs/private/x" })),
            call("works", "agent/worker", json!({ "request": beneath.to_string() })),
            call("silent", "agent/worker", json!({ "request": json!({ "ops": ["close"] }).to_string() }))],
        [call("asks", "scripted/change", json!({}))],
        [{ "usage": [1, 2, 3] }, { "plan": { "await": [clarification, question, outside] } }],
        [{ "reply": "all done" }],
    ] });
    let id = project.run(&["run", "boss", &script.to_string(), "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 8, "it asks for consent");
    assert_eq!(project.run(&["pause", &id]).code, 0);
    assert_eq!(project.run(&["resume", &id]).code, 0);
    assert_eq!(project.run(&["answer", &id, "--accept"]).code, 0);
    assert_eq!(project.run(&["wait", &id]).code, 8, "it asks three things");
    for (item, answer) in [("which", "that"), ("form", "colour=r"), ("crm", r#"{"o": 1}"#)] {
        let answered = project.run(&["answer", &id, item, answer]);
        assert_eq!(answered.code, 0, "{answered:?}");
    }
    project.ends_by_itself(&id);
    id
}

/// The events of some runs and of all beneath them, by their kinds.
fn by_kind(project: &Project, ids: &[String]) -> BTreeMap<String, Vec<Value>> {
    let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for id in ids {
        let beneath = project.run(&["get", id, "--calls", "-o", "json"]).json()["children"].clone();
        let beneath = beneath.as_array().cloned().unwrap_or_default();
        let ids = beneath.iter().filter_map(|child| child["id"].as_str());
        for id in std::iter::once(id.as_str()).chain(ids) {
            for event in project.events(id) {
                let kind = event["kind"].as_str().expect("a kind").to_owned();
                all.entry(kind).or_default().push(event);
            }
        }
    }
    all
}

#[test]
fn l_092_each_hook_event_has_one_that_a_run_of_this_program_has() {
    let runtime = Runtime::new().expect("a runtime");
    let provider = runtime.block_on(Provider::start([reasons_and_calls(), answers()]));
    let project = project(&provider);
    let briefed = project.run(&["run", "briefer", "brief why?", "-d"]).id();
    let talked = project.run(&["run", "talker", "How many?", "-d"]).id();
    for id in [&briefed, &talked] {
        let waited = project.run(&["wait", id]);
        assert_eq!(waited.code, 0, "{waited:?}");
    }
    let events = by_kind(&project, &[asks_and_calls(&project), briefed, talked]);
    type Has = fn(&Value) -> bool;
    let any: Has = |_| true;
    let table: [(&str, &str, Has); 24] = [
        ("run_started", "started", any),
        ("run_completed", "finished", any),
        ("run_paused", "pause_requested", any),
        ("run_resumed", "pause_ended", any),
        ("await_clarification", "asked", |event| event["item"]["what"]["kind"] == "clarification"),
        ("await_questions", "asked", |event| event["item"]["what"]["kind"] == "questions"),
        ("await_confirmation", "asked", |event| event["item"]["what"]["kind"] == "confirmation"),
        ("await_external_tools", "asked", |event| {
            event["item"]["what"]["kind"] == "external_tools"
        }),
        ("tool_authorization", "tool_authorization", |event| event["approved"] == true),
        ("tool_call_scheduled", "tool_call_scheduled", any),
        ("tool_call_args_delta", "tool_call_args_delta", any),
        ("tool_result_received", "tool_result", |event| {
            event["output"]["outcome"]["value"].is_string()
        }),
        ("tool_call_updated", "tool_call_updated", |event| event["expected_children_total"] == 2),
        ("planner_note", "planner_note", |event| event["text"] == "first the tools"),
        ("thinking_block", "thinking_block", any),
        ("assistant_message", "assistant_message", any),
        ("retry_hint", "tool_result", |event| {
            event["output"]["outcome"]["failure"]["retry_hint"]["reason"] == "rate_limited"
        }),
        ("memory_appended", "memory_appended", |event| event["key"] == "k"),
        ("policy_decision", "policy_decision", |event| {
            event["rule"].as_str().is_some_and(|rule| rule.contains("docs/private/**"))
        }),
        ("usage", "usage", |event| event["usage"]["total_tokens"] == 3),
        ("hard_protection_triggered", "tool_result", |event| {
            let error = &event["output"]["outcome"]["failure"]["error"];
            error["code"] == "agent-failed" && error["message"].to_string().contains("empty output")
        }),
        ("run_phase_changed", "plan_decided", |event| event["decision"] == "tool_calls"),
        ("child_run_linked", "child_run_linked", |event| event["agent_name"] == "worker"),
        ("prompt_rendered", "prompt_rendered", |event| event["id"] == "brief"),
    ];
    for (hook, kind, has) in table {
        let found = events.get(kind).map(Vec::as_slice).unwrap_or_default();
        assert!(found.iter().any(has), "{hook}: {found:?}");
    }
    // Each wait has its end, and what a run does next is an event of its own.
    for kind in ["blocked", "resumed", "answered", "finalizing"] {
        assert!(events.contains_key(kind), "{kind}: {:?}", events.keys());
    }
}
