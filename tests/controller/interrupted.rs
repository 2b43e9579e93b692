//! The fate of runs and calls whose host died.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::machine::decide::CRASHES_IN_A_ROW_MAX;
use taskrun_journal::question::{Answer, AwaitItem};
use taskrun_journal::run::RunView;
use taskrun_journal::status::{BlockedOn, Status, StopReason};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::{ASK_TIMEOUT_DEFAULT, InterruptionPolicy};

use super::common::{Gates, check_journal, count, following, named, words_so_far};
use crate::native::{ClosurePlanner, ClosureTool, Native, World, answer, call_of, value};

/// Ids under which a tool was called, in order.
type Ids = Arc<Mutex<Vec<String>>>;

/// A run whose only call was under way when its host died, and the host that took it up.
async fn cut_off(interrupted: InterruptionPolicy, hints: ToolHints) -> (World, Native, Ids) {
    let mut world = World::new();
    let (ids, gates) = (Ids::default(), Gates::new());
    let (called, inside) = (Arc::clone(&ids), Arc::clone(&gates));
    let tool = ClosureTool::new("f", hints, move |call, _| {
        let (called, gates) = (Arc::clone(&called), Arc::clone(&inside));
        async move {
            let first = {
                let mut called = called.lock().unwrap_or_else(PoisonError::into_inner);
                called.push(call.tool_call_id);
                called.len() == 1
            };
            if first {
                let _inside = gates.pass("never").await;
            }
            value("\"it worked\"")
        }
    });
    world.tool("t", interrupted, tool);
    world.agent("a", following(vec![vec![("c", "t/f", "{}")]]));
    let first = world.start().await;
    first.spawn(&named("1", "a")).await;
    gates.have_come(1).await;
    world.kill(first).await;
    let second = world.take_over().await;
    (world, second, ids)
}

fn calls(ids: &Ids) -> Vec<String> {
    ids.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

#[tokio::test]
async fn a_call_that_may_not_be_repeated_fails_and_the_run_goes_on() {
    let (_world, host, ids) = cut_off(InterruptionPolicy::Fail, ToolHints::default()).await;
    let run = host.end("1").await;
    assert_eq!(run.status(), Status::Completed);
    let said = run.state.reply.result().expect("a result");
    assert!(said.starts_with("interrupted: "), "{said}");
    assert_eq!(calls(&ids).len(), 1);
}

#[tokio::test]
async fn an_idempotent_call_is_repeated_whatever_is_said_about_others() {
    for interrupted in [InterruptionPolicy::Fail, InterruptionPolicy::Ask] {
        let hints = ToolHints { idempotent: true, ..ToolHints::default() };
        let (_world, host, ids) = cut_off(interrupted, hints).await;
        let run = host.end("1").await;
        assert_eq!(run.state.reply.result().as_deref(), Some("\"it worked\""));
        let calls = calls(&ids);
        assert_eq!(calls.len(), 2);
        assert_eq!(calls[0], calls[1], "a repetition is known by its id");
    }
}

/// The run waits for consent to the repetition.
async fn asks(host: &Native) {
    let run = host.reach("1", Status::Blocked).await;
    assert_eq!(RunView::from(&run).blocked_on, Some(BlockedOn::Confirmation));
    let asks = host.client().asks("1").await.expect("can be read");
    assert_eq!(asks.len(), 1);
    assert!(matches!(&asks[0].what, AwaitItem::Confirmation { tool_name, tool_call_id, .. }
        if tool_name == "t/f" && tool_call_id == "c"));
}

#[tokio::test]
async fn a_repetition_that_is_accepted_has_the_same_id_as_the_call() {
    let (_world, host, ids) = cut_off(InterruptionPolicy::Ask, ToolHints::default()).await;
    asks(&host).await;
    assert_eq!(calls(&ids).len(), 1);
    let yes = Answer::Confirmed(true);
    host.client().named("me").answer("1", None, yes).await.expect("taken");
    let run = host.end("1").await;
    assert_eq!(run.state.reply.result().as_deref(), Some("\"it worked\""));
    let calls = calls(&ids);
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0], calls[1]);
    let journal = host.journal("1").await;
    check_journal(&journal);
    assert_eq!((count(&journal, "tool_call_repeated"), count(&journal, "tool_result")), (1, 1));
}

