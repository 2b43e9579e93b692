//! Hosts that die at chosen writes, one after the other, and runs that are canceled meanwhile.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::StreamExt;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::message::Labels;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};

use super::common::{Gates, Handle, check_journal, named, task_tools};
use crate::native::{ClosurePlanner, Native, Op, PAUSE_OVER, Side, World, answer, call_of};

/// Scenarios that are under way at the same time; each has hosts of its own.
pub(crate) const AT_ONCE: usize = 8;
/// No scenario has so many writes of one kind.
pub(crate) const WRITES_MAX: u64 = 200;

/// Where a host dies.
pub(crate) type Point = (Op, u64, Side);

/// A host that takes up what others left, for as long as it lives.
async fn live(world: &World, host: &Native) {
    host.controller.sweep().await.expect("the store can be swept");
    world.clock.advance(PAUSE_OVER);
    host.begin().await;
    std::future::pending().await
}

/// One host after the other, each of which dies at its point, until the world outside has what it
/// wanted; gives that, and how many died.
pub(crate) async fn survive<T>(
    world: &mut World,
    points: &[Point],
    handle: &Handle,
    outside: impl Future<Output = T>,
) -> (T, u32) {
    let mut outside = std::pin::pin!(outside);
    let (mut points, mut deaths) = (points.iter(), 0);
    loop {
        if let Some(&(op, nth, side)) = points.next() {
            world.store.cut(op, nth, side);
        }
        let host = world.controller();
        handle.set(&host);
        let done = tokio::select! {
            biased;
            done = &mut outside => Some(done),
            () = world.store.is_cut() => None,
            () = live(world, &host) => None,
        };
        if let Some(done) = done {
            return (done, deaths);
        }
        world.kill(host).await;
        world.part_stores();
        deaths += 1;
    }
}

/// A run that starts another one, both of which then wait for ever, and how often its finalizer
/// was asked.
fn waiting() -> (World, Handle, Arc<Gates>, Arc<AtomicU32>) {
    let (mut world, gates) = (World::new(), Gates::new());
    let handle = task_tools(&mut world);
    world.agent("child", gates.planner());
    let (inside, asked) = (Arc::clone(&gates), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&asked);
    let parent = ClosurePlanner::new(move |input, _| {
        let gates = Arc::clone(&inside);
        async move {
            if input.resume.is_none() {
                return call_of(&[("c", "spawn/f", "\"child kid\"")]);
            }
            let _inside = gates.pass("1").await;
            answer("never")
        }
    })
    .finalizer(move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(Ok(Labels::from([("finalizer".to_owned(), "heard".to_owned())]))) }
    });
    world.agent("parent", parent);
    (world, handle, gates, asked)
}

/// Plays a scenario with a host that dies at its first, second, third ... write of a kind, until there
/// are no more. `play` checks what came of it, and says how many hosts died. Fewer than `least` deaths
/// mean that the scenario tests nothing.
pub(crate) async fn die_at_each<F: Future<Output = u32>>(
    op: Op,
    side: Side,
    least: u64,
    play: impl Fn(Point) -> F,
) {
    let plays = (1..WRITES_MAX).map(|nth| play((op, nth, side)));
    let mut plays = futures::stream::iter(plays).buffered(AT_ONCE);
    let mut died = 0;
    loop {
        match plays.next().await {
            Some(0) => break,
            Some(1) => died += 1,
            Some(more) => panic!("{more} hosts died at one {op:?}"),
            None => panic!("no end of {op:?} {side:?}"),
        }
    }
    assert!(died >= least, "only {died} hosts died at {op:?} {side:?}: nothing was tested");
}

/// The same before and after every write of these kinds.
pub(crate) async fn at_every<F: Future<Output = u32>, const N: usize>(
    ops: [Op; N],
    play: impl Fn(Point) -> F,
) {
    for op in ops {
        die_at_each(op, Side::Before, 1, &play).await;
        die_at_each(op, Side::After, 1, &play).await;
    }
}

/// The same before and after every append and claim.
pub(crate) async fn at_every_write<F: Future<Output = u32>>(play: impl Fn(Point) -> F) {
    at_every([Op::Append, Op::Claim], play).await;
}

/// Spawns the run, cancels it when both wait, and gives both as they ended.
async fn cancel(door: &Native, gates: &Gates) -> [RunView; 2] {
    door.spawn(&named("1", "parent")).await;
    let mut came = gates.have_come(2).await;
    while !(came.contains(&"1".to_owned()) && came.contains(&"kid".to_owned())) {
        came = gates.have_come(came.len() + 1).await;
    }
    door.client().cancel("1", None).await.expect("can be canceled");
    [RunView::from(&door.end("1").await), RunView::from(&door.end("kid").await)]
}

/// Nothing begins after a cancellation is on record.
fn check_canceled(journal: &[EventRecord]) {
    check_journal(journal);
    let canceled = |recorded: &&EventRecord| recorded.event.kind() == "cancel_requested";
    assert_eq!(journal.iter().filter(canceled).count(), 1);
    let after = journal.iter().skip_while(|recorded| !canceled(recorded));
    for recorded in after {
        let begins = matches!(
            recorded.event,
            Event::ToolCallScheduled { .. }
                | Event::ToolCallRepeated { .. }
                | Event::PlanDecided { .. }
                | Event::Asked { .. }
        );
        assert!(!begins, "{recorded:?}");
    }
}

async fn play_cancel(point: Point) -> u32 {
    let (mut world, handle, gates, asked) = waiting();
    let door = world.door().await;
    let outside = cancel(&door, &gates);
    let (ends, deaths) = survive(&mut world, &[point], &handle, outside).await;
    for (end, by) in ends.iter().zip([StopReason::CanceledByOwner, StopReason::CanceledByParent]) {
        let found = (end.status, end.stop_reason);
        assert_eq!(found, (Status::Canceled, Some(by)), "{point:?}");
    }
    check_canceled(&door.journal("1").await);
    check_canceled(&door.journal("kid").await);
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked <= 1, "{point:?}");
    assert!(deaths > 0 || (asked == 1 && ends[0].metadata.contains_key("finalizer")));
    deaths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_canceled_tree_ends_whenever_its_host_dies() {
    for side in [Side::Before, Side::After] {
        die_at_each(Op::Append, side, 2, play_cancel).await;
        die_at_each(Op::Claim, side, 2, play_cancel).await;
    }
}
