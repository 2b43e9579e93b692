//! Runs that end with the run that started them.

use taskrun_journal::run::RunView;

use super::*;

fn attached(id: &str, parent: &RunSpec) -> RunSpec {
    RunSpec { attached: true, ..child(id, parent) }
}

async fn get(f: &Fixture, id: &str) -> Run {
    f.store.get(&run_id(id)).await.expect("gets").expect("it is there")
}

/// The state of a run: status, reason, and the number of requests to stop it.
async fn stands(f: &Fixture, id: &str) -> (Status, Option<StopReason>, usize) {
    let run = get(f, id).await;
    journal_is(&*f.store, &run).await;
    let journal = f.store.read(run.id(), 0, 1_000).await.expect("reads");
    let asked = |one: &&EventRecord| matches!(one.event, Event::CancelRequested { .. });
    let asked = journal.iter().filter(asked).count();
    (run.status(), RunView::from(&run).stop_reason, asked)
}

const CANCELED: (Status, Option<StopReason>, usize) =
    (Status::Canceled, Some(StopReason::CanceledByParent), 1);

/// A run that a host has.
async fn held(f: &Fixture, spec: RunSpec) -> Run {
    let id = spec.id.clone();
    create(&*f.store, RunSpec { priority: 9, ..spec }).await;
    let run = claim_one(&*f.store, "h").await;
    assert_eq!(*run.id(), id);
    run
}

pub(crate) async fn what_is_attached_is_canceled_when_its_parent_ends(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    let going = held(f, attached("going", &parent.spec)).await;
    let waiting = held(f, attached("waiting", &parent.spec)).await;
    append(&*f.store, next(&waiting, 50, 2_500, vec![blocked(Wait::Word)])).await;
    create(&*f.store, attached("queued", &parent.spec)).await;
    create(&*f.store, child("own", &parent.spec)).await;
    append(&*f.store, next(&parent, 60, 3_000, end())).await;
    for id in ["waiting", "queued"] {
        assert_eq!(stands(f, id).await, CANCELED, "{id}");
        assert_eq!(get(f, id).await.state.updated_at, Timestamp(3_000), "{id}");
    }
    // Whoever executes it is asked to stop, and has his grace.
    assert_eq!(stands(f, "going").await, (Status::Canceling, None, 1));
    let told = f.store.append(next(&going, 70, 3_500, vec![note("late")])).await;
    assert_eq!(told.expect("answers"), AppendOutcome::Moved(3));
    assert_eq!(stands(f, "own").await, (Status::Queued, None, 0));
    assert_eq!(ids(&f.store.claim(wish("h", 9, 4_000)).await.expect("claims")), ["own"]);
}

pub(crate) async fn every_end_of_a_parent_ends_what_is_attached(f: &Fixture) {
    type Ends = fn(&Run) -> Vec<Event>;
    let ways: [(&str, Ends); 4] = [
        ("completed", |_| end()),
        ("failed", |_| {
            let ending = Ending::failed(StopReason::AgentError, "no");
            vec![
                Event::Finalizing { ending },
                Event::Finished { metadata: BTreeMap::new(), finalizer_error: None },
            ]
        }),
        ("canceled", |_| [vec![cancel()], end()].concat()),
        ("lost", |run| machine::decide::lose(run, Timestamp(3_000), None)),
    ];
    for (way, events) in ways {
        let parent = held(f, RunSpec { durable: way != "lost", ..spec(way) }).await;
        let id = format!("{way}-child");
        create(&*f.store, attached(&id, &parent.spec)).await;
        let parent = append(&*f.store, next(&parent, 60, 3_000, events(&parent))).await;
        assert!(parent.status().is_terminal(), "{way}");
        assert_eq!(stands(f, &id).await, CANCELED, "{way}");
    }
}

pub(crate) async fn a_parent_that_is_on_its_way_out_has_not_ended(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    create(&*f.store, attached("c", &parent.spec)).await;
    let parent = append(&*f.store, next(&parent, 50, 3_000, vec![cancel()])).await;
    assert_eq!(stands(f, "c").await, (Status::Queued, None, 0));
    let parent = append(&*f.store, next(&parent, 60, 3_000, end()[..1].to_vec())).await;
    assert_eq!(stands(f, "c").await, (Status::Queued, None, 0));
    let last = next(&parent, 70, 4_000, end()[1..].to_vec());
    append(&*f.store, last.clone()).await;
    assert_eq!(stands(f, "c").await, CANCELED);
    append(&*f.store, last).await;
    assert_eq!(stands(f, "c").await, CANCELED, "the same end again is no second one");
}

