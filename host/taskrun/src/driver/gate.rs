//! What the tool calls of a turn have to pass before they begin.

use taskrun_journal::event::Refusal;
use taskrun_journal::message::{RetryHint, RetryReason, ToolError};
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::ruling::ToolsDecided;
use taskrun_journal::tool::ToolFailure;

use super::arguments::{Misfits, id};
use crate::agents::{AgentTool, AgentTools};

/// Why a call does not begin.
pub(super) type Refused = (Refusal, ToolFailure);

/// The checks that calls pass in their order, and how many may still pass.
pub(super) struct Gate<'a> {
    tools: &'a AgentTools,
    /// What the policy engines decided.
    decided: Vec<ToolsDecided>,
    /// Calls whose arguments do not fit.
    misfits: Misfits,
    /// Calls that the run may still make.
    left: u32,
    /// Calls that the turn may still make.
    left_in_turn: u32,
}

impl<'a> Gate<'a> {
    /// For calls of a turn about which this was decided, of which so many are left to the run, and
    /// to the turn.
    pub(super) fn new(
        tools: &'a AgentTools,
        (left, turn_calls): (Option<u32>, Option<u32>),
        decided: Vec<ToolsDecided>,
        misfits: Misfits,
    ) -> Self {
        let caps = decided.iter().filter_map(|one| one.tool_calls);
        let left_in_turn = caps.chain(turn_calls).min().unwrap_or(u32::MAX);
        Self { tools, decided, misfits, left: left.unwrap_or(u32::MAX), left_in_turn }
    }

    /// For calls that have passed and did not begin: they are not counted in the turn again.
    pub(super) fn passed(tools: &'a AgentTools, left: Option<u32>, misfits: Misfits) -> Self {
        let (left, left_in_turn) = (left.unwrap_or(u32::MAX), u32::MAX);
        Self { tools, decided: Vec::new(), misfits, left, left_in_turn }
    }

    /// Whether a call may be made, if there are calls left: the tool is one of the agent's, the
    /// policy leaves it in this turn, and the arguments fit.
    pub(super) fn fits(&self, request: &ToolRequest) -> Result<&'a AgentTool, Refused> {
        let tool = self.tool(request)?;
        self.check_arguments(request)?;
        Ok(tool)
    }

    /// The same for a call that is made, and counted, if one is left.
    pub(super) fn admit(&mut self, request: &ToolRequest) -> Result<&'a AgentTool, Refused> {
        let tool = self.tool(request)?;
        if self.left_in_turn == 0 {
            return Err(no_call_left("this turn"));
        }
        if self.left == 0 {
            return Err(no_call_left("this run"));
        }
        self.check_arguments(request)?;
        self.left -= 1;
        self.left_in_turn -= 1;
        Ok(tool)
    }

    fn tool(&self, request: &ToolRequest) -> Result<&'a AgentTool, Refused> {
        let name = &request.name;
        let Some(tool) = self.tools.get(name) else {
            return Err((Refusal::Unavailable, unavailable(self.tools, request)));
        };
        if self.decided.iter().any(|one| one.disable_tools) {
            return Err(denied("denied: policy: tool execution is disabled by policy".to_owned()));
        }
        if !self.decided.iter().all(|one| one.leaves(name)) {
            return Err(denied(format!("denied: policy: {name} may not be called in this turn")));
        }
        Ok(tool)
    }

    fn check_arguments(&self, request: &ToolRequest) -> Result<(), Refused> {
        match self.misfits.get(&id(request)) {
            Some(failure) => Err((Refusal::Arguments, failure.clone())),
            None => Ok(()),
        }
    }
}

fn denied(text: String) -> Refused {
    let error = ToolError::coded("denied", text);
    (Refusal::Denied, ToolFailure { error, retry_hint: None })
}

fn no_call_left(of: &str) -> Refused {
    let error = ToolError::coded("cap", format!("skipped: cap: no tool calls are left in {of}"));
    (Refusal::Cap, ToolFailure { error, retry_hint: None })
}

fn unavailable(tools: &AgentTools, request: &ToolRequest) -> ToolFailure {
    let mut hint = RetryHint::new(RetryReason::ToolUnavailable, &request.name);
    hint.prior_input = Some(request.payload.clone());
    let known: Vec<_> = tools.specs().iter().map(|spec| spec.name.as_str()).collect();
    hint.message = Some(match known.as_slice() {
        [] => "this agent has no tools".to_owned(),
        some => format!("available are: {}", some.join(", ")),
    });
    let text = format!("tool not available: {}", request.name);
    let error = ToolError::coded("tool-unavailable", text);
    ToolFailure { error, retry_hint: Some(Box::new(hint)) }
}
