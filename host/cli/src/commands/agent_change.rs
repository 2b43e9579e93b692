//! The changes of an agent since a run of it was accepted, or adopted.

use serde::Serialize;
use taskrun_journal::pin::{has_digest, pin};
use taskrun_journal::run::Run;
use taskrun_policy::Policy;
use taskrun_runtime::{Storage, closure_now, closure_of_version};

use super::agent_diff::changed_parts;
use super::agent_versions::short;
use crate::context::Context;

/// The difference between the form of its agent that a run has and that of now.
#[derive(Serialize)]
pub(super) struct AgentChange {
    /// The run's pin.
    pin: String,
    /// The pin of now; none where the policy does not have the agent, or one of its files is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    now: Option<String>,
    /// The parts of the agent that differ, where both forms are known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<String>,
    #[serde(skip)]
    is_gone: bool,
}

impl AgentChange {
    /// That of an open run, as far as the policy at hand tells; `None` if there is none.
    pub(super) fn of(context: &Context, storage: &Storage, run: &Run) -> Option<Self> {
        if run.status().is_terminal() {
            return None;
        }
        // The data directory is named, and the policy that is found here may be another one's.
        if context.globals.data_dir.is_some() && context.globals.config.is_none() {
            return None;
        }
        let policy: Policy = context.read_policy(&context.policy_file().ok()??).ok()?;
        let own = run.pin().to_owned();
        let Some(agent) = policy.agents.get(&run.spec.agent_name) else {
            return Some(Self { pin: own, now: None, parts: Vec::new(), is_gone: true });
        };
        // An entry is of whatever form its agent has at the next heartbeat.
        if !run.spec.class.is_task() || !has_digest(&own) {
            return None;
        }
        let Some(closure) = closure_now(&policy, agent) else {
            return Some(Self { pin: own, now: None, parts: Vec::new(), is_gone: false });
        };
        let now = pin(&run.spec.agent_name, &closure.pin());
        if now == own {
            return None;
        }
        let then = storage.data_dir().and_then(|dir| closure_of_version(dir, &own).ok());
        let parts = then.and_then(|then| changed_parts(&then, &closure).ok()).unwrap_or_default();
        Some(Self { pin: own, now: Some(now), parts, is_gone: false })
    }

    /// In words, for people.
    pub(super) fn text(&self, run: &Run) -> String {
        let (agent, id) = (&run.spec.agent_name, run.id());
        match (&self.now, self.is_gone) {
            (None, true) => format!("the policy has no agent {agent}: the run begins nothing"),
            (None, false) => {
                format!("a file of agent {agent} is missing; see `taskrun agent check {agent}`")
            }
            (Some(_), _) => {
                let parts = match self.parts.is_empty() {
                    true => String::new(),
                    false => format!(" ({})", self.parts.join(", ")),
                };
                let then = short(&self.pin);
                format!(
                    "agent {agent} has changed{parts}: the run has its form of before, within the \
                     rules of both; see `taskrun agent diff {agent} {then}`, or `taskrun adopt {id}`"
                )
            }
        }
    }
}
