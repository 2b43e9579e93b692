//! Reports for which a host is to look, and the runs that it starts for them.

use taskrun_journal::delivery::{Conversation, Delivery, HOPS_MAX, ReportState, Strategy};
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::store::{ReportChange, ReportQuery, Stay};

use super::outbox::{conversation, ended, held, report, round_ended, tell};
use super::*;

/// The buffer of the strategy of these tests.
const BUFFER: u64 = 100;

/// A run beneath others, the nearest first, of whose outcome somebody is to be told soon.
fn nudging(id: &str, above: &[&RunSpec]) -> RunSpec {
    let strategy =
        Strategy::WaitForIdle { buffer_ms: BUFFER, timeout_ms: 10 * BUFFER, interrupt: false };
    let delivery = Delivery {
        above: above.iter().map(|spec| spec.id.clone()).collect(),
        conversation: Some(conversation()),
        strategy,
        ..Delivery::default()
    };
    RunSpec { delivery: Some(delivery), ..child(id, above[0]) }
}

/// A nudge for some reports.
fn nudge(id: &str, runs: &[&str]) -> RunSpec {
    RunSpec { nudge_for: runs.iter().map(|run| run_id(run)).collect(), ..spec(id) }
}

/// The reports that are due, with their times.
async fn due(f: &Fixture) -> Vec<(String, u64)> {
    let reports = f.store.reports(&ReportQuery::Due, 0, 99).await.expect("answers");
    let due = reports
        .into_iter()
        .map(|report| (report.run.to_string(), report.due.expect("only those that are due").0));
    due.collect()
}

/// The runs whose reports are due to conversations of an agent, after a place.
async fn due_to(f: &Fixture, agent: &str, after: u64, limit: usize) -> Vec<(String, u64)> {
    let query = ReportQuery::DueTo(agent.to_owned());
    let reports = f.store.reports(&query, after, limit).await.expect("answers");
    reports.into_iter().map(|report| (report.run.to_string(), report.place)).collect()
}

fn at(run: &str, time: u64) -> Vec<(String, u64)> {
    vec![(run.to_owned(), time)]
}

/// A report that is due at 3,100 ms, whose run had one parent.
async fn one_due(f: &Fixture, id: &str) {
    let parent = held(f, spec(&format!("above-{id}"))).await;
    let run = held(f, nudging(id, &[&parent.spec])).await;
    append(&*f.store, next(&parent, 50, 2_500, end())).await;
    append(&*f.store, next(&run, 60, 3_000, end())).await;
}

/// A nudge that a host has.
async fn nudged(f: &Fixture, id: &str, runs: &[&str]) -> Run {
    held(f, nudge(id, runs)).await
}

fn canceled() -> Vec<Event> {
    let ending = Ending::canceled(StopReason::CanceledByOwner);
    vec![taskrun_fixtures::finalizing(ending), taskrun_fixtures::finished()]
}

pub(crate) async fn a_report_is_due_when_no_run_above_is_open(f: &Fixture) {
    let root = held(f, spec("root")).await;
    let middle = held(f, child("middle", &root.spec)).await;
    ended(f, nudging("deep", &[&middle.spec, &root.spec]), end()).await;
    assert_eq!(due(f).await, [], "who started it is open");
    append(&*f.store, next(&middle, 60, 4_000, failed())).await;
    assert_eq!(due(f).await, [], "the one above that is");
    append(&*f.store, next(&root, 70, 5_000, end())).await;
    assert_eq!(due(f).await, at("deep", 5_000 + BUFFER));
    one_due(f, "late").await;
    let found = report(f, "late").await.expect("there is one");
    assert_eq!(found.due, Some(Timestamp(3_000 + BUFFER)), "from its own end on");
    assert_eq!(due(f).await.len(), 2);
}

pub(crate) async fn a_report_waits_for_who_is_above_a_run_that_was_removed(f: &Fixture) {
    let root = held(f, spec("root")).await;
    let upper = held(f, child("upper", &root.spec)).await;
    let middle = held(f, child("middle", &upper.spec)).await;
    let above = [&*middle.spec, &*upper.spec, &*root.spec];
    let deep = held(f, nudging("deep", &above)).await;
    append(&*f.store, next(&deep, 60, 9_500, end())).await;
    append(&*f.store, next(&middle, 70, 4_000, end())).await;
    let left_behind = vec![round_ended(&["middle"])];
    let upper = append(&*f.store, next(&upper, 75, 4_500, left_behind)).await;
    let removed = f.store.remove(all_before(5_000)).await.expect("removes");
    assert_eq!(removed.runs, 1);
    append(&*f.store, next(&upper, 80, 6_000, end())).await;
    assert_eq!(due(f).await, [], "the root is open");
    append(&*f.store, next(&root, 90, 7_000, end())).await;
    assert_eq!(due(f).await, at("deep", 7_000 + BUFFER));
}

