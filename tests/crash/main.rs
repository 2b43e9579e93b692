//! Hosts that are killed: the real program under a mixed load dies at random moments and at every
//! named point of persistence, alone and beside another host, or is told to end and hands over; and
//! what is left must be in order.
//!
//! ```sh
//! cargo test -p taskrun-cli --test crash                               # about a minute
//! cargo test -p taskrun-cli --test crash -- --kills 500 --runs 200     # every night
//! cargo test -p taskrun-cli --test crash -- --kills 500 --runs 200 --foreign
//! cargo test -p taskrun-cli --test crash -- --kills 0 --closures 200   # five minutes
//! cargo test -p taskrun-cli --test crash -- --kills 0 --closures 0 --deliveries 50
//! cargo test -p taskrun-cli --test crash -- --kills 0 --closures 0 --deliveries 0 --rounds 100
//! ```
//!
//! Beside two hosts programs of other makers use the store all the time, with `--foreign` beside each
//! host.
//!
//! `--closures` kills hosts, terminals and `taskrun gc` while the policy changes between five closures
//! of an agent.
//!
//! `--deliveries` kills hosts under a conversation whose lines start twenty background runs each.
//!
//! `--rounds` kills hosts under runs that go on by themselves for thirty rounds, with effects in each and
//! a model that counts what it is asked; of one of them a host dies at each point around the end of a
//! round and of its checkpoint.
//!
//! Beside these a host dies in the call of each tool of the host that changes something; `--tools 0` leaves
//! that out.
//!
//! The seed is printed first; `--seed N` makes the same kills and the same load again, as far as
//! the machine's own timing allows.

mod book;
mod chance;
mod client;
mod closures;
mod commands;
mod deaths;
mod deliveries;
mod effects;
mod hand_over;
mod host;
mod idle;
mod journal;
mod load;
mod options;
mod point;
mod process;
mod project;
mod proof;
mod round;
mod rounds;
mod serial;
mod stalls;
mod table;
mod terminal;
mod tools;

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use taskrun::clock::{SystemClock, SystemRandom};
use taskrun_engine::{Cache, Engine, EngineOptions};
use taskrun_journal::time::{Clock, Random};
use taskrun_tests::foreign::{Foreign, Maker, act_as_told};

use self::chance::Chance;
use self::deaths::Way;
use self::options::{Asked, Options};
use self::point::CrashPoint;
use self::process::Program;
use self::project::Project;
use self::round::{Bench, Broken, Outcome, Round, report};
use self::table::{Table, Verdict};

/// The name of this test.
const NAME: &str = "crash";
/// Kills of a round: with more of them, runs would lose more hosts than they may.
const ROUND_KILLS_MAX: usize = 25;
/// Runs that are started before each kill, at least; nearly one of every kind.
const RUNS_MIN: usize = 6;
/// Between these many milliseconds after its start, or after that of the runs, a host is killed at
/// random: before it is ready, and when there is little left to do.
const RANDOM_MS: (u64, u64) = (50, 1_800);
/// At most so long after one host was told to end the other one is killed.
const GAP_MS_MAX: u64 = 300;
/// With as many kills, each point is tried several times.
const KILLS_ENOUGH: usize = 300;
/// One kill of so many at least comes where it was to. By chance a point is met too late, or not at
/// all, where the runs of a round are at another place.
const HITS_MIN_OF: usize = 3;
/// Instances of the engine that only loads components.
const INSTANCES: u32 = 4;
/// Lease of a host that is alone: it dies, and is never silent.
const LEASE_ALONE: Duration = Duration::from_secs(10);
/// Lease of two hosts, of which one is stopped for longer.
const LEASE_OF_TWO: Duration = Duration::from_millis(1_200);

fn main() -> ExitCode {
    if act_as_told() {
        return ExitCode::SUCCESS;
    }
    if let Some(ended) = host::act_as_host() {
        return ended;
    }
    let options = match Asked::read(std::env::args().skip(1)) {
        Ok(Asked::ToRun(options)) => options,
        Ok(Asked::ToList) => {
            println!("{NAME}: test");
            return ExitCode::SUCCESS;
        }
        Ok(Asked::ForOthers) => return ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("{what}");
            return ExitCode::from(2);
        }
    };
    println!("seed {}: {} kills, {} runs a round", options.seed, options.kills, options.runs);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let outcome = runtime.map_err(Broken::from).and_then(|runtime| runtime.block_on(run(&options)));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(broken) => {
            println!("seed {}: the tests cannot go on: {broken}", options.seed);
            let causes = std::iter::successors(broken.source(), |cause| cause.source());
            causes.for_each(|cause| println!("caused by: {cause}"));
            ExitCode::FAILURE
        }
    }
}