#[tokio::test]
async fn a_repetition_that_is_declined_fails_the_call() {
    let (_world, host, ids) = cut_off(InterruptionPolicy::Ask, ToolHints::default()).await;
    asks(&host).await;
    let no = Answer::Confirmed(false);
    host.client().named("me").answer("1", None, no).await.expect("taken");
    let said = host.end("1").await.state.reply.result().expect("a result");
    assert!(said.starts_with("interrupted: "), "{said}");
    assert_eq!(calls(&ids).len(), 1);
}

#[tokio::test]
async fn a_repetition_about_which_nobody_answers_in_time_fails_the_call() {
    let (world, host, ids) = cut_off(InterruptionPolicy::Ask, ToolHints::default()).await;
    asks(&host).await;
    world.clock.advance(ASK_TIMEOUT_DEFAULT - Duration::from_secs(1));
    host.settle().await;
    assert_eq!(host.get("1").await.status(), Status::Blocked);
    world.clock.advance(Duration::from_secs(1));
    let run = host.end("1").await;
    assert_eq!(run.status(), Status::Completed);
    let said = run.state.reply.result().expect("a result");
    assert!(said.starts_with("interrupted: "), "{said}");
    assert_eq!(calls(&ids).len(), 1);
    let journal = host.journal("1").await;
    check_journal(&journal);
    assert_eq!((count(&journal, "asked"), count(&journal, "answered")), (1, 1));
}

#[tokio::test]
async fn an_accepted_repetition_that_is_cut_off_too_is_not_repeated_without_being_asked_again() {
    let mut world = World::new();
    let (gates, begun) = (Gates::new(), Arc::new(AtomicU32::new(0)));
    let (inside, counted) = (Arc::clone(&gates), Arc::clone(&begun));
    let tool = ClosureTool::new("f", ToolHints::default(), move |_, _| {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        let gates = Arc::clone(&inside);
        async move {
            let _inside = gates.pass(&number.to_string()).await;
            value("1")
        }
    });
    world.tool("t", InterruptionPolicy::Ask, tool);
    world.agent("a", following(vec![vec![("c", "t/f", "{}")]]));
    let first = world.start().await;
    first.spawn(&named("1", "a")).await;
    gates.have_come(1).await;
    world.kill(first).await;
    let second = world.take_over().await;
    asks(&second).await;
    let yes = Answer::Confirmed(true);
    second.client().named("me").answer("1", None, yes).await.expect("taken");
    gates.have_come(2).await;
    world.kill(second).await;
    let third = world.take_over().await;
    let waits_or_ended = |status: Status| status == Status::Blocked || status.is_terminal();
    let run = third.until("1", "waits or ends", |run| waits_or_ended(run.status())).await;
    assert_eq!(begun.load(Ordering::SeqCst), 2, "one consent is for one repetition");
    assert_eq!(run.status(), Status::Blocked);
    asks(&third).await;
}

/// More calls than may be under way at once (16), each with its number as argument.
const CALLS: usize = 18;

