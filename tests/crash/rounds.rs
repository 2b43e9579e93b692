//! Runs that go on by themselves for thirty rounds, each with three effects and two answers of a model
//! that counts, under hosts that are killed at random, and around the ends of rounds: what is left is
//! what an undisturbed run leaves, and nothing is asked for again that was on record.

mod account;
mod model;

use std::fs::File;
use std::io::Write;
use std::num::NonZeroU32;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use serde_json::Value;
use taskrun::clock::SystemClock;
use taskrun_journal::ids::RunId;
use taskrun_journal::time::Clock;

use self::account::Kills;
use self::model::{ANSWERS, Model};
use crate::LEASE_ALONE;
use crate::chance::Chance;
use crate::commands::Commands;
use crate::deaths::SIGKILL;
use crate::point::{CrashPoint, Persisted};
use crate::process::{Process, Program};
use crate::project::Project;
use crate::round::Broken;
use crate::terminal::Terminal;

/// Rounds with effects; the last one says that the run is done.
const ROUNDS: usize = 30;
/// Kills of one run: with more of them it would lose more hosts than it may.
const RUN_KILLS_MAX: usize = 8;
/// Bytes of a result of each round. With them the journal is long enough for folds of it after some
/// rounds.
const RESULT_BYTES: usize = 700;
/// The end of a round at which hosts die, counted from their beginnings: they come to one before.
const SECOND: NonZeroU32 = NonZeroU32::new(2).unwrap();
/// The arguments of a host that stays.
const HOST: [&str; 3] = ["host", "--idle-exit", "0"];
/// The time that each round takes at least.
const SLOW_MS: u64 = 40;
/// A host is killed at most so long after a turn was seen to end.
const WITHIN_MS: u64 = 250;
/// The pause between two looks at a run.
const POLL: Duration = Duration::from_millis(20);
/// Longest wait for a turn.
const WAIT: Duration = Duration::from_secs(120);

/// Kills so often, and prints what came of it; false if anything was wrong.
///
/// # Errors
/// [`Broken`], with the step of the harness that failed.
pub(crate) async fn kill(program: &Program, kills: usize, chance: Chance) -> Result<bool, Broken> {
    if kills == 0 {
        return Ok(true);
    }
    let mut project = Project::new()?;
    let folder = project.hold();
    let (commands, terminal) = (Commands::new(program, &project), program.terminal(&project));
    let model = Model::start().await;
    File::options().append(true).open(project.policy())?.write_all(model.policy().as_bytes())?;
    let mut ground = Ground {
        project,
        commands,
        terminal,
        model,
        chance,
        deaths: 0,
        interrupted: 0,
        declined: 0,
        repeated: 0,
        asked_again: 0,
        restarted: 0,
    };
    let told = ground.kill(program, kills).await;
    ground.commands.end_hosts();
    let (runs, wrong) = told.map_err(|broken| crate::kept_in(&folder, &broken))?;
    let Ground { deaths, interrupted, declined, repeated, asked_again, restarted, .. } = ground;
    let points: Vec<String> = points().iter().map(CrashPoint::to_string).collect();
    println!("rounds: one run whose hosts died at {}", points.join(", "));
    println!(
        "rounds: {kills} kills, {runs} runs of {ROUNDS} rounds, {deaths} lost a host, {repeated} calls \
         made again, {interrupted} interrupted for good, {declined} declined"
    );
    println!(
        "rounds: {ANSWERS} answers of a model in each, {asked_again} asked for again, {restarted} steps \
         shown as begun again"
    );
    // Fewer, and it is not the hosts' deaths that were tried.
    Ok(ground.project.judge(&wrong) && deaths * 2 >= kills)
}

struct Ground {
    project: Project,
    commands: Commands,
    /// Answers questions, and starts no host.
    terminal: Terminal,
    model: Model,
    chance: Chance,
    /// Hosts that died with a run.
    deaths: usize,
    /// Calls that may not be repeated, and whose host died.
    interrupted: usize,
    /// Calls of which a person said that they are not made again.
    declined: usize,
    /// Calls that were made again.
    repeated: usize,
    /// Answers of the model that were asked for again.
    asked_again: usize,
    /// Steps that were begun again, as their host may have asked for an answer before it died.
    restarted: usize,
}

impl Ground {
    /// Gives the number of runs that were killed at random, and everything that was wrong.
    async fn kill(
        &mut self,
        program: &Program,
        kills: usize,
    ) -> Result<(usize, Vec<String>), Broken> {
        let none = self.run("undisturbed", 0)?;
        let undisturbed = self.read(&["get", "undisturbed"])?;
        let mut wrong = self.check("undisturbed", &undisturbed, &none)?;
        let died = self.die_at_points(program, "at-points").await?;
        wrong.extend(self.check("at-points", &undisturbed, &died)?);
        let (lost, died) = (std::mem::take(&mut self.deaths), died.seen.len());
        if lost != died {
            wrong.push(format!("at-points: {died} hosts died with it, and it lost {lost}"));
        }
        let (mut left, mut runs) = (kills, 0);
        while left > 0 && wrong.is_empty() {
            runs += 1;
            let id = format!("run-{runs}");
            let killed = self.run(&id, left.min(RUN_KILLS_MAX))?;
            if killed.seen.is_empty() {
                return Err(format!("{id} has ended before a host could be killed").into());
            }
            left -= killed.seen.len();
            wrong.extend(self.check(&id, &undisturbed, &killed)?);
        }
        Ok((runs, wrong))
    }

