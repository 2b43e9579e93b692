//! `taskrun agent show`.

mod text;

use std::collections::BTreeMap;

use serde::Serialize;
use taskrun::agents::Agent;
use taskrun_journal::delivery::{DeliverySettings, Strategy};
use taskrun_journal::history::History;
use taskrun_journal::money::UsdDisplay;
use taskrun_policy::{
    AgentPolicy, AutonomySettings, BeatTimes, Capability, CapabilityAccess, EnginePolicy, Limits,
    Pattern, Verdict,
};
use taskrun_policy::{Heartbeat, InterruptionPolicy, Retry, RetryExhaustion, RetryOn, Upgrade};
use taskrun_runtime::{Inspection, Loader};

use super::agent::load;
use super::inspect::import_lines;
use super::tool::{first_sentence, inspect};
use crate::args::OutputFormat;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Outcome, agent_failure};
use crate::lookup::agent_of;
use crate::output::{human, versioned};
use crate::paths::shown;

/// An agent with everything that it asks for and gets.
#[derive(Serialize)]
struct AgentView {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    location: String,
    component: Part,
    tools: Vec<Tool>,
    members: Vec<String>,
    functions: Vec<Function>,
    capabilities: Vec<CapabilityView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// The provider of the model and its address. Never the key, nor its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<String>,
    workspace: String,
    limits: BTreeMap<&'static str, String>,
    budget: BTreeMap<&'static str, String>,
    durable: bool,
    retry: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    timeouts: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    policy: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ask: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ask_timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    autonomous: Option<BTreeMap<&'static str, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    heartbeat: Option<BTreeMap<&'static str, String>>,
    /// The strategy by which a conversation is told of what its runs start, where that is not the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery: Option<String>,
    /// Of which earlier runs of their session its runs are told, where that is not the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation: Option<&'static str>,
    /// The form of it that its open runs have, where that is not the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    upgrade: Option<&'static str>,
    loads: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// A component of the agent.
#[derive(Serialize)]
struct Part {
    name: String,
    path: String,
    digest: String,
    size: u64,
    imports: Vec<String>,
    #[serde(skip)]
    asks: Vec<Capability>,
}

/// A tool of the agent.
#[derive(Serialize)]
struct Tool {
    #[serde(flatten)]
    part: Part,
    interrupted: &'static str,
}

/// A function that the agent may call.
#[derive(Serialize)]
struct Function {
    name: String,
    title: String,
}

/// A capability and what the policy says about it.
#[derive(Serialize)]
struct CapabilityView {
    capability: &'static str,
    asked_by: Vec<String>,
    standing: &'static str,
    rules: Vec<String>,
}

pub(super) async fn show(context: &Context, name: &str) -> Outcome {
    let policy = context.policy()?;
    let loader = context.looking_loader(policy)?;
    let agent = agent_of(loader.policy(), name)?;
    loader.check_files(agent).map_err(|error| agent_failure(&error))?;
    let shown = gather(&loader, agent).await?;
    match context.printer.format() {
        OutputFormat::Table => context.printer.line(text::text(&shown, context.printer.width())),
        OutputFormat::Json => context.printer.json(&versioned(&shown)),
        OutputFormat::Ndjson => context.printer.json_line(&versioned(&shown)),
        OutputFormat::Name => context.printer.line(&shown.name),
    }
    // It is shown in any case; whether it loads is the command's answer.
    load(&loader, name).await.map(|_| Exit::Completed)
}

async fn gather(loader: &Loader, agent: &AgentPolicy) -> Outcome<AgentView> {
    let own = inspect(loader, &agent.component, &format!("agent {}", agent.name)).await?;
    let component = part(&agent.name, &shown(&agent.component), &own);
    let mut tools = Vec::new();
    for tool in loader.policy().tools.values() {
        if agent.uses_tool(&tool.name) {
            let loaded = inspect(loader, &tool.component, &format!("tool {}", tool.name)).await?;
            let part = part(&tool.name, &shown(&tool.component), &loaded);
            tools.push(Tool { part, interrupted: interrupted(tool.interrupted) });
        }
    }
    let loaded = load(loader, &agent.name).await;
    let (functions, error) = match &loaded {
        Ok(agent) => (functions(agent), None),
        Err(failure) => (Vec::new(), Some(failure.message.clone())),
    };
    Ok(AgentView {
        name: agent.name.clone(),
        description: agent.description.clone(),
        location: agent.location.to_string(),
        capabilities: capabilities(agent, &component, &tools),
        component,
        tools,
        members: agent.members.clone(),
        functions,
        model: agent.model.clone(),
        provider: provider(loader, agent),
        workspace: shown(&agent.workspace),
        limits: limits(&agent.limits),
        budget: budget(agent),
        durable: agent.durable,
        retry: retry(agent.retry, &agent.retry_on),
        timeouts: timeouts(agent),
        policy: agent.engine.as_ref().map(engine_lists).unwrap_or_default(),
        ask: agent.ask.rules.iter().map(|rule| rule.text.clone()).collect(),
        ask_timeout: (!agent.ask.rules.is_empty()).then(|| human::duration(agent.ask.timeout)),
        autonomous: agent.autonomous.as_ref().map(autonomous),
        heartbeat: agent.heartbeat.as_ref().map(heartbeat),
        delivery: delivery(&agent.delivery),
        conversation: match agent.conversation {
            History::Agent => None,
            stated @ (History::None | History::Session) => Some(stated.as_str()),
        },
        upgrade: match agent.upgrade {
            Upgrade::Pinned => None,
            Upgrade::Adopt => Some("adopt"),
        },
        loads: error.is_none(),
        error,
    })
}

fn part(name: &str, path: &str, inspection: &Inspection) -> Part {
    let asks = inspection.imports.iter().flat_map(|import| import.class.capabilities());
    Part {
        name: name.to_owned(),
        path: path.to_owned(),
        digest: inspection.digest.clone(),
        size: inspection.size,
        imports: import_lines(inspection),
        asks: asks.copied().collect(),
    }
}

fn provider(loader: &Loader, agent: &AgentPolicy) -> Option<String> {
    let model = loader.policy().models.get(agent.model.as_ref()?)?;
    Some(model.to_string())
}

fn functions(agent: &Agent) -> Vec<Function> {
    let function = |spec: &taskrun_journal::tool::ToolSpec| Function {
        name: spec.name.clone(),
        title: spec.title.clone().unwrap_or_else(|| first_sentence(&spec.description)),
    };
    let code = agent.code.loaded();
    code.iter().flat_map(|code| code.tools.specs().iter()).map(function).collect()
}

fn capabilities(agent: &AgentPolicy, component: &Part, tools: &[Tool]) -> Vec<CapabilityView> {
    let given = |capability: Capability| {
        let mut asked_by = Vec::new();
        if component.asks.contains(&capability) {
            asked_by.push("the agent".to_owned());
        }
        let asking =
            tools.iter().map(|tool| &tool.part).filter(|part| part.asks.contains(&capability));
        asked_by.extend(asking.map(|part| format!("tool {}", part.name)));
        let reaches_runs = agent.host_tools.iter().any(|function| function.operation().is_some());
        if capability == Capability::Controller && reaches_runs {
            asked_by.push("tools of the host".to_owned());
        }
        let about = |verdict| {
            agent
                .grants
                .rules()
                .iter()
                .filter(move |rule| rule.capability == capability && rule.verdict == verdict)
        };
        let rules = about(Verdict::Deny).chain(about(Verdict::Allow)).map(ToString::to_string);
        let standing = match agent.grants.access(capability) {
            CapabilityAccess::Unlisted => "not mentioned",
            CapabilityAccess::Denied(_) => "refused",
            CapabilityAccess::Selective => "by rule",
        };
        CapabilityView {
            capability: capability.as_str(),
            asked_by,
            standing,
            rules: rules.collect(),
        }
    };
    let all = Capability::ALL.into_iter().map(given);
    all.filter(|given| !given.asked_by.is_empty() || !given.rules.is_empty()).collect()
}

fn limits(limits: &Limits) -> BTreeMap<&'static str, String> {
    let Limits {
        memory_bytes,
        call,
        step,
        last_step,
        grace,
        tool_calls,
        turn_calls,
        tool_failures,
        result_bytes,
        log_bytes,
        table_elements,
        host_calls,
        host_call_bytes,
        events,
        journal_bytes,
        write_bytes,
        new_files,
    } = limits;
    let mut all = BTreeMap::from([
        ("memory", human::bytes(*memory_bytes)),
        ("call", human::duration(*call)),
        ("step", human::duration(*step)),
        ("grace", human::duration(*grace)),
        ("tool_failures", tool_failures.to_string()),
        ("result", human::bytes(*result_bytes)),
        ("log", human::bytes(*log_bytes)),
        ("table_elements", table_elements.to_string()),
        ("host_calls", host_calls.to_string()),
        ("host_call_bytes", human::bytes(*host_call_bytes)),
        ("events", events.to_string()),
        ("journal", human::bytes(*journal_bytes)),
        ("write", human::bytes(*write_bytes)),
        ("new_files", new_files.to_string()),
    ]);
    all.extend(last_step.map(|time| ("last_step", human::duration(time))));
    all.extend(tool_calls.map(|calls| ("tool_calls", calls.to_string())));
    all.extend(turn_calls.map(|calls| ("turn_calls", calls.to_string())));
    all
}

