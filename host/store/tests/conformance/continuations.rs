//! Reports of runs that others continue.

use taskrun_journal::delivery::{Delivery, ReportState};
use taskrun_journal::history::History;
use taskrun_journal::schedule;
use taskrun_journal::store::ReportQuery;

use super::names::autonomous;
use super::outbox::{self, conversation, ended, report, tell};
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

fn names_of<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).to_vec()
}
