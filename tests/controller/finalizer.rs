//! Finalizers: when one is called, how long it may take, and when it adds nothing (TS-10 to TS-14,
//! M-19).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use taskrun::driver::{FINALIZER_TIMEOUT, FINALIZER_TIMEOUT_CANCELED};
use taskrun::scope::{CallScope, RunsQuestion};
use taskrun_journal::ending::EndStatus;
use taskrun_journal::event::Event;
use taskrun_journal::message::Labels;
use taskrun_journal::run::RunView;
use taskrun_journal::runs::WaitOutcome;
use taskrun_journal::status::{Status, StopReason};

use super::common::{Handle, check_journal, named, spawning};
use super::dying::{Point, die_at_each, survive};
use crate::native::{ClosurePlanner, Gate, Native, Op, Side, World, answer, in_time, request};

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// An agent whose finalizer stays at the gate.
fn blocks_in_finalizer(gate: &Gate) -> ClosurePlanner {
    let gate = gate.clone();
    ClosurePlanner::new(|_, _| async { answer("done") }).finalizer(move |_, _| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok(Ok(labels(&[("branch", "kept")])))
        }
    })
}

async fn finalizer_error(host: &Native, id: &str) -> Option<String> {
    let journal = host.journal(id).await;
    let Some(Event::Finished { finalizer_error, .. }) = journal.last().map(|last| &last.event)
    else {
        panic!("the last event of an ended run is its end: {journal:?}")
    };
    finalizer_error.clone()
}

#[tokio::test]
async fn ts_10_a_cancellation_during_the_finalizer_changes_nothing() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("a", blocks_in_finalizer(&gate));
    let host = world.start().await;
    let mut asked = request("a", "x");
    asked.metadata = labels(&[("ticket", "7")]);
    let id = host.spawn(&asked).await;
    gate.reached_by(1).await;
    assert_eq!(host.get(&id).await.status(), Status::Finalizing);
    let client = host.client();
    let wait = client.wait(&id, None);
    tokio::pin!(wait);
    assert!(futures::poll!(&mut wait).is_pending());

    let canceled = host.client().cancel(&id, None).await.expect("there");
    assert!(!canceled.changed);
    assert_eq!(canceled.run.status(), Status::Finalizing);
    assert!(futures::poll!(&mut wait).is_pending());

    gate.open();
    assert_eq!(in_time(wait).await.expect("there").run.status(), Status::Completed);
    let view = host.view(&id).await;
    assert_eq!(view.metadata, labels(&[("branch", "kept"), ("ticket", "7")]));
    assert_eq!(view.result.as_deref(), Some("done"));
    assert_eq!(finalizer_error(&host, &id).await, None);
}

#[tokio::test]
async fn what_comes_for_a_run_in_its_finalizer_is_refused_and_leaves_nothing() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("a", blocks_in_finalizer(&gate));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    let run = host.get(&id).await;
    assert_eq!(run.status(), Status::Finalizing);
    let client = host.client();
    for refused in [client.inject(&id, "one more").await, client.wake(&id, "").await] {
        let refused = refused.expect_err("it hears nothing any more");
        assert_eq!(refused.code(), "run-ended", "{refused}");
        assert!(refused.to_string().contains("or is about to"), "{refused}");
    }
    assert_eq!(host.get(&id).await.state.head, run.state.head);
    gate.open();
    assert_eq!(host.end(&id).await.status(), Status::Completed);
}

#[tokio::test]
async fn ts_11_closing_stops_a_finalizer_and_the_run_ends_as_it_would_have() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("a", blocks_in_finalizer(&gate));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    let closed = host.controller.close(Duration::from_secs(10)).await;
    assert_eq!(closed.stragglers, []);
    let view = host.view(&id).await;
    assert_eq!(view.status, Status::Completed);
    assert_eq!(view.metadata, Labels::new());
    let error = finalizer_error(&host, &id).await;
    assert_eq!(error.as_deref(), Some("stopped: the host is shutting down"));
}

#[tokio::test]
async fn ts_13_a_finalizer_that_panics_adds_nothing() {
    let mut world = World::new();
    world.agent(
        "a",
        ClosurePlanner::new(|_, _| async { answer("done") })
            .finalizer(|_, _| async { panic!("a finalizer of a test") }),
    );
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    let run = host.end(&id).await;
    assert_eq!(run.status(), Status::Completed);
    assert_eq!(host.view(&id).await.metadata, Labels::new());
    let error = finalizer_error(&host, &id).await;
    assert_eq!(error.as_deref(), Some("internal error of the host"), "and not that it died");
    let again = host.spawn(&request("a", "y")).await;
    assert_eq!(host.end(&again).await.status(), Status::Completed, "the host goes on");
}

