//! Outcomes of background runs, whatever host dies at whatever write: each is told in the surviving
//! conversation exactly once.

use std::time::Duration;

use futures::StreamExt;
use taskrun::clock::SimulatedClock;
use taskrun_journal::delivery::ReportState;
use taskrun_journal::event::Event;
use taskrun_journal::status::Status;

use super::common::{Handle, check_journal};
use super::delivery::{coordinator, leader, line, worker};
use super::dying::{AT_ONCE, Point, WRITES_MAX, survive};
use crate::native::{Native, Op, Side, World};

fn world() -> World {
    let mut world = World::new();
    world.agent("worker", worker());
    leader(&mut world, "lead", coordinator());
    world
}

/// One line that starts two runs, and two more when these have ended; gives the ids of the lines.
async fn outside(door: &Native, clock: &SimulatedClock) -> Vec<String> {
    let mut lines = Vec::new();
    for task in ["start one two", "what is new?", "and now?"] {
        clock.advance(Duration::from_millis(1));
        let id = door.spawn(&line("lead", task)).await;
        assert_eq!(door.end(&id).await.status(), Status::Completed);
        for beneath in door.client().tree(&id).await.expect("there").descendants {
            door.end(beneath.id().as_str()).await;
        }
        lines.push(id);
    }
    lines
}

async fn play(points: &[Point]) -> u32 {
    let mut world = world();
    let door = world.door().await;
    let clock = std::sync::Arc::clone(&world.clock);
    let played = survive(&mut world, points, &Handle::default(), outside(&door, &clock)).await;
    let (lines, deaths) = played;
    let reports = door.client().reports(&ReportState::ALL, 0, 9).await.expect("answers");
    assert_eq!(reports.len(), 2, "{points:?}");
    for report in &reports {
        let found = (report.state, report.attempts);
        assert_eq!(found, (ReportState::Delivered, 0), "{points:?}");
    }
    let mut told = Vec::new();
    for id in &lines {
        let journal = door.journal(id).await;
        check_journal(&journal);
        for one in journal {
            if let Event::Reported { runs, .. } = one.event {
                told.extend(runs);
            }
        }
    }
    let ended: Vec<_> = reports.into_iter().map(|report| report.run).collect();
    assert_eq!(told, ended, "{points:?}: each once, in the order of the ends");
    // Told to the second line, or, where the first one was open for longer, carried to it.
    let answer = door.get(&lines[1]).await.state.reply.result().expect("an answer");
    for word in ["did one", "did two"] {
        assert_eq!(answer.matches(word).count(), 1, "{points:?}: {answer}");
    }
    deaths
}

/// Dies once at each write of a kind, until none is left to die at.
async fn everywhere(op: Op, side: Side) {
    let plays = futures::stream::iter(1..WRITES_MAX)
        .map(|nth| async move { play(&[(op, nth, side)]).await });
    let mut plays = plays.buffered(AT_ONCE);
    let mut died = 0;
    while plays.next().await == Some(1) {
        died += 1;
    }
    assert!(died > 1, "{op:?} {side:?}: there are writes to die at");
}

#[tokio::test]
async fn a_host_that_dies_before_it_records_anything_tells_each_outcome_once() {
    everywhere(Op::Append, Side::Before).await;
}

#[tokio::test]
async fn a_host_that_dies_after_it_recorded_anything_tells_each_outcome_once() {
    everywhere(Op::Append, Side::After).await;
}

#[tokio::test]
async fn a_host_that_dies_before_it_claims_anything_tells_each_outcome_once() {
    everywhere(Op::Claim, Side::Before).await;
}

#[tokio::test]
async fn a_host_that_dies_after_it_claimed_anything_tells_each_outcome_once() {
    everywhere(Op::Claim, Side::After).await;
}
