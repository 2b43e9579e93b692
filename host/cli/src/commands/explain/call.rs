//! Calls of tools: the list of the agent, requests, policy engines and rules about consent.

use std::sync::Arc;

use taskrun::gate::rights::tool_filters;
use taskrun_journal::run::Run;
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{AGENTS, AgentPolicy, AskRules, EnginePolicy, Policy};
use taskrun_runtime::{LoaderOptions, RunRules};

use super::layers::{LayerVerdict, LayerView, Place, RuleView, shown_place};
use super::question::TOOL;
use crate::commands::agent::load;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::lookup::{agent_of, nearest, tool_of};
use crate::paths::{shown, shown_in};

/// The change that a rule of then needs.
const NEW_RUN: &str = "start a new run: one that is accepted keeps to the rules of then";

/// An agent as it is asked about a call.
#[derive(Clone, Copy)]
struct Asked<'a> {
    /// The kind of the layer of its list.
    layer: &'static str,
    policy: &'a Policy,
    agent: &'a AgentPolicy,
    /// What is said of its time.
    when: &'static str,
}

impl Asked<'_> {
    fn of(&self, what: &str) -> String {
        format!("{what}agent {}{}", self.agent.name, self.when)
    }

    /// True if nobody can change it any more.
    fn is_earlier(&self) -> bool {
        self.layer == "tools_then"
    }
}

/// The layers of the call of a function by an agent that no run bounds.
pub(super) async fn of_agent(
    context: &Context,
    policy: &Policy,
    agent: &AgentPolicy,
    name: &str,
) -> Outcome<Vec<LayerView>> {
    let asked = Asked { layer: "tools", policy, agent, when: "" };
    check_name(name, &[asked])?;
    let mut layers = vec![listed(asked, name)];
    if is_left(&layers) {
        let functions = functions_now(context, policy, &agent.name).await?;
        let function = function_of(&functions, name)?;
        layers.extend(engines(asked, function));
        layers.extend(consent(&agent.ask, function, false));
    }
    Ok(layers)
}

/// The layers of the call of a function in a run.
pub(super) async fn of_run(
    context: &Context,
    policy: &Policy,
    (run, kept): (&Run, &RunRules),
    name: &str,
) -> Outcome<Vec<LayerView>> {
    let own = &run.spec.agent_name;
    let (then, now) = (agent_of(&kept.policy, own)?, agent_of(policy, own)?);
    let when = ", as the run was accepted";
    let asked = match kept.is_earlier {
        true => vec![
            Asked { layer: "tools_then", policy: &kept.policy, agent: then, when },
            Asked { layer: "tools_now", policy, agent: now, when: ", now" },
        ],
        false => vec![Asked { layer: "tools", policy, agent: now, when: "" }],
    };
    check_name(name, &asked)?;
    let mut layers: Vec<LayerView> = asked.iter().map(|one| listed(*one, name)).collect();
    if is_left(&layers) {
        let functions = match kept.is_earlier {
            true => functions_then(context, policy, run).await?,
            false => functions_now(context, policy, own).await?,
        };
        let function = function_of(&functions, name)?;
        layers.extend(requests(run, function));
        layers.extend(asked.iter().flat_map(|one| engines(*one, function)));
        layers.extend(consent(&kept.ask, function, kept.is_earlier));
    }
    Ok(layers)
}

fn is_left(layers: &[LayerView]) -> bool {
    layers.iter().all(|layer| layer.verdict == LayerVerdict::Allowed)
}

/// Checks that one of the policies has what is to be called.
fn check_name(name: &str, asked: &[Asked<'_>]) -> Outcome<()> {
    let Some((tool, function)) = name.split_once('/') else {
        let message = format!("{name:?} is not of the form TOOL/FUNCTION");
        return Err(Failure::usage("bad-question", message)
            .hint(format!("ask as in `--cap {TOOL} --arg name=TOOL/FUNCTION`")));
    };
    let mut found = asked.iter().map(|one| match tool == AGENTS {
        true => agent_of(one.policy, function).map(|_| ()),
        false => tool_of(one.policy, tool).map(|_| ()),
    });
    let first = found.next().unwrap_or(Ok(()));
    first.or_else(|failure| if found.any(|one| one.is_ok()) { Ok(()) } else { Err(failure) })
}

/// The functions of an agent of the policy as it is now.
async fn functions_now(
    context: &Context,
    policy: &Policy,
    agent: &str,
) -> Outcome<Arc<Vec<ToolSpec>>> {
    let loader = context.looking_loader(policy.clone())?;
    let loaded = load(&loader, agent).await?;
    let functions = loaded.code.loaded().map(|code| Arc::clone(code.tools.specs()));
    Ok(functions.unwrap_or_default())
}

/// The functions of the agent of a run, as it was accepted, within those of now.
async fn functions_then(
    context: &Context,
    policy: &Policy,
    run: &Run,
) -> Outcome<Arc<Vec<ToolSpec>>> {
    let options = LoaderOptions { keeps: true, ..LoaderOptions::of_data_dir(&context.data_dir()?) };
    let loader = Arc::new(context.loader(policy.clone(), options)?);
    loader.functions_of_pin(&run.spec.pin).await.map_err(|why| {
        let message = format!("agent {} does not load: {}", run.spec.agent_name, shown_in(&why));
        Failure::usage("component-broken", message)
            .hint("see what is kept for runs with `taskrun doctor --check`")
            .about(run.id())
    })
}

fn function_of<'f>(functions: &'f [ToolSpec], name: &str) -> Outcome<&'f ToolSpec> {
    functions.iter().find(|function| function.name == name).ok_or_else(|| {
        let tool = name.split_once('/').map_or(name, |(tool, _)| tool);
        let known = functions.iter().map(|function| function.name.as_str());
        let near = nearest(name, known).map(|near| format!("did you mean {near}? "));
        let show = format!("see the functions of a tool with `taskrun tool show {tool}`");
        Failure::usage("unknown-function", format!("there is no function {name}"))
            .hint(near.unwrap_or_default() + &show)
    })
}

