//! Five closures of one agent, of which the policy names one after the other, under hosts,
//! terminals, adoptions and a removal of components that are killed at random: no run is stranded, and
//! each is executed with the component and the prompt that it was accepted with, or given later. The
//! answer of a run names both: each component says which of the five it is, and so does each prompt.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};
use taskrun_examples::{BRIEFER, SCRIPTED};

use crate::chance::Chance;
use crate::commands::{Commands, Running};
use crate::process::Program;
use crate::project::Project;
use crate::round::Broken;

/// Closures that the policy changes between.
const CLOSURES: u64 = 5;
/// Kills after which all runs are brought to their end.
const SEGMENT_KILLS: usize = 10;
/// A process is killed at most so long after it was started, and the policy switched.
const WITHIN_MS: u64 = 400;
/// Nobody has wanted what is kept for so long, as a removal sees it.
const AGED: Duration = Duration::from_secs(5 * 60 * 60);
/// Longest wait for all runs to end when nobody is killed any more.
const DRAIN_MAX: &str = "120s";
/// The session in which runs wait for each other.
const SESSION: &str = "session-closures";
/// The words of the component in place of which each of the five has its own, of the same length.
const WORDS: &str = "nothing in particular";
/// Codes of a refusal by a policy that is being written: it is empty, or ends somewhere.
const WRITTEN: [&str; 2] = ["policy-invalid", "unknown-agent"];

/// The project, and what was found wrong in it.
struct Ground {
    project: Project,
    commands: Commands,
    chance: Chance,
    started: usize,
    /// Runs of which a terminal said that they are accepted.
    accepted: Vec<String>,
    kills: usize,
    checked: usize,
    removed: u64,
    adopted: u64,
    /// Commands that met a policy which was being written.
    unread: u64,
    wrong: Vec<String>,
}

/// Kills so often, and prints what came of it; false if anything was wrong.
///
/// # Errors
/// [`Broken`], with the step of the harness that failed.
pub(crate) fn kill(program: &Program, kills: usize, chance: Chance) -> Result<bool, Broken> {
    let mut project = Project::new()?;
    let folder = project.hold();
    for number in 0..CLOSURES {
        fs::write(folder.join(component(number)), bytes(number)?)?;
    }
    let commands = Commands::new(program, &project);
    let mut ground = Ground {
        project,
        commands,
        chance,
        started: 0,
        accepted: Vec::new(),
        kills: 0,
        checked: 0,
        removed: 0,
        adopted: 0,
        unread: 0,
        wrong: Vec::new(),
    };
    while ground.kills < kills && ground.wrong.is_empty() {
        let segment = ground.segment((kills - ground.kills).min(SEGMENT_KILLS));
        ground.commands.end_hosts();
        segment.map_err(|broken| crate::kept_in(&folder, &broken))?;
    }
    let Ground { kills, checked, removed, adopted, unread, started, .. } = ground;
    println!(
        "{CLOSURES} closures: {kills} kills, {started} runs asked for, {checked} accepted and ended \
         as they were accepted, or as they were adopted ({adopted}); {removed} components removed; \
         {unread} commands met a policy that was being written"
    );
    Ok(ground.project.judge(&ground.wrong) && (checked > 0 || kills == 0))
}

fn component(number: u64) -> String {
    format!("components/worker-{number}.wasm")
}

/// The words by which the component of a closure names itself.
fn own_words(number: u64) -> String {
    format!("the build of number {number}")
}

/// The component of a closure: it gives its prompts other words than those of the others do.
fn bytes(number: u64) -> Result<Vec<u8>, Broken> {
    let mut bytes = BRIEFER.bytes.to_vec();
    let places = bytes.windows(WORDS.len()).enumerate();
    let places: Vec<usize> =
        places.filter(|(_, words)| *words == WORDS.as_bytes()).map(|(at, _)| at).collect();
    let ([at], true) = (places.as_slice(), own_words(number).len() == WORDS.len()) else {
        return Err(format!("{WORDS:?} stands {} times in the component", places.len()).into());
    };
    bytes[*at..*at + WORDS.len()].copy_from_slice(own_words(number).as_bytes());
    Ok(bytes)
}

