//! Messages that a guest has the host keep by `wasi:http`: parts of requests, headers, bodies that are
//! not sent.

use taskrun_journal::stop::CallAbort;
use wit_component::StringEncoding;

use crate::support::*;

/// The part of the interface that is tried; names and forms are WASI's.
const HTTP: &str = "package wasi:http@0.2.0;
    interface types {
        variant method {
            get, head, post, put, delete, connect, options, trace, patch, other(string),
        }
        variant scheme { HTTP, HTTPS, other(string) }
        variant header-error { invalid-syntax, forbidden, immutable }
        resource fields {
            constructor();
            append: func(name: string, value: list<u8>) -> result<_, header-error>;
            clone: func() -> fields;
        }
        resource outgoing-body {}
        resource outgoing-request {
            constructor(headers: fields);
            body: func() -> result<outgoing-body>;
            set-method: func(method: method) -> result;
            set-path-with-query: func(path-with-query: option<string>) -> result;
            set-scheme: func(scheme: option<scheme>) -> result;
            set-authority: func(authority: option<string>) -> result;
        }
    }";
const WORLD: &str = "package test:keeps;
    world keeps { include taskrun:plugin/tool@0.1.0; import wasi:http/types@0.2.0; }";

const IMPORTS: &str = r#"
    (import "wasi:http/types@0.2.0" "[constructor]fields" (func $fields (result i32)))
    (import "wasi:http/types@0.2.0" "[method]fields.append"
        (func $append (param i32 i32 i32 i32 i32 i32)))
    (import "wasi:http/types@0.2.0" "[method]fields.clone" (func $clone (param i32) (result i32)))
    (import "wasi:http/types@0.2.0" "[resource-drop]fields" (func $drop-fields (param i32)))
    (import "wasi:http/types@0.2.0" "[resource-drop]outgoing-body" (func $drop-body (param i32)))
    (import "wasi:http/types@0.2.0" "[constructor]outgoing-request"
        (func $request (param i32) (result i32)))
    (import "wasi:http/types@0.2.0" "[method]outgoing-request.body" (func $body (param i32 i32)))
    (import "wasi:http/types@0.2.0" "[method]outgoing-request.set-method"
        (func $set-method (param i32 i32 i32 i32) (result i32)))
    (import "wasi:http/types@0.2.0" "[method]outgoing-request.set-path-with-query"
        (func $set-path (param i32 i32 i32 i32) (result i32)))
    (import "wasi:http/types@0.2.0" "[method]outgoing-request.set-scheme"
        (func $set-scheme (param i32 i32 i32 i32 i32) (result i32)))
    (import "wasi:http/types@0.2.0" "[method]outgoing-request.set-authority"
        (func $set-authority (param i32 i32 i32 i32) (result i32)))
"#;

/// Runs this code in a tool that may send nothing; its local `$n` is 0.
async fn keeps(code: &str) -> CallResult {
    let module = tool_module(IMPORTS, DESCRIBE, &format!("(local $n i32) (local $h i32) {code}"));
    let bytes = component_of(&[HTTP, WORLD], "keeps", &module, StringEncoding::UTF8);
    run(bytes, grants(r#"deny = ["http: *"]"#)).await
}

/// This code so many times.
fn times(count: u32, code: &str) -> String {
    format!(
        "(loop $more {code}
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br_if $more (i32.lt_u (local.get $n) (i32.const {count}))))"
    )
}

/// Leaves fields in `$h` with one value of 16 KiB.
const FIELDS: &str = "
    (local.set $h (call $fields))
    (call $append (local.get $h) (i32.const 2048) (i32.const 3)
        (i32.const 600000) (i32.const 16384) (i32.const 5120))
    (if (i32.load8_u (i32.const 5120)) (then unreachable))";

fn too_many_bytes() -> CallResult {
    let what = "bytes of HTTP messages".to_owned();
    Err(CallAbort::Limit { what, limit: 4 << 20 })
}

#[tokio::test]
async fn case_28_a_part_of_a_request_that_could_not_be_sent_is_not_kept() {
    let letters = |len: u32| format!("(i32.const 600000) (i32.const {len})");
    let path = |len: u32| format!("(i32.const 599999) (i32.const {len})");
    let parts = [
        ("set-method", "(i32.const 9)", letters(32), true),
        ("set-method", "(i32.const 9)", letters(33), false),
        ("set-method", "(i32.const 9)", letters(400_000), false),
        ("set-method", "(i32.const 2)", letters(0), true),
        ("set-authority", "(i32.const 1)", letters(512), true),
        ("set-authority", "(i32.const 1)", letters(513), false),
        ("set-authority", "(i32.const 0)", letters(0), true),
        ("set-path", "(i32.const 1)", path(8 << 10), true),
        ("set-path", "(i32.const 1)", path((8 << 10) + 1), false),
        ("set-scheme", "(i32.const 1) (i32.const 2)", letters(32), true),
        ("set-scheme", "(i32.const 1) (i32.const 2)", letters(33), false),
        ("set-scheme", "(i32.const 1) (i32.const 1)", letters(0), true),
    ];
    for (function, tag, text, fits) in parts {
        let code = format!(
            "(memory.fill (i32.const 600000) (i32.const 65) (i32.const 500000))
            (i32.store8 (i32.const 599999) (i32.const 47))
            (if (i32.ne (call ${function} (call $request (call $fields)) {tag} {text})
                (i32.const {})) (then unreachable)) {OK}",
            i32::from(!fits)
        );
        let answer = keeps(&code).await;
        assert!(answer.is_ok_and(|answer| answer.is_ok()), "{function} {text}");
    }
}

#[tokio::test]
async fn case_28_headers_and_bodies_that_a_guest_keeps_meet_a_limit() {
    let body = "(local.set $h (call $request (call $fields)))
        (call $body (local.get $h) (i32.const 5120))
        (if (i32.load8_u (i32.const 5120)) (then unreachable))
        (call $drop-body (i32.load (i32.const 5124)))";
    let of_requests = format!("{FIELDS} (drop (call $request (local.get $h)))");
    let cloned = format!(
        "(if (i32.eqz (local.get $n)) (then {FIELDS}))
        (call $append (call $clone (local.get $h)) (i32.const 2048) (i32.const 1)
            (i32.const 600000) (i32.const 1) (i32.const 5120))"
    );
    let fill = "(memory.fill (i32.const 600000) (i32.const 65) (i32.const 16384))";
    for (what, code) in [
        ("fields", FIELDS),
        ("fields of requests", &of_requests),
        ("copies of fields", &cloned),
        ("bodies", body),
    ] {
        let many = times(450, code);
        assert_eq!(keeps(&format!("{fill} {many} {OK}")).await, too_many_bytes(), "{what}");
    }
    // Nor by code that meets no epoch.
    let unrolled = FIELDS.repeat(450);
    assert_eq!(keeps(&format!("{fill} {unrolled} {OK}")).await, too_many_bytes());
}

#[tokio::test]
async fn headers_that_were_dropped_count_no_more() {
    let many = times(5_000, &format!("{FIELDS} (call $drop-fields (local.get $h))"));
    let answer = keeps(&format!(
        "(memory.fill (i32.const 600000) (i32.const 65) (i32.const 16384)) {many} {OK}"
    ))
    .await;
    assert!(answer.is_ok_and(|answer| answer.is_ok()));
}
