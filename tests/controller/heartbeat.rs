//! Heartbeats: what a batch is, when one is made, and how its entries end.

use std::sync::Arc;
use std::time::Duration;

use taskrun::batch::{ENTRY_RESULT_BYTES_MAX, HEADING};
use taskrun::error::{ControllerError, NotAnEntry};
use taskrun::spawn::{SpawnRequest, WhenFull};
use taskrun_journal::message::Labels;
use taskrun_journal::plan::PlannerError;
use taskrun_journal::run::RunView;
use taskrun_journal::spec::{ENTRY_BYTES_MAX, RunClass};
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::time::Clock;
use taskrun_policy::{BeatTimes, CronTimes, Heartbeat};

use super::beats::{
    MINUTE, batches, beat, beat_in_vain, beating, end, entry, leave, statuses, taken,
};
use super::common::{Gates, check_journal, count, named};
use crate::native::{ClosurePlanner, Native, OWNER, SESSION, World, answer};

/// A host with an agent `coder` whose batches go through a gate.
async fn gated(world: &mut World) -> (Native, Arc<Gates>) {
    let gates = Gates::new();
    beating(world, "coder", gates.planner());
    (world.start().await, gates)
}

#[tokio::test]
async fn m_15_a_batch_is_a_run_of_its_agent_with_a_line_for_each_entry() {
    let mut world = World::new();
    let (host, gates) = gated(&mut world).await;
    for (id, task, priority) in [("1", "one", 0), ("2", "two\nand more", 0), ("3", "three", 5)] {
        let task = task.to_owned();
        host.spawn(&SpawnRequest { task, priority, ..entry(id, "coder") }).await;
    }
    let batch = beat(&host, "coder").await;
    let spec = &batch.spec;
    let lines = "Task #3: three\nTask #1: one\nTask #2: two\n  and more";
    assert_eq!(spec.task, format!("{HEADING}\n{lines}"));
    assert_eq!((spec.owner_user_id.as_str(), spec.parent_session_id.as_str()), (OWNER, SESSION));
    assert_eq!((&spec.parent_run_id, spec.class, spec.priority), (&None, RunClass::Task, 5));
    assert_eq!(batches(&host).await.len(), 1);
    let view = host.view("1").await;
    assert_eq!((view.class, view.batch_run_id.as_ref()), (RunClass::Heartbeat, Some(batch.id())));
    assert_eq!(host.view(batch.id().as_str()).await.entries.len(), 3);
    // One slot for all of it.
    gates.have_come(1).await;
    assert_eq!(host.controller.executing(), 1);
}

#[tokio::test]
async fn m_15_a_heart_beats_by_the_clock() {
    let mut world = World::new();
    let prompt = Some("Do these:".to_owned());
    let answers = ClosurePlanner::new(|_, _| async { answer("all done") });
    world.agent_with("coder", answers, |agent| {
        agent.heartbeat = Some(Heartbeat { times: BeatTimes::Every(MINUTE), prompt });
    });
    world.clock.advance(Duration::from_secs(7));
    let host = world.start().await;
    leave(&host, "coder", &["1"]).await;
    assert_eq!(world.next(MINUTE).await, Duration::from_secs(53), "all hosts have the same ticks");
    assert_eq!(end(&host, "1").await, (Status::Completed, "all done".to_owned()));
    let made = batches(&host).await;
    assert_eq!((made.len(), made[0].spec.task.as_str()), (1, "Do these:\nTask #1: x"));
    // Ticks at which nothing waits make nothing.
    for _ in 0..3 {
        assert_eq!(world.next(MINUTE).await, MINUTE);
    }
    leave(&host, "coder", &["2"]).await;
    world.next(MINUTE).await;
    host.end("2").await;
    assert_eq!(batches(&host).await.len(), 2);
}

const HOUR: Duration = Duration::from_secs(3_600);

/// An agent whose heart beats at nine in the morning.
fn beats_at_nine(world: &mut World) {
    let answers = ClosurePlanner::new(|_, _| async { answer("all done") });
    world.agent_with("coder", answers, |agent| {
        let nine = CronTimes::new("0 9 * * *", "UTC").expect("a pattern");
        let times = BeatTimes::Cron(Box::new(nine));
        agent.heartbeat = Some(Heartbeat { times, prompt: None });
    });
}