fn policy(number: u64) -> String {
    format!(
        "[prompt.brief]\ntemplate = \"closure {number}, {{{{ question }}}}\"\n\n\
         [agent.worker]\ncomponent = \"{}\"\nallow = [\"prompts: brief\"]\n\n\
         [agent.gate]\ncomponent = \"components/{}.wasm\"\n",
        component(number),
        SCRIPTED.name
    )
}

impl Ground {
    /// Kills so often while runs are accepted and wait, and brings them to their end.
    fn segment(&mut self, kills: usize) -> Result<(), Broken> {
        self.switch()?;
        let gate = self.open_gate()?;
        let mut host = self.commands.start(&["host", "--idle-exit", "0"], None)?;
        // The last one comes when they end.
        for _ in 1..kills.max(2) {
            if host.has_ended()? {
                host = self.commands.start(&["host", "--idle-exit", "0"], None)?;
            }
            self.kill_one(&mut host)?;
        }
        drop(host);
        self.commands.end_hosts();
        self.drain(&gate)
    }

    /// A run that the others of its session wait for.
    fn open_gate(&mut self) -> Result<String, Broken> {
        let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
        let steps = json!({ "steps": [[{ "plan": { "await": [question] } }], [{ "reply": "" }]] });
        let steps = steps.to_string();
        let args = ["run", "gate", &steps, "-d", "--serial", "--session", SESSION];
        let output = self.commands.said(&args)?;
        let gate = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if gate.is_empty() {
            return Err(format!("no run to wait for: {output:?}").into());
        }
        // An answer is taken where something was asked.
        self.commands.said(&["wait", &gate, "--for", "blocked"])?;
        Ok(gate)
    }

    /// The policy names another closure from now on: by a file in its place, or written over.
    fn switch(&mut self) -> io::Result<()> {
        let text = policy(self.chance.between(0, CLOSURES - 1));
        if self.chance.one_in(2) {
            return fs::write(self.project.policy(), text);
        }
        let beside = self.project.path().join("other.toml");
        fs::write(&beside, text)?;
        fs::rename(beside, self.project.policy())
    }

    /// Has runs accepted while the policy is switched and components are removed, and kills one of
    /// those who do that, or all.
    fn kill_one(&mut self, host: &mut Running) -> Result<(), Broken> {
        self.switch()?;
        let mut running = Vec::new();
        if self.chance.one_in(2) {
            self.age()?;
            let gc = ["gc", "--older-than", "0s", "--components-older-than", "1h", "-o", "json"];
            running.push(self.commands.start(&gc, None)?);
        }
        if self.chance.one_in(3) {
            let adopt = ["adopt", "--agent", "worker", "-o", "json"];
            running.push(self.commands.start(&adopt, None)?);
        }
        for _ in 0..self.chance.between(1, 3) {
            let id = format!("run-{}", self.started);
            self.started += 1;
            let args = ["run", "worker", "brief", "-d", "--id", &id, "--serial", "--session"];
            running.push(self.commands.start(&[&args[..], &[SESSION]].concat(), Some(id.clone()))?);
        }
        self.pass_time();
        self.switch()?;
        self.pass_time();
        let all = running.len() as u64;
        match self.chance.between(0, all + 1) {
            0 => host.kill()?,
            1 => {
                host.kill()?;
                running.iter_mut().try_for_each(Running::kill)?;
            }
            other => running[usize::try_from(other - 2)?].kill()?,
        }
        self.kills += 1;
        running.into_iter().try_for_each(|one| self.look_at(one))
    }

    fn pass_time(&mut self) {
        std::thread::sleep(Duration::from_millis(self.chance.between(0, WITHIN_MS / 2)));
    }

    /// Waits for the end of a command that was not killed.
    fn look_at(&mut self, mut running: Running) -> Result<(), Broken> {
        let Some(child) = running.child.take() else { return Ok(()) };
        let output = child.wait_with_output()?;
        match running.run.take() {
            Some(run) if output.status.success() => self.accepted.push(run),
            Some(_) => self.refused(&running.name, &output),
            None if output.status.success() => {
                let told: Value = serde_json::from_slice(&output.stdout)?;
                self.removed += told["components"]["count"].as_u64().unwrap_or_default();
            }
            None if running.name == "adopt" => self.refused(&running.name, &output),
            None => self.wrong.push(format!("gc failed: {output:?}")),
        }
        Ok(())
    }

