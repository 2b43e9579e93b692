//! The runs beneath of which a cancellation tells.

use std::future::pending;

use taskrun_journal::status::Status;

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
