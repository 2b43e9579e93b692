//! The narrowing of a run by its request and by the runs above it: of its functions, its budget and
//! its limits; that of its rules is in `rights`. A run is executed with what all of those, and its
//! own agent, allow; nothing adds.

use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::narrowing::{Ancestor, Narrowing};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{Budget, CallTimeouts, NarrowingBounds, Pattern, ToolFilter};

use crate::agents::{Agent, AgentCode};
use crate::autonomy::within_agent;
use crate::error::ControllerError;
use crate::gate::rights::{ask_rules, tool_filters, tools_of_others};

/// The agents of the runs above a run, the root's first; `None` for one that is not known here.
pub(crate) type Above = [Option<Arc<Agent>>];

/// Checks what a request takes away against what its agent has, under all that stands above it. Of
/// a request for a run that continues another one `continued` is what that one's took away.
///
/// # Errors
/// [`ControllerError::Invalid`] with the first thing that is wrong.
pub(crate) fn check(
    spec: &RunSpec,
    agent: &Agent,
    functions: &[ToolSpec],
    continued: Option<&Narrowing>,
) -> Result<(), ControllerError> {
    let ancestors: Vec<_> =
        spec.ancestors.iter().map(|ancestor| ToolFilter::of(&ancestor.narrow)).collect();
    let left = |tool: &&ToolSpec| ancestors.iter().all(|filter| filter.leaves(tool));
    let left: Vec<&ToolSpec> = functions.iter().filter(left).collect();
    let rights = agent.rights();
    let bounds = NarrowingBounds {
        agent: &agent.name,
        grants: &agent.rules.grants,
        declared: rights.declared(),
        budget: &budget_of(agent, &spec.ancestors),
        limits: &agent.limits,
        functions: &left,
        accepted_denials: continued.map(|narrow| narrow.deny.as_slice()).unwrap_or_default(),
    };
    Ok(bounds.check(&spec.narrow)?)
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
    let filters: Vec<_> = tool_filters(spec).map(|(_, filter)| filter).collect();
    let others = tools_of_others(spec).map(|(function, _)| function.qualified());
    let others: Vec<String> = others.filter(|name| code.tools.get(name).is_some()).collect();
    let budget = budget_of(&agent, &spec.ancestors);
    let is_open = narrow.is_empty()
        && filters.iter().all(ToolFilter::is_open)
        && budget.cost_microusd == agent.budget.cost_microusd;
    if is_open && others.is_empty() && spec.autonomy.is_none() {
        return (agent, code);
    }
    let (mut own, mut own_code) = (Agent::clone(&agent), AgentCode::clone(&code));
    let timeouts = narrow.timeouts.iter();
    let timeouts = timeouts.map(|(text, ms)| (Pattern::parse(text), Duration::from_millis(*ms)));
    let left = code.tools.only(|tool| {
        !others.contains(&tool.name) && filters.iter().all(|filter| filter.leaves(tool))
    });
    own_code.tools = left.no_longer_than(CallTimeouts::new(timeouts));
    if let Some(autonomy) = &spec.autonomy {
        match own_code.tools.with_own(&within_agent(autonomy, &agent), &agent.limits) {
            Ok(tools) => own_code.tools = tools,
            // The schema was read when the run was accepted.
            Err(error) => tracing::error!(run = %spec.id, %error, "it cannot say that it is done"),
        }
    }
    own.budget = budget;
    own.budget.narrow(narrow);
    own.limits.narrow(narrow);
    (Arc::new(own), Arc::new(own_code))
}

/// The agent with the rules about consent of those above it.
fn asked_for_by_all(agent: Arc<Agent>, above: &Above) -> Arc<Agent> {
    let above = || above.iter().flatten().map(|ancestor| &ancestor.ask);
    if above().all(|ask| ask.rules.is_empty()) {
        return agent;
    }
    let ask = ask_rules(&agent.ask, above());
    Arc::new(Agent { ask, ..Agent::clone(&agent) })
}

/// The budgets of the runs above a run, the root's first; those of agents that are not here bound
/// nothing, as their rules allow nothing.
pub(crate) fn budgets_of_ancestors(spec: &RunSpec, above: &Above) -> Vec<Budget> {
    budgets_above(spec, above, budget_of)
}

/// Those budgets, each as `budget` has it of an agent beneath these runs.
fn budgets_above(
    spec: &RunSpec,
    above: &Above,
    budget: impl Fn(&Agent, &[Ancestor]) -> Budget,
) -> Vec<Budget> {
    let ancestors = spec.ancestors.iter().zip(above).enumerate().map(|(depth, (own, agent))| {
        let Ancestor { agent_name: _, narrow, pin: _, autonomous: _ } = own;
        let unbounded = || Budget { turns: None, wall: None, ..Budget::default() };
        let known = agent.as_ref().map(|agent| budget(agent, &spec.ancestors[..depth]));
        let mut budget = known.unwrap_or_else(unbounded);
        budget.narrow(narrow);
        budget
    });
    ancestors.collect()
}

/// The budget of an agent for a run beneath these: beneath one that goes on by itself there is a bound
/// on money where the policy states none and the price of all that the agent may ask is known.
fn budget_of(agent: &Agent, ancestors: &[Ancestor]) -> Budget {
    let mut budget = agent.budget.clone();
    let is_attended = ancestors.iter().all(|above| !above.autonomous);
    if !is_attended
        && budget.cost_microusd.is_none()
        && agent.models.has_prices(&agent.rules.grants)
    {
        budget.cost_microusd = budget.subagent_cost_microusd;
    }
    budget
}

/// True if a policy or a request states a sum of money for a run, or for one above it. A sum that
/// nobody stated is not among these: it is there only where prices are known.
pub(crate) fn states_cost(spec: &RunSpec, agent: &Agent, above: &Above) -> bool {
    let mut own = agent.budget.clone();
    own.narrow(&spec.narrow);
    let above = budgets_above(spec, above, |agent, _| agent.budget.clone());
    std::iter::once(own).chain(above).any(|budget| budget.cost_microusd.is_some())
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
    // What nobody stated keeps no run from being started.
    if !states_cost(spec, agent, above) {
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

/// The pins that the agent of a run and those above it, the root's first, have in the policies as
/// they are now; the name alone of one that is not known.
pub(crate) fn pins_now(agent: &Agent, spec: &RunSpec, above: &Above) -> Vec<String> {
    let above = spec.ancestors.iter().zip(above).map(|(ancestor, known)| match known {
        Some(known) => known.pins_now(),
        None => ancestor.agent_name.clone(),
    });
    std::iter::once(agent.pins_now()).chain(above).collect()
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
