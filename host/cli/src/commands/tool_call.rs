//! `taskrun tool call`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use taskrun::agents::{AgentTool, AgentTools, LoadedTool};
use taskrun::arguments::TurnSteps;
use taskrun::ports::call::{
    CallScope, CallScopeParts, Remaining, RunContext, ScopeLimits, Services, StopSignal,
};
use taskrun::ports::tool::{ToolCall, ToolReply, ToolValue};
use taskrun_journal::event::Event;
use taskrun_journal::ids::RunId;
use taskrun_journal::message::Labels;
use taskrun_journal::stop::StopCause;
use taskrun_journal::tool::ToolFailure;
use taskrun_policy::{AgentPolicy, Policy};

use super::text::text;
use super::tool::callers;
use crate::args::{OutputFormat, ToolCallArgs};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::follow::refusal;
use crate::house::{House, agent_of, engine_for_looking, tool_of};
use crate::output::escape::{escaped_line, excerpt};
use crate::output::paint::{DIM, with};
use crate::output::{compact, versioned};
use crate::place::shown_in;
use crate::signals::Interrupts;

/// Most bytes of arguments: as much as a task may have.
const ARGUMENTS_BYTES_MAX: usize = 256 << 10;
/// Characters of a guest's word for its failure: more than any word has.
const GUEST_CODE_CHARS_MAX: usize = 64;

#[derive(Serialize)]
struct Answer<'a> {
    tool: &'a str,
    agent: &'a str,
    result: Option<&'a RawValue>,
}

pub(super) async fn call(context: &Context, args: &ToolCallArgs) -> Outcome {
    let name = &args.function;
    let policy = context.policy()?;
    let Some((tool_name, function)) = name.split_once('/') else {
        return Err(Failure::usage("usage", format!("{name:?} is not of the form TOOL/FUNCTION"))
            .hint(format!("see the functions of a tool with `taskrun tool show {name}`")));
    };
    let tool = tool_of(&policy, tool_name)?.clone();
    let agent = agent_for(&policy, args.agent.as_deref(), tool_name, function)?.clone();
    let payload = text(&args.arguments, "arguments", ARGUMENTS_BYTES_MAX)?;
    let house = House::new(engine_for_looking(context)?, policy)?;
    let limits = agent.call_limits(&tool);
    let loaded = LoadedTool {
        name: tool_name.to_owned(),
        tool: house.tool(&agent, &tool).await?,
        limits,
        interrupted: tool.interrupted,
        tags: tool.tags.clone(),
        timeouts: agent.call_timeouts(&tool),
    };
    let tools = AgentTools::select(&agent.tools, &[loaded]);
    let tools = tools.map_err(|error| {
        Failure::usage("tools", format!("the tools of agent {} do not fit", agent.name))
            .because(&error)
            .hint(format!("see `taskrun tool show {tool_name} --agent {}`", agent.name))
    })?;
    let Some(function) = tools.get(name) else {
        let known: Vec<&str> = tools.specs().iter().map(|spec| spec.name.as_str()).collect();
        let message =
            format!("agent {} has no function {name}; it has {}", agent.name, known.join(", "));
        return Err(Failure::usage("unknown-function", message)
            .hint(format!("see `taskrun tool show {tool_name} --agent {}`", agent.name)));
    };
    let checked = function.check(&payload, &TurnSteps::default()).await;
    checked.map_err(|failure| {
        failed(&failure, Exit::Usage, name)
            .hint(format!("see its arguments with `taskrun tool show {tool_name}`"))
    })?;
    let value = execute(context, &house, &agent, function, payload).await?;
    print(context, name, &agent.name, &value);
    Ok(Exit::Completed)
}

/// The agent named, or the only one that may call the function.
fn agent_for<'p>(
    policy: &'p Policy,
    named: Option<&str>,
    tool: &str,
    function: &str,
) -> Outcome<&'p AgentPolicy> {
    let may = |agent: &AgentPolicy| agent.may_call(tool, function);
    let able: Vec<&AgentPolicy> = callers(policy, tool).filter(|agent| may(agent)).collect();
    let names: Vec<&str> = able.iter().map(|agent| agent.name.as_str()).collect();
    let others = if names.is_empty() {
        format!("add \"{tool}/{function}\" to `tools` of an agent")
    } else {
        format!("give one of these with --agent: {}", names.join(", "))
    };
    if let Some(named) = named {
        let agent = agent_of(policy, named)?;
        return if may(agent) {
            Ok(agent)
        } else {
            let message =
                format!("agent {named} may not call {tool}/{function} ({})", agent.location);
            Err(Failure::new(Exit::Denied, "denied", message).hint(others))
        };
    }
    match able.as_slice() {
        [only] => Ok(only),
        [] => {
            Err(Failure::usage("no-agent", format!("no agent may call {tool}/{function}"))
                .hint(others))
        }
        _ => Err(Failure::usage("ambiguous", format!("several agents may call {tool}/{function}"))
            .hint(others)),
    }
}

