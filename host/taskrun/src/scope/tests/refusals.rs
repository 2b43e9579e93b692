//! Refusals of a step that runs again, and answers that another program recorded.

use taskrun_journal::format::JournalFormat;
use taskrun_policy::{CallRules, Capability, Policy, Use};

use super::super::*;
use super::fixtures::{Host, POLICY, question};

const READ: Use<'static> = Use::Path(Capability::WorkspaceRead, "x");

/// Rules of the agent with these lines in its table, and what stands above it.
fn rules(above: &str, lines: &str) -> CallRules {
    let text = format!("{above}{POLICY}{lines}");
    let policy = Policy::parse(&text, "taskrun.toml".as_ref()).expect("a valid policy");
    CallRules::new(Arc::clone(&policy.agents["a"].grants), None)
}

fn host(journal: &[Event], number: u64, allowed: CallRules, pin: &str) -> Host {
    let pins = vec![pin.to_owned()];
    let current = Arc::new(CurrentRules::new(allowed, pins.clone()));
    Host::under(journal, (number, number), (current, pins))
}

/// Asks to read a file, as the engine does, and gives what it is told.
fn read(scope: &CallScope) -> String {
    let decided = scope.decide(&READ).map_err(|denied| {
        scope.record_denial(READ.capability(), &READ.subject(), &denied);
        denied.for_guest
    });
    format!("{decided:?}")
}

/// Asks a model, which question depends on what it may.
async fn guest(scope: &CallScope) -> String {
    let told = read(scope);
    let answer = scope.ask(question(&told)).await;
    format!("{told} {answer:?}")
}

#[tokio::test]
async fn what_a_step_was_refused_stays_refused_when_it_runs_again_and_is_allowed_after_it() {
    let first = host(&[], 1, rules("", ""), "a@1");
    let told = first.run(guest(&first.scope)).await;
    assert!(told.starts_with("Err"), "{told}");
    let mut journal = first.journal();
    journal.push(Event::RulesChanged { pins: vec!["a@2".to_owned()] });
    let wider = rules("", "allow = [\"workspace-read: x\"]\n");
    let again = host(&journal, 2, wider, "a@2");
    assert_eq!(again.run(guest(&again.scope)).await, told);
    assert_eq!(again.model.asked.load(Ordering::Relaxed), 0, "the answer is on record");
    assert_eq!(read(&again.scope), "Ok(())", "what it does after that is decided anew");
    assert_eq!(again.journal(), journal);
    let end = again.scope.finish();
    assert_eq!((end.events, end.divergence), (Vec::new(), None));
}

#[tokio::test]
async fn what_a_step_was_allowed_is_asked_again_of_the_rules_of_now() {
    let wide = "allow = [\"workspace-read: x\"]\n";
    let first = host(&[], 1, rules("", wide), "a@1");
    let told = first.run(guest(&first.scope)).await;
    assert!(told.starts_with("Ok"), "{told}");
    let mut journal = first.journal();
    journal.push(Event::RulesChanged { pins: vec!["a@2".to_owned()] });
    let again = host(&journal, 2, rules("", ""), "a@2");
    let now = again.run(guest(&again.scope)).await;
    assert!(now.starts_with("Err"), "{now}");
    assert_eq!(again.scope.finish().divergence, None);
}

#[tokio::test]
async fn a_refusal_is_the_same_where_its_rule_stands_on_another_line() {
    let deny = "deny = [\"workspace-read: **\"]\n";
    let first = host(&[], 1, rules("", deny), "a@1");
    let told = first.run(guest(&first.scope)).await;
    // A comment is no part of a pin.
    let again = host(&first.journal(), 2, rules("# A comment.\n", deny), "a@1");
    assert_eq!(again.run(guest(&again.scope)).await, told);
    let end = again.scope.finish();
    assert_eq!((end.events, end.divergence), (Vec::new(), None));
}

/// The same journal, as a program would have written it that names questions in another way.
fn named_otherwise(journal: &[Event]) -> Vec<Event> {
    let rename = |event: &Event| {
        let mut event = event.clone();
        if let Event::HostAnswered { request, .. } = &mut event {
            *request = request.chars().rev().filter(char::is_ascii_hexdigit).collect();
        }
        event
    };
    journal.iter().map(rename).collect()
}

#[tokio::test]
async fn answers_to_questions_that_another_program_named_otherwise_are_taken_by_their_place() {
    let twice = async |scope: &CallScope| {
        let one = scope.ask(question("one")).await;
        format!("{one:?} {:?}", scope.ask(question("two")).await)
    };
    let first = Host::new(&[], 1, 1);
    let told = first.run(twice(&first.scope)).await;
    let before = named_otherwise(&first.journal());
    // This program names them as those of the later format do.
    let later = JournalFormat(JournalFormat::CURRENT.0 + 1);
    let taken_up = |journal: &[Event], since: DigestsSince| {
        let services = Services { format: later, digests_since: since, ..Services::default() };
        Host::of_program(journal, (2, 1), (Host::rules(), Vec::new()), services)
    };
    let again = taken_up(&before, DigestsSince(later));
    assert_eq!(again.run(twice(&again.scope)).await, told);
    assert_eq!(again.model.asked.load(Ordering::Relaxed), 0, "nothing is paid twice");
    assert_eq!(again.scope.finish().divergence, None);
    // Where the second answer is missing, that question is asked, and no other.
    let at = before.iter().rposition(|event| matches!(event, Event::HostAnswered { .. }));
    let cut = taken_up(&before[..at.expect("it was answered")], DigestsSince(later));
    cut.run(twice(&cut.scope)).await;
    assert_eq!(cut.model.asked.load(Ordering::Relaxed), 1);
    assert_eq!(cut.scope.finish().divergence, None);
    // One that names them in the same way knows that these are others.
    let same = taken_up(&before, DigestsSince::default());
    same.run(twice(&same.scope)).await;
    assert!(same.scope.finish().divergence.is_some());
}
