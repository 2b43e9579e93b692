//! The input of policies, and their decisions.

use taskrun::ports::policy_engine as host;
use taskrun_journal::ruling::Phase;
use taskrun_policy::PolicyDecision;

use super::{labels_from_guest, labels_to_guest};
use crate::bindings::policy::exports::taskrun::plugin::policy as guest;

impl From<&host::PolicyInput> for guest::PolicyInput {
    fn from(input: &host::PolicyInput) -> Self {
        let requested = input.requested.iter().map(|call| guest::RequestedCall {
            name: call.name.clone(),
            payload: call.payload.clone(),
            tool_call_id: call.tool_call_id.clone().unwrap_or_default(),
        });
        Self {
            phase: match input.phase {
                Phase::Plan => guest::Phase::Plan,
                Phase::Calls => guest::Phase::Calls,
            },
            run: (&input.run).into(),
            tools: input.tools.iter().map(Into::into).collect(),
            retry_hints: input.hints.iter().cloned().map(Into::into).collect(),
            tool_calls_left: input.remaining.tool_calls,
            turns_left: input.remaining.turns,
            requested: requested.collect(),
            labels: labels_to_guest(&input.labels),
        }
    }
}

impl From<guest::PolicyDecision> for PolicyDecision {
    fn from(decision: guest::PolicyDecision) -> Self {
        Self {
            allowed_tools: decision.allowed_tools,
            tool_calls: decision.tool_calls,
            disable_tools: decision.disable_tools,
            labels: labels_from_guest(decision.labels),
            metadata: labels_from_guest(decision.metadata),
        }
    }
}
