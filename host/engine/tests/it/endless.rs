//! Guests that never end by themselves, wherever they are.

use std::time::Duration;

use taskrun::scope::StopSignal;
use taskrun_engine::{EngineOptions, LoadError};
use taskrun_journal::stop::CallAbort;
use wit_component::StringEncoding;

use crate::support::*;

const SPIN: &str = "(loop $l (br $l)) unreachable";
const SHORT: Duration = Duration::from_millis(80);
const TOO_LONG: CallAbort = CallAbort::Deadline { limit_ms: 80 };

/// Calls a tool that has little time, which it must use up, and another one of the same engine after
/// it.
async fn meets_its_deadline(bytes: Vec<u8>) {
    let engine = engine();
    let endless = tool(&engine, bytes, grants("")).await.unwrap();
    let failure = endless.call(call(), scope(SHORT, StopSignal::never())).await.unwrap_err();
    assert_eq!(failure, TOO_LONG);
    let good = tool(&engine, tool_bytes("", OK), grants("")).await.unwrap();
    assert!(good.call(call(), patient()).await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_03_a_tool_that_spins_in_its_start_does_not_load() {
    let start = format!("{OK}) (func $spin {SPIN}) (start $spin) (func");
    let options = EngineOptions { describe_deadline: SHORT, ..Default::default() };
    let refused = tool(&engine_with(options), tool_bytes("", &start), grants("")).await;
    assert!(matches!(refused.err(), Some(LoadError::Describe(TOO_LONG))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_03_an_agent_that_spins_in_its_start_meets_the_deadline_of_its_step() {
    let start = format!("(call $respond)) (func $spin {SPIN}) (start $spin) (func (result i32)");
    let engine = engine();
    let loaded = engine.load(agent_bytes("", &start)).await.unwrap();
    let planner = engine.agent(&loaded, grants("")).unwrap();
    let planned = planner.plan(plan_input(), scope(SHORT, StopSignal::never())).await;
    assert_eq!(planned.unwrap_err(), TOO_LONG);
    let good = engine.load(agent_bytes("", "")).await.unwrap();
    let good = engine.agent(&good, grants("")).unwrap();
    assert!(good.plan(plan_input(), patient()).await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_04_what_follows_an_answer_is_inside_the_deadline() {
    let post = format!(
        r#"{OK}) (func (export "cabi_post_taskrun:plugin/tools@0.1.0#call") (param i32) {SPIN}"#
    );
    meets_its_deadline(tool_bytes("", &post)).await;
}

/// A tool with a resource of its own whose destructor never ends.
fn with_destructor(run: &str) -> Vec<u8> {
    const WORLD: &str = "package test:thing;
        interface things { resource thing { constructor(); } }
        world thing { include taskrun:plugin/tool@0.1.0; export things; }";
    let imports = r#"
        (import "[export]test:thing/things" "[resource-new]thing" (func $new (param i32) (result i32)))
        (import "[export]test:thing/things" "[resource-drop]thing" (func $drop (param i32)))
    "#;
    let run = format!(
        r#"{run})
        (func (export "test:thing/things#[constructor]thing") (result i32)
            (call $new (i32.const 1)))
        (func (export "test:thing/things#[dtor]thing") (param i32) {SPIN}"#
    );
    let module = tool_module(imports, DESCRIBE, &run);
    component_of(&[WORLD], "thing", &module, StringEncoding::UTF8)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_04_a_destructor_is_inside_the_deadline_and_none_runs_after_the_call() {
    let dropped = format!("(call $drop (call $new (i32.const 1))) {OK}");
    meets_its_deadline(with_destructor(&dropped)).await;
    let left = format!("(drop (call $new (i32.const 1))) {OK}");
    assert!(run(with_destructor(&left), grants("")).await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_05_endless_loops_of_bulk_operations_meet_their_deadline() {
    let operations = [
        "",
        "(memory.fill (i32.const 0) (i32.const 0) (i32.const 1000000))",
        "(memory.copy (i32.const 0) (i32.const 8) (i32.const 1000000))",
        "(table.fill $t (i32.const 0) (ref.null func) (i32.const 9000))",
        "(table.copy $t $t (i32.const 0) (i32.const 8) (i32.const 8000))",
    ];
    for operation in operations {
        let code = format!(
            "(loop $l {operation} (br $l)) unreachable) (table $t 9000 funcref) (func unreachable"
        );
        meets_its_deadline(tool_bytes("", &code)).await;
    }
}

/// Each load is of another line and another page than those before, and waits for memory: little
/// work as a counter of instructions sees it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_06_a_loop_of_few_instructions_that_misses_every_cache_meets_its_deadline() {
    let code = r#"(local $at i32)
        (drop (memory.grow (i32.const 700)))
        (loop $l
            (local.set $at (i32.and
                (i32.add (local.get $at) (i32.const 1052737))
                (i32.const 0x1fffff8)))
            (i64.store (local.get $at)
                (i64.add (i64.load (local.get $at)) (i64.const 1)))
            (br $l))
        unreachable"#;
    meets_its_deadline(tool_bytes("", code)).await;
}
