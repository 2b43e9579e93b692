//! Guests that take more than they may, or break.

use std::time::Duration;

use taskrun_engine::{LoadError, NeedBound};
use taskrun_journal::stop::CallAbort;

use crate::support::*;

fn limit(what: &str, limit: u64) -> CallAbort {
    CallAbort::Limit { what: what.to_owned(), limit }
}

async fn failure_of(code: &str) -> CallAbort {
    failure_under(code, grants("")).await
}

async fn failure_under(code: &str, with: taskrun_engine::AgentGrants) -> CallAbort {
    run(tool_bytes("", code), with).await.unwrap_err()
}

#[tokio::test]
async fn a_tool_answers() {
    let value = run(tool_bytes("", OK), grants("")).await.unwrap().unwrap();
    assert_eq!(value.value, "true");
    assert_eq!(value.bounds, None);
}

#[tokio::test]
async fn an_agent_answers() {
    let engine = engine();
    let loaded = engine.load(agent_bytes("", "")).await.unwrap();
    let planner = engine.agent(&loaded, grants("")).unwrap();
    assert!(!planner.hears_cancellation());
    assert_eq!(planner.digest(), loaded.digest());
    let result = planner.plan(plan_input(), patient()).await.unwrap().unwrap();
    let taskrun::ports::planner::Decision::FinalResponse(message) = result.decision else {
        panic!("{:?}", result.decision)
    };
    assert_eq!(message.joined_text(), "done");
}

#[tokio::test]
async fn memory_is_bounded() {
    let grow =
        "(loop $l (br_if $l (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) unreachable";
    let with = limited(|limits| limits.memory_bytes = 4 << 20);
    assert_eq!(failure_under(grow, with).await, CallAbort::Memory { limit_bytes: 4 << 20 });
    // At once to 4 GiB, past the slot of the pool.
    let huge = "(drop (memory.grow (i32.const 65000))) unreachable";
    assert_eq!(failure_of(huge).await, CallAbort::Memory { limit_bytes: 64 << 20 });
}

/// A tool with a memory of so many pages beside the one of a MiB and a page that each has here.
fn with_another_memory(pages: u32) -> Vec<u8> {
    tool_bytes("", &format!("{OK}) (memory $other {pages}) (func (unreachable)"))
}

/// No call of it would begin.
#[tokio::test]
async fn case_15_a_component_that_begins_with_more_than_its_limit_does_not_load() {
    for (bytes, limit, begins) in [
        (tool_bytes("", OK), 1 << 20, "1088 KiB"),
        // All memories together.
        (with_another_memory(15), (1 << 20) + (64 << 10), "2 MiB"),
    ] {
        let with = limited(|limits| limits.memory_bytes = limit);
        let refused = tool(&engine(), bytes, with).await.err().expect("it begins with more");
        let LoadError::TooMuch { detail, bound } = &refused else { panic!("{refused}") };
        assert_eq!(*bound, NeedBound::Limits, "{refused}");
        assert!(detail.contains(begins) && detail.contains("`limits`"), "{detail}");
        assert!(refused.is_of_component());
    }
    let with = limited(|limits| limits.memory_bytes = 2 << 20);
    let just = tool(&engine(), with_another_memory(15), with).await;
    assert!(just.is_ok(), "{:?}", just.err());
}

#[tokio::test]
async fn memories_that_no_limit_allows_together_are_refused_as_one_of_their_size() {
    let refused = tool(&engine(), with_another_memory(1_020), grants("")).await;
    let refused = refused.err().expect("no limit allows more than 64 MiB");
    let is_of_engine = matches!(refused, LoadError::TooMuch { bound: NeedBound::Engine, .. });
    assert!(is_of_engine && refused.to_string().contains("64 MiB"), "{refused}");
}

#[tokio::test]
async fn case_17_tables_are_bounded() {
    // Little by little, and to ten million at once.
    for step in [1_000, 10_000_000] {
        let code = format!(
            r#"(loop $l
                (br_if $l (i32.ne (table.grow $t (ref.null func) (i32.const {step})) (i32.const -1))))
            {OK}) (table $t 1 funcref) (func (unreachable)"#
        );
        assert_eq!(failure_of(&code).await, limit("table elements", 10_000), "{step}");
    }
}