pub(crate) async fn reports_are_due_to_an_agent(f: &Fixture) {
    for (id, agent) in [("a", "one"), ("b", "other"), ("c", "one"), ("d", "one")] {
        let parent = held(f, spec(&format!("above-{id}"))).await;
        let mut run = nudging(id, &[&parent.spec]);
        let delivery = run.delivery.as_mut().expect("it is told");
        delivery.conversation = Some(Conversation { agent: agent.to_owned(), ..conversation() });
        let run = held(f, run).await;
        append(&*f.store, next(&parent, 50, 2_500, end())).await;
        append(&*f.store, next(&run, 60, 3_000, end())).await;
    }
    let [(first, place), (second, then)] = &due_to(f, "one", 0, 2).await[..] else { panic!("two") };
    assert_eq!((first.as_str(), second.as_str()), ("a", "c"));
    assert_eq!(due_to(f, "one", *then, 2).await.len(), 1, "the last");
    assert_eq!(due_to(f, "other", 0, 9).await[0].0, "b");
    assert_eq!(due_to(f, "absent", 0, 9).await, []);
    f.store.change_report(&run_id("c"), ReportChange::Quiet).await.expect("answers");
    let left: Vec<String> =
        due_to(f, "one", *place, 9).await.into_iter().map(|one| one.0).collect();
    assert_eq!(left, ["d"]);
}

pub(crate) async fn nobody_is_made_to_look_by_a_cancellation(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    ended(f, nudging("done", &[&parent.spec]), end()).await;
    let late = held(f, nudging("late", &[&parent.spec])).await;
    append(&*f.store, next(&parent, 70, 3_500, [vec![cancel()], canceled()].concat())).await;
    let late = append(&*f.store, next(&late, 80, 3_600, vec![cancel()])).await;
    append(&*f.store, next(&late, 82, 3_700, canceled())).await;
    assert_eq!(due(f).await, []);
    for id in ["done", "late"] {
        let state = report(f, id).await.map(|report| report.state);
        assert_eq!(state, Some(ReportState::Pending), "{id} comes to the next run that looks");
    }
}

pub(crate) async fn nudges_that_come_of_nudges_come_to_an_end(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    let of_hops = |id, hops| RunSpec { hops, ..nudging(id, &[&parent.spec]) };
    let last = held(f, of_hops("last", HOPS_MAX - 1)).await;
    let beyond = held(f, of_hops("beyond", HOPS_MAX)).await;
    append(&*f.store, next(&parent, 70, 3_000, end())).await;
    append(&*f.store, next(&beyond, 80, 3_100, end())).await;
    append(&*f.store, next(&last, 90, 3_200, end())).await;
    assert_eq!(due(f).await, at("last", 3_200 + BUFFER));
    assert_eq!(report(f, "beyond").await.map(|one| one.state), Some(ReportState::Pending));
}

pub(crate) async fn a_nudge_is_kept_once_for_its_reports(f: &Fixture) {
    one_due(f, "a").await;
    one_due(f, "b").await;
    let refused = |runs: &'static [&'static str]| async move {
        let created = f.store.create(new_run(nudge("refused", runs))).await.expect("answers");
        assert!(matches!(created, CreateOutcome::ReportsGone), "{runs:?}: {created:?}");
    };
    refused(&["a", "unknown"]).await;
    create(&*f.store, nudge("n", &["a"])).await;
    assert_eq!(due(f).await, at("b", 3_000 + BUFFER));
    refused(&["a"]).await;
    refused(&["b", "a"]).await;
    assert_eq!(due(f).await, at("b", 3_000 + BUFFER), "nothing of them was kept");
    let found = report(f, "a").await.expect("there is one");
    assert_eq!((found.state, found.due), (ReportState::Pending, None), "whoever looks may take it");
}

