//! Where guests run: on threads of their own, in front while they are short, and behind the others
//! when they have used up their slice.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::task::SpawnExt;
use taskrun::clock::SystemClock;
use taskrun::ports::tool::Tool;
use taskrun::scope::{LongCalls, StopSignal};
use taskrun_engine::{Engine, EngineOptions};
use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_journal::time::{Clock, Timestamp};
use tokio::sync::watch;

use crate::support::*;

pub(crate) const CLOCK: &str = r#"
    (import "taskrun:plugin/clock@0.1.0" "sleep" (func $sleep (param i64 i32)))
    (import "taskrun:plugin/clock@0.1.0" "now" (func $now (result i64)))
"#;
/// Uses far more of a processor than two slices, the first of which is not counted: 0.17 s where
/// a store and a load take a turn of a nanosecond each.
const LONG: &str = r#"
    (global.set $heap (i32.const 524288))
    (i64.store (i32.const 6000) (i64.const 250000000))
    (loop $long
        (i64.store (i32.const 6000) (i64.sub (i64.load (i32.const 6000)) (i64.const 1)))
        (br_if $long (i64.ne (i64.load (i32.const 6000)) (i64.const 0))))
"#;
const FOR_EVER: &str = "(loop $l (br $l)) unreachable";
pub(crate) const NOW: &str = "(drop (call $now))";
/// Threads on which calls begin, and those where they go on behind the others.
pub(crate) const FIRST: &str = "taskrun-guest";
pub(crate) const BEHIND: &str = "taskrun-behind";
/// Those where they go on while other programs leave them little: which of the two it is follows
/// from what else the machine does.
const SHARE: &str = "taskrun-share";

/// The threads on which this is called.
pub(crate) fn place() -> String {
    let thread = std::thread::current();
    match thread.name().unwrap_or_default() {
        SHARE => BEHIND.to_owned(),
        name => name.to_owned(),
    }
}

/// A clock that notes on which threads guests ask it for the time.
pub(crate) struct Places {
    clock: SystemClock,
    seen: Mutex<Vec<String>>,
    asked: watch::Sender<usize>,
}

impl Places {
    pub(crate) fn new() -> Arc<Self> {
        let asked = watch::Sender::new(0);
        Arc::new(Self { clock: SystemClock::new(), seen: Mutex::default(), asked })
    }