#[tokio::test]
async fn m_15_a_heart_beats_by_the_calendar() {
    let mut world = World::new();
    beats_at_nine(&mut world);
    let host = world.start().await;
    leave(&host, "coder", &["1"]).await;
    world.next(24 * HOUR).await;
    assert_eq!(end(&host, "1").await, (Status::Completed, "all done".to_owned()));
    let at = batches(&host).await.remove(0).spec.created_at;
    assert_eq!(at.0 % 86_400_000, 9 * 3_600_000, "nine in the morning");
    leave(&host, "coder", &["2"]).await;
    assert_eq!(world.next(25 * HOUR).await, 24 * HOUR);
    host.end("2").await;
    assert_eq!(batches(&host).await.len(), 2);
}

#[tokio::test]
async fn m_15_ticks_that_no_host_was_there_for_are_made_up_for_once() {
    let mut world = World::new();
    beats_at_nine(&mut world);
    let host = world.start().await;
    leave(&host, "coder", &["1"]).await;
    world.kill(host).await;
    world.clock.advance(72 * HOUR);
    let host = world.start().await;
    assert_eq!(end(&host, "1").await, (Status::Completed, "all done".to_owned()));
    world.clock.advance(Duration::from_secs(1));
    leave(&host, "coder", &["2"]).await;
    world.kill(host).await;
    let host = world.start().await;
    host.settle().await;
    assert_eq!(host.get("2").await.status(), Status::Queued, "it has missed no tick");
    assert_eq!(batches(&host).await.len(), 1);
}

#[tokio::test]
async fn m_15_ticks_coalesce_while_a_batch_is_open() {
    let mut world = World::new();
    let (host, gates) = gated(&mut world).await;
    leave(&host, "coder", &["1"]).await;
    world.next(MINUTE).await;
    gates.have_come(1).await;
    leave(&host, "coder", &["2"]).await;
    for _ in 0..3 {
        world.next(MINUTE).await;
    }
    host.settle().await;
    beat_in_vain(&host, "coder").await;
    assert_eq!(host.get("2").await.status(), Status::Queued);
    let first = batches(&host).await.remove(0);
    gates.open(first.id().as_str());
    host.end("1").await;
    world.next(MINUTE).await;
    host.reach("2", Status::Running).await;
    assert_eq!(batches(&host).await.len(), 2);
}

#[tokio::test]
async fn m_15_a_tick_of_two_hosts_makes_one_batch() {
    let mut world = World::new();
    beating(&mut world, "coder", ClosurePlanner::new(|_, _| async { answer("all done") }));
    let (one, two) = (world.start().await, world.start().await);
    world.clock.wait_for_sleepers(2).await;
    let ids = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12"];
    leave(&one, "coder", &ids).await;
    for tick in 1..=3 {
        world.clock.advance(MINUTE);
        for id in &ids[(tick - 1) * 4..tick * 4] {
            one.end(id).await;
        }
        // Whichever came second has seen by then that the tick had its batch.
        one.settle().await;
        two.settle().await;
        assert_eq!(batches(&one).await.len(), tick);
    }
}

#[tokio::test]
async fn m_15_entries_of_different_owners_and_sessions_share_no_batch() {
    let mut world = World::new();
    let (host, _gates) = gated(&mut world).await;
    leave(&host, "coder", &["1", "2"]).await;
    let owner = "user-b".to_owned();
    host.spawn(&SpawnRequest { owner_user_id: owner, ..entry("3", "coder") }).await;
    let session = "parent-b".to_owned();
    host.spawn(&SpawnRequest { parent_session_id: session, ..entry("4", "coder") }).await;
    let app = Some("app-b".to_owned());
    host.spawn(&SpawnRequest { parent_app_name: app, ..entry("5", "coder") }).await;
    let other = taskrun_journal::list::Scope::tenant("other");
    host.controller.at(&other).spawn(&entry("other:6", "coder")).await.expect("accepted");
    let mut made = host.controller.beat("coder").await.expect("it has a heart");
    made.sort_by_key(|batch| batch.spec.entries[0].clone());
    let entries: Vec<_> = made.iter().map(taken).collect();
    assert_eq!(entries, [vec!["1", "2"], vec!["3"], vec!["4"], vec!["5"], vec!["other:6"]]);
    let whose = |at: usize| {
        let spec = &made[at].spec;
        let app = spec.parent_app_name.as_deref();
        (spec.tenant.as_str(), spec.owner_user_id.as_str(), spec.parent_session_id.as_str(), app)
    };
    assert_eq!(whose(1), ("default", "user-b", SESSION, None));
    assert_eq!(whose(2), ("default", OWNER, "parent-b", None));
    assert_eq!(whose(3), ("default", OWNER, SESSION, Some("app-b")));
    assert_eq!(whose(4), ("other", OWNER, SESSION, None));
    // Each is coalesced by itself.
    host.spawn(&SpawnRequest { owner_user_id: "user-c".into(), ..entry("7", "coder") }).await;
    leave(&host, "coder", &["8"]).await;
    assert_eq!(taken(&beat(&host, "coder").await), ["7"]);
}

