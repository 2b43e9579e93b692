//! Bytes that are no component, and components that are not for us.

use std::io::Write;

use taskrun_engine::{EngineOptions, ImportClass, Kind, LoadError};
use wit_component::StringEncoding;

use crate::support::*;

async fn error_of(bytes: Vec<u8>) -> LoadError {
    engine().load(bytes).await.unwrap_err()
}

#[tokio::test]
async fn what_is_not_webassembly_is_named() {
    assert!(matches!(error_of(Vec::new()).await, LoadError::Empty));
    assert!(matches!(error_of(b"hello, world".to_vec()).await, LoadError::NotWasm));
    assert!(matches!(error_of(b"(component)".to_vec()).await, LoadError::NotWasm));
    assert!(matches!(error_of(b"\0as".to_vec()).await, LoadError::Truncated { .. }));
    let module = wat::parse_str("(module)").unwrap();
    let error = error_of(module).await;
    assert!(matches!(error, LoadError::CoreModule));
    assert!(error.to_string().contains("core module, not a component"), "{error}");
}

#[tokio::test]
async fn a_component_cut_anywhere_does_not_load() {
    let whole = tool_bytes("", OK);
    let engine = engine();
    for len in (0..whole.len()).step_by(whole.len() / 40) {
        let error = engine.load(whole[..len].to_vec()).await;
        // A cut between two sections leaves a component without exports.
        let Err(error) = error else { continue };
        let expected = matches!(
            error,
            LoadError::Empty | LoadError::Truncated { .. } | LoadError::Invalid { .. }
        );
        assert!(expected, "{len}: {error}");
    }
    let mut garbage = whole;
    let middle = garbage.len() / 2;
    garbage[middle..].fill(0xff);
    assert!(matches!(
        engine.load(garbage).await,
        Err(LoadError::Invalid { .. } | LoadError::Truncated { .. })
    ));
}

