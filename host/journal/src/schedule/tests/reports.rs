//! When a host is to look for the outcome of a run, and for how long.

use std::time::Duration;

use super::super::{ReportRequest, Settlement, due};
use super::{id, run_of};
use crate::delivery::{
    ATTEMPT_PAUSES, Conversation, Delivery, HOPS_MAX, IdleWait, ReportState, Strategy,
};
use crate::machine::tests::{completed, finished, spec, started};
use crate::spec::RunSpec;
use crate::time::Timestamp;

fn strategies() -> Vec<Strategy> {
    Strategy::WORDS.into_iter().map(|word| Strategy::of_word(word).expect("one of them")).collect()
}

#[test]
fn rs_26_strategies_have_words_and_these_defaults() {
    for strategy in strategies() {
        assert_eq!(Strategy::of_word(strategy.word()), Some(strategy));
    }
    assert_eq!(Strategy::of_word("sometimes"), None);
    let (buffer, longest) = (Duration::from_secs(1), Duration::from_secs(14));
    for word in ["wait-for-idle", "queued"] {
        let strategy = Strategy::of_word(word).expect("one of them");
        assert_eq!(strategy.delay(), Some(Duration::from_secs(1)), "{word}");
        assert_eq!(strategy.idle(), Some(IdleWait { buffer, longest }), "15 s after the end");
    }
    let queued = Strategy::of_word("queued").expect("one of them");
    assert_eq!(queued.separator(), Some("\n\n"));
    let immediate = Strategy::Immediate;
    assert_eq!((immediate.delay(), immediate.idle()), (Some(Duration::ZERO), None));
    assert_eq!(Strategy::default(), Strategy::ContextOnly);
    assert_eq!(Strategy::default().delay(), None);
    let interrupts = Strategy::WaitForIdle { buffer_ms: 9, timeout_ms: 99, interrupt: true };
    assert_eq!((interrupts.delay(), interrupts.idle()), (Some(Duration::ZERO), None));
}

#[test]
fn a_strategy_is_written_only_where_it_is_another_one_than_the_first() {
    for strategy in strategies() {
        let delivery = Delivery { strategy: strategy.clone(), ..Delivery::default() };
        let text = serde_json::to_string(&delivery).expect("JSON");
        assert_eq!(text.contains("strategy"), strategy != Strategy::ContextOnly, "{text}");
        assert_eq!(serde_json::from_str::<Delivery>(&text).expect("reads"), delivery);
    }
}

#[test]
fn texts_of_a_delivery_are_told_where_people_said_them() {
    let delivery = |is_beneath: bool, vetted, separator: &str| {
        let separator = separator.to_owned();
        Delivery {
            above: is_beneath.then(|| id("top")).into_iter().collect(),
            strategy: Strategy::Queued { buffer_ms: 0, timeout_ms: 0, separator },
            prompt: Some(" Go on. ".to_owned()),
            vetted,
            ..Delivery::default()
        }
    };
    for (is_beneath, vetted, is_told) in
        [(false, false, true), (true, true, true), (true, false, false)]
    {
        let said = delivery(is_beneath, vetted, " | ");
        let expected = if is_told { (Some("Go on."), " | ") } else { (None, "\n\n") };
        assert_eq!((said.task(), said.separator()), expected, "{said:?}");
        assert_eq!(delivery(is_beneath, vetted, "\n").separator(), "\n", "it says nothing");
    }
    let blank = Delivery { prompt: Some(" ".to_owned()), ..Delivery::default() };
    assert_eq!((blank.task(), blank.separator()), (None, ""));
}

#[test]
fn nobody_is_nudged_without_a_conversation_or_after_too_many_nudges() {
    let delay = |conversation: bool, hops| {
        let conversation = conversation.then(|| Conversation {
            session: "s".to_owned(),
            app: None,
            agent: "a".to_owned(),
        });
        let (above, strategy) = (Vec::new(), Strategy::Immediate);
        let delivery = Delivery { above, conversation, strategy, ..Delivery::default() };
        let spec = RunSpec { delivery: Some(delivery), hops, ..spec() };
        let run = run_of(spec, [started(), completed(), finished()]);
        ReportRequest::of(&run).expect("it is told").delay
    };
    assert_eq!(delay(true, 0), Some(Duration::ZERO));
    assert_eq!(delay(true, HOPS_MAX - 1), Some(Duration::ZERO));
    assert_eq!(delay(true, HOPS_MAX), None);
    assert_eq!(delay(false, 0), None);
}

#[test]
fn an_outcome_without_a_conversation_is_kept_for_a_run_that_continues_one_above_it() {
    let conversation = Conversation { session: "s".to_owned(), app: None, agent: "a".to_owned() };
    let request = |above: &[&str], conversation: Option<&Conversation>, from: Option<&str>| {
        let above = above.iter().map(|above| id(above)).collect();
        let delivery =
            Delivery { above, conversation: conversation.cloned(), ..Delivery::default() };
        ReportRequest { delivery, canceled_from: from.map(id), delay: None }
    };
    assert!(request(&["p"], None, None).is_wanted(None, false));
    assert!(!request(&[], None, None).is_wanted(None, false), "nothing is above it");
    assert!(!request(&["p"], None, Some("p")).is_wanted(None, false), "who canceled it knows");
    let told_in_session = request(&["p"], Some(&conversation), None);
    assert!(told_in_session.is_wanted(None, true));
    assert!(!told_in_session.is_wanted(None, false), "its session has ended");
    assert!(told_in_session.is_wanted(Some(&id("p")), false), "who started it is open");
}

#[test]
fn pauses_after_attempts_grow_and_differ_a_little() {
    let pause = |name: &str, attempts| {
        let settled = Settlement::Failed.settle(&id(name), attempts);
        assert_eq!((settled.state, settled.attempts), (ReportState::Pending, attempts + 1));
        settled.pause.expect("somebody looks again")
    };
    for (attempts, least) in ATTEMPT_PAUSES.into_iter().enumerate() {
        let attempts = u32::try_from(attempts).expect("a few");
        for name in ["a", "b", "c"] {
            let pause = pause(name, attempts);
            assert!(pause >= least && pause < least * 5 / 4, "{name}: {pause:?}");
            assert_eq!(pause, self::pause(name, attempts), "the same in every store");
        }
    }
    assert!(["b", "c", "d"].iter().any(|name| pause(name, 0) != pause("a", 0)));
    let last = Settlement::Failed.settle(&id("a"), 2);
    assert_eq!((last.state, last.attempts, last.pause), (ReportState::Dead, 3, None));
}

fn pause(name: &str, attempts: u32) -> Duration {
    Settlement::Failed.settle(&id(name), attempts).pause.expect("somebody looks again")
}

#[test]
fn a_report_is_due_after_the_longer_of_buffer_and_pause() {
    let ms = Duration::from_millis;
    let at = Timestamp(1_000);
    assert_eq!(due(at, Some(ms(7)), Some(ms(3))), Some(Timestamp(1_007)));
    assert_eq!(due(at, Some(ms(7)), Some(ms(30))), Some(Timestamp(1_030)));
    assert_eq!(due(at, None, Some(ms(30))), None);
    assert_eq!(due(at, Some(ms(7)), None), None);
}
