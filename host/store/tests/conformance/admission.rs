//! Admission of runs.

use super::*;

async fn answer(f: &Fixture, new: NewRun) -> CreateOutcome {
    f.store.create(new).await.expect("answers")
}

fn bounded(mut new: NewRun, admission: Admission) -> NewRun {
    new.admission = admission;
    new
}

fn since(mut new: NewRun, at: u64) -> NewRun {
    if let Some(idempotency) = &mut new.idempotency {
        idempotency.completed_since = Some(Timestamp(at));
    }
    new
}

fn is_new(created: CreateOutcome) {
    assert!(matches!(created, CreateOutcome::New), "{created:?}");
}

fn repeats(created: CreateOutcome, id: &str) {
    assert!(
        matches!(&created, CreateOutcome::Repeated(run) if run.id().as_str() == id),
        "{created:?}"
    );
}

fn is_full(created: CreateOutcome, bound: AdmissionBound) {
    assert!(matches!(created, CreateOutcome::Full(full) if full == bound), "{created:?}");
}

/// Takes a run that waits to begin and ends it.
async fn run_to(f: &Fixture, id: &str, at: u64, events: Vec<Event>) -> Run {
    let runs = f.store.claim(wish("h", 1, at)).await.expect("claims");
    assert_eq!(ids(&runs), [id]);
    append(&*f.store, next(&runs[0], 50, at, events)).await
}

pub(crate) async fn a_key_for_a_result_counts_from_completion_until_it_is_too_old(f: &Fixture) {
    let new = |id: &str| keyed(new_run(spec(id)), "k", "same");
    is_new(answer(f, new("r-1")).await);
    // It has not ended: the key goes on to the next.
    is_new(answer(f, since(new("r-2"), 0)).await);
    repeats(answer(f, new("r-3")).await, "r-2");
    run_to(f, "r-1", 4_000, end()).await;
    run_to(f, "r-2", 5_000, end()).await;
    repeats(answer(f, since(new("r-3"), 5_000)).await, "r-2");
    let other = since(keyed(new_run(spec("r-3")), "k", "other"), 5_000);
    let created = answer(f, other.clone()).await;
    assert!(matches!(&created, CreateOutcome::Taken(id) if id.as_str() == "r-2"), "{created:?}");
    is_new(answer(f, since(other, 5_001)).await);
    let again = answer(f, keyed(new_run(spec("r-4")), "k", "other")).await;
    repeats(again, "r-3");
    // One that failed has no result.
    let failed = Event::Finalizing { ending: Ending::failed(StopReason::AgentError, "no") };
    let finished = Event::Finished { metadata: BTreeMap::new(), finalizer_error: None };
    run_to(f, "r-3", 6_000, vec![failed, finished]).await;
    is_new(answer(f, since(new("r-4"), 0)).await);
}

pub(crate) async fn a_completed_task_is_used_again_however_it_was_asked_for(f: &Fixture) {
    let task = |spec, since: Option<u64>| {
        let digest = "the same".to_owned();
        let task = Some(TaskKey { digest, completed_since: since.map(Timestamp) });
        NewRun { task, ..new_run(spec) }
    };
    is_new(answer(f, task(spec("done"), None)).await);
    run_to(f, "done", 3_000, end()).await;
    is_new(answer(f, task(spec("open"), None)).await);
    repeats(answer(f, task(spec("x"), Some(3_000))).await, "done");
    is_new(answer(f, task(spec("late"), Some(3_001))).await);
    run_to(f, "open", 4_000, end()).await;
    repeats(answer(f, task(spec("x"), Some(0))).await, "open");
    let run = f.store.get(&run_id("late")).await.expect("gets").expect("it is there");
    append(&*f.store, next(&run, 50, 5_000, vec![cancel()])).await;
    repeats(answer(f, task(spec("x"), Some(0))).await, "open");
    // Neither another owner's, nor what only has its number, nor what is gone.
    let theirs = RunSpec { owner_user_id: "bob".to_owned(), ..spec("b") };
    is_new(answer(f, task(theirs, Some(0))).await);
    let other = RunSpec { task: "something else".to_owned(), ..spec("o") };
    is_new(answer(f, task(other, Some(0))).await);
    f.store.remove(all_before(3_001)).await.expect("removes");
    repeats(answer(f, task(spec("x"), Some(0))).await, "open");
    f.store.remove(all_before(4_001)).await.expect("removes");
    is_new(answer(f, task(spec("x"), Some(0))).await);
}