pub(crate) async fn what_ends_with_its_parent_ends_what_is_attached_to_it(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    create(&*f.store, attached("c", &parent.spec)).await;
    create(&*f.store, attached("g", &child("c", &parent.spec))).await;
    create(&*f.store, attached("gg", &child("g", &child("c", &parent.spec)))).await;
    create(&*f.store, child("free", &child("c", &parent.spec))).await;
    create(&*f.store, RunSpec { finalizer: true, ..attached("says", &parent.spec) }).await;
    create(&*f.store, attached("hears", &child("says", &parent.spec))).await;
    append(&*f.store, next(&parent, 60, 3_000, end())).await;
    for id in ["c", "g", "gg"] {
        assert_eq!(stands(f, id).await, CANCELED, "{id}");
    }
    assert_eq!(stands(f, "free").await, (Status::Queued, None, 0));
    // It ends when its finalizer was heard, and what is attached to it no sooner.
    assert_eq!(stands(f, "says").await, (Status::Finalizing, None, 1));
    assert_eq!(stands(f, "hears").await, (Status::Queued, None, 0));
    let says = get(f, "says").await;
    append(&*f.store, next(&says, 70, 4_000, end()[1..].to_vec())).await;
    assert_eq!(stands(f, "hears").await, CANCELED);
}

pub(crate) async fn what_has_its_own_end_keeps_it(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    let done = held(f, attached("done", &parent.spec)).await;
    let done = append(&*f.store, next(&done, 50, 2_500, end())).await;
    let leaving = held(f, attached("leaving", &parent.spec)).await;
    let leaving = append(&*f.store, next(&leaving, 50, 2_500, vec![cancel()])).await;
    append(&*f.store, next(&parent, 60, 3_000, end())).await;
    assert_eq!(get(f, "done").await, done);
    assert_eq!(get(f, "leaving").await, leaving);
}

pub(crate) async fn whoever_waits_hears_of_runs_that_ended_with_their_parents(f: &Fixture) {
    let parent = held(f, spec("p")).await;
    let other = RunSpec { parent_session_id: "s-2".to_owned(), ..attached("c", &parent.spec) };
    let other = held(f, other).await;
    let waiter = held(f, spec("w")).await;
    append(&*f.store, next(&waiter, 50, 2_500, vec![for_runs(&["q"], WaitMode::All)])).await;
    create(&*f.store, RunSpec { serial: true, ..attached("q", &parent.spec) }).await;
    let waits = f.store.claim(wish("h", 1, 2_600)).await.expect("claims");
    assert_eq!(ids(&waits), ["w"], "nobody called q was there when it began to wait");
    append(&*f.store, next(&waits[0], 55, 2_700, vec![for_runs(&["q"], WaitMode::All)])).await;
    create(&*f.store, RunSpec { serial: true, ..spec("after") }).await;
    let (store, head) = (Arc::clone(&f.store), other.state.head);
    let moved = tokio::spawn(async move {
        let mut watch = store.watch(&run_id("c"));
        while store.get(&run_id("c")).await.expect("gets").expect("there").state.head == head {
            watch.moved(head).await;
        }
    });
    let (store, key) = (Arc::clone(&f.store), session_key());
    let key = SessionKey { id: "s-2".to_owned(), ..key };
    let told = tokio::spawn(async move {
        let mut after = 0;
        loop {
            let events = store.read_session(&key, after, 9).await.expect("reads").events;
            after = events.last().map_or(after, |event| event.place);
            if events.iter().any(|one| matches!(one.recorded.event, Event::CancelRequested { .. }))
            {
                return;
            }
            store.session_changed(&key, after).await;
        }
    });
    append(&*f.store, next(&parent, 60, 3_000, end())).await;
    within(moved).await.expect("no panic");
    within(told).await.expect("no panic");
    // The wait for it is over, and the next one of its session begins.
    let mut begun = f.store.claim(wish("h", 9, 4_000)).await.expect("claims");
    begun.sort_by(|a, b| a.id().cmp(b.id()));
    assert_eq!(ids(&begun), ["after", "w"]);
}
