//! Hosts that cannot say that they live, and hosts that others take for dead.

use std::sync::Arc;
use std::time::Duration;

use taskrun::agents::Interrupted;
use taskrun::event::{Event, Recorded};
use taskrun::ports::tool::ToolHints;
use taskrun::status::Status;

use super::common::{Gates, check_journal, count, following, named, soon, words_of};
use crate::native::{ClosurePlanner, ClosureTool, Native, Op, World, answer, call_of, value};

/// A lease so short that hosts look at it all the time.
const LEASE: Duration = Duration::from_millis(400);
/// Four fifths of it.
const NEARLY_OVER: Duration = Duration::from_millis(320);

/// A world whose only agent calls a tool that waits at the gate `tool`.
fn calling(lease: Duration) -> (World, Arc<Gates>) {
    let mut world = World::new();
    world.settings.lease = lease;
    let gates = Gates::new();
    let inside = Arc::clone(&gates);
    let tool = ClosureTool::new("f", ToolHints::default(), move |_, _| {
        let gates = Arc::clone(&inside);
        async move {
            let _inside = gates.pass("tool").await;
            value("\"from the tool\"")
        }
    });
    world.tool("t", Interrupted::Fail, tool);
    world.agent("a", following(vec![vec![("c", "t/f", "{}")]]));
    (world, gates)
}

/// Who had a run, in order: the hosts of its events.
fn hands(journal: &[Recorded]) -> Vec<String> {
    let hosts = journal.iter().filter_map(|recorded| {
        if let Event::Started { host, .. } | Event::Resumed { host, .. } = &recorded.event {
            Some(host.to_string())
        } else {
            None
        }
    });
    hosts.collect()
}

/// Waits until a host executes nothing.
async fn idle(host: &Native) {
    let idle = async {
        while host.controller.executing() > 0 {
            tokio::task::yield_now().await;
        }
    };
    soon("nothing is executed", idle).await;
}

#[tokio::test]
async fn a_host_whose_heart_is_not_heard_stops_its_guests_and_gives_its_runs_back() {
    let (mut world, gates) = calling(LEASE);
    let first = world.start().await;
    first.spawn(&named("1", "a")).await;
    gates.have_come(1).await;
    world.hearts.silence_of(first.controller.host(), NEARLY_OVER - Duration::from_millis(1));
    assert_eq!(gates.inside(), 1);
    world.hearts.silence_of(first.controller.host(), NEARLY_OVER);
    gates.are_gone(1).await;
    idle(&first).await;
    // It is given back, not lost; and this host does not take it again.
    let journal = first.journal("1").await;
    let last = journal.last().map(|recorded| &recorded.event);
    assert!(matches!(last, Some(Event::Lost { crashed: false, .. })), "{last:?}");
    first.spawn(&named("2", "a")).await;
    let second = world.start().await;
    // What was under way when it was stopped may have had its effect.
    assert_eq!(second.end("1").await.status(), Status::Completed);
    gates.open("tool");
    assert_eq!(second.end("2").await.status(), Status::Completed);
    let hosts = hands(&second.journal("1").await);
    let names = [first.controller.host().to_string(), second.controller.host().to_string()];
    assert_eq!(hosts, names);
    assert_eq!(hands(&second.journal("2").await), names[1..]);
    assert_eq!(gates.came().len(), 2);
    check_journal(&second.journal("1").await);
}

#[tokio::test]
async fn a_host_that_is_not_heard_takes_nothing_until_it_is_heard_again() {
    let (mut world, gates) = calling(LEASE);
    gates.open("tool");
    let first = world.start().await;
    world.hearts.silence_of(first.controller.host(), LEASE);
    let second = world.start().await;
    for id in ["1", "2", "3", "4", "5", "6"] {
        second.spawn(&named(id, "a")).await;
        second.end(id).await;
        let hosts = hands(&second.journal(id).await);
        assert_eq!(hosts, [second.controller.host().to_string()]);
    }
    world.kill(second).await;
    first.spawn(&named("7", "a")).await;
    world.hearts.silence_of(first.controller.host(), Duration::ZERO);
    assert_eq!(first.end("7").await.status(), Status::Completed);
}

