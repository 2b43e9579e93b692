//! Waits for what happens to a run.

use taskrun_journal::ids::RunId;

use super::*;

async fn append_all(store: &dyn Both, run: Run) -> Run {
    assert_eq!(claim_one(store, "h").await.id(), run.id());
    let run = store.get(run.id()).await.expect("gets").expect("it is there");
    let run = append(store, next(&run, 50, 2_100, vec![note("a")])).await;
    append(store, next(&run, 60, 2_200, end())).await
}

/// The events of a run that is canceled and ends.
fn canceled() -> Vec<Event> {
    let mut events = vec![cancel()];
    events.extend(end());
    events
}

/// The journal of a run up to `head`, as its watch and the store tell it.
async fn follow(f: &Fixture, watch: &mut dyn RunWatch, id: &RunId, head: u64) -> Vec<EventRecord> {
    let mut seen: Vec<EventRecord> = f.store.read(id, 0, 100).await.expect("reads");
    while seen.len() < usize::try_from(head).expect("few") {
        let after = seen.last().map_or(0, |last| last.seq);
        let mut events = watch.events(after, 2).await;
        assert!(events.len() <= 2);
        if events.is_empty() {
            events = f.store.read(id, after, 100).await.expect("reads");
        }
        assert!(events.first().is_none_or(|first| first.seq == after + 1), "{after}: {events:?}");
        seen.extend(events);
    }
    seen
}

pub(crate) async fn a_waiter_wakes_when_its_run_moves(f: &Fixture) {
    let run = create(&*f.store, spec("r")).await;
    let store = Arc::clone(&f.store);
    let (id, mut watch) = (run.id().clone(), store.watch(run.id()));
    let waiter = tokio::spawn(async move {
        let mut seen = 1;
        while seen < 4 {
            watch.moved(seen).await;
            let events = store.read(&id, seen, 100).await.expect("reads");
            seen += events.len() as u64;
        }
    });
    let run = append_all(&*f.store, run).await;
    assert!(run.state.head >= 4);
    within(waiter).await.expect("no panic");
}

pub(crate) async fn whoever_follows_a_run_is_told_of_what_its_journal_says(f: &Fixture) {
    let run = create(&*f.store, spec("r")).await;
    let mut watch = f.store.watch(run.id());
    watch.follow();
    let followed = follow(f, &mut *watch, run.id(), 8);
    let writes = async {
        let run = claim_one(&*f.store, "h").await;
        let notes = ["a", "b", "c"].map(note).to_vec();
        let run = append(&*f.store, next(&run, 50, 2_100, notes)).await;
        let run = append(&*f.store, next(&run, 60, 2_200, vec![note("d")])).await;
        append(&*f.store, next(&run, 70, 2_300, end())).await
    };
    let (followed, run) = within(async { tokio::join!(followed, writes) }).await;
    assert_eq!(run.state.head, 8);
    assert_eq!(followed, f.store.read(run.id(), 0, 100).await.expect("reads"));
    // A run that has ended keeps nobody waiting.
    assert_eq!(within(watch.events(8, 2)).await, []);
    within(watch.moved(8)).await;
}

pub(crate) async fn a_wait_misses_nothing_that_came_after_its_registration(f: &Fixture) {
    let run = create(&*f.store, spec("r")).await;
    let mut watch = f.store.watch(run.id());
    let run = append(&*f.store, next(&run, 50, 1_500, vec![cancel()])).await;
    within(watch.moved(1)).await;
    within(watch.events(1, 9)).await;
    let run = append(&*f.store, next(&run, 60, 1_600, end())).await;
    within(watch.moved(run.state.head - 1)).await;
    within(watch.events(run.state.head - 1, 9)).await;
    let ended = within(watch.ended()).await;
    assert!(ended.is_none_or(|ended| ended == run));
}

