use super::*;
use taskrun_guest::{
    agent::{AwaitItem, Decision, Termination, TerminationReason},
    native::{self, Event},
    run,
};

fn start(task: &str) -> Result<PlanResult, PlannerError> {
    Scripted::start(PlanInput {
        messages: vec![Message::text(Role::User, task)],
        run: run::context(),
        reminders: Vec::new(),
    })
}

fn resume(task: &str, finalize: Option<Termination>) -> Result<PlanResult, PlannerError> {
    Scripted::resume(PlanResumeInput {
        messages: vec![Message::text(Role::User, task), Message::text(Role::User, "an answer")],
        run: run::context(),
        reminders: Vec::new(),
        tool_outputs: Vec::new(),
        finalize,
    })
}

fn text(result: Result<PlanResult, PlannerError>) -> String {
    let Decision::FinalResponse(last) = result.expect("a decision").decision else {
        panic!("not final")
    };
    last.message.plain_text()
}

fn events() -> Vec<Event> {
    native::host(|host| std::mem::take(&mut host.events))
}

#[test]
fn a_text_is_answered_with_itself() {
    assert_eq!(text(start("hello")), "hello");
    assert_eq!(text(start("[1]")), "[1]");
}

#[test]
fn the_last_reply_is_final_and_earlier_ones_go_out_before() {
    let result = start(r#"{"ops":[{"reply":"a"},{"delta":"b"},{"reply":"c"}]}"#);
    assert!(!result.as_ref().expect("a decision").streamed);
    assert_eq!(text(result), "c");
    assert_eq!(events(), [Event::Message("a".into()), Event::Chunk("b".into())]);
}

#[test]
fn a_delta_after_the_last_reply_sends_it_and_marks_it_as_streamed() {
    let result = start(r#"{"ops":[{"reply":"a"},{"delta":"b"}]}"#);
    assert!(result.as_ref().expect("a decision").streamed);
    assert_eq!(text(result), "a");
    assert_eq!(events(), [Event::Message("a".into()), Event::Chunk("b".into())]);
}

#[test]
fn a_reply_made_of_the_pieces_before_it_is_streamed() {
    let result = start(r#"{"ops":[{"delta":"a"},{"delta":"b"},{"reply":"ab"}]}"#);
    assert!(result.expect("a decision").streamed);
}

#[test]
fn steps_follow_each_other_by_the_runs_state() {
    let task = r#"{"steps":[[{"call":{"id":"1","name":"t/f","args":{"a":1}}}],
        [{"call":{"name":"t/g"}}],[{"reply":"done"}]]}"#;
    let Decision::ToolCalls(calls) = start(task).expect("a decision").decision else {
        panic!("no calls")
    };
    assert_eq!((calls[0].name.as_str(), calls[0].payload.as_str()), ("t/f", r#"{"a":1}"#));
    assert_eq!(calls[0].tool_call_id.as_deref(), Some("1"));
    let Decision::ToolCalls(calls) = resume(task, None).expect("a decision").decision else {
        panic!("no calls")
    };
    assert_eq!((calls[0].name.as_str(), &calls[0].tool_call_id), ("t/g", &None));
    assert_eq!(text(resume(task, None)), "done");
}

#[test]
fn after_the_last_step_the_reply_held_back_ends_the_run() {
    let task = r#"{"ops":[{"call":{"name":"t/f"}},{"reply":"done"}]}"#;
    assert!(matches!(start(task).expect("a decision").decision, Decision::ToolCalls(_)));
    assert_eq!(events(), []);
    assert_eq!(text(resume(task, None)), "done");
    let task = r#"{"ops":[{"call":{"name":"t/f"}}]}"#;
    native::reset();
    start(task).expect("a decision");
    assert_eq!(text(resume(task, None)), "");
}

#[test]
fn an_error_is_sticky_and_the_last_one_counts() {
    let error = start(r#"{"ops":[{"err":"one"},{"reply":"r"},{"err":"two"},{"set":["k","v"]}]}"#);
    assert_eq!(error.expect_err("it fails").message, "two");
    assert_eq!(events(), [Event::Message("r".into())]);
    assert_eq!(state::get("k").as_deref(), Some("v"));
}

#[test]
fn close_ends_with_nothing_and_what_follows_is_not_played() {
    assert_eq!(text(start(r#"{"ops":[{"reply":"a"},"close",{"reply":"b"}]}"#)), "");
    assert_eq!(events(), [Event::Message("a".into())]);
}

#[test]
fn a_wait_ends_with_the_cancel() {
    for op in [r#""block""#, r#"{"sleep":5}"#] {
        native::host(|host| host.cancel_at_ms = Some(host.now_ms + 1));
        let error = start(&format!(r#"{{"ops":[{op},{{"reply":"r"}}]}}"#));
        assert_eq!(error.expect_err("canceled").code.as_deref(), Some("canceled"));
    }
    assert_eq!(text(start(r#"{"ops":[{"ignore_cancel":5},{"reply":"r"}]}"#)), "r");
}

#[test]
fn malformed_scripts_say_where() {
    for (task, place) in [
        ("{", "line 1, column 1"),
        ("{}", "the top"),
        (r#"{"steps":[[],[{"reply":1}]]}"#, "steps[1][0].reply"),
        (r#"{"ops":["dance"]}"#, "ops[0].dance"),
        (r#"{"ops":[{"usage":[1]}]}"#, "ops[0].usage"),
        (r#"{"ops":[{"plan":{"await":[{}]}}]}"#, "ops[0].plan.await[0]"),
        (r#"{"ops":[],"more":1}"#, "more"),
    ] {
        let error = start(task).expect_err("malformed");
        assert!(error.message.contains(place), "{task}: {}", error.message);
        assert_eq!(error.code.as_deref(), Some("malformed-script"));
    }
}

#[test]
fn a_decision_can_be_written_out() {
    let task = r#"{"ops":[{"plan":{"await":[{"clarification":{"id":"i","question":"q?"}}],
        "streamed":true,"expected-children":2,"notes":["n"]}}]}"#;
    let result = start(task).expect("a decision");
    assert_eq!((result.streamed, result.expected_children), (true, Some(2)));
    assert_eq!(result.notes[0].text, "n");
    let Decision::Await(wait) = result.decision else { panic!("no await") };
    assert!(matches!(&wait.items[0].what, AwaitItem::Clarification(item) if item.question == "q?"));
}

#[test]
fn asked_for_a_last_answer_it_plays_that_part_or_repeats_the_reason() {
    let end = || Termination { reason: TerminationReason::ToolCap, message: "no calls".into() };
    assert_eq!(text(resume(r#"{"ops":[]}"#, Some(end()))), "no calls");
    let task = r#"{"ops":[],"finalize":[{"reply":"partial"}]}"#;
    assert_eq!(text(resume(task, Some(end()))), "partial");
}

#[test]
fn it_shows_what_it_was_given() {
    native::host(|host| host.context.envelope = vec![("k".into(), "v".into())]);
    let shown: serde_json::Value =
        serde_json::from_str(&text(start(r#"{"ops":["reply_context"]}"#))).expect("JSON");
    assert_eq!((&shown["run-id"], &shown["envelope"]["k"]), (&"run-1".into(), &"v".into()));
    let shown: serde_json::Value =
        serde_json::from_str(&text(start(r#"{"ops":["reply_input"]}"#))).expect("JSON");
    assert_eq!(shown["messages"][0]["role"], "user");
}