    /// Returns when a guest has asked so often.
    async fn is_asked(&self, times: usize) {
        let mut asked = self.asked.subscribe();
        let asked = asked.wait_for(|asked| *asked >= times);
        tokio::time::timeout(Duration::from_secs(60), asked).await.expect("in time").unwrap();
    }

    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

#[async_trait]
impl Clock for Places {
    fn now(&self) -> Timestamp {
        self.seen.lock().unwrap().push(place());
        self.asked.send_modify(|asked| *asked += 1);
        self.clock.now()
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    async fn sleep_until(&self, at: Duration) {
        self.clock.sleep_until(at).await;
    }
}

/// Far more than a short call takes where the host is not optimized.
const SLICE: Duration = Duration::from_millis(20);

/// An engine with a thread for guests of each kind, and so many slots.
pub(crate) fn threaded(instances: u32) -> Arc<Engine> {
    engine_with(EngineOptions {
        instances: Some(instances),
        guest_threads: Some(1),
        slice: SLICE,
        ..EngineOptions::default()
    })
}

async fn tool_of(engine: &Arc<Engine>, code: &str) -> Arc<dyn Tool> {
    tool(engine, tool_bytes(CLOCK, code), grants("")).await.unwrap()
}

/// Returns when the only slot is free: then nothing is left of the call before.
async fn next_call_is_served(engine: &Arc<Engine>) {
    let good = tool_of(engine, OK).await;
    assert!(good.call(call(), patient()).await.unwrap().is_ok());
}

#[tokio::test]
async fn no_guest_runs_on_a_thread_of_its_caller_and_a_long_one_goes_on_behind() {
    let engine = threaded(1);
    let clock = Places::new();
    let tool = tool_of(&engine, &format!("{NOW} {LONG} {NOW} {OK}")).await;
    let scope = scope_on(clock.clone(), Duration::from_secs(60), StopSignal::never());
    assert!(tool.call(call(), scope).await.unwrap().is_ok());
    assert_eq!(clock.seen(), [FIRST, BEHIND]);
}

#[tokio::test]
async fn after_a_long_call_the_next_one_of_that_run_begins_behind() {
    let engine = threaded(1);
    let clock = Places::new();
    let (long, short) = (format!("{NOW} {LONG} {OK}"), format!("{NOW} {OK}"));
    let digest = engine.load(tool_bytes(CLOCK, &short)).await.unwrap().digest().to_owned();
    let (long, short) = (tool_of(&engine, &long).await, tool_of(&engine, &short).await);
    let (run, other) = (LongCalls::default(), LongCalls::default());
    // As after a long call of that one.
    other.note(&digest, true);
    for (tool, long_calls) in [
        (&long, &run),
        (&long, &run),
        // Of another component, and of another run.
        (&short, &run),
        (&long, &other),
        (&short, &other),
        // That one was short, and its successor comes first again.
        (&short, &other),
    ] {
        let scope = scope_with(|parts| {
            parts.clock = clock.clone();
            parts.services.long_calls = long_calls.clone();
        });
        assert!(tool.call(call(), scope).await.unwrap().is_ok());
    }
    assert_eq!(clock.seen(), [FIRST, BEHIND, FIRST, FIRST, BEHIND, FIRST]);
}

#[tokio::test]
async fn a_caller_on_the_threads_of_guests_hands_nothing_over_unless_the_call_is_long() {
    let engine = threaded(1);
    let clock = Places::new();
    let short = tool_of(&engine, &format!("{NOW} {OK}")).await;
    let scope = scope_on(clock.clone(), Duration::from_secs(60), StopSignal::never());
    let drivers = engine.drivers().unwrap();
    // Its first poll is all: there is no timer on that runtime to wait with.
    let caller = tokio_util::context::TokioContext::new(
        async move {
            let mut called = short.call(call(), scope);
            futures::poll!(&mut called).is_ready()
        },
        tokio::runtime::Handle::current(),
    );
    assert!(drivers.spawn_with_handle(caller).unwrap().await);
    assert_eq!(clock.seen(), [FIRST]);
}

#[tokio::test]
async fn a_call_that_is_behind_meets_its_deadline() {
    let engine = threaded(1);
    let sleeps = "(call $sleep (i64.const 3600000) (i32.const 5120)) unreachable";
    for code in [FOR_EVER.to_owned(), format!("{LONG} {sleeps}")] {
        let tool = tool_of(&engine, &code).await;
        // Many slices, also where other programs leave a thread of low priority little.
        let scope = scope(Duration::from_secs(3), StopSignal::never());
        let failure = tool.call(call(), scope).await.unwrap_err();
        assert_eq!(failure, CallAbort::Deadline { limit_ms: 3_000 });
        next_call_is_served(&engine).await;
    }
}

#[tokio::test]
async fn a_call_that_is_behind_is_stopped() {
    let engine = threaded(1);
    for code in [FOR_EVER, "(call $sleep (i64.const 3600000) (i32.const 5120)) unreachable"] {
        let tool = tool_of(&engine, &format!("{LONG} {NOW} {code}")).await;
        let (clock, stop) = (Places::new(), StopSignal::new(engine.interrupt()));
        let scope = scope_on(clock.clone(), Duration::from_secs(3_600), stop.clone());
        let task = tokio::spawn(async move { tool.call(call(), scope).await });
        clock.is_asked(1).await;
        stop.force(StopCause::Canceled);
        let failure = task.await.unwrap().unwrap_err();
        assert_eq!(failure, CallAbort::Stopped { cause: StopCause::Canceled });
        assert_eq!(clock.seen(), [BEHIND]);
        next_call_is_served(&engine).await;
    }
}

#[tokio::test]
async fn a_call_that_is_dropped_while_it_is_behind_does_nothing_more() {
    let engine = threaded(1);
    let asks_for_ever = "(loop $l (drop (call $now)) (br $l)) unreachable";
    let sleeps = "(call $sleep (i64.const 3600000) (i32.const 5120)) unreachable";
    for code in [FOR_EVER, asks_for_ever, sleeps] {
        let tool = tool_of(&engine, &format!("{LONG} {NOW} {code}")).await;
        let clock = Places::new();
        let scope = scope_on(clock.clone(), Duration::from_secs(3_600), StopSignal::never());
        let task = tokio::spawn(async move { tool.call(call(), scope).await });
        clock.is_asked(1).await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        next_call_is_served(&engine).await;
        let asked = clock.seen().len();
        next_call_is_served(&engine).await;
        assert_eq!(clock.seen().len(), asked, "{code}");
    }
}

#[tokio::test]
async fn host_functions_find_their_timers_wherever_a_guest_runs() {
    let engine = threaded(1);
    let sleep = "(call $sleep (i64.const 1) (i32.const 5120))";
    let clock = Places::new();
    let tool = tool_of(&engine, &format!("{sleep} {NOW} {LONG} {sleep} {NOW} {OK}")).await;
    let scope = scope_on(clock.clone(), Duration::from_secs(60), StopSignal::never());
    assert!(tool.call(call(), scope).await.unwrap().is_ok());
    assert_eq!(clock.seen(), [FIRST, BEHIND]);
}

#[tokio::test]
async fn a_short_call_is_served_while_long_ones_have_all_their_threads() {
    let engine = threaded(9);
    let spinner = tool_of(&engine, &format!("{LONG} {NOW} {FOR_EVER}")).await;
    let (spinning, stop) = (Places::new(), StopSignal::new(engine.interrupt()));
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let scope = scope_on(spinning.clone(), Duration::from_secs(3_600), stop.clone());
        let spinner = Arc::clone(&spinner);
        tasks.push(tokio::spawn(async move { spinner.call(call(), scope).await }));
    }
    spinning.is_asked(8).await;
    let (honest, short) = (Places::new(), tool_of(&engine, &format!("{NOW} {OK}")).await);
    for _ in 0..100 {
        let scope = scope_on(honest.clone(), Duration::from_secs(60), StopSignal::never());
        assert!(short.call(call(), scope).await.unwrap().is_ok());
    }
    // None of them shared a thread with one that spins, and those went on all the time.
    assert_eq!(honest.seen(), vec![FIRST; 100]);
    assert_eq!(spinning.seen(), vec![BEHIND; 8]);
    assert!(tasks.iter().all(|task| !task.is_finished()));
    stop.force(StopCause::Shutdown);
    for task in tasks {
        let failure = task.await.unwrap().unwrap_err();
        assert_eq!(failure, CallAbort::Stopped { cause: StopCause::Shutdown });
    }
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

    async fn sleep_until(&self, _: Duration) {}
}

#[tokio::test]
async fn a_panic_in_a_host_function_fails_one_call_also_behind() {
    let engine = threaded(1);
    for code in [format!("{NOW} unreachable"), format!("{LONG} {NOW} unreachable")] {
        let tool = tool_of(&engine, &code).await;
        let scope = scope_on(Arc::new(BrokenClock), Duration::from_secs(60), StopSignal::never());
        assert_eq!(tool.call(call(), scope).await.unwrap_err(), CallAbort::Internal);
        next_call_is_served(&engine).await;
    }
}
