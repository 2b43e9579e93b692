//! The components of `guest-examples/`, as their toolchains made them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use taskrun::ports::planner::PlanInput;
use taskrun::ports::tool::ToolCall;
use taskrun_engine::AgentGrants;
use taskrun_examples as examples;
use taskrun_journal::event::Event;
use taskrun_journal::message::{Message, Role};
use taskrun_journal::stop::CallAbort;
use wasmparser::{Parser, Payload};

use crate::support::*;

fn calling(function: &str, payload: &str) -> ToolCall {
    ToolCall { name: function.to_owned(), payload: payload.to_owned(), ..call() }
}

fn in_folder(dir: &Path, rules: &str) -> AgentGrants {
    AgentGrants { workspace: dir.to_owned(), ..grants(rules) }
}

const FILES: &str = r#"allow = ["workspace-read: **", "workspace-write: notes/**"]"#;

#[tokio::test]
async fn every_good_example_loads_under_the_grants_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("notes")).unwrap();
    let rules = r#"
        allow = ["workspace-read: **", "workspace-write: notes/**", "http: GET https://a.example/**"]
        deny = ["model: *", "controller: *", "prompts: *", "memory: *", "memory-write: *", "metrics: *"]
    "#;
    let engine = engine();
    for example in examples::ALL {
        let loaded = engine.load(example.bytes.to_vec()).await.unwrap();
        let with = in_folder(dir.path(), rules);
        match example.kind {
            examples::Kind::Agent => drop(engine.agent(&loaded, with).unwrap()),
            examples::Kind::Tool => {
                let tool = engine.tool(&loaded, with).await.unwrap();
                assert!(!tool.specs().is_empty(), "{}", example.name);
            }
            examples::Kind::Policy => {
                let (name, timeout) = ("policy".to_owned(), Duration::from_secs(1));
                drop(engine.policy(&loaded, with, name, timeout).unwrap());
            }
        }
    }
}

/// The bytes of all memories of a component when it starts.
fn memory_at_start(component: &[u8]) -> u64 {
    let mut pages = 0;
    for section in Parser::new(0).parse_all(component) {
        if let Payload::MemorySection(memories) = section.unwrap() {
            pages += memories.into_iter().map(|memory| memory.unwrap().initial).sum::<u64>();
        }
    }
    pages * (64 << 10)
}

