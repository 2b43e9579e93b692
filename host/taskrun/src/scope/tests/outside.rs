//! Cases of what a step asks of files, servers and the host's account itself.

use std::sync::atomic::Ordering;

use taskrun_journal::event::Reply;
use taskrun_journal::outside::{KeptBytes, OUTSIDE_BYTES_MAX, OutsideAnswer};
use taskrun_journal::stop::StopCause;

use super::super::*;
use super::fixtures::{Host, question};
use super::parts;

/// Some text that a step is given; a request that says `refused` is not kept.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Told(pub(super) String);

impl OutsideReply for Told {
    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn kept(&self) -> Option<OutsideAnswer> {
        let text = KeptBytes::Text(self.0.clone());
        (self.0 != "refused").then_some(OutsideAnswer::File(Reply::Given(text)))
    }

    fn given(answer: OutsideAnswer) -> Option<Self> {
        let OutsideAnswer::File(Reply::Given(KeptBytes::Text(text))) = answer else { return None };
        Some(Self(text))
    }
}

/// Asks for something, which is answered live by this text; none if nothing may be asked live.
async fn ask(
    scope: &CallScope,
    asked: &str,
    changes: bool,
    live: Option<&str>,
) -> Result<String, StopNotice> {
    let request = OutsideRequest { what: "reads a file", asked, changes };
    let told =
        scope.ask_outside(request, async { Told(live.expect("it is on record").to_owned()) });
    told.await.map(|told| told.0)
}

/// The journal of a step that asked for these, each by a change of something, and was told these.
async fn recorded(requests: &[(&str, &str)]) -> Vec<Event> {
    let host = Host::new(&[], 1, 0);
    host.run(async {
        for (asked, told) in requests {
            ask(&host.scope, asked, true, Some(told)).await.expect("no stop");
        }
    })
    .await;
    host.journal()
}

/// The requests in a journal, each with whether its answer is kept.
fn kept(journal: &[Event]) -> Vec<(u32, bool)> {
    let mut requests = Vec::new();
    for event in journal {
        let Event::OutsideAnswered { number, answer, .. } = event else { panic!("{event:?}") };
        requests.push((*number, answer.is_some()));
    }
    requests
}

/// A scope that is held against the record of a whole step.
fn whole(journal: &[Event]) -> CallScope {
    let mut tape = Tape::default();
    journal.iter().for_each(|event| tape.push(event));
    let (journal, tape) = (Some(JournalRoom::default()), Some(tape.whole()));
    CallScope::new(CallScopeParts { journal, tape, ..parts(10, 1 << 20) })
}

#[tokio::test]
async fn a_step_that_runs_again_is_given_what_it_was_given_and_changes_nothing_twice() {
    let journal = recorded(&[("a", "1"), ("b", "2")]).await;
    assert_eq!(journal.len(), 2);
    let again = Host::new(&journal, 2, 0);
    again
        .run(async {
            for (asked, told) in [("a", "1"), ("b", "2")] {
                assert_eq!(ask(&again.scope, asked, true, None).await.as_deref(), Ok(told));
            }
            assert_eq!(ask(&again.scope, "c", false, Some("3")).await.as_deref(), Ok("3"));
        })
        .await;
    assert_eq!(again.scope.finish().divergence, None);
    assert_eq!(again.journal().len(), 3, "each is recorded once");
    let strict = whole(&again.journal());
    for (asked, told) in [("a", "1"), ("b", "2"), ("c", "3")] {
        assert_eq!(ask(&strict, asked, false, None).await.as_deref(), Ok(told));
    }
    assert!(strict.end_replay().tape.is_answered());
}

#[tokio::test]
async fn a_change_is_on_record_before_the_step_goes_on_and_what_it_read_with_the_next_write() {
    let host = Host::new(&[], 1, 0);
    let read = ask(&host.scope, "a", false, Some("1"));
    read.await.expect("it waits for nobody");
    let mut change = std::pin::pin!(ask(&host.scope, "b", true, Some("2")));
    assert!(futures::poll!(&mut change).is_pending());
    host.flush();
    assert_eq!(change.await.as_deref(), Ok("2"));
    assert_eq!(kept(&host.journal()), [(0, true), (1, true)]);
}

#[tokio::test]
async fn another_request_or_one_more_or_one_less_than_on_record_is_a_difference() {
    let journal = recorded(&[("a", "1")]).await;
    let other = Host::new(&journal, 2, 0);
    assert_eq!(ask(&other.scope, "b", false, None).await, Err(StopNotice));
    assert_eq!(other.scope.stop().cause(), Some(StopCause::Diverged));
    let shorter = Host::new(&journal, 2, 0);
    assert!(shorter.scope.finish().divergence.is_some(), "a request is missing");

    let strict = whole(&journal);
    ask(&strict, "a", false, None).await.expect("it is on record");
    assert_eq!(ask(&strict, "b", false, None).await, Err(StopNotice));
    let end = strict.end_replay();
    assert_eq!(end.unrecorded, None, "nothing is left out of that record");
    assert!(end.question.is_some_and(|asked| asked.text == "\"b\"" && asked.is_outside));
    let (recorded, found) = strict.finish().divergence.expect("it differs");
    assert!(recorded == END && found.contains("request 1"), "{recorded}, {found}");
}