/// The list of what the agent may call.
fn listed(asked: Asked<'_>, name: &str) -> LayerView {
    let agent = asked.agent;
    let (tool, function) = name.split_once('/').unwrap_or((name, ""));
    let pattern = if tool == AGENTS {
        agent.callees.iter().find(|callee| *callee == function).map(|_| name.to_owned())
    } else {
        let pattern = agent.tools.iter().find(|pattern| pattern.matches_name(name));
        pattern.filter(|_| asked.policy.tools.contains_key(tool)).map(ToString::to_string)
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
    LayerView {
        rule: pattern.map(in_list),
        change: match (asked.is_earlier(), verdict) {
            (false, _) => vec![change],
            (true, LayerVerdict::Denied) => vec![NEW_RUN.to_owned()],
            (true, LayerVerdict::Allowed | LayerVerdict::Ask | LayerVerdict::NotAsked) => {
                Vec::new()
            }
        },
        ..LayerView::new(asked.layer, asked.of(""), verdict, reason)
    }
}

/// The requests that take functions away.
fn requests(run: &Run, function: &ToolSpec) -> Vec<LayerView> {
    let filters = tool_filters(&run.spec).filter(|(_, filter)| !filter.is_open());
    let view = |(of, filter): (Option<&str>, taskrun_policy::ToolFilter<'_>)| {
        let of = of.map_or("this run".to_owned(), |agent| format!("agent {agent}"));
        let of = format!("the request for {of}");
        match filter.leaves(function) {
            true => LayerView::new("request", of, LayerVerdict::Allowed, "it leaves it".to_owned()),
            false => LayerView {
                change: vec!["start a run whose request leaves it".to_owned()],
                ..LayerView::new(
                    "request",
                    of,
                    LayerVerdict::Denied,
                    "it does not leave it".to_owned(),
                )
            },
        }
    };
    filters.map(view).collect()
}

/// The engines that decide about the agent's tools in each turn: the lists are asked, as for a turn
/// after no failed call; a component would have to be told of a run.
fn engines(asked: Asked<'_>, function: &ToolSpec) -> Vec<LayerView> {
    let Some(EnginePolicy { lists, component, timeout: _, location }) = &asked.agent.engine else {
        return Vec::new();
    };
    let place = shown_place(location);
    let view = |verdict, reason| {
        LayerView::new("policy_engine", asked.of("the policy engine of "), verdict, reason)
    };
    let decided = lists.decide(std::slice::from_ref(function), &[]);
    let leaves = decided.allowed_tools.is_none_or(|left| left.contains(&function.name));
    let of_lists = match leaves {
        true => view(LayerVerdict::Allowed, format!("its lists leave it ({place})")),
        false => LayerView {
            change: vec![match asked.is_earlier() {
                true => NEW_RUN.to_owned(),
                false => format!("change `policy` of the agent ({place})"),
            }],
            ..view(LayerVerdict::Denied, format!("its lists do not leave it ({place})"))
        },
    };
    let component = component.as_ref().map(|component| {
        let component = shown(component);
        view(LayerVerdict::NotAsked, format!("{component} decides in each turn ({place})"))
    });
    std::iter::once(of_lists).chain(component).collect()
}

/// The rule for whose sake a person is asked.
fn consent(rules: &AskRules, function: &ToolSpec, is_earlier: bool) -> Option<LayerView> {
    let rule = rules.about(function)?;
    let place = shown_place(&rule.location);
    let reason = format!("a person is asked, by ask \"{}\" ({place})", rule.text);
    Some(LayerView {
        rule: Some(RuleView {
            text: rule.text.clone(),
            list: "ask".to_owned(),
            place: Some(Place::from(&rule.location)),
        }),
        change: vec![match is_earlier {
            true => NEW_RUN.to_owned(),
            false => format!("remove ask \"{}\" ({place})", rule.text),
        }],
        ..LayerView::new("ask", "consent".to_owned(), LayerVerdict::Ask, reason)
    })
}