pub(crate) async fn a_refused_run_gets_no_key(f: &Fixture) {
    is_new(answer(f, keyed(new_run(spec("r-1")), "k", "same")).await);
    let none = Admission { queue_max: 0, ..Admission::UNBOUNDED };
    let refused = bounded(since(keyed(new_run(spec("r-2")), "k", "same"), 0), none.clone());
    is_full(answer(f, refused).await, AdmissionBound::Queue);
    repeats(answer(f, keyed(new_run(spec("r-3")), "k", "same")).await, "r-1");
    let refused = bounded(keyed(new_run(spec("r-2")), "free", "same"), none);
    is_full(answer(f, refused).await, AdmissionBound::Queue);
    assert_eq!(f.store.get(&run_id("r-2")).await.expect("gets"), None);
    is_new(answer(f, keyed(new_run(spec("r-3")), "free", "other")).await);
}

pub(crate) async fn an_ended_session_takes_no_run(f: &Fixture) {
    is_new(answer(f, keyed(new_run(spec("before")), "k", "same")).await);
    f.store.end_session(&session_key(), Timestamp(1_500)).await.expect("ends");
    let created = answer(f, new_run(spec("after"))).await;
    assert!(matches!(created, CreateOutcome::SessionEnded), "{created:?}");
    assert_eq!(f.store.get(&run_id("after")).await.expect("gets"), None);
    let other = RunSpec { parent_session_id: "s-2".to_owned(), ..spec("other") };
    is_new(answer(f, new_run(other)).await);
    let foreign = RunSpec { tenant: "zeta".to_owned(), ..spec("foreign") };
    is_new(answer(f, new_run(foreign)).await);
    // The answer to a request from before the end is still told.
    repeats(answer(f, keyed(new_run(spec("again")), "k", "same")).await, "before");
    let taken = answer(f, new_run(spec("before"))).await;
    assert!(matches!(taken, CreateOutcome::Taken(_)), "{taken:?}");
}

pub(crate) async fn a_run_is_started_only_by_one_that_goes_on(f: &Fixture) {
    let refused = |created: CreateOutcome| {
        assert!(matches!(created, CreateOutcome::ParentEnded), "{created:?}");
    };
    refused(answer(f, new_run(child("orphan", &spec("nobody")))).await);
    for id in ["blocked", "canceling", "finalizing", "ended", "running", "queued"] {
        create(&*f.store, spec(id)).await;
    }
    let ending = Event::Finalizing { ending: Ending::completed(StopReason::FinalResponse) };
    run_to(f, "blocked", 2_000, vec![blocked(Wait::Word)]).await;
    run_to(f, "canceling", 2_000, vec![cancel()]).await;
    run_to(f, "finalizing", 2_000, vec![ending]).await;
    run_to(f, "ended", 2_000, end()).await;
    run_to(f, "running", 2_000, vec![note("n")]).await;
    for id in ["canceling", "finalizing", "ended"] {
        refused(answer(f, new_run(child("child", &spec(id)))).await);
        assert_eq!(f.store.get(&run_id("child")).await.expect("gets"), None);
    }
    for id in ["blocked", "running", "queued"] {
        is_new(answer(f, new_run(child(&format!("under-{id}"), &spec(id)))).await);
    }
}

pub(crate) async fn the_queue_of_a_tenant_is_bounded(f: &Fixture) {
    let two = |spec| bounded(new_run(spec), Admission { queue_max: 2, ..Admission::UNBOUNDED });
    let foreign = |id| RunSpec { tenant: "zeta".to_owned(), ..spec(id) };
    for id in ["a", "b"] {
        is_new(answer(f, two(RunSpec { serial: true, ..spec(id) })).await);
    }
    is_full(answer(f, two(spec("c"))).await, AdmissionBound::Queue);
    is_new(answer(f, two(foreign("theirs"))).await);
    let other = RunSpec { pin: "other".to_owned(), ..spec("elsewhere") };
    is_full(answer(f, two(other)).await, AdmissionBound::Queue);
    // A run that began counts no more, also where it is wanted again.
    let run = claim_one(&*f.store, "h").await;
    let lost = machine::decide::release(&run, 0, Timestamp(0));
    append(&*f.store, next(&run, 50, 3_000, lost)).await;
    is_new(answer(f, two(spec("c"))).await);
    is_full(answer(f, two(spec("d"))).await, AdmissionBound::Queue);
}

