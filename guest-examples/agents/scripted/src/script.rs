//! The script's form, and what is said of one that does not have it.

use serde_json::Value;
use taskrun_guest::{
    agent::{PlanResult, PlannerError, ToolRequest},
    reminders::{ReminderSpec, Tier},
    types::{Attachment, Usage},
};

use crate::decision;

/// A task, parsed.
pub(crate) enum Task {
    /// Not a script: to be answered with itself.
    Text(String),
    Script(Script),
}

/// The operations of each step.
pub(crate) struct Script {
    pub(crate) steps: Vec<Vec<Op>>,
    pub(crate) finalize: Option<Vec<Op>>,
}

/// One operation; see the crate's table.
pub(crate) enum Op {
    Reply(String),
    Delta(String),
    Call(ToolRequest),
    Usage(Usage),
    Thought(String),
    Log(String),
    Err(String),
    Close,
    Block,
    IgnoreCancel(u64),
    Sleep(u64),
    Spin,
    Set(String, Option<String>),
    Get(String),
    Remind(ReminderSpec),
    Forget(String),
    ReplyContext,
    ReplyInput,
    ReadResult(String),
    Plan(Box<PlanResult>),
}

/// A complaint: where in the script, and what.
pub(crate) struct Malformed {
    pub(crate) place: String,
    pub(crate) problem: String,
}

impl Malformed {
    pub(crate) fn at(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { place: place.into(), problem: problem.into() }
    }
}

impl From<Malformed> for PlannerError {
    fn from(malformed: Malformed) -> Self {
        Self::new(format!("malformed script at {}: {}", malformed.place, malformed.problem))
            .code("malformed-script")
    }
}

/// Reads a task.
pub(crate) fn parse(task: &str) -> Result<Task, Malformed> {
    if !task.trim_start().starts_with('{') {
        return Ok(Task::Text(task.to_owned()));
    }
    let document: Value = serde_json::from_str(task).map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        Malformed::at(place, format!("not JSON: {error}"))
    })?;
    for key in document.as_object().into_iter().flat_map(|object| object.keys()) {
        if !["steps", "ops", "finalize"].contains(&key.as_str()) {
            return Err(Malformed::at(key, "no such key; there are steps, ops and finalize"));
        }
    }
    let steps = match (document.get("steps"), document.get("ops")) {
        (Some(Value::Array(steps)), None) => steps
            .iter()
            .enumerate()
            .map(|(index, step)| ops(step, &format!("steps[{index}]")))
            .collect::<Result<_, _>>()?,
        (None, Some(list)) => vec![ops(list, "ops")?],
        (Some(_), None) => return Err(Malformed::at("steps", "must be a list of steps")),
        (Some(_), Some(_)) | (None, None) => {
            return Err(Malformed::at("the top", "needs either `steps` or `ops`"));
        }
    };
    let finalize = document.get("finalize").map(|list| ops(list, "finalize")).transpose()?;
    Ok(Task::Script(Script { steps, finalize }))
}

fn ops(list: &Value, place: &str) -> Result<Vec<Op>, Malformed> {
    list.as_array()
        .ok_or_else(|| Malformed::at(place, "must be a list of operations"))?
        .iter()
        .enumerate()
        .map(|(index, value)| op(value, &format!("{place}[{index}]")))
        .collect()
}

