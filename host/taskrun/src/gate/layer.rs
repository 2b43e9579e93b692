//! The layers of the gate that look at single calls, and their refusals.

use std::collections::BTreeMap;

use taskrun_journal::event::{Event, Refusal};
use taskrun_journal::message::{AVAILABLE_TOOLS, RetryHint, RetryReason, ToolError};
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::ruling::ToolRuling;
use taskrun_journal::tool::ToolFailure;

use crate::agents::{AgentTool, AgentTools};
use crate::ports::hook::Veto;

/// Most functions that a refusal names where another one was called; an agent may have thousands.
const NAMED_MAX: usize = 32;

/// Calls of a turn whose arguments do not fit, by their ids.
pub(crate) type ArgumentFailures = BTreeMap<String, ToolFailure>;

/// A layer of the gate behind the first one.
pub(crate) enum Layer {
    /// The decisions of policy engines for the plan step, and for the calls it decided on.
    Engines(Vec<ToolRuling>),
    /// Vetoes of the host's hooks, by the ids of calls.
    Hooks(BTreeMap<String, Veto>),
    /// The calls that the turn, and the run, may still make.
    Counts {
        /// Of the turn.
        turn: u32,
        /// Of the run.
        run: u32,
    },
    /// Calls whose arguments do not fit.
    Arguments(ArgumentFailures),
}

/// The refusal of a call.
#[derive(Debug)]
pub(crate) struct CallRefusal {
    /// The decision, where it is recorded apart from the call's result.
    pub(crate) decision: Option<Event>,
    pub(crate) refusal: Refusal,
    /// The call's result.
    pub(crate) failure: ToolFailure,
}

impl Layer {
    /// Passes a call on to the next layer, or refuses it. No layer can let pass what another one
    /// refuses.
    pub(super) fn pass(&self, request: &ToolRequest) -> Result<(), Box<CallRefusal>> {
        let name = &request.name;
        match self {
            Self::Engines(decided) => {
                if decided.iter().any(|one| one.disable_tools) {
                    return Err(denied("denied: policy: tool execution is disabled by policy"));
                }
                if !decided.iter().all(|one| one.leaves(name)) {
                    let text = format!("denied: policy: {name} may not be called in this turn");
                    return Err(denied(&text));
                }
                Ok(())
            }
            Self::Hooks(vetoes) => match vetoes.get(call_id(request)) {
                Some(veto) => Err(vetoed(request, veto)),
                None => Ok(()),
            },
            Self::Counts { turn: 0, .. } => Err(no_call_left("this turn")),
            Self::Counts { run: 0, .. } => Err(no_call_left("this run")),
            Self::Counts { .. } => Ok(()),
            Self::Arguments(misfits) => match misfits.get(call_id(request)) {
                Some(failure) => Err(refused(Refusal::Arguments, failure.clone())),
                None => Ok(()),
            },
        }
    }

    /// True if it lets a function be called, whatever else is to be said of a call.
    fn shows(&self, name: &str) -> bool {
        match self {
            Self::Engines(decided) => decided.iter().all(|one| one.leaves(name)),
            Self::Hooks(_) | Self::Counts { .. } | Self::Arguments(_) => true,
        }
    }

    /// Counts a call that passed all layers.
    pub(super) fn count(&mut self) {
        match self {
            Self::Counts { turn, run } => {
                (*turn, *run) = (turn.saturating_sub(1), run.saturating_sub(1));
            }
            Self::Engines(_) | Self::Hooks(_) | Self::Arguments(_) => {}
        }
    }
}

/// The first layer: the function that is called, among the tools of the agent as the runs above and
/// the request leave them. Where there is none of the name, those are named that the others show.
pub(super) fn tool<'a>(
    tools: &'a AgentTools,
    others: &[Layer],
    request: &ToolRequest,
) -> Result<&'a AgentTool, Box<CallRefusal>> {
    let tool = tools.get(&request.name);
    tool.ok_or_else(|| refused(Refusal::Unavailable, unavailable(tools, others, request)))
}

/// The id of a call, which each has when it is decided on.
pub(crate) fn call_id(request: &ToolRequest) -> &str {
    request.tool_call_id.as_deref().unwrap_or_default()
}

fn refused(refusal: Refusal, failure: ToolFailure) -> Box<CallRefusal> {
    Box::new(CallRefusal { decision: None, refusal, failure })
}

fn denied(text: &str) -> Box<CallRefusal> {
    let error = ToolError::coded("denied", text);
    refused(Refusal::Denied, ToolFailure { error, retry_hint: None })
}

fn no_call_left(of: &str) -> Box<CallRefusal> {
    let error = ToolError::coded("cap", format!("skipped: cap: no tool calls are left in {of}"));
    refused(Refusal::Cap, ToolFailure { error, retry_hint: None })
}

fn vetoed(request: &ToolRequest, veto: &Veto) -> Box<CallRefusal> {
    let decision = Event::PolicyDecision {
        capability: "tool".to_owned(),
        subject: request.name.clone(),
        rule: format!("hook {}", veto.hook),
        told: None,
        decided: None,
    };
    let mut refused = denied(&format!("{}: {veto}", request.name));
    refused.decision = Some(decision);
    refused
}

fn unavailable(tools: &AgentTools, others: &[Layer], request: &ToolRequest) -> ToolFailure {
    let mut hint = RetryHint::new(RetryReason::ToolUnavailable, &request.name);
    hint.prior_input = Some(request.payload.clone());
    let names = tools.specs().iter().map(|spec| spec.name.as_str());
    let is_own = |name: &str| tools.get(name).is_some_and(|tool| tool.is_own);
    let left = |name: &&str| is_own(name) || others.iter().all(|layer| layer.shows(name));
    let known: Vec<_> = names.filter(left).collect();
    let (some, more) = known.split_at(known.len().min(NAMED_MAX));
    hint.message = Some(match (some, more.len()) {
        ([], _) => "no tool is available".to_owned(),
        (some, 0) => format!("{AVAILABLE_TOOLS}{}", some.join(", ")),
        (some, more) => format!("{AVAILABLE_TOOLS}{}, and {more} more", some.join(", ")),
    });
    let text = format!("tool not available: {}", request.name);
    let error = ToolError::coded("tool-unavailable", text);
    ToolFailure { error, retry_hint: Some(Box::new(hint)) }
}
