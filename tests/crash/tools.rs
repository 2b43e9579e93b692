//! Tools of the host that change something, by hosts that die between the effect of a call and its
//! result: the next host makes the call again, which changes nothing more and has its first answer.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use taskrun_examples::{CHAT, SCRIPTED};

use crate::commands::Commands;
use crate::point::CrashPoint;
use crate::process::{Process, Program};
use crate::project::Project;
use crate::round::Broken;
use crate::{LEASE_ALONE, kept_in};

/// Longest wait for a host to begin, and to die.
const DIES_MAX: Duration = Duration::from_secs(60);
/// The session of the runs that call, so that a later one sees what an earlier one started.
const SESSION: &str = "session-tools";
/// The id of the entry that a batch completes.
const ENTRY: &str = "entry";
/// The call of a tool in its run.
const CALL: &str = "c1";

/// The model of the agent that works on entries: it completes the one, and ends.
const KEEPS: &str = r#"{"responses": [{"tool_call": {"tool_call_id": "c1", "name": "host/complete_task", "payload": "{\"task_id\":\"entry\",\"result\":\"kept\"}"}}]}
{"responses": [{"text": "That is all."}]}
"#;

/// The write before which a host dies: the effect is there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// That of the result.
    Result,
    /// That of the word that the call is parked until what it started has ended.
    Parked,
}

/// A tool, whose call is under way when its host dies.
struct Row {
    tool: &'static str,
    before: Before,
    /// Its arguments, where a run was started before.
    arguments: fn(&str) -> Value,
    /// The text that its answer has in it, by that run and those that the call started.
    answer: fn(&str, &[Value]) -> Value,
    /// The number of runs that the call starts.
    starts: usize,
}

/// All of `docs/delegation.md` that change something but those by which a run speaks of itself, whose
/// effect and result are one write, and the question to a person, which is that itself.
const ROWS: [Row; 11] = [
    Row {
        tool: "host/start_task_run",
        before: Before::Result,
        arguments: |_| json!({ "task": asks(), "agent_name": "worker" }),
        answer: |_, runs| json!({ "id": runs[0]["id"], "agent_name": "worker", "status": "queued", "turns": 0 }),
        starts: 1,
    },
    Row {
        tool: "host/cancel_task_run",
        before: Before::Result,
        arguments: |earlier| json!({ "id": earlier }),
        // It waits for a person, so that nothing is left to come to an end.
        answer: |earlier, _| json!({ "id": earlier, "status": "canceled", "stop_reason": "canceled_by_parent" }),
        starts: 0,
    },
    Row {
        tool: "host/spawn_agent",
        before: Before::Result,
        arguments: |_| json!({ "agent": "worker", "goal": asks() }),
        answer: |_, runs| json!({ "id": runs[0]["id"], "status": "running" }),
        starts: 1,
    },
    Row {
        tool: "host/stop_agent",
        before: Before::Result,
        arguments: |earlier| json!({ "name": earlier }),
        answer: |earlier, _| json!({ "id": earlier, "status": "stopped" }),
        starts: 0,
    },
    Row {
        tool: "host/start_task_run",
        before: Before::Parked,
        arguments: |_| json!({ "task": says(), "agent_name": "worker", "mode": "sync" }),
        answer: |_, runs| json!({ "id": runs[0]["id"], "status": "completed", "result": "did" }),
        starts: 1,
    },
    Row {
        tool: "host/spawn_task",
        before: Before::Result,
        arguments: |_| json!({ "agent": "worker", "message": says() }),
        answer: |_, runs| json!({ "task_id": runs[0]["id"], "status": "queued" }),
        starts: 1,
    },
    Row {
        tool: "host/create_task",
        before: Before::Result,
        arguments: |_| json!({ "agent": "later", "description": "some day" }),
        answer: |_, runs| json!({ "task_id": runs[0]["id"], "status": "queued" }),
        starts: 1,
    },
    Row {
        tool: "host/delegate_task",
        before: Before::Result,
        arguments: |_| json!({ "agent": "worker", "task": says() }),
        answer: |_, runs| {
            let room = &runs[0]["child_session_id"];
            json!({ "status": "delegated", "task_id": runs[0]["id"], "child_room_id": room,
                "agent_id": "worker" })
        },
        starts: 1,
    },
    Row {
        tool: "host/delegate",
        before: Before::Parked,
        arguments: |_| {
            let task = json!({ "agent": "worker", "message": says() });
            json!({ "tasks": [task, task] })
        },
        answer: |_, _| {
            let end = json!({ "status": "finished", "result": "did" });
            json!([end, end])
        },
        starts: 2,
    },
    Row {
        tool: "agent/worker",
        before: Before::Parked,
        arguments: |_| json!({ "request": says() }),
        answer: |_, _| json!("did"),
        starts: 1,
    },
    Row {
        tool: "host/transfer_to_agent",
        before: Before::Parked,
        arguments: |_| json!({ "agent": "answers" }),
        // Its model says what it was asked.
        answer: |_, runs| runs[0]["task"].clone(),
        starts: 1,
    },
];

