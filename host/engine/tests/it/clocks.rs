//! WASI's monotonic clock, as a guest reads it that looks at nothing else before.

use std::sync::Arc;

use taskrun::clock::SimulatedClock;
use taskrun::scope::{CallScope, JournalRoom, Tape};
use taskrun_journal::event::Event;
use taskrun_journal::time::Timestamp;
use wit_component::StringEncoding;

use crate::support::*;

/// The part of the interface that is tried; names and forms are WASI's.
const CLOCKS: &str = "package wasi:clocks@0.2.0;
    interface monotonic-clock { now: func() -> u64; }";
const WORLDS: &str = "package test:clocks;
    world looking-tool {
        include taskrun:plugin/tool@0.1.0;
        import wasi:clocks/monotonic-clock@0.2.0;
    }
    world looking-agent {
        include taskrun:plugin/agent@0.1.0;
        import wasi:clocks/monotonic-clock@0.2.0;
    }";
const IMPORTS: &str = r#"
    (import "wasi:clocks/monotonic-clock@0.2.0" "now" (func $now (result i64)))
"#;
/// Traps where the clock shows nothing, as Go's runtime does.
const LOOKS: &str = "(if (i64.eqz (call $now)) (then unreachable))";
/// Traps where the clock shows anything but a second.
const SHOWS_A_SECOND: &str = "(if (i64.ne (call $now) (i64.const 1000000000)) (then unreachable))";

#[tokio::test]
async fn a_tool_whose_runtime_wants_a_clock_describes_itself_and_is_called() {
    let describe = format!("{LOOKS} {DESCRIBE}");
    let module = tool_module(IMPORTS, &describe, &format!("{LOOKS} {OK}"));
    let bytes = component_of(&[CLOCKS, WORLDS], "looking-tool", &module, StringEncoding::UTF8);
    let answer = run(bytes, grants("")).await;
    assert!(matches!(&answer, Ok(Ok(_))), "{answer:?}");
}

/// The scope of a plan step on a clock that stands still, which does again what is on record.
fn step(time: Timestamp, record: Option<&[Event]>) -> Arc<CallScope> {
    let tape = record.map(|events| {
        let mut tape = Tape::default();
        events.iter().for_each(|event| tape.push(event));
        tape
    });
    scope_with(|parts| {
        parts.clock = Arc::new(SimulatedClock::new(time));
        (parts.journal, parts.tape) = (Some(JournalRoom::default()), tape);
    })
}

#[tokio::test]
async fn a_plan_step_reads_the_same_clock_when_it_is_repeated() {
    let module = agent_module(IMPORTS, &format!("{SHOWS_A_SECOND} {SHOWS_A_SECOND}"));
    let bytes = component_of(&[CLOCKS, WORLDS], "looking-agent", &module, StringEncoding::UTF8);
    let engine = engine();
    let loaded = engine.load(bytes).await.expect("a component");
    let agent = engine.agent(&loaded, grants("")).expect("an agent");
    let first = step(Timestamp(5_000), None);
    let planned = agent.plan(plan_input(), Arc::clone(&first)).await;
    assert!(matches!(&planned, Ok(Ok(_))), "{planned:?}");
    let record = first.finish().events;
    assert!(matches!(&record[..], [Event::ClockRead { .. }]), "{record:?}");
    let again = step(Timestamp(9_000), Some(&record));
    let planned = agent.plan(plan_input(), Arc::clone(&again)).await;
    assert!(matches!(&planned, Ok(Ok(_))), "{planned:?}");
    assert_eq!(again.finish().events, [], "nothing is read anew");
}
