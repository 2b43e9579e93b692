//! Reports of ended runs.

use taskrun_journal::checkpoint::{Checkpoint, Settled};
use taskrun_journal::delivery::{
    ATTEMPTS_MAX, Conversation, DeadReason, Delivery, Report, ReportState, ReportsTaken,
};
use taskrun_journal::event::{CallWait, RunsReport};
use taskrun_journal::ids::RunId;
use taskrun_journal::message::Usage;
use taskrun_journal::store::{ReportChange, ReportQuery};

use super::*;

pub(super) fn conversation() -> Conversation {
    Conversation { session: "s-1".to_owned(), app: None, agent: "researcher".to_owned() }
}

/// A run that another one started, whose outcome is told to that, or in the conversation.
fn delivered(id: &str, parent: &RunSpec) -> RunSpec {
    let (above, conversation) = (vec![parent.id.clone()], Some(conversation()));
    let delivery = Delivery { above, conversation, ..Delivery::default() };
    RunSpec { delivery: Some(delivery), ..child(id, parent) }
}

/// The same without a conversation.
pub(super) fn told_above(id: &str, parent: &RunSpec) -> RunSpec {
    let delivery = Delivery { above: vec![parent.id.clone()], ..Delivery::default() };
    RunSpec { delivery: Some(delivery), ..child(id, parent) }
}

/// A run that a host has.
pub(super) async fn held(f: &Fixture, spec: RunSpec) -> Run {
    create(&*f.store, RunSpec { priority: 9, ..spec }).await;
    claim_one(&*f.store, "h").await
}

/// A run that has ended with these events.
pub(super) async fn ended(f: &Fixture, spec: RunSpec, events: Vec<Event>) -> Run {
    let run = held(f, spec).await;
    append(&*f.store, next(&run, 60, 3_000, events)).await
}

pub(super) async fn report(f: &Fixture, id: &str) -> Option<Report> {
    f.store.reports(&ReportQuery::Run(run_id(id)), 0, 9).await.expect("answers").pop()
}

async fn state(f: &Fixture, id: &str) -> Option<ReportState> {
    report(f, id).await.map(|report| report.state)
}

async fn found(f: &Fixture, query: &ReportQuery) -> Vec<String> {
    let reports = f.store.reports(query, 0, 99).await.expect("answers");
    reports.iter().map(|report| report.run.to_string()).collect()
}

fn in_tree(root: &str) -> ReportQuery {
    ReportQuery::Tree(run_id(root))
}

fn in_conversation(conversation: Conversation, owner: &str) -> ReportQuery {
    let owner_user_id = owner.to_owned();
    ReportQuery::Conversation { tenant: "acme".to_owned(), owner_user_id, conversation }
}

/// The first round of a run ends, which leaves these behind.
pub(super) fn round_ended(settled: &[&str]) -> Event {
    let runs = settled.iter().map(|run| run_id(run)).collect();
    let settled = Settled { runs, usage: Usage::default() };
    Event::RoundEnded {
        round: 1,
        prompt: "go on".to_owned(),
        worked: true,
        wants_result: false,
        checkpoint: Box::new(Checkpoint { settled, ..Checkpoint::default() }),
    }
}

/// The run is told of others.
pub(super) async fn tell(
    f: &Fixture,
    run: &Run,
    id: u64,
    runs: &[&str],
) -> (Append, AppendOutcome) {
    let runs: Vec<RunId> = runs.iter().map(|run| run_id(run)).collect();
    let append = Append {
        reports: Some(ReportsTaken::Told(runs)),
        ..next(run, id, 3_500, vec![reported(), decided(run.state.turns + 1)])
    };
    let outcome = f.store.append(append.clone()).await.expect("answers");
    (append, outcome)
}

