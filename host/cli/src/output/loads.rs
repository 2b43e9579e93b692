//! Agents that hosts are loading.

use taskrun_journal::time::Timestamp;
use taskrun_runtime::{AgentLoad, CLOSURE_UNUSABLE};

use super::escape::escaped_line;
use super::{Printer, human};

/// One of them in a line, whose commands have the options of the command line.
#[must_use]
pub(crate) fn load_text(load: &AgentLoad, now: Timestamp, printer: &Printer) -> String {
    let (agent, age) = (escaped_line(&load.agent), human::age(now.since(load.since)));
    match &load.error {
        None => format!("agent {agent} is being loaded for {age}"),
        Some(error) => {
            let error = escaped_line(error);
            match load.is_closure_unusable() {
                true => {
                    let ways = printer.completed(&ways_out(&agent));
                    format!(
                        "agent {agent} did not load {age} ago: {CLOSURE_UNUSABLE}: {error}: {ways}"
                    )
                }
                false => format!("agent {agent} did not load {age} ago: {error}"),
            }
        }
    }
}

/// The ways out for the runs of an agent that this program cannot bind.
fn ways_out(agent: &str) -> String {
    format!(
        "this program cannot go on with the runs that were accepted with it, which wait; a host of \
         the program before goes on with them, `taskrun adopt --agent {agent}` gives them the agent \
         as the policy has it, and `taskrun cancel RUN` ends one"
    )
}
