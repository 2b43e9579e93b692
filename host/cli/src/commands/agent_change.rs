//! The changes of an agent since a run of it was accepted, or adopted.

use serde::Serialize;
use taskrun_journal::pin::{has_digest, pin};
use taskrun_journal::run::Run;
use taskrun_policy::Policy;
use taskrun_runtime::{RunRules, Storage, closure_now, closure_of_version, rules_of_kept_run};

use super::agent::load;
use super::agent_diff::changed_parts;
use super::agent_versions::short;
use crate::context::Context;
use crate::failure::Outcome;
use crate::follow::Attendance;

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
    /// The policy's word for a run that is given the form of now when it goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    upgrade: Option<&'static str>,
    #[serde(skip)]
    is_gone: bool,
}

impl AgentChange {
    /// That of an open run, as far as the policy at hand tells; `None` if there is none, and of an
    /// agent that is not gone, though the policy does not have it.
    pub(super) async fn of(
        context: &Context,
        (storage, attendance): (&Storage, &Attendance),
        run: &Run,
    ) -> Option<Self> {
        if run.status().is_terminal() {
            return None;
        }
        let policy = context.policy_at_hand()?;
        let own = run.pin().to_owned();
        let Some(agent) = policy.agents.get(&run.spec.agent_name) else {
            let gone = attendance.gone(run).filter(|gone| *gone == run.spec.agent_name);
            return gone.map(|_| Self::unknown(own, true));
        };
        // An entry is of whatever form its agent has at the next heartbeat.
        if !run.spec.class.is_task() || !has_digest(&own) {
            return None;
        }
        let Some(closure) = closure_now(&policy, agent) else {
            return Some(Self::unknown(own, false));
        };
        let now = pin(&run.spec.agent_name, &closure.pin());
        if now == own {
            return None;
        }
        let then = storage.data_dir().and_then(|dir| closure_of_version(dir, &own).ok());
        let parts = then.and_then(|then| changed_parts(&then, &closure).ok()).unwrap_or_default();
        let upgrade = is_adopted(context, storage, &policy, run).await.then_some("adopt");
        Some(Self { pin: own, now: Some(now), parts, upgrade, is_gone: false })
    }

    /// The same where nothing is known of the form of now.
    fn unknown(pin: String, is_gone: bool) -> Self {
        Self { pin, now: None, parts: Vec::new(), upgrade: None, is_gone }
    }

    /// True if the policy does not have the agent.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// In words, for people.
    pub(super) fn text(&self, run: &Run) -> String {
        let (agent, id) = (&run.spec.agent_name, run.id());
        match (&self.now, self.is_gone) {
            (None, true) => format!(
                "the policy has no agent {agent}: the run begins nothing; put it back, or end the \
                 run with `taskrun cancel {id}`"
            ),
            (None, false) => {
                format!("a file of agent {agent} is missing; see `taskrun agent check {agent}`")
            }
            (Some(_), _) => {
                let parts = match self.parts.is_empty() {
                    true => String::new(),
                    false => format!(" ({})", self.parts.join(", ")),
                };
                let then = short(&self.pin);
                let diff = format!("`taskrun agent diff {agent} {then}`");
                let (goes_on, see) = match self.upgrade {
                    Some(_) => ("is adopted when it goes on", diff),
                    None => (
                        "has its form of before, within the rules of both",
                        format!("{diff}, or `taskrun adopt {id}`"),
                    ),
                };
                format!("agent {agent} has changed{parts}: the run {goes_on}; see {see}")
            }
        }
    }
}

/// The run, which has these rules, as its host adopts it by itself when it goes on; `None` if it
/// keeps its form.
pub(super) async fn adopted_when_it_goes_on(
    context: &Context,
    storage: &Storage,
    (policy, kept): (&Policy, &RunRules),
    run: &Run,
) -> Outcome<Option<Run>> {
    let adopted = kept.adopted_by_host(policy, &storage.store, run).await;
    let Some(adopted) = adopted else { return Ok(None) };
    let loader = context.looking_loader(policy.clone())?;
    // A form that does not load is given to no run.
    let loads = load(&loader, &run.spec.agent_name).await.is_ok();
    Ok(loads.then_some(adopted))
}

/// True if a host adopts the run by itself when it goes on. One of which that cannot be said keeps
/// the form that it has.
async fn is_adopted(context: &Context, storage: &Storage, policy: &Policy, run: &Run) -> bool {
    let Some(data_dir) = storage.data_dir() else { return false };
    let kept = rules_of_kept_run(policy, data_dir, &*storage.policies, run).await;
    let Ok(kept) = kept else { return false };
    let adopted = adopted_when_it_goes_on(context, storage, (policy, &kept), run).await;
    adopted.is_ok_and(|adopted| adopted.is_some())
}
