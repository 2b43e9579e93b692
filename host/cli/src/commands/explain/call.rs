//! Calls of tools: the list of the agent, requests, policy engines and rules about consent.

use std::sync::Arc;

use taskrun::gate::rights::tool_filters;
use taskrun_journal::operation::Operation;
use taskrun_journal::run::Run;
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{
    AGENTS, AgentPolicy, AskRule, AskRules, EnginePolicy, HOST, HostFunction, Policy, ToolEntry,
    ToolFilter, toml_string,
};
use taskrun_runtime::{LoaderOptions, RunRules, rules_of_agent};

use super::layers::{LayerVerdict, LayerView, Place, RuleView, out_of_then, shown_place};
use super::operations::of_operations;
use super::own_tools::{own_tool, tool_of_others};
use super::question::TOOL;
use crate::commands::agent::load;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::lookup::{agent_of, nearest, tool_of};
use crate::paths::{shown, shown_in};

/// An agent of one of the policies whose lists a call has to pass.
#[derive(Clone, Copy)]
struct AgentVersion<'a> {
    /// The kind of the layer of its list.
    layer: &'static str,
    policy: &'a Policy,
    agent: &'a AgentPolicy,
    /// Its time, in words.
    when: &'static str,
    /// The run that keeps to it, where it is an earlier one, which nobody can change any more.
    kept_for: Option<&'a Run>,
}

impl<'a> AgentVersion<'a> {
    /// One that no run keeps to.
    fn now(policy: &'a Policy, agent: &'a AgentPolicy) -> Self {
        Self { layer: "tools", policy, agent, when: "", kept_for: None }
    }

    fn of(&self, what: &str) -> String {
        format!("{what}agent {}{}", self.agent.name, self.when)
    }

    /// The change that it needs: `now`, unless it is an earlier one.
    fn change(&self, now: impl FnOnce() -> String) -> String {
        self.kept_for.map_or_else(now, |run| out_of_then(Some(run)))
    }
}

/// The layers of the call of a function by an agent that no run bounds.
pub(super) async fn of_agent(
    context: &Context,
    policy: &Policy,
    agent: &AgentPolicy,
    name: &str,
) -> Outcome<Vec<LayerView>> {
    let version = AgentVersion::now(policy, agent);
    check_name(name, &[version])?;
    let listed = listed(version, name);
    if listed.verdict != LayerVerdict::Allowed {
        check_function(context, version, name).await?;
        return Ok(vec![listed]);
    }
    let functions = functions_now(context, policy, &agent.name).await?;
    Ok(of_function(policy, agent, function_of(&functions, name)?))
}

/// The same of a function that is known by its description.
pub(super) fn of_function(
    policy: &Policy,
    agent: &AgentPolicy,
    function: &ToolSpec,
) -> Vec<LayerView> {
    let (version, name) = (AgentVersion::now(policy, agent), &function.name);
    let mut layers = vec![listed(version, name)];
    if is_left(&layers) {
        layers.extend(engines(version, function));
        layers.extend(consent(&agent.ask, function, &[version]));
        layers.extend(of_operations(name, &rules_of_agent(agent), (&agent.name, None)));
    }
    layers
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
    let current = |layer, when| AgentVersion { layer, policy, agent: now, when, kept_for: None };
    let mut versions = match kept.is_earlier {
        true => vec![
            AgentVersion {
                layer: "tools_then",
                policy: &kept.policy,
                agent: then,
                when,
                kept_for: Some(run),
            },
            current("tools_now", ", now"),
        ],
        false => vec![current("tools", "")],
    };
    if let Some(policy) = &kept.origin {
        let (agent, when) = (agent_of(policy, own)?, ", now in the file of its acceptance");
        versions.push(AgentVersion { layer: "tools_now", policy, agent, when, kept_for: None });
    }
    let agents: Vec<&AgentPolicy> = versions.iter().map(|one| one.agent).collect();
    let autonomy = run.spec.autonomy.as_ref();
    if let Some(layer) = autonomy.and_then(|autonomy| own_tool(name, autonomy, &agents)) {
        return Ok(vec![layer]);
    }
    check_name(name, &versions)?;
    let mut layers: Vec<LayerView> = versions.iter().map(|one| listed(*one, name)).collect();
    layers.extend(tool_of_others(name, &run.spec));
    if is_left(&layers) {
        let functions = match kept.is_earlier {
            true => functions_then(context, policy, run).await?,
            false => functions_now(context, policy, own).await?,
        };
        let function = function_of(&functions, name)?;
        layers.extend(requests(run, function));
        layers.extend(versions.iter().flat_map(|one| engines(*one, function)));
        layers.extend(consent(&kept.ask, function, &versions));
        layers.extend(of_operations(name, &kept.rules, (own, Some(run))));
    } else if !kept.is_earlier {
        check_function(context, current("tools", ""), name).await?;
    }
    Ok(layers)
}