#[tokio::test]
async fn no_tool_call_begins_when_the_lease_is_nearly_over() {
    // So long that the host looks at it only when something is to begin.
    let lease = Duration::from_secs(3_600);
    let (mut world, gates) = calling(lease);
    let inside = Arc::clone(&gates);
    world.agent(
        "slow",
        ClosurePlanner::new(move |input, _| {
            let gates = Arc::clone(&inside);
            async move {
                if input.resume.is_some() {
                    return answer(&super::common::words_so_far(&input));
                }
                let _inside = gates.pass("plan").await;
                call_of(&[("c", "t/f", "{}")])
            }
        }),
    );
    let first = world.start().await;
    first.spawn(&named("1", "slow")).await;
    gates.have_come(1).await;
    world.hearts.silence_of(first.controller.host(), lease * 4 / 5);
    gates.open("plan");
    idle(&first).await;
    assert_eq!(gates.came(), ["plan"]);
    let journal = first.journal("1").await;
    assert_eq!(count(&journal, "tool_call_scheduled"), 0);
    assert_eq!(count(&journal, "lost"), 1);
    gates.open("tool");
    let second = world.start().await;
    let run = second.end("1").await;
    assert_eq!(run.state.reply.result().as_deref(), Some("\"from the tool\""));
    assert_eq!(gates.came(), ["plan", "plan", "tool"]);
}

/// The outcomes of all calls in a journal.
fn results(journal: &[Recorded]) -> Vec<String> {
    let results = journal.iter().filter_map(|recorded| {
        if let Event::ToolResult { output, .. } = &recorded.event {
            Some(words_of(&output.outcome))
        } else {
            None
        }
    });
    results.collect()
}

#[tokio::test]
async fn a_host_taken_for_dead_that_learns_of_it_stops_its_guest() {
    let (mut world, gates) = calling(Duration::from_secs(3_600));
    let zombie = world.start().await;
    zombie.spawn(&named("1", "a")).await;
    gates.have_come(1).await;
    world.declare_dead(&zombie);
    let second = world.take_over().await;
    assert_eq!(second.end("1").await.status(), Status::Completed);
    // Its gate never opened.
    gates.are_gone(1).await;
    idle(&zombie).await;
    let journal = second.journal("1").await;
    check_journal(&journal);
    assert_eq!(results(&journal).len(), 1);
    assert!(results(&journal)[0].starts_with("interrupted: "));
}

#[tokio::test]
async fn a_host_taken_for_dead_writes_nothing_more_of_a_run_that_another_one_has() {
    let (mut world, gates) = calling(Duration::from_secs(3_600));
    // The store hears from the first host only when the second has done everything.
    let held = Arc::clone(&world.store);
    let zombie = world.start().await;
    world.part_stores();
    zombie.spawn(&named("1", "a")).await;
    gates.have_come(1).await;
    held.hold(Op::Append);
    gates.open("tool");
    held.somebody_waits().await;
    world.declare_dead(&zombie);
    let second = world.take_over().await;
    assert_eq!(second.end("1").await.status(), Status::Completed);
    let before = second.journal("1").await;
    held.release();
    idle(&zombie).await;
    let journal = second.journal("1").await;
    assert_eq!(journal, before);
    check_journal(&journal);
    assert_eq!(results(&journal).len(), 1);
    assert!(results(&journal)[0].starts_with("interrupted: "), "the tool's own answer is void");
}

#[tokio::test]
async fn a_host_taken_for_dead_in_the_middle_of_a_run_cannot_take_it_back() {
    let (mut world, gates) = calling(Duration::from_secs(3_600));
    world.agent("block", gates.planner());
    let held = Arc::clone(&world.store);
    let zombie = world.start().await;
    world.part_stores();
    zombie.spawn(&named("1", "block")).await;
    gates.have_come(1).await;
    // It is about to write the end of the run.
    held.hold(Op::Append);
    gates.open("1");
    held.somebody_waits().await;
    world.declare_dead(&zombie);
    let second = world.controller();
    second.controller.sweep().await.expect("the store can be swept");
    let lost = second.journal("1").await.len();
    held.release();
    idle(&zombie).await;
    assert_eq!(second.journal("1").await.len(), lost, "nothing follows the loss");
    world.clock.advance(Duration::from_secs(1));
    second.begin().await;
    let run = second.end("1").await;
    assert_eq!(run.status(), Status::Completed);
    let journal = second.journal("1").await;
    check_journal(&journal);
    assert_eq!(count(&journal, "assistant_message"), 1);
}
