//! Every place against one event of every kind.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::places::{places, word};
use super::*;
use crate::autonomy::Mark;
use crate::completion::ModelError;
use crate::ending::EndStatus;
use crate::event::{CallWait, ClockReading, DecisionKind, HostAnswer, ModelAnswer, StepPrefix};
use crate::fact::MemoryScope;
use crate::message::{LogLevel, Message, Role, Thinking, ToolError, Usage};
use crate::metrics::Metrics;
use crate::outside::{BudgetLeft, OutsideAnswer};
use crate::plan::{FinalToolResult, TerminationReason};
use crate::status::Status;
use crate::tool::{ToolFailure, ToolOutcome, ToolOutput};

/// Exactly the changes of status that the specification allows (semantics, section 1).
const ALLOWED: [(Status, Status); 11] = [
    (Status::Queued, Status::Running),
    (Status::Queued, Status::Canceling),
    (Status::Running, Status::Blocked),
    (Status::Running, Status::Canceling),
    (Status::Running, Status::Finalizing),
    (Status::Blocked, Status::Running),
    (Status::Blocked, Status::Canceling),
    (Status::Canceling, Status::Finalizing),
    (Status::Finalizing, Status::Completed),
    (Status::Finalizing, Status::Failed),
    (Status::Finalizing, Status::Canceled),
];

/// One event of every kind, as it would be the next under `epoch`.
pub(super) fn every_event(epoch: u64) -> Vec<Event> {
    let id = || "c".to_owned();
    let error = ToolError::coded("x", "y");
    let outcome = ToolOutcome::Failure(ToolFailure { error, retry_hint: None });
    let output = Box::new(ToolOutput::plain("t/f", "c", "{}", outcome));
    let (child_session_id, request_id) = ("cs".to_owned(), "r".to_owned());
    let text = || "x".to_owned();
    let pin = || "a@1".to_owned();
    vec![
        Event::Queued { spec: Arc::new(spec()) },
        Event::Started { host: HostId::new("h"), epoch, child_session_id, request_id, batch: None },
        resumed(epoch),
        lost(epoch),
        Event::HistoryCarried {
            runs: vec![RunId::new("earlier").expect("an id")],
            messages: vec![Message::text(Role::User, "before")],
        },
        Event::Reported { runs: vec![RunId::new("other").expect("an id")], text: text() },
        Event::AssistantChunk { text: text() },
        Event::AssistantMessage {
            message: Message::text(Role::Assistant, "hi"),
            usage: None,
            model: None,
            streamed: false,
        },
        Event::ToolCallArgsDelta { tool_call_id: id(), name: text(), delta: text() },
        Event::ThinkingBlock { block: Thinking::default() },
        Event::PlannerNote { text: text(), labels: Labels::new() },
        Event::PromptRendered { id: id(), digest: text(), chosen_by: None },
        Event::Usage { usage: Usage::default() },
        Event::ToolCallScheduled {
            name: "t/f".into(),
            tool_call_id: id(),
            payload: "{}".into(),
            idempotent: true,
            is_own: false,
        },
        Event::Marked { tool_call_id: id(), mark: Mark::Rejected },
        Event::ToolResult { output, duration_ms: 1, refused: None },
        Event::ToolCallRepeated { tool_call_id: id(), attempt: 2 },
        Event::ToolCallParked {
            tool_call_id: id(),
            name: text(),
            payload: "{}".into(),
            waits: CallWait::Answer { item: "q".into() },
        },
        Event::ChildRunLinked {
            tool_call_id: id(),
            run_id: crate::ids::RunId::new("child").expect("an id"),
            agent_name: text(),
        },
        Event::ToolCallUpdated { tool_call_id: id(), expected_children_total: 2 },
        Event::HostAnswered {
            call: 0,
            request: text(),
            model: Some(id()),
            answer: Box::new(HostAnswer::Model(ModelAnswer::Error(ModelError::Timeout))),
        },
        Event::MemoryAppended { scope: MemoryScope::Tenant, key: id(), bytes: Some(1) },
        Event::MetricsRecorded { metrics: Metrics { series: Vec::new(), dropped: 1 } },
        Event::ModelWait { call: 1, over: false },
        Event::ContextWindowMet { call: 1, model: text(), bytes: 1 },
        Event::OutsideAnswered {
            number: 0,
            request: text(),
            answer: Some(Box::new(OutsideAnswer::Budget(BudgetLeft::default()))),
        },
        Event::ClockRead { readings: vec![ClockReading { at: Timestamp(1), times: 1 }] },
        Event::RulesChanged { pins: vec![text()] },
        Event::Adopted { from: pin(), to: "a@2".to_owned(), by: text() },
        Event::StepRestarted { turn: 1, kept: StepPrefix::default() },
        Event::ReplayDiverged { turn: 1, recorded: text(), found: text() },
        Event::StepFailed { turn: 1, attempt: 1, error: text(), retry_after_ms: 1 },
        Event::PushedBack {
            turn: 1,
            model: id(),
            until: Timestamp(90_000),
            reason: text(),
            said: Some(text()),
            usage: Some(Usage { total_tokens: 3, ..Usage::default() }),
        },
        Event::TurnSkipped { turn: 1, attempts: 1, error: text(), ran_ms: 3 },
        Event::RoundEnded {
            round: 1,
            prompt: text(),
            worked: true,
            wants_result: false,
            checkpoint: Box::default(),
        },
        asked("another"),
        answered("q"),
        Event::PolicyDecision {
            capability: text(),
            subject: text(),
            rule: text(),
            told: None,
            decided: None,
        },
        Event::ToolAuthorization {
            tool_call_id: text(),
            name: text(),
            approved: true,
            decided_by: text(),
            for_run: false,
            consent: None,
        },
        Event::Log { level: LogLevel::Info, source: id(), message: text(), fields: Labels::new() },
        Event::PlanDecided {
            turn: 1,
            decision: DecisionKind::ToolCalls,
            state: Vec::new(),
            reminders: Vec::new(),
            expected_children: None,
            parents: std::collections::BTreeMap::new(),
            ran_ms: 3,
        },
        Event::FinalToolResult {
            result: Box::new(FinalToolResult {
                outcome: ToolOutcome::Value("1".to_owned()),
                server_data: None,
                bounds: None,
                telemetry: None,
            }),
        },
        Event::FinalizeRequested { reason: TerminationReason::ToolCap, message: text() },
        blocked(for_runs()),
        pause_requested(),
        pause_ended(),
        Event::Injected { text: text(), by: "b".into() },
        Event::InboxShown { messages: 0 },
        cancel_requested(),
        completed(),
        Event::FinalizerStarted,
        finished(),
    ]
}

