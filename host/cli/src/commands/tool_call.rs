//! `taskrun tool call`.

use serde::Serialize;
use serde_json::value::RawValue;
use taskrun::ports::tool::{ToolReply, ToolResult};
use taskrun_journal::event::Event;
use taskrun_journal::media::Media;
use taskrun_journal::message::Bounds;
use taskrun_journal::question::{Answer as PersonAnswer, AwaitItem, Item};
use taskrun_journal::stop::CallAbort;
use taskrun_journal::tool::ToolFailure;
use taskrun_policy::{AgentPolicy, Capability, HOST, HostFunction, Policy, ToolPolicy};
use taskrun_runtime::{CallEnd, Caller, FunctionsError, ToolFunction, callers};

use super::answer::{can_ask, typed};
use super::explain::decide_call;
use super::run::SESSION_DEFAULT;
use super::text::text;
use super::tool::{functions_failure, tool_failure};
use crate::args::{OutputFormat, ToolCallArgs};
use crate::context::{Context, OWNER_DEFAULT};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::follow::refusal;
use crate::lookup::{agent_of, tool_of};
use crate::output::escape::{escaped_line, excerpt};
use crate::output::paint::{DIM, NOTE, with};
use crate::output::{compact, versioned};
use crate::shell;
use crate::signals::Interrupts;

/// Most bytes of arguments: as much as a task may have.
const ARGUMENTS_BYTES_MAX: usize = 256 << 10;
/// Tools of an agent that a hint names.
const TOOLS_NAMED_MAX: usize = 5;
/// The remedy for a tool that does what it must not.
const BUILD_AGAIN: &str = "correct the tool and build it again";
/// Characters of a guest's word for its failure: more than any word has.
const GUEST_CODE_CHARS_MAX: usize = 64;

#[derive(Serialize)]
struct Answer<'a> {
    tool_name: &'a str,
    agent_name: &'a str,
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bounds: Option<&'a Bounds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_data: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<Media>,
}

pub(super) async fn call(context: &Context, args: &ToolCallArgs) -> Outcome {
    let name = &args.function;
    let policy = context.policy()?;
    let Some((tool_name, function)) = name.split_once('/') else {
        return Err(Failure::usage("usage", format!("{name:?} is not of the form TOOL/FUNCTION"))
            .hint(functions_hint(&policy, name, args.agent.as_deref())));
    };
    if tool_name == HOST && HostFunction::parse(function).is_some() {
        let message = format!("{function} can only be called from within a task context");
        return Err(Failure::usage("no-run", message).hint(
            "tools of the host are called by agents in their runs: `taskrun run AGENT TASK`",
        ));
    }
    let tool = tool_of(&policy, tool_name)?.clone();
    let agent = agent_for(&policy, args.agent.as_deref(), tool_name, function)?.clone();
    let payload = text(&args.arguments, "arguments", ARGUMENTS_BYTES_MAX)?;
    let loader = context.looking_loader(policy)?;
    let functions = loader.functions(&agent, &tool).await.map_err(|error| match error {
        FunctionsError::Component(error) => tool_failure(&error, &agent, &tool),
        FunctionsError::Tools(error) => functions_failure(&error, &agent.name),
    })?;
    let Some(function) = functions.get(name) else {
        let known: Vec<&str> = functions.names().collect();
        let message =
            format!("agent {} has no function {name}; it has {}", agent.name, known.join(", "));
        let show = format!("see `taskrun tool show {tool_name} --agent {}`", agent.name);
        return Err(Failure::usage("unknown-function", message).hint(show));
    };
    let decision = decide_call(loader.policy(), &agent, function.spec())?;
    for layer in &decision.not_asked {
        let text = format!("{}; it is not asked, as there is no run", escaped_line(layer));
        context.printer.say(with(NOTE, &text));
    }
    function.check(&payload).await.map_err(|failure| {
        failed(&failure, Exit::Usage, name)
            .hint(format!("see its arguments with `taskrun tool show {tool_name}`"))
    })?;
    if let Some(reason) = decision.ask.filter(|_| !args.accept) {
        consent(context, args, &payload, &reason).await?;
    }
    let called = Called { agent: &agent, tool: &tool, name };
    let value = execute(context, &function, &called, payload).await?;
    print(context, name, &agent.name, &value);
    Ok(Exit::Completed)
}

