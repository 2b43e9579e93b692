//! The findings about an agent that loads: a model without a price under a budget in dollars, and
//! tags in rules that none of its functions has.

use std::slice;

use taskrun::agents::Agent;
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{AgentPolicy, HOST, Pattern, Policy};

use crate::failure::Failure;

/// The failure of an agent that no run is accepted of, as what it costs could not be known.
pub(super) fn unpriced(
    policy: &Policy,
    agent: &AgentPolicy,
    loaded: &Agent,
) -> Option<Box<Failure>> {
    agent.budget.cost_microusd?;
    let model = loaded.models.unpriced(&loaded.rules.grants)?;
    let name = &agent.name;
    let message = format!(
        "agent {name} can never run: it states `usd`, and may ask model {model}, whose price is \
         not known"
    );
    let mut failure = Failure::usage("budget", message).hint(format!(
        "add `prices` to [model.{model}], or have [agent.{name}] deny that model or state no `usd`"
    ));
    let model = policy.models.get(model);
    failure.causes.extend(model.map(|model| format!("without `prices` at {}", model.location)));
    failure.causes.push(format!("the agent at {}", agent.location));
    Some(failure)
}

/// The rules about calls whose tags none of the agent's functions has, each in words.
pub(super) fn idle_tags(agent: &AgentPolicy, loaded: &Agent) -> Vec<String> {
    let Some(code) = loaded.code.loaded() else { return Vec::new() };
    let functions = code.tools.specs();
    // By that tag the tools are known that only a run has which goes on by itself.
    let is_idle =
        |tag: &str, has: &dyn Fn(&ToolSpec) -> bool| tag != HOST && !functions.iter().any(has);
    let claimed = |tag: &String| is_idle(tag, &|spec| spec.is_tagged(slice::from_ref(tag)));
    let stated = |tag: &String| is_idle(tag, &|spec| spec.is_stated_as(slice::from_ref(tag)));
    let asked = agent.ask.rules.iter().filter_map(|rule| {
        let Pattern::Tag(tag) = &rule.functions else { return None };
        let place = || format!("`ask` \"{}\" ({})", rule.text, rule.location);
        claimed(tag).then(place)
    });
    let mut idle: Vec<String> = asked.collect();
    if let Some(engine) = &agent.engine {
        let place = |key: &str, tag: &String| format!("`{key}` {tag:?} ({})", engine.location);
        let lists = &engine.lists;
        let blocked = lists.block_tags.iter().filter(|tag| claimed(tag));
        idle.extend(blocked.map(|tag| place("block_tags", tag)));
        let allowed = lists.allow_tags.iter().flatten().filter(|tag| stated(tag));
        idle.extend(allowed.map(|tag| place("allow_tags", tag)));
    }
    idle.into_iter().map(|rule| format!("{rule} is about no function that it may call")).collect()
}
