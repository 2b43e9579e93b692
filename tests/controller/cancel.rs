//! The runs beneath of which a cancellation tells, and cancellations that a host does not hear.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::ids::HostId;
use taskrun_journal::pin::Ready;
use taskrun_journal::status::Status;
use taskrun_journal::store::{Claim, Host, Hosts, LEASE};
use taskrun_journal::time::Clock;

use crate::native::{ClosurePlanner, World, request};

#[tokio::test]
async fn a_run_that_was_on_its_way_out_is_not_told_as_canceled_with_the_run_above_it() {
    let mut world = World::new();
    world.agent("a", ClosurePlanner::new(|_, _| pending()).hearing());
    let host = world.start().await;
    let parent = host.spawn(&request("a", "x")).await;
    host.reach(&parent, Status::Running).await;
    let mut below = request("a", "y");
    below.parent_run_id = Some(parent.clone());
    let (first, second) = (host.spawn(&below).await, host.spawn(&below).await);
    host.reach(&first, Status::Running).await;
    host.client().cancel(&first, None).await.expect("canceled");
    let canceled = host.client().cancel(&parent, None).await.expect("canceled");
    assert!(canceled.changed);
    let beneath: Vec<_> = canceled.descendants.iter().map(|id| id.as_str()).collect();
    assert_eq!(beneath, [second]);
}

#[tokio::test]
async fn a_canceled_run_of_a_host_that_hangs_while_it_leaves_is_ended_by_another_one() {
    let mut world = World::new();
    // So short that the other host looks again at once.
    world.settings.lease = Duration::from_millis(400);
    world.agent("a", ClosurePlanner::new(|_, _| pending()));
    let door = world.door().await;
    let (id, leaving, now) =
        (door.spawn(&request("a", "x")).await, HostId::new("leaving"), world.clock.now());
    let host = Host {
        id: leaving.clone(),
        pid: 1,
        policy: String::new(),
        agents: Arc::new(BTreeSet::from(["a".to_owned()])),
        subscribers: Arc::default(),
        started_at: now,
        slots: 0,
        lease: LEASE,
    };
    world.hearts.register(host).await.expect("registers");
    let (ready, tree_slots) = (Ready::All, u32::MAX);
    let resumes = 0;
    let claim = Claim { host: leaving, limit: 1, finalizers: 0, tree_slots, ready, resumes, now };
    assert_eq!(world.inner.claim(claim).await.expect("claims").len(), 1);
    door.client().cancel(&id, None).await.expect("canceled");
    assert_eq!(door.get(&id).await.status(), Status::Canceling);
    world.clock.advance(Duration::from_secs(121));
    let other = world.start().await;
    assert_eq!(other.end(&id).await.status(), Status::Canceled);
    assert_eq!(other.kinds(&id).await[2..], ["cancel_requested", "lost", "finalizing", "finished"]);
}
