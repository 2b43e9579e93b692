//! Every status against every event, and the decisions.

use std::collections::BTreeMap;

use super::decide::{self, Outcome};
use super::{apply, begin, fold};
use crate::event::{DecisionKind, Event, Recorded};
use crate::ids::{HostId, RunId};
use crate::message::{Labels, LogLevel, Message, Role, Thinking, ToolError, Usage};
use crate::ports::call::{CallFailure, StopCause};
use crate::ports::planner::{PlannerError, TerminationReason};
use crate::ports::tool::{ToolFailure, ToolOutcome, ToolOutput};
use crate::run::{EndStatus, Ending, Run, RunSpec};
use crate::status::{BlockedOn, Status, StopReason};
use crate::time::Timestamp;

fn spec() -> RunSpec {
    let id = RunId::new("run-1").expect("a valid id");
    RunSpec {
        root_run_id: id.clone(),
        id,
        tenant: "t".into(),
        owner_user_id: "o".into(),
        parent_session_id: "s".into(),
        parent_app_name: None,
        app_name: None,
        child_session_id: None,
        request_id: None,
        agent_name: "a".into(),
        agent_digest: "d".into(),
        policy_digest: "p".into(),
        task: "do".into(),
        timeout_ms: Some(7),
        envelope: BTreeMap::new(),
        context_messages: Vec::new(),
        labels: Labels::new(),
        metadata: Labels::new(),
        parent_run_id: None,
        depth: 0,
        priority: 0,
        created_at: Timestamp(1),
    }
}

fn started() -> Event {
    Event::Started {
        host: HostId::new("h"),
        epoch: 1,
        child_session_id: "cs".into(),
        request_id: "r".into(),
    }
}

fn cancel_requested() -> Event {
    Event::CancelRequested { by: StopReason::CanceledByOwner, reason: None }
}

fn finalizing(ending: Ending) -> Event {
    Event::Finalizing { ending }
}

fn finished() -> Event {
    Event::Finished { metadata: Labels::new() }
}

fn output() -> Box<ToolOutput> {
    let error = ToolError::coded("x", "y");
    Box::new(ToolOutput {
        name: "t/f".into(),
        tool_call_id: "c".into(),
        payload: "{}".into(),
        outcome: ToolOutcome::Failure(ToolFailure { error, retry_hint: None }),
        result_bytes: 0,
        result_omitted: None,
        server_data: None,
        bounds: None,
        telemetry: None,
    })
}

/// One event of every kind.
fn every_event() -> Vec<Event> {
    let message = Message::text(Role::Assistant, "hi");
    vec![
        Event::Queued { spec: Box::new(spec()) },
        started(),
        Event::AssistantChunk { text: "x".into() },
        Event::AssistantMessage { message, usage: None, model: None },
        Event::ToolCallArgsDelta { tool_call_id: "c".into(), name: "n".into(), delta: "{".into() },
        Event::ThinkingBlock { block: Thinking::default() },
        Event::PlannerNote { text: "n".into(), labels: Labels::new() },
        Event::Usage { usage: Usage::default() },
        Event::ToolCallScheduled {
            name: "t/f".into(),
            tool_call_id: "c".into(),
            payload: "{}".into(),
            idempotent: true,
        },
        Event::ToolResult { output: output(), duration_ms: 1 },
        Event::PolicyDecision { capability: "c".into(), subject: "s".into(), rule: "r".into() },
        Event::Log {
            level: LogLevel::Info,
            source: "a".into(),
            message: "m".into(),
            fields: Labels::new(),
        },
        Event::PlanDecided {
            turn: 1,
            decision: DecisionKind::ToolCalls,
            state: Vec::new(),
            expected_children: None,
        },
        Event::FinalizeRequested { reason: TerminationReason::ToolCap, message: "m".into() },
        Event::Blocked { on: BlockedOn::Input },
        Event::Unblocked,
        cancel_requested(),
        finalizing(Ending::completed(StopReason::FinalResponse)),
        finished(),
    ]
}