pub(crate) async fn a_nudge_that_is_told_and_fails_is_tried_again_after_a_pause(f: &Fixture) {
    one_due(f, "a").await;
    let mut now = 4_000;
    for pause in [5_000, 60_000] {
        let run = nudged(f, &format!("n-{pause}"), &["a"]).await;
        let (taking, outcome) = tell(f, &run, 100, &["a"]).await;
        assert_eq!(outcome, AppendOutcome::Done);
        append(&*f.store, next(&taking.run, 110, now, failed())).await;
        let [(_, time)] = due(f).await[..] else { panic!("one is due") };
        assert!(time >= now + pause && time <= now + pause * 5 / 4, "{time} after {now}");
        now = time;
    }
    // It fails before it is told: its agent cannot be loaded, say.
    let run = nudged(f, "last", &["a"]).await;
    append(&*f.store, next(&run, 120, now, failed())).await;
    let dead = report(f, "a").await.expect("there is one");
    assert_eq!((dead.state, dead.attempts, dead.due), (ReportState::Dead, 3, None));
    let retried = f.store.change_report(&run_id("a"), ReportChange::Retry).await;
    assert!(retried.expect("answers"));
    assert_eq!(due(f).await, at("a", 3_000 + BUFFER), "at once");
}

pub(crate) async fn what_becomes_of_a_nudge_decides_who_looks_next(f: &Fixture) {
    type Case = (&'static str, bool, fn() -> Vec<Event>, bool);
    let host_failed = || {
        let ending = Ending::failed(StopReason::PersistFailed, "full");
        vec![taskrun_fixtures::finalizing(ending), taskrun_fixtures::finished()]
    };
    let cases: [Case; 6] = [
        ("host-told", true, host_failed, true),
        ("host", false, host_failed, true),
        ("canceled-told", true, canceled, false),
        ("canceled", false, canceled, false),
        // Whoever looked before it has them, or nobody is to.
        ("nothing-to-tell", false, end, false),
        ("told", true, end, false),
    ];
    for (name, is_told, how, looks) in cases {
        let of = format!("of-{name}");
        one_due(f, &of).await;
        let mut run = nudged(f, name, &[&of]).await;
        if is_told {
            run = Run::clone(&tell(f, &run, 100, &[&of]).await.0.run);
        }
        append(&*f.store, next(&run, 110, 4_000, how())).await;
        let expected = looks.then_some(Timestamp(4_000 + BUFFER));
        assert_eq!(report(f, &of).await.expect("there is one").due, expected, "{name}");
    }
}

pub(crate) async fn what_a_nudge_had_no_room_for_is_due_again(f: &Fixture) {
    one_due(f, "a").await;
    one_due(f, "b").await;
    let run = nudged(f, "n", &["a", "b"]).await;
    let (taking, _) = tell(f, &run, 100, &["a"]).await;
    append(&*f.store, next(&taking.run, 110, 4_000, end())).await;
    assert_eq!(due(f).await, at("b", 4_000 + BUFFER));
}

pub(crate) async fn a_report_is_not_due_any_more_once_somebody_has_it(f: &Fixture) {
    for (id, change) in [("dropped", ReportChange::Drop), ("quiet", ReportChange::Quiet)] {
        one_due(f, id).await;
        assert!(f.store.change_report(&run_id(id), change).await.expect("answers"));
    }
    one_due(f, "taken").await;
    let taker = held(f, spec("taker")).await;
    tell(f, &taker, 100, &["taken"]).await;
    assert_eq!(due(f).await, []);
    one_due(f, "ended").await;
    f.store.end_session(&session_key(), Timestamp(5_000)).await.expect("ends");
    assert_eq!(due(f).await, []);
    assert_eq!(report(f, "ended").await.map(|one| one.state), Some(ReportState::Dead));
    assert_eq!(report(f, "quiet").await.map(|one| one.state), Some(ReportState::Dead));
}

pub(crate) async fn a_host_stays_while_one_of_its_agents_is_to_be_nudged(f: &Fixture) {
    one_due(f, "a").await;
    let (own, other) = (host_of(&host_id("own"), PIN), host_of(&host_id("other"), PIN));
    let other = Host { agents: std::sync::Arc::new(["writer".to_owned()].into()), ..other };
    for host in [&own, &other] {
        f.store.register(host.clone()).await.expect("registers");
    }
    let retires = async |id: &HostId| f.store.retire(id, Stay::default()).await.expect("answers");
    assert!(retires(&other.id).await, "it has no such agent");
    assert!(!retires(&own.id).await, "a report is due");
    f.store.change_report(&run_id("a"), ReportChange::Quiet).await.expect("answers");
    assert!(retires(&own.id).await);
}

pub(crate) async fn a_report_that_is_due_keeps_its_run(f: &Fixture) {
    one_due(f, "a").await;
    let removed = f.store.remove(all_before(9_000)).await.expect("removes");
    assert_eq!((removed.runs, removed.kept), (1, 1));
    let ids: Vec<RunId> = vec![run_id("a")];
    for id in ids {
        assert!(f.store.get(&id).await.expect("gets").is_some());
    }
}