pub(crate) async fn a_run_may_be_watched_before_it_is_there(f: &Fixture) {
    let mut watch = f.store.watch(&run_id("r"));
    let told = async {
        while f.store.get(&run_id("r")).await.expect("gets").is_none() {
            watch.moved(0).await;
        }
    };
    within(async { tokio::join!(told, create(&*f.store, spec("r"))) }).await;
}

/// The run as it ended, once it has.
async fn ended(f: &Fixture, watch: &mut dyn RunWatch, id: &str) -> Run {
    loop {
        let run = f.store.get(&run_id(id)).await.expect("gets").expect("it is there");
        if run.status().is_terminal() {
            return run;
        }
        // It may be told to look for itself.
        if let Some(run) = watch.ended().await {
            return run;
        }
    }
}

pub(crate) async fn whoever_waits_for_an_end_gets_the_run_as_it_ended(f: &Fixture) {
    let run = create(&*f.store, spec("r")).await;
    let mut watch = f.store.watch(run.id());
    let ended = async {
        loop {
            if let Some(run) = watch.ended().await {
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

pub(crate) async fn the_end_of_a_run_that_is_known_to_be_open_is_told(f: &Fixture) {
    create(&*f.store, spec("r")).await;
    let run = claim_one(&*f.store, "h").await;
    let mut watch = f.store.watch(run.id());
    let known = watch.known_open();
    assert!(known.is_none_or(|known| known == run.spec));
    let run = append(&*f.store, next(&run, 50, 2_100, end())).await;
    let told = within(watch.ended()).await;
    assert!(told.is_none_or(|told| told == run));
    assert_eq!(f.store.watch(run.id()).known_open(), None);
    // Nobody's, so that whoever answers or cancels it need not be of this process.
    let run = create(&*f.store, spec("s")).await;
    assert_eq!(f.store.watch(run.id()).known_open(), None);
}

pub(crate) async fn an_end_between_the_look_and_the_wait_is_not_missed(f: &Fixture) {
    let run = create(&*f.store, spec("r")).await;
    let mut watch = f.store.watch(run.id());
    let run = append(&*f.store, next(&run, 50, 1_500, canceled())).await;
    let ended = within(watch.ended()).await;
    assert!(ended.is_none_or(|ended| ended == run));
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
    let mut watch = f.store.watch(&run_id("c"));
    let writes = append(&*f.store, next(&parent, 50, 1_500, canceled()));
    let waits = ended(f, &mut *watch, "c");
    let (ended, _) = within(async { tokio::join!(waits, writes) }).await;
    let kept = f.store.get(&run_id("c")).await.expect("gets").expect("it is there");
    assert_eq!(kept.status(), Status::Canceled);
    assert_eq!(ended, kept);
}

pub(crate) async fn whoever_waits_for_a_run_is_given_no_other_one_with_its_id(f: &Fixture) {
    let run = create(&*f.store, spec("r")).await;
    let mut first = f.store.watch(run.id());
    let old = append(&*f.store, next(&run, 50, 1_500, canceled())).await;
    let ended = Removal { scope: None, before: Timestamp(9_000), limit: 9, dry_run: false };
    assert_eq!(f.store.remove(ended).await.expect("removes").runs, 1);
    let mut second = f.store.watch(run.id());
    let run = create(&*f.store, RunSpec { owner_user_id: "other".to_owned(), ..spec("r") }).await;
    // It is another run's end that was there before.
    let waits = async {
        loop {
            if let Some(ended) = second.ended().await {
                return ended;
            }
            let run = f.store.get(&run_id("r")).await.expect("gets").expect("it is there");
            assert_eq!(run.spec.owner_user_id, "other");
        }
    };
    let new = async {
        tokio::task::yield_now().await;
        append(&*f.store, next(&run, 60, 1_600, canceled())).await
    };
    let (ended, new) = within(async { tokio::join!(waits, new) }).await;
    assert_eq!(ended, new);
    assert_ne!(ended, old);
    assert_ne!(within(first.ended()).await, Some(new));
}
