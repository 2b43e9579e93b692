//! Host functions, as a guest meets them.

use taskrun_journal::event::Event;
use taskrun_journal::stop::CallAbort;

use crate::support::*;

#[tokio::test]
async fn a_file_is_read_and_written_where_rules_allow() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("notes")).unwrap();
    std::fs::write(dir.path().join("notes/a"), "hello").unwrap();
    let imports = r#"
        (import "taskrun:plugin/workspace-read@0.1.0" "read" (func $read (param i32 i32 i64 i32 i32)))
        (import "taskrun:plugin/workspace-write@0.1.0" "write" (func $write (param i32 i32 i32 i32 i32 i32)))
    "#;
    // Copies notes/a to notes/b and gives the text back.
    let code = r#"
        (call $read (i32.const 3000) (i32.const 7) (i64.const 0) (i32.const 100) (i32.const 5120))
        (if (i32.load8_u (i32.const 5120)) (then unreachable))
        (call $write (i32.const 3010) (i32.const 7) (i32.load (i32.const 5124)) (i32.load (i32.const 5128)) (i32.const 1) (i32.const 5200))
        (if (i32.load8_u (i32.const 5200)) (then unreachable))
        (call $fail (i32.load (i32.const 5124)) (i32.load (i32.const 5128))))
        (data (i32.const 3000) "notes/a") (data (i32.const 3010) "notes/b") (func
    "#;
    let mut with = grants(r#"allow = ["workspace-read: notes/**", "workspace-write: notes/**"]"#);
    with.workspace = dir.path().to_owned();
    assert_eq!(failure(run(tool_bytes(imports, code), with).await), "hello");
    assert_eq!(std::fs::read(dir.path().join("notes/b")).unwrap(), b"hello");
}

#[tokio::test]
async fn case_27_random_bytes_are_bounded() {
    let imports = r#"
        (import "taskrun:plugin/random@0.1.0" "bytes" (func $bytes (param i32 i32)))
    "#;
    for asked in ["100000", "-1"] {
        let code = format!(
            "(call $bytes (i32.const {asked}) (i32.const 5120))
            (if (i32.ne (i32.load (i32.const 5124)) (i32.const 65536)) (then unreachable))
            {OK}"
        );
        assert!(run(tool_bytes(imports, &code), grants("")).await.unwrap().is_ok(), "{asked}");
    }
}

#[tokio::test]
async fn an_agents_events_and_state_reach_the_scope() {
    let imports = r#"
        (import "taskrun:plugin/events@0.1.0" "assistant-chunk" (func $chunk (param i32 i32)))
        (import "taskrun:plugin/state@0.1.0" "set" (func $set (param i32 i32 i32 i32 i32 i32)))
    "#;
    let code = r#"
        (call $chunk (i32.const 2048) (i32.const 4))
        (call $set (i32.const 2048) (i32.const 2) (i32.const 1) (i32.const 2048) (i32.const 4) (i32.const 5120))
        (if (i32.load8_u (i32.const 5120)) (then unreachable))
    "#;
    let engine = engine();
    let loaded = engine.load(agent_bytes(imports, code)).await.unwrap();
    let planner = engine.agent(&loaded, grants("")).unwrap();
    let scope = patient();
    planner.plan(plan_input(), scope.clone()).await.unwrap().unwrap();
    let end = scope.finish();
    assert_eq!(end.events, [Event::AssistantChunk { text: "done".to_owned() }]);
    assert_eq!(end.state_changes, [("do".to_owned(), Some("done".to_owned()))]);
}

#[tokio::test]
async fn an_agent_without_a_model_hears_it() {
    let imports = r#"
        (import "taskrun:plugin/model@0.1.0" "complete" (func $complete (param i32 i32)))
    "#;
    // An all-zero request; answers `unknown-model` (1), not `denied`.
    let code = r#"
        (call $complete (i32.const 7000) (i32.const 5120))
        (if (i32.ne (i32.load8_u (i32.const 5120)) (i32.const 1)) (then unreachable))
    "#;
    let engine = engine();
    let loaded = engine.load(agent_bytes(imports, code)).await.unwrap();
    let with = grants(r#"deny = ["model: *"]"#);
    let scope = patient_under(&with);
    let planner = engine.agent(&loaded, with).unwrap();
    let result = planner.plan(plan_input(), scope).await;
    assert!(!matches!(result, Err(CallAbort::Contract { .. })), "{result:?}");
    assert!(result.unwrap().is_ok());
}