pub(crate) async fn the_end_of_a_run_makes_its_report_in_the_order_of_the_ends(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    let first = held(f, delivered("first", &parent.spec)).await;
    let second = held(f, delivered("second", &parent.spec)).await;
    assert_eq!(report(f, "first").await, None, "it has not ended");
    append(&*f.store, next(&second, 60, 3_000, failed())).await;
    append(&*f.store, next(&first, 70, 3_000, end())).await;
    ended(f, child("nobody-told", &parent.spec), end()).await;
    assert_eq!(found(f, &in_tree("p")).await, ["second", "first"]);
    assert_eq!(found(f, &in_conversation(conversation(), "ann")).await, ["second", "first"]);
    let report = report(f, "second").await.expect("there is one");
    let expected = Report {
        run: run_id("second"),
        place: report.place,
        state: ReportState::Pending,
        attempts: 0,
        taken_by: None,
        reason: None,
        due: None,
        notify: Some("researcher".to_owned()),
    };
    assert_eq!(report, expected);
    let after = f.store.reports(&in_tree("p"), report.place, 9).await.expect("answers");
    assert_eq!(after.len(), 1, "one after it");
    assert_eq!(f.store.reports(&in_tree("p"), 0, 1).await.expect("answers").len(), 1);
}

pub(crate) async fn a_report_is_found_by_its_own_conversation_only(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    ended(f, delivered("a", &parent.spec), end()).await;
    assert_eq!(found(f, &in_conversation(conversation(), "ann")).await, ["a"]);
    let others = [
        Conversation { session: "s-2".to_owned(), ..conversation() },
        Conversation { app: Some("app".to_owned()), ..conversation() },
        Conversation { agent: "other".to_owned(), ..conversation() },
    ];
    for other in others {
        assert!(found(f, &in_conversation(other, "ann")).await.is_empty());
    }
    assert!(found(f, &in_conversation(conversation(), "bob")).await.is_empty());
    assert!(found(f, &in_tree("a")).await.is_empty());
    let seen = |owner: &str| ReportQuery::Scope {
        scope: Scope::tenant("acme").owner(owner),
        states: vec![ReportState::Pending],
    };
    assert_eq!(found(f, &seen("ann")).await, ["a"]);
    assert!(found(f, &seen("bob")).await.is_empty());
    let dead = ReportQuery::Scope { scope: Scope::tenant("acme"), states: vec![ReportState::Dead] };
    assert!(found(f, &dead).await.is_empty());
}

pub(crate) async fn there_is_no_report_where_nobody_is_to_be_told(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    let late = held(f, told_above("late", &parent.spec)).await;
    ended(f, told_above("early", &parent.spec), end()).await;
    // Who asked for its end knows of it.
    let known = held(f, delivered("known", &parent.spec)).await;
    let by = StopReason::CanceledByParent;
    let asked = machine::decide::cancel_from(&known, by, Some(parent.id()), None);
    let known = append(&*f.store, next(&known, 80, 2_900, asked)).await;
    let canceled =
        vec![taskrun_fixtures::finalizing(Ending::canceled(by)), taskrun_fixtures::finished()];
    append(&*f.store, next(&known, 82, 2_950, canceled.clone())).await;
    // A person did.
    let person = held(f, delivered("person", &parent.spec)).await;
    let person = append(&*f.store, next(&person, 84, 2_900, vec![cancel()])).await;
    append(&*f.store, next(&person, 86, 2_950, canceled)).await;
    append(&*f.store, next(&parent, 90, 3_100, end())).await;
    append(&*f.store, next(&late, 92, 3_200, end())).await;
    for id in ["early", "late"] {
        let kept = report(f, id).await.map(|report| (report.state, report.due));
        assert_eq!(kept, Some((ReportState::Pending, None)), "another run may continue the parent");
    }
    assert_eq!(state(f, "known").await, None);
    assert_eq!(state(f, "person").await, Some(ReportState::Pending));
}

pub(crate) async fn a_report_is_taken_once_all_or_nothing(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    for id in ["a", "b"] {
        ended(f, delivered(id, &parent.spec), end()).await;
    }
    let other = held(f, spec("other")).await;
    let (taking, outcome) = tell(f, &parent, 100, &["a"]).await;
    assert_eq!(outcome, AppendOutcome::Done);
    assert_eq!(f.store.append(taking).await.expect("answers"), AppendOutcome::Done, "repeated");
    let (_, outcome) = tell(f, &other, 110, &["b", "a"]).await;
    assert_eq!(outcome, AppendOutcome::Gone);
    journal_is(&*f.store, &other).await;
    assert_eq!(state(f, "b").await, Some(ReportState::Pending), "nothing of it was kept");
    let (_, outcome) = tell(f, &other, 120, &["b", "unknown"]).await;
    assert_eq!(outcome, AppendOutcome::Gone);
    let taken = report(f, "a").await.expect("there is one");
    assert_eq!((taken.state, taken.taken_by), (ReportState::Taken, Some(run_id("p"))));
    assert_eq!(found(f, &in_tree("p")).await, ["b"]);
}