/// Kills as often as asked, and prints what came of it; false if anything was wrong.
async fn run(options: &Options) -> Result<bool, Broken> {
    proof::prove()?;
    point::prove()?;
    let bench = bench().await?;
    let mut chance = Chance::new(options.seed);
    let holds = closures::kill(&bench.program, options.closures, chance.branch())?
        & deliveries::kill(&bench.program, options.deliveries, chance.branch())?
        & rounds::kill(&bench.program, options.rounds, chance.branch()).await?
        & tools::kill(&bench.program, &bench.warm, options.tools > 0).await?;
    let alone = (options.kills * 3).div_ceil(5);
    let mut table = Table::default();
    let mut points = points(&mut chance);
    for kills in rounds(alone) {
        let ways = ways_alone(kills, &mut points, &mut chance);
        let round = Round::begin(&bench, chance.branch(), LEASE_ALONE).await?;
        let foreign = options.foreign.then(|| foreign(&round.project));
        let outcome = alone_round(round, ways, options.runs).await?;
        foreign.into_iter().flatten().for_each(Foreign::end);
        finish("one host", outcome, &mut table)?;
    }
    for kills in rounds(options.kills - alone) {
        let ways = ways_of_two(kills, &mut chance);
        let round = Round::begin(&bench, chance.branch(), LEASE_OF_TWO).await?;
        let foreign = foreign(&round.project);
        let outcome = round_of_two(round, ways, options.runs).await?;
        foreign.into_iter().for_each(Foreign::end);
        finish("two hosts", outcome, &mut table)?;
    }
    table.print();
    let never = table.never_hit();
    if !never.is_empty() {
        println!("never hit: {}", never.join(", "));
    }
    let Verdict { passed, missed, mut failed } = table.verdict();
    // With so many, chance is no excuse: the load does not come to that point any more.
    if options.kills >= KILLS_ENOUGH {
        failed += u32::try_from(never.len())?;
    }
    println!("seed {}", options.seed);
    println!("{passed} passed, {missed} missed, {failed} failed");
    // Fewer, and it is not the hosts' deaths that were tried.
    let hits_min = u32::try_from(options.kills / HITS_MIN_OF)?;
    if passed < hits_min {
        println!("only {passed} kills came where they were to; {hits_min} is the least");
    }
    Ok(holds && failed == 0 && passed >= hits_min)
}

/// Programs of other makers that open the store, read a row and close it all the time.
fn foreign(project: &Project) -> Vec<Foreign> {
    let makers = Maker::all();
    println!("beside {makers:?}");
    let file = project.data().join("taskrun.db");
    makers.into_iter().map(|maker| Foreign::reads(maker, &file)).collect()
}

/// Prints what came of a round, and removes its folder if nothing was wrong. Nobody may use the store
/// any more: programs of other makers would make it anew in what is being removed.
fn finish(what: &str, outcome: Outcome, table: &mut Table) -> io::Result<()> {
    let Outcome { deaths, book, kinds, project, took } = outcome;
    let (deaths_count, runs) = (deaths.len(), book.runs().count());
    println!("{what}: {deaths_count} deaths, {runs} runs, {} s", took.as_secs());
    report(&book.violations, project.path());
    table.add(&deaths, &book, &kinds);
    if book.violations.is_empty() { project.remove() } else { Ok(()) }
}

