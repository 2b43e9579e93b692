//! Endings of runs, from how their work came to its end.

use super::*;
use crate::ending::EndStatus;
use crate::machine::decide::{self, Outcome};
use crate::message::{Message, Role};
use crate::plan::{PlannerError, TerminationReason};
use crate::stop::{CallAbort, StopCause};

#[test]
fn ts_20_the_outcome_is_decided_from_facts() {
    let running = run([started()]);
    let canceling = run([started(), cancel_requested()]);
    let error = |text: &str| {
        Outcome::Error(PlannerError {
            code: None,
            message: text.into(),
            causes: Vec::new(),
            retry_after_ms: None,
        })
    };
    let stopped = |cause| Outcome::Failed(CallAbort::Stopped { cause });
    let answered = || Outcome::Answered(StopReason::FinalResponse);
    // TS-20, and the rows for what stops a component.
    let table = [
        (&canceling, answered(), EndStatus::Canceled, None),
        (&canceling, stopped(StopCause::Canceled), EndStatus::Canceled, None),
        (
            &canceling,
            error("worker canceled request"),
            EndStatus::Failed,
            Some("worker canceled request"),
        ),
        (
            &canceling,
            error("failed to cancel tool lease"),
            EndStatus::Failed,
            Some("failed to cancel tool lease"),
        ),
        (&running, answered(), EndStatus::Completed, None),
        (&running, error("child failed"), EndStatus::Failed, Some("child failed")),
        (
            &running,
            stopped(StopCause::RunTimeout),
            EndStatus::Failed,
            Some("deadline exceeded: task timed out, after running for 7 ms"),
        ),
        (&running, stopped(StopCause::Shutdown), EndStatus::Canceled, None),
        (
            &running,
            Outcome::Failed(CallAbort::Stack),
            EndStatus::Failed,
            Some("agent a: stopped: stack overflow"),
        ),
        (&canceling, Outcome::Failed(CallAbort::Stack), EndStatus::Canceled, None),
        (
            &running,
            Outcome::Failed(CallAbort::Deadline { limit_ms: 9 }),
            EndStatus::Failed,
            Some("deadline exceeded: a plan step of agent a may take 9 ms"),
        ),
        (
            &running,
            Outcome::RoundOver { limit_ms: 9 },
            EndStatus::Failed,
            Some("deadline exceeded: a round of agent a may take 9 ms"),
        ),
        (&running, Outcome::RoundRefused("no".into()), EndStatus::Failed, Some("no")),
        (&canceling, Outcome::RoundRefused("no".into()), EndStatus::Canceled, None),
        (&canceling, Outcome::RoundOver { limit_ms: 9 }, EndStatus::Canceled, None),
        (&canceling, Outcome::HostFailed("x".into()), EndStatus::Canceled, None),
        (&canceling, Outcome::PersistFailed("x".into()), EndStatus::Canceled, None),
        (&running, Outcome::HostFailed("x".into()), EndStatus::Failed, Some("x")),
        (&running, Outcome::Partial(TerminationReason::TurnCap), EndStatus::Completed, None),
        (
            &running,
            Outcome::Exhausted { reason: TerminationReason::ToolCap, bound: None },
            EndStatus::Failed,
            Some("tool call cap exceeded"),
        ),
        (
            &running,
            Outcome::Exhausted { reason: TerminationReason::TurnCap, bound: Some("2".into()) },
            EndStatus::Failed,
            Some("turn cap exceeded: 2"),
        ),
    ];
    for (run, outcome, status, text) in table {
        let ending = decide::ending(run, outcome.clone());
        assert_eq!((ending.status, ending.error.as_deref()), (status, text), "{outcome:?}");
    }
}

#[test]
fn an_answer_without_text_is_none_and_one_that_is_still_to_be_written_counts() {
    let running = run([started()]);
    let said = |text: &str| Event::AssistantMessage {
        message: Message::text(Role::Assistant, text),
        usage: None,
        model: None,
        streamed: false,
    };
    let ending = |pending: &[Event], outcome| {
        let events = decide::end(&running, pending, outcome);
        assert_eq!(&events[..pending.len()], pending);
        let ended = after(&running, events).expect("decided by ourselves");
        let ending = ended.ending().expect("it ended").clone();
        (ending.status, ending.stop_reason, ending.partial)
    };
    let answered = || Outcome::Answered(StopReason::FinalResponse);
    let partial = || Outcome::Partial(TerminationReason::TurnCap);
    let table = [
        (said("hi"), answered(), (EndStatus::Completed, StopReason::FinalResponse, false)),
        (said(" "), answered(), (EndStatus::Failed, StopReason::AgentError, false)),
        (said("hi"), partial(), (EndStatus::Completed, StopReason::MaxTurns, true)),
        (said(""), partial(), (EndStatus::Failed, StopReason::MaxTurns, false)),
    ];
    for (event, outcome, expected) in table {
        assert_eq!(ending(std::slice::from_ref(&event), outcome), expected, "{event:?}");
    }
}

#[test]
fn an_outcome_that_is_fixed_is_not_fixed_again() {
    let fixed = run([started(), completed()]);
    assert_eq!(decide::end(&fixed, &[], Outcome::HostFailed("x".into())), []);
}

#[test]
fn an_agent_with_a_finalizer_is_heard_before_its_run_ends() {
    let run = run_of(RunSpec { finalizer: true, ..spec() }, [started()]);
    let events = decide::end(&run, &[], Outcome::Refused("x".into()));
    let kinds: Vec<_> = events.iter().map(Event::kind).collect();
    assert_eq!(kinds, ["finalizing"]);
}

#[test]
fn a_run_that_gave_up_says_how_often_it_tried() {
    let running = run([started()]);
    let text = |attempts, skipped| {
        let failure = Some(CallAbort::Unavailable);
        let outcome = Outcome::RetryAborted { attempts, skipped, error: "e".into(), failure };
        let ending = decide::ending(&running, outcome);
        assert_eq!(ending.stop_reason, StopReason::RetryAborted);
        assert_eq!(ending.failure, Some(CallAbort::Unavailable), "with its typed reason");
        ending.error.expect("a failure says why")
    };
    assert_eq!(text(1, 0), "gave up after 1 attempt: e");
    assert_eq!(text(3, 0), "gave up after 3 attempts: e");
    assert_eq!(text(3, 1), "gave up after 1 skipped turn and 3 attempts: e");
    assert_eq!(text(0, 2), "gave up after 2 skipped turns and 0 attempts: e");
}

#[test]
fn the_reason_of_a_cancellation_is_the_ends_if_the_run_ends_canceled() {
    let reason = || Some("not needed".to_owned());
    let by = StopReason::CanceledByOwner;
    let canceling = run([started(), Event::CancelRequested { by, from: None, reason: reason() }]);
    let told = |ending| {
        let run = after(&canceling, [finalizing(ending)]).expect("legal");
        run.ending().expect("it is fixed").reason.clone()
    };
    assert_eq!(told(Ending::canceled(by)), reason());
    assert_eq!(told(Ending::failed(StopReason::AgentError, "e")), None);
}
