//! Runs that wait for the end of others.

use super::*;

async fn claimed(f: &Fixture, now: u64) -> Vec<Run> {
    f.store.claim(wish("h", 99, now)).await.expect("claims")
}

/// Runs of these names, all of them held.
async fn running<const N: usize>(f: &Fixture, names: [&str; N]) -> [Run; N] {
    for name in names {
        create(&*f.store, spec(name)).await;
    }
    let runs = claimed(f, 2_000).await;
    assert_eq!(ids(&runs), names);
    runs.try_into().expect("as many as names")
}

async fn wait(f: &Fixture, run: &Run, event: Event) -> Run {
    append(&*f.store, next(run, 100, 2_500, vec![event])).await
}

async fn finish(f: &Fixture, run: &Run) -> Run {
    append(&*f.store, next(run, 200, 3_000, end())).await
}

pub(crate) async fn a_run_that_waits_for_all_resumes_when_the_last_has_ended(f: &Fixture) {
    let [a, b, c] = running(f, ["a", "b", "c"]).await;
    let a = wait(f, &a, for_runs(&["b", "c", "b"], WaitMode::All)).await;
    assert_eq!(claimed(f, 2_600).await, []);
    finish(f, &b).await;
    assert_eq!(claimed(f, u64::MAX).await, []);
    finish(f, &c).await;
    // Nobody wrote to it.
    journal_is(&*f.store, &a).await;
    let fresh = create(&*f.store, RunSpec { priority: 9, ..spec("fresh") }).await;
    let runs = claimed(f, 4_000).await;
    assert_eq!(ids(&runs), ["a", fresh.id().as_str()]);
    assert_eq!((runs[0].status(), runs[0].state.epoch), (Status::Running, 2));
    journal_is(&*f.store, &runs[0]).await;
}

pub(crate) async fn a_run_that_waits_for_any_resumes_when_the_first_has_ended(f: &Fixture) {
    let [a, b, c] = running(f, ["a", "b", "c"]).await;
    wait(f, &a, for_runs(&["b", "c"], WaitMode::Any)).await;
    finish(f, &c).await;
    let runs = claimed(f, 4_000).await;
    assert_eq!(ids(&runs), ["a"]);
    // The end of the other one does not make it wanted again.
    finish(f, &b).await;
    assert_eq!(claimed(f, 4_000).await, []);
    finish(f, &runs[0]).await;
}

pub(crate) async fn a_wait_that_is_over_already_is_none(f: &Fixture) {
    let [a, b, c, d, e] = running(f, ["a", "b", "c", "d", "e"]).await;
    finish(f, &e).await;
    wait(f, &a, for_runs(&["e", "never-heard-of"], WaitMode::All)).await;
    wait(f, &b, for_runs(&["d", "e"], WaitMode::Any)).await;
    wait(f, &c, for_runs(&["d", "never-heard-of"], WaitMode::All)).await;
    assert_eq!(ids(&claimed(f, 4_000).await), ["a", "b"]);
    wait(f, &d, for_runs(&[], WaitMode::Any)).await;
    assert_eq!(ids(&claimed(f, 4_000).await), ["d"]);
}

pub(crate) async fn a_wait_ends_with_its_time_in_any_case(f: &Fixture) {
    let [a, b, c] = running(f, ["a", "b", "c"]).await;
    wait(f, &a, for_runs_until(&["c"], WaitMode::All, Some(5_000))).await;
    wait(f, &b, for_runs_until(&["c"], WaitMode::All, Some(6_000))).await;
    assert_eq!(claimed(f, 4_999).await, []);
    assert_eq!(ids(&claimed(f, 5_000).await), ["a"]);
    // Or before, if they end.
    finish(f, &c).await;
    assert_eq!(ids(&claimed(f, 5_000).await), ["b"]);
    assert_eq!(claimed(f, 9_000).await, []);
}

pub(crate) async fn every_way_to_end_counts(f: &Fixture) {
    let [a, b, c] = running(f, ["a", "b", "c"]).await;
    let queued = create(&*f.store, spec("d")).await;
    wait(f, &a, for_runs(&["b", "c", "d"], WaitMode::All)).await;
    let b = append(&*f.store, next(&b, 300, 3_000, vec![cancel()])).await;
    append(&*f.store, next(&b, 310, 3_000, end())).await;
    let events = machine::decide::cancel(&queued, StopReason::CanceledByParent, None);
    append(&*f.store, next(&queued, 320, 3_000, events)).await;
    let begun = next(&c, 330, 3_000, end()[..1].to_vec());
    let c = append(&*f.store, begun).await;
    assert_eq!(claimed(f, 4_000).await, [], "it is about to end and has not");
    append(&*f.store, next(&c, 340, 3_000, end()[1..].to_vec())).await;
    assert_eq!(ids(&claimed(f, 4_000).await), ["a"]);
}

