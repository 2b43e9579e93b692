//! Agents that are called as tools, by hosts that die at every write (M-59).

use taskrun_journal::status::Status;
use taskrun_journal::tool::ToolOutcome;

use super::agent_tools::{PLAY, caller, calling, children, own_result};
use super::common::{Handle, check_journal, count, named};
use super::dying::{Point, die_at_each, survive};
use crate::native::{ClosurePlanner, Op, Side, World, answer, decided};

/// Two agents at once, of which one gives its own result.
fn two_agents() -> World {
    let mut world = World::new();
    world.agent("child", ClosurePlanner::new(|_, _| async { answer("played") }));
    let own = |_, _| async { decided(own_result(ToolOutcome::Value("7".to_owned()), None)) };
    world.agent("counter", ClosurePlanner::new(own));
    let calls = &[("c1", "agent/child", PLAY), ("c2", "agent/counter", PLAY)];
    world.agent_with("parent", caller(calls), calling(&["child", "counter"]));
    world
}

/// The call of both agents by hosts of which one dies at this point; gives how many died.
async fn play(point: Point) -> u32 {
    let mut world = two_agents();
    let door = world.door().await;
    let outside = async {
        door.spawn(&named("1", "parent")).await;
        door.end("1").await
    };
    let (run, deaths) = survive(&mut world, &[point], &Handle::default(), outside).await;
    let (journal, children) = (door.journal("1").await, children(&door, "1").await);
    check_journal(&journal);
    assert_eq!(run.status(), Status::Completed, "crash at {point:?}: {run:?}");
    assert_eq!(children.len(), 2, "crash at {point:?}: {children:?}");
    assert_eq!(count(&journal, "child_run_linked"), 2, "crash at {point:?}");
    let result = run.state.reply.result().expect("an answer");
    assert_eq!(result, "\"played\"; 7", "crash at {point:?}");
    deaths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m_59_a_host_that_dies_around_the_call_of_an_agent_leaves_one_run_of_it() {
    for side in [Side::Before, Side::After] {
        die_at_each(Op::Create, side, 2, play).await;
        die_at_each(Op::Append, side, 2, play).await;
        die_at_each(Op::Claim, side, 2, play).await;
    }
}
