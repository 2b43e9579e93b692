//! Hosts that cannot say that they live, and hosts that others take for dead.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun::gate::Guard;
use taskrun::ports::hook::{HOOK_TIMEOUT, Hook, HookEntry, HookError, Hooks, Moment, Verdict};
use taskrun::ports::policy_engine::{PolicyEngine, PolicyFailure, PolicyInput};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::ruling::Phase;
use taskrun_journal::status::Status;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::{InterruptionPolicy, PolicyDecision};

use super::common::{Gates, check_journal, count, following, named, soon, words_of};
use crate::native::{
    ClosurePlanner, ClosureTool, Native, Op, World, answer, call_of, change_code, value,
};

/// A lease so short that hosts look at it all the time.
pub(super) const LEASE: Duration = Duration::from_millis(400);
/// Four fifths of it.
pub(super) const NEARLY_OVER: Duration = Duration::from_millis(320);

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
    world.tool("t", InterruptionPolicy::Fail, tool);
    world.agent("a", following(vec![vec![("c", "t/f", "{}")]]));
    (world, gates)
}

/// The hosts that had a run, in order: those of its events.
fn hands(journal: &[EventRecord]) -> Vec<String> {
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
pub(super) async fn idle(host: &Native) {
    let idle = async {
        while host.controller.executing() > 0 {
            tokio::task::yield_now().await;
        }
    };
    soon("nothing is executed", idle).await;
}

/// Waits until a host stands still, or goes on.
pub(super) async fn stands(host: &Native, wanted: bool) {
    let stands = async {
        while host.controller.stands_still() != wanted {
            tokio::task::yield_now().await;
        }
    };
    soon("it stands still, or goes on", stands).await;
}

/// Others may soon take it for dead; but while nobody can write nobody does.
#[tokio::test]
async fn a_host_that_is_not_heard_stands_still_and_goes_on_with_what_is_its_own() {
    let (mut world, gates) = calling(LEASE);
    let first = world.start().await;
    let timeout = Some(Duration::from_secs(3_600));
    first.spawn(&SpawnRequest { timeout, ..named("1", "a") }).await;
    gates.have_come(1).await;
    world.hearts.silence_of(first.controller.host(), NEARLY_OVER - Duration::from_millis(1));
    first.settle().await;
    assert!(!first.controller.stands_still());
    world.hearts.silence_of(first.controller.host(), NEARLY_OVER);
    stands(&first, true).await;
    // Its guest is there, and does not go on, whatever it waits for.
    gates.open("tool");
    first.spawn(&named("2", "a")).await;
    first.settle().await;
    assert_eq!(gates.inside(), 1);
    assert_eq!(count(&first.journal("1").await, "tool_result"), 0);
    // Its time-out stands still, too.
    world.clock.advance(Duration::from_secs(7_200));
    first.settle().await;
    assert_eq!(gates.inside(), 1);
    assert_eq!(first.get("2").await.status(), Status::Queued);

    world.hearts.silence_of(first.controller.host(), Duration::ZERO);
    for id in ["1", "2"] {
        assert_eq!(first.end(id).await.status(), Status::Completed);
        let journal = first.journal(id).await;
        check_journal(&journal);
        assert_eq!(hands(&journal), [first.controller.host().to_string()]);
        assert_eq!(results(&journal), ["\"from the tool\""]);
        assert_eq!(count(&journal, "lost"), 0);
    }
    assert_eq!(gates.came().len(), 2);
}

/// A hook and a policy engine that decide about calls when their gates are open.
struct Doorman(Arc<Gates>);

#[async_trait]
impl Hook for Doorman {
    async fn before(&self, moment: &Moment<'_>) -> Result<Verdict, HookError> {
        if let Moment::ToolCall { .. } = moment {
            self.0.pass("hook").await;
        }
        Ok(Verdict::Go)
    }
}

#[async_trait]
impl PolicyEngine for Doorman {
    fn name(&self) -> &str {
        "doorman"
    }

    fn timeout(&self) -> Duration {
        HOOK_TIMEOUT
    }

    async fn decide(&self, input: &PolicyInput) -> Result<PolicyDecision, PolicyFailure> {
        if input.phase == Phase::Calls {
            self.0.pass("engine").await;
        }
        Ok(PolicyDecision::default())
    }
}

#[tokio::test]
async fn the_time_of_hooks_and_policy_engines_stands_still_with_their_host() {
    let (mut world, gates) = calling(LEASE);
    gates.open("tool");
    let doorman = Arc::new(Doorman(Arc::clone(&gates)));
    world.hooks = Hooks::new(vec![HookEntry::critical("doorman", doorman.clone())]);
    let planner = following(vec![vec![("c", "t/f", "{}")]]);
    world.agent_with("a", planner, |agent| {
        change_code(agent, |code| code.guard = Guard { engines: vec![doorman] });
    });
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    for nth in 1..=2 {
        let came = gates.have_come(nth).await;
        world.hearts.silence_of(host.controller.host(), NEARLY_OVER);
        stands(&host, true).await;
        host.settle().await;
        world.clock.advance(10 * HOOK_TIMEOUT);
        world.hearts.silence_of(host.controller.host(), Duration::ZERO);
        stands(&host, false).await;
        host.settle().await;
        gates.open(&came[nth - 1]);
    }
    assert_eq!(host.end("1").await.status(), Status::Completed);
    assert_eq!(results(&host.journal("1").await), ["\"from the tool\""]);
    let mut came = gates.came();
    came.sort();
    assert_eq!(came, ["engine", "hook", "tool"]);
}

#[tokio::test]
async fn a_host_that_is_heard_again_ends_the_guests_of_runs_that_another_one_took() {
    let (mut world, gates) = calling(LEASE);
    // This host hears of nothing that another one writes.
    let held = Arc::clone(&world.store);
    let first = world.start().await;
    world.part_stores();
    first.spawn(&named("1", "a")).await;
    gates.have_come(1).await;
    world.hearts.silence_of(first.controller.host(), LEASE);
    stands(&first, true).await;
    world.declare_dead(&first);
    let second = world.take_over().await;
    assert_eq!(second.end("1").await.status(), Status::Completed);
    let before = second.journal("1").await;
    let tried = held.tries(Op::Append);
    world.hearts.silence_of(first.controller.host(), Duration::ZERO);
    gates.are_gone(1).await;
    idle(&first).await;
    stands(&first, false).await;
    assert_eq!(second.journal("1").await, before);
    assert!(held.tries(Op::Append) <= tried + 1, "it may try to give the run back");
    assert_eq!(gates.came(), ["tool"]);
}

/// The run goes on elsewhere when its host is told to end while it stands still.
#[tokio::test]
async fn a_host_that_is_told_to_end_while_it_stands_still_lets_its_runs_go() {
    let (mut world, gates) = calling(LEASE);
    let first = world.start().await;
    first.spawn(&named("1", "a")).await;
    gates.have_come(1).await;
    world.hearts.silence_of(first.controller.host(), LEASE);
    stands(&first, true).await;
    let closed = soon("it ends", first.controller.hand_over(Duration::ZERO)).await;
    assert_eq!(closed.stragglers, []);
    gates.are_gone(1).await;
    assert_eq!(gates.inside(), 0);
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
    gates.are_gone(1).await;
    first.settle().await;
    assert_eq!(gates.came(), ["plan"]);
    assert_eq!(count(&first.journal("1").await, "tool_call_scheduled"), 0);
    gates.open("tool");
    world.hearts.silence_of(first.controller.host(), Duration::ZERO);
    let run = first.end("1").await;
    assert_eq!(run.state.reply.result().as_deref(), Some("\"from the tool\""));
    assert_eq!(gates.came(), ["plan", "tool"]);
    assert_eq!(count(&first.journal("1").await, "lost"), 0);
}

/// The outcomes of all calls in a journal.
fn results(journal: &[EventRecord]) -> Vec<String> {
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
async fn cs_20_a_lease_that_is_not_renewed_goes_to_another_host_which_keeps_it() {
    let lease = Duration::from_secs(3_600);
    let (mut world, gates) = calling(lease);
    let first = world.start().await;
    world.part_stores();
    first.spawn(&named("1", "a")).await;
    gates.have_come(1).await;
    // While it is renewed nobody else has the run.
    let beside = world.start().await;
    beside.settle().await;
    assert_eq!(hands(&beside.journal("1").await), [first.controller.host().to_string()]);
    world.kill(beside).await;
    // Two hours later another one has, and does not wait for the first.
    world.hearts.silence_of(first.controller.host(), 2 * lease);
    world.declare_dead(&first);
    let second = world.take_over().await;
    assert_eq!(second.end("1").await.status(), Status::Completed);
    let journal = second.journal("1").await;
    let hosts = [&first, &second].map(|host| host.controller.host().to_string());
    assert_eq!(hands(&journal), hosts);
    // The first is heard again and learns of it, and what it gives back is not its own any more, however often.
    world.hearts.silence_of(first.controller.host(), Duration::ZERO);
    gates.are_gone(1).await;
    for _ in 0..2 {
        let closed = soon("it ends", first.controller.hand_over(Duration::ZERO)).await;
        assert_eq!(closed.stragglers, []);
    }
    assert_eq!(second.journal("1").await, journal);
    second.spawn(&named("2", "a")).await;
    gates.open("tool");
    assert_eq!(second.end("2").await.status(), Status::Completed);
    assert_eq!(hands(&second.journal("2").await), hosts[1..]);
    check_journal(&journal);
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
