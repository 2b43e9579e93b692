//! Dispatches of runs to subscribers outside.

use taskrun_journal::dispatch::{
    AttemptOutcome, CLOCK_LEEWAY, Dispatch, DispatchState, PAUSES, Subscription, TaskEvent,
};
use taskrun_journal::store::{DispatchClaim, DispatchQuery, ReportChange, Stay};

use super::*;

const ONE: &str = "webhook/one";
const TWO: &str = "command/two";

fn told(id: &str, subscriptions: &[(&str, &[TaskEvent])]) -> RunSpec {
    let one = |(subscriber, events): &(&str, &[TaskEvent])| Subscription {
        subscriber: (*subscriber).to_owned(),
        events: events.to_vec(),
        without_text: false,
    };
    RunSpec { subscriptions: subscriptions.iter().map(one).collect(), ..spec(id) }
}

/// A run of which one subscriber is told all.
fn all(id: &str) -> RunSpec {
    told(id, &[(ONE, &TaskEvent::ALL)])
}

fn names(subscribers: &[&str]) -> BTreeSet<String> {
    subscribers.iter().map(|name| (*name).to_owned()).collect()
}

async fn next_due(f: &Fixture, subscribers: &[&str]) -> Option<u64> {
    next_due_at(f, subscribers, 2_000).await
}

async fn next_due_at(f: &Fixture, subscribers: &[&str], now: u64) -> Option<u64> {
    let next = f.store.next_dispatch(&names(subscribers), Timestamp(now)).await.expect("answers");
    next.map(|at| at.0)
}

fn claim(host: &str, now: u64) -> DispatchClaim {
    DispatchClaim {
        host: host_id(host),
        subscriber: ONE.to_owned(),
        now: Timestamp(now),
        until: Timestamp(now + 90_000),
        limit: 9,
    }
}

async fn take(f: &Fixture, claim: DispatchClaim) -> Vec<Dispatch> {
    f.store.take_dispatches(claim).await.expect("answers")
}

async fn settle(f: &Fixture, number: u64, host: &str, outcome: AttemptOutcome) -> bool {
    f.store.settle_dispatch(number, &host_id(host), outcome).await.expect("answers")
}

async fn of_run(f: &Fixture, id: &str) -> Vec<Dispatch> {
    f.store.dispatches(&DispatchQuery::Run(run_id(id)), 0, 99).await.expect("answers")
}

fn failed_until(next: Option<u64>) -> AttemptOutcome {
    AttemptOutcome::Failed { error: "no answer".to_owned(), next: next.map(Timestamp) }
}

async fn registered(f: &Fixture, host: &str) {
    f.store.register(host_of(&host_id(host), PIN)).await.expect("registers");
}

pub(crate) async fn acceptance_and_end_of_a_run_make_its_dispatches(f: &Fixture) {
    create(&*f.store, spec("nobody-told")).await;
    let only_end = (TWO, &TaskEvent::ALL[1..]);
    create(&*f.store, RunSpec { priority: 9, ..told("r", &[(ONE, &TaskEvent::ALL), only_end]) })
        .await;
    let made = of_run(f, "r").await;
    assert_eq!(made.len(), 1, "{made:?}");
    assert_eq!(made[0].key.to_string(), "r/on_task_delegated/webhook/one");
    assert_eq!((made[0].state, made[0].due), (DispatchState::Pending, Timestamp(1_000)));
    assert_eq!((made[0].attempts, &made[0].taken_by, &made[0].error), (0, &None, &None));
    assert_eq!(next_due(f, &[ONE]).await, Some(1_000));
    assert_eq!(next_due(f, &[TWO]).await, None);
    let run = claim_one(&*f.store, "h").await;
    append(&*f.store, next(&run, 60, 3_000, end())).await;
    let made = of_run(f, "r").await;
    let keys: Vec<_> = made.iter().map(|one| one.key.to_string()).collect();
    let end_of = |subscriber| format!("r/on_task_completed/{subscriber}");
    let expected = ["r/on_task_delegated/webhook/one".to_owned(), end_of(ONE), end_of(TWO)];
    assert_eq!(keys, expected);
    assert_eq!(next_due(f, &[TWO, "other"]).await, Some(3_000));
    assert!(made.is_sorted_by_key(|one| one.number));
}