fn budget(agent: &AgentPolicy) -> BTreeMap<&'static str, String> {
    let budget = &agent.budget;
    let mut all = BTreeMap::new();
    all.extend(budget.turns.map(|turns| ("turns", turns.to_string())));
    all.extend(budget.tokens.map(|tokens| ("tokens", tokens.to_string())));
    all.extend(budget.prompt_tokens.map(|tokens| ("prompt_tokens", tokens.to_string())));
    all.extend(budget.completion_tokens.map(|tokens| ("completion_tokens", tokens.to_string())));
    all.extend(budget.cost_microusd.map(|cost| ("usd", UsdDisplay(cost).to_string())));
    let reserve = budget.reserve;
    let kept = |amount: u64, text: String| (amount > 0).then_some(text);
    all.extend(
        kept(reserve.tokens, reserve.tokens.to_string()).map(|kept| ("reserve tokens", kept)),
    );
    let turns = kept(reserve.turns.into(), reserve.turns.to_string());
    all.extend(turns.map(|kept| ("reserve turns", kept)));
    let money = kept(reserve.cost_microusd, UsdDisplay(reserve.cost_microusd).to_string());
    all.extend(money.map(|kept| ("reserve usd", kept)));
    all.extend(budget.wall.map(|wall| ("wall", human::duration(wall))));
    all.extend(budget.round.map(|round| ("round", human::duration(round))));
    all
}

