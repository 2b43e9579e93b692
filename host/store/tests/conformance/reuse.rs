//! Ids of runs that were removed, which others have now.

use taskrun_journal::schedule;

use super::names::autonomous;
use super::*;

/// Keeps a run that a host takes and ends at a time.
async fn ended(f: &Fixture, new: NewRun, at: u64) -> Run {
    assert!(matches!(f.store.create(new).await.expect("creates"), CreateOutcome::New));
    let run = claim_one(&*f.store, "h").await;
    append(&*f.store, next(&run, 50, at, end())).await
}

async fn remove_before(f: &Fixture, time: u64, removed: u64) {
    let outcome = f.store.remove(all_before(time)).await.expect("removes");
    assert_eq!(outcome.runs, removed);
}

pub(crate) async fn nothing_continues_a_run_because_it_continued_another_of_its_id(f: &Fixture) {
    let key = schedule::continuation_key(&run_id("a"));
    let continuing = |id: &str| keyed(new_run(autonomous(id)), &key, "");
    ended(f, new_run(autonomous("a")), 3_000).await;
    ended(f, continuing("b"), 5_000).await;
    remove_before(f, 4_000, 1).await;
    ended(f, new_run(autonomous("a")), 6_000).await;
    ended(f, continuing("c"), 7_000).await;
    remove_before(f, 5_500, 1).await;
    let again = f.store.create(continuing("d")).await.expect("answers");
    assert!(
        matches!(&again, CreateOutcome::Repeated(run) if run.id().as_str() == "c"),
        "{again:?}"
    );
}

pub(crate) async fn a_tree_has_the_slots_of_its_own_root(f: &Fixture) {
    let with = |id: &str, slots| RunSpec {
        tree: TreeBounds { slots, ..TreeBounds::default() },
        priority: 9,
        ..spec(id)
    };
    create(&*f.store, with("root", Some(1))).await;
    let root = claim_one(&*f.store, "h").await;
    let tree = root.spec.tree;
    create(&*f.store, RunSpec { tree, ..child("late", &root.spec) }).await;
    append(&*f.store, next(&root, 50, 3_000, end())).await;
    let late = claim_one(&*f.store, "h").await;
    append(&*f.store, next(&late, 60, 5_000, end())).await;
    remove_before(f, 4_000, 1).await;
    create(&*f.store, with("root", None)).await;
    let root = claim_one(&*f.store, "h").await;
    create(&*f.store, child("beside", &root.spec)).await;
    assert_eq!(claim_one(&*f.store, "h").await.id().as_str(), "beside");
}
