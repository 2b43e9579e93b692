//! Waiting for one run and for several (M-22, M-32).

use std::time::Duration;

use taskrun::controller::{WAIT_RUNS_MAX, WaitOutcome};
use taskrun_journal::hold::WaitMode;
use taskrun_journal::status::Status;

use crate::native::{Gate, Native, World, in_time, request};

/// A host with agents `a`, `b` and `c` that stay at their gates, and a run of each.
async fn three() -> (World, Native, [Gate; 3], [String; 3]) {
    let mut world = World::new();
    let gates = [Gate::new(), Gate::new(), Gate::new()];
    for (name, gate) in ["a", "b", "c"].into_iter().zip(gates.clone()) {
        let planner = gate.answering(name);
        world.agent(name, planner);
    }
    let host = world.start().await;
    let ids = [
        host.spawn(&request("a", "x")).await,
        host.spawn(&request("b", "x")).await,
        host.spawn(&request("c", "x")).await,
    ];
    for gate in &gates {
        gate.reached_by(1).await;
    }
    (world, host, gates, ids)
}

fn texts(ids: &[String; 3]) -> [&str; 3] {
    [&ids[0], &ids[1], &ids[2]]
}

fn told(waited: &[WaitOutcome]) -> Vec<(&str, Status, bool)> {
    waited.iter().map(|one| (one.run.id().as_str(), one.run.status(), one.timed_out)).collect()
}

#[tokio::test]
async fn m_32_all_are_told_in_the_order_asked_for_when_the_last_has_ended() {
    let (_world, host, gates, ids) = three().await;
    let order = [ids[2].as_str(), &ids[0], &ids[1], &ids[0]];
    let client = host.client();
    let wait = client.wait_all(&order, WaitMode::All, None);
    tokio::pin!(wait);
    for (gate, id) in gates.iter().zip(&ids).rev() {
        assert!(futures::poll!(&mut wait).is_pending());
        gate.open();
        host.end(id).await;
    }
    let waited = in_time(wait).await.expect("all are there");
    let expected = order.map(|id| (id, Status::Completed, false));
    assert_eq!(told(&waited), expected, "also one that is named twice");
    // They are over: nobody waits any more.
    let again = host.client().wait_all(&order, WaitMode::All, None).await;
    assert_eq!(told(&again.expect("all are there")), expected);
}

#[tokio::test]
async fn m_32_any_is_over_with_the_first_that_ends() {
    let (_world, host, gates, ids) = three().await;
    let names = texts(&ids);
    let client = host.client();
    let wait = client.wait_all(&names, WaitMode::Any, None);
    tokio::pin!(wait);
    assert!(futures::poll!(&mut wait).is_pending());
    gates[1].open();
    let waited = in_time(wait).await.expect("all are there");
    let expected = [
        (ids[0].as_str(), Status::Running, true),
        (&ids[1], Status::Completed, false),
        (&ids[2], Status::Running, true),
    ];
    assert_eq!(told(&waited), expected);
}

#[tokio::test]
async fn m_32_a_canceled_run_counts_as_ended() {
    let (_world, host, _gates, ids) = three().await;
    host.client().cancel(&ids[0], None).await.expect("there");
    let waited = host.client().wait_all(&texts(&ids), WaitMode::Any, None).await;
    assert_eq!(told(&waited.expect("there"))[0], (ids[0].as_str(), Status::Canceled, false));
}

#[tokio::test]
async fn m_22_a_wait_ends_with_its_time_and_says_so_and_cancels_nothing() {
    let (world, host, gates, ids) = three().await;
    gates[2].open();
    host.end(&ids[2]).await;
    let (names, timeout) = (texts(&ids), Duration::from_secs(5));
    let client = host.client();
    let wait = client.wait_all(&names, WaitMode::All, Some(timeout));
    let (waited, passed) = world.run_until(timeout, wait).await;
    assert_eq!(passed, timeout);
    let expected = [
        (ids[0].as_str(), Status::Running, true),
        (&ids[1], Status::Running, true),
        (&ids[2], Status::Completed, false),
    ];
    assert_eq!(told(&waited.expect("there")), expected);
    gates[0].open();
    gates[1].open();
    for id in &ids {
        assert_eq!(host.end(id).await.status(), Status::Completed);
        assert!(!host.kinds(id).await.contains(&"cancel_requested"));
    }
}

#[tokio::test]
async fn m_22_a_timeout_of_zero_looks_once() {
    let (_world, host, gates, ids) = three().await;
    let zero = Some(Duration::ZERO);
    let one = host.client().wait(&ids[0], zero).await.expect("there");
    assert_eq!((one.run.status(), one.timed_out), (Status::Running, true));
    gates[0].open();
    host.end(&ids[0]).await;
    let one = host.client().wait(&ids[0], zero).await.expect("there");
    assert_eq!((one.run.status(), one.timed_out), (Status::Completed, false));
    for mode in [WaitMode::All, WaitMode::Any] {
        let all = host.client().wait_all(&texts(&ids), mode, zero).await;
        let all = all.expect("there");
        let expected = [
            (ids[0].as_str(), Status::Completed, false),
            (&ids[1], Status::Running, true),
            (&ids[2], Status::Running, true),
        ];
        assert_eq!(told(&all), expected, "{mode:?}");
    }
}

#[tokio::test]
async fn m_22_without_a_timeout_the_hosts_own_bound_counts() {
    let (world, host, _gates, ids) = three().await;
    let longest = world.settings.wait_max;
    let client = host.client();
    let wait = client.wait(&ids[0], None);
    let (waited, passed) = world.run_until(longest, wait).await;
    assert!(waited.expect("there").timed_out);
    assert_eq!(passed, longest);
}

#[tokio::test]
async fn m_32_no_runs_unknown_ones_and_too_many_are_errors() {
    let (_world, host, _gates, ids) = three().await;
    let id = ids[0].as_str();
    let many = vec![id; WAIT_RUNS_MAX + 1];
    let table: &[(&[&str], &str, &str)] = &[
        (&[], "invalid", "no task IDs provided"),
        (&many, "invalid", "at most 1000 runs can be waited for at once"),
        (&[id, "missing"], "not-found", "run not found: missing"),
        (&[id, " "], "invalid", "empty run id"),
    ];
    for (ids, code, text) in table {
        let wait = host.client().wait_all(ids, WaitMode::All, None).await;
        let error = wait.expect_err("refused");
        assert_eq!((error.code(), error.to_string().as_str()), (*code, *text));
    }
    // A run of somebody else looks like none.
    let other = host.scope.clone().owner("user-b");
    let error = host.controller.at(&other).wait_all(&[id], WaitMode::Any, None).await;
    assert_eq!(error.map_err(|error| error.code()).err(), Some("not-found"));
    let error = host.controller.at(&other).wait(id, None).await;
    assert_eq!(error.map_err(|error| error.code()).err(), Some("not-found"));
}