fn is_left(layers: &[LayerView]) -> bool {
    layers.iter().all(|layer| layer.verdict == LayerVerdict::Allowed)
}

/// Checks that one of the policies has what is to be called.
fn check_name(name: &str, versions: &[AgentVersion<'_>]) -> Outcome<()> {
    let Some((tool, function)) = name.split_once('/') else {
        let message = format!("{name:?} is not of the form TOOL/FUNCTION");
        return Err(Failure::usage("bad-question", message)
            .hint(format!("ask as in `--cap {TOOL} --arg name=TOOL/FUNCTION`")));
    };
    let mut found = versions.iter().map(|one| match tool {
        AGENTS => agent_of(one.policy, function).map(|_| ()),
        HOST => host_tool(function).map(|_| ()),
        _ => tool_of(one.policy, tool).map(|_| ()),
    });
    let first = found.next().unwrap_or(Ok(()));
    first.or_else(|failure| if found.any(|one| one.is_ok()) { Ok(()) } else { Err(failure) })
}

/// The tool of the host of this name.
fn host_tool(name: &str) -> Outcome<HostFunction> {
    HostFunction::parse(name).ok_or_else(|| {
        let known = HostFunction::ALL.map(HostFunction::as_str);
        let near =
            nearest(name, known.into_iter()).map(|near| format!("did you mean {HOST}/{near}? "));
        Failure::usage("unknown-function", format!("there is no function {HOST}/{name}"))
            .hint(near.unwrap_or_default() + &format!("they are: {}", known.join(", ")))
    })
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
    loader.functions_of_pin(run.pin()).await.map_err(|why| {
        let message = format!("agent {} does not load: {}", run.spec.agent_name, shown_in(&why));
        Failure::usage("component-broken", message)
            .hint("see what is kept for runs with `taskrun doctor --check`")
            .about(run.id())
    })
}

fn function_of<'f>(functions: &'f [ToolSpec], name: &str) -> Outcome<&'f ToolSpec> {
    let known = || functions.iter().map(|function| function.name.as_str());
    let found = functions.iter().find(|function| function.name == name);
    found.ok_or_else(|| no_function(name, known()))
}

fn no_function<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Box<Failure> {
    let tool = name.split_once('/').map_or(name, |(tool, _)| tool);
    let near = nearest(name, known).map(|near| format!("did you mean {near}? "));
    let show = format!("see the functions of a tool with `taskrun tool show {tool}`");
    Failure::usage("unknown-function", format!("there is no function {name}"))
        .hint(near.unwrap_or_default() + &show)
}

/// Checks that a tool has a function that the agent does not list, as far as the tool loads for that
/// agent: otherwise listing it would be no help.
async fn check_function(
    context: &Context,
    AgentVersion { policy, agent, .. }: AgentVersion<'_>,
    name: &str,
) -> Outcome<()> {
    let tool = name.split_once('/').and_then(|(tool, _)| policy.tools.get(tool));
    let Some(tool) = tool else { return Ok(()) };
    let Ok(port) = context.looking_loader(policy.clone())?.tool(agent, tool).await else {
        return Ok(());
    };
    let qualified = |spec: &ToolSpec| format!("{}/{}", tool.name, spec.name);
    let known: Vec<String> = port.specs().iter().map(qualified).collect();
    match known.iter().any(|known| known == name) {
        true => Ok(()),
        false => Err(no_function(name, known.iter().map(String::as_str))),
    }
}

/// The list of what the agent may call.
fn listed(version: AgentVersion<'_>, name: &str) -> LayerView {
    let AgentVersion { policy, agent, .. } = version;
    let (tool, _) = name.split_once('/').unwrap_or((name, ""));
    let of_component = agent.may_call(name) && policy.tools.contains_key(tool);
    let may_call = of_component || agent.calls_without_component(name);
    let section = shown_place(&agent.location);
    if !may_call {
        let reason = format!("it is not among its `tools` ({section})");
        let then = version.kept_for.map(|run| vec![out_of_then(Some(run))]);
        return LayerView {
            change: then.unwrap_or_else(|| changes_to_list(agent, name)),
            section: Some(Place::from(&agent.location)),
            ..LayerView::new(version.layer, version.of(""), LayerVerdict::Denied, reason)
        };
    }
    let entry = policy.tool_entry(&agent.name, name);
    let shown = entry
        .as_ref()
        .map_or(section, |entry| format!("\"{}\" ({})", entry.text, shown_place(&entry.location)));
    // Some tools of the host follow from the members.
    let follows = entry.is_none() && tool == HOST;
    let change = version.kept_for.is_none().then(|| match follows {
        true => format!("name the tools of the host that it is to have under `tools` ({shown})"),
        false => format!("remove {shown} from `tools`"),
    });
    let in_list = |entry: ToolEntry| RuleView {
        text: entry.text,
        list: "tools".to_owned(),
        place: Some(Place::from(&entry.location)),
    };
    let reason = match follows {
        true => format!("it has `members`, and names no tools of the host ({shown})"),
        false => format!("its `tools` have {shown}"),
    };
    LayerView {
        rule: entry.map(in_list),
        change: change.into_iter().collect(),
        ..LayerView::new(version.layer, version.of(""), LayerVerdict::Allowed, reason)
    }
}