pub(crate) async fn whoever_left_waits_for_nothing(f: &Fixture) {
    let [a, b, c, d] = running(f, ["a", "b", "c", "d"]).await;
    let a = wait(f, &a, for_runs(&["d"], WaitMode::All)).await;
    wait(f, &b, for_runs_until(&["d"], WaitMode::All, Some(4_000))).await;
    let c = wait(f, &c, for_runs(&["d"], WaitMode::All)).await;
    // One is canceled, one claimed as its time came, one paused and resumed.
    let events = machine::decide::cancel(&a, StopReason::CanceledByOwner, None);
    append(&*f.store, next(&a, 300, 3_000, events)).await;
    let events = machine::decide::pause(&c, "b", None, None).expect("it can be paused");
    let c = append(&*f.store, next(&c, 300, 3_000, events)).await;
    let events = machine::decide::resume(&c, "b", None, &[]).expect("it is paused");
    let c = append(&*f.store, next(&c, 301, 3_000, events)).await;
    let runs = claimed(f, 4_000).await;
    assert_eq!(ids(&runs), ["b", c.id().as_str()]);
    // So nothing keeps the other from waiting for them,
    wait(f, &d, for_runs(&["a", "b", "c"], WaitMode::All)).await;
    // and its end means nothing to them.
    finish(f, &runs[0]).await;
    finish(f, &runs[1]).await;
    assert_eq!(ids(&claimed(f, 5_000).await), ["d"]);
    assert_eq!(claimed(f, u64::MAX).await, []);
}

pub(crate) async fn a_circle_of_waits_is_refused(f: &Fixture) {
    let [a, b, c, d] = running(f, ["a", "b", "c", "d"]).await;
    let refused = async |run: &Run, event: Event| {
        let wait = next(run, 100, 2_500, vec![note("n"), event]);
        assert_eq!(f.store.append(wait).await.expect("answers"), AppendOutcome::Cycle);
        journal_is(&*f.store, run).await;
    };
    refused(&a, for_runs(&["b", "a"], WaitMode::Any)).await;
    wait(f, &a, for_runs_until(&["b"], WaitMode::All, Some(9_000))).await;
    refused(&b, for_runs(&["a"], WaitMode::All)).await;
    wait(f, &b, for_runs(&["d", "c"], WaitMode::Any)).await;
    refused(&c, for_runs(&["d", "a"], WaitMode::Any)).await;
    refused(&d, for_runs(&["never-heard-of", "a"], WaitMode::Any)).await;
    // Two may wait for the same.
    wait(f, &c, for_runs(&["d"], WaitMode::All)).await;
    finish(f, &d).await;
    assert_eq!(ids(&claimed(f, 4_000).await), ["b", "c"]);
}

pub(crate) async fn a_wait_that_is_over_closes_no_circle(f: &Fixture) {
    let [a, b, c] = running(f, ["a", "b", "c"]).await;
    wait(f, &a, for_runs(&["b", "c"], WaitMode::Any)).await;
    finish(f, &c).await;
    // It is wanted, and not yet claimed.
    wait(f, &b, for_runs(&["a"], WaitMode::All)).await;
    let runs = claimed(f, 4_000).await;
    assert_eq!(ids(&runs), ["a"]);
    finish(f, &runs[0]).await;
    assert_eq!(ids(&claimed(f, 4_000).await), ["b"]);
}

pub(crate) async fn a_refused_append_begins_no_wait(f: &Fixture) {
    let [a, b] = running(f, ["a", "b"]).await;
    let late = next(&a, 300, 2_500, vec![for_runs(&["b"], WaitMode::All)]);
    let a = append(&*f.store, next(&a, 100, 2_400, vec![note("n")])).await;
    assert_eq!(f.store.append(late).await.expect("answers"), AppendOutcome::Moved(3));
    let blocks = next(&a, 300, 2_500, vec![for_runs(&["b"], WaitMode::All)]);
    let fenced = Append { epoch: 7, ..blocks };
    assert_eq!(f.store.append(fenced).await.expect("answers"), AppendOutcome::Fenced(1));
    wait(f, &b, for_runs(&["a"], WaitMode::All)).await;
    finish(f, &a).await;
    assert_eq!(ids(&claimed(f, 4_000).await), ["b"]);
}

pub(crate) async fn the_same_wait_again_is_done(f: &Fixture) {
    let [a, b] = running(f, ["a", "b"]).await;
    let blocks = next(&a, 100, 2_500, vec![for_runs(&["b"], WaitMode::All)]);
    append(&*f.store, blocks.clone()).await;
    append(&*f.store, blocks.clone()).await;
    finish(f, &b).await;
    assert_eq!(ids(&claimed(f, 4_000).await), ["a"]);
    append(&*f.store, blocks).await;
    assert_eq!(claimed(f, u64::MAX).await, []);
}

pub(crate) async fn work_wakes_when_a_wait_is_over(f: &Fixture) {
    let [a, b] = running(f, ["a", "b"]).await;
    wait(f, &a, for_runs(&["b"], WaitMode::All)).await;
    let store = Arc::clone(&f.store);
    let host = tokio::spawn(async move {
        loop {
            let runs = store.claim(wish("other", 9, 4_000)).await.expect("claims");
            if !runs.is_empty() {
                return runs;
            }
            store.work().await;
        }
    });
    finish(f, &b).await;
    assert_eq!(ids(&within(host).await.expect("no panic")), ["a"]);
}