/// WebAssembly promises -1 there, and guests that state a maximum look for it.
#[tokio::test]
async fn growth_beyond_the_own_maximum_of_a_memory_or_table_fails() {
    let fails = |grow: &str, items: &str| {
        let code = format!(
            "(if (i32.ne {grow} (i32.const -1)) (then unreachable)) {OK}) {items} (func (unreachable)"
        );
        tool_bytes("", &code)
    };
    let table = "(table.grow $t (ref.null func) (i32.const 3))";
    let answer = run(fails(table, "(table $t 2 4 funcref)"), grants("")).await;
    assert!(matches!(&answer, Ok(Ok(_))), "{answer:?}");
    let memory = "(memory.grow $own (i32.const 3))";
    let answer = run(fails(memory, "(memory $own 1 3)"), grants("")).await;
    assert!(matches!(&answer, Ok(Ok(_))), "{answer:?}");
}

#[tokio::test]
async fn a_stack_overflow_is_one() {
    let code = "(call $deep) unreachable) (func $deep (call $deep) (call $deep)";
    assert_eq!(failure_of(code).await, CallAbort::Stack);
}

#[tokio::test]
async fn case_70_traps_have_names_and_nothing_more() {
    let trap = |code: &str| CallAbort::Trap { code: code.to_owned() };
    assert_eq!(failure_of("unreachable").await, trap("unreachable"));
    let division = "(i32.div_u (i32.const 1) (i32.const 0))";
    assert_eq!(failure_of(division).await, trap("integer divide by zero"));
    let load = "(i32.load (i32.const -4))";
    assert_eq!(failure_of(load).await, trap("memory out of bounds"));
}

#[tokio::test]
async fn broken_answers_are_breaches_of_contract() {
    let contract = |failure: &CallAbort| matches!(failure, CallAbort::Contract { .. });
    let outside = failure_of("(call $ok (i32.const -8) (i32.const 4))").await;
    assert!(contract(&outside), "{outside:?}");
    let unaligned = failure_of("(i32.const 4097)").await;
    assert!(contract(&unaligned), "{unaligned:?}");
    let discriminant =
        failure_of("(i32.store8 (i32.const 4096) (i32.const 9)) (i32.const 4096)").await;
    assert!(contract(&discriminant), "{discriminant:?}");
    let unicode = failure_of(
        "(i32.store8 (i32.const 2100) (i32.const 255)) (call $ok (i32.const 2100) (i32.const 4))",
    )
    .await;
    assert!(contract(&unicode), "{unicode:?}");
    let json = failure_of("(call $ok (i32.const 2048) (i32.const 3))").await;
    let CallAbort::Contract { detail } = json else { panic!("{json:?}") };
    assert!(detail.starts_with("its result is not JSON"), "{detail}");
}

#[tokio::test]
async fn results_are_bounded() {
    let text = |bytes: u32| format!("(call $fail (i32.const 0) (i32.const {bytes}))");
    let with = || limited(|limits| limits.result_bytes = 1_000);
    assert_eq!(
        run(tool_bytes("", &text(1_000)), with()).await.unwrap().unwrap_err().error.message.len(),
        1_000
    );
    assert_eq!(failure_under(&text(1_001), with()).await, limit("result bytes", 1_000));
    assert_eq!(failure_of(&text(1_048_577)).await, limit("result bytes", 1 << 20));
}

#[tokio::test]
async fn a_result_of_a_gibibyte_is_refused_before_it_is_read() {
    // `causes` lists the same half megabyte four thousand times.
    let code = r#"(local $i i32)
        (loop $fill
            (i32.store (i32.add (i32.const 100000) (i32.mul (local.get $i) (i32.const 8))) (i32.const 600000))
            (i32.store (i32.add (i32.const 100004) (i32.mul (local.get $i) (i32.const 8))) (i32.const 500000))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br_if $fill (i32.lt_u (local.get $i) (i32.const 4000))))
        (i32.store (i32.const 4124) (i32.const 100000))
        (i32.store (i32.const 4128) (i32.const 4000))
        (call $fail (i32.const 0) (i32.const 0))"#;
    assert_eq!(failure_of(code).await, limit("result bytes", 1 << 20));
    assert!(peak_bytes() < 1 << 30, "the host has grown");
    // A list that claims more items than memory could hold.
    let code = r#"
        (i32.store (i32.const 4124) (i32.const 0))
        (i32.store (i32.const 4128) (i32.const 100000))
        (call $fail (i32.const 0) (i32.const 0))"#;
    let with = limited(|limits| limits.host_call_bytes = 1 << 20);
    assert_eq!(failure_under(code, with).await, limit("result bytes", 1 << 20));
}

fn status(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().unwrap() << 10
}

fn resident_bytes() -> u64 {
    status("VmRSS:")
}

fn peak_bytes() -> u64 {
    status("VmHWM:")
}

const LOG: &str =
    r#"(import "taskrun:plugin/log@0.1.0" "log" (func $log (param i32 i32 i32 i32 i32)))"#;

