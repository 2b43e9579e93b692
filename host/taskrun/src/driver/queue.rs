//! The queue of tool calls that were admitted: some have a place, the others wait for one.

use std::collections::VecDeque;

use taskrun_journal::event::Event;
use taskrun_journal::plan::ToolRequest;

use super::results::tool_use;
use crate::agents::AgentTool;

/// Most tool calls of one run that are executed at once; further ones of the turn wait.
const PARALLEL_CALLS_MAX: usize = 16;

/// Calls that are to begin, in order.
#[derive(Default)]
pub(super) struct Queue<'a> {
    /// Those that have a place among the parallel ones.
    placed: Vec<(ToolRequest, &'a AgentTool)>,
    /// The others, each with what is recorded when it begins.
    waiting: VecDeque<(ToolRequest, &'a AgentTool, Event)>,
}

impl<'a> Queue<'a> {
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
}

/// The record of a call that begins.
pub(super) fn scheduled(request: &ToolRequest, tool: &AgentTool) -> Event {
    let call = tool_use(request);
    Event::ToolCallScheduled {
        name: call.name,
        tool_call_id: call.tool_call_id,
        payload: call.payload,
        idempotent: tool.spec.hints.idempotent || tool.spec.hints.read_only,
        is_own: tool.is_own,
    }
}
