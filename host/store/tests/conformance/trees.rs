//! Slots of trees, and runs that go one after another.

use super::*;

fn wish_slots(host: &str, limit: usize, tree_slots: u32) -> Claim {
    Claim { tree_slots, ..wish(host, limit, 2_000) }
}

async fn claimed(f: &Fixture, claim: Claim) -> Vec<Run> {
    f.store.claim(claim).await.expect("claims")
}

async fn finish(f: &Fixture, run: &Run) {
    append(&*f.store, next(run, 500, 3_000, end())).await;
}

/// A running root and so many children that wait to begin.
async fn tree(f: &Fixture, root: &str, children: usize) -> Run {
    create(&*f.store, RunSpec { priority: 9, ..spec(root) }).await;
    let run = claim_one(&*f.store, "h").await;
    assert_eq!(run.id().as_str(), root);
    for n in 0..children {
        create(&*f.store, child(&format!("{root}-{n}"), &run.spec)).await;
    }
    run
}

/// A run that was canceled before it began and whose finalizer is to be heard.
async fn waits_for_its_finalizer(f: &Fixture, spec: RunSpec) {
    let run = create(&*f.store, RunSpec { finalizer: true, ..spec }).await;
    let canceled = machine::decide::cancel(&run, StopReason::CanceledByParent, None);
    append(&*f.store, next(&run, 600, 2_000, canceled)).await;
}

pub(crate) async fn a_finalizer_needs_no_slot_of_its_tree_nor_an_ordinary_one(f: &Fixture) {
    let root = tree(f, "t", 2).await;
    waits_for_its_finalizer(f, child("low", &root.spec)).await;
    waits_for_its_finalizer(f, RunSpec { priority: 3, ..child("high", &root.spec) }).await;
    waits_for_its_finalizer(f, child("last", &root.spec)).await;
    let finalizers = |limit, finalizers| Claim { finalizers, ..wish_slots("h", limit, 1) };
    assert_eq!(claimed(f, wish_slots("h", 9, 1)).await, [], "the tree has no slot left");
    let theirs = Claim { ready: Ready::only(["other"]), ..finalizers(0, 9) };
    assert_eq!(claimed(f, theirs).await, []);
    let wanted = f.store.wanted().await.expect("answers");
    assert_eq!(wanted, [Pins::of(&root)]);
    let taken = claimed(f, finalizers(0, 1)).await;
    assert_eq!((ids(&taken), taken[0].status()), (vec!["high"], Status::Finalizing));
    assert_eq!(ids(&claimed(f, finalizers(9, 1)).await), ["low"], "nobody has it twice");
    // With a slot left it is one like any other that resumes.
    assert_eq!(ids(&claimed(f, wish_slots("h", 2, 9)).await), ["last", "t-0"]);
    assert_eq!(claimed(f, finalizers(0, 9)).await, []);
    let lost = |run: &Run| machine::decide::lose(run, Timestamp(3_000), None);
    append(&*f.store, next(&taken[0], 700, 3_000, lost(&taken[0]))).await;
    assert_eq!(claimed(f, finalizers(0, 9)).await, [], "its time has not come");
    let later = Claim { now: Timestamp(9_000), ..finalizers(0, 9) };
    assert_eq!(ids(&claimed(f, later).await), ["high"]);
}

pub(crate) async fn finalizers_of_one_owner_leave_room_for_those_of_another(f: &Fixture) {
    for n in 0..4 {
        waits_for_its_finalizer(f, spec(&format!("a{n}"))).await;
    }
    let bobs = |id: &str| RunSpec {
        owner_user_id: "bob".to_owned(),
        parent_session_id: "s-2".to_owned(),
        ..spec(id)
    };
    waits_for_its_finalizer(f, bobs("b0")).await;
    waits_for_its_finalizer(f, RunSpec { priority: 3, ..bobs("b1") }).await;
    // The same name in another tenant is another owner.
    waits_for_its_finalizer(f, RunSpec { tenant: "other".to_owned(), ..spec("c0") }).await;
    let finalizers = |finalizers| Claim { finalizers, ..wish_slots("h", 0, 1) };
    assert_eq!(ids(&claimed(f, finalizers(3)).await), ["b1", "a0", "c0"], "priorities first");
    let taken = claimed(f, finalizers(2)).await;
    assert_eq!(ids(&taken), ["a1", "b0"], "each has as many");
    let end = vec![Event::FinalizerStarted, taskrun_fixtures::finished()];
    append(&*f.store, next(&taken[0], 700, 3_000, end)).await;
    waits_for_its_finalizer(f, RunSpec { priority: 9, ..bobs("b2") }).await;
    assert_eq!(ids(&claimed(f, finalizers(1)).await), ["a2"], "of whose runs fewer are under way");
}