/// A memory that grows has its protection changed, in this call and before the next one.
#[tokio::test]
async fn a_call_that_needs_little_memory_does_not_grow_it() {
    let small = |example: examples::Example| {
        limited(|limits| limits.memory_bytes = memory_at_start(example.bytes))
    };
    let engine = engine();
    let loaded = engine.load(examples::COUNTER.bytes.to_vec()).await.unwrap();
    let planner = engine.agent(&loaded, small(examples::COUNTER)).unwrap();
    let message = Message::text(Role::User, "a word ".repeat(146));
    let input = PlanInput { messages: Arc::new(vec![message; 100]), ..plan_input() };
    planner.plan(input, patient()).await.unwrap().unwrap();
    let tool = tool(&engine, examples::WORDS.bytes.to_vec(), small(examples::WORDS)).await.unwrap();
    let counted = ask(&*tool, calling("count", r#"{"text":"two words"}"#), patient()).await;
    assert_eq!(counted.unwrap().unwrap().value, "2");
}

#[tokio::test]
async fn a_call_whose_first_block_is_larger_than_the_first_memory_grows_it() {
    let with = grants("");
    let tool = tool(&engine(), examples::WORDS.bytes.to_vec(), with).await.unwrap();
    let payload = serde_json::json!({ "text": "word ".repeat(80_000) }).to_string();
    let counted = ask(&*tool, calling("count", &payload), patient()).await;
    assert_eq!(counted.unwrap().unwrap().value, "80000");
}

async fn evil(function: &str, payload: &str, with: AgentGrants) -> CallResult {
    let scope = scope_with(|parts| {
        (parts.deadline, parts.rules) =
            (Duration::from_secs(20), taskrun::scope::CurrentRules::fixed(rules(&with)));
    });
    let tool = tool(&engine(), examples::evil::TOOL.bytes.to_vec(), with).await.unwrap();
    ask(&*tool, calling(function, payload), scope).await
}

fn nowhere() -> AgentGrants {
    let rules = r#"deny = ["workspace-read: **", "workspace-write: **"]"#;
    in_folder(&std::env::temp_dir(), rules)
}

#[tokio::test]
async fn evil_functions_end_with_their_reasons() {
    let limit = |what: &str, limit| CallAbort::Limit { what: what.to_owned(), limit };
    let memory = CallAbort::Memory { limit_bytes: 64 << 20 };
    let cases = [
        ("grow", "{}", memory),
        ("overflow", "{}", CallAbort::Stack),
        ("big_result", r#"{"mib":20}"#, limit("result bytes", 1 << 20)),
        ("alias_result", "{}", limit("result bytes", 1 << 20)),
        ("panic", "{}", CallAbort::Trap { code: "unreachable".to_owned() }),
        ("slow_host_calls", r#"{"count":100001}"#, limit("host calls", 100_000)),
        ("log_flood", "{}", limit("host calls", 100_000)),
    ];
    for (function, payload, expected) in cases {
        assert_eq!(evil(function, payload, nowhere()).await.unwrap_err(), expected, "{function}");
    }
    let lie = evil("lie", "{}", nowhere()).await.unwrap_err();
    assert!(matches!(lie, CallAbort::Contract { .. }), "{lie:?}");
}

#[tokio::test]
async fn paths_lead_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir_all(root.join("notes")).unwrap();
    std::fs::write(dir.path().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(dir.path(), root.join("up")).unwrap();
    let long = format!("{}x", "a/".repeat(2_048));
    let paths = [
        "..",
        "../secret",
        "notes/../../secret",
        "/etc/passwd",
        "//etc/passwd",
        "up",
        "up/secret",
        "notes//x",
        "./notes",
        "/proc/self/environ",
        "notes\\..\\..\\secret",
        "a\u{0}b",
        long.as_str(),
        "/dev/zero",
    ];
    let payload = serde_json::json!({ "paths": paths }).to_string();
    for function in ["escape_paths", "write_paths"] {
        let value = evil(
            function,
            &payload,
            in_folder(&root, r#"allow = ["workspace-read: **", "workspace-write: **"]"#),
        )
        .await
        .unwrap()
        .unwrap()
        .value;
        assert!(!value.contains("\"secret\"") && !value.contains("root:"), "{value}");
        let outcomes: Vec<serde_json::Map<String, serde_json::Value>> =
            serde_json::from_str(&value).unwrap();
        for outcome in outcomes {
            for (key, result) in &outcome {
                // To look at a link itself is allowed.
                let is_look = key == "stat" && outcome["path"] == "up";
                assert!(result != "ok" || is_look, "{function}: {key} of {}", outcome["path"]);
            }
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}

async fn wasi(dir: &Path, rules: &str, attempts: serde_json::Value) -> (String, Vec<Event>) {
    let with = in_folder(dir, rules);
    let scope = patient_under(&with);
    let tool = tool(&engine(), examples::evil::WASI.bytes.to_vec(), with).await.unwrap();
    let payload = serde_json::json!({ "attempts": attempts }).to_string();
    let result = ask(&*tool, calling("attempt", &payload), scope.clone()).await;
    let text = match result {
        Ok(answer) => answer.unwrap().value,
        Err(failure) => format!("{failure}"),
    };
    (text, scope.finish().events)
}

#[tokio::test]
async fn wasi_shows_an_empty_world() {
    let dir = tempfile::tempdir().unwrap();
    let attempts = serde_json::json!([
        {"op": "environment"}, {"op": "arguments"}, {"op": "read", "path": "/etc/passwd"},
        {"op": "list", "path": "/"}, {"op": "print", "path": "to the log"},
    ]);
    let (text, events) = wasi(dir.path(), "", attempts).await;
    let outcomes: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(outcomes[0]["ok"], "");
    assert_eq!(outcomes[1]["ok"], "");
    assert!(outcomes[2]["ok"].is_null() && outcomes[3]["ok"].is_null(), "{text}");
    let lines: Vec<&str> = events
        .iter()
        .filter_map(|event| {
            let Event::Log { message, .. } = event else { return None };
            Some(message.as_str())
        })
        .collect();
    assert_eq!(lines, ["to the log", "to the log"]);
}

#[tokio::test]
async fn calls_of_wasi_are_counted_too() {
    let mut with = grants("");
    with.limits.host_calls = 50;
    let tool = tool(&engine(), examples::evil::WASI.bytes.to_vec(), with).await.unwrap();
    let attempts = vec![serde_json::json!({"op": "print", "path": "x"}); 1_000];
    let payload = serde_json::json!({ "attempts": attempts }).to_string();
    let failure = tool.call(calling("attempt", &payload), patient()).await.unwrap_err();
    assert_eq!(failure, CallAbort::Limit { what: "host calls".to_owned(), limit: 50 });
}

#[tokio::test]
async fn exit_ends_the_call() {
    let dir = tempfile::tempdir().unwrap();
    let (text, _) = wasi(dir.path(), "", serde_json::json!([{"op": "exit"}])).await;
    assert!(text.contains("exit with status"), "{text}");
}

#[tokio::test]
async fn wasi_files_are_those_of_the_rules() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    for folder in ["docs", "notes", "other"] {
        std::fs::create_dir_all(root.join(folder)).unwrap();
        std::fs::write(root.join(folder).join("a"), folder).unwrap();
    }
    std::fs::write(dir.path().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(dir.path().join("secret"), root.join("docs/link")).unwrap();
    let rules = r#"allow = ["workspace-read: docs/**", "workspace-read: notes/**", "workspace-write: notes/**"]"#;
    let attempts = serde_json::json!([
        {"op": "read", "path": "/docs/a"},
        {"op": "write", "path": "/notes/b"},
        {"op": "read", "path": "/other/a"},
        {"op": "read", "path": "/docs/link"},
        {"op": "read", "path": "/docs/../../secret"},
        {"op": "write", "path": "/docs/b"},
        {"op": "truncate", "path": "/docs/a"},
        {"op": "append", "path": "/docs/a"},
        {"op": "remove", "path": "/docs/a"},
        {"op": "create-directory", "path": "/docs/new"},
        {"op": "rename", "path": "/docs/a", "to": "/notes/a2"},
        {"op": "rename", "path": "/notes/a", "to": "/docs/a2"},
        {"op": "hard-link", "path": "/notes/a", "to": "/docs/a3"},
        {"op": "hard-link", "path": "/docs/a", "to": "/notes/a3"},
    ]);
    let (text, _) = wasi(&root, rules, attempts).await;
    let outcomes: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(outcomes[0]["ok"], "docs", "{text}");
    assert_eq!(outcomes[1]["ok"], "done", "{text}");
    for outcome in &outcomes[2..] {
        assert!(outcome["ok"].is_null(), "{outcome}");
    }
    assert_eq!(std::fs::read(root.join("docs/a")).unwrap(), b"docs");
    assert_eq!(std::fs::read_dir(root.join("docs")).unwrap().count(), 2);
    assert!(root.join("notes/b").exists());
}

#[tokio::test]
async fn a_preopened_folder_that_is_a_link_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir_all(&root).unwrap();
    std::fs::create_dir(dir.path().join("outside")).unwrap();
    std::fs::write(dir.path().join("outside/a"), "secret").unwrap();
    std::os::unix::fs::symlink(dir.path().join("outside"), root.join("docs")).unwrap();
    let attempts =
        serde_json::json!([{"op": "read", "path": "/docs/a"}, {"op": "list", "path": "/docs"}]);
    let (text, _) = wasi(&root, r#"allow = ["workspace-read: docs/**"]"#, attempts).await;
    assert!(!text.contains("secret"), "{text}");
}

#[tokio::test]
async fn the_workspace_tool_works_within_its_rules() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("notes")).unwrap();
    std::fs::write(dir.path().join("a.txt"), "hello").unwrap();
    let with = in_folder(dir.path(), FILES);
    let tool = tool(&engine(), examples::WORKSPACE.bytes.to_vec(), with.clone()).await.unwrap();
    let read = calling("read", r#"{"path":"a.txt"}"#);
    let answer = ask(&*tool, read, patient_under(&with)).await.unwrap();
    assert!(answer.as_ref().is_ok_and(|value| value.value.contains("hello")), "{answer:?}");
    let scope = patient_under(&with);
    let refused = tool
        .call(calling("write", r#"{"path":"a.txt","contents":"x"}"#), scope.clone())
        .await
        .unwrap();
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(std::fs::read(dir.path().join("a.txt")).unwrap(), b"hello");
    assert_eq!(decisions(&scope).len(), 1);
}

#[tokio::test]
async fn the_ledger_counts_each_note_and_keeps_one_file_for_each_put() {
    let dir = tempfile::tempdir().unwrap();
    let rules = r#"allow = ["workspace-write: ledger.txt", "workspace-write: put/**"]"#;
    let ledger = examples::LEDGER.bytes.to_vec();
    let with = in_folder(dir.path(), rules);
    let tool = tool(&engine(), ledger, with.clone()).await.unwrap();
    let repeatable: Vec<(&str, bool)> =
        tool.specs().iter().map(|spec| (spec.name.as_str(), spec.hints.idempotent)).collect();
    assert_eq!(repeatable, [("note", false), ("put", true)]);
    for function in ["note", "put"] {
        for _ in 0..2 {
            let call = calling(function, r#"{"text":"said"}"#);
            ask(&*tool, call, patient_under(&with)).await.unwrap().unwrap();
        }
    }
    let id = call().tool_call_id;
    let notes = std::fs::read_to_string(dir.path().join("ledger.txt")).unwrap();
    assert_eq!(notes, format!("{id} said\n{id} said\n"));
    let kept = std::fs::read_to_string(dir.path().join("put").join(id)).unwrap();
    assert_eq!(kept, "said");
}