/// Has a host die in the call of each, if it is asked for, and prints what came of it; false if anything
/// was wrong.
///
/// # Errors
/// [`Broken`], with the step of the harness that failed.
pub(crate) async fn kill(
    program: &Program,
    warm: &Project,
    is_asked_for: bool,
) -> Result<bool, Broken> {
    if !is_asked_for {
        return Ok(true);
    }
    let mut project = Project::new()?;
    let folder = project.hold();
    project.warm(warm)?;
    fs::write(project.path().join("keeps.jsonl"), KEEPS)?;
    fs::write(project.policy(), policy())?;
    let commands = Commands::new(program, &project);
    let table = Table { program, project: &project, commands: &commands };
    let found = table.go().await;
    commands.end_hosts();
    let wrong = found.map_err(|broken| kept_in(&folder, &broken))?;
    println!("tools of the host: {} calls whose host died", ROWS.len() + 1);
    Ok(project.judge(&wrong))
}

fn policy() -> String {
    let (scripted, chat) = (SCRIPTED.name, CHAT.name);
    format!(
        r#"[model.keeps]
provider = "scripted"
script = "keeps.jsonl"

[model.answers]
provider = "echo"

[agent.lead]
component = "components/{scripted}.wasm"
members = ["worker", "later", "answers"]
tools = ["host/task_runs", "host/tasks", "host/delegation", "host/subagents", "host/transfer_to_agent", "agent/worker"]
allow = ["controller: *", "model: answers"]

[agent.worker]
component = "components/{scripted}.wasm"

[agent.answers]
component = "components/{chat}.wasm"
model = "answers"

[agent.later]
component = "components/{scripted}.wasm"
heartbeat = {{ interval = "7d" }}

[agent.keeper]
component = "components/{chat}.wasm"
model = "keeps"
members = ["worker"]
allow = ["controller: *"]
heartbeat = {{ interval = "1s" }}
"#
    )
}

/// A task that is answered at once.
fn says() -> String {
    json!({ "steps": [[{ "reply": "did" }]] }).to_string()
}

/// One that waits for a person.
fn asks() -> String {
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    json!({ "steps": [[{ "plan": { "await": [question] } }], [{ "reply": "did" }]] }).to_string()
}

/// The task of a run that makes one call.
fn calls(tool: &str, arguments: &Value) -> String {
    let call = json!({ "id": CALL, "name": tool, "args": arguments });
    json!({ "steps": [[{ "call": call }], [{ "reply": "all is said" }]] }).to_string()
}

/// The command that asks for such a run.
fn asked<'a>(script: &'a str, id: &'a str) -> [&'a str; 8] {
    ["run", "lead", script, "-d", "--id", id, "--session", SESSION]
}

/// A run whose host died in a call, and what the call had done by then.
struct Dead {
    id: String,
    runs: Vec<Value>,
}

struct Table<'a> {
    program: &'a Program,
    project: &'a Project,
    commands: &'a Commands,
}

