//! Instances of one slot, one after the other: the next one finds nothing of those before it.

use taskrun_engine::EngineOptions;
use taskrun_journal::stop::CallAbort;

use crate::support::*;

/// Looks at a global, a table and all memory that no data is in: `$look` ends the guest where
/// something is there, `$leave` puts something everywhere.
const ITEMS: &str = r#"
    (global $mark (mut i64) (i64.const 0))
    (table $marks 5000 funcref)
    (elem declare func $look)
    (func $look (local $at i32)
        (if (i64.ne (global.get $mark) (i64.const 0)) (then unreachable))
        (local.set $at (i32.const 4999))
        (loop $table
            (if (i32.eqz (ref.is_null (table.get $marks (local.get $at)))) (then unreachable))
            (br_if $table (local.tee $at (i32.sub (local.get $at) (i32.const 1)))))
        (local.set $at (i32.const 1000000))
        (loop $memory
            (if (i64.ne (i64.load (local.get $at)) (i64.const 0)) (then unreachable))
            (local.set $at (i32.add (local.get $at) (i32.const 8)))
            (br_if $memory (i32.lt_u (local.get $at) (i32.const 3000000)))))
    (func $leave
        (global.set $mark (i64.const -1))
        (table.fill $marks (i32.const 0) (ref.func $look) (i32.const 5000))
        (memory.fill (i32.const 1000000) (i32.const 170) (i32.const 2000000)))
"#;

fn guest(code: &str) -> Vec<u8> {
    let run = format!("(drop (memory.grow (i32.const 40))) {code}) {ITEMS} (func");
    tool_bytes("", &run)
}

#[tokio::test]
async fn case_63_an_instance_finds_nothing_of_those_before_it_in_its_slot() {
    let engine = engine_with(EngineOptions { instances: Some(1), ..Default::default() });
    let both = tool(&engine, guest(&format!("(call $look) (call $leave) {OK}")), grants("")).await;
    let traps = tool(&engine, guest("(call $look) (call $leave) unreachable"), grants("")).await;
    let other = tool(&engine, guest(&format!("(call $look) {OK}")), grants("")).await;
    let (both, traps, other) = (both.unwrap(), traps.unwrap(), other.unwrap());
    for _ in 0..5 {
        assert!(both.call(call(), patient()).await.unwrap().is_ok());
        // The same component again, which has the warm slot, then others.
        assert!(both.call(call(), patient()).await.unwrap().is_ok());
        assert!(other.call(call(), patient()).await.unwrap().is_ok());
        assert!(traps.call(call(), patient()).await.is_err());
        assert!(other.call(call(), patient()).await.unwrap().is_ok());
    }
    // It would find what is there.
    for mark in ["(global.set $mark (i64.const 1))", "(call $leave)"] {
        let finds = tool(&engine, guest(&format!("{mark} (call $look) {OK}")), grants("")).await;
        let ended = finds.unwrap().call(call(), patient()).await.unwrap_err();
        assert_eq!(ended, CallAbort::Trap { code: "unreachable".to_owned() });
    }
}