async fn execute(
    context: &Context,
    house: &House,
    agent: &AgentPolicy,
    function: &AgentTool,
    payload: String,
) -> Outcome<ToolValue> {
    let stop = StopSignal::new(house.engine.interrupt());
    let id = {
        let mut random = [0; 10];
        context.random.fill(&mut random);
        RunId::generate(context.now().0, &random).to_string()
    };
    let scope = Arc::new(scope(context, agent, function, &id, stop.clone()));
    let call = ToolCall {
        name: function.function.clone(),
        payload,
        tool_call_id: format!("{id}:1"),
        parent_tool_call_id: None,
        agent_id: agent.name.clone(),
        run_id: id.clone(),
        session_id: id,
        turn: 1,
        labels: Labels::new(),
    };
    let mut interrupts = Interrupts::new();
    let answer = tokio::select! {
        answer = function.tool.call(call, Arc::clone(&scope)) => Some(answer),
        () = interrupts.pressed() => {
            stop.force(StopCause::Canceled);
            None
        }
    };
    let events = scope.finish().events;
    tell_events(context, &events);
    let name = &function.spec.name;
    match answer {
        Some(Ok(Ok(ToolReply::Value(value)))) => Ok(*value),
        Some(Ok(Ok(ToolReply::Park(_)))) => Err(Failure::new(
            Exit::Blocked,
            "tool-waits",
            format!("{name} waits for something, and only a run can"),
        )
        .hint("let an agent call it in a run: `taskrun run AGENT TASK`")),
        Some(Ok(Err(failure))) => {
            // What a guest calls its failure is no word of the policy's: only the host knows what
            // was refused.
            let denied = events.iter().any(is_refusal);
            let exit = if denied { Exit::Denied } else { Exit::Failed };
            let hint = if denied {
                format!("see what agent {0} is granted with `taskrun agent show {0}`", agent.name)
            } else {
                format!("see what it takes with `taskrun tool show {}`", tool_of_name(name))
            };
            let mut shown = failed(&failure, exit, name).hint(hint);
            shown.code = guest_code(failure.error.code.as_deref()).into();
            Err(shown)
        }
        Some(Err(failure)) => Err(Failure::new(
            Exit::Failed,
            failure.kind(),
            format!("{name} was stopped: {failure}"),
        )
        .hint(format!("see the limits of its calls with `taskrun agent show {}`", agent.name))),
        None => Err(Failure::new(Exit::Interrupted, "canceled", format!("{name} was canceled"))
            .hint("a call that takes long can be part of a run, which goes on without you")),
    }
}

/// True if the host refused something that the call wanted to do.
fn is_refusal(event: &Event) -> bool {
    matches!(event, Event::PolicyDecision { decided: None, .. })
}

/// The word for programs of a failure that a guest named: the guest's, so it is marked as that.
fn guest_code(code: Option<&str>) -> String {
    match code {
        Some(code) => format!("guest:{}", excerpt(code, GUEST_CODE_CHARS_MAX)),
        None => "tool-failed".to_owned(),
    }
}

fn tool_of_name(name: &str) -> &str {
    name.split_once('/').map_or(name, |(tool, _)| tool)
}

fn scope(
    context: &Context,
    agent: &AgentPolicy,
    function: &AgentTool,
    id: &str,
    stop: StopSignal,
) -> CallScope {
    let run = RunContext {
        run_id: id.to_owned(),
        root_run_id: id.to_owned(),
        tenant: context.scope().tenant,
        session_id: id.to_owned(),
        parent_session_id: "cli".to_owned(),
        owner_user_id: context.globals.owner.clone().unwrap_or_else(|| "local".to_owned()),
        agent_name: agent.name.clone(),
        turn: 1,
        attempt: 1,
        ..RunContext::default()
    };
    CallScope::new(CallScopeParts {
        context: run,
        stop,
        deadline: function.deadline,
        clock: Arc::clone(&context.clock),
        random: Arc::clone(&context.random),
        models: None,
        chain: None,
        runs: None,
        tools: Arc::default(),
        state: BTreeMap::new(),
        services: Services::default(),
        remaining: Remaining::default(),
        limits: ScopeLimits { events: function.limits.events, bytes: function.limits.log_bytes },
        wake: Arc::default(),
        journal: None,
        tape: None,
    })
}

/// Refusals and log lines of the call.
fn tell_events(context: &Context, events: &[Event]) {
    for event in events {
        if let Event::PolicyDecision { capability, subject, rule, .. } = event {
            context.printer.say(refusal(capability, subject, rule));
        } else if let Event::Log { level, source, message, .. } = event {
            let line =
                format!("{} {}: {}", level.as_str(), escaped_line(source), escaped_line(message));
            context.printer.talk(with(DIM, &line));
        }
    }
}

fn failed(failure: &ToolFailure, exit: Exit, name: &str) -> Box<Failure> {
    let message = format!("{name}: {}", shown_in(&failure.error.message));
    let mut shown = Failure::new(exit, "tool-failed", message);
    if let Some(code) = &failure.error.code {
        shown.code = code.clone().into();
    }
    shown.causes.clone_from(&failure.error.causes);
    shown
}

fn print(context: &Context, name: &str, agent: &str, value: &ToolValue) {
    let printer = &context.printer;
    let result = compact(&value.value);
    let answer = Answer { tool: name, agent, result: result.as_deref() };
    match printer.format() {
        OutputFormat::Table if printer.is_terminal() => {
            let parsed: Option<serde_json::Value> = serde_json::from_str(&value.value).ok();
            let pretty = parsed.and_then(|value| serde_json::to_string_pretty(&value).ok());
            printer.guest_text(&pretty.unwrap_or_else(|| value.value.clone()));
        }
        OutputFormat::Table | OutputFormat::Name => printer.guest_text(&value.value),
        OutputFormat::Json => printer.json(&versioned(answer)),
        OutputFormat::Ndjson => printer.json_line(&versioned(answer)),
    }
}
