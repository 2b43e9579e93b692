//! The pool's division between tenants, runs and slots, and its queues.

use std::time::Duration;

use futures::FutureExt;
use taskrun::scope::RunContext;
use taskrun_journal::stop::StopCause;

use super::*;
use crate::apart;

const MIB: u64 = 1 << 20;
/// Longer than anything here is waited for.
const LONG: Duration = Duration::from_secs(3_600);

fn scope_of(tenant: &str) -> Arc<CallScope> {
    let context = RunContext { tenant: tenant.to_owned(), ..RunContext::default() };
    apart::scope(context, LONG)
}

/// The scope of a run that another one started.
fn scope_beneath(tenant: &str) -> Arc<CallScope> {
    let parent_run_id = Some("parent".to_owned());
    let tenant = tenant.to_owned();
    apart::scope(RunContext { tenant, parent_run_id, ..RunContext::default() }, LONG)
}

/// A pool with so many MiB for all calls, and a third of that for those beneath others, beside its
/// one slot.
fn pool(mib: u64) -> GuestMemory {
    GuestMemory::new(FIRST_BYTES + mib * MIB / 3 * 4, 1, Admission::new(1))
}

/// The memory of a call that begins with so many MiB beyond the first bytes, if there is as much
/// now.
fn begun_by(pool: &GuestMemory, scope: &Arc<CallScope>, mib: u64) -> Option<CallMemory> {
    let begun = pool.begin(scope, FIRST_BYTES + mib * MIB).now_or_never();
    begun.and_then(Result::ok)
}

fn begun(pool: &GuestMemory, tenant: &str, mib: u64) -> Option<CallMemory> {
    begun_by(pool, &scope_of(tenant), mib)
}

/// As many calls of a MiB as there is memory for.
fn all_of(pool: &GuestMemory, scope: &Arc<CallScope>) -> Vec<CallMemory> {
    std::iter::from_fn(|| begun_by(pool, scope, 1)).collect()
}

fn taken(pool: &GuestMemory) -> u64 {
    pool.0.held().all.iter().sum::<u64>() / MIB
}

#[test]
fn first_bytes_come_with_each_slot() {
    assert_eq!(instances_within(256 * MIB), 64);
    assert_eq!(instances_within(0), 1);
    let memory = GuestMemory::new(16 * MIB, 4, Admission::new(4));
    assert_eq!((memory.0.parts.shared, memory.0.parts.beneath), (6 * MIB, 2 * MIB));
    // They are in no account, however many calls have them.
    let held: Vec<_> = (0..100).filter_map(|_| begun(&memory, "t", 0)).collect();
    assert_eq!((held.len(), taken(&memory)), (100, 0));
    assert_eq!(memory.0.held().next, 0, "nobody is asked");
}

#[tokio::test]
async fn a_tenant_leaves_the_next_one_a_part_and_all_of_it_comes_back() {
    let pool = pool(63);
    let first = all_of(&pool, &scope_of("first"));
    assert_eq!(first.len(), 47, "three quarters of what is for all");
    let second = all_of(&pool, &scope_of("second"));
    assert_eq!(second.len(), 12, "three quarters of the rest");
    assert_eq!(all_of(&pool, &scope_of("third")).len(), 3);
    assert_eq!(taken(&pool), 59);
    assert!(begun(&pool, "first", 1).is_none());
    drop((first, second));
    assert_eq!(taken(&pool), 0);
    assert!(pool.0.held().by_tenant.is_empty());
}

#[tokio::test]
async fn calls_beneath_others_have_a_part_that_those_above_leave_alone() {
    let pool = pool(63);
    let above = all_of(&pool, &scope_of("t"));
    let other = all_of(&pool, &scope_of("other"));
    let beneath = all_of(&pool, &scope_beneath("t"));
    assert_eq!(beneath.len(), 15, "three quarters of a third of 63");
    assert!(!all_of(&pool, &scope_beneath("other")).is_empty(), "a part is left");
    drop(above);
    // Where there is as much they have their part of what is for all as well.
    assert_eq!(all_of(&pool, &scope_beneath("t")).len(), 38);
    drop((other, beneath));
    assert!(pool.0.held().by_tenant.is_empty());
}

