//! The keys under which runs, tasks, names and sessions are found, and the checks of records.

use std::panic::catch_unwind;
use std::sync::Arc;

use super::super::requests::is_same_task;
use super::super::sessions::session_of;
use super::super::{
    check_append, check_batch, check_new, covers, hash, known_session, name_place, no_batch,
    task_hash, turn_of, widest, widest_of,
};
use super::{child_of, completed_run};
use crate::event::EventRecord;
use crate::machine::tests::{run, spec, started};
use crate::run::Run;
use crate::spec::RunSpec;
use crate::store::{
    Admission, Append, BatchOutcome, Idempotency, NewBatch, NewRun, Session, SessionKey, TaskKey,
};
use crate::time::Timestamp;

#[test]
fn a_number_for_texts_is_the_same_in_every_version_and_knows_where_they_end() {
    assert_eq!(hash(&["task", "t"]), 5_799_268_416_334_004_831);
    assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
    assert_ne!(hash(&["a"]), hash(&["a", ""]));
}

#[test]
fn the_number_of_a_task_is_that_of_its_owner_and_key() {
    let key = |digest: &str| TaskKey { digest: digest.into(), completed_since: None };
    let number = task_hash(&spec(), &key("d"));
    assert_eq!(task_hash(&RunSpec { task: "else".into(), ..spec() }, &key("d")), number);
    for other in [
        task_hash(&spec(), &key("e")),
        task_hash(&RunSpec { tenant: "u".into(), ..spec() }, &key("d")),
        task_hash(&RunSpec { owner_user_id: "p".into(), ..spec() }, &key("d")),
    ] {
        assert_ne!(other, number);
    }
}

#[test]
fn tasks_are_the_same_in_one_place_whatever_their_letters_are() {
    assert!(is_same_task(&spec(), &RunSpec { task: "DO".into(), priority: 7, ..spec() }));
    for other in [
        RunSpec { task: "do it".into(), ..spec() },
        RunSpec { tenant: "u".into(), ..spec() },
        RunSpec { owner_user_id: "p".into(), ..spec() },
        RunSpec { parent_session_id: "q".into(), ..spec() },
        RunSpec { agent_name: "b".into(), ..spec() },
    ] {
        assert!(!is_same_task(&spec(), &other), "{other:?}");
    }
}

#[test]
fn a_name_is_alone_in_its_session_or_under_its_parent() {
    assert_eq!(name_place(&spec()), None);
    let named = RunSpec { name: Some("n".into()), ..spec() };
    assert_eq!(name_place(&named), Some(["session", "t", "o", "s", "n"]));
    let child = RunSpec { name: Some("n".into()), ..child_of("parent") };
    assert_eq!(name_place(&child), Some(["run", "t", "parent", "", "n"]));
}

fn session(owner: Option<&str>, app: Option<&str>, id: &str) -> SessionKey {
    SessionKey {
        tenant: "t".into(),
        owner_user_id: owner.map(str::to_owned),
        parent_app_name: app.map(str::to_owned),
        id: id.into(),
    }
}

#[test]
fn the_sessions_of_a_run_are_its_own_and_that_of_its_tree() {
    let run = RunSpec {
        parent_app_name: Some("app".into()),
        root_session_id: Some("root".into()),
        ..spec()
    };
    assert_eq!(session_of(&run), session(Some("o"), Some("app"), "s"));
    assert_eq!(turn_of(&run), session(Some("o"), None, "s"));
    let both = [session(None, None, "s"), session(None, None, "root")];
    assert!(widest_of(&run).eq(both));
    assert!(widest_of(&spec()).eq([session(None, None, "s")]));
    assert_eq!(widest(&session_of(&run)), session(None, None, "s"));
}

#[test]
fn a_wider_key_covers_a_nearer_one_of_the_same_name() {
    let near = session(Some("o"), Some("app"), "s");
    for wider in [
        session(None, None, "s"),
        session(Some("o"), None, "s"),
        session(None, Some("app"), "s"),
        near.clone(),
    ] {
        assert!(covers(&wider, &near), "{wider:?}");
    }
    for other in [
        session(None, None, "q"),
        session(Some("p"), None, "s"),
        session(None, Some("other"), "s"),
        SessionKey { tenant: "u".into(), ..near.clone() },
    ] {
        assert!(!covers(&other, &near), "{other:?}");
    }
    assert!(!covers(&near, &session(None, None, "s")), "a nearer one says nothing of all");
}

