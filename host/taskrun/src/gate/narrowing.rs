//! The narrowing of a run by its request and by the runs above it. A run is executed with what all
//! of those, and its own agent, allow; nothing adds.

use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::narrowing::{Ancestor, Narrowing};
use taskrun_journal::quantity::ShowDuration;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{
    Budget, CALL_MAX, CallRules, CallTimeouts, Chain, Declared, Pattern, Standing, TOKENS_MAX,
    ToolFilter, parse_denial,
};

use crate::agents::{Agent, AgentCode, Agents};
use crate::error::ControllerError;

/// Most tools, and most deny rules, that a request names.
pub const NARROWING_ENTRIES_MAX: usize = 64;
/// Most bytes of all of them together: each run beneath keeps those of all runs above it.
pub const NARROWING_BYTES_MAX: usize = 16 << 10;

/// All names and rules in a request, by field.
fn texts(narrow: &Narrowing) -> [(&'static str, Vec<&String>); 5] {
    [
        ("narrow.tools", narrow.tools.iter().flatten().collect()),
        ("narrow.deny", narrow.deny.iter().collect()),
        ("narrow.only_tags", narrow.only_tags.iter().flatten().collect()),
        ("narrow.deny_tags", narrow.deny_tags.iter().collect()),
        ("narrow.timeouts", narrow.timeouts.keys().collect()),
    ]
}

/// Checks what can be said without knowing the agent.
///
/// # Errors
/// [`ControllerError::Invalid`].
pub(crate) fn check_sizes(narrow: &Narrowing) -> Result<(), ControllerError> {
    for (field, texts) in texts(narrow) {
        if texts.len() > NARROWING_ENTRIES_MAX {
            let reason = format!("{field} has more than {NARROWING_ENTRIES_MAX} entries");
            return Err(invalid(field, reason));
        }
    }
    let texts = texts(narrow).into_iter().flat_map(|(_, texts)| texts);
    if texts.map(String::len).sum::<usize>() > NARROWING_BYTES_MAX {
        let reason = format!("tools and rules have more than {NARROWING_BYTES_MAX} bytes");
        return Err(invalid("narrow", reason));
    }
    Ok(())
}

fn invalid(field: &'static str, reason: String) -> ControllerError {
    ControllerError::Invalid { field, reason }
}

/// Checks what a request takes away against what its agent has, under all that stands above it:
/// what would take nothing, or give something, is a mistake of whoever asks.
///
/// # Errors
/// [`ControllerError::Invalid`] with the first thing that is wrong.
pub(crate) fn check(
    spec: &RunSpec,
    agent: &Agent,
    functions: &[ToolSpec],
) -> Result<(), ControllerError> {
    let Narrowing { tools, deny, turns, tokens, cost_microusd, tool_calls, wall_ms, .. } =
        &spec.narrow;
    let above: Vec<_> = spec.above.iter().map(|above| ToolFilter::of(&above.narrow)).collect();
    let left = |tool: &&ToolSpec| above.iter().all(|filter| filter.leaves(tool));
    let left: Vec<&ToolSpec> = functions.iter().filter(left).collect();
    for selector in tools.iter().flatten() {
        let pattern = Pattern::of_tool(selector);
        if !left.iter().any(|tool| pattern.matches(tool)) {
            let known: Vec<_> = left.iter().map(|tool| &*tool.name).collect();
            return Err(invalid(
                "narrow.tools",
                format!(
                    "{selector:?} is no function that agent {} may call here; it may call: {}",
                    agent.name,
                    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
                ),
            ));
        }
    }
    check_tags_and_times(&spec.narrow, &left)?;
    deny.iter().try_for_each(|rule| check_denial(rule, agent))?;
    let budget = &agent.budget;
    let wall = budget.wall.map(taskrun_journal::time::millis);
    let bounds = [
        ("narrow.turns", "turns", turns.map(u64::from), 1, budget.turns.map(u64::from)),
        ("narrow.tokens", "tokens", *tokens, 1, Some(budget.tokens.unwrap_or(TOKENS_MAX))),
        (
            "narrow.cost_microusd",
            "millionths of a dollar",
            *cost_microusd,
            1,
            Some(budget.cost_microusd.unwrap_or(u64::MAX)),
        ),
        (
            "narrow.tool_calls",
            "tool calls",
            tool_calls.map(u64::from),
            0,
            agent.limits.tool_calls.map(u64::from),
        ),
        ("narrow.wall_ms", "milliseconds", *wall_ms, 1, wall),
        (
            "narrow.turn_calls",
            "tool calls in a turn",
            spec.narrow.turn_calls.map(u64::from),
            0,
            agent.limits.turn_calls.map(u64::from),
        ),
        (
            "narrow.tool_failures",
            "failed tool calls in a row",
            spec.narrow.tool_failures.map(u64::from),
            1,
            Some(u64::from(agent.limits.tool_failures)),
        ),
    ];
    for (field, what, asked, least, most) in bounds {
        let Some(asked) = asked else { continue };
        if asked < least {
            return Err(invalid(field, format!("{asked} {what} are too few for a run")));
        }
        if let Some(most) = most.filter(|most| asked > *most) {
            let agent = &agent.name;
            let reason = format!(
                "a run of agent {agent} has at most {most} {what}, and a request can only take \
                 away from that"
            );
            return Err(invalid(field, reason));
        }
    }
    Ok(())
}

/// Checks tags and time-outs against the functions that are left to the run. A tag that is denied
/// may be one that only agents beneath know.
fn check_tags_and_times(narrow: &Narrowing, left: &[&ToolSpec]) -> Result<(), ControllerError> {
    for tag in narrow.only_tags.iter().flatten() {
        let named = std::slice::from_ref(tag);
        if !left.iter().any(|tool| tool.is_stated_as(named)) {
            let reason = match left.iter().find(|tool| tool.is_tagged(named)) {
                Some(tool) => format!(
                    "only {} itself says that it has the tag {tag:?}; state it under `tags` of its \
                     tool in the policy",
                    tool.name
                ),
                None => format!("{tag:?} is no tag of a function that the run may call"),
            };
            return Err(invalid("narrow.only_tags", reason));
        }
    }
    for (text, timeout) in &narrow.timeouts {
        let (field, pattern) = ("narrow.timeouts", Pattern::parse(text));
        if !left.iter().any(|tool| pattern.matches(tool)) {
            let reason = format!("{text:?} is about no function that the run may call");
            return Err(invalid(field, reason));
        }
        if *timeout == 0 || u128::from(*timeout) > CALL_MAX.as_millis() {
            let most = ShowDuration(CALL_MAX);
            return Err(invalid(field, format!("a call takes from 1ms to {most}")));
        }
    }
    Ok(())
}

fn check_denial(text: &str, agent: &Agent) -> Result<(), ControllerError> {
    let wrong = |reason: String| invalid("narrow.deny", format!("{text:?}: {reason}"));
    let rule = declare(agent, |declared| parse_denial(text, declared)).map_err(wrong)?;
    if rule.selector.is_everything() {
        return Ok(());
    }
    match agent.rules.grants.standing(rule.capability) {
        Standing::Selective => Ok(()),
        Standing::Denied(_) | Standing::Unlisted => {
            let (capability, agent) = (rule.capability, &agent.name);
            let all = rule.capability.everything_rule();
            Err(wrong(format!(
                "it takes a part of `{capability}` away, of which agent {agent} has nothing; \
                 write \"{all}\" to refuse it whatever comes"
            )))
        }
    }
}

/// With what rules of this agent can name.
fn declare<T>(agent: &Agent, read: impl FnOnce(Declared<'_>) -> T) -> T {
    let models: Vec<&str> = agent.models.by_name.keys().map(String::as_str).collect();
    let prompts: Vec<&str> = agent.prompts.ids().collect();
    read(Declared { models: &models, prompts: &prompts })
}

/// The agent as a run has it: with the tools and the budget that its request and those above it
/// leave.
pub(crate) fn narrowed(
    (agent, code): (Arc<Agent>, Arc<AgentCode>),
    spec: &RunSpec,
    agents: &Agents,
) -> (Arc<Agent>, Arc<AgentCode>) {
    let agent = asked_for_by_all(agent, spec, agents);
    let narrow = &spec.narrow;
    let all = std::iter::once(narrow).chain(spec.above.iter().map(|above| &above.narrow));
    let filters: Vec<_> = all.map(ToolFilter::of).collect();
    if narrow.is_empty() && filters.iter().all(ToolFilter::is_open) {
        return (agent, code);
    }
    let (mut own, mut own_code) = (Agent::clone(&agent), AgentCode::clone(&code));
    let timeouts = narrow.timeouts.iter();
    let timeouts = timeouts.map(|(text, ms)| (Pattern::parse(text), Duration::from_millis(*ms)));
    let left = code.tools.only(|tool| filters.iter().all(|filter| filter.leaves(tool)));
    own_code.tools = left.no_longer_than(CallTimeouts::new(timeouts));
    own.limits.turn_calls = least(own.limits.turn_calls, narrow.turn_calls);
    if let Some(failures) = narrow.tool_failures {
        own.limits.tool_failures = own.limits.tool_failures.min(failures);
    }
    narrow_budget(&mut own.budget, narrow);
    own.limits.tool_calls = least(own.limits.tool_calls, narrow.tool_calls);
    (Arc::new(own), Arc::new(own_code))
}

/// The agent with what those above it want to be asked about: who must ask a person does not get
/// around that by asking somebody else.
fn asked_for_by_all(agent: Arc<Agent>, spec: &RunSpec, agents: &Agents) -> Arc<Agent> {
    let above = spec.above.iter().filter_map(|above| agents.by_name.get(&above.agent_name));
    let asking: Vec<_> = above.filter(|above| !above.ask.rules.is_empty()).collect();
    if asking.is_empty() {
        return agent;
    }
    let mut own = Agent::clone(&agent);
    asking.iter().for_each(|above| own.ask.add(&above.ask));
    Arc::new(own)
}

fn narrow_budget(budget: &mut Budget, narrow: &Narrowing) {
    budget.turns = least(budget.turns, narrow.turns);
    budget.tokens = least(budget.tokens, narrow.tokens);
    budget.cost_microusd = least(budget.cost_microusd, narrow.cost_microusd);
    budget.wall = least(budget.wall, narrow.wall_ms.map(Duration::from_millis));
}

/// The budgets of the runs above a run, the root's first; those of agents that are not here bound
/// nothing, as their rules allow nothing.
pub(crate) fn budgets_above(spec: &RunSpec, agents: &Agents) -> Vec<Budget> {
    let above = spec.above.iter().map(|Ancestor { agent_name, narrow }| {
        let unbounded = Budget { turns: None, wall: None, ..Budget::default() };
        let agent = agents.by_name.get(agent_name);
        let mut budget = agent.map_or(unbounded, |agent| agent.budget.clone());
        narrow_budget(&mut budget, narrow);
        budget
    });
    above.collect()
}

/// Checks that what a run costs can be known, where that is bounded.
///
/// # Errors
/// [`ControllerError::Invalid`] if the agent may ask a model whose price is not known, and the run
/// or one above it has a budget in dollars.
pub(crate) fn check_prices(spec: &RunSpec, agents: &Agents) -> Result<(), ControllerError> {
    let Some(agent) = agents.by_name.get(&spec.agent_name) else { return Ok(()) };
    let mut own = agent.budget.clone();
    narrow_budget(&mut own, &spec.narrow);
    let mut budgets = std::iter::once(own).chain(budgets_above(spec, agents));
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
            Err(invalid("budget", reason))
        }
    }
}

/// The smaller of two bounds, where `None` is no bound.
pub(crate) fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// The rules for the calls of a run.
pub(crate) fn rules(agent: &Agent, spec: &RunSpec, agents: &Agents) -> CallRules {
    CallRules::new(Arc::clone(&agent.rules.grants), chain(agent, spec, agents))
}

/// What bounds a run beside the rules of its own agent; `None` if nothing does.
fn chain(agent: &Agent, spec: &RunSpec, agents: &Agents) -> Option<Arc<Chain>> {
    if spec.depth == 0 && spec.narrow.deny.is_empty() && spec.above.is_empty() {
        return None;
    }
    let mut chain = Chain::new(&agent.rules.workspace);
    push_request(&mut chain, "this run", agent, &spec.narrow);
    for Ancestor { agent_name, narrow } in spec.above.iter().rev() {
        let above = agents.by_name.get(agent_name);
        chain.push_agent(agent_name, above.map(|above| Arc::clone(&above.rules)));
        if let Some(above) = above {
            push_request(&mut chain, &format!("agent {agent_name}"), above, narrow);
        }
    }
    // A run that was accepted before these were recorded.
    if spec.above.len() != spec.depth as usize {
        chain.push_unknown();
    }
    Some(Arc::new(chain))
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