/// The changes of an agent that has it list a function. The policy takes a tool of the host only
/// beside a rule for what that does, and beside agents to start runs of if it starts any.
fn changes_to_list(agent: &AgentPolicy, name: &str) -> Vec<String> {
    let place = shown_place(&agent.location);
    let function = name.split_once('/').filter(|(tool, _)| *tool == HOST);
    let operation = function.and_then(|(_, name)| HostFunction::parse(name)?.operation());
    let mut changes = Vec::new();
    if operation == Some(Operation::Spawn) && agent.all_members().is_empty() {
        changes.push(format!("name agents under `members` of the agent ({place})"));
    }
    let rules = of_operations(name, &rules_of_agent(agent), (&agent.name, None));
    let denied = rules.into_iter().filter(|layer| layer.verdict == LayerVerdict::Denied);
    changes.extend(denied.flat_map(|layer| layer.change));
    changes.push(format!("add {} to `tools` of the agent ({place})", toml_string(name)));
    changes
}

/// The requests that take functions away.
fn requests(run: &Run, function: &ToolSpec) -> Vec<LayerView> {
    let filters = tool_filters(&run.spec).filter(|(_, filter)| !filter.is_open());
    let view = |(of, filter): (Option<&str>, ToolFilter<'_>)| {
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
fn engines(version: AgentVersion<'_>, function: &ToolSpec) -> Vec<LayerView> {
    let Some(EnginePolicy { lists, component, timeout: _, location }) = &version.agent.engine
    else {
        return Vec::new();
    };
    let place = shown_place(location);
    let view = |verdict, reason| LayerView {
        section: Some(Place::from(location)),
        ..LayerView::new("policy_engine", version.of("the policy engine of "), verdict, reason)
    };
    let decided = lists.decide(std::slice::from_ref(function), &[]);
    let leaves = decided.allowed_tools.is_none_or(|left| left.contains(&function.name));
    let of_lists = match leaves {
        true => view(LayerVerdict::Allowed, format!("its lists leave it ({place})")),
        false => LayerView {
            change: vec![version.change(|| format!("change `policy` of the agent ({place})"))],
            ..view(LayerVerdict::Denied, format!("its lists do not leave it ({place})"))
        },
    };
    let component = component.as_ref().map(|component| {
        let component = shown(component);
        view(LayerVerdict::NotAsked, format!("{component} decides in each turn ({place})"))
    });
    std::iter::once(of_lists).chain(component).collect()
}

/// The rule for whose sake a person is asked: one of the agent, or of one above it.
fn consent(
    rules: &AskRules,
    function: &ToolSpec,
    versions: &[AgentVersion<'_>],
) -> Option<LayerView> {
    let rule = rules.about(function)?;
    let removed =
        |rule: &AskRule| format!("remove ask \"{}\" ({})", rule.text, shown_place(&rule.location));
    let own = versions.iter().filter_map(|version| {
        let rule = version.agent.ask.about(function)?;
        Some(version.change(|| removed(rule)))
    });
    let mut change: Vec<String> = own.collect();
    if change.is_empty() {
        // It is one of a run above, which may be kept to by that as well.
        let is_earlier = versions.iter().any(|version| version.kept_for.is_some());
        change.push(if is_earlier { out_of_then(None) } else { removed(rule) });
    }
    let place = shown_place(&rule.location);
    let reason = format!("a person is asked, by ask \"{}\" ({place})", rule.text);
    Some(LayerView {
        rule: Some(RuleView {
            text: rule.text.clone(),
            list: "ask".to_owned(),
            place: Some(Place::from(&rule.location)),
        }),
        change,
        ..LayerView::new("ask", "consent".to_owned(), LayerVerdict::Ask, reason)
    })
}
