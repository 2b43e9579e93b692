//! Where the work stands after which events.

use taskrun_journal::artifact::digest;
use taskrun_journal::event::{CallWait, RunsReport, StepPrefix};
use taskrun_journal::hold::WaitMode;
use taskrun_journal::ids::HostId;
use taskrun_journal::message::{Labels, LogLevel, Message, Part, Role, ToolUse};
use taskrun_journal::question::Answer;
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::{ToolOutcome, ToolOutput};

use super::*;
use crate::compaction::Window;
use crate::driver::resume::repeat_id;
use crate::fixtures::{answered, asked, spec};
use crate::ports::planner::ConversationView::Whole;

fn calls(ids: &[&str]) -> Event {
    let parts = ids.iter().map(|id| {
        let (tool_call_id, name, payload) = ((*id).to_owned(), "t/f".into(), "{}".into());
        Part::ToolUse(ToolUse { tool_call_id, name, payload })
    });
    let message = Message { role: Role::Assistant, parts: parts.collect() };
    Event::AssistantMessage { message, usage: None, model: None, streamed: false }
}

fn says(text: &str) -> Event {
    let message = Message::text(Role::Assistant, text);
    Event::AssistantMessage { message, usage: None, model: None, streamed: false }
}

fn scheduled(id: &str, idempotent: bool) -> Event {
    let (name, payload) = ("t/f".into(), "{}".into());
    Event::ToolCallScheduled { name, tool_call_id: id.into(), payload, idempotent, is_own: false }
}

fn repeated(id: &str, attempt: u32) -> Event {
    Event::ToolCallRepeated { tool_call_id: id.into(), attempt }
}

fn parked(id: &str, waits: CallWait) -> Event {
    Event::ToolCallParked {
        tool_call_id: id.into(),
        name: "t/f".into(),
        payload: "{}".into(),
        waits,
    }
}

fn result(id: &str) -> Event {
    valued(id, "1")
}

fn valued(id: &str, value: &str) -> Event {
    let outcome = ToolOutcome::Value(value.into());
    let output = Box::new(ToolOutput::plain("t/f", id, "{}", outcome));
    Event::ToolResult { output, duration_ms: 0, refused: None }
}

fn decided(decision: DecisionKind) -> Event {
    let state = vec![("k".to_owned(), Some("v".to_owned()))];
    Event::PlanDecided {
        turn: 1,
        decision,
        state,
        reminders: Vec::new(),
        expected_children: None,
        parents: std::collections::BTreeMap::new(),
        ran_ms: 0,
    }
}

fn failed() -> Event {
    Event::StepFailed { turn: 1, attempt: 1, error: "e".into(), retry_after_ms: 1 }
}

fn skipped() -> Event {
    Event::TurnSkipped { turn: 1, attempts: 1, error: "e".into(), ran_ms: 0 }
}

fn lost(crashed: bool) -> Event {
    let (host, not_before) = (HostId::new("h"), Timestamp(0));
    Event::Lost { host, epoch: 2, not_before, crashed, ran_ms: 0 }
}

fn log() -> Event {
    let (source, message, fields) = ("s".to_owned(), "m".to_owned(), Labels::new());
    Event::Log { level: LogLevel::Info, source, message, fields }
}

fn chunk() -> Event {
    Event::AssistantChunk { text: "x".into() }
}

fn finalize() -> Event {
    Event::FinalizeRequested { reason: TerminationReason::TurnCap, message: "m".into() }
}

fn work(events: &[Event]) -> Work {
    let mut work = Work::new(&spec(), &spec().pin);
    (1..).zip(events).for_each(|(place, event)| work.push(event, place));
    work
}

fn texts(work: &Work) -> Vec<String> {
    let mut conversation = work.conversation.clone();
    let messages =
        conversation.within(usize::MAX, Window::default(), Whole).expect("room for all").messages;
    messages.iter().map(Message::joined_text).collect()
}

#[test]
fn calls_are_open_until_they_have_their_results() {
    let turn = [decided(DecisionKind::ToolCalls), calls(&["a", "b", "c"])];
    let with = |more: &[Event]| work(&[&turn[..], more].concat());
    let open = |work: &Work| work.open_calls().map(|c| c.id().to_owned()).collect::<Vec<_>>();
    assert_eq!(open(&with(&[])), ["a", "b", "c"]);
    let some = with(&[scheduled("a", true), scheduled("b", false), result("c"), result("a")]);
    assert_eq!(open(&some), ["b"]);
    assert!(some.calls[0].idempotent && !some.calls[1].idempotent);
    let attempts: Vec<_> = some.calls.iter().map(|call| call.attempts).collect();
    assert_eq!(attempts, [1, 1, 0]);
    let again = with(&[scheduled("a", true), repeated("a", 2), repeated("a", 3)]);
    assert_eq!(again.calls[0].attempts, 3);
    let next = with(&[result("a"), result("b"), result("c"), calls(&["a"])]);
    assert_eq!(open(&next), ["a"], "models number their calls anew");
    assert_eq!(open(&with(&[decided(DecisionKind::Await)])), Vec::<String>::new());
}

