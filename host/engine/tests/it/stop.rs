//! Guests that are stopped, and host functions that fail.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun::clock::SystemClock;
use taskrun::scope::StopSignal;
use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_journal::time::{Clock, Timestamp};
use tokio::sync::Notify;

use crate::support::*;

/// Longest that is waited for what has to come.
const DEADLINE: Duration = Duration::from_secs(60);
/// Time of a call that is to be stopped before it is over.
const LONGER: Duration = Duration::from_secs(3_600);

pub(crate) const CLOCK: &str = r#"
    (import "taskrun:plugin/clock@0.1.0" "sleep" (func $sleep (param i64 i32)))
    (import "taskrun:plugin/clock@0.1.0" "now" (func $now (result i64)))
"#;

/// A clock that knows when a guest asked it for the time or began to sleep: then it is running.
pub(crate) struct ListeningClock {
    clock: SystemClock,
    asked: Notify,
}

impl ListeningClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { clock: SystemClock::new(), asked: Notify::new() })
    }

    /// Returns when a guest has asked.
    pub(crate) async fn is_asked(&self) {
        let asked = tokio::time::timeout(DEADLINE, self.asked.notified());
        asked.await.expect("the guest runs");
    }
}

#[async_trait]
impl Clock for ListeningClock {
    fn now(&self) -> Timestamp {
        self.asked.notify_one();
        self.clock.now()
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    async fn sleep_until(&self, at: Duration) {
        self.asked.notify_one();
        self.clock.sleep_until(at).await;
    }
}

/// The failure of a call that is told so many times to end once its guest runs.
async fn stopped_after(code: &str, times: u32) -> CallAbort {
    let engine = engine();
    let tool = tool(&engine, tool_bytes(CLOCK, code), grants("")).await.unwrap();
    let stop = StopSignal::new(engine.interrupt());
    let clock = ListeningClock::new();
    let scope = scope_on(clock.clone(), LONGER, stop.clone());
    let task = tokio::spawn(async move { tool.call(call(), scope).await });
    clock.is_asked().await;
    for _ in 0..times {
        stop.force(StopCause::Shutdown);
    }
    let ended = tokio::time::timeout(DEADLINE, task).await.expect("it is stopped");
    ended.unwrap().unwrap_err()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spinning_guest_is_stopped() {
    let failure = stopped_after("(drop (call $now)) (loop $l (br $l)) unreachable", 1).await;
    assert_eq!(failure, CallAbort::Stopped { cause: StopCause::Shutdown });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_13_a_parked_guest_is_stopped_also_twice() {
    // `clock.sleep` would return early when asked; this one goes back to sleep.
    let code = "(loop $l (call $sleep (i64.const 3600000) (i32.const 5120)) (br $l)) unreachable";
    let failure = stopped_after(code, 2).await;
    assert_eq!(failure, CallAbort::Stopped { cause: StopCause::Shutdown });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_12_a_guest_is_stopped_while_it_is_instantiated() {
    let start = "(call $respond)) (func $begin (drop (call $now)) (loop $l (br $l)) unreachable)
        (start $begin) (func (result i32)";
    let engine = engine();
    let loaded = engine.load(agent_bytes(CLOCK, start)).await.unwrap();
    let planner = engine.agent(&loaded, grants("")).unwrap();
    let (stop, clock) = (StopSignal::new(engine.interrupt()), ListeningClock::new());
    let scope = scope_on(clock.clone(), Duration::from_secs(3_600), stop.clone());
    let task = tokio::spawn(async move { planner.plan(plan_input(), scope).await });
    clock.is_asked().await;
    stop.force(StopCause::Canceled);
    let failure = task.await.unwrap().unwrap_err();
    assert_eq!(failure, CallAbort::Stopped { cause: StopCause::Canceled });
    let good = self::tool(&engine, tool_bytes("", OK), grants("")).await.unwrap();
    assert!(good.call(call(), patient()).await.unwrap().is_ok());
}

#[tokio::test]
async fn case_12_a_call_that_waits_for_a_slot_is_stopped() {
    let engine =
        engine_with(taskrun_engine::EngineOptions { instances: Some(1), ..Default::default() });
    let sleeper = "(call $sleep (i64.const 3600000) (i32.const 5120)) unreachable";
    let tool = tool(&engine, tool_bytes(CLOCK, sleeper), grants("")).await.unwrap();
    let clock = ListeningClock::new();
    let first = tokio::spawn({
        let tool = tool.clone();
        let scope = scope_on(clock.clone(), Duration::from_secs(60), StopSignal::never());
        async move { tool.call(call(), scope).await }
    });
    clock.is_asked().await;
    let (stop, short) = (StopSignal::never(), Duration::from_millis(1));
    let mut second = tool.call(call(), scope(short, stop.clone()));
    assert!(futures::poll!(&mut second).is_pending());
    // A call that has a slot elsewhere, and began later, meets the same deadline.
    let other = self::tool(&self::engine(), tool_bytes(CLOCK, sleeper), grants("")).await.unwrap();
    let failure = other.call(call(), scope(short, StopSignal::never())).await.unwrap_err();
    assert_eq!(failure, CallAbort::Deadline { limit_ms: 1 });
    let waits = futures::poll!(&mut second).is_pending();
    assert!(waits, "the deadline counts from the slot on");
    stop.force(StopCause::Canceled);
    let failure = second.await.unwrap_err();
    assert_eq!(failure, CallAbort::Stopped { cause: StopCause::Canceled });
    first.abort();
}

#[tokio::test]
async fn a_sleep_ends_early_when_asked_and_the_guest_goes_on() {
    let code = format!(
        "(call $sleep (i64.const 3600000) (i32.const 5120)) (if (i32.eqz (i32.load8_u (i32.const 5120))) (then unreachable)) {OK}"
    );
    let engine = engine();
    let tool = tool(&engine, tool_bytes(CLOCK, &code), grants("")).await.unwrap();
    let stop = StopSignal::new(engine.interrupt());
    let clock = ListeningClock::new();
    let scope = scope_on(clock.clone(), Duration::from_secs(60), stop.clone());
    let task = tokio::spawn(async move { tool.call(call(), scope).await });
    clock.is_asked().await;
    stop.ask(StopCause::Canceled);
    assert!(task.await.unwrap().unwrap().is_ok());
}

#[tokio::test]
async fn whoever_imports_cancellation_hears_it() {
    let import = r#"(import "taskrun:plugin/cancellation@0.1.0" "requested" (func $requested (result i32)))"#;
    let code = format!("(loop $l (br_if $l (i32.eqz (call $requested)))) {OK}");
    let engine = engine();
    let tool = tool(&engine, tool_bytes(import, &code), grants("")).await.unwrap();
    assert!(tool.hears_cancellation());
    let stop = StopSignal::never();
    stop.ask(StopCause::Canceled);
    let scope = scope(Duration::from_secs(60), stop);
    assert!(tool.call(call(), scope).await.unwrap().is_ok());
}

#[tokio::test]
async fn a_dropped_call_frees_its_slot() {
    let engine =
        engine_with(taskrun_engine::EngineOptions { instances: Some(1), ..Default::default() });
    let sleeper = "(call $sleep (i64.const 3600000) (i32.const 5120)) unreachable";
    let tool = tool(&engine, tool_bytes(CLOCK, sleeper), grants("")).await.unwrap();
    for _ in 0..20 {
        let call = tool.call(call(), patient());
        assert!(tokio::time::timeout(Duration::from_millis(5), call).await.is_err());
    }
    let good = self::tool(&engine, tool_bytes("", OK), grants("")).await.unwrap();
    assert!(good.call(call(), patient()).await.unwrap().is_ok());
}

struct BrokenClock;

#[async_trait]
impl Clock for BrokenClock {
    fn now(&self) -> Timestamp {
        panic!("the clock is broken")
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }

    async fn sleep_until(&self, _: Duration) {
        tokio::task::yield_now().await;
        panic!("the clock is broken")
    }
}

#[tokio::test]
async fn a_panic_in_a_host_function_fails_one_call() {
    let engine = engine();
    for code in [
        "(drop (call $now)) unreachable",
        "(call $sleep (i64.const 1) (i32.const 5120)) unreachable",
    ] {
        let tool = tool(&engine, tool_bytes(CLOCK, code), grants("")).await.unwrap();
        let scope = scope_on(Arc::new(BrokenClock), Duration::from_secs(60), StopSignal::never());
        assert_eq!(tool.call(call(), scope).await.unwrap_err(), CallAbort::Internal);
    }
    let good = tool(&engine, tool_bytes("", OK), grants("")).await.unwrap();
    assert!(good.call(call(), patient()).await.unwrap().is_ok());
}
