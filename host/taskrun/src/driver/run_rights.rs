//! The rules of a run that is executed, made anew when the policy changes.

use std::sync::Arc;

use taskrun_journal::pin::{self, agent_of};
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

    /// True if the run goes on by itself.
    pub(super) fn is_autonomous(&self) -> bool {
        self.spec.autonomy.is_some()
    }

    /// The run's own agent.
    pub(super) fn agent(&self) -> Arc<Agent> {
        Arc::clone(&self.agent)
    }

    /// Takes up the rules of a policy for every decision from now on.
    pub(super) fn take_up(&self, agents: &Agents) {
        let own = Standing::of(&self.agent.pin, Some(&self.agent), agents);
        let above = self.spec.ancestors.iter().zip(&self.above);
        let above = above.map(|(one, agent)| Standing::of(&one.pin, agent.as_deref(), agents));
        let above: Vec<_> = above.collect();
        let pins = std::iter::once(&own).chain(&above).map(Standing::pins);
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

/// The agent of a pin under the policies that bind its runs.
struct Standing {
    /// The agent of its name in the policy of the host; its name alone is the pin if there is none.
    now: AgentNow,
    /// That of the file that its runs were accepted under, where it is another one than both.
    origin: Option<AgentNow>,
    /// True if that of the host is another one.
    is_other: bool,
}

impl Standing {
    fn of(pin: &str, agent: Option<&Agent>, agents: &Agents) -> Self {
        let name = agent_of(pin);
        // One that is gone allows nothing.
        let gone = || AgentNow { pin: name.to_owned(), rules: Arc::new(AgentRules::gone(name)) };
        let now = agents.now(name).unwrap_or_else(gone);
        let origin = agent.and_then(|agent| agent.origin.as_ref());
        let origin = origin.and_then(|origin| match agents.origins.get(&origin.policy) {
            Some(there) => Some(there.get(name).cloned().unwrap_or_else(gone)),
            None => origin.now.clone(),
        });
        let origin = origin.filter(|origin| origin.pin != pin && origin.pin != now.pin);
        Self { is_other: now.pin != pin, now, origin }
    }

    fn pins(&self) -> String {
        let origin = self.origin.as_ref().map(|origin| &*origin.pin);
        pin::join(std::iter::once(&*self.now.pin).chain(origin))
    }

    fn rights<'a>(&'a self, agent: &'a Agent) -> AgentRights<'a> {
        let now = self.is_other.then_some(&self.now);
        let now = now.into_iter().chain(&self.origin).map(|now| &now.rules).collect();
        AgentRights { now, ..agent.rights() }
    }
}