#[test]
fn a_parked_call_says_what_it_waits_for() {
    let runs = CallWait::Runs {
        runs: Vec::new(),
        mode: WaitMode::Any,
        until: Some(Timestamp(9)),
        report: RunsReport::List,
    };
    let answer = CallWait::Answer { item: "ask:b".into() };
    let turn = [
        decided(DecisionKind::ToolCalls),
        calls(&["a", "b"]),
        scheduled("a", false),
        scheduled("b", false),
        parked("b", answer.clone()),
        asked("ask:b"),
        parked("a", runs.clone()),
    ];
    let waiting = work(&turn);
    let waits: Vec<_> = waiting.open_calls().map(|call| call.parked.clone()).collect();
    assert_eq!(waits, [Some(runs), Some(answer)]);
    assert_eq!(waiting.answer_to("ask:b"), None);
    let there = work(&[&turn[..], &[answered("ask:b")]].concat());
    assert_eq!(there.answer_to("ask:b"), Some(&Answer::Text("this".into())));
}

#[test]
fn what_the_planner_asked_is_said_once_in_the_order_asked_when_all_is_answered() {
    let asks = [decided(DecisionKind::Await), asked("a"), asked("b"), asked("c")];
    let orders = [["a", "b", "c"], ["a", "c", "b"], ["b", "a", "c"], ["c", "b", "a"]];
    for order in orders {
        let mut work = work(&asks);
        for (given, id) in order.into_iter().enumerate() {
            assert_eq!(texts(&work), ["do"], "{given} of {order:?}");
            let text = Answer::Text(format!("answer to {id}"));
            let (item, by) = (id.into(), "b".into());
            work.push(&Event::Answered { item, answer: text, by, by_default: false }, 5);
        }
        assert_eq!(texts(&work), ["do", "answer to a", "answer to b", "answer to c"]);
    }
    let done = work(&[&asks[..], &[decided(DecisionKind::Await)]].concat());
    assert!(done.asked.is_empty(), "a decision follows from the answers");
}

#[test]
fn a_tool_that_asks_says_nothing_in_the_conversation_itself() {
    let mut item = asked("ask:a");
    if let Event::Asked { item } = &mut item {
        item.tool_call_id = Some("a".into());
    }
    let turn = [decided(DecisionKind::ToolCalls), calls(&["a"]), item, answered("ask:a")];
    assert_eq!(texts(&work(&turn)).len(), 2, "the task and the calls");
}

#[test]
fn the_tape_holds_what_the_step_under_way_did_and_nothing_before() {
    let step = [chunk(), log()];
    let mut tape = Tape::default();
    step.iter().for_each(|event| tape.push(event));
    let before: [&[Event]; 7] = [
        &[],
        &[chunk(), skipped()],
        &[chunk(), decided(DecisionKind::ToolCalls)],
        &[decided(DecisionKind::ToolCalls), calls(&["a"]), scheduled("a", true), result("a")],
        &[chunk(), failed()],
        &[chunk(), finalize()],
        &[chunk(), decided(DecisionKind::Await), asked("q"), answered("q")],
    ];
    for events in before {
        assert_eq!(work(events).tape, Tape::default(), "{events:?}");
        assert_eq!(work(&[events, &step[..]].concat()).tape, tape, "{events:?}");
    }
    assert_eq!(work(&[finalize()]).finalize, Some(TerminationReason::TurnCap));
}

#[test]
fn what_a_tool_reports_is_not_on_the_tape_of_the_next_step() {
    let turn = [decided(DecisionKind::ToolCalls), calls(&["a"]), scheduled("a", true), log()];
    assert_eq!(work(&turn).tape, Tape::default(), "its host may die before the result");
}

