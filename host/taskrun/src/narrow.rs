//! What a request takes away from what its agent may do, and who stands above a run. A run is
//! executed with what everybody above it, its own agent and its request allow; nothing adds.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agents::{Agent, AgentCode, Agents};
use crate::error::ControllerError;
use crate::money::ShowUsd;
use crate::policy::{
    Budget, CALL_MAX, CallTimeouts, Chain, Declared, ShowDuration, Standing, TOKENS_MAX, is_about,
    parse_denial,
};
use crate::ports::tool::ToolSpec;
use crate::run::RunSpec;

/// Most tools, and most deny rules, that a request names.
pub const NARROWING_ENTRIES_MAX: usize = 64;
/// Most bytes of all of them together: each run beneath keeps those of all runs above it.
pub const NARROWING_BYTES_MAX: usize = 16 << 10;

/// What a request takes away. The default takes nothing.
// Who does not know a field would grant what somebody took away, so unknown ones are refused; a
// new one also raises the version of what is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Narrowing {
    /// The only functions that the run and all beneath it may call: `tool/function`, or `tool/*`
    /// for all of a tool. `None` is all that the agent may call, an empty list none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Rules as they stand under `deny` of an agent, for the run and all beneath it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
    /// The only tags of functions that the run and all beneath it may call: a function needs one of
    /// them, as the policy states it of its tool. `None` is all functions, an empty list none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_tags: Option<Vec<String>>,
    /// Tags of functions that the run and all beneath it may not call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny_tags: Vec<String>,
    /// Longest calls of the run in milliseconds, by names of functions or beginnings of them as
    /// under `timeouts` of an agent. One that is longer than the agent's own changes nothing.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub timeouts: BTreeMap<String, u64>,
    /// Tool calls of each turn of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_calls: Option<u32>,
    /// Tool calls of the run that may fail in a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_failures: Option<u32>,
    /// Turns of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<u32>,
    /// Tokens of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Money of the run, in millionths of a US dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_microusd: Option<u64>,
    /// Tool calls of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u32>,
    /// Running time of the run, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
}

/// A run above another one, as far as it bounds what that may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ancestor {
    /// Its agent.
    pub agent_name: String,
    /// What its request took away.
    #[serde(default, skip_serializing_if = "Narrowing::is_empty")]
    pub narrow: Narrowing,
}

impl Narrowing {
    /// Whether it takes nothing away.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it leaves a function, which is described under its qualified name.
    fn leaves(&self, function: &ToolSpec) -> bool {
        let tools = self.tools.as_ref();
        tools.is_none_or(|tools| tools.iter().any(|selector| selects(selector, &function.name)))
            && self.only_tags.as_ref().is_none_or(|tags| function.is_stated_as(tags))
            && !function.is_tagged(&self.deny_tags)
    }

    fn takes_tools(&self) -> bool {
        self.tools.is_some() || self.only_tags.is_some() || !self.deny_tags.is_empty()
    }

    /// All names and rules in it, by field.
    fn texts(&self) -> [(&'static str, Vec<&String>); 5] {
        [
            ("narrow.tools", self.tools.iter().flatten().collect()),
            ("narrow.deny", self.deny.iter().collect()),
            ("narrow.only_tags", self.only_tags.iter().flatten().collect()),
            ("narrow.deny_tags", self.deny_tags.iter().collect()),
            ("narrow.timeouts", self.timeouts.keys().collect()),
        ]
    }

    /// Checks what can be said without knowing the agent.
    ///
    /// # Errors
    /// [`ControllerError::Invalid`].
    pub(crate) fn check_sizes(&self) -> Result<(), ControllerError> {
        for (field, texts) in self.texts() {
            if texts.len() > NARROWING_ENTRIES_MAX {
                let reason = format!("{field} has more than {NARROWING_ENTRIES_MAX} entries");
                return Err(invalid(field, reason));
            }
        }
        let texts = self.texts().into_iter().flat_map(|(_, texts)| texts);
        if texts.map(String::len).sum::<usize>() > NARROWING_BYTES_MAX {
            let reason = format!("tools and rules have more than {NARROWING_BYTES_MAX} bytes");
            return Err(invalid("narrow", reason));
        }
        Ok(())
    }
}

/// Prints it in one line: `only workspace/read; deny "http: *"; turns=3`.
impl fmt::Display for Narrowing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match self.tools.as_deref() {
            None => {}
            Some([]) => parts.push("no tools".to_owned()),
            Some(tools) => parts.push(format!("only {}", tools.join(", "))),
        }
        parts.extend(self.only_tags.as_ref().map(|tags| format!("only tags {}", tags.join(", "))));
        parts.extend(
            (!self.deny_tags.is_empty())
                .then(|| format!("deny tags {}", self.deny_tags.join(", "))),
        );
        parts.extend(self.deny.iter().map(|rule| format!("deny \"{rule}\"")));
        parts.extend(self.timeouts.iter().map(|(pattern, timeout)| {
            format!("{pattern} within {}", ShowDuration(Duration::from_millis(*timeout)))
        }));
        parts.extend(self.turn_calls.map(|calls| format!("turn-calls={calls}")));
        parts.extend(self.tool_failures.map(|failures| format!("tool-failures={failures}")));
        parts.extend(self.turns.map(|turns| format!("turns={turns}")));
        parts.extend(self.tokens.map(|tokens| format!("tokens={tokens}")));
        parts.extend(self.cost_microusd.map(|cost| format!("usd={}", ShowUsd(cost))));
        parts.extend(self.tool_calls.map(|calls| format!("tool-calls={calls}")));
        let wall = self.wall_ms.map(Duration::from_millis);
        parts.extend(wall.map(|wall| format!("wall={}", ShowDuration(wall))));
        f.write_str(&parts.join("; "))
    }
}

