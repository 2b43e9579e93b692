//! Agents that are called as tools, by hosts that die at every write (M-59).

use futures::StreamExt;
use taskrun_journal::event::EventRecord;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::tool::ToolOutcome;

use super::agent_tools::{PLAY, caller, calling, children, own_result};
use super::common::{Handle, check_journal, count, named};
use super::dying::{AT_ONCE, Point, WRITES_MAX, survive};
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

async fn play(mut world: World, points: &[Point]) -> (Run, Vec<EventRecord>, Vec<Run>, u32) {
    let handle = Handle::default();
    let door = world.door().await;
    let outside = async {
        door.spawn(&named("1", "parent")).await;
        door.end("1").await
    };
    let (run, deaths) = survive(&mut world, points, &handle, outside).await;
    (run, door.journal("1").await, children(&door, "1").await, deaths)
}

async fn one_family_whatever_dies(op: Op, side: Side) {
    let points = futures::stream::iter((1..WRITES_MAX).map(|nth| (op, nth, side)));
    let plays = points.map(|point| async move { (point, play(two_agents(), &[point]).await) });
    let mut plays = plays.buffered(AT_ONCE);
    let mut survived = 0;
    while let Some((point, (run, journal, children, deaths))) = plays.next().await {
        check_journal(&journal);
        assert_eq!(run.status(), Status::Completed, "crash at {point:?}: {run:?}");
        assert_eq!(children.len(), 2, "crash at {point:?}: {children:?}");
        assert_eq!(count(&journal, "child_run_linked"), 2, "crash at {point:?}");
        let result = run.state.reply.result().expect("an answer");
        assert_eq!(result, "\"played\"; 7", "crash at {point:?}");
        if deaths == 0 {
            break;
        }
        survived += 1;
    }
    assert!(survived >= 2, "only {survived} crashes: nothing was tested");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m_59_a_host_that_dies_around_the_call_of_an_agent_leaves_one_run_of_it() {
    for side in [Side::Before, Side::After] {
        one_family_whatever_dies(Op::Create, side).await;
        one_family_whatever_dies(Op::Append, side).await;
        one_family_whatever_dies(Op::Claim, side).await;
    }
}