#[test]
fn the_record_of_a_session_is_the_nearest_and_ends_with_the_first() {
    let key = session(Some("o"), Some("app"), "s");
    let said = |owner, app, created_at, ended_at: Option<u64>| Session {
        key: session(owner, app, "s"),
        created_at: Timestamp(created_at),
        ended_at: ended_at.map(Timestamp),
    };
    assert!(known_session(&key, Vec::new()).is_none());
    let all = vec![
        said(None, None, 1, Some(30)),
        said(None, Some("app"), 2, Some(20)),
        said(Some("o"), None, 3, None),
    ];
    let known = known_session(&key, all).expect("three were said");
    assert_eq!((known.created_at, known.ended_at), (Timestamp(3), Some(Timestamp(20))));
    let exact = vec![said(Some("o"), None, 3, None), said(Some("o"), Some("app"), 4, None)];
    let known = known_session(&key, exact).expect("two were said");
    assert_eq!((known.created_at, known.ended_at), (Timestamp(4), None));
}

#[test]
fn a_tick_makes_one_batch_and_none_while_the_last_one_is_open() {
    let tick = Idempotency { key: "beat".into(), fingerprint: "2".into(), completed_since: None };
    let open = run([started()]);
    assert_eq!(no_batch(&tick, "1", &open), Some(BatchOutcome::Open(open.id().clone())));
    let ended = completed_run();
    assert_eq!(no_batch(&tick, "2", &ended), Some(BatchOutcome::Repeated(ended.id().clone())));
    assert_eq!(no_batch(&tick, "1", &ended), None);
}

fn event(seq: u64) -> EventRecord {
    EventRecord { seq, id: seq, at: Timestamp(seq), event: started() }
}

/// A new run whose record says that its journal ends at `head`.
fn new_run(head: u64, events: &[u64]) -> NewRun {
    let mut run: Run = run([]);
    run.state.head = head;
    NewRun {
        run,
        events: events.iter().map(|seq| event(*seq)).collect(),
        idempotency: None,
        task: None,
        artifacts: Vec::new(),
        admission: Admission::UNBOUNDED,
    }
}

fn append(expected_head: u64, head: u64, events: &[u64]) -> Append {
    let mut run = run([]);
    run.state.head = head;
    let events: Vec<EventRecord> = events.iter().map(|seq| event(*seq)).collect();
    Append {
        run: Arc::new(run),
        epoch: 0,
        expected_head,
        events: events.into(),
        artifacts: Vec::new(),
        reports: None,
    }
}

#[test]
fn a_journal_with_a_gap_or_an_end_elsewhere_is_never_kept() {
    check_new(&new_run(2, &[1, 2]));
    for wrong in [new_run(2, &[1, 3]), new_run(3, &[1, 2]), new_run(2, &[2, 3])] {
        assert!(catch_unwind(|| check_new(&wrong)).is_err(), "{wrong:?}");
    }
    check_append(&append(4, 6, &[5, 6]));
    for wrong in [append(4, 6, &[4, 5]), append(4, 5, &[5, 6]), append(5, 6, &[5])] {
        assert!(catch_unwind(|| check_append(&wrong)).is_err(), "{wrong:?}");
    }
}

#[test]
fn a_batch_has_a_beat_and_whole_journals() {
    let beat = Idempotency { key: "beat".into(), fingerprint: "1".into(), completed_since: None };
    let batch = |head, idempotency: Option<&Idempotency>, entries| NewBatch {
        run: NewRun { idempotency: idempotency.cloned(), ..new_run(head, &[1]) },
        entries,
    };
    let sound = batch(1, Some(&beat), vec![append(4, 5, &[5])]);
    assert_eq!(check_batch(&sound), &beat);
    for wrong in [
        batch(1, None, Vec::new()),
        batch(2, Some(&beat), Vec::new()),
        batch(1, Some(&beat), vec![append(4, 6, &[5])]),
    ] {
        assert!(
            catch_unwind(|| {
                check_batch(&wrong);
            })
            .is_err(),
            "{wrong:?}"
        );
    }
}