#[tokio::test]
async fn slots_that_nobody_has_lend_their_first_bytes_but_half_of_them() {
    let slots = Admission::new(96);
    let memory = GuestMemory::new(384 * MIB, 96, slots.clone());
    assert_eq!(tenant_most(384 * MIB, 96), 180 * MIB);
    assert_eq!(memory.most_of_instance(), 182 * MIB);
    let all = begun(&memory, "t", 180).expect("what a tenant has at most");
    assert_eq!(slots.free(), 78, "of 96 they lent 18");
    let others = all_of(&memory, &scope_of("other"));
    let third = all_of(&memory, &scope_of("third"));
    assert!(slots.free() >= 48 && others.len() == 45 && third.len() >= 11, "{}", slots.free());
    drop((all, others, third));
    assert_eq!(slots.free(), 96);
    // What is in use lends nothing.
    let mut permits = Vec::new();
    for _ in 0..96 {
        permits.push(slots.enter(&scope_of("t")).await.expect("a slot"));
    }
    assert!(begun(&memory, "t", 109).is_none());
    let plain = begun(&memory, "t", 108);
    assert!(plain.is_some(), "three quarters of 144");
}

#[tokio::test]
async fn a_slot_that_comes_back_is_heard_of_by_who_waits_for_its_first_bytes() {
    let slots = Admission::new(4);
    let memory = GuestMemory::new(8 * MIB + 16 * MIB, 4, slots.clone());
    let scope = scope_of("t");
    let mut in_use = Vec::new();
    for _ in 0..4 {
        in_use.push((slots.enter(&scope).await.expect("a slot"), begun(&memory, "t", 0)));
    }
    let mut waits = Box::pin(memory.begin(&scope, FIRST_BYTES + 10 * MIB));
    assert!(futures::poll!(&mut waits).is_pending());
    in_use.clear();
    assert!(waits.await.is_ok());
}

#[tokio::test]
async fn memory_that_grows_is_taken_step_by_step_and_refused_beyond_the_share() {
    let pool = pool(9);
    let memory = begun(&pool, "t", 0).expect("it begins with its first bytes");
    assert_eq!(memory.cover(FIRST_BYTES + 1), Ok(()));
    assert_eq!(taken(&pool), 1);
    assert_eq!(memory.cover(FIRST_BYTES + MIB), Ok(()));
    assert_eq!(taken(&pool), 1, "the step is not used up");
    assert_eq!(memory.cover(FIRST_BYTES + 6 * MIB), Ok(()));
    assert_eq!(memory.cover(FIRST_BYTES + 7 * MIB), Err(NoMemory));
    assert_eq!(taken(&pool), 6, "a refusal takes nothing");
    assert!(begun(&pool, "other", 1).is_some());
}

#[tokio::test]
async fn a_call_that_begins_with_much_waits_until_it_is_there_or_the_call_is_stopped() {
    let pool = pool(9);
    let held = begun(&pool, "t", 5).expect("there is as much");
    let (scope, stopped) = (scope_of("t"), scope_of("t"));
    let mut waits = Box::pin(pool.begin(&scope, FIRST_BYTES + 2 * MIB));
    let mut is_stopped = Box::pin(pool.begin(&stopped, FIRST_BYTES + 2 * MIB));
    assert!(futures::poll!(&mut waits).is_pending());
    assert!(futures::poll!(&mut is_stopped).is_pending());
    stopped.stop().force(StopCause::Canceled);
    let cause = is_stopped.await.expect_err("it was stopped");
    assert_eq!(cause, CallAbort::Stopped { cause: StopCause::Canceled });
    drop(held);
    let begun = waits.await.expect("there is as much again");
    assert_eq!(taken(&pool), 2);
    drop(begun);
    // Of more than a tenant ever has it takes that: the estimate may be too high.
    let all = pool.begin(&scope, FIRST_BYTES + 100 * MIB).await.expect("all that a tenant has");
    assert_eq!(taken(&pool), 6);
    assert_eq!(all.cover(FIRST_BYTES + 7 * MIB), Err(NoMemory));
}

