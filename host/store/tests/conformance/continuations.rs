//! Reports of runs that others continue.

use taskrun_journal::delivery::{Delivery, ReportState};
use taskrun_journal::history::History;
use taskrun_journal::message::Usage;
use taskrun_journal::schedule;
use taskrun_journal::store::ReportQuery;

use super::names::autonomous;
use super::outbox::{self, conversation, ended, report, round_ended, tell, told_above};
use super::*;

/// An autonomous run of whose outcome a conversation is told.
fn told_of(id: &str) -> RunSpec {
    let delivery = Delivery { conversation: Some(conversation()), ..Delivery::default() };
    RunSpec { delivery: Some(delivery), history: History::None, ..autonomous(id) }
}

/// The same, which continues another one.
fn continuing(id: &str, run: &str) -> RunSpec {
    RunSpec { continues: Some(Box::new(continuation(run_id(run)))), ..told_of(id) }
}

/// Keeps a run that continues another one.
async fn go_on(f: &Fixture, spec: RunSpec) -> CreateOutcome {
    let before = &spec.continues.as_ref().expect("it continues one").run;
    let new = keyed(new_run(spec.clone()), &schedule::continuation_key(before), "");
    f.store.create(new).await.expect("answers")
}

async fn pending(f: &Fixture) -> Vec<String> {
    let query = ReportQuery::Conversation {
        tenant: "acme".to_owned(),
        owner_user_id: "ann".to_owned(),
        conversation: conversation(),
    };
    let reports = f.store.reports(&query, 0, 9).await.expect("answers");
    reports.iter().map(|report| report.run.to_string()).collect()
}

pub(crate) async fn of_a_run_and_the_one_that_continues_it_the_last_end_is_told(f: &Fixture) {
    ended(f, told_of("a"), end()).await;
    ended(f, told_of("other"), end()).await;
    assert_eq!(pending(f).await, ["a", "other"]);
    assert!(matches!(go_on(f, continuing("b", "a")).await, CreateOutcome::New));
    assert_eq!((report(f, "a").await, pending(f).await), (None, names_of(["other"])));
    assert!(matches!(go_on(f, continuing("c", "a")).await, CreateOutcome::Repeated(_)));
    let b = claim_one(&*f.store, "h").await;
    assert_eq!(b.id().as_str(), "b");
    append(&*f.store, next(&b, 80, 4_000, end())).await;
    assert_eq!(pending(f).await, ["other", "b"]);
    // A request that is refused or repeated leaves it as it is.
    assert!(matches!(go_on(f, continuing("d", "a")).await, CreateOutcome::Repeated(_)));
    assert!(matches!(go_on(f, continuing("a", "b")).await, CreateOutcome::Taken(_)));
    assert_eq!(pending(f).await, ["other", "b"]);
}

pub(crate) async fn what_was_told_stays_told_when_its_run_is_continued(f: &Fixture) {
    ended(f, told_of("a"), end()).await;
    let line = outbox::held(f, spec("line")).await;
    let (taking, outcome) = tell(f, &line, 90, &["a"]).await;
    assert_eq!(outcome, AppendOutcome::Done);
    assert!(matches!(go_on(f, continuing("b", "a")).await, CreateOutcome::New));
    let state = async |id| report(f, id).await.map(|report| report.state);
    assert_eq!(state("a").await, Some(ReportState::Taken));
    append(&*f.store, next(&taking.run, 100, 4_000, end())).await;
    assert_eq!(state("a").await, Some(ReportState::Delivered));
    // One of whose end nobody is told withdraws nothing.
    ended(f, told_of("c"), end()).await;
    let silent = RunSpec { delivery: None, ..continuing("d", "c") };
    assert!(matches!(go_on(f, silent).await, CreateOutcome::New));
    assert_eq!(pending(f).await, ["c"]);
}

pub(crate) async fn what_a_run_was_told_by_the_end_of_a_round_is_told_to_nobody_else(f: &Fixture) {
    ended(f, told_of("a"), end()).await;
    let taker = outbox::held(f, spec("taker")).await;
    let (taking, outcome) = tell(f, &taker, 90, &["a"]).await;
    assert_eq!(outcome, AppendOutcome::Done);
    let state = async || report(f, "a").await.map(|report| report.state);
    assert_eq!(state().await, Some(ReportState::Taken));
    let taker = append(&*f.store, next(&taking.run, 100, 4_000, vec![round_ended(&[])])).await;
    assert_eq!(state().await, Some(ReportState::Delivered));
    append(&*f.store, next(&taker, 110, 5_000, failed())).await;
    assert_eq!(state().await, Some(ReportState::Delivered));
}

/// Runs that are removed, and that stay.
async fn removed(f: &Fixture) -> (u64, u64) {
    let removed = f.store.remove(all_before(9_000)).await.expect("removes");
    (removed.runs, removed.kept)
}

/// Ends a run beneath which two have ended: one of which nobody is told, and one whose report is
/// pending.
async fn ended_with_two(f: &Fixture, id: &str) {
    let run = outbox::held(f, told_of(id)).await;
    ended(f, child("silent", &run.spec), end()).await;
    ended(f, told_above("told", &run.spec), end()).await;
    append(&*f.store, next(&run, 80, 3_100, end())).await;
}

pub(crate) async fn what_ended_beneath_a_run_stays_for_the_one_that_continues_it(f: &Fixture) {
    ended_with_two(f, "a").await;
    assert!(matches!(go_on(f, continuing("b", "a")).await, CreateOutcome::New));
    let b = claim_one(&*f.store, "h").await;
    append(&*f.store, next(&b, 80, 3_200, end())).await;
    assert!(matches!(go_on(f, continuing("c", "b")).await, CreateOutcome::New));
    assert_eq!(removed(f).await, (0, 4));
    // What was used there stands in the record of the one that is open.
    let mut round = round_ended(&[]);
    if let Event::RoundEnded { checkpoint, .. } = &mut round {
        checkpoint.continued = Some(Usage::default());
    }
    let c = claim_one(&*f.store, "h").await;
    let c = append(&*f.store, next(&c, 90, 4_000, vec![round])).await;
    assert_eq!(removed(f).await, (1, 3));
    let (telling, outcome) = tell(f, &c, 100, &["told"]).await;
    assert_eq!((outcome, removed(f).await), (AppendOutcome::Done, (0, 3)));
    let mut second = round_ended(&[]);
    if let Event::RoundEnded { round, .. } = &mut second {
        *round = 2;
    }
    append(&*f.store, next(&telling.run, 110, 5_000, vec![second])).await;
    assert_eq!(removed(f).await, (1, 2), "the runs that it continues stay");
}

pub(crate) async fn of_what_had_ended_when_a_run_was_continued_only_what_is_to_be_told_stays(
    f: &Fixture,
) {
    ended_with_two(f, "a").await;
    let mut b = continuing("b", "a");
    if let Some(continued) = &mut b.continues {
        continued.is_final = true;
    }
    assert!(matches!(go_on(f, b).await, CreateOutcome::New));
    assert_eq!(removed(f).await, (1, 2));
    let told = f.store.get(&run_id("told")).await.expect("gets");
    assert!(told.is_some(), "nobody was told of it");
    // It stays also where the one that is open continues the one that continues that.
    let b = claim_one(&*f.store, "h").await;
    append(&*f.store, next(&b, 80, 3_300, end())).await;
    assert!(matches!(go_on(f, continuing("c", "b")).await, CreateOutcome::New));
    assert_eq!(removed(f).await, (0, 3));
}

fn names_of<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).to_vec()
}
