//! Memory of all guests together: the part of it that a tenant may take, and the end of a call that
//! finds none.

use std::sync::Arc;
use std::time::Duration;

use taskrun::ports::tool::{Tool, ToolReply};
use taskrun::scope::{CallScope, StopSignal};
use taskrun_engine::{AgentGrants, Engine, EngineOptions, LoadError, NeedBound};
use taskrun_examples as examples;
use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_journal::tool::ToolFailure;
use tokio::task::JoinHandle;

use crate::stop::{CLOCK, ListeningClock};
use crate::support::*;

/// Pages by which a guest grows to 62 MiB, of which 61 are of the memory for all.
const LARGE_PAGES: u32 = 976;
const SLEEP: &str = "(call $sleep (i64.const 3600000) (i32.const 5120)) unreachable";

type Answer = Result<Result<ToolReply, ToolFailure>, CallAbort>;

/// An engine of few slots whose guests have so many MiB together beside the first two of each.
fn engine_of(mib: u64, instances: u32) -> Arc<Engine> {
    engine_with(EngineOptions {
        instances: Some(instances),
        guest_memory_bytes: Some((mib + 2 * u64::from(instances)) << 20),
        ..EngineOptions::default()
    })
}

/// A tool that grows by so many pages, and goes on with this code.
async fn growing(engine: &Arc<Engine>, pages: u32, code: &str) -> Arc<dyn Tool> {
    let code = format!("(drop (memory.grow (i32.const {pages}))) {code}");
    tool(engine, tool_bytes(CLOCK, &code), grants("")).await.expect("it loads")
}