/// Asks the person at the terminal for consent to a call.
///
/// # Errors
/// If that is not given, or nobody is there.
async fn consent(
    context: &Context,
    args: &ToolCallArgs,
    payload: &str,
    reason: &str,
) -> Outcome<()> {
    let name = &args.function;
    let refused = |code, message: String| {
        let mut failure = Failure::new(Exit::Denied, code, message);
        failure.causes.push(reason.to_owned());
        failure
    };
    if !can_ask(context) {
        return Err(refused("consent", format!("{name} is called with consent only"))
            .hint("consent with --accept, or call it in a terminal, which asks"));
    }
    let what = AwaitItem::Confirmation {
        id: name.clone(),
        question: format!("May {name} be called? ({reason})"),
        tool_name: name.clone(),
        tool_call_id: String::new(),
        payload: payload.to_owned(),
        digest: None,
        policy: None,
    };
    let item = Item { what, tool_call_id: None, until: None, default: None };
    let command = context.printer.command(&command_with_file(args));
    if typed(command, &item).await? == Some(PersonAnswer::Confirmed(true)) {
        return Ok(());
    }
    Err(refused("declined", format!("{name} was not called: nobody consented")))
}

/// The command of the same call with arguments of any length.
fn command_with_file(args: &ToolCallArgs) -> String {
    let agent = args.agent.as_deref().map(|agent| shell::option(" --agent", agent, "AGENT"));
    let agent = agent.unwrap_or_default();
    format!("taskrun tool call {} @FILE{agent} --accept", args.function)
}

/// The command that shows the functions of a tool where only one of the two names was given: of the
/// tool of that name, or else of those of the agent that was named.
fn functions_hint(policy: &Policy, name: &str, agent: Option<&str>) -> String {
    if policy.tools.contains_key(name) {
        return format!("see the functions of a tool with `taskrun tool show {name}`");
    }
    let agent = agent.and_then(|agent| policy.agents.get(agent));
    let used = |agent: &AgentPolicy| {
        let tools = policy.tools.keys().filter(|tool| agent.uses_tool(tool));
        let shows = tools.map(|tool| format!("`taskrun tool show {tool} --agent {}`", agent.name));
        shows.collect::<Vec<_>>()
    };
    match agent.map(used).unwrap_or_default().as_slice() {
        [] => "list the tools with `taskrun tool ls`".to_owned(),
        shows @ [..] => {
            let shows: Vec<&str> = shows.iter().take(TOOLS_NAMED_MAX).map(String::as_str).collect();
            format!("see the functions with {}", shows.join(" or "))
        }
    }
}

/// The agent named, or the only one that may call the function.
fn agent_for<'p>(
    policy: &'p Policy,
    named: Option<&str>,
    tool: &str,
    function: &str,
) -> Outcome<&'p AgentPolicy> {
    let may = |agent: &AgentPolicy| agent.may_call(&format!("{tool}/{function}"));
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
            Err(Failure::new(Exit::Denied, "denied", message).with_places().hint(others))
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

/// The function that is called, and the grants under which it is.
struct Called<'a> {
    agent: &'a AgentPolicy,
    tool: &'a ToolPolicy,
    name: &'a str,
}

impl Called<'_> {
    /// The remedy for a failure that the tool returned. One that asked for something that is
    /// `absent`, as only runs have it, is not known to have failed for anything else.
    fn failure_hint(&self, absent: Option<Capability>) -> String {
        match absent {
            Some(capability) => format!(
                "outside of a run there is no {capability}, which it asked for; let agent {0} call \
                 it in one: `taskrun run {0} TASK`",
                self.agent.name
            ),
            None => format!("see what it takes with `taskrun tool show {}`", self.tool.name),
        }
    }
}

