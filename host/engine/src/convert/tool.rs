//! Tool calls and what they give.

use taskrun::ports::tool as host;
use taskrun_journal::tool::ToolFailure;

use super::labels_to_guest;
use crate::bindings::tool::exports::taskrun::plugin::tools as guest;

impl From<&host::ToolCall> for guest::ToolCall {
    fn from(call: &host::ToolCall) -> Self {
        Self {
            name: call.name.clone(),
            payload: call.payload.clone(),
            tool_call_id: call.tool_call_id.clone(),
            parent_tool_call_id: call.parent_tool_call_id.clone(),
            agent_id: call.agent_id.clone(),
            run_id: call.run_id.clone(),
            session_id: call.session_id.clone(),
            turn_id: call.turn.to_string(),
            labels: labels_to_guest(&call.labels),
        }
    }
}

impl From<guest::ToolResult> for host::ToolValue {
    fn from(result: guest::ToolResult) -> Self {
        Self {
            value: result.value,
            server_data: result.server_data,
            bounds: result.bounds.map(Into::into),
            telemetry: result.telemetry.map(Into::into),
        }
    }
}

impl From<guest::CallFailure> for ToolFailure {
    fn from(failure: guest::CallFailure) -> Self {
        let retry_hint = failure.retry_hint.map(|hint| Box::new(hint.into()));
        Self { error: failure.error.into(), retry_hint }
    }
}