pub(crate) async fn a_tree_is_bounded_with_those_that_ended(f: &Fixture) {
    let three = |spec| bounded(new_run(spec), Admission { tree_max: 3, ..Admission::UNBOUNDED });
    let none = |spec| bounded(new_run(spec), Admission { tree_max: 0, ..Admission::UNBOUNDED });
    is_new(answer(f, none(spec("root"))).await);
    let under = child("a", &spec("root"));
    is_new(answer(f, three(under.clone())).await);
    is_new(answer(f, three(child("b", &under))).await);
    is_full(answer(f, three(child("c", &spec("root")))).await, AdmissionBound::Tree);
    let runs = f.store.claim(wish("h", 3, 2_000)).await.expect("claims");
    append(&*f.store, next(&runs[2], 50, 3_000, end())).await;
    is_full(answer(f, three(child("c", &spec("root")))).await, AdmissionBound::Tree);
    is_new(answer(f, three(spec("other"))).await);
}

pub(crate) async fn a_run_that_may_not_wait_is_kept_only_if_nothing_is_before_it(f: &Fixture) {
    let at_once = Admission { at_once: Some(1), ..Admission::UNBOUNDED };
    let now = |spec| bounded(new_run(spec), at_once.clone());
    let high = |id| RunSpec { priority: 5, ..spec(id) };
    is_new(answer(f, now(spec("a"))).await);
    is_full(answer(f, now(spec("b"))).await, AdmissionBound::Slots);
    is_new(answer(f, now(high("b"))).await);
    is_full(answer(f, now(high("c"))).await, AdmissionBound::Slots);
    let other = RunSpec { pin: "other".to_owned(), ..spec("c") };
    is_new(answer(f, now(other)).await);
    // Those that resume come first, whatever their priority, once it is their time.
    let runs = f.store.claim(wish("h", 9, 2_000)).await.expect("claims");
    let pause = Event::Lost {
        host: host_id("h"),
        epoch: 2,
        not_before: Timestamp(5_000),
        crashed: true,
        ran_ms: 0,
    };
    let run = append(&*f.store, next(&runs[1], 50, 3_000, vec![pause])).await;
    is_new(answer(f, now(RunSpec { created_at: Timestamp(4_999), ..high("d") })).await);
    f.store.claim(wish("h", 1, 4_999)).await.expect("claims");
    is_full(
        answer(f, now(RunSpec { created_at: Timestamp(5_000), ..high("e") })).await,
        AdmissionBound::Slots,
    );
    assert_eq!(f.store.claim(wish("h", 9, 5_000)).await.expect("claims")[0].id(), run.id());
    is_new(answer(f, now(spec("e"))).await);
}

pub(crate) async fn a_run_that_may_not_wait_needs_a_slot_of_its_tree(f: &Fixture) {
    let now = |spec, slots| {
        let at_once = Some(slots);
        bounded(new_run(spec), Admission { at_once, ..Admission::UNBOUNDED })
    };
    create(&*f.store, spec("root")).await;
    claim_one(&*f.store, "h").await;
    is_full(answer(f, now(child("a", &spec("root")), 1)).await, AdmissionBound::Slots);
    is_new(answer(f, now(child("a", &spec("root")), 2)).await);
    // A run that lacks a slot is not before others.
    is_new(answer(f, now(spec("other"), 1)).await);
    is_full(answer(f, now(spec("another"), 2)).await, AdmissionBound::Slots);
    let serial = |id| RunSpec { serial: true, priority: 9, ..spec(id) };
    is_new(answer(f, now(serial("first"), 1)).await);
    f.store.claim(wish("h", 9, 2_000)).await.expect("claims");
    is_full(answer(f, now(serial("second"), 1)).await, AdmissionBound::Slots);
}

pub(crate) async fn a_run_that_may_not_wait_needs_a_slot_of_a_living_host(f: &Fixture) {
    let now = |id| {
        let at_once = Some(9);
        bounded(new_run(spec(id)), Admission { at_once, ..Admission::UNBOUNDED })
    };
    // A host that comes will have one.
    is_new(answer(f, now("a")).await);
    let host = |id, slots| Host { slots, ..host_of(&host_id(id), PIN) };
    f.store.register(host("h-1", 1)).await.expect("registers");
    f.store
        .register(Host { slots: 9, ..host_of(&host_id("h-2"), "other") })
        .await
        .expect("registers");
    claim_one(&*f.store, "h-1").await;
    is_full(answer(f, now("b")).await, AdmissionBound::Slots);
    f.store.register(host("h-3", 1)).await.expect("registers");
    is_new(answer(f, now("b")).await);
    let run = claim_one(&*f.store, "h-3").await;
    is_full(answer(f, now("c")).await, AdmissionBound::Slots);
    append(&*f.store, next(&run, 50, 3_000, vec![blocked(Wait::Word)])).await;
    is_new(answer(f, now("c")).await);
}