#[test]
fn a_step_that_runs_again_is_given_the_conversation_that_it_was_given_before() {
    let step = [chunk(), says("meanwhile"), says("void")];
    assert_eq!(texts(&work(&step)), ["do"]);
    assert_eq!(work(&step).tape.emitted().count(), 3);
    let restarted =
        Event::StepRestarted { turn: 1, kept: StepPrefix { events: 2, ..StepPrefix::default() } };
    let more = [restarted, says("again"), decided(DecisionKind::ToolCalls), calls(&["a"])];
    let whole = work(&[&step[..], &more].concat());
    assert_eq!(texts(&whole), ["do", "meanwhile", "again", ""]);
    assert_eq!(whole.calls.len(), 1);
    assert_eq!(whole.conversation.state().len(), 1);
    let again = work(&[&step[..1], &[says("once"), failed()]].concat());
    assert_eq!(texts(&again), ["do", "once"], "what a failed attempt said was said");
}

#[test]
fn after_a_skipped_turn_the_planner_is_told_to_go_on_once() {
    let turns = [says("first"), failed(), says("second"), skipped(), skipped()];
    assert_eq!(texts(&work(&turns)), ["do", "first", "second", "continue", "continue"]);
    let turn = [decided(DecisionKind::ToolCalls), calls(&["a"]), scheduled("a", true), result("a")];
    let after = work(&[&turn[..], &[skipped()]].concat());
    assert_eq!(after.open_calls().count(), 0, "the results of before stand");
    assert_eq!(texts(&after).last().map(String::as_str), Some("continue"));
}

#[test]
fn each_repetition_of_a_call_is_asked_for_anew() {
    let mut events = vec![decided(DecisionKind::ToolCalls), calls(&["a"]), scheduled("a", false)];
    let mut ids = Vec::new();
    for attempt in 1..4 {
        let cut_off = work(&events);
        let id = repeat_id(&cut_off.calls[0]);
        assert_eq!(cut_off.answer_to(&id), None, "attempt {attempt}: nobody agreed to this one");
        events.extend([asked(&id), answered(&id), repeated("a", attempt + 1)]);
        ids.push(id);
    }
    assert_eq!(ids, ["repeat:1:a", "repeat:2:a", "repeat:3:a"]);
}

#[test]
fn an_adopted_run_goes_on_with_its_new_pin_and_repeats_no_call_of_other_code() {
    let mut work = Work::new(&spec(), &spec().pin);
    assert!(work.is_between(), "nothing was done yet");
    work.push(&says("half"), 1);
    assert!(!work.is_between(), "a step was cut off");
    work.push(&decided(DecisionKind::ToolCalls), 2);
    work.push(&calls(&["a", "b"]), 3);
    assert!(work.is_between(), "no call has begun");
    work.push(&scheduled("a", true), 4);
    assert!(!work.is_between());
    work.push(&scheduled("b", true), 5);
    work.push(&parked("b", CallWait::Answer { item: "q".into() }), 6);
    let to = "a@2".to_owned();
    work.push(&Event::Adopted { from: work.pins_now[0].clone(), to, by: "b".into() }, 7);
    assert_eq!(work.pins_now, ["a@2"]);
    assert!(work.tape.has_other_rules());
    let repeats: Vec<_> = work.calls.iter().map(|call| call.idempotent).collect();
    assert_eq!(repeats, [false, false]);
    work.push(&scheduled("a", true), 8);
    assert!(work.calls[0].idempotent, "it has begun again, as it is now");
    work.push(&result("a"), 9);
    assert!(work.is_between(), "a call that waits is not under way");
}

/// The result of the call in a round, with so many bytes more than its number.
fn value(number: u32, bytes: usize) -> String {
    format!("\"{number} {}\"", "x".repeat(bytes))
}

/// A round: a call with so many bytes of result, and the answer, and its end.
fn round(number: u32, bytes: usize, checkpoint: Checkpoint) -> Vec<Event> {
    let id = format!("c{number}");
    let outcome = ToolOutcome::Value(value(number, bytes));
    let output = Box::new(ToolOutput::plain("t/f", &id, "{}", outcome));
    let ended = Event::RoundEnded {
        round: number,
        prompt: format!("go on after {number}"),
        worked: true,
        wants_result: false,
        checkpoint: Box::new(checkpoint),
    };
    vec![
        decided(DecisionKind::ToolCalls),
        calls(&[&id]),
        scheduled(&id, true),
        Event::ToolResult { output, duration_ms: 0, refused: None },
        chunk(),
        decided(DecisionKind::FinalResponse),
        says(&format!("Round {number} is over.")),
        ended,
    ]
}

/// The position at which a step finds a result by its digest.
async fn place_of(work: &Work, value: &str) -> Option<Seq> {
    work.conversation.results().place(&digest(value.as_bytes())).await
}

