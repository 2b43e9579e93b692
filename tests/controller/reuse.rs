//! Requests that are made again, and runs that wait for each other's turn (M-58, M-07).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use taskrun::controller::SpawnOutcome;
use taskrun::error::ControllerError;
use taskrun::spawn::{REUSE_DEFAULT, SpawnRequest};
use taskrun_journal::answers::Answers;
use taskrun_journal::message::{Message, Role};
use taskrun_journal::status::Status;

use crate::native::{ClosurePlanner, Gate, Native, World, answer, failed, request};

async fn submit(host: &Native, request: &SpawnRequest) -> SpawnOutcome {
    host.client().submit(request).await.expect("accepted")
}

/// An agent that counts its steps, fails the task `fail` and stays at the gate with `wait`.
fn counting(world: &mut World, gate: &Gate) -> Arc<AtomicU32> {
    let steps = Arc::new(AtomicU32::new(0));
    let (counted, gate) = (Arc::clone(&steps), gate.clone());
    world.agent(
        "a",
        ClosurePlanner::new(move |input, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            let (task, gate) = (input.messages[0].joined_text(), gate.clone());
            async move {
                match task.as_str() {
                    "fail" => return failed(None, "child failed"),
                    "wait" => gate.pass().await,
                    _ => {}
                }
                answer("done")
            }
        }),
    );
    steps
}

#[tokio::test]
async fn m_58_a_key_with_the_same_request_gives_the_run_that_is_there() {
    let (mut world, gate) = (World::new(), Gate::new());
    let steps = counting(&mut world, &gate);
    let host = world.start().await;
    let mut asked = request("a", "wait");
    asked.idempotency_key = Some("k1".into());
    let first = submit(&host, &asked).await;
    let second = submit(&host, &asked).await;
    assert!(!first.reused && second.reused);
    assert_eq!(first.run.id(), second.run.id(), "also while it is under way");
    gate.open();
    host.end(first.run.id().as_str()).await;
    let third = submit(&host, &asked).await;
    assert_eq!((third.run.status(), third.reused), (Status::Completed, true));
    assert_eq!(steps.load(Ordering::SeqCst), 1);

    let mut other = asked.clone();
    other.task = "something else".into();
    let error = host.client().submit(&other).await.expect_err("refused");
    assert!(matches!(&error, ControllerError::AlreadyExists { id } if id == first.run.id()));

    // The key of one owner is none of another's business.
    other.owner_user_id = "user-b".into();
    let theirs = submit(&host, &other).await;
    assert!(!theirs.reused);
    assert_ne!(theirs.run.id(), first.run.id());
}

#[tokio::test]
async fn m_58_only_what_was_completed_within_the_time_is_used_again() {
    let (mut world, gate) = (World::new(), Gate::new());
    let steps = counting(&mut world, &gate);
    let host = world.start().await;
    let mut asked = request("a", "Answer THIS");
    asked.reuse_within = Some(REUSE_DEFAULT);
    let first = submit(&host, &asked).await;
    host.end(first.run.id().as_str()).await;
    world.clock.advance(REUSE_DEFAULT);
    asked.task = " answer this ".into();
    let second = submit(&host, &asked).await;
    assert_eq!((second.run.id(), second.reused), (first.run.id(), true));
    assert_eq!(second.run.state.reply.result().as_deref(), Some("done"));

    let mut elsewhere = asked.clone();
    elsewhere.parent_session_id = "parent-b".into();
    let elsewhere = submit(&host, &elsewhere).await;
    assert!(!elsewhere.reused, "another session, another task");
    host.end(elsewhere.run.id().as_str()).await;

    world.clock.advance(Duration::from_millis(1));
    let late = submit(&host, &asked).await;
    assert!(!late.reused, "the time is over");
    host.end(late.run.id().as_str()).await;
    assert_eq!(steps.load(Ordering::SeqCst), 3);
    let fresh = submit(&host, &asked).await;
    assert_eq!((fresh.run.id(), fresh.reused), (late.run.id(), true), "the newer one counts");
    asked.reuse_within = None;
    assert!(!submit(&host, &asked).await.reused, "unless it is asked for");
}

