//! Values that cross between guest and host, and are larger, deeper or other than they may be.

use taskrun_journal::stop::CallAbort;
use wit_component::StringEncoding;

use crate::support::*;

const LOG: &str =
    r#"(import "taskrun:plugin/log@0.1.0" "log" (func $log (param i32 i32 i32 i32 i32)))"#;

fn no_unicode() -> CallAbort {
    CallAbort::Contract { detail: "it passed text that is not valid Unicode".to_owned() }
}

#[tokio::test]
async fn case_24_texts_that_are_not_utf_8_are_breaches_of_contract() {
    // A byte that no text has, an end in the middle of a character, a long form of `/`, half of a
    // pair of surrogates, and a character beyond the last one.
    for text in [r"\ffab", r"a\e2\82", r"\c0\afa", r"\ed\a0\80", r"\f4\90\80"] {
        let data = format!(r#"(data (i32.const 3000) "{text}")"#);
        let said =
            "(call $log (i32.const 2) (i32.const 3000) (i32.const 3) (i32.const 0) (i32.const 0))";
        let logs = format!("{said} {OK}) {data} (func");
        assert_eq!(run(tool_bytes(LOG, &logs), grants("")).await, Err(no_unicode()), "{text}");
        let fails = format!("(call $fail (i32.const 3000) (i32.const 3))) {data} (func");
        assert_eq!(run(tool_bytes("", &fails), grants("")).await, Err(no_unicode()), "{text}");
    }
}

#[tokio::test]
async fn case_24_texts_that_are_not_utf_16_are_breaches_of_contract() {
    let engine = engine();
    // Four units: two letters or what stands for them, and two zeros.
    for (first, second, is_text) in [
        (0x64, 0x6f, true),
        (0xd83d, 0xde00, true),
        (0xd83d, 0x6f, false),
        (0xde00, 0x6f, false),
        (0xde00, 0xd83d, false),
    ] {
        let code = format!(
            "(i32.store16 (i32.const 2048) (i32.const {first}))
            (i32.store16 (i32.const 2050) (i32.const {second}))
            (i32.store (i32.const 2052) (i32.const 0))"
        );
        let module = agent_module("", &code);
        let bytes = component_of(&[], "agent", &module, StringEncoding::UTF16);
        let loaded = engine.load(bytes).await.unwrap();
        let agent = engine.agent(&loaded, grants("")).unwrap();
        let planned = agent.plan(plan_input(), patient()).await;
        match is_text {
            true => assert!(planned.unwrap().is_ok(), "{first:x} {second:x}"),
            false => assert_eq!(planned.unwrap_err(), no_unicode(), "{first:x} {second:x}"),
        }
    }
}

#[tokio::test]
async fn case_26_a_result_that_is_nested_without_end_is_a_breach_of_contract() {
    const NESTED: &str = "(memory.fill (i32.const 600000) (i32.const 91) (i32.const 100000))
        (memory.fill (i32.const 700000) (i32.const 93) (i32.const 100000))";
    let result = format!("{NESTED} (call $ok (i32.const 600000) (i32.const 200000))");
    // What goes with a result is looked at as well.
    let beside = format!(
        "{NESTED} (i32.store8 (i32.const 4112) (i32.const 1))
        (i32.store (i32.const 4116) (i32.const 600000))
        (i32.store (i32.const 4120) (i32.const 200000)) {OK}"
    );
    for (code, what) in [(result, "its result"), (beside, "its server data")] {
        let failure = run(tool_bytes("", &code), grants("")).await.unwrap_err();
        let CallAbort::Contract { detail } = failure else { panic!("{failure:?}") };
        assert!(detail.starts_with(&format!("{what} is not JSON")), "{detail}");
        assert!(detail.len() < 200, "{detail}");
    }
    // As deep as it may be.
    let bounded = "(memory.fill (i32.const 600000) (i32.const 91) (i32.const 128))
        (memory.fill (i32.const 600128) (i32.const 93) (i32.const 128))
        (call $ok (i32.const 600000) (i32.const 256))";
    assert!(run(tool_bytes("", bounded), grants("")).await.unwrap().is_ok());
}

#[tokio::test]
async fn case_27_random_bytes_of_wasi_are_bounded() {
    const RANDOM: &str = "package wasi:random@0.2.0;
        interface random { get-random-bytes: func(len: u64) -> list<u8>; }";
    const WORLD: &str = "package test:random;
        world random { include taskrun:plugin/tool@0.1.0; import wasi:random/random@0.2.0; }";
    let imports =
        r#"(import "wasi:random/random@0.2.0" "get-random-bytes" (func $bytes (param i64 i32)))"#;
    for (bytes, fits) in [(1_u64 << 16, true), ((1 << 16) + 1, false), (1 << 32, false)] {
        let code = format!("(call $bytes (i64.const {bytes}) (i32.const 5120)) {OK}");
        let module = tool_module(imports, DESCRIBE, &code);
        let bytes = component_of(&[RANDOM, WORLD], "random", &module, StringEncoding::UTF8);
        let answer = run(bytes, grants("")).await;
        let limit = CallAbort::Limit { what: "random bytes at once".to_owned(), limit: 65_536 };
        match fits {
            true => assert!(answer.unwrap().is_ok()),
            false => assert_eq!(answer, Err(limit)),
        }
    }
}

/// A request by HTTP with so many headers from 1200000 on; the guest fails with the words for it.
fn sends(headers: u32, first: &str) -> Vec<u8> {
    let imports = r#"(import "taskrun:plugin/http@0.1.0" "send"
        (func $send (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32)))"#;
    let code = format!(
        r#"(drop (memory.grow (i32.const 200)))
        {first}
        (call $send (i32.const 3000) (i32.const 3) (i32.const 3010) (i32.const 19)
            (i32.const 1200000) (i32.const {headers}) (i32.const 0) (i32.const 0)
            (i32.const 0) (i64.const 0) (i32.const 5120))
        (if (i32.eqz (i32.load8_u (i32.const 5120))) (then unreachable))
        (call $fail (i32.load (i32.const 5128)) (i32.load (i32.const 5132))))
        (data (i32.const 3000) "GET") (data (i32.const 3010) "http://localhost:9/")
        (func"#
    );
    tool_bytes(imports, &code)
}