pub(crate) async fn what_was_waited_for_is_taken_where_it_is_pending(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    for id in ["a", "b"] {
        ended(f, delivered(id, &parent.spec), end()).await;
    }
    let other = held(f, spec("other")).await;
    tell(f, &other, 100, &["a"]).await;
    let runs = ["a", "b", "unknown"].map(run_id).to_vec();
    let reports = Some(ReportsTaken::Awaited(runs));
    let waits = Event::ToolCallParked {
        tool_call_id: "c".to_owned(),
        name: "host/await_tasks".to_owned(),
        payload: "{}".to_owned(),
        waits: CallWait::Runs {
            runs: Vec::new(),
            mode: WaitMode::All,
            until: None,
            report: RunsReport::List,
        },
    };
    let parent =
        append(&*f.store, Append { reports, ..next(&parent, 110, 3_600, vec![waits]) }).await;
    let by = |report: Option<Report>| report.and_then(|report| report.taken_by);
    assert_eq!(by(report(f, "a").await), Some(run_id("other")));
    assert_eq!(by(report(f, "b").await), Some(run_id("p")));
    append(&*f.store, next(&parent, 120, 3_700, end())).await;
    assert_eq!(state(f, "b").await, Some(ReportState::Delivered));
}

pub(crate) async fn reports_are_settled_as_their_taker_ends(f: &Fixture) {
    type Case = (&'static str, fn(&Run) -> Vec<Event>, ReportState, u32);
    let cases: [Case; 5] = [
        ("completed", |_| end(), ReportState::Delivered, 0),
        ("failed", |_| failed(), ReportState::Pending, 1),
        (
            "canceled",
            |_| {
                let ending = Ending::canceled(StopReason::CanceledByOwner);
                vec![taskrun_fixtures::finalizing(ending), taskrun_fixtures::finished()]
            },
            ReportState::Pending,
            0,
        ),
        (
            // An agent may have an error of its own for it.
            "canceled-failed",
            |_| [vec![cancel()], failed()].concat(),
            ReportState::Pending,
            0,
        ),
        (
            "host",
            |_| {
                let ending = Ending::failed(StopReason::PersistFailed, "full");
                vec![taskrun_fixtures::finalizing(ending), taskrun_fixtures::finished()]
            },
            ReportState::Pending,
            0,
        ),
    ];
    let parent = held(f, spec("p")).await;
    for (name, how, expected, attempts) in cases {
        ended(f, delivered(&format!("of-{name}"), &parent.spec), end()).await;
        let taker = held(f, spec(name)).await;
        let told = [format!("of-{name}")];
        let (taking, outcome) = tell(f, &taker, 100, &[told[0].as_str()]).await;
        assert_eq!(outcome, AppendOutcome::Done, "{name}");
        let events = how(&taking.run);
        append(&*f.store, next(&taking.run, 110, 4_000, events)).await;
        let report = report(f, &told[0]).await.expect("there is one");
        assert_eq!((report.state, report.attempts), (expected, attempts), "{name}");
        let by = (expected == ReportState::Delivered).then(|| run_id(name));
        assert_eq!(report.taken_by, by, "{name}");
    }
    let pending = ["of-failed", "of-canceled", "of-canceled-failed", "of-host"];
    assert_eq!(found(f, &in_tree("p")).await, pending, "in their old places");
}

pub(crate) async fn one_who_ends_without_a_look_at_the_reports_gives_them_back(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    ended(f, delivered("a", &parent.spec), end()).await;
    let reports = Some(ReportsTaken::Told(vec![run_id("a")]));
    let told = Append { reports, ..next(&parent, 100, 3_500, vec![reported()]) };
    let parent = append(&*f.store, told).await;
    append(&*f.store, next(&parent, 110, 4_000, end())).await;
    assert_eq!(state(f, "a").await, Some(ReportState::Pending));
}

pub(crate) async fn a_report_is_a_dead_letter_after_three_failures(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    ended(f, delivered("a", &parent.spec), end()).await;
    for attempt in 1..=ATTEMPTS_MAX {
        assert_eq!(state(f, "a").await, Some(ReportState::Pending), "attempt {attempt}");
        let taker = held(f, spec(&format!("taker-{attempt}"))).await;
        let (taking, _) = tell(f, &taker, 100, &["a"]).await;
        append(&*f.store, next(&taking.run, 110, 4_000, failed())).await;
    }
    let dead = report(f, "a").await.expect("there is one");
    let expected = (ReportState::Dead, ATTEMPTS_MAX, Some(DeadReason::Attempts));
    assert_eq!((dead.state, dead.attempts, dead.reason), expected);
    assert!(found(f, &in_tree("p")).await.is_empty());
    let change = async |change| f.store.change_report(&run_id("a"), change).await.expect("answers");
    assert!(change(ReportChange::Retry).await);
    assert!(!change(ReportChange::Retry).await, "it is none any more");
    let again = report(f, "a").await.expect("there is one");
    assert_eq!((again.state, again.attempts, again.reason), (ReportState::Pending, 0, None));
    assert_eq!(found(f, &in_tree("p")).await, ["a"]);
    assert!(change(ReportChange::Drop).await);
    assert_eq!(report(f, "a").await, None);
    assert!(!change(ReportChange::Drop).await);
}

pub(crate) async fn a_report_that_is_blocked_is_a_dead_letter_of_that_reason(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    ended(f, delivered("a", &parent.spec), end()).await;
    let change = async |change| f.store.change_report(&run_id("a"), change).await.expect("answers");
    assert!(change(ReportChange::Block).await);
    assert!(!change(ReportChange::Block).await, "it is one");
    let dead = report(f, "a").await.expect("there is one");
    let expected = (ReportState::Dead, 0, Some(DeadReason::Blocked), None);
    assert_eq!((dead.state, dead.attempts, dead.reason, dead.due), expected);
    assert!(found(f, &in_tree("p")).await.is_empty());
    assert!(change(ReportChange::Retry).await);
    assert_eq!(found(f, &in_tree("p")).await, ["a"]);
}

pub(crate) async fn what_was_taken_or_delivered_is_not_changed_by_people(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    ended(f, delivered("a", &parent.spec), end()).await;
    let (taking, _) = tell(f, &parent, 100, &["a"]).await;
    for change in [ReportChange::Retry, ReportChange::Drop, ReportChange::Block] {
        assert!(!f.store.change_report(&run_id("a"), change).await.expect("answers"));
    }
    append(&*f.store, next(&taking.run, 110, 4_000, end())).await;
    for change in [ReportChange::Retry, ReportChange::Drop, ReportChange::Block] {
        assert!(!f.store.change_report(&run_id("a"), change).await.expect("answers"));
    }
    assert_eq!(state(f, "a").await, Some(ReportState::Delivered));
}

pub(crate) async fn the_end_of_a_session_makes_dead_letters_of_its_own_reports(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    ended(f, delivered("a", &parent.spec), end()).await;
    ended(f, told_above("above", &parent.spec), end()).await;
    let bob = RunSpec { owner_user_id: "bob".to_owned(), ..spec("bobs") };
    let bob = held(f, bob).await;
    let foreign = RunSpec { owner_user_id: "bob".to_owned(), ..delivered("foreign", &bob.spec) };
    ended(f, foreign, end()).await;
    f.store.end_session(&session_key(), Timestamp(5_000)).await.expect("ends");
    let dead = report(f, "a").await.expect("there is one");
    assert_eq!((dead.state, dead.reason), (ReportState::Dead, Some(DeadReason::SessionEnded)));
    assert_eq!(state(f, "above").await, Some(ReportState::Pending));
    assert_eq!(state(f, "foreign").await, Some(ReportState::Pending));
}

pub(crate) async fn an_ended_session_is_no_conversation(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    let beneath = held(f, delivered("beneath", &parent.spec)).await;
    let late = held(f, delivered("late", &parent.spec)).await;
    f.store.end_session(&session_key(), Timestamp(5_000)).await.expect("ends");
    append(&*f.store, next(&beneath, 60, 5_100, end())).await;
    assert_eq!(found(f, &in_tree("p")).await, ["beneath"], "who started it is open");
    assert!(found(f, &in_conversation(conversation(), "ann")).await.is_empty());
    append(&*f.store, next(&parent, 70, 5_200, end())).await;
    append(&*f.store, next(&late, 80, 5_300, end())).await;
    assert_eq!(state(f, "late").await, None);
}

pub(crate) async fn a_report_keeps_its_run_while_it_is_taken_and_goes_with_it(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    ended(f, delivered("a", &parent.spec), end()).await;
    append(&*f.store, next(&parent, 70, 3_100, end())).await;
    let taker = held(f, spec("taker")).await;
    let (taking, _) = tell(f, &taker, 100, &["a"]).await;
    let removed = f.store.remove(all_before(9_000)).await.expect("removes");
    assert_eq!((removed.runs, removed.kept), (1, 1), "its parent goes");
    append(&*f.store, next(&taking.run, 110, 4_000, end())).await;
    assert_eq!(state(f, "a").await, Some(ReportState::Delivered));
    let removed = f.store.remove(all_before(9_000)).await.expect("removes");
    assert_eq!((removed.runs, removed.kept), (2, 0));
    assert_eq!(report(f, "a").await, None);
}

pub(crate) async fn a_pending_report_keeps_its_run_while_somebody_can_be_told(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    ended(f, told_above("above", &parent.spec), end()).await;
    for id in ["a", "b"] {
        ended(f, delivered(id, &parent.spec), end()).await;
    }
    append(&*f.store, next(&parent, 70, 3_100, end())).await;
    let taker = held(f, spec("taker")).await;
    let (taking, _) = tell(f, &taker, 100, &["b"]).await;
    let removed = f.store.remove(all_before(9_000)).await.expect("removes");
    assert_eq!((removed.runs, removed.kept), (2, 2), "nobody can be told of one any more");
    assert_eq!(found(f, &in_conversation(conversation(), "ann")).await, ["a"]);
    f.store.end_session(&session_key(), Timestamp(5_000)).await.expect("ends");
    append(&*f.store, next(&taking.run, 110, 4_000, failed())).await;
    assert_eq!(state(f, "b").await, Some(ReportState::Pending), "it was given back");
    let removed = f.store.remove(all_before(9_000)).await.expect("removes");
    assert_eq!((removed.runs, removed.kept), (3, 0));
}

pub(crate) async fn a_run_that_another_leaves_behind_counts_no_longer_and_is_delivered(
    f: &Fixture,
) {
    let parent = held(f, spec("p")).await;
    ended(f, told_above("a", &parent.spec), end()).await;
    ended(f, told_above("b", &parent.spec), end()).await;
    held(f, told_above("c", &parent.spec)).await;
    let (told, outcome) = tell(f, &parent, 80, &["a", "b"]).await;
    assert_eq!(outcome, AppendOutcome::Done);
    // One that is open counts, whoever says what.
    let round = next(&told.run, 90, 4_000, vec![round_ended(&["a", "c"])]);
    let parent = append(&*f.store, round).await;
    for id in ["a", "b"] {
        assert_eq!(state(f, id).await, Some(ReportState::Delivered), "{id}");
    }
    let (counted, all) = (TreeQuery::counted(&parent.spec), TreeQuery::of(&parent.spec));
    assert_eq!(ids(&runs_of_tree(&*f.store, &counted, 2).await), ["p", "b", "c"]);
    assert_eq!(ids(&runs_of_tree(&*f.store, &all, 2).await), ["p", "a", "b", "c"]);
    let bounded = |id: &str, tree_max| {
        let admission = Admission { tree_max, ..Admission::UNBOUNDED };
        NewRun { admission, ..new_run(child(id, &parent.spec)) }
    };
    let full = f.store.create(bounded("d", 3)).await.expect("answers");
    assert!(matches!(full, CreateOutcome::Full(AdmissionBound::Tree)), "{full:?}");
    let kept = f.store.create(bounded("d", 4)).await.expect("answers");
    assert!(matches!(kept, CreateOutcome::New), "{kept:?}");
    // However the run ends that was told of it, nobody else is.
    let parent = append(&*f.store, next(&parent, 100, 5_000, failed())).await;
    assert_eq!(state(f, "a").await, Some(ReportState::Delivered));
    assert_eq!(parent.status(), Status::Failed);
    // It may be removed, and is not counted out once more.
    let only_a = Removal { limit: 1, ..all_before(3_001) };
    assert_eq!(f.store.remove(only_a).await.expect("removes").runs, 1);
    assert_eq!(ids(&runs_of_tree(&*f.store, &all, 2).await), ["p", "b", "c", "d"]);
}