/// The end of a run whose finalizer never does, `limit` after that began and not before; the agent
/// has this `step`.
async fn hangs(step: Duration, cancel: bool, limit: Duration) -> (Status, Option<String>) {
    let (mut world, working, finalizing) = (World::new(), Gate::new(), Gate::new());
    let (own, last) = (working.clone(), finalizing.clone());
    let planner = ClosurePlanner::new(move |_, _| {
        let gate = own.clone();
        async move {
            if cancel {
                gate.pass().await;
            }
            answer("done")
        }
    })
    .finalizer(move |_, _| {
        let gate = last.clone();
        async move {
            gate.pass().await;
            Ok(Ok(Labels::new()))
        }
    });
    world.agent_with("a", planner, |agent| agent.limits.step = step);
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    if cancel {
        working.reached_by(1).await;
        host.client().cancel(&id, None).await.expect("there");
    }
    finalizing.reached_by(1).await;
    in_time(world.clock.wait_for_sleepers(1)).await;
    world.clock.advance(limit - Duration::from_millis(1));
    tokio::task::yield_now().await;
    assert_eq!(host.get(&id).await.status(), Status::Finalizing);
    world.clock.advance(Duration::from_millis(1));
    let status = host.end(&id).await.status();
    (status, finalizer_error(&host, &id).await)
}

#[tokio::test]
async fn m_19_a_finalizer_has_the_time_of_a_plan_step_and_after_a_cancellation_a_short_one() {
    let (three, hour) = (Duration::from_secs(3), Duration::from_secs(3_600));
    let cases = [
        (three, false, Status::Completed, 3),
        (three, true, Status::Canceled, 3),
        (hour, false, Status::Completed, 60),
        (hour, true, Status::Canceled, 5),
    ];
    for (step, cancel, status, seconds) in cases {
        let ended = hangs(step, cancel, Duration::from_secs(seconds)).await;
        let said = format!("stopped: deadline of {} ms exceeded", seconds * 1_000);
        assert_eq!(ended, (status, Some(said)));
    }
}

/// The input of a finalizer: the outcome, and how long it may take.
type Told = Arc<Mutex<Vec<(EndStatus, Duration)>>>;

/// A world with an agent that stays at the gate in its first life, and whose finalizer notes what
/// it is told.
fn interrupted_world(durable: bool) -> (World, Gate, Told) {
    let (mut world, gate, told) = (World::new(), Gate::new(), Told::default());
    let (own, note) = (gate.clone(), Arc::clone(&told));
    let planner = ClosurePlanner::new(move |_, _| {
        let gate = own.clone();
        async move {
            // Whoever comes second is let through.
            if gate.visitors() == 0 {
                gate.pass().await;
            }
            answer("done")
        }
    })
    .finalizer(move |input, scope| {
        let note = Arc::clone(&note);
        async move {
            let mut note = note.lock().expect("nobody panics with it");
            note.push((input.ending.status, scope.deadline()));
            Ok(Ok(labels(&[("cleaned", "yes")])))
        }
    });
    world.agent_with("a", planner, |agent| agent.durable = durable);
    (world, gate, told)
}

#[tokio::test]
async fn ts_14_a_run_that_is_not_durable_fails_when_its_host_dies_and_its_finalizer_is_heard() {
    let (mut world, gate, told) = interrupted_world(false);
    let first = world.start().await;
    let id = first.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    world.kill(first).await;
    let second = world.start().await;
    let run = second.end(&id).await;
    assert_eq!(run.status(), Status::Failed);
    let view = second.view(&id).await;
    assert_eq!(view.stop_reason, Some(StopReason::InterruptedByRestart));
    assert_eq!(view.error.as_deref(), Some("interrupted by previous runtime restart"));
    assert_eq!(view.metadata, labels(&[("cleaned", "yes")]));
    let told = told.lock().expect("nobody panics with it").clone();
    assert_eq!(told, [(EndStatus::Failed, FINALIZER_TIMEOUT)]);
}

