//! An agent that plays the script in its task: for tests of everything around an agent.
//!
//! The task is `{"steps": [[op, …], …]}`, a list of operations for each plan step, or
//! `{"ops": [op, …]}` for one step; `"finalize": [op, …]` beside either is played when the host
//! ends the run. A task that does not begin with `{` is answered with itself.
//!
//! | operation | does |
//! | --- | --- |
//! | `{"reply": "t"}` | says a whole message; the last one is the final response |
//! | `{"delta": "t"}` | says a piece of one |
//! | `{"call": {"id": "c", "name": "tool/fn", "args": {}}}` | calls a tool; the id may be left out |
//! | `{"usage": [1, 2, 3]}` | reports tokens: prompt, completion, total; with three numbers more: cached, cache-written, reasoning |
//! | `{"thought": "t"}`, `{"log": "t"}` | remarks, for observers and for the log |
//! | `{"err": "m"}` | the step fails, after everything else in it |
//! | `"close"` | ends with an empty final response |
//! | `"block"` | waits until canceled |
//! | `{"ignore_cancel": ms}` | goes on for that long, also when canceled |
//! | `{"sleep": ms}` | waits |
//! | `{"spin": true}` | computes for ever |
//! | `{"set": ["k", "v"]}` | keeps a value in the run's state; `null` removes it |
//! | `{"get": "k"}` | replies with a value of the run's state, or with an empty text |
//! | `{"remind": {"id": "i", "text": "t"}}` | adds a note for later steps; also `"safety": true`, `"run-start": true`, `"max": 1`, `"between": 2` |
//! | `{"forget": "i"}` | removes a note |
//! | `"reply_context"` | replies with the run's ids, labels and envelope, as JSON |
//! | `"reply_input"` | replies with what the step was given, as JSON |
//! | `{"read_result": "hash"}` | replies with the length and the beginning of a result |
//! | `{"plan": {…}}` | decides just this; see `decision.rs` |
//!
//! A step that calls tools decides on the calls; then the last step's last reply waits for the
//! step after it. When all steps are played, that reply, or an empty one, ends the run.

mod decision;
mod play;
mod script;
mod show;

use play::{Input, play};
use script::{Script, Task, parse};
use taskrun_guest::{
    agent::{self, Agent, PlanInput, PlanResult, PlanResumeInput, PlannerError},
    state,
    types::{Message, Role},
};

/// Key of the run's state that holds the number of the next step.
const STEP: &str = "scripted.step";

struct Scripted;

taskrun_guest::export_agent!(Scripted);

impl Agent for Scripted {
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        // What was said before it in the session may be a script too.
        match parse(&agent::task(&input.messages).unwrap_or_default())? {
            Task::Text(text) => Ok(PlanResult::final_text(text)),
            Task::Script(script) => step(&script, 0, &Input::Start(&input)),
        }
    }

    fn resume(input: PlanResumeInput) -> Result<PlanResult, PlannerError> {
        let script = match parse(&task(&input.messages))? {
            Task::Text(text) => return Ok(PlanResult::final_text(text)),
            Task::Script(script) => script,
        };
        if let Some(termination) = &input.finalize {
            return match &script.finalize {
                Some(ops) => play(ops, false, &Input::Resume(&input)).map(|played| played.result),
                None => Ok(PlanResult::final_text(&termination.message)),
            };
        }
        let index = state::get(STEP).and_then(|index| index.parse().ok()).unwrap_or(1);
        step(&script, index, &Input::Resume(&input))
    }
}

/// The text of the last message of the user that is a script, or else of the last one: an answer
/// to a question is a message of the user, too.
fn task(messages: &[Message]) -> String {
    let mut texts =
        messages.iter().rev().filter(|message| message.role == Role::User).map(Message::plain_text);
    let last = texts.next().unwrap_or_default();
    if last.trim_start().starts_with('{') {
        return last;
    }
    texts.find(|text| text.trim_start().starts_with('{')).unwrap_or(last)
}

fn step(script: &Script, index: usize, input: &Input) -> Result<PlanResult, PlannerError> {
    let Some(ops) = script.steps.get(index) else {
        return Ok(PlanResult::final_text(state::get(HELD).unwrap_or_default()));
    };
    let is_last = index + 1 == script.steps.len();
    let played = play(ops, is_last, input);
    // A script of one step without a reply held back costs no host call here.
    if !is_last {
        keep(STEP, &(index + 1).to_string())?;
    }
    let played = played?;
    if let Some(held) = played.held {
        keep(STEP, &(index + 1).to_string())?;
        keep(HELD, &held)?;
    }
    Ok(played.result)
}

/// Key of the run's state that holds the reply which waits for the last step's calls.
const HELD: &str = "scripted.held";

fn keep(key: &str, value: &str) -> Result<(), PlannerError> {
    state::set(key, Some(value))
        .map_err(|error| PlannerError::new(format!("{error}")).code("limit"))
}

#[cfg(test)]
mod tests;