/// The file of each of them is whole, and copying it again would change nothing.
#[tokio::test]
async fn a_length_or_a_version_that_is_wrong_does_not_make_a_file_cut_off() {
    let version = wat::parse_str("(component (import \"wasi:cli/exit@0.2\" (instance)))");
    let version = version.expect("it is text");
    // A section of two bytes whose name has nine.
    let name = [&b"\0asm\x0d\0\x01\0"[..], &[0, 2, 9, b'x']].concat();
    for (bytes, words) in [(version, "`wasi:cli/exit@0.2.0`"), (name, "unexpected end")] {
        let error = error_of(bytes).await;
        assert!(matches!(error, LoadError::Invalid { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[tokio::test]
async fn a_component_that_is_too_large_is_not_read() {
    let engine = engine_with(EngineOptions { component_bytes_max: 1_000, ..Default::default() });
    let error = engine.load(tool_bytes("", OK)).await.unwrap_err();
    assert!(matches!(error, LoadError::TooLarge { limit: 1_000, .. }), "{error}");
    // A sparse file of 200 MiB against the default limit.
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(200 << 20).unwrap();
    let error = self::engine().load_file(file.path()).await.unwrap_err();
    assert!(matches!(error, LoadError::TooLarge { bytes, .. } if bytes == 200 << 20), "{error}");
}

#[tokio::test]
async fn a_file_is_loaded_and_a_missing_one_named() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let bytes = tool_bytes("", OK);
    file.write_all(&bytes).unwrap();
    let loaded = engine().load_file(file.path()).await.unwrap();
    let inspection = loaded.inspect();
    assert_eq!(inspection.digest, format!("blake3:{}", blake3::hash(&bytes).to_hex()));
    assert_eq!(inspection.size, bytes.len() as u64);
    assert_eq!(inspection.kind, Kind::Tool);
    let error = engine().load_file("/does/not/exist.wasm".as_ref()).await.unwrap_err();
    assert!(error.to_string().contains("/does/not/exist.wasm"), "{error}");
}

#[tokio::test]
async fn an_inspection_lists_imports_with_what_they_take() {
    let imports = r#"
        (import "taskrun:plugin/log@0.1.0" "log" (func (param i32 i32 i32 i32 i32)))
        (import "taskrun:plugin/workspace-read@0.1.0" "read" (func (param i32 i32 i64 i32 i32)))
    "#;
    let loaded = engine().load(tool_bytes(imports, OK)).await.unwrap();
    let inspection = loaded.inspect();
    let class = |name: &str| {
        let name = format!("taskrun:plugin/{name}@0.1.0");
        let import = inspection.imports.iter().find(|import| import.interface == name);
        import.map(|import| (import.class, import.functions.clone()))
    };
    assert_eq!(class("log"), Some((ImportClass::Always, vec!["log".to_owned()])));
    let reading = ImportClass::Capability(taskrun_policy::Capability::WorkspaceRead);
    assert_eq!(class("workspace-read"), Some((reading, vec!["read".to_owned()])));
    assert_eq!(class("types").map(|(class, _)| class), Some(ImportClass::Types));
    assert_eq!(class("http"), None);
}

#[tokio::test]
async fn case_54_the_other_role_and_no_role_are_refused() {
    let engine = engine();
    let tool = engine.load(tool_bytes("", OK)).await.unwrap();
    let error = engine.agent(&tool, grants("")).err().unwrap();
    let text = error.to_string();
    assert!(
        text.contains("taskrun:plugin/planner@0.1.0") && text.contains("plugin/tools@0.1.0"),
        "{text}"
    );
    let agent = engine.load(agent_bytes("", "")).await.unwrap();
    assert_eq!(agent.inspect().kind, Kind::Agent);
    let error = engine.tool(&agent, grants("")).await.err().unwrap();
    assert!(matches!(error, LoadError::WrongWorld { .. }), "{error}");
    let neither = engine.load(wat::parse_str("(component)").unwrap()).await.unwrap();
    assert_eq!(neither.inspect().kind, Kind::Other);
    let error = engine.agent(&neither, grants("")).err().unwrap();
    assert!(error.to_string().contains("exports nothing"), "{error}");
}

#[tokio::test]
async fn case_54_another_version_of_the_interfaces_is_named_with_ours() {
    let future = r#"(component
        (import "taskrun:plugin/log@0.2.0" (instance (export "log" (func (param "m" string))))))"#;
    let error = error_of(wat::parse_str(future).unwrap()).await;
    let text = error.to_string();
    assert!(matches!(error, LoadError::Version { .. }), "{text}");
    assert!(text.contains("taskrun:plugin/log version 0.2.0") && text.contains("0.1.0"), "{text}");
}

#[tokio::test]
async fn case_54_a_compatible_version_with_another_form_says_what_does_not_fit() {
    let bytes = tool_bytes("", OK);
    let engine = engine();
    drop(engine.load(bytes).await.unwrap());
    let odd = r#"(component
        (import "taskrun:plugin/random@0.1.0" (instance (export "bytes" (func (param "len" string)))))
        (instance $tools)
        (export "taskrun:plugin/tools@0.1.0" (instance $tools)))"#;
    let loaded = engine.load(wat::parse_str(odd).unwrap()).await.unwrap();
    let error = engine.tool(&loaded, grants("")).await.err().unwrap();
    assert!(matches!(error, LoadError::Mismatch { .. }), "{error}");
}

/// Parts of interfaces in several versions that are compatible, as components import them that were
/// put together from others.
const VERSIONS: [&str; 6] = [
    "package wasi:random@0.2.0; interface random { get-random-u64: func() -> u64; }",
    "package wasi:random@0.2.3; interface random { get-random-u64: func() -> u64; }",
    "package wasi:http@0.2.0; interface types { resource fields { constructor(); } }",
    "package wasi:http@0.2.3; interface types { resource fields { constructor(); } }",
    "package taskrun:plugin@0.1.1; interface clock { now: func() -> u64; }",
    "package test:versions;
    world versions {
        include taskrun:plugin/tool@0.1.0;
        import wasi:random/random@0.2.0;
        import wasi:random/random@0.2.3;
        import wasi:http/types@0.2.0;
        import wasi:http/types@0.2.3;
        import taskrun:plugin/clock@0.1.1;
    }",
];

#[tokio::test]
async fn an_interface_that_is_imported_in_two_versions_is_given_in_both() {
    let imports = r#"
        (import "wasi:random/random@0.2.0" "get-random-u64" (func $random-0 (result i64)))
        (import "wasi:random/random@0.2.3" "get-random-u64" (func $random-3 (result i64)))
        (import "wasi:http/types@0.2.0" "[constructor]fields" (func $fields-0 (result i32)))
        (import "wasi:http/types@0.2.3" "[constructor]fields" (func $fields-3 (result i32)))
        (import "wasi:http/types@0.2.0" "[resource-drop]fields" (func $drop-0 (param i32)))
        (import "wasi:http/types@0.2.3" "[resource-drop]fields" (func $drop-3 (param i32)))
        (import "taskrun:plugin/clock@0.1.0" "now" (func $now-0 (result i64)))
        (import "taskrun:plugin/clock@0.1.1" "now" (func $now-1 (result i64)))
    "#;
    let code = format!(
        "(drop (call $random-0)) (drop (call $random-3))
        (call $drop-0 (call $fields-0)) (call $drop-3 (call $fields-3))
        (drop (call $now-0)) (drop (call $now-1)) {OK}"
    );
    let module = tool_module(imports, DESCRIBE, &code);
    let bytes = component_of(&VERSIONS, "versions", &module, StringEncoding::UTF8);
    let loaded = engine().load(bytes.clone()).await.expect("a component");
    let names = loaded.inspect().imports.iter().map(|import| &*import.interface);
    let random: Vec<&str> = names.filter(|name| name.starts_with("wasi:random/")).collect();
    assert_eq!(random, ["wasi:random/random@0.2.0", "wasi:random/random@0.2.3"]);
    let answer = run(bytes, grants(r#"deny = ["http: *"]"#)).await;
    assert!(matches!(&answer, Ok(Ok(_))), "{answer:?}");
}

/// The words of the validator count, and not the names in the component.
#[tokio::test]
async fn a_proposal_that_is_not_enabled_is_named() {
    let tag = "(component (core module (tag)))";
    let relaxed = "(component
        (core module $m
            (func $async_sum (export \"f\") (param v128) (result v128)
                (i32x4.relaxed_trunc_f32x4_s (local.get 0))))
        (core instance (instantiate $m)))";
    for (text, word) in [(tag, "exceptions"), (relaxed, "relaxed SIMD")] {
        let error = error_of(wat::parse_str(text).expect("it is text")).await;
        assert!(matches!(error, LoadError::Proposal { .. }), "{error}");
        assert!(error.is_of_component() && error.to_string().contains(word), "{error}");
    }
}

#[tokio::test]
async fn async_features_are_named() {
    let text = r#"(component
        (core module $m (func (export "f")))
        (core instance $i (instantiate $m))
        (func (export "f") async (canon lift (core func $i "f") async)))"#;
    let Ok(bytes) = wat::parse_str(text) else { panic!("the text is right") };
    let error = error_of(bytes).await;
    assert!(matches!(error, LoadError::Async { .. }), "{error}");
    assert!(error.to_string().contains("--backend-qjs-disable-async"), "{error}");
}

/// A component as text that no instance could be made of.
async fn is_too_much(text: &str) {
    let error = error_of(wat::parse_str(text).unwrap()).await;
    assert!(matches!(error, LoadError::TooMuch { .. }), "{error}");
}

#[tokio::test]
async fn case_15_a_memory_that_begins_too_large_is_refused() {
    is_too_much("(component (core module $m (memory 2000)) (core instance (instantiate $m)))")
        .await;
}

#[tokio::test]
async fn case_17_a_table_that_begins_with_ten_million_is_refused() {
    let table =
        "(component (core module $m (table 10000000 funcref)) (core instance (instantiate $m)))";
    is_too_much(table).await;
}

/// A component with many instances of a module that has so many elements in no table.
fn with_passive_elements(elements: usize) -> Vec<u8> {
    let elements = "(ref.null func)".repeat(elements);
    let instances = "(core instance (instantiate $m))".repeat(58);
    let module = format!("(core module $m (elem funcref {elements}))");
    wat::parse_str(format!("(component {module} {instances})")).expect("the text is right")
}

#[tokio::test]
async fn case_17_elements_of_which_each_instance_has_a_copy_are_bounded() {
    let error = error_of(with_passive_elements(100_000)).await;
    let is_counted = matches!(
        &error,
        LoadError::Shape { what, limit: 256, .. } if *what == "elements of passive segments"
    );
    assert!(is_counted, "{error}");
    // With the two that a segment counts as.
    let loaded = engine().load(with_passive_elements(254)).await;
    assert!(loaded.is_ok(), "{loaded:?}");
}

#[tokio::test]
async fn case_18_tables_and_memories_of_64_bits_are_refused() {
    let parts = ["(table i64 10000000000 funcref)", "(table i64 1 funcref)", "(memory i64 1)"];
    for part in parts {
        let text = format!("(component (core module $m {part}) (core instance (instantiate $m)))");
        let error = error_of(wat::parse_str(text).unwrap()).await;
        assert!(matches!(error, LoadError::Proposal { .. }), "{part}: {error}");
    }
    is_too_much(
        "(component (core module $m (table 4000000000 funcref)) (core instance (instantiate $m)))",
    )
    .await;
}

#[tokio::test]
async fn case_19_ten_thousand_core_instances_are_refused() {
    let instances = "(core instance (instantiate $m))".repeat(10_000);
    is_too_much(&format!("(component (core module $m) {instances})")).await;
}

#[tokio::test]
async fn a_pipe_and_a_folder_are_no_components_and_nobody_waits_for_them() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("tool.wasm");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    for path in [&*pipe, folder.path(), "/dev/zero".as_ref()] {
        let error = engine().load_file(path).await.unwrap_err();
        assert!(matches!(error, LoadError::NotAFile { .. }), "{error}");
        let digest = taskrun_engine::digest_file(path, 1_000);
        assert!(matches!(digest, Err(LoadError::NotAFile { .. })), "{digest:?}");
    }
}

#[tokio::test]
async fn what_was_decided_about_is_what_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tool.wasm");
    std::fs::write(&path, tool_bytes("", OK)).unwrap();
    let engine = engine();
    engine.pin(path.clone(), taskrun_engine::digest_file(&path, 1 << 20).unwrap());
    engine.load_file(&path).await.unwrap();
    std::fs::write(&path, tool_bytes("", "unreachable")).unwrap();
    let error = engine.load_file(&path).await.unwrap_err();
    assert!(matches!(error, LoadError::Changed { .. }), "{error}");
}

/// A component as toolchains link several programs: each has a memory of its own.
fn with_memories(count: usize, pages: u32) -> Vec<u8> {
    let module = format!(r#"(core module $m (memory (export "m") {pages}) (func (export "f")))"#);
    let mut text = format!("(component {module}");
    for at in 0..count {
        text.push_str(&format!("(core instance $i{at} (instantiate $m))"));
    }
    text.push_str(
        r#"(func $f (canon lift (core func $i0 "f")))
        (instance $tools (export "describe" (func $f)))
        (export "taskrun:plugin/tools@0.1.0" (instance $tools)))"#,
    );
    wat::parse_str(text).unwrap()
}

#[tokio::test]
async fn case_16_a_component_may_have_several_memories_and_no_more_than_four() {
    let engine = engine();
    engine.load(with_memories(4, 1)).await.unwrap();
    let error = engine.load(with_memories(5, 1)).await.unwrap_err();
    assert!(matches!(error, LoadError::TooMuch { .. }), "{error}");
}

#[tokio::test]
async fn case_16_a_module_may_have_as_many_memories_as_a_component() {
    let with = |others: &str| {
        let code = format!(
            "(i32.store $other (i32.const 0) (i32.const 7))
            (if (i32.ne (i32.load $other (i32.const 0)) (i32.const 7)) (then unreachable))
            {OK}) (memory $other 1) {others} (func (unreachable)"
        );
        tool_bytes("", &code)
    };
    let answer = run(with("(memory 1) (memory 1)"), grants("")).await;
    assert!(matches!(&answer, Ok(Ok(_))), "{answer:?}");
    let error = engine().load(with("(memory 1) (memory 1) (memory 1)")).await.expect_err("five");
    assert!(matches!(error, LoadError::TooMuch { .. }), "{error}");
}
