//! Descriptions that tools give of themselves.

use std::time::Duration;

use taskrun_engine::{EngineOptions, LoadError};
use taskrun_journal::stop::CallAbort;
use wit_component::StringEncoding;

use crate::support::*;

async fn described(imports: &str, code: &str) -> LoadError {
    refused(tool_with(imports, code, OK)).await
}

async fn refused(bytes: Vec<u8>) -> LoadError {
    let options =
        EngineOptions { describe_deadline: Duration::from_millis(100), ..Default::default() };
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
    assert!(error.is_of_component());
}

/// Nothing that it waits for is worth more than its time.
#[tokio::test]
async fn a_description_that_waits_is_ended() {
    const POLL: &str = "package wasi:io@0.2.0;
        interface poll { resource pollable { block: func(); } }";
    const CLOCKS: &str = "package wasi:clocks@0.2.0;
        interface monotonic-clock {
            use wasi:io/poll@0.2.0.{pollable};
            subscribe-duration: func(when: u64) -> pollable;
        }";
    const WORLD: &str = "package test:patient;
        world patient {
            include taskrun:plugin/tool@0.1.0;
            import wasi:io/poll@0.2.0;
            import wasi:clocks/monotonic-clock@0.2.0;
        }";
    let imports = r#"
        (import "wasi:clocks/monotonic-clock@0.2.0" "subscribe-duration" (func $in (param i64) (result i32)))
        (import "wasi:io/poll@0.2.0" "[method]pollable.block" (func $block (param i32)))
    "#;
    let hour = "(call $block (call $in (i64.const 3600000000000))) (i32.const 1024)";
    let module = tool_module(imports, hour, OK);
    let bytes = component_of(&[POLL, CLOCKS, WORLD], "patient", &module, StringEncoding::UTF8);
    let error = refused(bytes).await;
    assert!(
        matches!(error, LoadError::Describe(CallAbort::Deadline { limit_ms: 1_000 })),
        "{error}"
    );
    assert!(error.is_of_component());
}

/// Whatever else has the only processor: the host, and no fault of the tool.
#[tokio::test]
async fn a_description_that_gets_no_processor_is_not_held_against_the_tool() {
    let spins = "(local $n i32)
        (loop $l
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br_if $l (i32.lt_u (local.get $n) (i32.const 0x40000000))))
        (i32.const 1024)";
    let other = tokio::spawn(async {
        loop {
            std::thread::park_timeout(Duration::from_millis(300));
            tokio::task::yield_now().await;
        }
    });
    let error = described("", spins).await;
    other.abort();
    assert!(matches!(error, LoadError::Starved { limit_ms: 1_000, cpu_ms: 0..100 }), "{error}");
    assert!(!error.is_of_component());
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
