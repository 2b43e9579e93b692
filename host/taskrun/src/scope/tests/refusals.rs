//! Refusals of a step that runs again, and answers that another program recorded.

use taskrun_journal::format::JournalFormat;
use taskrun_journal::message::LogLevel;
use taskrun_policy::{CallRules, Capability, Policy, Use};

use super::super::*;
use super::fixtures::{Host, POLICY, question};
use super::scope;

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

#[test]
fn a_refusal_is_on_record_whatever_else_the_guest_has_written_down() {
    let long = "x".repeat(1 << 10);
    // Those of calls, by their number and by their bytes, and those of a finalizer.
    let tries = [(10_000, 1 << 20, "x"), (10_000, 1 << 20, long.as_str()), (100, 64 << 10, "x")];
    for (events, bytes, line) in tries {
        let scope = scope(events, bytes);
        for _ in 0..=10_000 {
            scope.log(LogLevel::Info, "guest", line, Labels::new());
        }
        let told = read(&scope);
        assert!(told.starts_with("Err"), "{told}");
        let end = scope.finish();
        let last = end.events.last().expect("there are events");
        assert!(matches!(last, Event::PolicyDecision { told: Some(_), .. }), "{last:?}");
        assert!(end.dropped > 0, "there is no room for all the lines");
    }
}

#[test]
fn refusals_over_their_bound_are_counted_by_what_was_refused() {
    let scope = scope(0, 0);
    for _ in 0..1_003 {
        read(&scope);
    }
    scope.allow(&Use::Model("m")).expect_err("no rule allows it");
    let end = scope.finish();
    assert_eq!((end.events.len(), end.dropped), (1_000, 0));
    let expected = [("model".to_owned(), 1), ("workspace-read".to_owned(), 3)];
    assert_eq!(end.dropped_refusals, BTreeMap::from(expected));
}

#[test]
fn refusals_are_bounded_in_their_bytes() {
    let (scope, path) = (scope(0, 0), "x".repeat(1 << 10));
    for _ in 0..1_000 {
        scope.allow(&Use::Path(Capability::WorkspaceRead, &path)).expect_err("no rule allows it");
    }
    let end = scope.finish();
    let bytes: usize = end.events.iter().map(Event::text_bytes).sum();
    assert!((1_000_000..=1 << 20).contains(&bytes), "{bytes}");
    let dropped = end.dropped_refusals["workspace-read"];
    assert_eq!(end.events.len() + dropped as usize, 1_000);
}

#[tokio::test]
async fn refusals_over_the_bound_that_an_earlier_program_recorded_are_no_other_step() {
    let guest = async |scope: &CallScope, refusals: usize| {
        for _ in 0..refusals {
            read(scope);
        }
        scope.log(LogLevel::Info, "guest", "done", Labels::new());
    };
    let first = host(&[], 1, rules("", ""), "a@1");
    first.run(guest(&first.scope, 1)).await;
    let one = first.journal();
    let [refusal, line] = one.as_slice() else { panic!("two events: {one:?}") };
    let mut before = vec![refusal.clone(); 1_005];
    before.push(line.clone());
    let again = host(&before, 2, rules("", ""), "a@1");
    again.run(guest(&again.scope, 1_007)).await;
    assert_eq!(again.journal(), before);
    let end = again.scope.finish();
    assert_eq!((end.events, end.divergence), (Vec::new(), None));
    // The two that are not among them were over its bound, too.
    assert_eq!(end.dropped_refusals, BTreeMap::from([("workspace-read".to_owned(), 2)]));
}
