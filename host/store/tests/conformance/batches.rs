//! Entries of heartbeats, and the batches that take them.

use super::*;

async fn waiting(f: &Fixture, limit: usize) -> Vec<Vec<String>> {
    let groups = f.store.entries("researcher", limit).await.expect("looks");
    let names = |group: Vec<_>| group.iter().map(ToString::to_string).collect();
    groups.into_iter().map(names).collect()
}

async fn batched(f: &Fixture, id: &str, tick: &str, entries: &[&Run]) -> BatchOutcome {
    f.store.batch(batch_of(id, tick, entries)).await.expect("answers")
}

async fn found(f: &Fixture, id: &str) -> Run {
    f.store.get(&run_id(id)).await.expect("gets").expect("there")
}

async fn claimed(f: &Fixture) -> Vec<Run> {
    f.store.claim(wish("h", 99, 3_000)).await.expect("claims")
}

/// Ends a run that is held or waits.
async fn ends(f: &Fixture, id: &str) -> Run {
    append(&*f.store, next(&found(f, id).await, 90, 4_000, end())).await
}

pub(super) async fn an_entry_is_claimed_by_nobody(f: &Fixture) {
    create(&*f.store, entry("e")).await;
    assert_eq!(ids(&claimed(f).await), [""; 0]);
    assert_eq!(waiting(f, 9).await, [["e"]]);
    // It waits to begin, and counts as such.
    let admission = Admission { queue_max: 1, ..Admission::UNBOUNDED };
    let one_more = NewRun { admission, ..new_run(spec("r")) };
    let refused = f.store.create(one_more).await.expect("answers");
    assert!(matches!(refused, CreateOutcome::Full(AdmissionBound::Queue)), "{refused:?}");
}

pub(super) async fn entries_are_found_in_groups_the_best_first(f: &Fixture) {
    let app = |name: &str| Some(name.to_owned());
    for (id, owner, session, app, priority) in [
        ("a1", "ann", "s-1", None, 0),
        ("b1", "bob", "s-1", None, 0),
        ("a2", "ann", "s-1", None, 1),
        ("a3", "ann", "s-1", None, 0),
        ("c1", "ann", "s-2", None, 0),
        ("d1", "ann", "s-1", app("x"), 0),
        ("a4", "ann", "s-1", None, -1),
        ("c2", "ann", "s-2", None, 0),
    ] {
        let spec = RunSpec {
            owner_user_id: owner.to_owned(),
            parent_session_id: session.to_owned(),
            parent_app_name: app,
            priority,
            ..entry(id)
        };
        create(&*f.store, spec).await;
    }
    let tenant = RunSpec { tenant: "zeta".to_owned(), ..entry("t1") };
    create(&*f.store, tenant).await;
    let expected: [&[&str]; 5] = [&["a2", "a1", "a3"], &["d1"], &["c1", "c2"], &["b1"], &["t1"]];
    assert_eq!(waiting(f, 3).await, expected);
    let firsts: [&[&str]; 5] = [&["a2"], &["d1"], &["c1"], &["b1"], &["t1"]];
    assert_eq!(waiting(f, 1).await, firsts);
    assert!(waiting(f, 0).await.is_empty());
}

pub(super) async fn entries_are_found_by_the_name_of_their_agent(f: &Fixture) {
    create(&*f.store, RunSpec { agent_name: "coder".to_owned(), ..entry("c") }).await;
    create(&*f.store, spec("task")).await;
    assert!(waiting(f, 9).await.is_empty());
    // Whatever its form when they were accepted.
    let canceled = create(&*f.store, RunSpec { pin: "pin-2".to_owned(), ..entry("e") }).await;
    assert_eq!(waiting(f, 9).await, [["e"]]);
    let cancel = machine::decide::cancel(&canceled, StopReason::CanceledByOwner, None);
    append(&*f.store, next(&canceled, 5, 2_000, cancel)).await;
    assert!(waiting(f, 9).await.is_empty());
}

pub(super) async fn a_batch_takes_its_entries_in_one_step(f: &Fixture) {
    let (one, two) = (create(&*f.store, entry("1")).await, create(&*f.store, entry("2")).await);
    create(&*f.store, entry("3")).await;
    assert_eq!(batched(f, "b", "t", &[&one, &two]).await, BatchOutcome::New);
    assert_eq!(waiting(f, 9).await, [["3"]]);
    for id in ["1", "2", "b"] {
        journal_is(&*f.store, &found(f, id).await).await;
    }
    let batch = run_id("b");
    for id in ["1", "2"] {
        let entry = found(f, id).await;
        assert_eq!(entry.status(), Status::Running);
        assert_eq!(entry.execution().and_then(|e| e.batch.as_ref()), Some(&batch));
        assert_eq!(entry.state.hold.host(), None);
    }
    // The batch is what is executed.
    assert_eq!(ids(&claimed(f).await), ["b"]);
    let held = f.store.held(&host_id("h"), None, 9).await.expect("lists");
    assert_eq!(ids(&held), ["b"]);
}

