//! Runs that go on by themselves for thirty rounds, each with two effects, under hosts that are killed
//! at random, and around the ends of rounds: what is left is what an undisturbed run leaves.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU32;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use serde_json::{Value, json};
use taskrun::clock::SystemClock;
use taskrun_journal::time::Clock;

use crate::LEASE_ALONE;
use crate::chance::Chance;
use crate::commands::Commands;
use crate::deaths::SIGKILL;
use crate::point::{CrashPoint, Persisted};
use crate::process::{Process, Program};
use crate::project::Project;
use crate::round::Broken;

/// Rounds with effects; the last one says that the run is done.
const ROUNDS: usize = 30;
/// Kills of one run: with more of them it would lose more hosts than it may.
const RUN_KILLS_MAX: usize = 8;
/// Bytes of a result of each round. With them the task, which has them all, is so long that a host which
/// takes up the run keeps a fold of the journal.
const RESULT_BYTES: usize = 2_500;
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
/// Longest wait for a turn, or for the end of a run.
const WAIT: Duration = Duration::from_secs(120);
/// The parts of a run in which a disturbed one is no other than an undisturbed one.
const SAME: [&str; 7] =
    ["status", "stop_reason", "result", "detail", "rounds", "turns", "tool_call_count"];

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
    let commands = Commands::new(program, &project);
    let mut ground = Ground { project, commands, chance, deaths: 0, interrupted: 0, repeated: 0 };
    let told = ground.kill(program, kills).await;
    ground.commands.end_hosts();
    let (runs, wrong) = told.map_err(|broken| crate::kept_in(&folder, &broken))?;
    let Ground { deaths, interrupted, repeated, .. } = ground;
    let points: Vec<String> = points().iter().map(CrashPoint::to_string).collect();
    println!("rounds: one run whose hosts died at {}", points.join(", "));
    println!(
        "rounds: {kills} kills, {runs} runs of {ROUNDS} rounds, {deaths} lost a host, {repeated} calls \
         made again, {interrupted} interrupted for good"
    );
    // Fewer, and it is not the hosts' deaths that were tried.
    Ok(ground.project.judge(&wrong) && deaths * 2 >= kills)
}

struct Ground {
    project: Project,
    commands: Commands,
    chance: Chance,
    /// Hosts that died with a run.
    deaths: usize,
    /// Calls that may not be repeated, and whose host died.
    interrupted: usize,
    /// Calls that were made again.
    repeated: usize,
}

impl Ground {
    /// Gives the number of runs that were killed at random, and everything that was wrong.
    async fn kill(
        &mut self,
        program: &Program,
        kills: usize,
    ) -> Result<(usize, Vec<String>), Broken> {
        self.run("undisturbed", 0)?;
        let undisturbed = self.read(&["get", "undisturbed"])?;
        let mut wrong = self.check("undisturbed", &undisturbed)?;
        let died = self.die_at_points(program, "at-points").await?;
        wrong.extend(self.check("at-points", &undisturbed)?);
        let lost = std::mem::take(&mut self.deaths);
        if lost != died {
            wrong.push(format!("at-points: {died} hosts died with it, and it lost {lost}"));
        }
        let (mut left, mut runs) = (kills, 0);
        while left > 0 && wrong.is_empty() {
            runs += 1;
            let id = format!("run-{runs}");
            let killed = self.run(&id, left.min(RUN_KILLS_MAX))?;
            if killed == 0 {
                return Err(format!("{id} has ended before a host could be killed").into());
            }
            left -= killed;
            wrong.extend(self.check(&id, &undisturbed)?);
        }
        Ok((runs, wrong))
    }

    /// Runs to its end, under hosts each of which dies at a point; gives how many they were.
    async fn die_at_points(&self, program: &Program, id: &str) -> Result<usize, Broken> {
        let mut died = 0;
        for point in points() {
            let mut host = Process::start(program, &self.project, LEASE_ALONE, Some(point))?;
            if died == 0 {
                self.ask(id)?;
            }
            let ended = host.gone_within(WAIT).await?;
            if ended.and_then(|status| status.signal()) != Some(SIGKILL) {
                return Err(format!("{id}: not at {point}: {ended:?}: {}", host.files.log()).into());
            }
            died += 1;
        }
        let _last = self.commands.start(&HOST, None)?;
        self.wait(id)?;
        Ok(died)
    }

    /// Asks the host that is there for a run.
    fn ask(&self, id: &str) -> Result<(), Broken> {
        // Else whoever asks for the run starts one, which nobody kills.
        self.until(|ground| {
            let hosts = ground.read(&["doctor"])?["hosts"].as_array().map_or(0, Vec::len);
            Ok((hosts > 0).then_some(()))
        })?;
        let task = script(id);
        let args = ["run", "worker", &task, "--autonomous", "-d", "--id", id];
        let said = self.commands.said(&args)?;
        match said.status.success() {
            true => Ok(()),
            false => Err(format!("{id} is refused: {said:?}").into()),
        }
    }

    /// Returns when a run has completed.
    fn wait(&self, id: &str) -> Result<(), Broken> {
        let wait = format!("{}s", WAIT.as_secs());
        let waited = self.commands.said(&["wait", id, "--timeout", &wait])?;
        match waited.status.success() {
            true => Ok(()),
            false => Err(format!("{id} does not complete: {waited:?}").into()),
        }
    }