/// Whether `tool/*` or `tool/function` is about the function of this qualified name.
fn selects(selector: &str, name: &str) -> bool {
    match selector.strip_suffix("/*") {
        Some(tool) => name.split_once('/').is_some_and(|(of, _)| of == tool),
        None => selector == name,
    }
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
    code: &AgentCode,
) -> Result<(), ControllerError> {
    let Narrowing { tools, deny, turns, tokens, cost_microusd, tool_calls, wall_ms, .. } =
        &spec.narrow;
    let left = |tool: &&ToolSpec| spec.above.iter().all(|above| above.narrow.leaves(tool));
    let left: Vec<&ToolSpec> = code.tools.specs().iter().filter(left).collect();
    for selector in tools.iter().flatten() {
        if !left.iter().any(|tool| selects(selector, &tool.name)) {
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
    let wall = budget.wall.map(crate::time::millis);
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
    for (pattern, timeout) in &narrow.timeouts {
        let field = "narrow.timeouts";
        if !left.iter().any(|tool| is_about(pattern, &tool.name)) {
            let reason = format!("{pattern:?} is about no function that the run may call");
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
    let all = || std::iter::once(narrow).chain(spec.above.iter().map(|above| &above.narrow));
    if narrow.is_empty() && !all().any(Narrowing::takes_tools) {
        return (agent, code);
    }
    let (mut own, mut own_code) = (Agent::clone(&agent), AgentCode::clone(&code));
    let timeouts = narrow.timeouts.iter();
    let timeouts = timeouts.map(|(name, ms)| (name.clone(), Duration::from_millis(*ms)));
    let left = code.tools.only(|tool| all().all(|one| one.leaves(tool)));
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
    match agent.models.unpriced() {
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

/// What bounds a run beside the rules of its own agent; `None` if nothing does.
pub(crate) fn chain(agent: &Agent, spec: &RunSpec, agents: &Agents) -> Option<Arc<Chain>> {
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
    use super::*;
    use crate::spawn::SpawnRequest;

    #[test]
    fn a_selector_is_a_function_or_all_of_a_tool() {
        for (selector, name, expected) in [
            ("one/f", "one/f", true),
            ("one/*", "one/f", true),
            ("one/f", "one/g", false),
            ("one/*", "oner/f", false),
            ("*", "one/f", false),
            ("*/*", "one/f", false),
            ("", "one/f", false),
        ] {
            assert_eq!(selects(selector, name), expected, "{selector:?} {name:?}");
        }
    }

    #[test]
    fn it_is_said_in_one_line_and_nothing_is_said_of_none() {
        let narrow = Narrowing {
            tools: Some(vec!["one/f".to_owned(), "two/*".to_owned()]),
            deny: vec!["http: *".to_owned()],
            turns: Some(3),
            tokens: Some(1_000),
            cost_microusd: Some(1_500_000),
            tool_calls: Some(0),
            wall_ms: Some(1_500),
            only_tags: Some(vec!["look".to_owned()]),
            deny_tags: vec!["danger".to_owned()],
            timeouts: [("one/*".to_owned(), 2_000)].into(),
            turn_calls: Some(2),
            tool_failures: Some(1),
        };
        let said = "only one/f, two/*; only tags look; deny tags danger; deny \"http: *\"; one/* \
                    within 2s; turn-calls=2; tool-failures=1; turns=3; tokens=1000; usd=1.50; tool-calls=0; \
                    wall=1500ms";
        assert_eq!(narrow.to_string(), said);
        let none = Narrowing { tools: Some(Vec::new()), ..Narrowing::default() };
        assert_eq!((none.to_string().as_str(), none.is_empty()), ("no tools", false));
        assert_eq!(Narrowing::default().to_string(), "");
    }

    #[test]
    fn a_request_that_takes_nothing_is_written_as_before() {
        let request = serde_json::to_value(SpawnRequest::default()).expect("JSON");
        assert!(request.get("narrow").is_none(), "{request}");
    }

    #[test]
    fn what_is_not_known_to_be_taken_away_is_not_read_over() {
        let read = |text: &str| serde_json::from_str::<Narrowing>(text);
        assert_eq!(read("{}").expect("nothing"), Narrowing::default());
        assert!(read(r#"{"denied": ["http: *"]}"#).is_err());
    }
}
