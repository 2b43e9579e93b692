//! A host dies, and another one goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use taskrun::clock::SeededRandom;
use taskrun::driver::Journal;
use taskrun::ports::tool::{ToolReply, ToolWait};
use taskrun_journal::event::RunsReport;
use taskrun_journal::hold::WaitMode;
use taskrun_journal::ids::RunId;
use taskrun_journal::machine::decide;
use taskrun_journal::question::Answer;
use taskrun_journal::status::{BlockedOn, Status};
use taskrun_journal::store::Store;
use taskrun_journal::time::Clock;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;
use tokio::sync::Notify;

use crate::native::{ClosurePlanner, ClosureTool, Op, World, answer, call_of, request, value};

#[tokio::test]
async fn a_run_of_a_dead_host_goes_on_and_its_idempotent_call_is_repeated() {
    let mut world = World::new();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let hints = ToolHints { idempotent: true, ..ToolHints::default() };
    world.tool(
        "t",
        InterruptionPolicy::Fail,
        ClosureTool::new("f", hints, move |_, _| {
            let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
            async move {
                if first {
                    std::future::pending::<()>().await;
                }
                value("1")
            }
        }),
    );
    world.agent(
        "a",
        ClosurePlanner::new(|input, _| async move {
            match input.resume {
                None => call_of(&[("c1", "t/f", "{}")]),
                Some(_) => answer("done"),
            }
        }),
    );
    let first = world.start().await;
    let id = first.spawn(&request("a", "x")).await;
    first.until(&id, "calls", |run| run.state.tool_calls == 1).await;
    while calls.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    world.kill(first).await;
    let second = world.start().await;
    world.clock.advance(Duration::from_secs(1));
    let run = second.end(&id).await;
    assert_eq!(run.status(), Status::Completed, "{:?}", second.kinds(&id).await);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    let kinds = second.kinds(&id).await;
    assert!(kinds.contains(&"lost") && kinds.contains(&"tool_call_repeated"), "{kinds:?}");
}

#[tokio::test]
async fn a_parent_that_waits_for_a_child_gives_up_its_slot_and_gets_the_result() {
    let mut world = World::new();
    world.settings.slots = 1;
    world.tool(
        "t",
        InterruptionPolicy::Fail,
        ClosureTool::new("await", ToolHints::default(), |call, _| async move {
            let runs = vec![RunId::new(call.payload.trim_matches('"')).expect("an id")];
            Ok(Ok(ToolReply::Park(ToolWait::Runs {
                runs,
                mode: WaitMode::All,
                timeout: None,
                report: RunsReport::List,
            })))
        }),
    );
    world.agent("child", ClosurePlanner::new(|_, _| async { answer("from the child") }));
    world.agent(
        "parent",
        ClosurePlanner::new(|input, _| async move {
            match input.resume {
                None => call_of(&[("c1", "t/await", "\"child-1\"")]),
                Some(resume) => answer(&format!("{:?}", resume.tool_outputs[0].outcome)),
            }
        }),
    );
    let host = world.start().await;
    let mut first = request("parent", "x");
    first.id = Some("parent-1".into());
    let mut second = request("child", "y");
    second.id = Some("child-1".into());
    second.parent_run_id = Some("parent-1".into());
    world.store.hold(crate::native::Op::Claim);
    let parent = host.spawn(&first).await;
    let child = host.spawn(&second).await;
    world.store.release();
    let run = host.end(&parent).await;
    assert_eq!(run.status(), Status::Completed, "{:?}", host.kinds(&parent).await);
    assert!(run.state.reply.result().is_some_and(|text| text.contains("from the child")));
    assert_eq!(host.get(&child).await.status(), Status::Completed);
    assert!(host.kinds(&parent).await.contains(&"blocked"));
}

#[tokio::test]
async fn a_question_blocks_the_run_until_somebody_answers() {
    let mut world = World::new();
    world.tool(
        "t",
        InterruptionPolicy::Fail,
        ClosureTool::new("ask", ToolHints::default(), |_, _| async move {
            Ok(Ok(ToolReply::Park(ToolWait::Person { question: "which?".into(), timeout: None })))
        }),
    );
    world.agent(
        "a",
        ClosurePlanner::new(|input, _| async move {
            match input.resume {
                None => call_of(&[("c1", "t/ask", "{}")]),
                Some(resume) => answer(&format!("{:?}", resume.tool_outputs[0].outcome)),
            }
        }),
    );
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    let run = host.reach(&id, Status::Blocked).await;
    assert_eq!(run.state.awaits.len(), 1);
    assert_eq!(run.state.awaits[0].on, BlockedOn::Input);
    host.client().named("me").answer(&id, None, Answer::Text("JWT".into())).await.expect("taken");
    let run = host.end(&id).await;
    assert_eq!(run.status(), Status::Completed);
    assert!(run.state.reply.result().is_some_and(|text| text.contains("JWT")));
}

#[tokio::test]
async fn a_host_that_takes_up_a_run_which_it_had_lost_keeps_it_in_sight() {
    let mut world = World::new();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let may_end = Arc::new(Notify::new());
    let first_ends = Arc::clone(&may_end);
    let hints = ToolHints { idempotent: true, ..ToolHints::default() };
    world.tool(
        "t",
        InterruptionPolicy::Fail,
        ClosureTool::new("f", hints, move |_, _| {
            let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
            let ends = Arc::clone(&first_ends);
            async move {
                match first {
                    true => ends.notified().await,
                    false => std::future::pending().await,
                }
                value("1")
            }
        }),
    );
    world.agent("caller", ClosurePlanner::new(|_, _| async { call_of(&[("c1", "t/f", "{}")]) }));
    let host = world.start().await;
    let id = host.spawn(&request("caller", "x")).await;
    host.until(&id, "calls", |run| run.state.tool_calls == 1).await;
    // Its first driver is about to write the result, and does not know yet that the run is lost.
    world.store.hold(Op::Append);
    may_end.notify_one();
    world.store.somebody_waits().await;
    let memory: Arc<dyn Store> = world.memory.clone().expect("the store is in memory");
    let run = host.get(&id).await;
    let random = Arc::new(SeededRandom::new(99));
    let mut journal = Journal::new(memory, world.clock.clone(), random, run);
    let now = world.clock.now();
    journal.commit(|run| decide::lose(run, now, None)).await.expect("it is lost");
    world.clock.advance(Duration::from_secs(1));
    host.until(&id, "is taken up", |run| run.state.epoch == 3).await;
    world.store.release();
    while calls.load(Ordering::SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    host.settle().await;
    assert_eq!(host.controller.executing(), 1, "{:?}", host.kinds(&id).await);
}