pub(crate) async fn the_first_obstacle_is_told(f: &Fixture) {
    let none = Admission { queue_max: 0, tree_max: 0, at_once: Some(0) };
    let refused = |spec| bounded(keyed(new_run(spec), "k", "same"), none.clone());
    is_new(answer(f, keyed(new_run(spec("r")), "k", "same")).await);
    repeats(answer(f, refused(spec("r"))).await, "r");
    let free = |spec| bounded(new_run(spec), none.clone());
    let created = answer(f, free(spec("r"))).await;
    assert!(matches!(created, CreateOutcome::Taken(_)), "{created:?}");
    let under = child("a", &spec("nobody"));
    let ended = SessionKey { id: "s-2".to_owned(), ..session_key() };
    f.store.end_session(&ended, Timestamp(1)).await.expect("ends");
    let elsewhere = RunSpec { parent_session_id: "s-2".to_owned(), ..under.clone() };
    let created = answer(f, free(elsewhere)).await;
    assert!(matches!(created, CreateOutcome::SessionEnded), "{created:?}");
    let created = answer(f, free(under)).await;
    assert!(matches!(created, CreateOutcome::ParentEnded), "{created:?}");
    let under = child("a", &spec("r"));
    is_full(answer(f, free(under.clone())).await, AdmissionBound::Queue);
    let queue_max = u64::MAX;
    let tree = Admission { queue_max, ..none.clone() };
    is_full(answer(f, bounded(new_run(under.clone()), tree)).await, AdmissionBound::Tree);
    let slots = Admission { at_once: Some(0), ..Admission::UNBOUNDED };
    is_full(answer(f, bounded(new_run(under), slots)).await, AdmissionBound::Slots);
}

/// Runs beneath a root, each with a key of its own.
fn siblings(root: &Run, ids: &[&str]) -> Vec<NewRun> {
    let new = |id: &&str| keyed(new_run(child(id, &root.spec)), &format!("k-{id}"), "same");
    ids.iter().map(new).collect()
}

async fn all(f: &Fixture, news: Vec<NewRun>) -> Vec<CreateOutcome> {
    f.store.create_all(news).await.expect("answers")
}

pub(crate) async fn runs_that_are_kept_together_are_kept_all_or_none(f: &Fixture) {
    let root = create(&*f.store, spec("root")).await;
    let tree = |tree_max| Admission { tree_max, ..Admission::UNBOUNDED };
    let bounded_all = |ids: &[&str], admission: Admission| {
        siblings(&root, ids).into_iter().map(|new| bounded(new, admission.clone())).collect()
    };
    // Each alone would find room.
    let mut created = all(f, bounded_all(&["a", "b", "c"], tree(3))).await;
    is_full(created.pop().expect("the last"), AdmissionBound::Tree);
    assert_eq!(created.len(), 2, "{created:?}");
    let queue = Admission { queue_max: 3, ..Admission::UNBOUNDED };
    let mut created = all(f, bounded_all(&["a", "b", "c"], queue)).await;
    is_full(created.pop().expect("the last"), AdmissionBound::Queue);
    let named = |id: &str| {
        let spec = RunSpec { name: Some("n".to_owned()), ..child(id, &root.spec) };
        keyed(new_run(spec), id, "same")
    };
    let created = all(f, vec![named("a"), named("b")]).await;
    assert!(
        matches!(created.last(), Some(CreateOutcome::NameTaken(id)) if id.as_str() == "a"),
        "{created:?}"
    );
    for id in ["a", "b", "c"] {
        let id = run_id(id);
        assert_eq!(f.store.get(&id).await.expect("answers"), None, "nothing is kept");
    }
    all(f, bounded_all(&["a", "b"], tree(3))).await.into_iter().for_each(is_new);
    // Made again it finds them, and keeps only what is not there.
    let again = all(f, bounded_all(&["a", "b"], tree(3))).await;
    for (created, id) in again.into_iter().zip(["a", "b"]) {
        repeats(created, id);
    }
    let mut created = all(f, siblings(&root, &["b", "c"])).await;
    is_new(created.pop().expect("the last"));
    repeats(created.pop().expect("the first"), "b");
    let claimed = f.store.claim(wish("h", 9, 2_000)).await.expect("claims");
    let mut claimed = ids(&claimed);
    claimed.sort_unstable();
    assert_eq!(claimed, ["a", "b", "c", "root"]);
}
