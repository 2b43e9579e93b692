//! Descriptions that tools give of themselves.

use std::time::Duration;

use taskrun_engine::{EngineOptions, LoadError};
use taskrun_journal::stop::CallAbort;

use crate::support::*;

async fn described(imports: &str, code: &str) -> LoadError {
    let options =
        EngineOptions { describe_deadline: Duration::from_millis(100), ..Default::default() };
    let bytes = tool_with(imports, code, OK);
    tool(&engine_with(options), bytes, grants(r#"allow = ["workspace-read: **"]"#))
        .await
        .err()
        .unwrap()
}

#[tokio::test]
async fn a_plain_description_is_kept() {
    let tool = tool(&engine(), tool_bytes("", OK), grants("")).await.unwrap();
    let [spec] = tool.specs() else { panic!("{:?}", tool.specs()) };
    assert_eq!(spec.name, "run");
    assert_eq!(spec.input_schema, r#"{"type":"object"}"#);
    assert_eq!(spec.timeout, None);
}

#[tokio::test]
async fn a_description_that_never_ends_is_ended() {
    let error = described("", "(loop $l (br $l)) unreachable").await;
    assert!(matches!(error, LoadError::Describe(CallAbort::Deadline { limit_ms: 100 })), "{error}");
}

#[tokio::test]
async fn a_description_that_traps_says_so() {
    let error = described("", "unreachable").await;
    assert!(matches!(error, LoadError::Describe(CallAbort::Trap { .. })), "{error}");
}

#[tokio::test]
async fn case_51_a_description_sees_nothing_that_changes() {
    let log = r#"(import "taskrun:plugin/log@0.1.0" "log" (func $f (param i32 i32 i32 i32 i32)))"#;
    let logging = "(call $f (i32.const 2) (i32.const 2048) (i32.const 3) (i32.const 0) (i32.const 0)) (i32.const 1024)";
    assert!(tool(&engine(), tool_with(log, logging, OK), grants("")).await.is_ok());
    let others = [
        (
            r#"(import "taskrun:plugin/clock@0.1.0" "now" (func $f (result i64)))"#,
            "(drop (call $f)) (i32.const 1024)",
            "clock",
        ),
        (
            r#"(import "taskrun:plugin/random@0.1.0" "bytes" (func $f (param i32 i32)))"#,
            "(call $f (i32.const 8) (i32.const 5120)) (i32.const 1024)",
            "random",
        ),
        (
            r#"(import "taskrun:plugin/workspace-read@0.1.0" "stat" (func $f (param i32 i32 i32)))"#,
            "(call $f (i32.const 0) (i32.const 0) (i32.const 5120)) (i32.const 1024)",
            "workspace-read",
        ),
    ];
    for (import, code, name) in others {
        let error = described(import, code).await;
        let LoadError::Describe(CallAbort::Contract { detail }) = &error else { panic!("{error}") };
        assert!(detail.contains(name), "{detail}");
    }
}

#[tokio::test]
async fn case_53_a_wrong_description_is_refused() {
    let none = described("", "(i32.store (i32.const 1028) (i32.const 0)) (i32.const 1024)").await;
    assert!(matches!(none, LoadError::Description { .. }), "{none}");
    let name = described("", "(i32.store8 (i32.const 2048) (i32.const 47)) (i32.const 1024)").await;
    assert!(matches!(name, LoadError::Description { .. }), "{name}");
    // A name of half a megabyte.
    let long = described("", "(i32.store (i32.const 1040) (i32.const 600000)) (i32.store (i32.const 1044) (i32.const 500000)) (i32.const 1024)").await;
    assert!(matches!(long, LoadError::Description { .. }), "{long}");
    assert!(long.to_string().len() < 500);
    let schema =
        described("", "(i32.store8 (i32.const 2064) (i32.const 91)) (i32.const 1024)").await;
    assert!(matches!(schema, LoadError::Description { .. }), "{schema}");
    // A hundred thousand functions.
    let many =
        described("", "(i32.store (i32.const 1028) (i32.const 100000)) (i32.const 1024)").await;
    let refused = matches!(many, LoadError::Describe(_) | LoadError::Description { .. });
    assert!(refused, "{many}");
}
