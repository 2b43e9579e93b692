//! Bounds of what a call may leave behind, and what is recorded of it.

mod controller;
mod fixtures;
mod log_lines;
mod open_question;
mod outside;
mod question_digests;
mod refusals;
mod replay;
mod tape;
mod texts;

use taskrun_journal::fact::MemoryScope;
use taskrun_journal::memory::FactChange;
use taskrun_journal::stop::StopCause;
use taskrun_journal::time::Timestamp;
use taskrun_policy::CallRules;

use super::state::{STATE_BYTES_MAX, STATE_KEY_BYTES_MAX, STATE_KEYS_MAX};
use super::*;
use crate::clock::{SeededRandom, SimulatedClock};

fn scope(events: u32, bytes: u64) -> CallScope {
    CallScope::new(parts(events, bytes))
}

fn parts(events: u32, bytes: u64) -> CallScopeParts {
    CallScopeParts {
        context: RunContext::default(),
        stop: StopSignal::never(),
        deadline: Duration::from_secs(1),
        clock: Arc::new(SimulatedClock::new(Timestamp(0))),
        random: Arc::new(SeededRandom::new(1)),
        models: None,
        rules: CurrentRules::fixed(CallRules::nothing()),
        pins: Vec::new(),
        runs: None,
        tools: Arc::default(),
        state: BTreeMap::from([("old".to_owned(), "value".to_owned())]),
        services: Services::default(),
        remaining: Remaining::default(),
        limits: ScopeLimits { events, bytes },
        wake: Arc::default(),
        journal: None,
        tape: None,
    }
}

#[test]
fn a_key_that_is_set_again_and_again_is_recorded_once() {
    let scope = scope(10, 100);
    for round in 0..10_000 {
        scope.set_state("key".to_owned(), Some(round.to_string())).expect("within bounds");
        scope.set_state(format!("absent-{round}"), None).expect("within bounds");
    }
    scope.set_state("old".to_owned(), None).expect("within bounds");
    let changes = scope.finish().state_changes;
    let expected = [("key".to_owned(), Some("9999".to_owned())), ("old".to_owned(), None)];
    assert_eq!(changes, expected);
}

#[test]
fn state_is_bounded_in_keys_and_bytes() {
    let scope = scope(10, 100);
    scope.set_state("old".to_owned(), None).expect("makes room");
    let large = "x".repeat(STATE_BYTES_MAX);
    scope.set_state("a".to_owned(), Some(large.clone())).expect("just fits");
    scope.set_state("b".to_owned(), Some("x".to_owned())).expect_err("one byte too many");
    scope.set_state("a".to_owned(), Some(large)).expect("in its own place");
    scope.set_state("x".repeat(STATE_KEY_BYTES_MAX + 1), None).expect_err("a long key");
    scope.set_state("a".to_owned(), None).expect("makes room");
    for key in 0..STATE_KEYS_MAX {
        scope.set_state(key.to_string(), Some(String::new())).expect("within bounds");
    }
    scope.set_state("more".to_owned(), Some(String::new())).expect_err("one key too many");
}

#[test]
fn case_47_events_over_a_bound_are_dropped_and_counted() {
    let scope = scope(3, 10);
    for text in ["12345", "123456", "12345", "", ""] {
        scope.record(Event::AssistantChunk { text: text.to_owned() });
    }
    let end = scope.finish();
    let texts: Vec<_> = end.events.iter().map(Event::text_bytes).collect();
    assert_eq!((texts, end.dropped), (vec![5, 5, 0], 2));
}

#[tokio::test]
async fn a_wait_ends_when_somebody_asks_and_one_after_that_does_not() {
    let scope = scope(1, 1);
    let ask = async { scope.stop().ask(StopCause::Canceled) };
    let (slept, ()) = tokio::join!(scope.sleep(Duration::MAX), ask);
    assert!(!slept);
    assert!(scope.sleep(Duration::ZERO).await);
}

#[tokio::test]
async fn a_call_of_no_run_tells_the_first_thing_that_it_lacked_and_asked_for() {
    assert_eq!(scope(1, 1).finish().absent, None, "it asked for nothing");
    let reads = scope(1, 1);
    let question = FactByKey { key: "k".to_owned(), scopes: vec![MemoryScope::Session] };
    reads.ask(question).await.expect_err("there is no memory");
    let change = FactChange::Delete("k".to_owned());
    reads.change_memory(MemoryScope::Session, change.clone()).await.expect_err("nor to write");
    assert_eq!(reads.finish().absent, Some(Capability::Memory));
    let writes = scope(1, 1);
    writes.change_memory(MemoryScope::Session, change).await.expect_err("there is no memory");
    assert_eq!(writes.finish().absent, Some(Capability::MemoryWrite));
    let starts = scope(1, 1);
    let question = RunsQuestion::subscribe("r".to_owned(), 0, 1, Some(0));
    starts.ask(question).await.expect_err("there is no controller");
    assert_eq!(starts.finish().absent, Some(Capability::Controller));
}
