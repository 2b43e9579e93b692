//! A host that dies at every write of a heartbeat: no entry is lost, and none is worked on twice.

use std::time::Duration;

use taskrun::clock::SimulatedClock;
use taskrun::ports::planner::PlanInput;
use taskrun_journal::event::Event;
use taskrun_journal::list::Scope;
use taskrun_journal::message::Labels;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::status::Status;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use super::beats::{batches, beating, leave, taken};
use super::common::{Handle, check_journal, fails};
use super::dying::{Point, die_at_each, survive};
use crate::native::{
    ClosurePlanner, ClosureTool, Native, Op, Planned, Side, World, answer, call_of, value,
};

const ENTRIES: [&str; 3] = ["a", "b", "c"];
/// More than passes in any play: hearts beat on while hosts die and work in real time, tick after
/// tick, and nobody counts these.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);

/// A batch that has the entry `a` acknowledges it, and answers for all others at its end.
fn plan(input: &PlanInput) -> Planned {
    let task = input.messages.iter().map(|message| message.joined_text()).collect::<String>();
    if input.run.turn == 1 && task.contains("Task #a:") {
        return call_of(&[("c", "complete/f", "\"a\"")]);
    }
    answer("the rest is done")
}

/// An agent with a heart and a finalizer that takes two entries at a time.
fn world() -> (World, Handle) {
    let mut world = World::new();
    world.settings.tree_slots = 2;
    let handle = Handle::default();
    let controllers = handle.clone();
    let repeatable = ToolHints { idempotent: true, ..ToolHints::default() };
    let complete = ClosureTool::new("f", repeatable, move |call, _| {
        let controller = controllers.get();
        async move {
            let (scope, id) = (Scope::tenant("default"), call.payload.trim_matches('"'));
            match controller.at(&scope).complete_entry(&call.run_id, id, "did it").await {
                Ok(_) => value("\"completed\""),
                Err(error) => fails(error.code(), &error.to_string()),
            }
        }
    });
    world.tool("complete", InterruptionPolicy::Fail, complete);
    let planner = ClosurePlanner::new(|input, _| {
        let planned = plan(&input);
        async move { planned }
    });
    let planner = planner.finalizer(|input, _| async move {
        Ok(Ok(Labels::from([("heard".to_owned(), input.run.run_id)])))
    });
    beating(&mut world, "coder", planner);
    (world, handle)
}

/// The world outside of the host: it leaves entries, and waits for their end while time passes.
async fn outside(door: &Native, clock: &SimulatedClock) -> Vec<Run> {
    leave(door, "coder", &ENTRIES).await;
    let ends = async {
        let mut all = Vec::new();
        for id in ENTRIES {
            all.push(door.end(id).await);
        }
        for batch in batches(door).await {
            all.push(door.end(batch.id().as_str()).await);
        }
        all
    };
    clock.run_until(YEAR, ends).await.0
}

async fn play(point: Point) -> u32 {
    let (mut world, handle) = world();
    let door = world.door().await;
    let clock = std::sync::Arc::clone(&world.clock);
    let (runs, deaths) = survive(&mut world, &[point], &handle, outside(&door, &clock)).await;
    for run in &runs {
        let context = format!("{} after a crash at {point:?}", run.id());
        assert_eq!(run.status(), Status::Completed, "{context}");
        let journal = door.journal(run.id().as_str()).await;
        check_journal(&journal);
        let begun = journal.iter().filter_map(|recorded| {
            let Event::Started { batch, .. } = &recorded.event else { return None };
            Some(batch.is_some())
        });
        assert_eq!(begun.collect::<Vec<_>>(), [run.spec.entries.is_empty()], "{context}");
        let metadata = RunView::from(run).metadata;
        assert!(deaths > 0 || metadata["heard"] == run.id().as_str(), "{context}");
    }
    let said: Vec<_> = runs.iter().map(|run| run.state.reply.result()).collect();
    let rest = || Some("the rest is done".to_owned());
    let expected = [Some("did it".to_owned()), rest(), rest(), rest(), rest()];
    assert_eq!(said, expected, "{point:?}");
    let made: Vec<_> = runs[ENTRIES.len()..].iter().map(taken).collect();
    assert_eq!(made, [vec!["a", "b"], vec!["c"]], "{point:?}");
    deaths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m_15_a_host_may_die_before_and_after_any_batch_that_it_makes() {
    die_at_each(Op::Batch, Side::Before, 2, play).await;
    die_at_each(Op::Batch, Side::After, 2, play).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m_15_a_host_may_die_before_and_after_any_claim_of_a_heartbeat() {
    die_at_each(Op::Claim, Side::Before, 3, play).await;
    die_at_each(Op::Claim, Side::After, 3, play).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m_15_a_host_may_die_before_and_after_any_append_of_a_heartbeat() {
    die_at_each(Op::Append, Side::Before, 10, play).await;
    die_at_each(Op::Append, Side::After, 10, play).await;
}