pub(crate) async fn no_tree_gets_more_slots_than_allowed(f: &Fixture) {
    let root = tree(f, "t", 5).await;
    assert_eq!(ids(&claimed(f, wish_slots("h", 9, 3)).await), ["t-0", "t-1"]);
    // Over all hosts, in other claims, and however deep they are.
    create(&*f.store, child("deep", &child("t-0", &root.spec))).await;
    assert_eq!(claimed(f, wish_slots("other", 9, 3)).await, []);
    assert_eq!(claimed(f, wish_slots("other", 9, 0)).await, []);
    assert_eq!(ids(&claimed(f, wish_slots("other", 9, 4)).await), ["t-2"]);
    assert_eq!(claimed(f, wish_slots("other", 9, 2)).await, []);
    finish(f, &root).await;
    assert_eq!(claimed(f, wish_slots("other", 9, 3)).await, []);
    assert_eq!(ids(&claimed(f, wish_slots("other", 9, 4)).await), ["t-3"]);
}

pub(crate) async fn a_tree_with_a_number_of_slots_of_its_own_has_these_on_every_host(f: &Fixture) {
    let slots = |slots| TreeBounds { slots: Some(slots), ..TreeBounds::default() };
    for (root, own) in [("small", 1), ("large", 3)] {
        create(&*f.store, RunSpec { tree: slots(own), priority: 9, ..spec(root) }).await;
    }
    let roots = claimed(f, wish_slots("h", 2, 9)).await;
    assert_eq!(ids(&roots), ["small", "large"]);
    for (root, own) in roots.iter().zip([1, 3]) {
        for n in 0..4 {
            let id = format!("{}-{n}", root.id());
            create(&*f.store, RunSpec { tree: slots(own), ..child(&id, &root.spec) }).await;
        }
    }
    // However many the host itself would allow.
    assert_eq!(ids(&claimed(f, wish_slots("h", 9, 9)).await), ["large-0", "large-1"]);
    assert_eq!(claimed(f, wish_slots("other", 9, 1)).await, []);
    assert_eq!(claimed(f, wish_slots("other", 9, 9)).await, []);
    finish(f, &roots[0]).await;
    assert_eq!(claimed(f, wish_slots("other", 9, 0)).await, []);
    assert_eq!(ids(&claimed(f, wish_slots("other", 9, 1)).await), ["small-0"]);
    finish(f, &roots[1]).await;
    assert_eq!(ids(&claimed(f, wish_slots("other", 9, 1)).await), ["large-2"]);
    assert_eq!(claimed(f, wish_slots("h", 9, 9)).await, []);
}

pub(crate) async fn a_full_tree_is_passed_over(f: &Fixture) {
    tree(f, "t", 50).await;
    for id in ["a", "b"] {
        create(&*f.store, RunSpec { priority: -3, ..spec(id) }).await;
    }
    assert_eq!(ids(&claimed(f, wish_slots("h", 1, 1)).await), ["a"]);
    assert_eq!(ids(&claimed(f, wish_slots("h", 9, 1)).await), ["b"]);
    assert_eq!(claimed(f, wish_slots("h", 9, 1)).await, []);
}

pub(crate) async fn a_free_slot_goes_to_the_best_of_the_tree(f: &Fixture) {
    let root = tree(f, "t", 3).await;
    create(&*f.store, RunSpec { priority: 4, ..child("urgent", &root.spec) }).await;
    assert_eq!(claimed(f, wish_slots("h", 9, 1)).await, []);
    finish(f, &root).await;
    create(&*f.store, RunSpec { priority: 1, ..spec("other") }).await;
    let runs = claimed(f, wish_slots("h", 1, 1)).await;
    assert_eq!(ids(&runs), ["urgent"]);
    assert_eq!(ids(&claimed(f, wish_slots("h", 9, 1)).await), ["other"]);
    finish(f, &runs[0]).await;
    let runs = claimed(f, wish_slots("h", 9, 1)).await;
    assert_eq!(ids(&runs), ["t-0"]);
    // A run that waits has no slot, and needs one to go on: before those that never began.
    let wait = next(&runs[0], 500, 3_000, vec![for_runs(&["t-1"], WaitMode::All)]);
    append(&*f.store, wait).await;
    let runs = claimed(f, wish_slots("h", 9, 1)).await;
    assert_eq!(ids(&runs), ["t-1"]);
    finish(f, &runs[0]).await;
    let runs = claimed(f, wish_slots("h", 9, 1)).await;
    assert_eq!(ids(&runs), ["t-0"]);
    assert_eq!(claimed(f, wish_slots("h", 9, 1)).await, []);
    let lost = machine::decide::release(&runs[0], 0, Timestamp(0));
    append(&*f.store, next(&runs[0], 600, 3_000, lost)).await;
    assert_eq!(ids(&claimed(f, wish_slots("h", 9, 1)).await), ["t-0"]);
}