pub(super) async fn a_beat_has_one_open_batch(f: &Fixture) {
    let (one, two) = (create(&*f.store, entry("1")).await, create(&*f.store, entry("2")).await);
    assert_eq!(batched(f, "b1", "t-1", &[&one]).await, BatchOutcome::New);
    let open = BatchOutcome::Open(run_id("b1"));
    assert_eq!(batched(f, "b2", "t-2", &[&two]).await, open);
    claimed(f).await;
    assert_eq!(batched(f, "b2", "t-2", &[&two]).await, open);
    assert_eq!(f.store.get(&run_id("b2")).await.expect("gets"), None);
    assert_eq!(found(f, "2").await, two);
    ends(f, "b1").await;
    assert_eq!(batched(f, "b2", "t-2", &[&two]).await, BatchOutcome::New);
    // Another beat is not kept up by that.
    let three = create(&*f.store, entry("3")).await;
    let mut other = batch_of("b3", "t-2", &[&three]);
    other.run = keyed(other.run, "another beat", "t-2");
    assert_eq!(f.store.batch(other).await.expect("answers"), BatchOutcome::New);
}

pub(super) async fn a_tick_makes_one_batch(f: &Fixture) {
    let (one, two) = (create(&*f.store, entry("1")).await, create(&*f.store, entry("2")).await);
    assert_eq!(batched(f, "b1", "t-1", &[&one]).await, BatchOutcome::New);
    claimed(f).await;
    ends(f, "b1").await;
    let repeated = BatchOutcome::Repeated(run_id("b1"));
    assert_eq!(batched(f, "b2", "t-1", &[&two]).await, repeated);
    assert_eq!(found(f, "2").await, two);
    assert_eq!(batched(f, "b2", "t-2", &[&two]).await, BatchOutcome::New);
    let again = BatchOutcome::Open(run_id("b2"));
    assert_eq!(batched(f, "b3", "t-1", &[&two]).await, again, "the last batch is asked about");
}

pub(super) async fn a_batch_of_an_entry_that_changed_is_refused_as_a_whole(f: &Fixture) {
    let (one, two) = (create(&*f.store, entry("1")).await, create(&*f.store, entry("2")).await);
    let cancel = machine::decide::cancel(&two, StopReason::CanceledByOwner, None);
    let canceled = append(&*f.store, next(&two, 5, 2_000, cancel)).await;
    assert_eq!(batched(f, "b", "t", &[&one, &two]).await, BatchOutcome::Moved);
    assert_eq!(f.store.get(&run_id("b")).await.expect("gets"), None);
    assert_eq!(found(f, "1").await, one);
    assert_eq!(found(f, "2").await, canceled);
    assert_eq!(waiting(f, 9).await, [["1"]]);
    // The beat is still free.
    assert_eq!(batched(f, "b", "t", &[&one]).await, BatchOutcome::New);
    let unknown = new_run(entry("unknown")).run;
    claimed(f).await;
    ends(f, "b").await;
    assert_eq!(batched(f, "b2", "t-2", &[&unknown]).await, BatchOutcome::Moved);
}

pub(super) async fn a_batch_with_the_id_of_another_run_is_refused(f: &Fixture) {
    let (run, one) = (create(&*f.store, spec("b")).await, create(&*f.store, entry("1")).await);
    assert_eq!(batched(f, "b", "t", &[&one]).await, BatchOutcome::Moved);
    assert_eq!((found(f, "b").await, found(f, "1").await), (run, one));
}

pub(super) async fn an_entry_is_wanted_when_its_batch_has_ended(f: &Fixture) {
    let (one, two) = (create(&*f.store, entry("1")).await, create(&*f.store, entry("2")).await);
    batched(f, "b", "t", &[&one, &two]).await;
    assert_eq!(ids(&claimed(f).await), ["b"]);
    assert_eq!(ids(&claimed(f).await), [""; 0]);
    create(&*f.store, spec("task")).await;
    ends(f, "b").await;
    let runs = claimed(f).await;
    assert_eq!(ids(&runs), ["1", "2", "task"]);
    assert_eq!(runs[0].state.hold.host(), Some(&host_id("h")));
    assert_eq!(runs[0].execution().and_then(|e| e.batch.clone()), Some(run_id("b")));
}

