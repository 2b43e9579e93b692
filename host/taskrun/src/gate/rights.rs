//! The rights of a run: those of its agent and of all agents above it, as they were when it was
//! accepted and as they are now, and what requests took away. All of them have to allow.

use std::sync::Arc;

use taskrun_journal::narrowing::{Ancestor, Narrowing};
use taskrun_journal::spec::RunSpec;
use taskrun_policy::{
    AgentRules, AskRules, CallRules, Chain, DeclaredNames, HostFunction, ToolFilter,
    parse_accepted_denial,
};

/// The rules of one agent, as they bind its runs and all runs beneath those.
#[derive(Clone, Debug)]
pub struct AgentRights<'a> {
    /// Its rules under the policy of its pin.
    pub rules: &'a Arc<AgentRules>,
    /// Its rules under the policies as they are now, of those under which they are others: that of
    /// the host, and that of the file that the run was accepted under.
    pub now: Vec<&'a Arc<AgentRules>>,
    /// The models that rules about it may name.
    pub models: Vec<&'a str>,
    /// The prompts that rules about it may name.
    pub prompts: Vec<&'a str>,
}

impl AgentRights<'_> {
    /// The names that rules about the agent may use.
    #[must_use]
    pub(crate) fn declared(&self) -> DeclaredNames<'_> {
        DeclaredNames { models: &self.models, prompts: &self.prompts }
    }
}

/// The rules for the calls of a run of an agent beneath these, the root's first; `None` stands for
/// one that is not known, which allows nothing.
#[must_use]
pub fn rules_of_run(
    own: &AgentRights<'_>,
    spec: &RunSpec,
    above: &[Option<AgentRights<'_>>],
) -> CallRules {
    CallRules::new(Arc::clone(&own.rules.grants), chain(own, spec, above))
}

/// The functions that requests leave to a run: the filter of its own, then those of the runs above it
/// with their agents, the nearest first. A function has to pass all of them.
pub fn tool_filters(spec: &RunSpec) -> impl Iterator<Item = (Option<&str>, ToolFilter<'_>)> {
    let above = spec.ancestors.iter().rev();
    let above = above.map(|one| (Some(one.agent_name.as_str()), ToolFilter::of(&one.narrow)));
    std::iter::once((None, ToolFilter::of(&spec.narrow))).chain(above)
}

/// The tools of the host that a run like this does not have, whatever lists and requests leave it,
/// each with the runs that have it. A run that goes on by itself is given a `report_done` of its own.
pub fn tools_of_others(
    spec: &RunSpec,
) -> impl Iterator<Item = (HostFunction, &'static str)> + use<> {
    let batches = "batches of a heartbeat have it, for the entries that they complete";
    let completes = spec.entries.is_empty().then_some((HostFunction::CompleteTask, batches));
    let autonomous = "autonomous runs have it; any other is done with its first answer";
    let is_done = spec.autonomy.is_none().then_some((HostFunction::ReportDone, autonomous));
    completes.into_iter().chain(is_done)
}

/// The rules about consent to the calls of a run: those of its agent, and of the agents above it. An
/// agent that must ask a person does not get around that by asking another agent.
#[must_use]
pub fn ask_rules<'a>(own: &AskRules, above: impl IntoIterator<Item = &'a AskRules>) -> AskRules {
    let mut rules = own.clone();
    above.into_iter().for_each(|ancestor| rules.add(ancestor));
    rules
}

/// The bounds of a run beside the rules of its own agent; `None` if there are none.
fn chain(
    own: &AgentRights<'_>,
    spec: &RunSpec,
    above: &[Option<AgentRights<'_>>],
) -> Option<Arc<Chain>> {
    let is_alone = spec.depth == 0 && spec.narrow.deny.is_empty() && spec.ancestors.is_empty();
    if is_alone && own.now.is_empty() {
        return None;
    }
    let mut chain = Chain::new(&own.rules.workspace);
    push_rules_now(&mut chain, own);
    push_request(&mut chain, "this run", own, &spec.narrow);
    for (Ancestor { agent_name, narrow, pin: _, autonomous: _ }, ancestor) in
        spec.ancestors.iter().zip(above).rev()
    {
        let rules = ancestor.as_ref().map(|ancestor| Arc::clone(ancestor.rules));
        chain.push_agent(agent_name, rules);
        if let Some(ancestor) = ancestor {
            push_rules_now(&mut chain, ancestor);
            push_request(&mut chain, &format!("agent {agent_name}"), ancestor, narrow);
        }
    }
    // A run that was accepted before these were recorded. A nudge may stand beneath agents whose runs
    // are not above it.
    let recorded = match spec.hops {
        0 => spec.ancestors.len() == spec.depth as usize,
        _ => spec.ancestors.len() >= spec.depth as usize,
    };
    if !recorded {
        chain.push_unknown();
    }
    Some(Arc::new(chain))
}

/// The rights that policies as they are now give an agent of an earlier one.
fn push_rules_now(chain: &mut Chain, agent: &AgentRights<'_>) {
    agent.now.iter().for_each(|&now| chain.push_now(Arc::clone(now)));
}

fn push_request(chain: &mut Chain, of: &str, agent: &AgentRights<'_>, narrow: &Narrowing) {
    if narrow.deny.is_empty() {
        return;
    }
    let rules = narrow.deny.iter().map(|text| parse_accepted_denial(text)).collect();
    chain.push_request(of.to_owned(), &agent.rules.workspace, rules);
}