#[tokio::test]
async fn calls_of_a_tenant_begin_in_the_order_in_which_they_came() {
    let pool = pool(9);
    let held = begun(&pool, "t", 5).expect("there is as much");
    let scope = scope_of("t");
    let mut large = Box::pin(pool.begin(&scope, FIRST_BYTES + 5 * MIB));
    assert!(futures::poll!(&mut large).is_pending());
    let mut small = Box::pin(pool.begin(&scope, FIRST_BYTES + MIB));
    assert!(futures::poll!(&mut small).is_pending(), "there is as much, and it does not overtake");
    assert!(begun(&pool, "other", 1).is_some(), "another tenant has its own queue");
    assert!(begun_by(&pool, &scope_beneath("t"), 1).is_some(), "as have calls beneath");
    drop(held);
    let large = large.await.expect("there is as much again");
    let small = small.await.expect("as it is the first");
    assert_eq!(taken(&pool), 6);
    drop((large, small));
    // One that gives up lets the next one pass.
    let held = begun(&pool, "t", 5).expect("there is as much");
    let mut large = Box::pin(pool.begin(&scope, FIRST_BYTES + 5 * MIB));
    assert!(futures::poll!(&mut large).is_pending());
    let mut small = Box::pin(pool.begin(&scope, FIRST_BYTES + MIB));
    assert!(futures::poll!(&mut small).is_pending());
    drop(large);
    assert!(small.await.is_ok());
    drop(held);
    assert!(pool.0.held().by_tenant.is_empty());
    assert_eq!(pool.0.waiting.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_call_waits_no_longer_than_it_may_take() {
    let pool = pool(9);
    let _held = begun(&pool, "t", 6).expect("there is as much");
    let context = RunContext { tenant: "t".to_owned(), ..RunContext::default() };
    let scope = apart::scope(context, Duration::from_millis(1));
    let waits = tokio::time::timeout(LONG, pool.begin(&scope, FIRST_BYTES + MIB));
    let ended = waits.await.expect("it ends by itself");
    assert_eq!(ended.err(), Some(CallAbort::Unavailable));
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_memory_is_not_over_when_the_process_goes_on_after_a_standstill() {
    let pool = pool(9);
    let _held = begun(&pool, "t", 6).expect("there is as much");
    let scope = scope_of("t");
    // Timers are over at once, as they are then, and next to no time of the process passes.
    let waits = tokio::time::timeout(LONG, pool.begin(&scope, FIRST_BYTES + MIB)).await;
    assert!(waits.is_err(), "it waits still");
}

#[tokio::test]
async fn a_call_that_has_taken_memory_waits_for_a_slot_no_longer_than_it_may_take() {
    let slots = Admission::new(1);
    let pool = GuestMemory::new(FIRST_BYTES + 12 * MIB, 1, slots.clone());
    let _in_use = slots.enter(&scope_of("t")).await.expect("a slot");
    let scope = apart::scope(RunContext::default(), Duration::from_millis(1));
    let plain = pool.begin(&scope, FIRST_BYTES).await.expect("its first bytes");
    let large = pool.begin(&scope, FIRST_BYTES + MIB).await.expect("there is as much");
    let mut waits = Box::pin(plain.enter(&slots));
    assert!(futures::poll!(&mut waits).is_pending());
    let ended = tokio::time::timeout(LONG, large.enter(&slots)).await.expect("it ends by itself");
    assert_eq!(ended.err(), Some(CallAbort::Unavailable));
    assert!(futures::poll!(&mut waits).is_pending(), "it keeps nothing from anybody");
    drop(large);
    assert_eq!(taken(&pool), 0);
}

#[test]
fn a_component_begins_with_at_most_what_an_instance_has_shown() {
    let begin = BeginBytes::at_most(60 * MIB);
    begin.note(22 * MIB);
    begin.note(30 * MIB);
    assert_eq!(begin.known(), 22 * MIB);
}
