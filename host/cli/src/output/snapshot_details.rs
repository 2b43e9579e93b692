//! The work of a run so far: its phase, its tool calls and the runs that it started.

use std::time::Duration;

use taskrun::controller::{CallSummary, ChildSummary, RunSnapshot};

use super::escape::escaped_line;
use super::{human, pairs};

/// The lines of it, one for each call and each run.
#[must_use]
pub(crate) fn snapshot_details(snapshot: &RunSnapshot) -> String {
    let mut lines = vec![("phase", snapshot.phase.as_str().to_owned())];
    if !snapshot.calls.is_empty() {
        lines.push(("calls", snapshot.calls.iter().map(call).collect::<Vec<_>>().join("\n")));
    }
    if !snapshot.children.is_empty() {
        let children: Vec<_> = snapshot.children.iter().map(child).collect();
        lines.push(("children", children.join("\n")));
    }
    pairs(&lines)
}

fn call(call: &CallSummary) -> String {
    let CallSummary { tool_call_id, tool_name, status, .. } = call;
    let mut text = format!("{tool_call_id} {tool_name}: {}", status.as_str());
    if let Some(ms) = call.duration_ms {
        text.push_str(&format!(" after {}", human::duration(Duration::from_millis(ms))));
    }
    if let Some(run) = &call.child_run_id {
        text.push_str(&format!(", run {run}"));
    }
    if let Some(number) = call.consent {
        text.push_str(&format!(", consent {number}"));
    }
    if let Some(error) = &call.error {
        let code = call.error_code.as_ref().map(|code| format!("{code}: ")).unwrap_or_default();
        text.push_str(&format!(", {code}{error}"));
    }
    escaped_line(&text).into_owned()
}

fn child(child: &ChildSummary) -> String {
    let mut text = format!("{} {}: {}", child.id, child.agent_name, child.status);
    if let Some(id) = &child.parent_tool_call_id {
        text.push_str(&format!(", for {id}"));
    }
    escaped_line(&text).into_owned()
}
