//! Outcomes of background runs under hosts that are killed at random, and runs that were told of them
//! and are canceled: each stands once in the conversation that is left.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use taskrun_examples::SCRIPTED;

use crate::chance::Chance;
use crate::commands::Commands;
use crate::process::Program;
use crate::project::Project;
use crate::round::Broken;

/// Background runs that a line starts.
const STARTED: usize = 20;
/// A host is killed at most so long after a line was said.
const WITHIN_MS: u64 = 1_000;
/// Lines after which all has to be told, each of at most 64 KiB.
const LAST_LINES_MAX: usize = 200;
/// The strategies under which it is done: without nudges, and with as many as there can be.
const STRATEGIES: [&str; 2] = ["context-only", "immediate"];
/// The session of the conversation.
const SESSION: &str = "session-deliveries";

/// Kills so often, and prints what came of it; false if anything was wrong.
///
/// # Errors
/// [`Broken`], with the step of the harness that failed.
pub(crate) fn kill(program: &Program, kills: usize, mut chance: Chance) -> Result<bool, Broken> {
    let mut holds = true;
    for strategy in STRATEGIES {
        holds &= kill_under(program, kills, chance.branch(), strategy)?;
    }
    Ok(holds)
}

fn kill_under(
    program: &Program,
    kills: usize,
    chance: Chance,
    strategy: &str,
) -> Result<bool, Broken> {
    let mut project = Project::new()?;
    let folder = project.hold();
    let component = format!("component = \"components/{}.wasm\"", SCRIPTED.name);
    let policy = format!(
        "[agent.worker]\n{component}\n\n[agent.lead]\n{component}\nmembers = [\"worker\"]\n\
         tools = [\"host/task_runs\"]\nallow = [\"controller: *\"]\nmax_nudges = 3600\n\
         delivery = {{ strategy = \"{strategy}\", prompt = {:?} }}\n",
        says("noted")
    );
    fs::write(project.policy(), policy)?;
    let commands = Commands::new(program, &project);
    let mut talk = Talk { commands, chance, lines: 0, canceled: 0 };
    let told = talk.kill(kills);
    talk.commands.end_hosts();
    let wrong = told.map_err(|broken| crate::kept_in(&folder, &broken))?;
    println!(
        "deliveries, {strategy}: {kills} kills, {} lines, {} of them canceled, {} background runs",
        talk.lines,
        talk.canceled,
        kills * STARTED
    );
    Ok(project.judge(&wrong))
}

/// A conversation.
struct Talk {
    commands: Commands,
    chance: Chance,
    lines: usize,
    canceled: usize,
}

impl Talk {
    fn kill(&mut self, kills: usize) -> Result<Vec<String>, Broken> {
        let host = ["host", "--idle-exit", "0"];
        for nth in 0..kills {
            let mut host = self.commands.start(&host, None)?;
            self.say(&starts(nth))?;
            let taker = self.say(&says("what is new?"))?;
            if self.chance.one_in(2) {
                self.pass_time();
                self.commands.said(&["cancel", &taker])?;
                self.canceled += 1;
            }
            self.pass_time();
            host.kill()?;
        }
        let _host = self.commands.start(&host, None)?;
        for _ in 0..LAST_LINES_MAX {
            let line = self.say(&says("what is new?"))?;
            self.commands.said(&["wait", &line, "--timeout", "60s"])?;
            let open =
                self.read(&["ps", "--session", SESSION, "--status", "queued,running,blocked"])?;
            let left = self.read(&["outbox", "ls"])?;
            let is_empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
            if is_empty(&open["runs"]) && is_empty(&left["reports"]) {
                return self.wrong(kills);
            }
        }
        Ok(vec![format!("it is never told: {}", self.read(&["outbox", "ls"])?)])
    }

    /// Says a line in the background, and gives the id of its run.
    fn say(&mut self, task: &str) -> Result<String, Broken> {
        let id = format!("line-{}", self.lines);
        self.lines += 1;
        let args = ["run", "lead", task, "-d", "--id", &id, "--session", SESSION];
        let said = self.commands.said(&args)?;
        if !said.status.success() {
            return Err(format!("a line is refused: {said:?}").into());
        }
        Ok(id)
    }

