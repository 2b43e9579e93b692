//! The host's own files in a workspace whose rules allow everything.

use std::path::Path;

use taskrun_engine::{EngineOptions, LoadError};

use taskrun_examples as examples;

use crate::support::*;

const IMPORTS: &str = r#"
    (import "taskrun:plugin/workspace-read@0.1.0" "read" (func $read (param i32 i32 i64 i32 i32)))
    (import "taskrun:plugin/workspace-write@0.1.0" "write" (func $write (param i32 i32 i32 i32 i32 i32)))
"#;
const ALL: &str = r#"allow = ["workspace-read: **", "workspace-write: **"]"#;

/// A workspace with a data directory in it, and an engine that this is the data directory of.
fn house() -> (tempfile::TempDir, EngineOptions) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("data")).unwrap();
    std::fs::create_dir_all(dir.path().join("notes")).unwrap();
    std::fs::write(dir.path().join("data/k"), "key").unwrap();
    let protected = vec![dir.path().join("data")];
    (dir, EngineOptions { protected, ..EngineOptions::default() })
}

/// Calls a function of files with `data/k` and gives its refusal back.
async fn refusal(code: &str, dir: &Path, options: EngineOptions) -> (String, usize) {
    let code = format!(
        r#"{code}
        (if (i32.eqz (i32.load8_u (i32.const 5120))) (then unreachable))
        (if (i32.load8_u (i32.const 5124)) (then unreachable))
        (call $fail (i32.load (i32.const 5128)) (i32.load (i32.const 5132))))
        (data (i32.const 3000) "data/k") (func"#
    );
    let mut with = grants(ALL);
    with.workspace = dir.to_owned();
    let scope = patient_under(&with);
    let tool = tool(&engine_with(options), tool_bytes(IMPORTS, &code), with).await.unwrap();
    let result = failure(ask(&*tool, call(), scope.clone()).await);
    (result, decisions(&scope).len())
}

#[tokio::test]
async fn they_are_neither_read_nor_written() {
    let (dir, options) = house();
    let read =
        "(call $read (i32.const 3000) (i32.const 6) (i64.const 0) (i32.const 9) (i32.const 5120))";
    let refused = refusal(read, dir.path(), options.clone()).await;
    assert_eq!(refused, ("the host's own files".to_owned(), 1));
    let write = "(call $write (i32.const 3000) (i32.const 6) (i32.const 3000) (i32.const 6) (i32.const 1) (i32.const 5120))";
    let refused = refusal(write, dir.path(), options).await;
    assert_eq!(refused, ("the host's own files".to_owned(), 1));
    assert_eq!(std::fs::read(dir.path().join("data/k")).unwrap(), b"key");
}

#[tokio::test]
async fn wasi_gets_no_folder_with_them_in_it() {
    let text = r#"(component
        (import "wasi:filesystem/types@0.2.0" (instance (export "descriptor" (type (sub resource)))))
        (instance $tools)
        (export "taskrun:plugin/tools@0.1.0" (instance $tools)))"#;
    let bytes = wat::parse_str(text).unwrap();
    let (dir, options) = house();
    let engine = engine_with(options);
    for (rules, exposed) in [("**", true), ("data/**", true), ("notes/**", false)] {
        let mut with = grants(&format!(r#"allow = ["workspace-read: {rules}"]"#));
        with.workspace = dir.path().to_owned();
        let error = tool(&engine, bytes.clone(), with).await.err().unwrap();
        assert_eq!(matches!(error, LoadError::Exposed { .. }), exposed, "{rules}: {error}");
    }
    let mut with = grants(ALL);
    with.workspace = dir.path().join("data");
    let error = tool(&engine, tool_bytes(IMPORTS, OK), with).await.err().unwrap();
    assert!(error.to_string().contains("grant it a folder beside that"), "{error}");
}

#[test]
fn a_workspace_without_a_path_is_called_that() {
    let told = |folder: &str| {
        let (folder, file) = (folder.into(), ".taskrun".into());
        LoadError::Exposed { folder, file }.to_string()
    };
    assert!(told("").contains("own, through the workspace; grant"), "{}", told(""));
    assert!(told("docs").contains("own, through the folder docs; grant"), "{}", told("docs"));
}

#[tokio::test]
async fn a_policys_files_are_among_them() {
    let (dir, options) = house();
    let text = "[agent.tester]\ncomponent = \"data/k\"";
    let path = dir.path().join("taskrun.toml");
    let policy = taskrun_policy::Policy::parse(text, &path).unwrap();
    let engine = engine_with(EngineOptions { protected: Vec::new(), ..options });
    // It is no component, which is noticed after its path was.
    assert!(engine.load_agents(&policy, &Default::default()).await.is_err());
    let mut with = grants(ALL);
    with.workspace = path;
    let error = tool(&engine, tool_bytes(IMPORTS, OK), with).await.err().unwrap();
    assert!(matches!(error, LoadError::Exposed { .. }), "{error}");
}

/// The results of attempts to use files through WASI in one call, which ends also if one of them waits
/// for ever.
async fn attempts(dir: &Path, attempts: serde_json::Value) -> Vec<serde_json::Value> {
    let mut with = grants(ALL);
    with.workspace = dir.to_owned();
    let deadline = std::time::Duration::from_secs(30);
    let scope = scope_with(|parts| {
        let rules = taskrun::scope::CurrentRules::fixed(rules(&with));
        (parts.deadline, parts.rules) = (deadline, rules);
    });
    let tool = tool(&engine(), examples::evil::WASI.bytes.to_vec(), with).await.unwrap();
    let mut call = call();
    call.name = "attempt".to_owned();
    call.payload = serde_json::json!({ "attempts": attempts }).to_string();
    let value = ask(&*tool, call, scope).await.unwrap().unwrap().value;
    serde_json::from_str(&value).unwrap()
}

#[tokio::test]
async fn wasi_does_not_wait_for_the_other_end_of_a_pipe() {
    use rustix::fs::{CWD, Mode, mkfifoat};

    let dir = tempfile::tempdir().unwrap();
    mkfifoat(CWD, dir.path().join("pipe"), Mode::from_raw_mode(0o600)).unwrap();
    std::os::unix::fs::symlink("pipe", dir.path().join("link")).unwrap();
    let outcomes = attempts(
        dir.path(),
        serde_json::json!([{"op": "read", "path": "/pipe"}, {"op": "read", "path": "/link"}]),
    );
    for outcome in outcomes.await {
        assert!(outcome["ok"].is_null(), "{outcome}");
    }
}

#[tokio::test]
async fn wasi_reads_no_directory_that_fills_the_host() {
    let dir = tempfile::tempdir().unwrap();
    for (name, files) in [("large", 10_001), ("small", 100)] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        for n in 0..files {
            std::fs::write(dir.path().join(format!("{name}/{n}")), "").unwrap();
        }
    }
    let mut list = vec![serde_json::json!({"op": "list", "path": "/large"})];
    list.extend(vec![serde_json::json!({"op": "list", "path": "/small"}); 20]);
    let outcomes = attempts(dir.path(), list.into()).await;
    assert!(outcomes[0]["ok"].is_null(), "{}", outcomes[0]);
    // More than may be open at once: each is closed before the next.
    assert!(outcomes[1..].iter().all(|outcome| outcome["ok"].is_string()), "{outcomes:?}");
}