fn op(value: &Value, place: &str) -> Result<Op, Malformed> {
    let (name, argument) = match value {
        Value::String(name) => (name.as_str(), &Value::Null),
        Value::Object(fields) if fields.len() == 1 => {
            let (name, argument) = fields.iter().next().expect("it has one field");
            (name.as_str(), argument)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            return Err(Malformed::at(place, "must be a name or an object with one key"));
        }
    };
    let place = format!("{place}.{name}");
    let text = || {
        argument.as_str().map(str::to_owned).ok_or_else(|| Malformed::at(&place, "must be a text"))
    };
    let ms = || argument.as_u64().ok_or_else(|| Malformed::at(&place, "must be milliseconds"));
    Ok(match name {
        "reply" => Op::Reply(text()?),
        "delta" => Op::Delta(text()?),
        "call" => Op::Call(call(argument, &place)?),
        "usage" => Op::Usage(usage(argument, &place)?),
        "thought" => Op::Thought(text()?),
        "log" => Op::Log(text()?),
        "err" => Op::Err(text()?),
        "close" => Op::Close,
        "block" => Op::Block,
        "ignore_cancel" => Op::IgnoreCancel(ms()?),
        "sleep" => Op::Sleep(ms()?),
        "spin" => Op::Spin,
        "set" => {
            let (key, value) = set(argument, &place)?;
            Op::Set(key, value)
        }
        "get" => Op::Get(text()?),
        "remind" => Op::Remind(reminder(argument, &place)?),
        "forget" => Op::Forget(text()?),
        "reply_context" => Op::ReplyContext,
        "reply_input" => Op::ReplyInput,
        "read_result" => Op::ReadResult(text()?),
        "plan" => Op::Plan(Box::new(decision::plan(argument, &place)?)),
        _ => return Err(Malformed::at(place, "no such operation")),
    })
}

fn call(argument: &Value, place: &str) -> Result<ToolRequest, Malformed> {
    let name = argument
        .get("name")
        .and_then(Value::as_str)
        .ok_or_else(|| Malformed::at(place, "needs a `name`"))?;
    let args = argument.get("args").map_or_else(|| "{}".to_owned(), Value::to_string);
    let request = ToolRequest::new(name, args);
    match argument.get("id") {
        None | Some(Value::Null) => Ok(request),
        Some(Value::String(id)) => Ok(request.id(id)),
        Some(Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            Err(Malformed::at(place, "`id` must be a text"))
        }
    }
}

fn usage(argument: &Value, place: &str) -> Result<Usage, Malformed> {
    let numbers: Option<Vec<u64>> =
        argument.as_array().and_then(|list| list.iter().map(Value::as_u64).collect());
    match numbers.as_deref() {
        Some(&[prompt_tokens, completion_tokens, total_tokens]) => {
            Ok(Usage { prompt_tokens, completion_tokens, total_tokens, ..Usage::default() })
        }
        Some(
            &[
                prompt_tokens,
                completion_tokens,
                total_tokens,
                cached_tokens,
                cache_write_tokens,
                reasoning_tokens,
            ],
        ) => Ok(Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens,
            cached_tokens,
            cache_write_tokens,
            reasoning_tokens,
        }),
        Some(_) | None => Err(Malformed::at(place, "must be three numbers, or six")),
    }
}

fn reminder(argument: &Value, place: &str) -> Result<ReminderSpec, Malformed> {
    let text = |key: &str| {
        let text = argument.get(key).and_then(Value::as_str).map(str::to_owned);
        text.ok_or_else(|| Malformed::at(format!("{place}.{key}"), "must be a text"))
    };
    let flag = |key: &str| argument.get(key).and_then(Value::as_bool).unwrap_or(false);
    let count = |key: &str| {
        argument.get(key).and_then(Value::as_u64).and_then(|count| u32::try_from(count).ok())
    };
    Ok(ReminderSpec {
        id: text("id")?,
        text: text("text")?,
        priority: if flag("safety") { Tier::Safety } else { Tier::Guidance },
        attachment: if flag("run-start") { Attachment::RunStart } else { Attachment::UserTurn },
        max_per_run: count("max"),
        min_turns_between: count("between").unwrap_or_default(),
    })
}

fn set(argument: &Value, place: &str) -> Result<(String, Option<String>), Malformed> {
    match argument.as_array().map(Vec::as_slice) {
        Some([Value::String(key), Value::String(value)]) => Ok((key.clone(), Some(value.clone()))),
        Some([Value::String(key), Value::Null]) => Ok((key.clone(), None)),
        Some(_) | None => Err(Malformed::at(place, "must be a key and a text or null")),
    }
}
