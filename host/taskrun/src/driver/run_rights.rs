//! The rules of a run that is executed, made anew when the policy changes.

use std::sync::Arc;

use taskrun_journal::pin::agent_of;
use taskrun_journal::spec::RunSpec;
use taskrun_policy::AgentRules;

use crate::agents::{Agent, AgentNow, Agents};
use crate::gate::narrowing;
use crate::gate::rights::{AgentRights, rules_of_run};
use crate::scope::CurrentRules;

/// The agents that the rules of a run come from, as they were when it was accepted, and those rules
/// as they are now.
pub(crate) struct RunRights {
    spec: Arc<RunSpec>,
    agent: Arc<Agent>,
    /// The agents of the runs above it, the root's first, as far as they are known.
    above: Vec<Option<Arc<Agent>>>,
    rules: Arc<CurrentRules>,
}

impl RunRights {
    /// The rights of a run of this agent beneath these, as the agents themselves say.
    pub(crate) fn new(
        spec: Arc<RunSpec>,
        agent: Arc<Agent>,
        above: Vec<Option<Arc<Agent>>>,
    ) -> Self {
        let rights: Vec<_> = above.iter().map(|one| one.as_deref().map(Agent::rights)).collect();
        let rules = rules_of_run(&agent.rights(), &spec, &rights);
        let pins = narrowing::pins_now(&agent, &spec, &above);
        Self { spec, agent, above, rules: Arc::new(CurrentRules::new(rules, pins)) }
    }

    /// The rules of the run.
    pub(crate) fn rules(&self) -> &Arc<CurrentRules> {
        &self.rules
    }

    /// The run's own agent.
    pub(super) fn agent(&self) -> Arc<Agent> {
        Arc::clone(&self.agent)
    }

    /// Takes up the rules of a policy for every decision from now on.
    pub(super) fn take_up(&self, agents: &Agents) {
        let own = Standing::of(&self.agent.pin, agents);
        let above = self.spec.ancestors.iter().map(|one| Standing::of(&one.pin, agents));
        let above: Vec<_> = above.collect();
        let pins = std::iter::once(&own).chain(&above).map(|one| one.pin.clone());
        let pins: Vec<String> = pins.collect();
        if pins == self.rules.pins() {
            return;
        }
        let known = self.above.iter().zip(&above);
        let rights: Vec<_> =
            known.map(|(agent, now)| agent.as_deref().map(|agent| now.rights(agent))).collect();
        self.rules.replace(rules_of_run(&own.rights(&self.agent), &self.spec, &rights), pins);
    }
}

/// The agent of a pin under a policy.
struct Standing {
    /// The pin of the agent of its name; the name alone if there is none.
    pin: String,
    /// The rules of that agent, where it is another one. One that is gone has none.
    rules: Option<Arc<AgentRules>>,
}

impl Standing {
    fn of(pin: &str, agents: &Agents) -> Self {
        let name = agent_of(pin);
        match agents.now(name) {
            Some(AgentNow { pin: now, .. }) if now == pin => Self { pin: now, rules: None },
            Some(AgentNow { pin, rules }) => Self { pin, rules: Some(rules) },
            None => Self { pin: name.to_owned(), rules: Some(Arc::new(AgentRules::gone(name))) },
        }
    }

    fn rights<'a>(&'a self, agent: &'a Agent) -> AgentRights<'a> {
        AgentRights { now: self.rules.as_ref(), ..agent.rights() }
    }
}
