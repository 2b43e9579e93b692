//! The descriptions of the host's tools, as models read them.

use serde_json::{Value, json};
use taskrun_journal::channel::CHANNELS_MAX;
use taskrun_journal::runs::{AWAITED_MAX, OUTPUT_PART_BYTES_MAX, SPAWNED_MAX};
use taskrun_journal::spec::{ENTRY_BYTES_MAX, TASK_BYTES_MAX};
use taskrun_journal::text::cut;
use taskrun_journal::tool::{ToolHints, ToolSpec};
use taskrun_policy::{HOST, HostFunction};

use super::Callee;
use super::own::plain;
use super::reply::CUT;
use crate::controller::{TRANSCRIPT_DEFAULT, TRANSCRIPT_MAX};

/// The description of one, for an agent with these members.
pub(super) fn of(function: HostFunction, members: &[Callee]) -> ToolSpec {
    let (description, schema) = match function {
        HostFunction::StartTaskRun => (
            "Starts a run of a named agent in the background and returns it with its id. With \
             mode \"sync\" the call waits for the run's end, or until wait_timeout_seconds are \
             over; the run goes on then.",
            object(
                json!({
                    "task": text("The whole task; the agent knows nothing of this conversation.",
                        TASK_BYTES_MAX),
                    "agent_name": agent(members),
                    "mode": {
                        "type": "string",
                        "description": "\"async\", the default, or \"sync\".",
                    },
                    "timeout_seconds": seconds("The time that the run may take."),
                    "wait_timeout_seconds": seconds("The longest wait in mode \"sync\"."),
                }),
                &["task"],
            ),
        ),
        // Further arguments are ignored.
        HostFunction::ListTaskRuns => (
            "Lists the runs that were started in this conversation, the one changed last first.",
            json!({ "type": "object", "properties": {} }),
        ),
        HostFunction::GetTaskRun => {
            let from = format!(
                "Instead of the run, shows a part of its result that begins with this byte of it: at \
                 most {OUTPUT_PART_BYTES_MAX} bytes, and where the rest begins (result_next)."
            );
            (
                "Shows a run as it stands, or a part of its result.",
                object(
                    json!({
                        "id": id(),
                        "result_from": { "type": "integer", "minimum": 0, "description": from },
                    }),
                    &["id"],
                ),
            )
        }
        HostFunction::CancelTaskRun => (
            "Cancels a run, with everything that it started. It is \"canceling\" until its work has \
             come to an end.",
            object(json!({ "id": id() }), &["id"]),
        ),
        HostFunction::WaitTaskRun => (
            "Waits for the end of a run, or until timeout_seconds are over, and shows it as it \
             stands then. It never cancels the run.",
            object(json!({ "id": id(), "timeout_seconds": seconds("The longest wait.") }), &["id"]),
        ),
        HostFunction::ReadTaskRunTranscript => (
            "Reads the last entries of a run's conversation.",
            object(
                json!({
                    "id": id(),
                    "limit": {
                        "type": "integer",
                        "description": format!(
                            "The number of entries: {TRANSCRIPT_DEFAULT} unless given, at most \
                             {TRANSCRIPT_MAX}."
                        ),
                    },
                }),
                &["id"],
            ),
        ),
        HostFunction::SpawnTask => (
            "Gives a task to an agent, which works on it in the background, and returns its \
             task_id at once.",
            object(
                json!({
                    "agent": agent(members),
                    "message": text("The whole task; the agent knows nothing of this conversation.",
                        TASK_BYTES_MAX),
                }),
                &["agent", "message"],
            ),
        ),
        HostFunction::CheckTasks => (
            "Lists tasks that were started in this conversation, the latest first, at most 16.",
            object(
                json!({
                    "agent": { "type": "string", "description": "Only those of this agent." },
                    "status": {
                        "type": "string",
                        "description": "Only those with this status: queued, in_progress, blocked, \
                                        finished or failed.",
                    },
                    "parent_id": {
                        "type": "string",
                        "description": "Only those that this task started.",
                    },
                }),
                &[],
            ),
        ),
        HostFunction::CreateTask => (
            "Leaves a task for an agent, which works on it at its next heartbeat.",
            object(
                json!({
                    "agent": agent(members),
                    "description": text("The whole task.", ENTRY_BYTES_MAX),
                }),
                &["agent", "description"],
            ),
        ),
        HostFunction::CompleteTask => (
            "Says that one of the tasks that this run works on is done, and with what result.",
            object(
                json!({
                    "task_id": { "type": "string", "description": "The id behind \"Task #\"." },
                    "result": text("The result, or the reason of the failure.",
                        crate::batch::ENTRY_RESULT_BYTES_MAX),
                    "failed": { "type": "boolean", "description": "True if the task failed." },
                }),
                &["task_id", "result"],
            ),
        ),
        HostFunction::AskUser => (
            "Asks the user a question and waits for the answer.",
            object(json!({ "question": text("The question.", QUESTION_BYTES_MAX) }), &["question"]),
        ),
        HostFunction::AwaitTasks => (
            "Waits until tasks have ended, and returns the result of each, in the order asked.",
            object(
                json!({
                    "task_ids": {
                        "type": "array",
                        "items": { "type": "string" },
                        "maxItems": AWAITED_MAX,
                        "description": "The tasks.",
                    },
                    "mode": {
                        "type": "string",
                        "enum": ["all", "any"],
                        "description": "\"all\", the default, or \"any\" for the first that ends.",
                    },
                    "timeout_seconds": seconds("The longest wait."),
                }),
                &["task_ids"],
            ),
        ),
        HostFunction::DelegateTask => (
            "Gives a task to another agent, which works on it in the background in a room of its \
             own, and returns the ids of both at once.",
            object(
                json!({
                    "agent": {
                        "type": "string",
                        "enum": members.iter().map(|member| &member.name).collect::<Vec<_>>(),
                        "description": one_of(members),
                    },
                    "task": text("The whole task; the agent knows nothing of this conversation.",
                        TASK_BYTES_MAX),
                    "context": {
                        "type": "object",
                        "description": "What the agent is to know beside the task, by names.",
                    },
                    "share_channels": {
                        "type": "array",
                        "items": { "type": "string" },
                        "maxItems": CHANNELS_MAX,
                        "description": "The channels of this conversation that the room has as \
                                        well, by their names. Its answer is told there.",
                    },
                }),
                &["agent", "task"],
            ),
        ),
        HostFunction::Delegate => (
            "Gives tasks to agents, which work on them at the same time, and waits until all have \
             ended. Returns the result of each, in the order given. All are started, or none.",
            object(
                json!({
                    "tasks": {
                        "type": "array",
                        "minItems": 1,
                        "maxItems": SPAWNED_MAX,
                        "items": object(
                            json!({
                                "agent": agent(members),
                                "message": text(
                                    "The whole task; the agent knows nothing of this \
                                     conversation.",
                                    TASK_BYTES_MAX,
                                ),
                            }),
                            &["agent", "message"],
                        ),
                        "description": "The tasks.",
                    },
                }),
                &["tasks"],
            ),
        ),
        HostFunction::TransferToAgent => (
            "Hands this conversation over to another agent. It is shown what was said, answers in \
             your place, and has the conversation from then on. Your work ends with its answer.",
            object(json!({ "agent": agent(members) }), &["agent"]),
        ),
        HostFunction::SpawnAgent => (
            "Starts a subagent, which works in the background and is known by its name. With \
             wait the call returns its result, or says after five minutes that it is running; \
             whatever is not returned here is told when the subagent has ended.",
            object(
                json!({
                    "agent": agent(members),
                    "goal": text("The whole goal; the agent knows nothing of this conversation.",
                        TASK_BYTES_MAX),
                    "name": {
                        "type": "string",
                        "description": "The name of the subagent: a letter, then letters, digits, \
                                        - and _. It is free again when the subagent has ended.",
                    },
                    "tools": {
                        "type": "array",
                        "items": { "type": "string" },
                        "description": "The only functions that it may call, of those that its \
                                        agent has: \"tool/function\", or \"tool/*\".",
                    },
                    "max_turns": bound("The turns that it may take.", "integer"),
                    "max_cost_usd": bound("The US dollars that it may cost.", "number"),
                    "max_wallclock_seconds": bound("The time that it may run.", "integer"),
                    "wait": { "type": "boolean", "description": "True to wait for its end." },
                }),
                &["agent", "goal"],
            ),
        ),
        HostFunction::StopAgent => (
            "Stops a subagent, with everything that it started. One that has ended is shown as it \
             ended.",
            object(
                json!({
                    "name": {
                        "type": "string",
                        "description": "The name that spawn_agent returned.",
                    },
                }),
                &["name"],
            ),
        ),
        HostFunction::ReportDone | HostFunction::SetStatus | HostFunction::ScheduleNextTurn => {
            plain(function)
        }
    };
    ToolSpec {
        name: function.as_str().to_owned(),
        title: None,
        description: description.to_owned(),
        input_schema: schema.to_string(),
        output_schema: None,
        hints: hints(function),
        timeout: None,
        tags: vec![HOST.to_owned()],
        stated_tags: vec![HOST.to_owned()],
    }
}