/// Loads the agents once; the hosts of all rounds find their native code.
async fn bench() -> Result<Bench, Broken> {
    let project = Project::new()?;
    std::fs::create_dir_all(project.data())?;
    let options = EngineOptions {
        instances: Some(INSTANCES),
        cache: Some(Cache::open(&project.native())?),
        ..EngineOptions::default()
    };
    let engine = Engine::new(options)?;
    let policy = taskrun_runtime::load_policy(&project.policy())?;
    let (clock, random): (Arc<dyn Clock>, Arc<dyn Random>) =
        (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
    let models = taskrun_models::open(&policy.models, &clock, &random)?;
    let agents = Arc::clone(&engine).load_agents(&policy, &models).await?;
    Ok(Bench { program: Program::new()?, agents, warm: project })
}

/// Every point, in an order of its own, again and again.
fn points(chance: &mut Chance) -> impl Iterator<Item = CrashPoint> + use<> {
    let mut all: Vec<CrashPoint> = CrashPoint::all().collect();
    chance.shuffle(&mut all);
    all.into_iter().cycle()
}

/// The number of kills that each round gets.
fn rounds(kills: usize) -> Vec<usize> {
    let rounds = kills.div_ceil(ROUND_KILLS_MAX);
    (0..rounds).map(|round| (kills + round) / rounds).collect()
}

/// Three of four die at a point.
fn ways_alone(
    kills: usize,
    points: &mut impl Iterator<Item = CrashPoint>,
    chance: &mut Chance,
) -> Vec<Way> {
    let mut ways = Vec::new();
    while ways.len() < kills {
        let after = Way::After(Duration::from_millis(chance.between(RANDOM_MS.0, RANDOM_MS.1)));
        match next_of(points, chance) {
            Some(point) => {
                ways.extend(deaths::prepared_by(&point).map(Way::At));
                ways.push(Way::At(CrashPoint { nth: deaths::nth(&point, chance), ..point }));
            }
            None if chance.one_in(2) => ways.push(hand_over(chance)),
            None => ways.push(after),
        }
    }
    ways.truncate(kills);
    ways
}

/// The next point, or none in one of four cases.
fn next_of(
    points: &mut impl Iterator<Item = CrashPoint>,
    chance: &mut Chance,
) -> Option<CrashPoint> {
    if chance.one_in(4) { None } else { points.next() }
}

/// A host that is told to end, soon after it is there.
fn hand_over(chance: &mut Chance) -> Way {
    Way::HandOver(Duration::from_millis(chance.between(0, RANDOM_MS.1)))
}

/// One of five comes after the other host was stopped; two are told to end, beside a host that goes
/// on and beside one that is killed meanwhile.
fn ways_of_two(kills: usize, chance: &mut Chance) -> Vec<Way> {
    let mut way = |kill: usize| match kill % 5 {
        1 => hand_over(chance),
        2 => Way::Stop(Duration::from_millis(chance.between(100, 800))),
        4 => Way::HandOverBeside(
            Duration::from_millis(chance.between(0, RANDOM_MS.1)),
            Duration::from_millis(chance.between(0, GAP_MS_MAX)),
        ),
        _ => Way::After(Duration::from_millis(chance.between(RANDOM_MS.0, RANDOM_MS.1))),
    };
    (0..kills).map(&mut way).collect()
}

async fn alone_round(mut round: Round<'_>, ways: Vec<Way>, runs: usize) -> Result<Outcome, Broken> {
    let folder = round.project.hold();
    let each = runs.div_ceil(ways.len().max(1)).max(RUNS_MIN);
    let rest = async {
        for way in ways {
            round.start_runs(each).await?;
            if let Way::At(point) = way {
                round.start_run_for(&point).await?;
            }
            round.die_alone(way).await?;
            if round.is_violated() {
                break;
            }
        }
        let last = round.start_host(None)?;
        round.end(vec![last]).await
    };
    rest.await.map_err(|broken| kept_in(&folder, &broken))
}

async fn round_of_two(
    mut round: Round<'_>,
    ways: Vec<Way>,
    runs: usize,
) -> Result<Outcome, Broken> {
    let folder = round.project.hold();
    let each = runs.div_ceil(ways.len().max(1)).max(RUNS_MIN);
    let rest = async {
        let mut pair = [round.start_host(None)?, round.start_host(None)?];
        for way in ways {
            round.start_runs(each).await?;
            round.die_beside(&mut pair, way).await?;
            if round.is_violated() {
                break;
            }
        }
        round.end(Vec::from(pair)).await
    };
    rest.await.map_err(|broken| kept_in(&folder, &broken))
}

fn kept_in(folder: &Path, broken: &Broken) -> Broken {
    format!("{broken}; everything is kept in {}", folder.display()).into()
}