#[tokio::test]
async fn case_07_host_calls_are_counted() {
    let code = r#"(loop $l
        (call $log (i32.const 2) (i32.const 2048) (i32.const 3) (i32.const 0) (i32.const 0))
        (br $l)) unreachable"#;
    let with = limited(|limits| limits.host_calls = 500);
    let scope = patient();
    let failure = run_in(tool_bytes(LOG, code), with, scope.clone()).await.unwrap_err();
    assert_eq!(failure, limit("host calls", 500));
    assert_eq!(scope.finish().events.len(), 500);
}

#[tokio::test]
async fn case_23_what_a_host_call_carries_is_bounded() {
    let code = "(call $log (i32.const 2) (i32.const 0) (i32.const 1000000) (i32.const 0) (i32.const 0)) unreachable";
    let with = limited(|limits| limits.host_call_bytes = 64 << 10);
    let failure = run(tool_bytes(LOG, code), with).await.unwrap_err();
    assert_eq!(failure, limit("bytes of a host call", 64 << 10));
}

#[tokio::test]
async fn a_long_line_is_cut() {
    let code = format!(
        "(call $log (i32.const 2) (i32.const 0) (i32.const 1000000) (i32.const 0) (i32.const 0)) {OK}"
    );
    let scope = patient();
    run_in(tool_bytes(LOG, &code), grants(""), scope.clone()).await.unwrap().unwrap();
    let events = scope.finish().events;
    let [taskrun_journal::event::Event::Log { message, .. }] = &events[..] else {
        panic!("one line: {events:?}")
    };
    assert!(message.len() <= 8 << 10 && message.ends_with(" bytes more)"), "{message}");
}

/// Each takes 300 KiB beyond what a slot keeps, so together they would leave more than a gibibyte.
#[tokio::test]
async fn case_20_thousands_of_trapped_calls_leave_nothing_behind() {
    let engine = engine();
    let code = "(drop (memory.grow (i32.const 500)))
        (memory.fill (i32.const 8000000) (i32.const 1) (i32.const 307200)) unreachable";
    let trapping = tool(&engine, tool_bytes("", code), grants("")).await.unwrap();
    let good = tool(&engine, tool_bytes("", OK), grants("")).await.unwrap();
    for _ in 0..4_000 {
        assert!(trapping.call(call(), patient()).await.is_err());
    }
    assert!(good.call(call(), patient()).await.unwrap().is_ok());
    assert!(resident_bytes() < 1 << 30);
}

#[tokio::test]
async fn more_calls_than_slots_all_succeed() {
    let engine = engine();
    let sleeper = tool(
        &engine,
        tool_bytes(
            r#"(import "taskrun:plugin/clock@0.1.0" "sleep" (func $sleep (param i64 i32)))"#,
            &format!("(call $sleep (i64.const 5) (i32.const 5120)) {OK}"),
        ),
        grants(""),
    )
    .await
    .unwrap();
    let calls = (0..100).map(|_| {
        let sleeper = sleeper.clone();
        tokio::spawn(async move { ask(&*sleeper, call(), patient()).await })
    });
    for result in futures::future::join_all(calls).await {
        assert_eq!(result.unwrap().unwrap().unwrap().value, "true");
    }
}

#[tokio::test]
async fn case_14_one_guests_deadline_is_not_anothers() {
    let engine = engine();
    let spinner =
        tool(&engine, tool_bytes("", "(loop $l (br $l)) unreachable"), grants("")).await.unwrap();
    let good = tool(
        &engine,
        tool_bytes(
            r#"(import "taskrun:plugin/clock@0.1.0" "sleep" (func $sleep (param i64 i32)))"#,
            &format!("(call $sleep (i64.const 200) (i32.const 5120)) {OK}"),
        ),
        grants(""),
    )
    .await
    .unwrap();
    let short = scope(Duration::from_millis(50), taskrun::scope::StopSignal::never());
    let (spun, slept) = tokio::join!(spinner.call(call(), short), good.call(call(), patient()));
    assert!(matches!(spun, Err(CallAbort::Deadline { .. })));
    assert!(slept.unwrap().is_ok());
}

#[tokio::test]
async fn a_parked_guest_meets_its_deadline() {
    let bytes = tool_bytes(
        r#"(import "taskrun:plugin/clock@0.1.0" "sleep" (func $sleep (param i64 i32)))"#,
        "(call $sleep (i64.const 3600000) (i32.const 5120)) unreachable",
    );
    let scope = scope(Duration::from_millis(50), taskrun::scope::StopSignal::never());
    let failure = run_in(bytes, grants(""), scope).await.unwrap_err();
    assert_eq!(failure, CallAbort::Deadline { limit_ms: 50 });
}