    /// Runs to its end, under hosts each of which dies at a point.
    async fn die_at_points(&mut self, program: &Program, id: &str) -> Result<Kills, Broken> {
        let mut died = Kills::default();
        for point in points() {
            let mut host = Process::start(program, &self.project, LEASE_ALONE, Some(point))?;
            if died.seen.is_empty() {
                self.ask(id)?;
            }
            let ended = host.gone_within(WAIT).await?;
            if ended.and_then(|status| status.signal()) != Some(SIGKILL) {
                return Err(format!("{id}: not at {point}: {ended:?}: {}", host.files.log()).into());
            }
            died.seen.push(self.known(id)?);
        }
        let _last = self.commands.start(&HOST, None)?;
        self.wait(id)?;
        Ok(died)
    }

    /// Asks the host that is there for a run.
    fn ask(&mut self, id: &str) -> Result<(), Broken> {
        // Else whoever asks for the run starts one, which nobody kills.
        self.until(|ground| {
            let hosts = ground.read(&["doctor"])?["hosts"].as_array().map_or(0, Vec::len);
            Ok((hosts > 0).then_some(()))
        })?;
        self.model.begin(id);
        let args = ["run", "steady", "Go on.", "--autonomous", "-d", "--id", id];
        let said = self.commands.said(&args)?;
        match said.status.success() {
            true => Ok(()),
            false => Err(format!("{id} is refused: {said:?}").into()),
        }
    }

    /// Returns when a run has completed, which takes as long as it pleases while it has turns. `wait`
    /// would start a host where none is there yet, which nobody kills.
    fn wait(&mut self, id: &str) -> Result<(), Broken> {
        let mut turns = 0;
        while self.turn_after(id, turns)? {
            turns = self.read(&["get", id])?["turns"].as_u64().unwrap_or(turns);
        }
        let run = self.read(&["get", id])?;
        match run["status"] == "completed" {
            true => Ok(()),
            false => Err(format!("{id} does not complete: {run}").into()),
        }
    }

    /// Answers whatever a run asks: whether a call is made again of which nobody knows whether it took
    /// effect.
    fn answer(&mut self, run: &Value) -> Result<(), Broken> {
        let asks = run["awaits"].as_array().into_iter().flatten();
        for item in asks.filter(|item| item["answered"] == false) {
            let text = |of: &Value| of["id"].as_str().unwrap_or_default().to_owned();
            let (run, accepts) = (RunId::new(&text(run))?, self.chance.one_in(2));
            self.terminal.answer(&run, &text(item), accepts)?;
        }
        Ok(())
    }

    /// The requests that the model has heard of a run, and its answers that are on record.
    fn known(&self, id: &str) -> Result<(usize, usize), Broken> {
        Ok((self.model.asked().len(), account::answers(&self.events(id)?)))
    }

    /// Runs to its end, over so many kills of its host at most.
    fn run(&mut self, id: &str, kills: usize) -> Result<Kills, Broken> {
        let mut running = self.commands.start(&HOST, None)?;
        self.ask(id)?;
        let (mut killed, mut turns) = (Kills::default(), 0);
        while killed.seen.len() < kills {
            // One that loses three hosts without a turn between them would be given up.
            if !self.turn_after(id, turns)? {
                break;
            }
            std::thread::sleep(Duration::from_millis(self.chance.between(0, WITHIN_MS)));
            running.kill()?;
            killed.seen.push(self.known(id)?);
            // The next one comes to a turn of its own before it dies.
            turns = self.read(&["get", id])?["turns"].as_u64().unwrap_or(turns);
            running = self.commands.start(&HOST, None)?;
        }
        self.wait(id)?;
        Ok(killed)
    }

    /// True once a run has had more turns than these; false if it ended before.
    fn turn_after(&mut self, id: &str, turns: u64) -> Result<bool, Broken> {
        self.until(|ground| {
            let run = ground.read(&["get", id])?;
            ground.answer(&run)?;
            let has_ended = !run["finished_at"].is_null();
            let has_turned = run["turns"].as_u64().is_some_and(|now| now > turns);
            Ok((has_ended || has_turned).then_some(!has_ended))
        })
    }

    /// The answer to a question that is asked again and again until it has one.
    fn until<T>(
        &mut self,
        answer: impl Fn(&mut Self) -> Result<Option<T>, Broken>,
    ) -> Result<T, Broken> {
        let clock = SystemClock::new();
        let begin = clock.now();
        while clock.now().since(begin) < WAIT {
            if let Some(answer) = answer(self)? {
                return Ok(answer);
            }
            std::thread::sleep(POLL);
        }
        Err("nothing goes on".into())
    }

    fn read(&self, args: &[&str]) -> Result<Value, Broken> {
        let said = self.commands.said(&[args, &["-o", "json"]].concat())?;
        let read = serde_json::from_slice(&said.stdout);
        read.map_err(|error| format!("{error}: {said:?}").into())
    }

    /// All events of a run.
    fn events(&self, id: &str) -> Result<Vec<Value>, Broken> {
        let said = self.commands.said(&["events", id, "-o", "ndjson"])?;
        let lines = String::from_utf8(said.stdout)?;
        Ok(lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
    }
}

/// The points at which hosts die one after another. The second one and the third keep a fold once the
/// journal is long enough, and the fourth goes on from that.
fn points() -> [CrashPoint; 4] {
    CrashPoint::of_rounds().map(|point| match point.persisted {
        Persisted::Append(_) => CrashPoint { nth: SECOND, ..point },
        Persisted::Claim | Persisted::Checkpoint => point,
    })
}