#[tokio::test]
async fn case_28_a_request_with_too_many_or_too_long_headers_is_refused() {
    let with = || grants(r#"allow = ["http: http://localhost:9/**"]"#);
    // The first header's name, at 3040, and its value, from the beginning of memory.
    let value = |bytes: u32| {
        format!(
            r#"(i32.store (i32.const 3040) (i32.const 0x612d78))
            (i32.store (i32.const 1200000) (i32.const 3040))
            (i32.store (i32.const 1200004) (i32.const 3))
            (i32.store (i32.const 1200008) (i32.const 2000000))
            (i32.store (i32.const 1200012) (i32.const {bytes}))
            (memory.fill (i32.const 2000000) (i32.const 120) (i32.const 10000000))"#
        )
    };
    let refused = "more than 100 headers, or more than 65536 bytes of them";
    let many = sends(100_000, "");
    assert_eq!(failure(run(many, with()).await), refused);
    let long = sends(1, &value(65_536));
    assert_eq!(failure(run(long, with()).await), refused);
    // More than a call to the host may carry, and more than the guest has.
    let huge = run(sends(1, &value(9_000_000)), with()).await;
    let what = "bytes of a host call".to_owned();
    assert_eq!(huge, Err(CallAbort::Limit { what, limit: 8 << 20 }));
    let outside = run(sends(1, &value(1 << 30)), with()).await;
    assert!(
        matches!(outside, Err(CallAbort::Contract { .. } | CallAbort::Limit { .. })),
        "{outside:?}"
    );
    // What fits is sent: nobody answers there.
    let short = failure(run(sends(1, &value(60_000)), with()).await);
    assert!(short.contains("cannot be reached"), "{short}");
}
