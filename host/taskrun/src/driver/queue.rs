//! The queue of tool calls that were admitted: some have a place, the others wait for one.

use std::collections::{BTreeSet, VecDeque};

use taskrun_journal::event::Event;
use taskrun_journal::plan::ToolRequest;

use super::results::tool_use;
use crate::agents::AgentTool;

/// Most tool calls of one run that are executed at once; further ones of the turn wait.
const PARALLEL_CALLS_MAX: usize = 16;

/// A call that waits for a place.
struct WaitingCall<'a> {
    request: ToolRequest,
    tool: &'a AgentTool,
    /// The record of its beginning.
    begins: Event,
    /// The number of the lasting consent by which it begins.
    consent: Option<u64>,
}

/// Calls that are to begin, in order.
#[derive(Default)]
pub(super) struct Queue<'a> {
    /// Those that have a place among the parallel ones.
    placed: Vec<(ToolRequest, &'a AgentTool)>,
    /// The others.
    waiting: VecDeque<WaitingCall<'a>>,
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
        let free = self.free(running);
        let mut begun = Vec::new();
        for WaitingCall { request, tool, begins, .. } in self.waiting.drain(..free) {
            begun.push(begins);
            self.placed.push((request, tool));
        }
        begun
    }

    /// The function of the first call that has a place next beside `running` calls and begins by a
    /// lasting consent, but for these functions.
    pub(super) fn next_by_consent(
        &self,
        running: usize,
        known: &BTreeSet<String>,
    ) -> Option<String> {
        let next = self.waiting.iter().take(self.free(running));
        let mut names = next.filter(|call| call.consent.is_some()).map(|call| &call.request.name);
        names.find(|name| !known.contains(*name)).cloned()
    }

    /// Takes out the waiting calls of a function that begin by a lasting consent which `is_over`.
    pub(super) fn leave_open(&mut self, name: &str, is_over: impl Fn(u64) -> bool) {
        let stays = |call: &WaitingCall<'_>| call.request.name != name;
        self.waiting.retain(|call| stays(call) || !call.consent.is_some_and(&is_over));
    }

    /// The number of waiting calls that have a place next beside `running` calls.
    fn free(&self, running: usize) -> usize {
        let free = PARALLEL_CALLS_MAX.saturating_sub(running + self.placed.len());
        free.min(self.waiting.len())
    }

    /// The calls that wait for a place and are not to have one any more.
    pub(super) fn give_up(&mut self) -> Vec<ToolRequest> {
        self.waiting.drain(..).map(|call| call.request).collect()
    }

    /// Adds a call, which begins by this lasting consent if by any, and to `events` what is
    /// recorded of it: `begins`, if it has a place.
    pub(super) fn add(
        &mut self,
        events: &mut Vec<Event>,
        (request, tool): (ToolRequest, &'a AgentTool),
        begins: Event,
        consent: Option<u64>,
    ) {
        if self.placed.len() < PARALLEL_CALLS_MAX {
            events.push(begins);
            self.placed.push((request, tool));
        } else {
            self.waiting.push_back(WaitingCall { request, tool, begins, consent });
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