    fn read(&self, args: &[&str]) -> Result<Value, Broken> {
        let said = self.commands.said(&[args, &["-o", "json"]].concat())?;
        Ok(serde_json::from_slice(&said.stdout)?)
    }

    fn pass_time(&mut self) {
        std::thread::sleep(Duration::from_millis(self.chance.between(0, WITHIN_MS)));
    }

    /// The differences from what was promised, as the journals of the session tell.
    fn wrong(&self, kills: usize) -> Result<Vec<String>, Broken> {
        let events = self.read(&["events", "--session", SESSION])?;
        let events = events["events"].as_array().ok_or("no events")?;
        let (mut wrong, mut background) = (Vec::new(), BTreeMap::new());
        let (mut completed, mut told) = (BTreeSet::new(), Vec::new());
        let mut ends = BTreeMap::new();
        for (place, event) in events.iter().enumerate() {
            let run = event["run_id"].as_str().unwrap_or_default();
            match event["kind"].as_str().unwrap_or_default() {
                "queued" if !event["spec"]["delivery"].is_null() => {
                    background.insert(run, event["spec"]["parent_run_id"].as_str());
                }
                "finalizing" if event["ending"]["status"] == "completed" => {
                    completed.insert(run);
                }
                "finished" => {
                    ends.insert(run, place);
                }
                "reported" => told.push((run, event["runs"].as_array().ok_or("no runs")?)),
                _ => {}
            }
        }
        let mut counts: BTreeMap<&str, usize> = background.keys().map(|run| (*run, 0)).collect();
        for (_, runs) in told.iter().filter(|(taker, _)| completed.contains(taker)) {
            for run in runs.iter().filter_map(Value::as_str) {
                *counts.entry(run).or_default() += 1;
            }
        }
        for (run, count) in counts.iter().filter(|(_, count)| **count != 1) {
            wrong.push(format!("the outcome of {run} stands {count} times in the conversation"));
        }
        // In the order of the ends are all that are told at once, and all that one run has started. Of
        // those that another one has started the conversation hears when that has ended, too.
        let mut heard: BTreeMap<_, Vec<Option<&usize>>> = BTreeMap::new();
        for (number, (taker, runs)) in told.iter().enumerate() {
            if !completed.contains(taker) {
                continue;
            }
            for run in runs.iter().filter_map(Value::as_str) {
                let (place, by) = (ends.get(run), background.get(run).copied().flatten());
                heard.entry((*taker, Some(number), None)).or_default().push(place);
                heard.entry((*taker, None, by)).or_default().push(place);
            }
        }
        for ((taker, ..), places) in heard.iter().filter(|(_, places)| {
            // None would be of a run that has not ended.
            !places.is_sorted() || places.contains(&None)
        }) {
            wrong.push(format!("{taker} is not told in the order of the ends: {places:?}"));
        }
        // Each start has its key: over deaths it is one run.
        if background.len() != kills * STARTED {
            wrong.push(format!("{} background runs were started", background.len()));
        }
        let dead = self.read(&["outbox", "ls", "--state", "dead"])?;
        if dead["reports"].as_array().is_none_or(|dead| !dead.is_empty()) {
            wrong.push(format!("dead letters: {dead}"));
        }
        Ok(wrong)
    }
}

fn says(text: &str) -> String {
    json!({ "steps": [[{ "reply": text }]] }).to_string()
}

/// A line that starts background runs.
fn starts(nth: usize) -> String {
    let call = |run: usize| {
        let args = json!({ "task": says(&format!("{nth} {run}")) });
        json!({ "call": { "id": format!("c{run}"), "name": "host/start_task_run", "args": args } })
    };
    let calls: Vec<Value> = (0..STARTED).map(call).collect();
    json!({ "steps": [calls, [{ "reply": "started" }]] }).to_string()
}