/// Most bytes of a question to a person, who is to read it in a terminal.
pub(super) const QUESTION_BYTES_MAX: usize = 16 << 10;

/// Each effect on a run is keyed by the call: made again it finds the run that it has started.
fn hints(function: HostFunction) -> ToolHints {
    let read_only = match function {
        HostFunction::ListTaskRuns
        | HostFunction::GetTaskRun
        | HostFunction::WaitTaskRun
        | HostFunction::ReadTaskRunTranscript
        | HostFunction::CheckTasks
        | HostFunction::AwaitTasks => true,
        HostFunction::StartTaskRun
        | HostFunction::CancelTaskRun
        | HostFunction::SpawnTask
        | HostFunction::CreateTask
        | HostFunction::CompleteTask
        | HostFunction::AskUser
        | HostFunction::DelegateTask
        | HostFunction::Delegate
        | HostFunction::TransferToAgent
        | HostFunction::SpawnAgent
        | HostFunction::StopAgent
        | HostFunction::ReportDone
        | HostFunction::SetStatus
        | HostFunction::ScheduleNextTurn => false,
    };
    let destructive = matches!(function, HostFunction::CancelTaskRun | HostFunction::StopAgent);
    let terminal = function == HostFunction::TransferToAgent;
    ToolHints { read_only, destructive, terminal, idempotent: true, ..ToolHints::default() }
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn text(description: &str, bytes: usize) -> Value {
    json!({ "type": "string", "maxLength": bytes, "description": description })
}

/// A bound that takes away from what the agent has.
fn bound(description: &str, of: &str) -> Value {
    let description = format!("{description} At most what the agent has.");
    let least = if of == "integer" { 1 } else { 0 };
    json!({ "type": of, "minimum": least, "description": description })
}

fn id() -> Value {
    json!({ "type": "string", "description": "The id of the run." })
}

fn seconds(description: &str) -> Value {
    let description = format!("{description} Zero or less is no limit.");
    json!({ "type": "integer", "description": description })
}

/// Most bytes of what is said of a member: a sentence or two.
const MEMBER_BYTES_MAX: usize = 200;
/// Most bytes of what is said of all members in one argument: each question to a model has it, once
/// for each tool that takes a member.
const MEMBERS_BYTES_MAX: usize = 8 << 10;

/// An enumeration would refuse others before the tool can say that they are no members.
fn agent(members: &[Callee]) -> Value {
    json!({ "type": "string", "description": one_of(members) })
}

/// The members by their names, with what each is for as long as there is room.
fn one_of(members: &[Callee]) -> String {
    let mut left = Some(MEMBERS_BYTES_MAX);
    let mut listed = Vec::with_capacity(members.len());
    for Callee { name, description } in members {
        let said = description.as_deref().map(in_short).filter(|said| !said.is_empty());
        if let Some(said) = &said {
            // Behind the first that has no room all stand by their names.
            left = left.and_then(|left| left.checked_sub(said.len()));
        }
        listed.push(match said.filter(|_| left.is_some()) {
            Some(said) => format!("{name} ({said})"),
            None => name.clone(),
        });
    }
    format!("The agent, one of: {}.", listed.join(", "))
}

/// The beginning of a description, in one line.
fn in_short(description: &str) -> String {
    let line = description.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.len() > MEMBER_BYTES_MAX {
        true => format!("{}{CUT}", cut(&line, MEMBER_BYTES_MAX - CUT.len())),
        false => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, description: Option<&str>) -> Callee {
        Callee { name: name.to_owned(), description: description.map(str::to_owned) }
    }

    #[test]
    fn what_members_are_for_is_said_as_long_as_there_is_room() {
        let sums = "Helps with\n  sums.";
        let some = [member("helper", Some(sums)), member("hb", None), member("mute", Some(" "))];
        assert_eq!(one_of(&some), "The agent, one of: helper (Helps with sums.), hb, mute.");
        let long = in_short(&"ä".repeat(MEMBER_BYTES_MAX));
        assert!(long.len() <= MEMBER_BYTES_MAX && long.ends_with("ä\u{2026}"), "{long}");
        let fits = "x".repeat(MEMBER_BYTES_MAX);
        assert_eq!(in_short(&fits), fits);
        let many = vec![member("m", Some(&fits)); 256];
        let (all, said) = (one_of(&many), MEMBERS_BYTES_MAX / MEMBER_BYTES_MAX);
        assert_eq!((all.matches(&fits).count(), all.matches(", m").count()), (said, 255), "{all}");
    }

    /// Names, descriptions and schemas as models of other systems know them: a change is seen here.
    #[test]
    fn m_30_the_tools_are_described_as_they_are_documented() {
        let members = ["worker", "writer"].map(|name| member(name, None));
        let of_host = HostFunction::ALL.into_iter().map(|function| of(function, &members));
        let described: serde_json::Map<String, Value> = of_host
            .chain([super::super::agents::spec("worker", None)])
            .map(|spec| {
                let schema: Value = serde_json::from_str(&spec.input_schema).expect("JSON");
                let shown = json!({ "description": spec.description, "arguments": schema });
                (spec.name, shown)
            })
            .collect();
        let described = serde_json::to_string_pretty(&described).expect("text keys");
        assert_eq!(described, include_str!("description.json").trim_end());
    }
}
