//! Artifacts, which are kept beside records.

use super::*;
use taskrun_journal::artifact::{Artifact, digest};

const BYTES: &[u8] = b"more than fits";

async fn get(f: &Fixture, id: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    let kept = f.store.artifact(&run_id(id), &digest(bytes)).await.expect("answers");
    kept.map(|bytes| bytes.to_vec())
}

/// A run that a host holds.
async fn running(f: &Fixture, spec: RunSpec) -> Run {
    create(&*f.store, spec).await;
    claim_one(&*f.store, "h").await
}

async fn ended_with(f: &Fixture, spec: RunSpec, at: u64, bytes: &[u8]) -> Run {
    let run = running(f, spec).await;
    append(&*f.store, end_with(&run, 50, at, bytes)).await
}

fn until(before: u64) -> Removal {
    Removal { scope: None, before: Timestamp(before), limit: 9, dry_run: false }
}

pub(crate) async fn an_artifact_is_kept_with_the_events_that_name_it(f: &Fixture) {
    let run = running(f, spec("r")).await;
    assert_eq!(get(f, "r", BYTES).await, None);
    let run = append(&*f.store, end_with(&run, 50, 3_000, BYTES)).await;
    journal_is(&*f.store, &run).await;
    let named = run.artifact().expect("its end names it");
    assert_eq!((named.hash.as_str(), named.size), (digest(BYTES).as_str(), BYTES.len() as u64));
    assert_eq!(get(f, "r", BYTES).await.as_deref(), Some(BYTES));
}

pub(crate) async fn the_artifacts_of_a_request_are_kept_with_its_run(f: &Fixture) {
    let new = || NewRun { artifacts: vec![Artifact::new(BYTES)], ..new_run(spec("r")) };
    let created = f.store.create(new()).await.expect("answers");
    assert!(matches!(created, CreateOutcome::New), "{created:?}");
    assert_eq!(get(f, "r", BYTES).await.as_deref(), Some(BYTES));
    // A run that is refused keeps nothing.
    let other = NewRun { artifacts: vec![Artifact::new(*b"others")], ..new() };
    let created = f.store.create(other).await.expect("answers");
    assert!(matches!(created, CreateOutcome::Taken(_)), "{created:?}");
    assert_eq!(get(f, "r", b"others").await, None);
    let run = claim_one(&*f.store, "h").await;
    append(&*f.store, end_with(&run, 50, 3_000, b"its answer")).await;
    let removed = f.store.remove(until(4_000)).await.expect("answers");
    assert_eq!((removed.runs, get(f, "r", BYTES).await), (1, None));
}

pub(crate) async fn an_artifact_of_any_size_reads_back(f: &Fixture) {
    let large: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    ended_with(f, spec("empty"), 3_000, b"").await;
    ended_with(f, spec("large"), 3_000, &large).await;
    assert_eq!(get(f, "empty", b"").await.as_deref(), Some(&b""[..]));
    assert_eq!(get(f, "large", &large).await, Some(large));
}

pub(crate) async fn an_artifact_is_read_only_through_a_run_that_has_it(f: &Fixture) {
    ended_with(f, spec("has"), 3_000, BYTES).await;
    ended_with(f, spec("other"), 3_000, b"something else").await;
    create(&*f.store, RunSpec { tenant: "zeta".to_owned(), ..spec("foreign") }).await;
    for id in ["other", "foreign", "nobody"] {
        assert_eq!(get(f, id, BYTES).await, None, "{id}");
    }
    for hash in ["", "no hash", &"0".repeat(64)] {
        assert_eq!(f.store.artifact(&run_id("has"), hash).await.expect("answers"), None);
    }
}

pub(crate) async fn a_refused_append_keeps_no_artifact(f: &Fixture) {
    let run = running(f, spec("r")).await;
    let moved = append(&*f.store, next(&run, 20, 2_500, vec![note("a")])).await;
    let stale = f.store.append(end_with(&run, 50, 3_000, BYTES)).await;
    assert_eq!(stale.expect("answers"), AppendOutcome::Moved(moved.state.head));
    let fenced = Append { epoch: 7, ..end_with(&moved, 50, 3_000, BYTES) };
    assert_eq!(f.store.append(fenced).await.expect("answers"), AppendOutcome::Fenced(1));
    assert_eq!(get(f, "r", BYTES).await, None);
}

pub(crate) async fn equal_artifacts_stay_until_the_last_of_their_runs_goes(f: &Fixture) {
    for (id, at) in [("a", 1_000), ("b", 2_000), ("c", 3_000)] {
        ended_with(f, spec(id), at, BYTES).await;
    }
    let dry = Removal { dry_run: true, ..until(9_000) };
    assert_eq!(f.store.remove(dry).await.expect("answers").runs, 3);
    for (before, left) in [(1_001, vec!["b", "c"]), (2_001, vec!["c"]), (3_001, vec![])] {
        f.store.remove(until(before)).await.expect("removes");
        for id in ["a", "b", "c"] {
            assert_eq!(get(f, id, BYTES).await.is_some(), left.contains(&id), "{id} at {before}");
        }
    }
    // Nothing of it comes back with the id.
    running(f, spec("a")).await;
    assert_eq!(get(f, "a", BYTES).await, None);
}

pub(crate) async fn the_same_append_again_refers_to_its_artifact_once(f: &Fixture) {
    let run = running(f, spec("r")).await;
    let end = end_with(&run, 50, 1_000, BYTES);
    for _ in 0..3 {
        assert_eq!(f.store.append(end.clone()).await.expect("appends"), AppendOutcome::Done);
    }
    ended_with(f, spec("other"), 2_000, BYTES).await;
    f.store.remove(until(1_001)).await.expect("removes");
    assert_eq!(get(f, "r", BYTES).await, None);
    assert_eq!(get(f, "other", BYTES).await.as_deref(), Some(BYTES));
}
