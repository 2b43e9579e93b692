//! An agent whose answer depends on chance, on the time and on what a model says, several times
//! in one step: a step that is cut off and runs again is told all of it again, and so comes to
//! the same answer.
//!
//! It uses `std` as well as the host's own interfaces: a hash map has an order of its own in each
//! process, and here in each step.

use std::collections::HashMap;
use std::time::Instant;

use taskrun_guest::{
    agent::{Agent, PlanInput, PlanResult, PlanResumeInput, PlannerError, consume_stream},
    clock, log,
    model::{self, CompletionRequest},
    random,
    types::{Message, Role},
};

/// Questions to the model in a step.
const ROUNDS: u32 = 3;

struct Dice;

taskrun_guest::export_agent!(Dice);

impl Agent for Dice {
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        throw(input.messages)
    }

    fn resume(input: PlanResumeInput) -> Result<PlanResult, PlannerError> {
        throw(input.messages)
    }
}

fn throw(mut messages: Vec<Message>) -> Result<PlanResult, PlannerError> {
    let began = Instant::now();
    let mut seen = HashMap::new();
    for round in 0..ROUNDS {
        let die = random::bytes(1).first().map_or(0, |byte| byte % 6 + 1);
        seen.insert(format!("round {round}"), (die, clock::now()));
        log::info(format!("round {round}: {die} after {} ms", began.elapsed().as_millis()));
        let order: Vec<String> =
            seen.iter().map(|(round, (die, at))| format!("{round}={die}@{at}")).collect();
        messages.push(Message::text(Role::User, order.join(" ")));
        let request = CompletionRequest::new(messages.clone());
        // Once at once, and then in parts.
        let said = if round == 0 {
            model::complete(&request).map(|answer| answer.message.plain_text())
        } else {
            model::stream(&request).and_then(|stream| consume_stream(&stream)).map(|all| all.text())
        };
        let said = said.map_err(|error| PlannerError::new(error.text()).code(error.code()))?;
        messages.push(Message::text(Role::Assistant, said));
    }
    let texts: Vec<String> = messages.iter().map(Message::plain_text).collect();
    Ok(PlanResult::final_text(texts.join("\n")))
}
