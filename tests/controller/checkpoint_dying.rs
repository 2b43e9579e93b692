//! Runs that leave behind what their next round does not need, whatever host dies at whatever write, those
//! included that end a round: what is left behind is left once, and the end is that of an undisturbed run.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use taskrun::ports::planner::PlanInput;
use taskrun_journal::checkpoint::Checkpoint;
use taskrun_journal::event::Event;
use taskrun_journal::list::TreeQuery;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::ToolOutcome;

use super::agent_tools::children;
use super::common::{Handle, check_journal};
use super::dying::{Point, die_at_each, survive};
use super::host_tools::leader_that;
use super::rounds::{autonomous, planned, report};
use crate::native::{ClosurePlanner, Native, Op, Planned, Side, World, answer, call_of};

/// So much is written in the first round that a fold of the journal is kept at the end of the next.
const LONG: usize = 80 << 10;

/// The result of the last call of a name.
fn last(input: &PlanInput, name: &str) -> Value {
    let mut outputs = input.resume.iter().flat_map(|resume| resume.tool_outputs.iter());
    let output = outputs.rfind(|output| output.name == name).expect("it was called");
    let ToolOutcome::Value(json) = &output.outcome else { panic!("{output:?}") };
    serde_json::from_str(json).expect("JSON")
}

/// Starts a run and waits for it in each of two rounds, and is done in the third.
pub(super) fn step(input: &PlanInput) -> Planned {
    let (id, turn) = (format!("c{}", input.run.turn), input.run.turn);
    let call = |name: &str, args: Value| call_of(&[(&id, name, &args.to_string())]);
    match turn {
        1 | 4 => call("host/spawn_task", json!({ "agent": "worker", "message": "dig" })),
        2 | 5 => {
            let started = last(input, "host/spawn_task");
            call("host/await_tasks", json!({ "task_ids": [started["task_id"]] }))
        }
        3 => answer(&"found ".repeat(LONG / 6)),
        6 => answer("found more"),
        7 => planned(&report("it")),
        _ => answer("bye"),
    }
}

fn world() -> World {
    let mut world = World::new();
    world.agent("worker", ClosurePlanner::new(|_, _| async { answer("dug") }));
    let planner = ClosurePlanner::new(|input: PlanInput, _| {
        let planned = step(&input);
        async move { planned }
    });
    leader_that(&mut world, ("a", &["worker"]), planner, |_| {});
    world
}

async fn outside(door: &Native) -> RunView {
    door.spawn(&autonomous("1")).await;
    RunView::from(&door.end("1").await)
}

/// The things that were left behind with each round.
async fn checkpoints(door: &Native) -> Vec<Checkpoint> {
    let journal = door.journal("1").await;
    check_journal(&journal);
    let ends = journal.into_iter().filter_map(|recorded| {
        let Event::RoundEnded { checkpoint, .. } = recorded.event else { return None };
        Some(*checkpoint)
    });
    ends.collect()
}

async fn play(point: Point) -> u32 {
    let mut world = world();
    let door = world.door().await;
    let (run, deaths) = survive(&mut world, &[point], &Handle::default(), outside(&door)).await;
    let ended = (run.status, run.stop_reason, run.rounds, run.turns);
    let expected = (Status::Completed, Some(StopReason::Done), Some(3), 8);
    assert_eq!(ended, expected, "{point:?}: {:?}", run.error);
    let children: BTreeSet<_> =
        children(&door, "1").await.iter().map(|run| run.id().clone()).collect();
    assert_eq!(children.len(), 2, "{point:?}");
    let left = checkpoints(&door).await;
    let settled: Vec<_> = left.iter().flat_map(|one| one.settled.runs.clone()).collect();
    assert_eq!(settled.len(), 2, "each once, {point:?}: {settled:?}");
    assert_eq!(settled.into_iter().collect::<BTreeSet<_>>(), children, "{point:?}");
    let folds: Vec<_> = left.iter().map(|one| one.fold.is_some()).collect();
    assert_eq!(folds, [false, true], "{point:?}");
    // What counts is what the journal says, whichever of its hosts died.
    let (tenant, root_run_id) = ("default".to_owned(), run.id.clone());
    let counted = TreeQuery { tenant, root_run_id, counted_only: true };
    let page = world.inner.tree(&counted, None, 9).await.expect("reads");
    assert_eq!(page.runs.iter().map(|run| run.id().as_str()).collect::<Vec<_>>(), ["1"]);
    deaths
}

#[tokio::test]
async fn a_host_that_dies_before_it_records_what_a_round_leaves_behind() {
    die_at_each(Op::Append, Side::Before, 9, play).await;
}

#[tokio::test]
async fn a_host_that_dies_after_it_recorded_what_a_round_leaves_behind() {
    die_at_each(Op::Append, Side::After, 9, play).await;
}
