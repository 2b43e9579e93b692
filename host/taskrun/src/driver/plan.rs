//! The bounds of a plan, and the ids of its calls.

use std::collections::{BTreeMap, BTreeSet};

use taskrun_journal::message::Part;
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::question::{Ask, AwaitItem, Item};
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::ToolOutcome;

use crate::ports::planner::{Decision, PlanResult, RunsWait};

/// Most tool calls that a planner may decide on at once. A model asks for a handful; each one
/// gets a result of its own in the conversation, also where it is refused.
const CALLS_PER_TURN_MAX: usize = 256;
/// Most bytes of a tool's name or a call's id as a planner gives it.
const NAME_BYTES_MAX: usize = 256;

/// Name of the call of a wait where the planner gave none.
const CALL_NAME: &str = "controller/wait";

/// Checks a plan against the contract and gives every call its id.
pub(super) fn check(plan: &mut PlanResult, run: &str, step: (u32, u32)) -> Result<(), String> {
    match &mut plan.decision {
        Decision::ToolCalls(requests) => {
            if requests.is_empty() {
                return Err("the planner decided to call tools and named none".to_owned());
            }
            if requests.len() > CALLS_PER_TURN_MAX {
                let wanted = requests.len();
                return Err(format!(
                    "the planner decided on {wanted} tool calls at once; {CALLS_PER_TURN_MAX} is \
                     the most"
                ));
            }
            let mut seen = BTreeMap::new();
            for (index, request) in requests.iter_mut().enumerate() {
                let length = |id: &Option<String>| id.as_ref().map_or(0, String::len);
                let given = length(&request.tool_call_id).max(length(&request.parent_tool_call_id));
                if request.name.len().max(given) > NAME_BYTES_MAX {
                    return Err(format!(
                        "the planner used a tool's name or call id of more than {NAME_BYTES_MAX} \
                         bytes"
                    ));
                }
                let id = request
                    .tool_call_id
                    .take()
                    .filter(|id| !id.is_empty())
                    .unwrap_or_else(|| call_id(run, step, &request.name, index));
                if seen.insert(id.clone(), index).is_some() {
                    return Err(format!("the planner used the tool call id {id:?} twice"));
                }
                request.tool_call_id = Some(id);
            }
            Ok(())
        }
        Decision::Await(items) if items.is_empty() => {
            Err("the planner decided to wait and named nothing to wait for".to_owned())
        }
        Decision::FinalToolResult(result) => match &result.outcome {
            ToolOutcome::Value(value) => json("the planner's final tool result", value),
            ToolOutcome::Failure(_) => Ok(()),
        },
        Decision::Await(items) => check_items(items),
        Decision::AwaitRuns(wait) => check_wait(wait, run, step),
        Decision::FinalResponse(message) => message
            .parts
            .iter()
            .filter_map(Part::as_json)
            .try_for_each(|text| json("a part of the planner's answer", text)),
    }
}

/// Checks a text that the planner says is JSON.
fn json(what: &str, text: &str) -> Result<(), String> {
    taskrun_journal::json::check(text).map_err(|problem| format!("{what} is not JSON: {problem}"))
}

/// Checks what a planner wants to ask.
fn check_items(items: &[Ask]) -> Result<(), String> {
    if items.len() > CALLS_PER_TURN_MAX {
        let wanted = items.len();
        return Err(format!(
            "the planner asks {wanted} things at once; {CALLS_PER_TURN_MAX} is the most"
        ));
    }
    let mut seen = BTreeSet::new();
    for ask in items {
        let item = &ask.what;
        let id = item.id();
        if id.is_empty() || id.len() > NAME_BYTES_MAX {
            return Err(format!("the id of what is asked has 1 to {NAME_BYTES_MAX} bytes"));
        }
        if !seen.insert(id) {
            return Err(format!("the planner used the id {id:?} twice for what it asks"));
        }
        check_item(item)?;
        if let Some(default) = &ask.default {
            let asked = Item::asked(ask.clone(), Timestamp(0));
            asked.check(default).map_err(|error| {
                format!("the planner's default answer to {id:?} does not fit: {error}")
            })?;
        }
    }
    Ok(())
}

/// Checks one thing that a planner wants to ask: whoever answers must be able to tell its parts
/// apart.
fn check_item(item: &AwaitItem) -> Result<(), String> {
    match item {
        AwaitItem::ExternalTools { items, .. } if items.is_empty() => {
            Err("the planner waits for tools outside and names none".to_owned())
        }
        AwaitItem::ExternalTools { items, .. } => {
            names("the id of a call outside", items.iter().map(|item| &item.tool_call_id))?;
            items.iter().try_for_each(|item| json("what a call outside is given", &item.payload))
        }
        AwaitItem::Questions { questions, .. } if questions.is_empty() => {
            Err("the planner shows a form without questions".to_owned())
        }
        AwaitItem::Questions { questions, payload, .. } => {
            json("what the tool of a form was given", payload)?;
            names("the id of a question", questions.iter().map(|question| &question.id))?;
            questions.iter().try_for_each(|question| {
                names("the id of an option", question.options.iter().map(|(id, _)| id))
            })
        }
        AwaitItem::Clarification { .. } => Ok(()),
        AwaitItem::Confirmation { .. } => Err("only the host asks for a confirmation".to_owned()),
    }
}

fn names<'a>(what: &str, all: impl Iterator<Item = &'a String>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for name in all {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(format!("{what} has 1 to {NAME_BYTES_MAX} bytes"));
        }
        if !seen.insert(name) {
            return Err(format!("the planner used {what} {name:?} twice"));
        }
    }
    Ok(())
}

/// Checks the call of a planner that waits for runs, and gives the wait one where it has none.
fn check_wait(wait: &mut RunsWait, run: &str, step: (u32, u32)) -> Result<(), String> {
    let wanted = wait.runs.len();
    if wanted > CALLS_PER_TURN_MAX {
        return Err(format!(
            "the planner waits for {wanted} runs; {CALLS_PER_TURN_MAX} is the most"
        ));
    }
    let call = wait.call.get_or_insert_with(|| ToolRequest {
        name: CALL_NAME.to_owned(),
        payload: serde_json::json!({ "runs": wait.runs, "mode": wait.mode }).to_string(),
        tool_call_id: None,
        parent_tool_call_id: None,
    });
    let given = call.tool_call_id.as_ref().map_or(0, String::len);
    if call.name.len().max(given) > NAME_BYTES_MAX {
        return Err(format!(
            "the planner used a tool's name or call id of more than {NAME_BYTES_MAX} bytes"
        ));
    }
    json("what the call is given that the planner's wait answers", &call.payload)?;
    let id = call.tool_call_id.take().filter(|id| !id.is_empty());
    call.tool_call_id = Some(id.unwrap_or_else(|| call_id(run, step, &call.name, 0)));
    Ok(())
}

/// The id of a call whose planner gave none: the same for the same run, turn, attempt, tool and
/// position, so that a repeated step asks for the same calls.
fn call_id(run: &str, (turn, attempt): (u32, u32), name: &str, index: usize) -> String {
    digest(&[run, &turn.to_string(), &attempt.to_string(), name, &index.to_string()])
}

/// A short name for these texts together.
pub(super) fn digest(texts: &[&str]) -> String {
    let mut hash = blake3::Hasher::new();
    for text in texts {
        hash.update(text.as_bytes());
        hash.update(&[0]);
    }
    format!("call-{}", &hash.finalize().to_hex()[..24])
}
