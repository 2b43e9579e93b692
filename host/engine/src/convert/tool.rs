//! Tool calls and what they give.

use taskrun::ports::tool as host;

use super::labels_to_guest;
use crate::bindings::tool::exports::taskrun::plugin::tools as guest;

impl From<&host::ToolCall> for guest::ToolCall {
    fn from(call: &host::ToolCall) -> Self {
        Self {
            name: call.name.clone(),
            payload: call.payload.clone(),
            tool_call_id: call.tool_call_id.clone(),
            parent_tool_call_id: call.parent_tool_call_id.clone(),
            agent_name: call.agent_name.clone(),
            run_id: call.run_id.clone(),
            session_id: call.session_id.clone(),
            turn: call.turn,
            labels: labels_to_guest(&call.labels),
        }
    }
}

impl From<guest::ToolResult> for host::ToolResult {
    fn from(result: guest::ToolResult) -> Self {
        Self {
            value: result.value,
            server_data: result.server_data,
            bounds: result.bounds.map(Into::into),
            telemetry: result.telemetry.map(Into::into),
            media: result.media,
        }
    }
}