fn journal(events: impl IntoIterator<Item = Event>) -> Vec<Recorded> {
    let all = std::iter::once(Event::Queued { spec: Box::new(spec()) }).chain(events);
    all.zip(1..)
        .map(|(event, seq)| Recorded { seq, id: seq, at: Timestamp(seq * 10), event })
        .collect()
}

fn run(events: impl IntoIterator<Item = Event>) -> Run {
    fold(&journal(events)).expect("a legal journal")
}

fn ended(status: EndStatus) -> Vec<Event> {
    let ending = match status {
        EndStatus::Completed => Ending::completed(StopReason::FinalResponse),
        EndStatus::Failed => Ending::failed(StopReason::AgentError, "e"),
        EndStatus::Canceled => Ending::canceled(StopReason::CanceledByOwner),
    };
    vec![started(), finalizing(ending), finished()]
}

/// A run in every place of life, and the kinds of events that can happen to it there with the
/// status they lead to.
fn table() -> Vec<(Run, Vec<(&'static str, Status)>)> {
    let work = [
        "assistant_chunk",
        "assistant_message",
        "tool_call_args_delta",
        "thinking_block",
        "planner_note",
        "usage",
        "tool_result",
        "policy_decision",
        "log",
        "plan_decided",
        "finalize_requested",
    ];
    let working = |status| work.map(|kind| (kind, status)).to_vec();
    let with = |mut rows: Vec<_>, more: &[(&'static str, Status)]| {
        rows.extend_from_slice(more);
        rows
    };
    vec![
        (run([]), vec![("started", Status::Running), ("cancel_requested", Status::Canceling)]),
        (
            run([started()]),
            with(
                working(Status::Running),
                &[
                    ("tool_call_scheduled", Status::Running),
                    ("blocked", Status::Blocked),
                    ("cancel_requested", Status::Canceling),
                    ("finalizing", Status::Finalizing),
                ],
            ),
        ),
        (
            run([started(), Event::Blocked { on: BlockedOn::Children }]),
            vec![("unblocked", Status::Running), ("cancel_requested", Status::Canceling)],
        ),
        (
            run([started(), cancel_requested()]),
            with(working(Status::Canceling), &[("finalizing", Status::Finalizing)]),
        ),
        (run([cancel_requested()]), vec![("finalizing", Status::Finalizing)]),
        (
            run([started(), finalizing(Ending::completed(StopReason::FinalResponse))]),
            vec![("finished", Status::Completed)],
        ),
        (run(ended(EndStatus::Completed)), vec![]),
        (run(ended(EndStatus::Failed)), vec![]),
        (run(ended(EndStatus::Canceled)), vec![]),
    ]
}

#[test]
fn every_pair_of_status_and_event_is_decided() {
    for (run, legal) in table() {
        for event in every_event() {
            let kind = event.kind();
            let seq = run.state.head + 1;
            let recorded = Recorded { seq, id: 9, at: Timestamp(999), event };
            let after = apply(run.state.clone(), &recorded);
            let expected = legal.iter().find(|(legal, _)| *legal == kind).map(|(_, to)| *to);
            let got = after.as_ref().ok().map(|state| state.lifecycle.status());
            assert_eq!(got, expected, "{kind} happens to a run that is {}", run.status());
        }
    }
}

#[test]
fn the_table_names_every_kind_of_event() {
    let kinds: Vec<_> = every_event().iter().map(Event::kind).collect();
    assert_eq!(kinds, Event::KINDS);
    let unknown = serde_json::from_str::<Event>(r#"{"kind":"?"}"#).expect_err("no such kind");
    for kind in Event::KINDS {
        assert!(unknown.to_string().contains(&format!("`{kind}`")), "{kind} is not serialised so");
    }
}

#[test]
fn events_out_of_place_are_refused() {
    let run = run([started()]);
    for seq in [0, 1, 2, 4, u64::MAX] {
        let recorded = Recorded { seq, id: 1, at: Timestamp(1), event: cancel_requested() };
        assert!(apply(run.state.clone(), &recorded).is_err(), "at {seq}");
    }
    let late = Recorded { seq: 2, id: 1, at: Timestamp(1), event: started() };
    assert!(begin(&late).is_err());
    assert!(fold(&[]).is_err());
}

#[test]
fn only_changes_of_status_change_the_time_by_which_runs_are_listed() {
    let chunk = Event::AssistantChunk { text: "x".into() };
    let run = run([started(), chunk]);
    assert_eq!(run.state.updated_at, Timestamp(20));
    assert_eq!(run.state.progress.last_event_at, Some(Timestamp(30)));
}

#[test]
fn cancelling_changes_only_runs_that_are_not_on_their_way_out() {
    for (run, _) in table() {
        let events = decide::cancel(&run, StopReason::CanceledByOwner, None);
        let kinds: Vec<_> = events.iter().map(Event::kind).collect();
        let expected: &[&str] = match run.status() {
            Status::Queued => &["cancel_requested", "finalizing", "finished"],
            Status::Running | Status::Blocked => &["cancel_requested"],
            Status::Canceling
            | Status::Finalizing
            | Status::Completed
            | Status::Failed
            | Status::Canceled => &[],
        };
        assert_eq!(kinds, expected, "{}", run.status());
    }
}

#[test]
fn what_is_decided_can_always_be_applied() {
    for (run, _) in table() {
        let decisions = [
            decide::cancel(&run, StopReason::CanceledByParent, Some("why".into())),
            decide::interrupt(&run),
            decide::claim(&run, &HostId::new("h"), Timestamp(5)).into_iter().collect(),
        ];
        for events in decisions {
            let mut state = run.state.clone();
            for event in events {
                let recorded = Recorded { seq: state.head + 1, id: 1, at: Timestamp(5), event };
                state = apply(state, &recorded).expect("decided by ourselves");
            }
        }
    }
}

#[test]
fn a_run_whose_host_died_ends_as_what_it_was() {
    for (run, _) in table() {
        let mut state = run.state.clone();
        for event in decide::interrupt(&run) {
            let recorded = Recorded { seq: state.head + 1, id: 1, at: Timestamp(5), event };
            state = apply(state, &recorded).expect("decided by ourselves");
        }
        let expected = match run.status() {
            Status::Running => Status::Failed,
            Status::Canceling => Status::Canceled,
            Status::Finalizing => Status::Completed,
            unchanged @ (Status::Queued
            | Status::Blocked
            | Status::Completed
            | Status::Failed
            | Status::Canceled) => unchanged,
        };
        assert_eq!(state.lifecycle.status(), expected);
    }
}

#[test]
fn the_outcome_is_decided_from_facts() {
    let running = run([started()]);
    let canceling = run([started(), cancel_requested()]);
    let error = |text: &str| {
        Outcome::Error(PlannerError { code: None, message: text.into(), causes: Vec::new() })
    };
    let stopped = |cause| Outcome::Failed(CallFailure::Stopped { cause });
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
            Some("deadline exceeded: the run may take 7 ms"),
        ),
        (&running, stopped(StopCause::Shutdown), EndStatus::Canceled, None),
        (
            &running,
            Outcome::Failed(CallFailure::Stack),
            EndStatus::Failed,
            Some("agent a: stopped: stack overflow"),
        ),
        (&canceling, Outcome::Failed(CallFailure::Stack), EndStatus::Canceled, None),
        (&running, Outcome::Partial(TerminationReason::TurnCap), EndStatus::Completed, None),
        (
            &running,
            Outcome::Exhausted(TerminationReason::ToolCap),
            EndStatus::Failed,
            Some("tool call cap exceeded"),
        ),
    ];
    for (run, outcome, status, text) in table {
        let ending = decide::ending(run, outcome.clone());
        assert_eq!((ending.status, ending.error.as_deref()), (status, text), "{outcome:?}");
    }
}
