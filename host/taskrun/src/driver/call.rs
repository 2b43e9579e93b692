//! A tool call as its tool is given it, with what it may reach.

use std::sync::Arc;

use taskrun_journal::plan::ToolRequest;
use taskrun_journal::run::Run;

use super::parts::{Parts, own_session};
use super::plan::digest;
use super::recorder::Recorder;
use crate::agents::AgentTool;
use crate::ports::tool::ToolCall;
use crate::scope::{
    BudgetReading, CallScope, CallScopeParts, Remaining, ScopeLimits, Services, StopSignal,
};

/// The call of a tool that a run has asked for.
pub(super) fn tool_call(
    parts: &Parts,
    run: &Run,
    request: &ToolRequest,
    tool: &AgentTool,
) -> ToolCall {
    ToolCall {
        name: tool.function.clone(),
        payload: request.payload.clone(),
        tool_call_id: key(run, request),
        parent_tool_call_id: request.parent_tool_call_id.clone(),
        agent_name: run.spec.agent_name.clone(),
        run_id: run.spec.id.to_string(),
        session_id: own_session(run),
        turn: run.state.turns,
        labels: run.spec.labels.clone(),
        timeout: parts.code.tools.stated_timeout(tool),
    }
}

/// The id under which a tool knows a call. It is made from run, turn and the call's own id, as
/// models number their calls anew in each turn, and a tool takes a known id for a repetition.
fn key(run: &Run, request: &ToolRequest) -> String {
    let id = request.tool_call_id.as_deref().unwrap_or_default();
    digest(&[run.spec.id.as_str(), &run.state.turns.to_string(), id])
}

/// The scope of a call that its tool knows by the id `key`, with the rest of the budget.
pub(super) fn call_scope(
    (parts, recorder): (&Parts, &Recorder),
    request: &ToolRequest,
    tool: &AgentTool,
    key: &str,
    (stop, budget): (StopSignal, BudgetReading),
) -> CallScope {
    let run = recorder.run();
    let mut context = parts.context(run, run.state.turns);
    context.parent_tool_call_id.clone_from(&request.tool_call_id);
    CallScope::new(CallScopeParts {
        context,
        stop,
        deadline: parts.code.tools.deadline(tool),
        clock: Arc::clone(&parts.env.clock),
        random: Arc::clone(&parts.env.random),
        models: None,
        rules: Arc::clone(&parts.bounds.rules),
        pins: Vec::new(),
        runs: Some(parts.runs_access(run, key.to_owned())),
        tools: Arc::default(),
        state: std::collections::BTreeMap::new(),
        services: Services {
            memory: Some(parts.memory_access(run, Some(key.to_owned()))),
            long_calls: recorder.work().long_calls.clone(),
            budget: Some(budget),
            ..Services::default()
        },
        remaining: Remaining::default(),
        limits: ScopeLimits { events: tool.limits.events, bytes: tool.limits.log_bytes },
        wake: recorder.wake(),
        journal: None,
        tape: None,
    })
}