#[tokio::test]
async fn a_fold_that_is_kept_comes_to_the_same_as_the_whole_journal() {
    let json = |work: &Work| serde_json::to_string(work).expect("JSON");
    let mut run = crate::fixtures::run(Vec::new());
    let mut whole = Work::new(&run.spec, run.pin());
    let (mut cut, mut folds, created) = (None::<Work>, 0, run.state.head);
    for number in 1..=250_u32 {
        let left = (number % 7 == 0).then_some(8_000);
        let checkpoint = Checkpoint { conversation_bytes: left, ..Checkpoint::default() };
        let mut events = round(number, 3_000, checkpoint);
        let kept = fold::after(&whole, &run, &events);
        if let (Some((fold, _)), Some(Event::RoundEnded { checkpoint, .. })) =
            (&kept, events.last_mut())
        {
            checkpoint.fold = Some(fold.clone());
            run.state.rounds.fold = Some(fold.clone());
        }
        for event in events {
            run.state.head += 1;
            let (seq, at) = (run.state.head, Timestamp(0));
            let recorded = EventRecord { seq, id: seq, at, event };
            whole.push_recorded(&recorded);
            if let Some(cut) = &mut cut {
                cut.push_recorded(&recorded);
            }
        }
        if let Some((fold, artifact)) = kept {
            folds += 1;
            assert_eq!(fold.seq, run.state.head);
            let (work, seq) = fold::of_bytes(artifact.bytes(), fold.seq).expect("of use");
            assert_eq!(seq, run.state.head);
            cut = Some(work);
            assert!(fold::of_bytes(artifact.bytes(), fold.seq + 1).is_none(), "of another place");
            let other = String::from_utf8(artifact.bytes().to_vec()).expect("JSON");
            let other = other.replacen("\"form\":", "\"form\":1", 1);
            assert!(fold::of_bytes(other.as_bytes(), fold.seq).is_none(), "of another program");
        }
        if let Some(cut) = &cut {
            assert_eq!(json(cut), json(&whole), "after {number} rounds");
            for near in number.saturating_sub(12).max(1)..=number {
                // Two rounds stay where the others are left behind.
                let is_kept = near + 2 > number - number % 7;
                let place = is_kept.then(|| created + u64::from(near) * 8 - 4);
                let value = value(near, 3_000);
                assert_eq!(place_of(&whole, &value).await, place, "{near} of {number}");
                assert_eq!(place_of(cut, &value).await, place, "{near} of {number}");
            }
        }
    }
    assert!(folds > 1, "{folds}");
    let results = whole.conversation.within(usize::MAX, Window::default(), Whole);
    let results = results.expect("room for all").outputs.len();
    assert!(whole.conversation.bytes() < 40_000 && results < 12, "it grows no more");
}

#[tokio::test]
async fn a_step_finds_the_results_of_its_own_run_by_their_digests_and_nothing_else() {
    let large = value(1, 70_000);
    let mut work = work(&[
        decided(DecisionKind::ToolCalls),
        calls(&["a", "b"]),
        scheduled("a", true),
        scheduled("b", true),
        valued("b", &large),
        valued("a", "1"),
    ]);
    for (value, place) in [("1", Some(6)), (large.as_str(), Some(5)), ("null", None), ("2", None)] {
        assert_eq!(place_of(&work, value).await, place, "{value:.9}");
    }
    work.carry_on(&spec(), &spec().pin);
    for value in ["1", large.as_str()] {
        assert_eq!(place_of(&work, value).await, None, "another run's: {value:.9}");
    }
}

#[test]
fn a_step_whose_host_died_is_cut_off_until_its_restart_is_on_record() {
    let cut_off = |events: &[Event]| {
        let mut tape = work(events).tape;
        tape.begin_anew();
        tape != Tape::default()
    };
    let restarted = Event::StepRestarted { turn: 1, kept: StepPrefix::default() };
    assert!(!cut_off(&[lost(false)]), "given back");
    assert!(cut_off(&[lost(true)]));
    assert!(
        cut_off(&[lost(true), Event::InboxShown { messages: 1 }]),
        "it was shown something, and asked nothing"
    );
    assert!(!cut_off(&[lost(true), restarted.clone()]));
    assert!(cut_off(&[lost(true), restarted, lost(true)]), "its second host died, too");
    assert!(!cut_off(&[decided(DecisionKind::Await), asked("q"), lost(true), answered("q")]));
    let turn = [decided(DecisionKind::ToolCalls), calls(&["a"]), scheduled("a", true), lost(true)];
    assert!(!cut_off(&[&turn[..], &[result("a")]].concat()), "a call was under way, and no step");
    assert!(!cut_off(&[lost(true), failed()]), "it was begun again, and ended");
}