pub(crate) async fn every_end_is_dispatched_once(f: &Fixture) {
    create(&*f.store, all("queued")).await;
    let queued = f.store.get(&run_id("queued")).await.expect("gets").expect("there");
    let by = StopReason::CanceledByOwner;
    append(&*f.store, next(&queued, 60, 3_000, machine::decide::cancel(&queued, by, None))).await;
    create(&*f.store, RunSpec { priority: 9, ..all("parent") }).await;
    let parent = claim_one(&*f.store, "h").await;
    create(
        &*f.store,
        RunSpec {
            attached: true,
            subscriptions: all("x").subscriptions,
            ..child("attached", &parent.spec)
        },
    )
    .await;
    append(&*f.store, next(&parent, 70, 3_000, failed())).await;
    for id in ["queued", "parent", "attached"] {
        let ends = of_run(f, id).await;
        let ends = ends.iter().filter(|one| one.key.event == TaskEvent::Completed).count();
        assert_eq!(ends, 1, "{id}");
    }
}

pub(crate) async fn a_dispatch_is_given_to_one_host(f: &Fixture) {
    registered(f, "a").await;
    registered(f, "b").await;
    for id in ["r", "s"] {
        create(&*f.store, all(id)).await;
    }
    assert!(take(f, claim("a", 999)).await.is_empty(), "it is not due");
    let first = take(f, DispatchClaim { limit: 1, ..claim("a", 2_000) }).await;
    assert_eq!(first.len(), 1);
    assert_eq!((first[0].state, &first[0].taken_by), (DispatchState::Taken, &Some(host_id("a"))));
    assert_eq!(first[0].key.run, run_id("r"));
    let second = take(f, claim("b", 2_000)).await;
    assert_eq!(second.len(), 1, "{second:?}");
    assert_eq!(second[0].key.run, run_id("s"));
    assert!(take(f, claim("b", 91_999)).await.is_empty());
    assert_eq!(next_due(f, &[ONE]).await, Some(92_000), "then others may have it");
    assert_eq!(take(f, claim("b", 92_000)).await.len(), 2);
    assert!(!settle(f, first[0].number, "a", failed_until(None)).await, "another host has it");
    assert!(settle(f, first[0].number, "a", AttemptOutcome::Delivered).await, "it has arrived");
    assert!(!settle(f, first[0].number, "b", failed_until(None)).await);
    assert_eq!(of_run(f, "r").await[0].state, DispatchState::Delivered);
    assert!(!settle(f, 999, "a", AttemptOutcome::Delivered).await);
}

pub(crate) async fn what_a_dead_host_took_is_due_at_once(f: &Fixture) {
    f.let_die(&host_id("dead")).await;
    registered(f, "b").await;
    create(&*f.store, all("r")).await;
    assert_eq!(take(f, claim("dead", 2_000)).await.len(), 1);
    // A host that looks after the runs of dead ones takes those out of the list.
    f.store.orphans(10).await.expect("answers");
    assert_eq!(next_due(f, &[ONE]).await, Some(0));
    let again = take(f, claim("b", 2_000)).await;
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].attempts, 0, "the death of a host is no attempt");
}

pub(crate) async fn a_failed_attempt_is_made_again_until_it_is_a_dead_letter(f: &Fixture) {
    registered(f, "h").await;
    create(&*f.store, all("r")).await;
    let one = take(f, claim("h", 2_000)).await.remove(0);
    assert!(settle(f, one.number, "h", failed_until(Some(7_000))).await);
    let known = of_run(f, "r").await.remove(0);
    assert_eq!((known.state, known.attempts), (DispatchState::Pending, 1));
    assert_eq!((known.due, known.error.as_deref()), (Timestamp(7_000), Some("no answer")));
    assert!(take(f, claim("h", 6_999)).await.is_empty());
    assert_eq!(take(f, claim("h", 7_000)).await.len(), 1);
    assert!(settle(f, one.number, "h", AttemptOutcome::Released).await);
    assert_eq!(of_run(f, "r").await[0].attempts, 1);
    assert_eq!(take(f, claim("h", 1)).await.len(), 1, "it is anybody's at once");
    assert!(settle(f, one.number, "h", failed_until(None)).await);
    let dead = of_run(f, "r").await.remove(0);
    assert_eq!((dead.state, dead.attempts), (DispatchState::Dead, 2));
    assert_eq!(next_due(f, &[ONE]).await, None);
    assert!(!f.store.change_dispatch(999, ReportChange::Retry).await.expect("answers"));
    assert!(f.store.change_dispatch(one.number, ReportChange::Retry).await.expect("answers"));
    assert!(!f.store.change_dispatch(one.number, ReportChange::Retry).await.expect("answers"));
    let again = of_run(f, "r").await.remove(0);
    assert_eq!((again.state, again.attempts), (DispatchState::Pending, 0));
    assert_eq!(next_due(f, &[ONE]).await, Some(0));
    assert!(f.store.change_dispatch(one.number, ReportChange::Drop).await.expect("answers"));
    assert!(of_run(f, "r").await.is_empty());
}

