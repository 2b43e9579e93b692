//! Cases 29, 30 and 31 through `wasi:filesystem`, and what else WASI must not tell.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use taskrun_journal::event::Event;
use taskrun_tests::{Builder, House};

use super::{call, one_call, value};

const POLICY: &str = r#"
[tool.evil]
component = "components/evil-wasi.wasm"

[tool.files]
component = "components/wasi-files.wasm"

[tool.honest]
component = "components/scripted-tool.wasm"

[agent.victim]
component = "components/scripted.wasm"
tools = ["evil/*", "files/*", "honest/*"]
allow = ["workspace-read: docs/**", "workspace-read: notes/**", "workspace-write: notes/**"]

[agent.blind]
component = "components/scripted.wasm"
tools = ["evil/*"]
"#;

const SECRET: &str = "the secret";

async fn house() -> House {
    let house = Builder::new(POLICY)
        .file("docs/open.md", "open to read")
        .file("notes/mine.md", "mine")
        .file("private/secret.txt", SECRET)
        .open()
        .await;
    let root = house.path();
    symlink("../private/secret.txt", root.join("docs/link-inside")).expect("a link");
    symlink("/etc/passwd", root.join("docs/link-outside")).expect("a link");
    symlink("/proc/self/environ", root.join("notes/environ")).expect("a link");
    house
}

async fn attempts(house: &House, attempts: &[Value]) -> Vec<Value> {
    let outcome = call(house, "evil/attempt", json!({ "attempts": attempts })).await;
    value(&outcome).as_array().expect("a list").clone()
}

#[tokio::test]
async fn case_31_a_read_only_preopen_refuses_every_change() {
    let house = house().await;
    let tried = [
        json!({ "op": "truncate", "path": "/docs/open.md" }),
        json!({ "op": "write", "path": "/docs/open.md" }),
        json!({ "op": "append", "path": "/docs/open.md" }),
        json!({ "op": "write", "path": "/docs/new.md" }),
        json!({ "op": "create-directory", "path": "/docs/new" }),
        json!({ "op": "remove", "path": "/docs/open.md" }),
        json!({ "op": "rename", "path": "/docs/open.md", "to": "/docs/other.md" }),
        json!({ "op": "rename", "path": "/notes/mine.md", "to": "/docs/mine.md" }),
        json!({ "op": "rename", "path": "/docs/open.md", "to": "/notes/open.md" }),
        json!({ "op": "hard-link", "path": "/notes/mine.md", "to": "/docs/mine.md" }),
        json!({ "op": "hard-link", "path": "/docs/open.md", "to": "/notes/open.md" }),
        json!({ "op": "copy", "path": "/notes/mine.md", "to": "/docs/mine.md" }),
    ];
    let outcomes = attempts(&house, &tried).await;
    for (tried, outcome) in tried.iter().zip(&outcomes) {
        assert!(outcome["ok"].is_null(), "{tried}: {outcome}");
    }
    let open = house.path().join("docs/open.md");
    assert_eq!(std::fs::read_to_string(open).expect("still there"), "open to read");
    let docs = std::fs::read_dir(house.path().join("docs")).expect("a folder").count();
    assert_eq!(docs, 3, "the file and the two links");
    let notes = std::fs::read_dir(house.path().join("notes")).expect("a folder").count();
    assert_eq!(notes, 2, "the file and the link");
}

/// The refusals of a capability that the journal of a run has which tries this: each thing with why.
async fn refusals(house: &House, capability: &str, tried: Value) -> Vec<(String, String)> {
    let run = house.run("victim", &one_call("evil/attempt", json!({ "attempts": tried }))).await;
    let journal = house.journal(run.id().as_str()).await;
    let refused = journal.into_iter().filter_map(|recorded| {
        let Event::PolicyDecision { capability: of, subject, rule, .. } = recorded.event else {
            return None;
        };
        (of == capability).then_some((subject, rule))
    });
    refused.collect()
}