async fn refused(host: &Native, batch: &str, entry: &str) -> NotAnEntry {
    match host.client().complete_entry(batch, entry, "x").await {
        Err(ControllerError::NotAnEntry { why, .. }) => why,
        other => panic!("not refused so: {other:?}"),
    }
}

#[tokio::test]
async fn m_15_an_acknowledged_entry_has_its_own_result_and_the_others_that_of_the_batch() {
    let mut world = World::new();
    let (host, gates) = gated(&mut world).await;
    leave(&host, "coder", &["1", "2"]).await;
    let batch = beat(&host, "coder").await;
    let batch = batch.id().as_str();
    gates.have_come(1).await;
    let client = host.client();
    let complete = |result: &'static str| client.complete_entry(batch, "1", result);
    let done = complete(" did it ").await.expect("it is its entry");
    let view = RunView::from(&done);
    assert_eq!((view.status, view.stop_reason), (Status::Completed, Some(StopReason::Done)));
    assert_eq!(view.result.as_deref(), Some("did it"));
    assert_eq!(host.get("2").await.status(), Status::Running);
    assert_eq!(host.get(batch).await.status(), Status::Running);
    // A tool call that is repeated after a crash says the same again.
    assert_eq!(complete("did it").await.expect("the same"), done);
    assert_eq!(refused(&host, batch, "1").await, NotAnEntry::Ended);
    gates.open(batch);
    assert_eq!(end(&host, "2").await, (Status::Completed, format!("done {batch}")));
    assert_eq!(host.get("1").await, done);
    check_journal(&host.journal("1").await);
    check_journal(&host.journal("2").await);
}

#[tokio::test]
async fn m_15_only_a_batch_under_way_completes_entries_and_only_its_own() {
    let mut world = World::new();
    let (host, gates) = gated(&mut world).await;
    let door = world.door().await;
    leave(&host, "coder", &["1", "2"]).await;
    host.spawn(&named("task", "coder")).await;
    gates.have_come(1).await;
    let batch = beat(&host, "coder").await;
    let batch = batch.id().as_str();
    gates.have_come(2).await;
    leave(&host, "coder", &["3"]).await;
    assert_eq!(refused(&door, batch, "3").await, NotAnEntry::OfThisBatch);
    assert_eq!(refused(&door, batch, "task").await, NotAnEntry::OfThisBatch);
    assert_eq!(refused(&door, batch, batch).await, NotAnEntry::OfThisBatch);
    assert_eq!(refused(&door, "task", "1").await, NotAnEntry::OfThisBatch);
    let stranger = door.scope.clone().owner("user-b");
    for (scope, batch, id) in
        [(&door.scope, batch, "none"), (&door.scope, "none", "1"), (&stranger, batch, "1")]
    {
        let found = door.controller.at(scope).complete_entry(batch, id, "x").await;
        assert!(matches!(found, Err(ControllerError::NotFound { .. })), "{found:?}");
    }
    for result in [String::new(), " \n".to_owned(), "x".repeat(ENTRY_RESULT_BYTES_MAX + 1)] {
        let found = door.client().complete_entry(batch, "1", &result).await;
        assert!(matches!(found, Err(ControllerError::Invalid { field: "result", .. })));
    }
    // Who was canceled by himself is done, and the batch goes on.
    door.client().cancel("2", None).await.expect("canceled");
    assert_eq!(refused(&door, batch, "2").await, NotAnEntry::Ended);
    gates.open(batch);
    host.end("1").await;
    assert_eq!(refused(&door, batch, "1").await, NotAnEntry::BatchEnded);
}

#[tokio::test]
async fn m_15_entries_fail_with_their_batch() {
    let mut world = World::new();
    let failing = ClosurePlanner::new(|_, _| async {
        let message = "it broke".to_owned();
        Ok(Err(PlannerError { code: None, message, causes: Vec::new(), retry_after_ms: None }))
    });
    beating(&mut world, "coder", failing);
    let host = world.start().await;
    leave(&host, "coder", &["1", "2"]).await;
    beat(&host, "coder").await;
    for id in ["1", "2"] {
        let view = RunView::from(&host.end(id).await);
        assert_eq!((view.status, view.stop_reason), (Status::Failed, Some(StopReason::AgentError)));
        assert_eq!(view.error.as_deref(), Some("it broke"));
    }
}

