//! One event in one line.

use std::time::Duration;

use taskrun::event::{Event, Recorded};
use taskrun::ports::tool::ToolOutcome;
use taskrun::time::Timestamp;

use crate::output::escape::excerpt;
use crate::output::human;
use crate::output::paint::{DIM, with};
use crate::place::shown_in;

/// Characters of an event's detail that are shown.
const DETAIL_CHARS_MAX: usize = 160;

/// The event: position, time since the run was accepted, kind, detail.
pub(super) fn event_line(recorded: &Recorded, accepted: Timestamp) -> String {
    let after = recorded.at.since(accepted);
    let offset = format!("+{}.{:03}s", after.as_secs(), after.subsec_millis());
    let detail = excerpt(&shown_in(&detail(&recorded.event)), DETAIL_CHARS_MAX);
    let position = with(DIM, &format!("{:>5} {offset:>10}", recorded.seq));
    let line = format!("{position}  {:<20}  {detail}", recorded.event.kind());
    line.trim_end().to_owned()
}

fn detail(event: &Event) -> String {
    match event {
        Event::Queued { spec } => format!("{}: {}", spec.agent_name, spec.task),
        Event::Started { host, epoch, .. } => format!("by {host}, attempt {epoch}"),
        Event::AssistantChunk { text } => format!("{text:?}"),
        Event::AssistantMessage { message, .. } => {
            let calls: Vec<&str> = message.tool_uses().map(|call| call.name.as_str()).collect();
            let text = message.joined_text();
            if calls.is_empty() { text } else { format!("{text} calls {}", calls.join(", ")) }
        }
        Event::ToolCallArgsDelta { name, delta, .. } => format!("{name} {delta:?}"),
        Event::ThinkingBlock { block } => block.text.clone(),
        Event::PlannerNote { text, .. } => text.clone(),
        Event::Usage { usage } => human::count(usage.total_tokens, "token"),
        Event::ToolCallScheduled { name, payload, .. } => format!("{name} {payload}"),
        Event::ToolResult { output, duration_ms } => {
            let took = human::duration(Duration::from_millis(*duration_ms));
            match &output.outcome {
                ToolOutcome::Value(value) => format!("{} in {took}: {value}", output.name),
                ToolOutcome::Failure(failure) => {
                    format!("{} failed: {}", output.name, failure.error.message)
                }
            }
        }
        Event::PolicyDecision { capability, subject, rule } => {
            format!("{capability} {subject}: {rule}")
        }
        Event::Log { level, source, message, .. } => {
            format!("{} {source}: {message}", level.as_str())
        }
        Event::PlanDecided { turn, decision, .. } => format!("turn {turn}: {decision:?}"),
        Event::FinalizeRequested { message, .. } => message.clone(),
        Event::Blocked { on } => format!("on {on}"),
        Event::Unblocked | Event::Finished { .. } => String::new(),
        Event::CancelRequested { by, reason } => match reason {
            Some(reason) => format!("{by}: {reason}"),
            None => by.to_string(),
        },
        Event::Finalizing { ending } => {
            let error = ending.error.as_deref().unwrap_or_default();
            format!("{} {error}", ending.stop_reason)
        }
    }
}
