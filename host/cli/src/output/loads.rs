//! Agents that hosts are loading.

use taskrun_journal::time::Timestamp;
use taskrun_runtime::{AgentLoad, CLOSURE_UNUSABLE};

use super::escape::escaped_line;
use super::human;

/// One of them in a line.
#[must_use]
pub(crate) fn load_text(load: &AgentLoad, now: Timestamp) -> String {
    let (agent, age) = (escaped_line(&load.agent), human::age(now.since(load.since)));
    match &load.error {
        None => format!("agent {agent} is being loaded for {age}"),
        Some(error) => {
            let error = escaped_line(error);
            match load.is_closure_unusable() {
                true => {
                    format!("agent {agent} did not load {age} ago: {}", unusable(&agent, &error))
                }
                false => format!("agent {agent} did not load {age} ago: {error}"),
            }
        }
    }
}

/// The ways out for the runs of an agent that this program cannot bind.
fn unusable(agent: &str, error: &str) -> String {
    format!(
        "{CLOSURE_UNUSABLE}: {error}: this program cannot go on with the runs that were accepted with \
         it, which wait; a host of the program before goes on with them, `taskrun adopt --agent {agent}` \
         gives them the agent as the policy has it, and `taskrun cancel RUN` ends one"
    )
}