#[tokio::test]
async fn m_15_an_entry_is_canceled_at_once_and_its_batch_goes_on() {
    let mut world = World::new();
    let (host, gates) = gated(&mut world).await;
    leave(&host, "coder", &["1", "2", "3"]).await;
    let canceled = host.client().cancel("1", None).await.expect("there");
    assert_eq!((canceled.run.status(), canceled.changed), (Status::Canceled, true));
    assert!(!host.kinds("1").await.contains(&"started"));
    let batch = beat(&host, "coder").await;
    assert_eq!(taken(&batch), ["2", "3"]);
    let canceled = host.client().cancel("2", None).await.expect("there");
    assert_eq!((canceled.run.status(), canceled.changed), (Status::Canceled, true));
    gates.have_come(1).await;
    assert_eq!(host.get(batch.id().as_str()).await.status(), Status::Running);
    gates.open(batch.id().as_str());
    host.end("3").await;
    assert_eq!(statuses(&host, &["2", "3"]).await, [Status::Canceled, Status::Completed]);
    check_journal(&host.journal("2").await);
}

#[tokio::test]
async fn m_15_the_entries_of_a_canceled_batch_are_canceled() {
    let mut world = World::new();
    let (host, gates) = gated(&mut world).await;
    leave(&host, "coder", &["1", "2"]).await;
    let batch = beat(&host, "coder").await;
    let batch = batch.id().as_str();
    gates.have_come(1).await;
    let done = host.client().complete_entry(batch, "1", "did it").await;
    done.expect("it is its entry");
    host.client().cancel(batch, None).await.expect("there");
    let view = RunView::from(&host.end("2").await);
    let canceled = (Status::Canceled, Some(StopReason::CanceledByParent));
    assert_eq!((view.status, view.stop_reason), canceled);
    assert_eq!(host.get("1").await.status(), Status::Completed);
}

#[tokio::test]
async fn m_15_a_batch_that_never_began_is_canceled_with_its_entries_by_the_next_host() {
    let mut world = World::new();
    beating(&mut world, "coder", ClosurePlanner::new(|_, _| async { answer("never") }));
    let door = world.door().await;
    leave(&door, "coder", &["1"]).await;
    let batch = beat(&door, "coder").await;
    assert_eq!(refused(&door, batch.id().as_str(), "1").await, NotAnEntry::BatchNotBegun);
    let canceled = door.client().cancel(batch.id().as_str(), None).await;
    assert_eq!(canceled.expect("there").run.status(), Status::Canceled);
    assert_eq!(door.get("1").await.status(), Status::Running);
    let host = world.start().await;
    assert_eq!(host.end("1").await.status(), Status::Canceled);
}

#[tokio::test]
async fn m_15_the_finalizer_of_an_entry_is_heard_once_however_it_ends() {
    let mut world = World::new();
    let gates = Gates::new();
    let planner = gates.planner().finalizer(|input, _| async move {
        Ok(Ok(Labels::from([("heard".to_owned(), input.run.run_id)])))
    });
    beating(&mut world, "coder", planner);
    let host = world.start().await;
    leave(&host, "coder", &["1", "2", "3"]).await;
    let batch = beat(&host, "coder").await;
    let batch = batch.id().as_str();
    gates.have_come(1).await;
    let done = host.client().complete_entry(batch, "1", "did it").await;
    assert_eq!(done.expect("it is its entry").status(), Status::Finalizing);
    host.end("1").await;
    host.client().cancel("2", None).await.expect("there");
    host.end("2").await;
    gates.open(batch);
    host.end("3").await;
    for id in ["1", "2", "3", batch] {
        host.end(id).await;
        assert_eq!(host.view(id).await.metadata["heard"], id);
        let journal = host.journal(id).await;
        check_journal(&journal);
        assert_eq!(count(&journal, "finalizer_started"), 1, "{id}");
    }
    let ends = [Status::Completed, Status::Canceled, Status::Completed];
    assert_eq!(statuses(&host, &["1", "2", "3"]).await, ends);
}

