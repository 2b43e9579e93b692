//! Outcomes of background runs, whatever host dies at whatever write: each is told in the surviving
//! conversation exactly once.

use std::collections::BTreeMap;
use std::time::Duration;

use taskrun::clock::{SeededRandom, SimulatedClock};
use taskrun_journal::delivery::{DeliverySettings, Report, ReportState, Strategy};
use taskrun_journal::event::Event;
use taskrun_journal::list::{ListFilter, PAGE_MAX};
use taskrun_journal::status::Status;
use taskrun_journal::time::random_u64;

use super::common::{Handle, check_journal};
use super::delivery::{coordinator, leader, line, worker};
use super::dying::{Point, die_at_each, survive};
use super::nudges::delivering;
use crate::native::{Native, Op, SESSION, Side, World, in_time};

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

async fn play(point: Point) -> u32 {
    let mut world = world();
    let door = world.door().await;
    let clock = std::sync::Arc::clone(&world.clock);
    let played = survive(&mut world, &[point], &Handle::default(), outside(&door, &clock)).await;
    let (lines, deaths) = played;
    let reports = door.client().reports(&ReportState::ALL, 0, 9).await.expect("answers");
    assert_eq!(reports.len(), 2, "{point:?}");
    for report in &reports {
        let found = (report.state, report.attempts);
        assert_eq!(found, (ReportState::Delivered, 0), "{point:?}");
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
    assert_eq!(told, ended, "{point:?}: each once, in the order of the ends");
    // Told to the second line, or, where the first one was open for longer, carried to it.
    let answer = door.get(&lines[1]).await.state.reply.result().expect("an answer");
    for word in ["did one", "did two"] {
        assert_eq!(answer.matches(word).count(), 1, "{point:?}: {answer}");
    }
    deaths
}

#[tokio::test]
async fn a_host_that_dies_before_it_records_anything_tells_each_outcome_once() {
    die_at_each(Op::Append, Side::Before, 2, play).await;
}

#[tokio::test]
async fn a_host_that_dies_after_it_recorded_anything_tells_each_outcome_once() {
    die_at_each(Op::Append, Side::After, 2, play).await;
}

#[tokio::test]
async fn a_host_that_dies_before_it_claims_anything_tells_each_outcome_once() {
    die_at_each(Op::Claim, Side::Before, 2, play).await;
}

#[tokio::test]
async fn a_host_that_dies_after_it_claimed_anything_tells_each_outcome_once() {
    die_at_each(Op::Claim, Side::After, 2, play).await;
}

/// One line that starts two runs, of which the conversation is told at once.
async fn nudged(door: &Native) {
    let id = door.spawn(&line("lead", "start one two")).await;
    assert_eq!(door.end(&id).await.status(), Status::Completed);
    let client = door.client();
    let mut after = 0;
    loop {
        let states = states(door).await;
        if states.len() == 2 && states.iter().all(|state| *state == ReportState::Delivered) {
            return;
        }
        after = client.next_session_events(SESSION, after, 1_000).await.expect("answers").next;
    }
}

async fn play_nudged(point: Point) -> u32 {
    let mut world = World::new();
    world.agent("worker", worker());
    let strategy = Some(Strategy::Immediate);
    let settings = DeliverySettings { strategy, ..DeliverySettings::default() };
    delivering(&mut world, "lead", coordinator(), settings);
    let door = world.door().await;
    let ((), deaths) =
        survive(&mut world, &[point], &Handle::default(), in_time(nudged(&door))).await;
    let page = door.client().list(&ListFilter::default(), None, PAGE_MAX).await.expect("lists");
    let (mut told, mut nudges) = (Vec::new(), 0);
    for run in page.runs {
        nudges += usize::from(run.spec.is_nudge());
        let journal = door.journal(run.id().as_str()).await;
        // One that has nothing to tell may be under way still.
        if run.status().is_terminal() {
            check_journal(&journal);
        }
        for one in journal {
            if let Event::Reported { runs, .. } = one.event {
                told.extend(runs);
            }
        }
    }
    let reports = door.client().reports(&ReportState::ALL, 0, 9).await.expect("answers");
    assert!(reports.iter().all(|report| report.attempts == 0), "{point:?}");
    told.sort();
    let mut ended: Vec<_> = reports.into_iter().map(|report| report.run).collect();
    ended.sort();
    assert_eq!(told, ended, "{point:?}: each once");
    assert!(nudges <= 2, "{point:?}: no outcome makes two");
    deaths
}

async fn everywhere_nudged(op: Op) {
    for side in [Side::Before, Side::After] {
        die_at_each(op, side, 2, play_nudged).await;
    }
}

#[tokio::test]
async fn a_host_that_dies_as_it_starts_a_nudge_starts_one() {
    everywhere_nudged(Op::Create).await;
}

#[tokio::test]
async fn a_host_that_dies_as_it_records_anything_of_a_nudge_tells_each_outcome_once() {
    everywhere_nudged(Op::Append).await;
}

#[tokio::test]
async fn a_host_that_dies_as_it_claims_a_nudge_tells_each_outcome_once() {
    everywhere_nudged(Op::Claim).await;
}

/// Lines that each start some runs; some are canceled by a person while they are under way.
async fn many(door: &Native, clock: &SimulatedClock, random: &SeededRandom) -> Vec<String> {
    let mut lines = Vec::new();
    for nth in 0..LINES {
        clock.advance(Duration::from_millis(1));
        let words: Vec<String> = (0..STARTED).map(|run| format!("w{nth}x{run}")).collect();
        let id = door.spawn(&line("lead", &format!("start {}", words.join(" ")))).await;
        // A taker that is canceled, at some moment of its life.
        clock.advance(Duration::from_millis(1));
        let taker = door.spawn(&line("lead", "what is new?")).await;
        for _ in 0..below(random, 40) {
            tokio::task::yield_now().await;
        }
        door.client().cancel_alone(&taker, None).await.expect("canceled, or ended");
        door.end(&id).await;
        for beneath in door.client().tree(&id).await.expect("there").descendants {
            door.end(beneath.id().as_str()).await;
        }
        door.end(&taker).await;
        lines.extend([id, taker]);
    }
    // What is left comes to those after them.
    while !states(door).await.iter().all(|state| *state == ReportState::Delivered) {
        clock.advance(Duration::from_millis(1));
        let id = door.spawn(&line("lead", "what is new?")).await;
        door.end(&id).await;
        lines.push(id);
        assert!(lines.len() < 10 * LINES, "it never comes to an end");
    }
    lines
}

fn below(random: &SeededRandom, end: u64) -> u64 {
    random_u64(random) % end
}

const LINES: usize = 50;
const STARTED: usize = 20;
const DEATHS: usize = 50;

async fn states(door: &Native) -> Vec<ReportState> {
    reports(door).await.into_iter().map(|report| report.state).collect()
}

/// All reports, in the order of the ends.
async fn reports(door: &Native) -> Vec<Report> {
    let (mut reports, mut after) = (Vec::new(), 0);
    loop {
        let page = door.client().reports(&ReportState::ALL, after, 500).await.expect("answers");
        let Some(last) = page.last() else { return reports };
        after = last.place;
        reports.extend(page);
    }
}

#[tokio::test]
async fn of_a_thousand_background_runs_each_outcome_is_told_once_over_fifty_deaths() {
    let random = SeededRandom::new(13);
    let points: Vec<Point> = (0..DEATHS)
        .map(|death| {
            let side = if below(&random, 2) == 0 { Side::Before } else { Side::After };
            // A line that met three deaths in a row would be given up: of two that follow each
            // other one is further from the next than a line writes.
            let nth = if death % 2 == 0 { 1 + below(&random, 6) } else { 45 + below(&random, 6) };
            (Op::Append, nth, side)
        })
        .collect();
    let mut world = world();
    world.settings.tree_max = 1_000;
    let door = world.door().await;
    let clock = std::sync::Arc::clone(&world.clock);
    let outside = many(&door, &clock, &random);
    let (lines, deaths) = survive(&mut world, &points, &Handle::default(), outside).await;
    assert_eq!(deaths as usize, DEATHS);
    let ended = reports(&door).await;
    assert_eq!(ended.len(), LINES * STARTED);
    let ended: BTreeMap<_, _> =
        ended.into_iter().map(|report| (report.run, report.place)).collect();
    let mut told = BTreeMap::new();
    for id in &lines {
        if door.get(id).await.status() != Status::Completed {
            continue;
        }
        let mut places = Vec::new();
        for one in door.journal(id).await {
            if let Event::Reported { runs, .. } = one.event {
                for run in runs {
                    places.push(ended[&run]);
                    *told.entry(run).or_insert(0) += 1;
                }
            }
        }
        assert!(places.is_sorted(), "{id} is told in the order of the ends: {places:?}");
    }
    assert_eq!(told.len(), LINES * STARTED, "every outcome stands in the surviving conversation");
    assert!(told.values().all(|count| *count == 1), "and each once: {told:?}");
}
