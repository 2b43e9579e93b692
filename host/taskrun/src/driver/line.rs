//! Tool calls on their way to begin: which are admitted, and which have to wait for a place.

use std::collections::VecDeque;

use super::calls::refused;
use super::hooks::denied;
use crate::agents::{Agent, AgentTool};
use crate::event::{Event, Refusal};
use crate::message::{RetryHint, RetryReason, ToolError};
use crate::ports::hook::Veto;
use crate::ports::planner::ToolRequest;
use crate::ports::tool::ToolFailure;

/// Most tool calls of one run that are executed at once; further ones of the turn wait.
const PARALLEL_CALLS_MAX: usize = 16;

/// Calls that are to begin, in order.
#[derive(Default)]
pub(super) struct Line<'a> {
    /// Those that have a place among the parallel ones.
    placed: Vec<(ToolRequest, &'a AgentTool)>,
    /// The others, each with what is recorded when it begins.
    waiting: VecDeque<(ToolRequest, &'a AgentTool, Event)>,
}

impl<'a> Line<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.placed.is_empty() && self.waiting.is_empty()
    }

    /// The calls that have a place, which they leave for the engine.
    pub(super) fn take(&mut self) -> Vec<(ToolRequest, &'a AgentTool)> {
        std::mem::take(&mut self.placed)
    }

    /// Gives the places that are left beside `running` calls to those that wait for one, and says
    /// what is to be recorded of that.
    pub(super) fn place(&mut self, running: usize) -> Vec<Event> {
        let free = PARALLEL_CALLS_MAX.saturating_sub(running + self.placed.len());
        let mut begins = Vec::new();
        for (request, tool, event) in self.waiting.drain(..free.min(self.waiting.len())) {
            begins.push(event);
            self.placed.push((request, tool));
        }
        begins
    }

    /// The calls that wait for a place and are not to have one any more.
    pub(super) fn give_up(&mut self) -> Vec<ToolRequest> {
        self.waiting.drain(..).map(|(request, ..)| request).collect()
    }

    /// Adds a call, and to `events` what is recorded of it: `begins`, if it has a place.
    pub(super) fn add(
        &mut self,
        events: &mut Vec<Event>,
        request: ToolRequest,
        tool: &'a AgentTool,
        begins: Event,
    ) {
        if self.placed.len() < PARALLEL_CALLS_MAX {
            events.push(begins);
            self.placed.push((request, tool));
        } else {
            self.waiting.push_back((request, tool, begins));
        }
    }

    /// Adds a call for the first time, if it is admitted and no hook is against it; otherwise its
    /// refusal to `events`. `left` are the calls that the run may still make.
    pub(super) fn admit(
        &mut self,
        events: &mut Vec<Event>,
        agent: &'a Agent,
        (request, veto): (ToolRequest, Option<Veto>),
        left: &mut u32,
    ) {
        if let Some(veto) = veto {
            return events.extend(denied(&request, &veto));
        }
        match admit(agent, &request, *left) {
            Ok(tool) => {
                *left -= 1;
                let begins = scheduled(&request, tool);
                self.add(events, request, tool, begins);
            }
            Err((refusal, failure)) => events.push(refused(&request, refusal, failure)),
        }
    }
}

/// Decides whether a call is executed: a call is left, the tool is one of the agent's, and the
/// arguments fit.
pub(super) fn admit<'a>(
    agent: &'a Agent,
    request: &ToolRequest,
    left: u32,
) -> Result<&'a AgentTool, (Refusal, ToolFailure)> {
    let Some(tool) = agent.tools.get(&request.name) else {
        let mut hint = RetryHint::new(RetryReason::ToolUnavailable, &request.name);
        hint.prior_input = Some(request.payload.clone());
        let known: Vec<_> = agent.tools.specs().iter().map(|spec| spec.name.as_str()).collect();
        hint.message = Some(match known.as_slice() {
            [] => "this agent has no tools".to_owned(),
            some => format!("available are: {}", some.join(", ")),
        });
        let text = format!("tool not available: {}", request.name);
        let error = ToolError::coded("tool-unavailable", text);
        let failure = ToolFailure { error, retry_hint: Some(Box::new(hint)) };
        return Err((Refusal::Unavailable, failure));
    };
    if left == 0 {
        let text = "skipped: cap: no tool calls are left in this run";
        let failure = ToolFailure { error: ToolError::coded("cap", text), retry_hint: None };
        return Err((Refusal::Cap, failure));
    }
    tool.check(&request.payload).map_err(|failure| (Refusal::Arguments, failure))?;
    Ok(tool)
}

fn scheduled(request: &ToolRequest, tool: &AgentTool) -> Event {
    let call = super::step::tool_use(request);
    Event::ToolCallScheduled {
        name: call.name,
        tool_call_id: call.tool_call_id,
        payload: call.payload,
        idempotent: tool.spec.hints.idempotent || tool.spec.hints.read_only,
    }
}
