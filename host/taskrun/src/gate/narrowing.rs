//! The narrowing of a run by its request and by the runs above it. A run is executed with what all
//! of those, and its own agent, allow; nothing adds.

use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::narrowing::{Ancestor, Narrowing};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{
    Budget, CallRules, CallTimeouts, Chain, DeclaredNames, NarrowingBounds, Pattern, ToolFilter,
    parse_denial,
};

use crate::agents::{Agent, AgentCode};
use crate::error::ControllerError;

/// The agents of the runs above a run, the root's first; `None` for one that is not known here.
pub(crate) type Above = [Option<Arc<Agent>>];

/// Checks what a request takes away against what its agent has, under all that stands above it.
///
/// # Errors
/// [`ControllerError::Invalid`] with the first thing that is wrong.
pub(crate) fn check(
    spec: &RunSpec,
    agent: &Agent,
    functions: &[ToolSpec],
) -> Result<(), ControllerError> {
    let ancestors: Vec<_> =
        spec.ancestors.iter().map(|ancestor| ToolFilter::of(&ancestor.narrow)).collect();
    let left = |tool: &&ToolSpec| ancestors.iter().all(|filter| filter.leaves(tool));
    let left: Vec<&ToolSpec> = functions.iter().filter(left).collect();
    let checked = declare(agent, |declared| {
        let bounds = NarrowingBounds {
            agent: &agent.name,
            grants: &agent.rules.grants,
            declared,
            budget: &agent.budget,
            limits: &agent.limits,
            functions: &left,
        };
        bounds.check(&spec.narrow)
    });
    Ok(checked?)
}