#[tokio::test]
async fn ts_14_a_durable_run_goes_on_when_its_host_dies() {
    let (mut world, gate, told) = interrupted_world(true);
    let first = world.start().await;
    let id = first.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    world.kill(first).await;
    let second = world.start().await;
    // The pause after a crash.
    world.clock.advance(Duration::from_secs(1));
    let run = second.end(&id).await;
    assert_eq!(run.status(), Status::Completed, "{:?}", second.kinds(&id).await);
    let told = told.lock().expect("nobody panics with it").clone();
    assert_eq!(told, [(EndStatus::Completed, FINALIZER_TIMEOUT)]);
}

#[tokio::test]
async fn m_19_a_run_that_is_canceled_before_it_begins_is_finalized_and_never_executed() {
    let (mut world, gate, told) = interrupted_world(true);
    world.store.hold(Op::Claim);
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    let canceled = host.client().cancel(&id, None).await.expect("there");
    assert_eq!((canceled.changed, canceled.run.status()), (true, Status::Finalizing));
    world.store.release();
    assert_eq!(host.end(&id).await.status(), Status::Canceled);
    let view = host.view(&id).await;
    assert_eq!((view.started_at, view.summary.as_deref()), (None, Some("canceled")));
    assert_eq!(view.metadata, labels(&[("cleaned", "yes")]));
    let told = told.lock().expect("nobody panics with it").clone();
    assert_eq!(told, [(EndStatus::Canceled, FINALIZER_TIMEOUT_CANCELED)]);
    assert_eq!(gate.visitors(), 0);
    let kinds = host.kinds(&id).await;
    let expected =
        ["queued", "cancel_requested", "finalizing", "resumed", "finalizer_started", "finished"];
    assert_eq!(kinds, expected);
}

/// An agent that starts a run, cancels it before it can begin, and waits for its end.
fn cancels_and_waits() -> (World, Arc<AtomicU32>) {
    let mut world = World::new();
    // The canceller holds the only one.
    world.settings.slots = 1;
    world.settings.tree_slots = 1;
    let heard = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&heard);
    let child = ClosurePlanner::new(|_, _| async { answer("played") }).finalizer(move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(Ok(labels(&[("cleaned", "yes")]))) }
    });
    world.agent("child", child);
    let parent = ClosurePlanner::new(|_, scope: Arc<CallScope>| async move {
        let id = scope.ask(spawning("child", "play")).await.expect("it is started").id;
        scope.ask(RunsQuestion::cancel(id.clone(), None)).await.expect("it is beneath");
        let waited = scope.ask(RunsQuestion::wait(id, None)).await.expect("it is beneath");
        let WaitOutcome { run, timed_out } = waited;
        answer(&format!("{} {timed_out}", run.status))
    });
    world.agent("parent", parent);
    (world, heard)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finalizer_of_a_canceled_run_needs_no_slot() {
    let (mut world, heard) = cancels_and_waits();
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    let run = host.end("1").await;
    assert_eq!(run.state.reply.result().as_deref(), Some("canceled false"));
    assert_eq!(heard.load(Ordering::SeqCst), 1);
    let children = host.client().tree("1").await.expect("there").descendants;
    assert_eq!(RunView::from(&children[0]).metadata, labels(&[("cleaned", "yes")]));
    check_journal(&host.journal(children[0].id().as_str()).await);
}

async fn canceled_and_killed(point: Point) -> u32 {
    let (mut world, heard) = cancels_and_waits();
    let door = world.door().await;
    let outside = async {
        door.spawn(&named("1", "parent")).await;
        door.end("1").await
    };
    let handle = Handle::default();
    let (run, deaths) = survive(&mut world, &[point], &handle, outside).await;
    let said = run.state.reply.result();
    assert_eq!(said.as_deref(), Some("canceled false"), "crash at {point:?}");
    let beneath = door.client().tree("1").await.expect("there").descendants;
    assert_eq!(beneath.len(), 1, "crash at {point:?}");
    check_journal(&door.journal(beneath[0].id().as_str()).await);
    let (heard, view) = (heard.load(Ordering::SeqCst), RunView::from(&beneath[0]));
    assert!(heard <= 1, "heard {heard} times; crash at {point:?}");
    assert!(deaths > 0 || view.metadata == labels(&[("cleaned", "yes")]), "{view:?}");
    deaths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_waits_for_its_finalizer_without_a_slot_ends_whenever_a_host_dies() {
    for side in [Side::Before, Side::After] {
        die_at_each(Op::Append, side, 2, canceled_and_killed).await;
        die_at_each(Op::Claim, side, 2, canceled_and_killed).await;
    }
}