pub(super) async fn an_entry_that_ended_first_is_wanted_no_more(f: &Fixture) {
    let (one, two) = (create(&*f.store, entry("1")).await, create(&*f.store, entry("2")).await);
    batched(f, "b", "t", &[&one, &two]).await;
    let entry = found(f, "1").await;
    let done = machine::decide::acknowledge(
        &entry,
        &run_id("b"),
        machine::decide::EntryOutcome::Done("done"),
    );
    append(&*f.store, next(&entry, 40, 3_000, done)).await;
    assert_eq!(ids(&claimed(f).await), ["b"]);
    ends(f, "b").await;
    assert_eq!(ids(&claimed(f).await), ["2"]);
    journal_is(&*f.store, &found(f, "1").await).await;
}

pub(super) async fn a_batch_that_waits_for_its_entry_would_wait_for_itself(f: &Fixture) {
    let one = create(&*f.store, entry("1")).await;
    batched(f, "b", "t", &[&one]).await;
    let batch = claimed(f).await.remove(0);
    let wait = next(&batch, 50, 3_000, vec![for_runs(&["1"], WaitMode::All)]);
    assert_eq!(f.store.append(wait).await.expect("answers"), AppendOutcome::Cycle);
}

pub(super) async fn a_host_stays_while_entries_wait(f: &Fixture) {
    let host = host_id("host");
    f.store.register(host_of(&host, PIN)).await.expect("registers");
    create(&*f.store, RunSpec { agent_name: "coder".to_owned(), ..entry("p") }).await;
    let one = create(&*f.store, entry("1")).await;
    assert!(!f.store.retire(&host, Stay::default()).await.expect("answers"));
    let cancel = machine::decide::cancel(&one, StopReason::CanceledByOwner, None);
    append(&*f.store, next(&one, 5, 2_000, cancel)).await;
    assert!(f.store.retire(&host, Stay::default()).await.expect("answers"));
}

pub(super) async fn a_batch_stays_while_one_of_its_entries_is_open(f: &Fixture) {
    let (one, two) = (create(&*f.store, entry("1")).await, create(&*f.store, entry("2")).await);
    batched(f, "b", "t", &[&one, &two]).await;
    claimed(f).await;
    ends(f, "b").await;
    claimed(f).await;
    let all = |dry_run| Removal { scope: None, before: Timestamp(9_000), limit: 99, dry_run };
    let counts = |removed: RemovalOutcome| (removed.runs, removed.kept);
    ends(f, "1").await;
    assert_eq!(counts(f.store.remove(all(true)).await.expect("looks")), (1, 1));
    assert_eq!(counts(f.store.remove(all(false)).await.expect("removes")), (1, 1));
    assert_eq!(found(f, "b").await.status(), Status::Completed);
    ends(f, "2").await;
    assert_eq!(counts(f.store.remove(all(false)).await.expect("removes")), (2, 0));
    // With the batch goes what its tick stood for.
    let three = create(&*f.store, entry("3")).await;
    assert_eq!(batched(f, "b", "t", &[&three]).await, BatchOutcome::New);
}

pub(super) async fn a_batch_is_kept_in_a_session_that_ended(f: &Fixture) {
    let one = create(&*f.store, entry("1")).await;
    f.store.end_session(&session_key(), Timestamp(1_500)).await.expect("ends");
    let refused = f.store.create(new_run(entry("2"))).await.expect("answers");
    assert!(matches!(refused, CreateOutcome::SessionEnded), "{refused:?}");
    assert_eq!(batched(f, "b", "t", &[&one]).await, BatchOutcome::New);
}

pub(super) async fn a_batch_wakes_whoever_waits_for_its_entries_or_for_work(f: &Fixture) {
    let one = create(&*f.store, entry("1")).await;
    claimed(f).await;
    let mut watch = f.store.watch(&run_id("1"));
    let changed = async {
        loop {
            let run = found(f, "1").await;
            if run.state.head > 1 {
                break run.status();
            }
            watch.moved(1).await;
        }
    };
    let work = async {
        loop {
            f.store.work().await;
            let runs = claimed(f).await;
            if !runs.is_empty() {
                break runs;
            }
        }
    };
    let made = async { batched(f, "b", "t", &[&one]).await };
    let (status, runs, made) = within(async { tokio::join!(changed, work, made) }).await;
    assert_eq!((status, made), (Status::Running, BatchOutcome::New));
    assert_eq!(ids(&runs), ["b"]);
}
