//! Case 56: an agent that does through another one what it may not do itself.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::Event;
use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::status::Status;
use taskrun_journal::tool::ToolOutcome;
use taskrun_tests::{Builder, House, Script};

use super::{code, one_call, output, value};

/// `reader` may only read, and start runs of others that may more.
fn policy(port: u16) -> String {
    let all = format!(
        r#"component = "components/scripted.wasm"
tools = ["workspace/*", "files/*", "fetch/*"]
allow = ["workspace-read: docs/**", "workspace-read: notes/**", "workspace-write: notes/**", "http: GET http://127.0.0.1:{port}/**"]
"#
    );
    format!(
        r#"
[tool.workspace]
component = "components/workspace.wasm"

[tool.files]
component = "components/wasi-files.wasm"

[tool.fetch]
component = "components/fetch.wasm"

[model.parrot]
provider = "echo"

[agent.reader]
component = "components/scripted.wasm"
allow = ["workspace-read: docs/open/**"]
deny = ["workspace-write: **"]
members = ["between", "writer", "talker"]

[agent.between]
{all}members = ["writer"]

[agent.writer]
{all}
[agent.elsewhere]
workspace = "notes"
component = "components/scripted.wasm"
allow = ["workspace-read: **", "workspace-write: **"]
members = ["writer"]

[agent.talker]
component = "components/chat.wasm"
model = "parrot"
"#
    )
}

async fn house(port: u16) -> House {
    Builder::new(&policy(port))
        .file("docs/open/a.md", "open to all")
        .file("docs/closed.md", "not for the reader")
        .file("notes/mine.md", "mine")
        .open()
        .await
}

/// A run that stays until it is canceled, beneath `parent` if there is one.
async fn standing(house: &House, parent: Option<&str>, agent: &str) -> String {
    let mut request = house.request(agent, &Script::new().block().task());
    request.parent_run_id = parent.map(str::to_owned);
    let id = house.spawn(&request).await;
    house.reach(&id, Status::Running).await;
    id
}

fn request(house: &House, parent: Option<&str>, name: &str, args: Value) -> SpawnRequest {
    let mut request = house.request("writer", &one_call(name, args));
    request.parent_run_id = parent.map(str::to_owned);
    request
}

/// The outcome of a call by `writer` beneath `parent`, and the rules that refused in its run.
async fn called(house: &House, request: &SpawnRequest) -> (ToolOutcome, Vec<String>) {
    let id = house.spawn(request).await;
    let run = house.end(&id).await;
    assert_eq!(run.status(), Status::Completed, "the agent lives on: {run:?}");
    let journal = house.journal(&id).await;
    let rules = journal.into_iter().filter_map(|recorded| {
        let Event::PolicyDecision { rule, .. } = recorded.event else { return None };
        Some(rule)
    });
    (output(house, &run).await.outcome, rules.collect())
}

fn written(path: &str) -> Value {
    json!({ "path": path, "contents": "written" })
}

#[tokio::test]
async fn case_56_a_read_only_agent_writes_through_no_other_agent() {
    let house = house(1).await;
    let args = written("notes/new.md");
    let alone = request(&house, None, "workspace/write", args.clone());
    let (outcome, _) = called(&house, &alone).await;
    value(&outcome);
    let new = house.path().join("notes/new.md");
    std::fs::remove_file(&new).expect("it was written");

    let reader = standing(&house, None, "reader").await;
    let between = standing(&house, Some(&reader), "between").await;
    for parent in [&reader, &between] {
        let asked = request(&house, Some(parent), "workspace/write", args.clone());
        let (outcome, rules) = called(&house, &asked).await;
        assert_eq!(code(&outcome), "denied", "{outcome:?}");
        assert!(!rules.is_empty(), "the refusal is in the journal");
        for rule in rules {
            let (who, at) = ("denied by agent reader: \"workspace-write: **\"", "taskrun.toml:");
            assert!(rule.starts_with(who) && rule.contains(at), "{rule}");
        }
    }
    assert!(!new.exists());
}

#[tokio::test]
async fn case_56_what_an_agent_may_not_read_no_other_reads_for_it() {
    let house = house(1).await;
    let reader = standing(&house, None, "reader").await;
    let read = |path| request(&house, Some(&reader), "workspace/read", json!({ "path": path }));
    let (outcome, _) = called(&house, &read("docs/open/a.md")).await;
    assert!(value(&outcome).to_string().contains("open to all"));
    let (outcome, rules) = called(&house, &read("docs/closed.md")).await;
    assert_eq!(code(&outcome), "denied");
    assert!(rules[0].starts_with("denied by agent reader: no rule allows"), "{rules:?}");
    let list = json!({ "path": "", "recursive": true });
    let listed = request(&house, Some(&reader), "workspace/list", list);
    let text = value(&called(&house, &listed).await.0).to_string();
    assert!(text.contains("docs/open/a.md"), "{text}");
    assert!(!text.contains("closed") && !text.contains("notes"), "{text}");
}

