//! Waits for what happens to a run.

use super::*;

async fn append_all(store: &dyn Both, run: Run) -> Run {
    assert_eq!(claim_one(store, "h").await.id(), run.id());
    let run = store.get(run.id()).await.expect("gets").expect("it is there");
    let run = append(store, next(&run, 50, 2_100, vec![note("a")])).await;
    append(store, next(&run, 60, 2_200, end())).await
}

pub(crate) async fn a_waiter_wakes_when_its_run_moves(f: &Fixture) {
    let run = create(&*f.store, spec("r")).await;
    let store = Arc::clone(&f.store);
    let id = run.id().clone();
    let waiter = tokio::spawn(async move {
        let mut seen = 1;
        while seen < 4 {
            store.changed(&id, seen).await;
            let events = store.read(&id, seen, 100).await.expect("reads");
            seen += events.len() as u64;
        }
    });
    let run = append_all(&*f.store, run).await;
    assert!(run.state.head >= 4);
    within(waiter).await.expect("no panic");
}

/// The run that is waited for, and its wait.
async fn watched<'a>(f: &'a Fixture, id: &str) -> RunWatch<'a> {
    f.store.watch_end(&run_id(id)).await.expect("looks").expect("it is there")
}

pub(crate) async fn whoever_waits_for_an_end_gets_the_run_as_it_ended(f: &Fixture) {
    let run = create(&*f.store, spec("r")).await;
    assert!(f.store.watch_end(&run_id("nobody")).await.expect("looks").is_none());
    assert_eq!(watched(f, "r").await.run, run);
    let ended = async {
        loop {
            // It may be told to look for itself.
            if let Some(run) = watched(f, "r").await.end.await {
                return run;
            }
        }
    };
    let writes = async {
        let run = append(&*f.store, next(&run, 50, 1_500, vec![cancel()])).await;
        append(&*f.store, next(&run, 60, 1_600, end())).await
    };
    let (ended, run) = within(async { tokio::join!(ended, writes) }).await;
    assert_eq!(ended, run);
    assert_eq!(f.store.get(run.id()).await.expect("gets"), Some(run));
}

pub(crate) async fn an_end_between_the_look_and_the_wait_is_not_missed(f: &Fixture) {
    let run = create(&*f.store, spec("r")).await;
    let watch = watched(f, "r").await;
    let mut events = vec![cancel()];
    events.extend(end());
    let run = append(&*f.store, next(&run, 50, 1_500, events)).await;
    assert_eq!(within(watch.end).await, Some(run));
}

pub(crate) async fn the_end_of_a_run_that_ends_with_another_one_is_waited_for(f: &Fixture) {
    let parent = create(&*f.store, spec("p")).await;
    let beneath = RunSpec {
        parent_run_id: Some(run_id("p")),
        root_run_id: run_id("p"),
        attached: true,
        depth: 1,
        ..spec("c")
    };
    create(&*f.store, beneath).await;
    let watch = watched(f, "c").await;
    let mut events = vec![cancel()];
    events.extend(end());
    append(&*f.store, next(&parent, 50, 1_500, events)).await;
    let ended = within(watch.end).await;
    let kept = f.store.get(&run_id("c")).await.expect("gets").expect("it is there");
    assert_eq!(kept.status(), Status::Canceled);
    assert_eq!(ended, Some(kept));
}

pub(crate) async fn of_a_run_that_had_ended_the_wait_is_over(f: &Fixture) {
    let run = create(&*f.store, spec("r")).await;
    let mut events = vec![cancel()];
    events.extend(end());
    let run = append(&*f.store, next(&run, 50, 1_500, events)).await;
    let watch = watched(f, "r").await;
    assert_eq!(watch.run, run);
    assert_eq!(within(watch.end).await, Some(run));
}

pub(crate) async fn a_waiter_for_the_past_does_not_wait(f: &Fixture) {
    let run = create(&*f.store, spec("r")).await;
    within(f.store.changed(run.id(), 0)).await;
}

pub(crate) async fn whoever_waits_for_a_run_is_given_no_other_one_with_its_id(f: &Fixture) {
    let run = create(&*f.store, spec("r")).await;
    let first = watched(f, "r").await;
    let mut events = vec![cancel()];
    events.extend(end());
    let old = append(&*f.store, next(&run, 50, 1_500, events.clone())).await;
    let ended = Removal { scope: None, before: Timestamp(9_000), limit: 9, dry_run: false };
    assert_eq!(f.store.remove(ended).await.expect("removes").runs, 1);
    let run = create(&*f.store, RunSpec { owner_user_id: "other".to_owned(), ..spec("r") }).await;
    let second = watched(f, "r").await;
    assert_eq!(second.run, run);
    let new = append(&*f.store, next(&run, 60, 1_600, events)).await;
    assert_ne!(within(first.end).await, Some(new));
    assert_ne!(within(second.end).await, Some(old));
}
