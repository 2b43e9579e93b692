//! Names of interfaces and their classes.

use super::*;

#[test]
fn every_interface_of_ours_has_its_class() {
    let class = |name: &str| classify(&format!("taskrun:plugin/{name}@0.1.0"));
    for name in ["log", "clock", "random", "run", "cancellation"] {
        assert_eq!(class(name), ImportClass::Always, "{name}");
    }
    for name in ["events", "state", "reminders"] {
        assert_eq!(class(name), ImportClass::Agents, "{name}");
    }
    for capability in Capability::ALL {
        assert_eq!(class(capability.as_str()), ImportClass::Capability(capability));
    }
    assert_eq!(class("teleport"), ImportClass::Unknown);
}

#[test]
fn wasi_is_inert_but_for_files_and_http_and_sockets() {
    assert_eq!(classify("wasi:cli/environment@0.2.6"), ImportClass::WasiInert);
    for name in ["wasi:filesystem/types@0.2.0", "wasi:filesystem/preopens@0.2.6"] {
        assert_eq!(classify(name), ImportClass::WasiFiles, "{name}");
    }
    let by_rules = [Capability::WorkspaceRead, Capability::WorkspaceWrite];
    assert_eq!(ImportClass::WasiFiles.capabilities(), by_rules);
    assert!(ImportClass::WasiInert.capabilities().is_empty());
    assert_eq!(
        classify("wasi:http/outgoing-handler@0.2.3"),
        ImportClass::Capability(Capability::Http)
    );
    assert_eq!(classify("wasi:http/incoming-handler@0.2.3"), ImportClass::Unknown);
    assert_eq!(classify("wasi:sockets/tcp@0.2.0"), ImportClass::Sockets);
    for name in ["wasi:nn/graph@0.2.0", "other:a/b@0.2.0", "other:a/b@0.3.0", "run"] {
        assert_eq!(classify(name), ImportClass::Unknown, "{name}");
    }
}

#[test]
fn interfaces_and_versions_of_wasi_that_the_host_does_not_have_are_not_given() {
    for name in [
        "wasi:cli/run@0.2.0",
        "wasi:clocks/timezone@0.2.0",
        "wasi:random/other@0.2.6",
        "wasi:filesystem/other@0.2.0",
    ] {
        assert_eq!(classify(name), ImportClass::Unknown, "{name}");
    }
    for name in [
        "wasi:cli/environment@0.3.0",
        "wasi:cli/stdout@0.2.0-rc-2023-12-05",
        "wasi:http/types@0.2.0-draft",
        "wasi:sockets/tcp@0.2.0-rc-2023-11-10",
        "wasi:cli/stdout",
    ] {
        assert_eq!(classify(name), ImportClass::OtherWasi, "{name}");
    }
    assert_eq!(classify("wasi:cli/stdout@0.2.3+build-7"), ImportClass::WasiInert);
}

#[test]
fn names_are_those_that_wit_can_say() {
    for name in [
        "wasi:cli/environment@0.2.6",
        "a-b",
        "[method]output-stream.blocking-write-and-flush",
        "[resource-drop]error",
        "a:b/c@1.0.0-rc.1+build",
    ] {
        assert!(is_plain(name), "{name}");
    }
    let long = "a".repeat(NAME_BYTES_MAX + 1);
    for name in [
        "",
        "url=<https://x>",
        "a b",
        "a\nb",
        "a\u{1b}[8m",
        "\u{202e}a",
        "unlocked-dep=<a:b>",
        &long,
    ] {
        assert!(!is_plain(name), "{name}");
    }
}

#[test]
fn versions_are_compatible_as_semver_says() {
    for (version, fits) in
        [("0.1.0", true), ("0.1.7", true), ("0.2.0", false), ("1.1.0", false), ("0.10.0", false)]
    {
        assert_eq!(is_compatible(Some(version)), fits, "{version}");
    }
    assert!(!is_compatible(Some("0.1.0-rc.1")), "one before the release");
    assert!(!is_compatible(None));
}