/// A tool that begins with so many pages.
fn beginning(pages: u32) -> Vec<u8> {
    let module = tool_module("", DESCRIBE, OK);
    let memory = |pages: u32| format!(r#"(export "memory") {pages})"#);
    component("tool", &module.replace(&memory(17), &memory(pages)))
}

fn scope_of(tenant: &str) -> Arc<CallScope> {
    scope_with(|parts| tenant.clone_into(&mut parts.context.tenant))
}

/// A call whose guest sleeps with its memory.
struct Holder {
    task: JoinHandle<Answer>,
    stop: StopSignal,
}

impl Holder {
    /// Begins a call of a tool that grows and sleeps; gives its end where that comes before.
    async fn begin(tool: &Arc<dyn Tool>, tenant: &str) -> Result<Self, CallAbort> {
        let (tool, clock, stop) = (Arc::clone(tool), ListeningClock::new(), StopSignal::never());
        let scope = scope_with(|parts| {
            tenant.clone_into(&mut parts.context.tenant);
            parts.clock = clock.clone();
            parts.stop = stop.clone();
        });
        let mut task = tokio::spawn(async move { tool.call(call(), scope).await });
        tokio::select! {
            biased;
            () = clock.is_asked() => Ok(Self { task, stop }),
            ended = &mut task => {
                Err(ended.expect("it does not panic").expect_err("it does not answer"))
            }
        }
    }

    async fn ends_canceled(self) {
        self.stop.force(StopCause::Canceled);
        let ended = self.task.await.expect("it does not panic");
        let cause = StopCause::Canceled;
        assert_eq!(ended.expect_err("it was stopped"), CallAbort::Stopped { cause });
    }

    /// Returns when the future of the call is gone.
    async fn ends_dropped(self) {
        self.task.abort();
        assert!(self.task.await.expect_err("it is dropped").is_cancelled());
    }
}

#[tokio::test]
async fn case_15_guests_of_a_tenant_take_its_part_at_most_and_leave_others_theirs() {
    let engine = engine_of(192, 32);
    let holding = growing(&engine, LARGE_PAGES, SLEEP).await;
    let modest = growing(&engine, 111, OK).await;
    let (mut holders, mut refused) = (Vec::new(), Vec::new());
    for _ in 0..24 {
        match Holder::begin(&holding, "greedy").await {
            Ok(holder) => holders.push(holder),
            Err(abort) => refused.push(abort),
        }
    }
    assert_eq!(holders.len(), 2, "a third one would have more than its part");
    assert!(refused.iter().all(|abort| *abort == CallAbort::Unavailable), "{refused:?}");
    // One that begins small and grows to 8 MiB, of another tenant.
    let answered = modest.call(call(), scope_of("other")).await;
    assert!(answered.expect("there is memory for it").is_ok());
    let ends = holders.drain(..).map(Holder::ends_canceled);
    futures::future::join_all(ends).await;
    for _ in 0..2 {
        holders.push(Holder::begin(&holding, "other").await.expect("all of it came back"));
    }
    let ends = holders.drain(..).map(Holder::ends_dropped);
    futures::future::join_all(ends).await;
}

#[tokio::test]
async fn memory_comes_back_however_the_call_ends() {
    // One large guest at a time.
    let engine = engine_of(112, 4);
    let answers = growing(&engine, LARGE_PAGES, OK).await;
    let all_is_there = async || {
        let answered = answers.call(call(), scope_of("t")).await;
        assert!(answered.expect("all of it came back").is_ok());
    };
    let limit_bytes = 64 << 20;
    let ends = [
        ("unreachable", CallAbort::Trap { code: "unreachable".to_owned() }),
        ("(drop (memory.grow (i32.const 100))) unreachable", CallAbort::Memory { limit_bytes }),
        (SLEEP, CallAbort::Deadline { limit_ms: 50 }),
    ];
    for (code, expected) in ends {
        let tool = growing(&engine, LARGE_PAGES, code).await;
        let short = scope(Duration::from_millis(50), StopSignal::never());
        let patient = patient();
        let scope = if code == SLEEP { short } else { patient };
        assert_eq!(tool.call(call(), scope).await.expect_err("it ends"), expected);
        all_is_there().await;
    }
    let holding = growing(&engine, LARGE_PAGES, SLEEP).await;
    Holder::begin(&holding, "t").await.expect("it has its memory").ends_canceled().await;
    all_is_there().await;
    let holder = Holder::begin(&holding, "t").await.expect("it has its memory");
    let refused = answers.call(call(), scope_of("t")).await;
    assert_eq!(refused.expect_err("the other one has it"), CallAbort::Unavailable);
    holder.ends_dropped().await;
    all_is_there().await;
}

#[tokio::test]
async fn a_call_that_begins_with_much_memory_waits_for_it() {
    let engine = engine_of(112, 4);
    let large = tool(&engine, beginning(LARGE_PAGES), grants("")).await.expect("it loads");
    let holding = growing(&engine, LARGE_PAGES, SLEEP).await;
    let holder = Holder::begin(&holding, "t").await.expect("it has its memory");
    let mut waits = large.call(call(), scope_of("t"));
    assert!(futures::poll!(&mut waits).is_pending());
    // It has no slot meanwhile, and takes nothing from who needs little.
    let small = tool(&engine, tool_bytes("", OK), grants("")).await.expect("it loads");
    assert!(small.call(call(), scope_of("t")).await.expect("it is served").is_ok());
    assert!(futures::poll!(&mut waits).is_pending());
    holder.ends_canceled().await;
    assert!(waits.await.expect("there is memory").is_ok());
}

#[tokio::test]
async fn a_run_that_guests_wait_for_has_memory_that_they_leave_it() {
    // As much as where all guests have 256 MiB, the least that a host has for them.
    let engine = engine_of(128, 64);
    // Two parents have 45 MiB each while they wait, and others of the tenant what there is beside.
    let waiting = growing(&engine, 703, SLEEP).await;
    let mut holders = Vec::new();
    for _ in 0..2 {
        holders.push(Holder::begin(&waiting, "t").await.expect("it has its memory"));
    }
    let filling = growing(&engine, 79, SLEEP).await;
    while let Ok(holder) = Holder::begin(&filling, "t").await {
        holders.push(holder);
    }
    // A guest in Python begins with so much.
    let child = tool(&engine, beginning(200), grants("")).await.expect("it loads");
    let mut beside = child.call(call(), scope_of("t"));
    assert!(futures::poll!(&mut beside).is_pending(), "the tenant has all that it may");
    let beneath = scope_with(|parts| {
        "t".clone_into(&mut parts.context.tenant);
        parts.context.parent_run_id = Some("parent".to_owned());
    });
    assert!(child.call(call(), beneath).await.expect("a part is kept for it").is_ok());
    drop(beside);
    futures::future::join_all(holders.drain(..).map(Holder::ends_dropped)).await;
}

#[tokio::test]
async fn a_tool_ends_its_wait_for_memory_with_its_own_time() {
    let engine = engine_of(112, 4);
    let large = tool(&engine, beginning(LARGE_PAGES), grants("")).await.expect("it loads");
    let holding = growing(&engine, LARGE_PAGES, SLEEP).await;
    let holder = Holder::begin(&holding, "").await.expect("it has its memory");
    let hurried = scope(Duration::from_millis(1), StopSignal::never());
    let ended = large.call(call(), hurried).await.expect_err("another one has the memory");
    assert_eq!(ended, CallAbort::Unavailable);
    holder.ends_dropped().await;
}

#[tokio::test]
async fn a_tool_that_has_memory_gives_it_back_where_it_waits_too_long_for_a_slot() {
    let engine = engine_of(112, 1);
    let large = tool(&engine, beginning(LARGE_PAGES), grants("")).await.expect("it loads");
    let holding = growing(&engine, 0, SLEEP).await;
    let holder = Holder::begin(&holding, "").await.expect("it has the slot");
    let hurried = scope(Duration::from_millis(1), StopSignal::never());
    let ended = large.call(call(), hurried).await.expect_err("another one has the slot");
    assert_eq!(ended, CallAbort::Unavailable);
    holder.ends_dropped().await;
    let answered = large.call(call(), scope_of("")).await;
    assert!(answered.expect("its memory came back").is_ok());
}

#[tokio::test]
async fn a_component_that_begins_with_more_than_there_ever_is_does_not_load() {
    let refused = tool(&engine_of(16, 4), beginning(LARGE_PAGES), grants("")).await;
    let Err(LoadError::TooMuch { detail, bound }) = refused else { panic!("it loads") };
    assert!(detail.contains("61 MiB") && detail.contains("a tenant has 14 MiB"), "{detail}");
    assert_eq!(bound, NeedBound::Host);
}

#[tokio::test]
async fn a_guest_that_takes_all_it_can_is_told_apart_from_one_past_its_own_limit() {
    let rules = r#"deny = ["workspace-read: **", "workspace-write: **"]"#;
    let with = || AgentGrants { workspace: std::env::temp_dir(), ..grants(rules) };
    for (mib, expected) in
        [(16, CallAbort::Unavailable), (112, CallAbort::Memory { limit_bytes: 64 << 20 })]
    {
        let engine = engine_of(mib, 4);
        let evil = tool(&engine, examples::evil::TOOL.bytes.to_vec(), with()).await;
        let mut grow = call();
        "grow".clone_into(&mut grow.name);
        let ended = evil.expect("it loads").call(grow, patient_under(&with())).await;
        assert_eq!(ended.expect_err("it ends"), expected, "{mib}");
    }
}
