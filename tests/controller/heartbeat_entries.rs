//! Entries that wait for a heartbeat (WS-11, WS-13, WS-14).

use taskrun_journal::status::Status;

use super::beats::{beat, beat_in_vain, beating, end, entry, leave, statuses, taken};
use super::common::{Gates, named};
use crate::native::{ClosurePlanner, World, answer};

#[tokio::test]
async fn ws_11_an_entry_is_queued_though_all_slots_are_free_and_no_model_is_asked() {
    let mut world = World::new();
    world.settings.slots = 4;
    let gates = Gates::new();
    beating(&mut world, "coder", gates.planner());
    let host = world.start().await;
    let mut wanted = entry("1", "coder");
    wanted.task = "Implement the login form component".to_owned();
    host.spawn(&wanted).await;
    // A run that came later goes by it.
    host.spawn(&named("task", "coder")).await;
    gates.have_come(1).await;
    host.settle().await;
    assert_eq!(gates.came(), ["task"]);
    let view = host.view("1").await;
    assert_eq!((view.status, view.batch_run_id), (Status::Queued, None));
    assert_eq!(host.controller.executing(), 1);
}

#[tokio::test]
async fn ws_13_a_beat_takes_four_of_six_and_the_next_one_the_others() {
    let mut world = World::new();
    assert_eq!(world.settings.tree_slots, 4);
    let gates = Gates::new();
    beating(&mut world, "coder", gates.planner());
    let host = world.start().await;
    leave(&host, "coder", &["1", "2", "3", "4", "5", "6"]).await;
    let first = beat(&host, "coder").await;
    assert_eq!(taken(&first), ["1", "2", "3", "4"]);
    let (running, queued) = (Status::Running, Status::Queued);
    let found = statuses(&host, &["1", "2", "3", "4", "5", "6"]).await;
    assert_eq!(found, [running, running, running, running, queued, queued]);
    // Not before the first batch has ended.
    beat_in_vain(&host, "coder").await;
    gates.open(first.id().as_str());
    for id in taken(&first) {
        host.end(id).await;
    }
    let second = beat(&host, "coder").await;
    assert_eq!(taken(&second), ["5", "6"]);
    gates.open(second.id().as_str());
    for id in ["5", "6"] {
        assert_eq!(end(&host, id).await, (Status::Completed, format!("done {}", second.id())));
    }
    beat_in_vain(&host, "coder").await;
}

#[tokio::test]
async fn ws_14_entries_end_with_their_batch_and_hold_no_slots() {
    let mut world = World::new();
    world.settings.slots = 1;
    let gates = Gates::new();
    world.agent("block", gates.planner());
    beating(&mut world, "coder", ClosurePlanner::new(|_, _| async { answer("all done") }));
    let host = world.start().await;
    for id in ["1", "2", "3", "4"] {
        leave(&host, "coder", &[id]).await;
        let batch = beat(&host, "coder").await;
        assert_eq!(taken(&batch), [id]);
        assert_eq!(end(&host, id).await, (Status::Completed, "all done".to_owned()));
        assert_eq!(host.end(batch.id().as_str()).await.status(), Status::Completed);
    }
    host.spawn(&named("task", "block")).await;
    gates.have_come(1).await;
    assert_eq!(host.get("task").await.status(), Status::Running);
}