fn retry(retry: Retry, on: &RetryOn) -> BTreeMap<&'static str, String> {
    let mut all = BTreeMap::from([
        ("attempts", retry.attempts.to_string()),
        ("pause", human::duration(retry.pause)),
    ]);
    match retry.then {
        RetryExhaustion::Abort => {}
        RetryExhaustion::Skip { in_a_row } => {
            all.insert("then", "skip".to_owned());
            all.insert("skips", in_a_row.to_string());
        }
    }
    if *on != RetryOn::default() {
        all.insert("on", on.words().join(", "));
    }
    all
}

fn autonomous(settings: &AutonomySettings) -> BTreeMap<&'static str, String> {
    let AutonomySettings {
        mode,
        rounds,
        continuation,
        result_schema,
        done,
        states,
        max_defer,
        answers,
    } = settings;
    let none = || "none".to_owned();
    let mut all =
        BTreeMap::from([("rounds", rounds.map_or_else(none, |rounds| rounds.to_string()))]);
    all.extend(mode.map(|mode| ("mode", mode.as_str().to_owned())));
    all.extend(continuation.clone().map(|text| ("continuation", text)));
    all.extend(result_schema.as_ref().map(|_| ("result", "by a schema".to_owned())));
    all.extend(done.as_ref().and_then(|done| Some(("done", done.name.clone()?))));
    all.extend((!states.is_empty()).then(|| ("states", states.join(", "))));
    all.extend(max_defer.map(|most| ("max_defer", human::duration(most))));
    all.extend(answers.as_ref().map(|answers| ("answers", answers.text())));
    all
}

fn timeouts(agent: &AgentPolicy) -> BTreeMap<String, String> {
    let all = agent.timeouts.iter();
    all.map(|(pattern, timeout)| (pattern.to_string(), human::duration(timeout))).collect()
}

/// The policy engine that decides about the agent's tools in each turn.
fn engine_lists(engine: &EnginePolicy) -> BTreeMap<&'static str, String> {
    let lists = &engine.lists;
    let names =
        |list: &[Pattern]| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut all = BTreeMap::new();
    all.extend(lists.allow.as_deref().map(|allow| ("allow", names(allow))));
    all.extend(lists.allow_tags.as_ref().map(|tags| ("allow_tags", tags.join(", "))));
    all.extend((!lists.block.is_empty()).then(|| ("block", names(&lists.block))));
    all.extend((!lists.block_tags.is_empty()).then(|| ("block_tags", lists.block_tags.join(", "))));
    if let Some(component) = &engine.component {
        let timeout = human::duration(engine.timeout);
        all.insert("component", format!("{} within {timeout}", shown(component)));
    }
    all.insert("hints", if lists.hints { "yes" } else { "no" }.to_owned());
    all
}

fn heartbeat(heartbeat: &Heartbeat) -> BTreeMap<&'static str, String> {
    let mut all = match &heartbeat.times {
        BeatTimes::Every(interval) => BTreeMap::from([("interval", human::duration(*interval))]),
        BeatTimes::Cron(times) => BTreeMap::from([
            ("cron", times.pattern().to_owned()),
            ("zone", times.zone_name().to_owned()),
        ]),
    };
    all.extend(heartbeat.prompt.clone().map(|prompt| ("prompt", prompt)));
    all
}

/// The delivery of the outcomes of what the agent starts; `None` for the usual one.
fn delivery(settings: &DeliverySettings) -> Option<String> {
    let DeliverySettings { strategy, notify, prompt: _ } = settings;
    let word = strategy.as_ref().map_or("none", Strategy::word);
    let told = notify.as_ref().map(|name| format!(", tells {name}"));
    (*settings != DeliverySettings::default())
        .then(|| format!("{word}{}", told.unwrap_or_default()))
}

/// The treatment of a call of the tool that was cut off, as the policy writes it.
fn interrupted(interrupted: InterruptionPolicy) -> &'static str {
    match interrupted {
        InterruptionPolicy::Fail => "fail",
        InterruptionPolicy::Ask => "ask",
    }
}
