//! Calls of tools: the list of the agent, its policy engines and its rules about consent.

use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{AGENTS, AgentPolicy, EnginePolicy, Policy};

use super::Explanation;
use super::layers::{LayerVerdict, LayerView, Place, RuleView, shown_place};
use super::question::TOOL;
use crate::commands::agent::load;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::lookup::{agent_of, nearest, tool_of};
use crate::paths::shown;

/// The decision about the call of a function by an agent that no run bounds.
pub(super) async fn explain(
    context: &Context,
    policy: Policy,
    agent: &str,
    name: String,
) -> Outcome<Explanation> {
    let listed = listed(&policy, agent_of(&policy, agent)?, &name)?;
    let mut layers = vec![listed];
    if layers[0].verdict == LayerVerdict::Allowed {
        let loader = context.looking_loader(policy)?;
        let loaded = load(&loader, agent).await?;
        let functions = loaded.code.loaded().map(|code| code.tools.specs().to_vec());
        let functions = functions.unwrap_or_default();
        let agent = agent_of(loader.policy(), agent)?;
        let function = functions.iter().find(|function| function.name == name);
        let function = function.ok_or_else(|| unknown_function(&name, &functions))?;
        layers.extend(agent.engine.iter().flat_map(|engine| engines(agent, engine, function)));
        layers.extend(consent(agent, function));
    }
    Ok(Explanation::of_layers(agent, (TOOL.to_owned(), name), None, layers))
}

/// The list of what the agent may call.
fn listed(policy: &Policy, agent: &AgentPolicy, name: &str) -> Outcome<LayerView> {
    let Some((tool, function)) = name.split_once('/') else {
        let message = format!("{name:?} is not of the form TOOL/FUNCTION");
        return Err(Failure::usage("bad-question", message)
            .hint(format!("ask as in `--cap {TOOL} --arg name=TOOL/FUNCTION`")));
    };
    let pattern = if tool == AGENTS {
        agent_of(policy, function)?;
        agent.callees.iter().find(|callee| *callee == function).map(|_| name.to_owned())
    } else {
        tool_of(policy, tool)?;
        let pattern = agent.tools.iter().find(|pattern| pattern.matches_name(name));
        pattern.map(ToString::to_string)
    };
    let place = shown_place(&agent.location);
    let (verdict, reason, change) = match &pattern {
        Some(pattern) => (
            LayerVerdict::Allowed,
            format!("\"{pattern}\" is among its `tools` ({place})"),
            format!("remove \"{pattern}\" from `tools` of the agent ({place})"),
        ),
        None => (
            LayerVerdict::Denied,
            format!("it is not among its `tools` ({place})"),
            format!("add \"{name}\" to `tools` of the agent ({place})"),
        ),
    };
    let in_list = |text| RuleView {
        text,
        list: "tools".to_owned(),
        place: Some(Place::from(&agent.location)),
    };
    Ok(LayerView {
        layer: "tools",
        of: format!("agent {}", agent.name),
        verdict,
        decides: false,
        reason,
        rule: pattern.map(in_list),
        change: vec![change],
    })
}

fn unknown_function(name: &str, functions: &[ToolSpec]) -> Box<Failure> {
    let tool = name.split_once('/').map_or(name, |(tool, _)| tool);
    let known = functions.iter().map(|function| function.name.as_str());
    let near = nearest(name, known).map(|near| format!("did you mean {near}? "));
    let show = format!("see the functions of a tool with `taskrun tool show {tool}`");
    Failure::usage("unknown-function", format!("there is no function {name}"))
        .hint(near.unwrap_or_default() + &show)
}

/// The engines that decide about the agent's tools in each turn: the lists are asked, as for a turn
/// after no failed call; a component would have to be told of a run.
fn engines(agent: &AgentPolicy, engine: &EnginePolicy, function: &ToolSpec) -> Vec<LayerView> {
    let place = shown_place(&engine.location);
    let view = |verdict, reason, change| LayerView {
        layer: "policy_engine",
        of: format!("the policy engine of agent {}", agent.name),
        verdict,
        decides: false,
        reason,
        rule: None,
        change,
    };
    let decided = engine.lists.decide(std::slice::from_ref(function), &[]);
    let leaves = decided.allowed_tools.is_none_or(|left| left.contains(&function.name));
    let lists = match leaves {
        true => view(LayerVerdict::Allowed, format!("its lists leave it ({place})"), Vec::new()),
        false => view(
            LayerVerdict::Denied,
            format!("its lists do not leave it ({place})"),
            vec![format!("change `policy` of the agent ({place})")],
        ),
    };
    let component = engine.component.as_ref().map(|component| {
        let component = shown(component);
        let reason = format!("{component} decides in each turn ({place})");
        view(LayerVerdict::NotAsked, reason, Vec::new())
    });
    std::iter::once(lists).chain(component).collect()
}

/// The rule for whose sake a person is asked.
fn consent(agent: &AgentPolicy, function: &ToolSpec) -> Option<LayerView> {
    let rule = agent.ask.about(function)?;
    let place = shown_place(&rule.location);
    Some(LayerView {
        layer: "ask",
        of: format!("agent {}", agent.name),
        verdict: LayerVerdict::Ask,
        decides: false,
        reason: format!("a person is asked, by ask \"{}\" ({place})", rule.text),
        rule: Some(RuleView {
            text: rule.text.clone(),
            list: "ask".to_owned(),
            place: Some(Place::from(&rule.location)),
        }),
        change: vec![format!("remove ask \"{}\" ({place})", rule.text)],
    })
}