#[tokio::test]
async fn no_more_than_a_bound_is_kept_and_a_replay_says_so() {
    let long = "x".repeat(usize::try_from(OUTSIDE_BYTES_MAX).expect("it fits"));
    let journal = recorded(&[("a", "1"), ("b", &long), ("c", "3")]).await;
    assert_eq!(kept(&journal), [(0, true), (1, false)], "and none after one that is too long");

    let again = Host::new(&journal, 2, 0);
    for (asked, told) in [("a", None), ("b", Some("2")), ("c", Some("3"))] {
        assert_eq!(ask(&again.scope, asked, false, told).await.as_deref(), Ok(told.unwrap_or("1")));
    }
    let end = again.scope.finish();
    assert_eq!((end.events, end.divergence), (Vec::new(), None));

    let strict = whole(&journal);
    ask(&strict, "a", false, None).await.expect("it is on record");
    assert_eq!(ask(&strict, "b", false, None).await, Err(StopNotice));
    let why = strict.end_replay().unrecorded.expect("it is not compared");
    assert!(why.contains("reads a file") && why.contains("1048576 bytes"), "{why}");
    assert_eq!(strict.finish().divergence, None);
}

#[tokio::test]
async fn the_bound_holds_for_the_step_whichever_hosts_executed_it() {
    let half = "x".repeat(usize::try_from(OUTSIDE_BYTES_MAX * 2 / 3).expect("it fits"));
    let journal = recorded(&[("a", &half)]).await;
    let again = Host::new(&journal, 2, 0);
    again
        .run(async {
            ask(&again.scope, "a", false, None).await.expect("no stop");
            ask(&again.scope, "b", false, Some(&half)).await.expect("no stop");
        })
        .await;
    assert_eq!(kept(&again.journal()), [(0, true), (1, false)]);
}

#[tokio::test]
async fn half_of_what_is_left_of_a_journal_is_for_what_the_run_pays_for() {
    let journal = Some(JournalRoom { bytes: 1_000, ..JournalRoom::default() });
    let scope = CallScope::new(CallScopeParts { journal, ..parts(10, 100) });
    for _ in 0..3 {
        ask(&scope, "a", false, Some(&"x".repeat(300))).await.expect("no stop");
    }
    assert_eq!(kept(&scope.finish().events), [(0, true), (1, false)]);
    assert!(!scope.stop().is_asked(), "it does not end the run");
}

#[tokio::test]
async fn a_step_that_an_earlier_program_began_reads_live_and_finds_its_answers() {
    let before = {
        let host = Host::new(&[], 1, 0);
        host.run(async { host.scope.ask(question("q")).await.ok() }).await;
        host.journal()
    };
    let host = Host::new(&before, 2, 0);
    let told = host
        .run(async {
            let told = ask(&host.scope, "a", false, Some("1")).await;
            host.scope.ask(question("q")).await.ok();
            told
        })
        .await;
    assert_eq!(told.as_deref(), Ok("1"));
    assert_eq!(host.model.asked.load(Ordering::Relaxed), 0, "nothing is paid twice");
    assert_eq!(host.scope.finish().divergence, None);
    let strict = whole(&before);
    assert_eq!(ask(&strict, "a", false, None).await, Err(StopNotice));
    let why = strict.end_replay().unrecorded.expect("it is not compared");
    assert_eq!(why, "reads a file, which is not recorded");
}

#[tokio::test]
async fn what_a_rule_refused_is_decided_anew_and_under_other_rules_nothing_is_done_twice() {
    let mut journal = recorded(&[("a", "refused"), ("b", "2")]).await;
    assert_eq!(journal.len(), 1);
    journal.push(Event::RulesChanged { pins: vec!["a@2".to_owned()] });
    let again = Host::new(&journal, 2, 0);
    again
        .run(async {
            assert_eq!(ask(&again.scope, "b", true, None).await.as_deref(), Ok("2"));
            assert_eq!(ask(&again.scope, "a", true, Some("1")).await.as_deref(), Ok("1"));
        })
        .await;
    assert_eq!(again.scope.finish().divergence, None);
    let third = Host::new(&again.journal(), 3, 0);
    for (asked, told) in [("b", "2"), ("a", "1")] {
        assert_eq!(ask(&third.scope, asked, true, None).await.as_deref(), Ok(told));
    }
    assert_eq!(third.scope.finish().divergence, None);
}

#[tokio::test]
async fn a_tool_reads_live_and_nothing_of_it_is_recorded() {
    let scope = CallScope::new(parts(10, 100));
    assert_eq!(ask(&scope, "a", true, Some("1")).await.as_deref(), Ok("1"));
    assert_eq!(scope.finish().events, []);
}