#[test]
fn what_is_looked_at_is_what_the_compiler_knows_and_async() {
    let engine = wasmtime::Engine::new(&crate::config::base()).expect("an engine");
    let seen = |part: &str| {
        let bytes = wat::parse_str(format!("(component {part})")).expect("it is text");
        (outline::outline(&bytes).is_ok(), engine.precompile_component(&bytes).is_ok())
    };
    for known in [
        "(core module (func (result i32 i64) unreachable))",
        "(core module (memory 1) (memory 1))",
        "(core module (global i32 (i32.add (i32.const 1) (i32.const 1))))",
        "(type (record (field \"a\" u8)))",
    ] {
        assert_eq!(seen(known), (true, true), "{known}");
    }
    for unknown in [
        "(core module (memory i64 1))",
        "(core module (table i64 1 funcref))",
        "(core module (memory 1 1 shared))",
        "(core module (memory 1 (pagesize 1)))",
        "(core module (tag))",
        "(core module (type (struct)))",
        "(type (list u8 3))",
        "(import \"a\" (value u8))",
        "(type (map string u8))",
    ] {
        assert_eq!(seen(unknown), (false, false), "{unknown}");
    }
    for either in [
        "(core module (func (param externref)))",
        "(core module (func (param (ref func))))",
        "(core module (rec (type (func)) (type (func))))",
        "(core module (type (sub (func))))",
    ] {
        let (is_seen, compiles) = seen(either);
        assert_eq!(is_seen, compiles, "{either}");
    }
    for inspected in [
        "(type (future u8))",
        "(type (stream u8))",
        "(import \"a\" (func async))",
        "(type error-context)",
        "(core func (canon backpressure.inc))",
    ] {
        assert_eq!(seen(inspected), (true, false), "{inspected}");
    }
}

#[test]
fn what_loads_under_no_policy_is_looked_at_and_told() {
    let refusal = |parts: &str| {
        let bytes = wat::parse_str(format!("(component {parts})")).expect("it is text");
        let outline = outline::outline(&bytes).expect("it is looked at");
        let found = Inspection::of(&blake3::hash(&bytes), bytes.len() as u64, outline);
        found.expect("it has names as in WIT").refusal()
    };
    let canceled = refusal("(core func (canon task.cancel))");
    assert!(matches!(canceled, Some(LoadError::Async { .. })), "{canceled:?}");
    let of = |memory: &str, instances: usize| {
        let instances = "(core instance (instantiate $m))".repeat(instances);
        refusal(&format!("(core module $m {memory}) {instances}"))
    };
    for (memory, instances) in [("(memory 2048)", 1), ("(memory 1)", 5), ("(memory 513)", 2)] {
        let refused = of(memory, instances);
        assert!(matches!(refused, Some(LoadError::TooMuch { .. })), "{memory}: {refused:?}");
    }
    for (memory, instances) in [("", 1), ("(memory 2048)", 0), ("(memory 256)", 4)] {
        let refused = of(memory, instances);
        assert!(refused.is_none(), "{memory}: {refused:?}");
    }
}

#[test]
fn names_take_no_more_memory_than_is_said() {
    // Each import of an instance has the names of its functions anew.
    let functions: String = (0..500).map(|at| format!("(export \"f{at}\" (func))")).collect();
    let with = |count: usize| {
        let imports: String =
            (0..count).map(|at| format!("(import \"i{at}\" (instance (type $i)))")).collect();
        let text = format!("(component (type $i (instance {functions})) {imports})");
        outline::outline(&wat::parse_str(text).expect("it is text"))
    };
    assert_eq!(with(100).expect("100 times 500").imports.len(), 100);
    assert!(with(200).expect_err("200 times 500").contains("names"));
    // Each export of an instance has the names of what is in it, however deep.
    let types: String = (0..500).map(|at| format!("(export \"t{at}\" (type $t))")).collect();
    let with = |count: usize| {
        let exports: String =
            (0..count).map(|at| format!("(export \"i{at}\" (instance $i))")).collect();
        let text = format!(
            r#"(component (type $t u8) (instance $j {types})
                (instance $i (export "j" (instance $j))) {exports})"#
        );
        outline::outline(&wat::parse_str(text).expect("it is text"))
    };
    assert_eq!(with(100).expect("100 times 500").exports.len(), 100);
    assert!(with(200).expect_err("200 times 500").contains("names"));
}

#[test]
fn a_component_on_which_the_validator_panics_is_not_valid() {
    let deep = |depth: usize| {
        let instance = |at| format!("(instance (export \"a\" (instance {at})))");
        let chain: String = (0..depth).map(instance).collect();
        outline::outline(&wat::parse_str(format!("(component (instance) {chain})")).expect("text"))
    };
    assert!(deep(100).is_ok());
    assert!(deep(200).expect_err("more than it expects").contains("the validator fails"));
}