async fn execute(
    context: &Context,
    function: &ToolFunction<'_>,
    called: &Called<'_>,
    payload: String,
) -> Outcome<ToolResult> {
    let Called { agent, name, .. } = called;
    let caller = Caller {
        tenant: context.principal().scope.tenant,
        owner: context.globals.owner.clone().unwrap_or_else(|| OWNER_DEFAULT.to_owned()),
        session: SESSION_DEFAULT.to_owned(),
    };
    let mut interrupts = Interrupts::new();
    let CallEnd { events, answer, breaks_contract, absent } =
        function.call(payload, &caller, interrupts.pressed()).await;
    tell_events(context, &events);
    match answer {
        Some(Ok(Ok(ToolReply::Value(value)))) => Ok(*value),
        Some(Ok(Ok(ToolReply::Park(_) | ToolReply::Marked(..)))) => Err(Failure::new(
            Exit::Blocked,
            "tool-waits",
            format!("{name} waits for something, and only a run can"),
        )
        .hint("let an agent call it in a run: `taskrun run AGENT TASK`")),
        // The word for that is the host's own.
        Some(Ok(Err(failure))) if breaks_contract => {
            let mut shown = failed(&failure, Exit::Failed, name).hint(BUILD_AGAIN);
            // No other arguments would help.
            shown.retry_hint = None;
            Err(shown)
        }
        Some(Ok(Err(failure))) => {
            // What a guest calls its failure is no word of the policy's: only the host knows what
            // was refused.
            let denied = events.iter().any(is_refusal);
            let exit = if denied { Exit::Denied } else { Exit::Failed };
            let hint = if denied {
                format!("see what agent {0} is granted with `taskrun agent show {0}`", agent.name)
            } else {
                called.failure_hint(absent)
            };
            let mut shown = failed(&failure, exit, name).hint(hint);
            shown.code = guest_code(failure.error.code.as_deref()).into();
            Err(shown)
        }
        // In the words of a call in a run: some of these say themselves that it was stopped.
        Some(Err(failure)) => {
            Err(Failure::new(Exit::Failed, failure.kind(), format!("{name}: {failure}"))
                .hint(stop_hint(&failure, agent)))
        }
        None => Err(Failure::new(Exit::Interrupted, "canceled", format!("{name} was canceled"))
            .hint("a call that takes long can be part of a run, which goes on without you")),
    }
}

/// The remedy for a call that was stopped.
fn stop_hint(failure: &CallAbort, agent: &AgentPolicy) -> String {
    match failure {
        CallAbort::Memory { .. }
        | CallAbort::Deadline { .. }
        | CallAbort::Stack
        | CallAbort::Limit { .. } => {
            format!("see the limits of its calls with `taskrun agent show {}`", agent.name)
        }
        CallAbort::Trap { .. } | CallAbort::Contract { .. } => BUILD_AGAIN.to_owned(),
        CallAbort::Stopped { .. } => "call it again".to_owned(),
        CallAbort::Unavailable => {
            "call it again; `taskrun doctor` says how much memory all guests have".to_owned()
        }
        CallAbort::Internal => "look at the whole installation with `taskrun doctor`".to_owned(),
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
    let message = format!("{name}: {}", failure.error.message);
    let mut shown = Failure::new(exit, "tool-failed", message);
    if let Some(code) = &failure.error.code {
        shown.code = code.clone().into();
    }
    shown.causes.clone_from(&failure.error.causes);
    shown.retry_hint = failure.retry_hint.clone().map(|mut hint| {
        // A tool knows its functions by their own names only.
        if name.split_once('/').is_some_and(|(_, function)| function == hint.tool) {
            name.clone_into(&mut hint.tool);
        }
        hint
    });
    shown
}

fn print(context: &Context, name: &str, agent: &str, value: &ToolResult) {
    let printer = &context.printer;
    let result = compact(&value.value);
    // Its contract has them be images.
    let images = value.media.iter().filter_map(|image| Media::of(image.as_slice()).ok());
    let answer = Answer {
        tool_name: name,
        agent_name: agent,
        result: result.as_deref(),
        bounds: value.bounds.as_ref(),
        server_data: value.server_data.as_deref().and_then(compact),
        images: images.map(|(named, _)| named).collect(),
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_with_a_file_is_the_same_call() {
        let command = |agent: Option<&str>| {
            let agent = agent.map(str::to_owned);
            let (function, arguments) = ("a/b".to_owned(), "{}".to_owned());
            command_with_file(&ToolCallArgs { function, arguments, agent, accept: false })
        };
        assert_eq!(command(None), "taskrun tool call a/b @FILE --accept");
        assert_eq!(command(Some("lead")), "taskrun tool call a/b @FILE --agent lead --accept");
    }
}
