//! Agents that hosts are loading.

use taskrun_journal::time::Timestamp;
use taskrun_runtime::AgentLoad;

use super::escape::escaped_line;
use super::human;

/// One of them in a line.
#[must_use]
pub fn load_text(load: &AgentLoad, now: Timestamp) -> String {
    let (agent, age) = (escaped_line(&load.agent), human::age(now.since(load.since)));
    match &load.error {
        None => format!("agent {agent} is being loaded for {age}"),
        Some(error) => {
            let error = escaped_line(error);
            format!("agent {agent} did not load {age} ago: {error}")
        }
    }
}