#[test]
fn every_place_of_life_against_every_event() {
    for place in places() {
        let run = run(place.events);
        let name = place.name;
        assert_eq!(word(&run.state.hold), place.hold, "{name}");
        for event in every_event(run.state.epoch + 1) {
            let kind = event.kind();
            let expected = place.legal.iter().find(|(legal, ..)| *legal == kind);
            let expected = expected.map(|(_, to, hold)| (*to, (*hold).to_owned()));
            let got = after(&run, [event]).ok();
            let outcome = got.as_ref().map(|run| (run.status(), word(&run.state.hold)));
            assert_eq!(outcome, expected, "{kind} happens to a run that is {name}");
            let Some(got) = got else { continue };
            let moved = got.status() != run.status();
            let updated = if moved { Timestamp(999) } else { run.state.updated_at };
            assert_eq!(got.state.updated_at, updated, "{kind} to {name}");
            assert_eq!(got.state.head, run.state.head + 1);
        }
    }
}

#[test]
fn the_status_changes_as_the_specification_allows_and_in_no_other_way() {
    let mut seen = BTreeSet::new();
    for place in places() {
        let run = run(place.events);
        for event in every_event(run.state.epoch + 1) {
            seen.extend(after(&run, [event]).ok().map(|after| (run.status(), after.status())));
        }
    }
    // The finalizing runs of the table are all to be completed; these are the other two ends.
    for status in [EndStatus::Failed, EndStatus::Canceled] {
        let ending = Ending { status, ..Ending::completed(StopReason::AgentError) };
        let run = run([started(), finalizing(ending)]);
        let ended = after(&run, [finished()]).expect("legal");
        seen.insert((run.status(), ended.status()));
    }
    seen.retain(|(from, to)| from != to);
    assert_eq!(seen, BTreeSet::from(ALLOWED));
}

#[test]
fn the_table_names_every_kind_of_event() {
    let kinds: Vec<_> = every_event(1).iter().map(Event::kind).collect();
    assert_eq!(kinds, Event::KINDS);
    let unknown = serde_json::from_str::<Event>(r#"{"kind":"?"}"#).expect_err("no such kind");
    for kind in Event::KINDS {
        assert!(unknown.to_string().contains(&format!("`{kind}`")), "{kind} is not serialised so");
    }
}

#[test]
fn every_event_reads_back_from_json() {
    for event in every_event(1) {
        let text = serde_json::to_string(&event).expect("an event is JSON");
        assert_eq!(serde_json::from_str::<Event>(&text).expect("the same"), event);
    }
}

#[test]
fn a_run_changes_hands_only_under_the_next_number() {
    for place in places() {
        let run = run(place.events);
        let epoch = run.state.epoch;
        for wrong in [0, epoch, epoch + 2, u64::MAX] {
            for event in every_event(wrong) {
                if matches!(event.kind(), "started" | "resumed" | "lost") && wrong != epoch + 1 {
                    assert!(after(&run, [event]).is_err(), "{} under {wrong}", place.name);
                }
            }
        }
        for event in every_event(epoch + 1) {
            let changes = matches!(event.kind(), "started" | "resumed" | "lost");
            if let Ok(after) = after(&run, [event]) {
                assert_eq!(after.state.epoch, epoch + u64::from(changes), "{}", place.name);
            }
        }
    }
}

#[test]
fn events_out_of_place_are_refused() {
    let run = run([started()]);
    for seq in [0, 1, 2, 4, u64::MAX] {
        let recorded = EventRecord { seq, id: 1, at: Timestamp(1), event: cancel_requested() };
        assert!(apply(run.state.clone(), &recorded).is_err(), "at {seq}");
    }
    let late = EventRecord { seq: 2, id: 1, at: Timestamp(1), event: started() };
    assert!(begin(&late).is_err());
    assert!(fold(&[]).is_err());
}