/// A run that wants all of them in its first turn; the first host dies when as many as can be are
/// under way. Gives the arguments with which the tool was called.
async fn more_than_fit(hints: ToolHints) -> (World, Native, Ids) {
    let mut world = World::new();
    let (called, gates, dead) = (Ids::default(), Gates::new(), Arc::new(AtomicU32::new(0)));
    let (all, inside, is_dead) = (Arc::clone(&called), Arc::clone(&gates), Arc::clone(&dead));
    let tool = ClosureTool::new("f", hints, move |call, _| {
        all.lock().unwrap_or_else(PoisonError::into_inner).push(call.payload);
        let (gates, dies) = (Arc::clone(&inside), is_dead.load(Ordering::SeqCst) == 0);
        async move {
            if dies {
                let _inside = gates.pass("never").await;
            }
            value("1")
        }
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let planner = ClosurePlanner::new(|input, _| async move {
        if input.resume.is_some() {
            return answer(&words_so_far(&input));
        }
        let ids: Vec<_> = (10..10 + CALLS).map(|number| number.to_string()).collect();
        let calls: Vec<_> = ids.iter().map(|id| (id.as_str(), "t/f", id.as_str())).collect();
        call_of(&calls)
    });
    world.agent("a", planner);
    let first = world.start().await;
    first.spawn(&named("1", "a")).await;
    gates.have_come(16).await;
    let journal = first.journal("1").await;
    assert_eq!(count(&journal, "tool_call_scheduled"), 16, "the others wait for a place");
    dead.store(1, Ordering::SeqCst);
    world.kill(first).await;
    let second = world.take_over().await;
    (world, second, called)
}

#[tokio::test]
async fn a_call_that_waited_for_a_place_has_not_begun_and_is_simply_executed() {
    let (_world, host, called) = more_than_fit(ToolHints::default()).await;
    let run = host.end("1").await;
    let said = run.state.reply.result().expect("a result");
    assert_eq!(said.matches("interrupted: ").count(), 16, "{said}");
    assert!(said.ends_with("; 1; 1"), "{said}");
    let called = calls(&called);
    assert_eq!(called.len(), CALLS, "nothing was done twice: {called:?}");
    assert_eq!(run.state.tool_calls, u32::try_from(CALLS).expect("small"));
    let journal = host.journal("1").await;
    check_journal(&journal);
    let kinds = ["tool_call_scheduled", "tool_call_repeated", "tool_result"];
    assert_eq!(kinds.map(|kind| count(&journal, kind)), [CALLS, 0, CALLS]);
}

#[tokio::test]
async fn only_calls_that_began_are_repeated() {
    let hints = ToolHints { idempotent: true, ..ToolHints::default() };
    let (_world, host, called) = more_than_fit(hints).await;
    assert_eq!(host.end("1").await.status(), Status::Completed);
    assert_eq!(calls(&called).len(), CALLS + 16);
    let journal = host.journal("1").await;
    let kinds = ["tool_call_scheduled", "tool_call_repeated", "tool_result"];
    assert_eq!(kinds.map(|kind| count(&journal, kind)), [CALLS, 16, CALLS]);
}

/// The pauses that were recorded when hosts died.
fn pauses(journal: &[EventRecord]) -> Vec<Duration> {
    let lost = journal.iter().filter_map(|recorded| {
        if let Event::Lost { not_before, crashed: true, .. } = &recorded.event {
            Some(Duration::from_millis(not_before.0.saturating_sub(recorded.at.0)))
        } else {
            None
        }
    });
    lost.collect()
}

#[tokio::test]
async fn a_run_that_kills_its_hosts_fails_before_it_kills_a_fourth_one() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent("deadly", gates.planner());
    world.agent("good", ClosurePlanner::new(|_, _| async { answer("done") }));
    let mut host = world.start().await;
    host.spawn(&named("1", "deadly")).await;
    for deaths in 1..=CRASHES_IN_A_ROW_MAX {
        // Each time the planner is asked, its host dies.
        gates.have_come(usize::try_from(deaths).expect("small")).await;
        world.kill(host).await;
        host = world.take_over().await;
    }
    let run = host.end("1").await;
    let view = RunView::from(&run);
    let reason = Some(StopReason::InterruptedByRestart);
    assert_eq!((view.status, view.stop_reason), (Status::Failed, reason));
    assert!(view.error.is_some_and(|text| {
        text.starts_with("interrupted by previous runtime restart") && text.ends_with(" 3 times")
    }));
    assert_eq!(gates.came().len(), 3);
    let journal = host.journal("1").await;
    check_journal(&journal);
    let (half, one) = (Duration::from_millis(500), Duration::from_secs(1));
    assert_eq!(pauses(&journal), [half, one, Duration::ZERO], "each pause is longer");
    // The host lives.
    host.spawn(&named("2", "good")).await;
    assert_eq!(host.end("2").await.status(), Status::Completed);
}

#[tokio::test]
async fn nobody_takes_up_the_run_of_a_dead_host_before_its_pause_is_over() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent("a", gates.planner());
    let first = world.start().await;
    first.spawn(&named("1", "a")).await;
    gates.have_come(1).await;
    world.kill(first).await;
    let second = world.start().await;
    world.clock.advance(Duration::from_millis(499));
    // Whoever looks for work finds other work, and not this.
    second.spawn(&named("2", "a")).await;
    assert_eq!(gates.have_come(2).await, ["1", "2"]);
    assert_eq!(second.kinds("1").await.last(), Some(&"lost"));
    world.clock.advance(Duration::from_millis(1));
    second.spawn(&named("3", "a")).await;
    let came = gates.have_come(4).await;
    assert!(came[2..].contains(&"1".to_owned()), "{came:?}");
}

#[tokio::test]
async fn a_run_that_is_not_durable_fails_with_its_host() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent_with("a", gates.planner(), |agent| agent.durable = false);
    let first = world.start().await;
    first.spawn(&named("1", "a")).await;
    gates.have_come(1).await;
    world.kill(first).await;
    let second = world.take_over().await;
    let view = RunView::from(&second.end("1").await);
    assert_eq!(view.stop_reason, Some(StopReason::InterruptedByRestart));
    assert_eq!(view.error.as_deref(), Some("interrupted by previous runtime restart"));
    assert_eq!(gates.came().len(), 1);
}