#[tokio::test]
async fn case_31_each_change_that_a_read_only_preopen_refuses_is_in_the_journal_once() {
    let house = house().await;
    let tried = json!([
        { "op": "write", "path": "/docs/open.md" },
        { "op": "truncate", "path": "/docs/open.md" },
        { "op": "remove", "path": "/docs/open.md" },
        { "op": "create-directory", "path": "/docs/new" },
        { "op": "rename", "path": "/notes/mine.md", "to": "/docs/moved.md" },
        { "op": "hard-link", "path": "/notes/mine.md", "to": "/docs/linked.md" },
        { "op": "write", "path": "/notes/mine.md" },
    ]);
    let refused = refusals(&house, "workspace-write", tried).await;
    let subjects: Vec<&str> = refused.iter().map(|(subject, _)| subject.as_str()).collect();
    assert_eq!(subjects, ["docs/open.md", "docs/new", "docs/moved.md", "docs/linked.md"]);
    for (subject, rule) in &refused {
        assert!(rule.contains("no rule allows workspace-write"), "{subject}: {rule}");
        assert!(rule.contains("taskrun.toml:"), "{subject}: {rule}");
    }
    let outside = ["/docs/../private/secret.txt", "/docs/link-inside", "/docs/link-outside"];
    let tried: Vec<_> =
        outside.iter().chain(&outside).map(|path| json!({ "op": "read", "path": path })).collect();
    let refused = refusals(&house, "workspace-read", json!(tried)).await;
    let subjects: Vec<String> = refused.iter().map(|(subject, _)| format!("/{subject}")).collect();
    assert_eq!(subjects, outside);
    assert!(refused.iter().all(|(_, why)| why.contains("leads out")), "{refused:?}");
}

#[tokio::test]
async fn cases_29_and_30_wasi_paths_do_not_lead_out() {
    let house = house().await;
    let paths = [
        "../private/secret.txt",
        "/docs/../private/secret.txt",
        "/docs/../../../../../../../etc/passwd",
        "/private/secret.txt",
        "/etc/passwd",
        "/docs/link-inside",
        "/docs/link-outside",
        "/notes/environ",
        "/proc/self/environ",
        "/taskrun.toml",
    ];
    for op in ["read", "write", "truncate"] {
        let tried: Vec<_> = paths.iter().map(|path| json!({ "op": op, "path": path })).collect();
        for outcome in attempts(&house, &tried).await {
            assert!(outcome["ok"].is_null(), "{op}: {outcome}");
            assert!(!outcome.to_string().contains(SECRET), "{outcome}");
        }
    }
    let secret = house.path().join("private/secret.txt");
    assert_eq!(std::fs::read_to_string(secret).expect("still there"), SECRET);
}

#[tokio::test]
async fn wasi_tells_nothing_of_the_host_and_existing_code_works_in_its_folders() {
    let house = house().await;
    let tried = [json!({ "op": "environment" }), json!({ "op": "arguments" })];
    for outcome in attempts(&house, &tried).await {
        assert_eq!(outcome["ok"], json!(""), "{outcome}");
    }
    let read = call(&house, "files/read", json!({ "path": "/docs/open.md" })).await;
    assert!(value(&read).to_string().contains("open to read"), "{read:?}");
    let args = json!({ "path": "/notes/new.md", "contents": "from wasi" });
    value(&call(&house, "files/write", args).await);
    let written = std::fs::read_to_string(house.path().join("notes/new.md"));
    assert_eq!(written.expect("written"), "from wasi");
}

#[tokio::test]
async fn without_rules_wasi_has_no_folders_at_all() {
    let house = house().await;
    let tried = json!({ "attempts": [
        { "op": "list", "path": "/" },
        { "op": "list", "path": "." },
        { "op": "read", "path": "/docs/open.md" },
    ] });
    let run = house.run("blind", &one_call("evil/attempt", tried)).await;
    for outcome in value(&super::output(&house, &run).await.outcome).as_array().expect("a list") {
        assert!(outcome["ok"].is_null(), "{outcome}");
    }
}