    /// Runs to its end, over so many kills of its host at most; gives how many they were.
    fn run(&mut self, id: &str, kills: usize) -> Result<usize, Broken> {
        let mut running = self.commands.start(&HOST, None)?;
        self.ask(id)?;
        let (mut killed, mut turns) = (0, 0);
        while killed < kills {
            // One that loses three hosts without a turn between them would be given up.
            if !self.turn_after(id, turns)? {
                break;
            }
            std::thread::sleep(Duration::from_millis(self.chance.between(0, WITHIN_MS)));
            running.kill()?;
            killed += 1;
            // The next one comes to a turn of its own before it dies.
            turns = self.read(&["get", id])?["turns"].as_u64().unwrap_or(turns);
            running = self.commands.start(&HOST, None)?;
        }
        self.wait(id)?;
        Ok(killed)
    }

    /// True once a run has had more turns than these; false if it ended before.
    fn turn_after(&self, id: &str, turns: u64) -> Result<bool, Broken> {
        self.until(|ground| {
            let run = ground.read(&["get", id])?;
            let has_ended = !run["finished_at"].is_null();
            let has_turned = run["turns"].as_u64().is_some_and(|now| now > turns);
            Ok((has_ended || has_turned).then_some(!has_ended))
        })
    }

    /// The answer to a question that is asked again and again until it has one.
    fn until<T>(&self, answer: impl Fn(&Self) -> Result<Option<T>, Broken>) -> Result<T, Broken> {
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

    /// The differences of a run from an undisturbed one, and of its effects from what its journal
    /// says.
    fn check(&mut self, id: &str, undisturbed: &Value) -> Result<Vec<String>, Broken> {
        let mut wrong = Vec::new();
        let run = self.read(&["get", id])?;
        let part = |run: &Value, key: &str| match key {
            "tool_call_count" => run["progress"][key].clone(),
            _ => run[key].clone(),
        };
        for key in SAME {
            let (is, was) = (part(&run, key), part(undisturbed, key));
            if is != was || is.is_null() {
                wrong.push(format!("{id}: {key} is {is}, and undisturbed {was}"));
            }
        }
        let (mut rounds, mut results, mut asked) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for event in self.events(id)? {
            let call = |at: &Value| at["tool_call_id"].as_str().unwrap_or_default().to_owned();
            match event["kind"].as_str().unwrap_or_default() {
                "round_ended" => rounds.push(event["round"].as_u64().unwrap_or_default()),
                "lost" => self.deaths += 1,
                "tool_call_repeated" => self.repeated += 1,
                "tool_call_scheduled" => *asked.entry(call(&event)).or_insert(0) += 1,
                "tool_result" => {
                    let is_value = event["output"]["outcome"]["value"].is_string();
                    results.entry(call(&event["output"])).or_insert_with(Vec::new).push(is_value);
                }
                _ => {}
            }
        }
        if rounds != (1..=ROUNDS as u64).collect::<Vec<_>>() {
            wrong.push(format!("{id}: the rounds that ended are {rounds:?}"));
        }
        let notes = fs::read_to_string(self.project.path().join("ledger.txt")).unwrap_or_default();
        let kept = self.kept()?;
        for round in 1..=ROUNDS {
            let text = format!("{id}.{round}");
            let noted = notes.lines().filter(|line| line.ends_with(&format!(" {text}"))).count();
            let result = |call: String| match (asked.get(&call), results.get(&call)) {
                (Some(1), Some(results)) if results.len() == 1 => Some(results[0]),
                _ => None,
            };
            match (result(format!("n{round}")), noted) {
                (Some(true), 1) => {}
                // It may have been made; nobody knows.
                (Some(false), 0 | 1) => self.interrupted += 1,
                (result, _) => {
                    wrong.push(format!("{id}: round {round} noted {noted} times, {result:?}"));
                }
            }
            let files = kept.iter().filter(|one| **one == text).count();
            if (result(format!("p{round}")), files) != (Some(true), 1) {
                wrong.push(format!("{id}: round {round} is kept in {files} files"));
            }
        }
        Ok(wrong)
    }

    /// All events of a run.
    fn events(&self, id: &str) -> Result<Vec<Value>, Broken> {
        let said = self.commands.said(&["events", id, "-o", "ndjson"])?;
        let lines = String::from_utf8(said.stdout)?;
        Ok(lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
    }

    /// The texts that were kept, one of each call.
    fn kept(&self) -> Result<Vec<String>, Broken> {
        let mut texts = Vec::new();
        for entry in fs::read_dir(self.project.path().join("put"))? {
            texts.push(fs::read_to_string(entry?.path())?);
        }
        Ok(texts)
    }
}

/// The points at which hosts die one after another. The second one and the third keep a fold with the
/// first round that they end, and the fourth goes on from that.
fn points() -> [CrashPoint; 4] {
    CrashPoint::of_rounds().map(|point| match point.persisted {
        Persisted::Append(_) => CrashPoint { nth: SECOND, ..point },
        Persisted::Claim | Persisted::Checkpoint => point,
    })
}

/// In each round a text that is kept, one that is noted, and some time; then the word that it is done.
fn script(id: &str) -> String {
    let call = |id: String, name: &str, args: Value| json!({ "call": { "id": id, "name": name, "args": args } });
    let slow = json!({ "sleep_ms": SLOW_MS, "result": "x".repeat(RESULT_BYTES) });
    let mut steps = Vec::new();
    for round in 1..=ROUNDS {
        let text = json!({ "text": format!("{id}.{round}") });
        steps.push(json!([
            call(format!("p{round}"), "ledger/put", text.clone()),
            call(format!("n{round}"), "ledger/note", text),
            call(format!("s{round}"), "slow/lookup", slow.clone()),
        ]));
        steps.push(json!([{ "reply": format!("round {round}") }]));
    }
    let done = json!({ "detail": "thirty rounds" });
    steps.push(json!([call("d".to_owned(), "report_done", done)]));
    steps.push(json!([{ "reply": "all of it" }]));
    json!({ "steps": steps }).to_string()
}