pub(crate) async fn a_clock_that_was_set_back_makes_no_pause_longer(f: &Fixture) {
    registered(f, "h").await;
    registered(f, "other").await;
    create(&*f.store, RunSpec { created_at: Timestamp(10_000_000), ..all("r") }).await;
    let leeway = u64::try_from(CLOCK_LEEWAY.as_millis()).expect("a short time");
    // It is due at once, and hosts read the clock one after the other.
    let now = 10_000_000 - leeway;
    assert!(take(f, claim("h", now)).await.is_empty());
    assert_eq!(next_due_at(f, &[ONE], now).await, Some(10_000_000));
    let now = now - 1;
    assert_eq!(next_due_at(f, &[ONE], now).await, Some(0));
    let one = take(f, claim("h", now)).await.remove(0);
    // A pause of five seconds.
    assert!(settle(f, one.number, "h", failed_until(Some(now + 5_000))).await);
    let now = now - leeway;
    assert!(take(f, claim("h", now)).await.is_empty(), "the pause may not be over");
    let now = now - 1;
    assert_eq!(next_due_at(f, &[ONE], now).await, Some(0));
    assert_eq!(take(f, claim("h", now)).await.len(), 1);
    // Whoever has it keeps it for as long as a host may.
    let now = now - leeway - 1;
    assert_eq!(next_due_at(f, &[ONE], now).await, Some(0));
    assert!(take(f, claim("other", now)).await.is_empty());
    assert_eq!(next_due_at(f, &[ONE], now).await, Some(now + 90_000));
    assert_eq!(take(f, claim("other", now + 90_000)).await.len(), 1);
}

pub(crate) async fn a_host_stays_for_dispatches_that_are_due_soon(f: &Fixture) {
    registered(f, "h").await;
    let host = host_id("h");
    let out = async || f.store.retire(&host, Stay::default()).await.expect("answers");
    create(&*f.store, told("r", &[(ONE, &TaskEvent::ALL[1..]), (TWO, &TaskEvent::ALL)])).await;
    let run = claim_one(&*f.store, "other").await;
    append(&*f.store, next(&run, 60, 3_000, end())).await;
    for attempt in 1..=PAUSES.len() {
        assert!(!out().await, "{attempt}");
        let now = attempt as u64 * 10_000;
        let one = take(f, claim("h", now)).await.remove(0);
        assert!(!out().await, "it hands it over");
        assert!(settle(f, one.number, "h", failed_until(Some(now + 5_000))).await);
    }
    assert!(out().await, "the last pause is long, and of another subscriber it knows nothing");
}

pub(crate) async fn a_run_stays_until_its_subscribers_were_told(f: &Fixture) {
    registered(f, "h").await;
    create(&*f.store, all("r")).await;
    let run = claim_one(&*f.store, "h").await;
    append(&*f.store, next(&run, 60, 3_000, end())).await;
    let removed = async || f.store.remove(all_before(9_000)).await.expect("removes");
    assert_eq!((removed().await.runs, removed().await.kept), (0, 1));
    for one in take(f, claim("h", 4_000)).await {
        assert!(settle(f, one.number, "h", AttemptOutcome::Delivered).await);
    }
    assert_eq!(removed().await.runs, 1);
    assert!(of_run(f, "r").await.is_empty());
    create(&*f.store, all("again")).await;
    let numbers: Vec<_> = of_run(f, "again").await.iter().map(|one| one.number).collect();
    assert_eq!(numbers, [3], "no number is used again");
}

pub(crate) async fn what_is_to_be_handed_over_is_forgotten_for_one_session(f: &Fixture) {
    create(&*f.store, all("r")).await;
    create(&*f.store, RunSpec { owner_user_id: "bob".to_owned(), ..all("bobs") }).await;
    let scope = Scope::tenant("acme").owner("ann");
    let seen = async |scope: &Scope| {
        let states = DispatchState::ALL.to_vec();
        let query = DispatchQuery::Scope { scope: scope.clone(), states };
        let all = f.store.dispatches(&query, 0, 99).await.expect("answers");
        all.iter().map(|one| one.key.run.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(seen(&Scope::tenant("acme")).await, ["r", "bobs"]);
    assert_eq!(seen(&scope).await, ["r"]);
    assert_eq!(f.store.forget_dispatches(&scope).await.expect("answers"), 1);
    assert_eq!(seen(&Scope::tenant("acme")).await, ["bobs"]);
    assert_eq!(next_due(f, &[ONE]).await, Some(1_000));
}

pub(crate) async fn whoever_waits_for_dispatches_wakes_when_one_is_made(f: &Fixture) {
    // What was before may wake it once.
    within(f.store.dispatched()).await;
    let (wait, make) = (f.store.dispatched(), create(&*f.store, all("r")));
    within(async { tokio::join!(wait, make) }).await;
    assert_eq!(next_due(f, &[ONE]).await, Some(1_000));
}