#[tokio::test]
async fn m_15_entries_of_an_agent_whose_runs_are_not_durable_end_with_what_became_of_the_batch() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent_with("coder", gates.planner(), |agent| {
        agent.durable = false;
        agent.heartbeat = Some(Heartbeat { times: BeatTimes::Every(MINUTE), prompt: None });
    });
    let host = world.start().await;
    leave(&host, "coder", &["1"]).await;
    let batch = beat(&host, "coder").await;
    gates.have_come(1).await;
    world.kill(host).await;
    let next = world.take_over().await;
    for id in [batch.id().as_str(), "1"] {
        let view = RunView::from(&next.end(id).await);
        let expected = (Status::Failed, Some(StopReason::InterruptedByRestart));
        assert_eq!((view.status, view.stop_reason), expected, "{id}");
    }
}

#[tokio::test]
async fn m_15_a_request_that_an_entry_cannot_keep_is_refused() {
    let mut world = World::new();
    world.agent("heartless", ClosurePlanner::new(|_, _| async { answer("x") }));
    let (host, _gates) = gated(&mut world).await;
    let base = || entry("1", "coder");
    let table = [
        ("class", entry("1", "heartless")),
        ("task", SpawnRequest { task: "x".repeat(ENTRY_BYTES_MAX + 1), ..base() }),
        ("timeout", SpawnRequest { timeout: Some(MINUTE), ..base() }),
        ("serial", SpawnRequest { serial: true, ..base() }),
        ("when_full", SpawnRequest { when_full: WhenFull::Refuse, ..base() }),
        (
            "runtime_state",
            SpawnRequest { runtime_state: [("k".into(), "v".into())].into(), ..base() },
        ),
    ];
    for (expected, request) in table {
        match host.client().spawn(&request).await {
            Err(ControllerError::Invalid { field, .. }) => assert_eq!(field, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    for agent in ["heartless", "unknown"] {
        let found = host.controller.beat(agent).await;
        assert!(matches!(found, Err(ControllerError::Invalid { .. })), "{found:?}");
    }
    host.spawn(&SpawnRequest { task: "x".repeat(ENTRY_BYTES_MAX), ..base() }).await;
}

#[tokio::test]
async fn m_15_a_repeated_request_is_one_entry() {
    let mut world = World::new();
    let (host, _gates) = gated(&mut world).await;
    let mut wanted = entry("1", "coder");
    wanted.id = None;
    wanted.idempotency_key = Some("key".to_owned());
    let first = host.spawn(&wanted).await;
    assert_eq!(host.spawn(&wanted).await, first);
    wanted.class = RunClass::Task;
    let other = host.client().spawn(&wanted).await;
    assert!(matches!(other, Err(ControllerError::AlreadyExists { .. })), "{other:?}");
    assert_eq!(taken(&beat(&host, "coder").await), [first.as_str()]);
}

#[tokio::test]
async fn m_15_a_host_stays_while_entries_wait() {
    let mut world = World::new();
    beating(&mut world, "coder", ClosurePlanner::new(|_, _| async { answer("all done") }));
    let host = world.start().await;
    leave(&host, "coder", &["1"]).await;
    assert!(!host.controller.retire(Duration::MAX).await.expect("answers"));
    beat(&host, "coder").await;
    host.end("1").await;
    // The driver may still be on its way out.
    while !host.controller.retire(Duration::MAX).await.expect("answers") {
        host.settle().await;
    }
}

#[tokio::test]
async fn m_15_entries_of_a_session_that_ended_are_still_worked_on() {
    let mut world = World::new();
    beating(&mut world, "coder", ClosurePlanner::new(|_, _| async { answer("all done") }));
    let host = world.start().await;
    leave(&host, "coder", &["1"]).await;
    host.client().end_session(SESSION).await.expect("ends");
    beat(&host, "coder").await;
    assert_eq!(end(&host, "1").await.0, Status::Completed);
}

#[tokio::test]
async fn m_15_gc_keeps_a_batch_whose_entries_have_not_ended() {
    let mut world = World::new();
    beating(&mut world, "coder", ClosurePlanner::new(|_, _| async { answer("never") }));
    let door = world.door().await;
    leave(&door, "coder", &["1"]).await;
    let batch = beat(&door, "coder").await;
    door.client().cancel(batch.id().as_str(), None).await.expect("there");
    world.clock.advance(MINUTE);
    let removed = door.client().gc(world.clock.now(), false).await.expect("done");
    assert_eq!((removed.runs, removed.kept), (0, 1));
    let host = world.start().await;
    host.end("1").await;
    world.clock.advance(MINUTE);
    let removed = door.client().gc(world.clock.now(), false).await.expect("done");
    assert_eq!((removed.runs, removed.kept), (2, 0));
}