#[tokio::test]
async fn case_56_an_agent_without_addresses_reaches_none_through_another() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let came = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&came);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
            let mut stream = stream.expect("a connection");
            let read = stream.read(&mut [0; 4096]).expect("a request");
            assert!(read > 0, "a request");
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi";
            stream.write_all(answer).expect("answered");
        }
    });
    let house = house(port).await;
    let args = json!({ "url": format!("http://127.0.0.1:{port}/a") });
    let alone = request(&house, None, "fetch/get", args.clone());
    assert_eq!(value(&called(&house, &alone).await.0)["body"], json!("hi"));
    let reader = standing(&house, None, "reader").await;
    let between = standing(&house, Some(&reader), "between").await;
    for parent in [&reader, &between] {
        let asked = request(&house, Some(parent), "fetch/get", args.clone());
        let (outcome, rules) = called(&house, &asked).await;
        assert_eq!(code(&outcome), "denied", "{outcome:?}");
        assert!(rules[0].starts_with("denied by agent reader: no rule allows http"), "{rules:?}");
    }
    assert_eq!(came.load(Ordering::SeqCst), 1, "nothing was sent for the reader");
}

#[tokio::test]
async fn case_56_wasi_files_of_a_child_are_those_of_the_folders_that_all_have() {
    let house = house(1).await;
    let reader = standing(&house, None, "reader").await;
    let files = |name: &str, args: Value| request(&house, Some(&reader), name, args);
    let read = |path: &str| files("files/read", json!({ "path": path }));
    let (outcome, _) = called(&house, &read("/docs/open/a.md")).await;
    assert!(value(&outcome).to_string().contains("open to all"));
    for path in ["/docs/closed.md", "/docs/open/../closed.md", "/notes/mine.md"] {
        let (outcome, _) = called(&house, &read(path)).await;
        assert!(matches!(outcome, ToolOutcome::Failure(_)), "{path}: {outcome:?}");
    }
    for path in ["/docs/open/a.md", "/docs/open/new.md", "/notes/mine.md"] {
        let (outcome, _) = called(&house, &files("files/write", written(path))).await;
        assert!(matches!(outcome, ToolOutcome::Failure(_)), "{path}: {outcome:?}");
    }
    let mine = std::fs::read_to_string(house.path().join("notes/mine.md"));
    assert_eq!(mine.expect("still there"), "mine");
    // Beneath one whose workspace is `notes`, the folder `notes` is common, for writing too.
    let elsewhere = standing(&house, None, "elsewhere").await;
    let write = request(&house, Some(&elsewhere), "files/write", written("/notes/mine.md"));
    value(&called(&house, &write).await.0);
    let read = json!({ "path": "/docs/open/a.md" });
    let read = request(&house, Some(&elsewhere), "files/read", read);
    assert!(matches!(called(&house, &read).await.0, ToolOutcome::Failure(_)));
    let mine = std::fs::read_to_string(house.path().join("notes/mine.md"));
    assert_eq!(mine.expect("still there"), "written");
}

#[tokio::test]
async fn case_56_an_agent_without_models_asks_none_through_another() {
    let house = house(1).await;
    let mut asked = house.request("talker", "say it");
    assert_eq!(house.run("talker", "say it").await.state.reply.result().as_deref(), Some("say it"));
    asked.parent_run_id = Some(standing(&house, None, "reader").await);
    let id = house.spawn(&asked).await;
    let run = house.end(&id).await;
    assert_eq!(run.status(), Status::Failed);
    assert_eq!(run.state.progress.total_tokens, 0);
    let denied = house.journal(&id).await.into_iter().any(|recorded| {
        let Event::PolicyDecision { subject, rule, .. } = &recorded.event else { return false };
        subject == "parrot" && rule.starts_with("denied by agent reader: no rule allows model")
    });
    assert!(denied, "the refusal is in the journal");
}

#[tokio::test]
async fn case_56_a_request_takes_tools_and_rules_away() {
    let house = house(1).await;
    let narrow = Narrowing { tools: Some(vec!["workspace/read".into()]), ..Narrowing::default() };
    let mut asked = request(&house, None, "workspace/write", written("notes/new.md"));
    asked.narrow = narrow;
    let (outcome, _) = called(&house, &asked).await;
    assert_eq!(code(&outcome), "tool-unavailable", "{outcome:?}");

    let narrow = Narrowing { deny: vec!["workspace-write: **".into()], ..Narrowing::default() };
    let mut asked = request(&house, None, "workspace/write", written("notes/new.md"));
    asked.narrow = narrow.clone();
    let (outcome, rules) = called(&house, &asked).await;
    assert_eq!(code(&outcome), "denied", "{outcome:?}");
    assert_eq!(rules, ["denied by the request for this run: \"workspace-write: **\""]);
    let mut asked = request(&house, None, "files/write", written("/notes/new.md"));
    asked.narrow = narrow;
    let (outcome, _) = called(&house, &asked).await;
    assert!(matches!(outcome, ToolOutcome::Failure(_)), "{outcome:?}");
    assert!(!house.path().join("notes/new.md").exists());
}

#[tokio::test]
async fn case_56_a_rule_that_is_dear_to_build_is_refused_as_a_fault_of_the_request() {
    let house = house(1).await;
    for pattern in ["{".repeat(300) + &"}".repeat(300), "*".to_owned() + &"a".repeat(500_000)] {
        let deny = vec![format!("workspace-write: {pattern}")];
        let mut asked = house.request("reader", "read");
        asked.narrow = Narrowing { deny, ..Narrowing::default() };
        let refused = house.client().spawn(&asked).await.expect_err("it is refused");
        assert_eq!(refused.code(), "invalid", "{refused:.300}");
    }
}