pub(crate) async fn whoever_waits_in_a_full_tree_may_be_canceled(f: &Fixture) {
    let root = tree(f, "t", 3).await;
    assert_eq!(claimed(f, wish_slots("h", 9, 1)).await, []);
    let first = f.store.get(&run_id("t-0")).await.expect("gets").expect("it is there");
    let mut events = vec![cancel()];
    events.extend(end());
    append(&*f.store, next(&first, 50, 2_500, events)).await;
    assert_eq!(claimed(f, wish_slots("h", 9, 1)).await, []);
    finish(f, &root).await;
    assert_eq!(ids(&claimed(f, wish_slots("h", 9, 1)).await), ["t-1"]);
}

pub(crate) async fn a_long_tree_is_taken_in_order_whatever_comes_between(f: &Fixture) {
    let mut held = tree(f, "t", 200).await;
    for n in 0..200 {
        assert_eq!(claimed(f, wish_slots("h", 9, 1)).await, []);
        finish(f, &held).await;
        let mut runs = claimed(f, wish_slots("h", 9, 1)).await;
        held = runs.pop().expect("the next of the tree");
        assert_eq!((held.id().as_str(), runs.len()), (format!("t-{n}").as_str(), 0));
    }
}

pub(crate) async fn work_wakes_when_a_tree_has_a_slot_again(f: &Fixture) {
    let root = tree(f, "t", 1).await;
    let store = Arc::clone(&f.store);
    let host = tokio::spawn(async move {
        loop {
            let runs = store.claim(wish_slots("other", 9, 1)).await.expect("claims");
            if !runs.is_empty() {
                return runs;
            }
            store.work().await;
        }
    });
    finish(f, &root).await;
    assert_eq!(ids(&within(host).await.expect("no panic")), ["t-0"]);
}

fn serial(id: &str) -> RunSpec {
    RunSpec { serial: true, ..spec(id) }
}

pub(crate) async fn serial_runs_begin_one_after_another(f: &Fixture) {
    for id in ["a", "b", "c"] {
        create(&*f.store, serial(id)).await;
    }
    // Not even a higher priority lets one overtake.
    create(&*f.store, RunSpec { priority: 7, ..serial("d") }).await;
    let a = claim_one(&*f.store, "h").await;
    assert_eq!(a.id().as_str(), "a");
    assert_eq!(claimed(f, wish("other", 9, 2_000)).await, []);
    // It is open also while it waits, and goes on whatever is behind it.
    let wait = next(&a, 500, 2_500, vec![blocked(Wait::Answers { at: Some(Timestamp(3_000)) })]);
    append(&*f.store, wait).await;
    assert_eq!(claimed(f, wish("h", 9, 2_999)).await, []);
    let runs = claimed(f, wish("h", 9, 3_000)).await;
    assert_eq!(ids(&runs), ["a"]);
    finish(f, &runs[0]).await;
    let runs = claimed(f, wish("h", 9, 3_000)).await;
    assert_eq!(ids(&runs), ["b"]);
    // One that ends in the queue is out of the way.
    let c = f.store.get(&run_id("c")).await.expect("gets").expect("it is there");
    let mut events = vec![cancel()];
    events.extend(end());
    append(&*f.store, next(&c, 700, 3_500, events)).await;
    assert_eq!(claimed(f, wish("h", 9, 3_500)).await, []);
    finish(f, &runs[0]).await;
    assert_eq!(ids(&claimed(f, wish("h", 9, 3_500)).await), ["d"]);
}

pub(crate) async fn serial_runs_wait_for_nobody_else(f: &Fixture) {
    create(&*f.store, spec("plain")).await;
    create(&*f.store, serial("a")).await;
    create(&*f.store, serial("waits")).await;
    create(&*f.store, spec("plain-too")).await;
    create(&*f.store, RunSpec { parent_session_id: "s-2".to_owned(), ..serial("b") }).await;
    create(&*f.store, RunSpec { tenant: "zeta".to_owned(), ..serial("c") }).await;
    let runs = claimed(f, wish("h", 9, 2_000)).await;
    assert_eq!(ids(&runs), ["plain", "a", "plain-too", "b", "c"]);
}

pub(crate) async fn a_serial_run_waits_for_one_with_another_pin_too(f: &Fixture) {
    create(&*f.store, RunSpec { pin: "other".to_owned(), ..serial("a") }).await;
    create(&*f.store, serial("b")).await;
    assert_eq!(claimed(f, wish("h", 9, 2_000)).await, []);
    let theirs = Claim { ready: Ready::only(["other"]), ..wish("h", 9, 2_000) };
    let runs = claimed(f, theirs).await;
    assert_eq!(ids(&runs), ["a"]);
    finish(f, &runs[0]).await;
    assert_eq!(ids(&claimed(f, wish("h", 9, 2_000)).await), ["b"]);
}