impl Table<'_> {
    /// Gives everything that was wrong.
    async fn go(&self) -> Result<Vec<String>, Broken> {
        let (mut wrong, mut waiting) = (Vec::new(), Vec::new());
        for (nth, row) in ROWS.iter().enumerate() {
            let id = format!("run-{nth}");
            let earlier: String = waiting.last().cloned().unwrap_or_default();
            let script = calls(row.tool, &(row.arguments)(&earlier));
            let dead = self.die(row.before, &asked(&script, &id), &id).await?;
            if dead.runs.len() != row.starts {
                wrong.push(format!("{}: it has started {:?} by then", row.tool, dead.runs));
                continue;
            }
            let asks = json!(asks());
            waiting.extend(dead.runs.iter().filter(|run| run["task"] == asks).map(id_of));
            let wanted = (row.answer)(&earlier, &dead.runs);
            wrong.extend(self.go_on(row.tool, dead, &wanted).await?);
        }
        for id in &waiting {
            let canceled = self.count(id, "cancel_requested")?;
            if canceled != 1 {
                wrong.push(format!("{id}: canceled {canceled} times"));
            }
        }
        wrong.extend(self.complete().await?);
        wrong.extend(self.calm().await?);
        Ok(wrong)
    }

    /// Holds what is wanted of calls that end a run to the answers of those whose host lives.
    async fn calm(&self) -> Result<Vec<String>, Broken> {
        let mut host = Process::start(self.program, self.project, LEASE_ALONE, None)?;
        self.meets_host().await?;
        let mut wrong = Vec::new();
        for (nth, row) in ROWS.iter().filter(|row| row.starts == 0).enumerate() {
            let starts = json!({ "task": asks(), "agent_name": "worker" });
            let started = self.call("host/start_task_run", &starts, &format!("start-{nth}"))?;
            let earlier = id_of(&started);
            self.blocks(&earlier).await?;
            let said = self.call(row.tool, &(row.arguments)(&earlier), &format!("end-{nth}"))?;
            let wanted = (row.answer)(&earlier, &[]);
            if !has(&said, &wanted) {
                wrong.push(format!("{}: the first answer is {said}, and not {wanted}", row.tool));
            }
        }
        host.kill()?;
        Ok(wrong)
    }

    /// The value that a call gives under a host that lives.
    fn call(&self, tool: &str, arguments: &Value, id: &str) -> Result<Value, Broken> {
        let script = calls(tool, arguments);
        self.commands.said(&asked(&script, id))?;
        self.commands.said(&["wait", id, "--timeout", "60s"])?;
        self.result(id)?.ok_or_else(|| format!("{tool}: {id} has no result").into())
    }

    /// Returns when a run waits for a person, under a host that lives.
    async fn blocks(&self, id: &str) -> Result<(), Broken> {
        let end = tokio::time::Instant::now() + DIES_MAX;
        while self.read(&["get", id])?["status"] != "blocked" {
            if tokio::time::Instant::now() >= end {
                return Err(format!("{id} does not ask").into());
            }
        }
        Ok(())
    }

    /// The same for the tool that a batch has alone.
    async fn complete(&self) -> Result<Vec<String>, Broken> {
        let ask = ["run", "keeper", "keep it", "--heartbeat", "--id", ENTRY];
        let mut dead = self.die(Before::Result, &ask, ENTRY).await?;
        let entry = self.read(&["get", ENTRY])?;
        let is_done = (&entry["status"], &entry["result"]) == (&json!("completed"), &json!("kept"));
        dead.id = entry["batch_run_id"].as_str().unwrap_or_default().to_owned();
        let wanted = json!({ "task_id": ENTRY, "status": "finished" });
        let mut wrong = self.go_on("host/complete_task", dead, &wanted).await?;
        if !is_done || self.count(ENTRY, "finished")? != 1 {
            wrong.push(format!("host/complete_task: {entry}"));
        }
        Ok(wrong)
    }

    /// Asks a host for a run that it dies in.
    async fn die(&self, before: Before, ask: &[&str], id: &str) -> Result<Dead, Broken> {
        let kind = match before {
            Before::Result => "tool_result",
            Before::Parked => "tool_call_parked",
        };
        let at: CrashPoint = format!("append.{kind}.before").parse()?;
        let mut host = Process::start(self.program, self.project, LEASE_ALONE, Some(at))?;
        self.meets_host().await?;
        let said = self.commands.said(ask)?;
        if !said.status.success() {
            return Err(format!("{id} is refused: {said:?}").into());
        }
        if host.gone_within(DIES_MAX).await?.is_none() {
            return Err(format!("{id}: the host lives: {}", host.files.log()).into());
        }
        let tree = self.read(&["tree", id])?;
        let runs = tree["descendants"].as_array().cloned().unwrap_or_default();
        Ok(Dead { id: id.to_owned(), runs })
    }

    /// Has another host go on with a run, and gives everything that is not as it would be if its
    /// first one had lived.
    async fn go_on(&self, tool: &str, dead: Dead, wanted: &Value) -> Result<Vec<String>, Broken> {
        let Dead { id, runs } = dead;
        let mut wrong = Vec::new();
        if self.result(&id)?.is_some() {
            wrong.push(format!("{tool}: it has a result before it is made again"));
        }
        let mut host = Process::start(self.program, self.project, LEASE_ALONE, None)?;
        self.meets_host().await?;
        let waited = self.commands.said(&["wait", &id, "--timeout", "60s"])?;
        if !waited.status.success() {
            wrong.push(format!("{tool}: its run does not complete: {waited:?}"));
        }
        for run in runs.iter().filter(|run| run["task"] == json!(asks())) {
            self.blocks(&id_of(run)).await?;
        }
        host.kill()?;
        let found = self.result(&id)?.unwrap_or_default();
        if !has(&found, wanted) {
            wrong.push(format!("{tool}: the answer is {found}, and not {wanted}"));
        }
        if self.count(&id, "tool_call_repeated")? != 1 {
            wrong.push(format!("{tool}: the call is not made again"));
        }
        let tree = self.read(&["tree", &id])?;
        let now = tree["descendants"].as_array().cloned().unwrap_or_default();
        let ids = |runs: &[Value]| runs.iter().map(id_of).collect::<BTreeSet<_>>();
        if ids(&now) != ids(&runs) {
            wrong.push(format!("{tool}: it has started {:?} and then {:?}", ids(&runs), ids(&now)));
        }
        Ok(wrong)
    }

    /// Returns when a host lives: else whoever asks for a run starts one.
    async fn meets_host(&self) -> Result<(), Broken> {
        let end = tokio::time::Instant::now() + DIES_MAX;
        while self.read(&["doctor"])?["hosts"].as_array().is_none_or(Vec::is_empty) {
            if tokio::time::Instant::now() >= end {
                return Err("no host begins".into());
            }
        }
        Ok(())
    }

    /// The value that the call gave, once it has.
    fn result(&self, id: &str) -> Result<Option<Value>, Broken> {
        let results = self.events(id, "tool_result")?;
        match &results[..] {
            [] => Ok(None),
            [one] => {
                let value = one["output"]["outcome"]["value"].as_str().unwrap_or("null");
                Ok(Some(serde_json::from_str(value)?))
            }
            more => Err(format!("{id}: more than one result: {more:?}").into()),
        }
    }

    fn count(&self, id: &str, kind: &str) -> Result<usize, Broken> {
        Ok(self.events(id, kind)?.len())
    }

    fn events(&self, id: &str, kind: &str) -> Result<Vec<Value>, Broken> {
        let events = self.read(&["events", id])?;
        let events = events["events"].as_array().ok_or("no events")?;
        Ok(events.iter().filter(|event| event["kind"] == kind).cloned().collect())
    }

    fn read(&self, args: &[&str]) -> Result<Value, Broken> {
        let said = self.commands.said(&[args, &["-o", "json"]].concat())?;
        let read = serde_json::from_slice(&said.stdout);
        read.map_err(|error| format!("{error}: {said:?}").into())
    }
}

fn id_of(run: &Value) -> String {
    run["id"].as_str().unwrap_or_default().to_owned()
}

/// True if a value has all that is wanted in it.
fn has(found: &Value, wanted: &Value) -> bool {
    match wanted {
        Value::Object(keys) => keys.iter().all(|(key, value)| has(&found[key], value)),
        Value::Array(values) => found.as_array().is_some_and(|found| {
            found.len() == values.len()
                && found.iter().zip(values).all(|(one, value)| has(one, value))
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => found == wanted,
    }
}
