//! Setbacks as journals tell them.

use taskrun_journal::event::{DecisionKind, ModelAnswer};
use taskrun_journal::ids::HostId;

use super::*;

const NOW: Timestamp = Timestamp(1_000_000);

fn refused() -> Event {
    let error = ModelError::Unreachable("Connection refused (os error 111)".to_owned());
    answered(ModelAnswer::Error(error))
}

fn answered(answer: ModelAnswer) -> Event {
    let answer = Box::new(HostAnswer::Model(answer));
    let (request, model) = ("q".to_owned(), Some("$(odd)".to_owned()));
    Event::HostAnswered { call: 0, request, model, answer }
}

fn failed() -> Event {
    let error = "the model cannot be reached".to_owned();
    Event::StepFailed { turn: 1, attempt: 4, error, retry_after_ms: 40_000 }
}

fn pushed_back() -> Event {
    Event::PushedBack {
        turn: 1,
        model: "careful".to_owned(),
        until: NOW.plus(Duration::from_secs(600)),
        reason: "the provider limits the rate of requests".to_owned(),
        said: Some("status 429: Slow down.".to_owned()),
        usage: None,
    }
}

fn decided() -> Event {
    Event::PlanDecided {
        turn: 1,
        decision: DecisionKind::FinalResponse,
        state: Vec::new(),
        reminders: Vec::new(),
        expected_children: None,
        parents: std::collections::BTreeMap::new(),
        ran_ms: 0,
    }
}

fn resumed() -> Event {
    Event::Resumed { host: HostId::new("h"), epoch: 2 }
}

/// The setback after events that all happened just now.
fn after(events: impl IntoIterator<Item = Event>) -> Setback {
    let mut setback = Setback::default();
    for (seq, event) in events.into_iter().enumerate() {
        setback.push(&EventRecord { seq: seq as u64, id: 1, at: NOW, event });
    }
    setback
}

#[test]
fn an_attempt_that_failed_is_told_with_the_error_of_its_model() {
    let setback = after([refused(), failed(), resumed()]);
    let error = "$(odd): the provider cannot be reached: Connection refused (os error 111)";
    let lines = [
        ("last attempt", "failed, again in 40s: the model cannot be reached".to_owned()),
        ("model error", error.to_owned()),
    ];
    assert_eq!(setback.details(NOW), lines);
    let late = setback.details(NOW.plus(Duration::from_secs(40)));
    assert_eq!(late[0].1, "failed: the model cannot be reached");
    let mut failure = Failure::new(Exit::Failed, "run-failed", "run r failed");
    failure.causes = vec!["gave up".to_owned(), "stop reason: retry_aborted".to_owned()];
    after([refused()]).tell(&mut failure, NOW, true);
    let told = format!("model {error}");
    assert_eq!(failure.causes, ["gave up", told.as_str(), "stop reason: retry_aborted"]);
    let hint = "ask the model alone with `taskrun model test '$(odd)'`";
    assert_eq!(failure.hint.as_deref(), Some(hint), "pasted, nothing of it is executed");
}

#[test]
fn an_attempt_that_failed_without_its_model_is_told_without_the_error_of_the_one_before() {
    let names = |setback: &Setback| -> Vec<&'static str> {
        setback.details(NOW).into_iter().map(|(name, _)| name).collect()
    };
    let other = after([refused(), failed(), resumed(), failed()]);
    assert_eq!(names(&other), ["last attempt"]);
    assert_eq!(other.advice(), None);
    let again = after([refused(), failed(), resumed(), refused(), failed()]);
    assert_eq!(names(&again), ["last attempt", "model error"]);
}

#[test]
fn a_wait_for_a_model_is_told_until_the_run_goes_on() {
    let waiting = after([failed(), pushed_back()]);
    let (label, text) = waiting.details(NOW).remove(0);
    assert_eq!(label, "waits for");
    assert!(text.starts_with("model careful until 1970-01-01T00:26:40"), "{text}");
    let end = "(due in 10m): the provider limits the rate of requests: status 429: Slow down.";
    assert!(text.ends_with(end), "{text}");
    let mut failure = Failure::new(Exit::WaitTimedOut, "wait-timed-out", "too short");
    waiting.tell(&mut failure, NOW, false);
    assert_eq!(failure.causes, [format!("it waits for {text}")]);
    assert_eq!(failure.hint, None);
    assert_eq!(after([pushed_back(), resumed()]), Setback::default());
}

#[test]
fn a_step_that_is_decided_and_a_model_that_answers_are_no_setback() {
    assert_eq!(after([refused(), failed(), decided()]), Setback::default());
    let answers = answered(ModelAnswer::Parts(Vec::new()));
    assert_eq!(after([refused(), answers]), Setback::default());
    let error = ModelError::Refused("no".to_owned());
    let refused = after([answered(ModelAnswer::Error(error))]);
    assert_eq!(refused.details(NOW).len(), 1);
    assert_eq!(refused.advice(), None, "a test of the model would not show it");
}

#[test]
fn a_model_without_room_for_a_question_is_told_with_the_key_that_states_its_window() {
    let error = ModelError::ContextWindow("status 400: prompt is too long".to_owned());
    let setback = after([answered(ModelAnswer::Error(error)), failed()]);
    let advice = setback.advice().unwrap_or_default();
    let begin = "state `context_tokens` of [model.$(odd)] in the policy";
    assert!(advice.starts_with(begin), "{advice}");
    let mut failure = Failure::new(Exit::Failed, "run-failed", "run r failed");
    setback.tell(&mut failure, NOW, true);
    assert_eq!(failure.hint, Some(advice));
}

#[test]
fn a_run_that_ended_while_its_model_did_not_answer_tells_of_that_and_waits_no_more() {
    let ended = |events: Vec<Event>, is_of_step: bool| {
        let mut setback = after(events);
        setback.end(is_of_step);
        setback
    };
    let late = ended(vec![refused(), failed()], false);
    let error = "$(odd): the provider cannot be reached: Connection refused (os error 111)";
    let lines = [
        ("last attempt", "failed: the model cannot be reached".to_owned()),
        ("model error", error.to_owned()),
    ];
    assert_eq!(late.details(NOW), lines);
    let mut failure = Failure::new(Exit::TimedOut, "run-timed-out", "run r failed");
    failure.causes = vec!["deadline exceeded".to_owned(), "stop reason: run_timeout".to_owned()];
    late.tell(&mut failure, NOW, true);
    let attempt = "attempt 4 failed: the model cannot be reached";
    let model = format!("model {error}");
    let causes = ["deadline exceeded", attempt, model.as_str(), "stop reason: run_timeout"];
    assert_eq!(failure.causes, causes);
    let hint = "ask the model alone with `taskrun model test '$(odd)'`";
    assert_eq!(failure.hint.as_deref(), Some(hint));
    let json = serde_json::to_value(&late).expect("JSON");
    assert_eq!(json["last_attempt"]["failed"], 4, "{json}");
    assert!(json.get("waits").is_none(), "{json}");
    // The record has the error of an attempt by which the run ended.
    let of_step = ended(vec![refused(), failed()], true);
    assert_eq!(of_step.details(NOW), lines[1..]);
    // Canceled while the provider had its pause.
    let paused = ended(vec![pushed_back()], false);
    let said = "careful: the provider limits the rate of requests: status 429: Slow down.";
    assert_eq!(paused.details(NOW), [("model error", said.to_owned())]);
    assert_eq!(ended(vec![refused(), failed(), decided()], false), Setback::default());
}
