//! The counts of a run's record: calls, waits of a held run, and tokens of the step under way.

use super::*;
use crate::completion::Chunk;
use crate::event::{HostAnswer, ModelAnswer};
use crate::message::Usage;
use crate::plan::TerminationReason;
use crate::progress::Children;
use crate::run::{HeldWait, RunView};

fn begun(tool_call_id: &str) -> Event {
    Event::ToolCallScheduled {
        name: "t/f".into(),
        tool_call_id: tool_call_id.into(),
        payload: "{}".into(),
        idempotent: false,
        is_own: false,
    }
}

fn authorized(approved: bool) -> Event {
    Event::ToolAuthorization {
        tool_call_id: "c".into(),
        name: "t/f".into(),
        approved,
        decided_by: "b".into(),
        for_run: false,
        consent: None,
    }
}

fn step_failed(retry_after_ms: u64) -> Event {
    Event::StepFailed { turn: 1, attempt: 1, error: "e".into(), retry_after_ms }
}

fn waits_for_model(over: bool) -> Event {
    Event::ModelWait { call: 0, over }
}

#[test]
fn calls_that_begin_and_calls_that_are_declined_are_spent() {
    let calls = |events: Vec<Event>| {
        let events = std::iter::once(started()).chain(events);
        run(events).state.tool_calls
    };
    assert_eq!(calls(vec![begun("a"), begun("b"), begun("c")]), 3);
    assert_eq!(calls(vec![authorized(true), begun("c")]), 1, "a call that is allowed is one call");
    assert_eq!(calls(vec![begun("a"), authorized(false), authorized(false)]), 3);
}

#[test]
fn a_held_run_waits_for_a_model_until_it_answers_and_for_a_retry_until_its_time() {
    let wait = |events: Vec<Event>| {
        let events = std::iter::once(started()).chain(events);
        run(events).state.held_wait
    };
    // The first event after the start is recorded at 30.
    let until = HeldWait::Until(Timestamp(30 + 7));
    assert_eq!(wait(vec![]), HeldWait::Nothing);
    assert_eq!(wait(vec![waits_for_model(false)]), HeldWait::Model);
    assert_eq!(wait(vec![waits_for_model(false), pause_requested()]), HeldWait::Model);
    assert_eq!(wait(vec![waits_for_model(false), cancel_requested()]), HeldWait::Model);
    assert_eq!(wait(vec![waits_for_model(false), waits_for_model(true)]), HeldWait::Nothing);
    assert_eq!(wait(vec![waits_for_model(false), begun("a")]), HeldWait::Nothing);
    assert_eq!(wait(vec![step_failed(7)]), until);
    assert_eq!(wait(vec![step_failed(7), pause_requested()]), until);
    assert_eq!(wait(vec![step_failed(7), lost(2), resumed(3)]), until, "the rest of the pause");
    assert_eq!(wait(vec![waits_for_model(false), lost(2)]), HeldWait::Nothing, "it asks again");
}

fn usage(tokens: u64) -> Usage {
    Usage { prompt_tokens: tokens, total_tokens: tokens, ..Usage::default() }
}

fn answered_by_model(tokens: u64) -> Event {
    let answer = ModelAnswer::Parts(vec![vec![Chunk::Usage(usage(tokens))]]);
    let answer = Box::new(HostAnswer::Model(answer));
    Event::HostAnswered { call: 0, request: "q".into(), model: None, answer }
}

/// Tokens of the step under way, and those of the run.
fn tokens(events: impl IntoIterator<Item = Event>) -> (u64, u64) {
    let state = run(std::iter::once(started()).chain(events)).state;
    (state.step_usage.total_tokens, state.progress.total_tokens)
}

#[test]
fn tokens_of_a_step_are_the_runs_once_the_step_or_the_run_says_so() {
    let asked = || vec![answered_by_model(3), answered_by_model(4)];
    assert_eq!(tokens(asked()), (7, 0), "the step is under way");
    let and = |event| asked().into_iter().chain([event]);
    assert_eq!(tokens(and(Event::Usage { usage: usage(9) })), (0, 9), "it says more itself");
    assert_eq!(tokens(and(step_failed(1))), (0, 0), "it runs again, and says it then");
    let limit = Event::FinalizeRequested {
        reason: TerminationReason::TokenCap,
        message: "no tokens are left".into(),
    };
    assert_eq!(tokens(and(limit)), (0, 7), "it does not run again");
    assert_eq!(tokens(and(completed())), (0, 7), "the run ends with what it consumed");
}

#[test]
fn tokens_of_an_answer_that_was_given_up_are_shown_without_any_event() {
    assert_eq!(RunView::from(&run([started()])).progress, None, "there is nothing to count");
    let given_up = run([started(), Event::Usage { usage: usage(9) }]);
    let views = [RunView::from(&given_up), RunView::with_children(&given_up, Children::default())];
    for view in views {
        let progress = view.progress.expect("it consumed something");
        assert_eq!((progress.event_count, progress.total_tokens), (0, 9));
    }
}