    /// A command was refused though nobody killed it: it met a policy that was being written, or
    /// something is wrong.
    fn refused(&mut self, command: &str, output: &Output) {
        let told = String::from_utf8_lossy(&output.stderr);
        let told: Value =
            serde_json::from_str(told.lines().last().unwrap_or_default()).unwrap_or_default();
        let code = told["error"]["code"].as_str().unwrap_or_default();
        match WRITTEN.contains(&code) {
            true => self.unread += 1,
            false => self.wrong.push(format!("{command} is refused: {output:?}")),
        }
    }

    /// As if hours had passed since anybody wanted most of what is kept.
    fn age(&mut self) -> io::Result<()> {
        for folder in fs::read_dir(self.project.data().join("blobs"))? {
            let folder = folder?.path();
            if !folder.is_dir() {
                continue;
            }
            for file in fs::read_dir(folder)? {
                if self.chance.one_in(4) {
                    continue;
                }
                // One that is removed meanwhile is gone.
                let Ok(file) = File::options().write(true).open(file?.path()) else { continue };
                let modified = file.metadata()?.modified()?;
                file.set_modified(modified - AGED)?;
            }
        }
        Ok(())
    }

    /// Lets all runs go on, beside a host that is killed once more, and holds each to what it was
    /// accepted with.
    fn drain(&mut self, gate: &str) -> Result<(), Broken> {
        self.switch()?;
        let mut host = self.commands.start(&["host", "--idle-exit", "0"], None)?;
        let answered = self.commands.said(&["answer", gate, "the third one"])?;
        if !answered.status.success() {
            return Err(format!("the answer is refused: {answered:?}").into());
        }
        self.pass_time();
        host.kill()?;
        self.kills += 1;
        let _host = self.commands.start(&["host", "--idle-exit", "0"], None)?;
        let listed = self.commands.said(&["ps", "-a", "--agent", "worker", "-o", "json"])?;
        let listed: Value = serde_json::from_slice(&listed.stdout)?;
        let runs = listed["runs"].as_array().cloned().unwrap_or_default();
        let ids: Vec<&str> = runs.iter().filter_map(|run| run["id"].as_str()).collect();
        for id in std::mem::take(&mut self.accepted) {
            if !ids.contains(&id.as_str()) {
                self.wrong.push(format!("{id} was accepted and is not there"));
            }
        }
        let known: BTreeMap<String, u64> = (0..CLOSURES)
            .map(|number| {
                Ok((format!("blake3:{}", blake3::hash(&bytes(number)?).to_hex()), number))
            })
            .collect::<Result<_, Broken>>()?;
        for id in ids {
            let waited = self.commands.said(&["wait", id, "--timeout", DRAIN_MAX])?;
            let run: Value =
                serde_json::from_slice(&self.commands.said(&["get", id, "-o", "json"])?.stdout)?;
            let events = self.commands.said(&["events", id, "-o", "json"])?;
            let events: Value = serde_json::from_slice(&events.stdout)?;
            let events = events["events"].as_array().cloned().unwrap_or_default();
            let spec = &events[0]["spec"];
            let adopted = events.iter().rev().find(|event| event["kind"] == "adopted");
            self.adopted += u64::from(adopted.is_some());
            let pin = adopted.map_or(&spec["pin"], |event| &event["to"]);
            let kept = pin.as_str().unwrap_or_default().rsplit(':').next().unwrap_or_default();
            let kept = self.project.data().join("blobs/pins").join(kept);
            let kept = fs::read_to_string(kept).unwrap_or_else(|error| error.to_string());
            // That of the form that it has been given, or else the one that it was accepted with.
            let named =
                known.keys().find(|digest| kept.contains(digest.trim_start_matches("blake3:")));
            let digest = match adopted {
                Some(_) => named.map(String::as_str).unwrap_or_default(),
                None => spec["agent_digest"].as_str().unwrap_or_default(),
            };
            let closure = known.get(digest);
            let answer = closure.map(|number| format!("closure {number}, {}", own_words(*number)));
            if run["status"] != "completed" || run["result"].as_str() != answer.as_deref() {
                let waited = String::from_utf8_lossy(&waited.stderr).into_owned();
                self.wrong.push(format!("{id} of {closure:?} is {run}: {waited}"));
            }
            if !kept.contains(digest.trim_start_matches("blake3:")) {
                self.wrong.push(format!("{id} has {digest}, and under its pin is kept: {kept}"));
            }
            self.checked += 1;
        }
        Ok(())
    }
}