/// Reads something with the names that rules of this agent may use.
fn declare<T>(agent: &Agent, read: impl FnOnce(DeclaredNames<'_>) -> T) -> T {
    let models: Vec<&str> = agent.models.by_name.keys().map(String::as_str).collect();
    let prompts: Vec<&str> = agent.prompts.ids().collect();
    read(DeclaredNames { models: &models, prompts: &prompts })
}

/// The agent as a run has it: with the tools and the budget that its request and those above it
/// leave.
pub(crate) fn narrowed(
    (agent, code): (Arc<Agent>, Arc<AgentCode>),
    spec: &RunSpec,
    above: &Above,
) -> (Arc<Agent>, Arc<AgentCode>) {
    let agent = asked_for_by_all(agent, above);
    let narrow = &spec.narrow;
    let all = std::iter::once(narrow).chain(spec.ancestors.iter().map(|ancestor| &ancestor.narrow));
    let filters: Vec<_> = all.map(ToolFilter::of).collect();
    if narrow.is_empty() && filters.iter().all(ToolFilter::is_open) {
        return (agent, code);
    }
    let (mut own, mut own_code) = (Agent::clone(&agent), AgentCode::clone(&code));
    let timeouts = narrow.timeouts.iter();
    let timeouts = timeouts.map(|(text, ms)| (Pattern::parse(text), Duration::from_millis(*ms)));
    let left = code.tools.only(|tool| filters.iter().all(|filter| filter.leaves(tool)));
    own_code.tools = left.no_longer_than(CallTimeouts::new(timeouts));
    own.budget.narrow(narrow);
    own.limits.narrow(narrow);
    (Arc::new(own), Arc::new(own_code))
}

/// The agent with the rules about consent of those above it: an agent that must ask a person does
/// not get around that by asking another agent.
fn asked_for_by_all(agent: Arc<Agent>, above: &Above) -> Arc<Agent> {
    let asking: Vec<_> =
        above.iter().flatten().filter(|ancestor| !ancestor.ask.rules.is_empty()).collect();
    if asking.is_empty() {
        return agent;
    }
    let mut own = Agent::clone(&agent);
    asking.iter().for_each(|ancestor| own.ask.add(&ancestor.ask));
    Arc::new(own)
}

/// The budgets of the runs above a run, the root's first; those of agents that are not here bound
/// nothing, as their rules allow nothing.
pub(crate) fn budgets_of_ancestors(spec: &RunSpec, above: &Above) -> Vec<Budget> {
    let ancestors = spec.ancestors.iter().zip(above).map(|(ancestor, agent)| {
        let Ancestor { agent_name: _, narrow, pin: _ } = ancestor;
        let unbounded = Budget { turns: None, wall: None, ..Budget::default() };
        let mut budget = agent.as_ref().map_or(unbounded, |agent| agent.budget.clone());
        budget.narrow(narrow);
        budget
    });
    ancestors.collect()
}

/// Checks that what a run costs can be known, where that is bounded.
///
/// # Errors
/// [`ControllerError::Invalid`] if the agent may ask a model whose price is not known, and the run
/// or one above it has a budget in dollars.
pub(crate) fn check_prices(
    spec: &RunSpec,
    agent: &Agent,
    above: &Above,
) -> Result<(), ControllerError> {
    let mut own = agent.budget.clone();
    own.narrow(&spec.narrow);
    let mut budgets = std::iter::once(own).chain(budgets_of_ancestors(spec, above));
    if !budgets.any(|budget| budget.cost_microusd.is_some()) {
        return Ok(());
    }
    match agent.models.unpriced(&agent.rules.grants) {
        None => Ok(()),
        Some(model) => {
            let agent = &agent.name;
            let reason = format!(
                "the run has a budget in dollars, and agent {agent} may ask model {model}, whose \
                 price is not known"
            );
            Err(ControllerError::Invalid { field: "budget", reason })
        }
    }
}

/// The pins that the agent of a run and those above it, the root's first, have in the policy as it
/// is now; the name alone of one that is not known.
pub(crate) fn pins_now(agent: &Agent, spec: &RunSpec, above: &Above) -> Vec<String> {
    let above = spec.ancestors.iter().zip(above).map(|(ancestor, known)| match known {
        Some(known) => known.pin_now().to_owned(),
        None => ancestor.agent_name.clone(),
    });
    std::iter::once(agent.pin_now().to_owned()).chain(above).collect()
}

/// The rules for the calls of a run.
pub(crate) fn rules(agent: &Agent, spec: &RunSpec, above: &Above) -> CallRules {
    CallRules::new(Arc::clone(&agent.rules.grants), chain(agent, spec, above))
}

/// The bounds of a run beside the rules of its own agent; `None` if there are none.
fn chain(agent: &Agent, spec: &RunSpec, above: &Above) -> Option<Arc<Chain>> {
    let is_alone = spec.depth == 0 && spec.narrow.deny.is_empty() && spec.ancestors.is_empty();
    if is_alone && agent.now.is_none() {
        return None;
    }
    let mut chain = Chain::new(&agent.rules.workspace);
    push_rules_now(&mut chain, agent);
    push_request(&mut chain, "this run", agent, &spec.narrow);
    for (Ancestor { agent_name, narrow, pin: _ }, ancestor) in
        spec.ancestors.iter().zip(above).rev()
    {
        let ancestor = ancestor.as_ref();
        chain.push_agent(agent_name, ancestor.map(|ancestor| Arc::clone(&ancestor.rules)));
        if let Some(ancestor) = ancestor {
            push_rules_now(&mut chain, ancestor);
            push_request(&mut chain, &format!("agent {agent_name}"), ancestor, narrow);
        }
    }
    // A run that was accepted before these were recorded.
    if spec.ancestors.len() != spec.depth as usize {
        chain.push_unknown();
    }
    Some(Arc::new(chain))
}

/// What the policy as it is now gives an agent of an earlier one.
fn push_rules_now(chain: &mut Chain, agent: &Agent) {
    if let Some(now) = &agent.now {
        chain.push_agent(&agent.name, Some(Arc::clone(&now.rules)));
    }
}

fn push_request(chain: &mut Chain, of: &str, agent: &Agent, narrow: &Narrowing) {
    if narrow.deny.is_empty() {
        return;
    }
    let rules = declare(agent, |declared| {
        narrow.deny.iter().map(|text| parse_denial(text, declared)).collect()
    });
    chain.push_request(format!("the request for {of}"), &agent.rules.workspace, rules);
}

#[cfg(test)]
mod tests {
    use crate::spawn::SpawnRequest;

    #[test]
    fn a_request_that_takes_nothing_is_written_as_before() {
        let request = serde_json::to_value(SpawnRequest::default()).expect("JSON");
        assert!(request.get("narrow").is_none(), "{request}");
    }
}