#[tokio::test]
async fn m_58_a_result_is_used_again_however_it_was_asked_for() {
    let (mut world, gate) = (World::new(), Gate::new());
    let steps = counting(&mut world, &gate);
    let host = world.start().await;
    let first = submit(&host, &request("a", "the same task")).await;
    host.end(first.run.id().as_str()).await;
    world.clock.advance(Duration::from_secs(1));
    // What failed meanwhile, or is under way, takes nothing away from it.
    let mut asked = request("a", "the same task");
    asked.reuse_within = Some(REUSE_DEFAULT);
    let again = submit(&host, &asked).await;
    assert_eq!((again.run.id(), again.reused), (first.run.id(), true));
    assert_eq!(steps.load(Ordering::SeqCst), 1);

    // What the answer depends on is the same, or it is not used again.
    type Change = fn(&mut SpawnRequest);
    let changes: [Change; 7] = [
        |asked| asked.injected_context_messages = vec![Message::text(Role::User, "in euros")],
        |asked| asked.runtime_state = [("currency".to_owned(), "euro".to_owned())].into(),
        |asked| asked.app_name = Some("mail".into()),
        |asked| asked.parent_app_name = Some("mail".into()),
        |asked| asked.owner_user_id = "user-b".into(),
        |asked| asked.runtime_state_keys.run = Some("key".into()),
        |asked| asked.answers = Some(Answers::Refuse { reason: "nobody is here".to_owned() }),
    ];
    for change in changes {
        let mut other = asked.clone();
        change(&mut other);
        let other = submit(&host, &other).await;
        assert!(!other.reused, "{:?}", other.run.spec);
        host.end(other.run.id().as_str()).await;
    }
}

#[tokio::test]
async fn m_58_what_failed_was_canceled_or_is_under_way_is_not_used_again() {
    let (mut world, gate) = (World::new(), Gate::new());
    counting(&mut world, &gate);
    let host = world.start().await;
    for task in ["fail", "wait"] {
        let mut asked = request("a", task);
        asked.reuse_within = Some(REUSE_DEFAULT);
        let first = submit(&host, &asked).await;
        let id = first.run.id().as_str();
        if task == "wait" {
            gate.reached_by(1).await;
            let second = submit(&host, &asked).await;
            assert!(!second.reused, "it is under way");
            host.client().cancel(id, None).await.expect("there");
            let second = second.run.id().as_str();
            host.client().cancel(second, None).await.expect("there");
            assert_eq!(host.end(second).await.status(), Status::Canceled);
        }
        assert_ne!(host.end(id).await.status(), Status::Completed);
        assert!(!submit(&host, &asked).await.reused, "{task}");
    }
}

#[tokio::test]
async fn m_58_serial_runs_of_a_session_are_executed_one_after_the_other() {
    let mut world = World::new();
    let gates = [Gate::new(), Gate::new(), Gate::new()];
    let own = gates.clone();
    world.agent(
        "a",
        ClosurePlanner::new(move |input, _| {
            let number = input.messages[0].joined_text().parse::<usize>().expect("a number");
            let gate = own[number].clone();
            async move {
                gate.pass().await;
                answer("done")
            }
        }),
    );
    world.agent("other", ClosurePlanner::new(|_, _| async { answer("done") }));
    let host = world.start().await;
    let serial = |agent: &str, task: &str, session: &str| {
        let mut asked = request(agent, task);
        asked.serial = true;
        asked.parent_session_id = session.into();
        asked
    };
    let mut ids = Vec::new();
    for task in ["0", "1", "2"] {
        ids.push(host.spawn(&serial("a", task, "s")).await);
    }
    gates[0].reached_by(1).await;
    // Neither another session nor a run that is not serial waits for them.
    let elsewhere = host.spawn(&serial("other", "x", "t")).await;
    assert_eq!(host.end(&elsewhere).await.status(), Status::Completed);
    let mut free = serial("other", "x", "s");
    free.serial = false;
    assert_eq!(host.end(&host.spawn(&free).await).await.status(), Status::Completed);
    assert_eq!(host.get(&ids[1]).await.status(), Status::Queued);
    assert_eq!((gates[1].visitors(), gates[2].visitors()), (0, 0));
    gates[0].open();
    gates[1].reached_by(1).await;
    assert!(host.get(&ids[0]).await.status().is_terminal(), "it has ended before");
    assert_eq!(host.get(&ids[2]).await.status(), Status::Queued);
    host.client().cancel(&ids[1], None).await.expect("there");
    gates[2].reached_by(1).await;
    assert_eq!(host.get(&ids[1]).await.status(), Status::Canceled);
    gates[2].open();
    assert_eq!(host.end(&ids[2]).await.status(), Status::Completed);
}
