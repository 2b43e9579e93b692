//! From events to lines for people.

use std::collections::BTreeMap;
use std::time::Duration;

use taskrun_journal::event::{Event, Recorded};
use taskrun_journal::message::{LogLevel, Usage};
use taskrun_journal::pause::PauseEnd;
use taskrun_journal::status::Status;
use taskrun_journal::tool::{ToolOutcome, ToolOutput};

use crate::output::escape::{escaped_line, excerpt};
use crate::output::human;
use crate::output::paint::{BAD, DIM, GOOD, NOTE, with};
use crate::paths::shown_in;

/// Characters of a tool call's arguments that are shown.
const ARGUMENTS_CHARS_MAX: usize = 60;
/// Characters of an error that are shown.
const ERROR_CHARS_MAX: usize = 200;

/// Something to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// Text of the agent, as it comes: may be part of a line, or several.
    Text(String),
    /// The text so far is a whole message.
    TextEnd,
    /// A line about the run; safe for a terminal.
    Note(String),
}

/// The progress of a run in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Where the run stands.
    pub status: Option<Status>,
    /// Plan steps that decided.
    pub turns: u32,
    /// Tool calls that ended.
    pub tool_calls: u64,
    /// Tokens consumed so far.
    pub tokens: u64,
    /// Tools being called, by call.
    pub calling: BTreeMap<String, String>,
}

/// Makes lines of events, which must come in order.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    progress: Progress,
    streamed: bool,
    level: LogLevel,
}

impl Lines {
    /// Shows log lines from `level`.
    #[must_use]
    pub(crate) fn new(level: LogLevel) -> Self {
        Self { progress: Progress::default(), streamed: false, level }
    }

    /// The numbers so far.
    #[must_use]
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The lines of an event; none for events that only matter to programs.
    pub(crate) fn of(&mut self, recorded: &Recorded) -> Vec<Line> {
        self.count(&recorded.event);
        let note = |text: String| vec![Line::Note(text)];
        match &recorded.event {
            Event::AssistantChunk { text } => {
                self.streamed = true;
                vec![Line::Text(text.clone())]
            }
            Event::AssistantMessage { message, .. } => {
                let streamed = std::mem::take(&mut self.streamed);
                let text = message.joined_text();
                match (streamed, text.is_empty()) {
                    (true, _) => vec![Line::TextEnd],
                    (false, true) => Vec::new(),
                    (false, false) => vec![Line::Text(text), Line::TextEnd],
                }
            }
            Event::PlannerNote { text, .. } => {
                note(with(DIM, &format!("· {}", excerpt(text, ERROR_CHARS_MAX))))
            }
            Event::ToolResult { output, duration_ms, .. } => note(call_line(output, *duration_ms)),
            Event::PolicyDecision { rule, decided: Some(decided), .. } => {
                let what = excerpt(&decided.to_string(), ERROR_CHARS_MAX);
                note(with(DIM, &format!("· {what} ({})", shown_in(&escaped_line(rule)))))
            }
            Event::PolicyDecision { capability, subject, rule, decided: None } => {
                note(refusal(capability, subject, rule))
            }
            Event::Log { level, source, message, .. } if *level >= self.level => {
                let line = format!(
                    "{} {}: {}",
                    level.as_str(),
                    escaped_line(source),
                    escaped_line(message)
                );
                note(with(DIM, &line))
            }
            Event::FinalizeRequested { message, .. } => {
                note(with(NOTE, &format!("! {}", escaped_line(message))))
            }
            Event::Blocked { on, .. } => note(with(NOTE, &format!("! waits for {on}"))),
            Event::Asked { item } => {
                let prompt = excerpt(&item.what.prompt(), ERROR_CHARS_MAX);
                let text =
                    format!("? {} ({}): {prompt}", escaped_line(item.id()), item.what.word());
                note(with(NOTE, &text))
            }
            Event::Answered { item, by, .. } => {
                let text = format!("· {} was answered by {}", escaped_line(item), escaped_line(by));
                note(with(DIM, &text))
            }
            Event::ToolAuthorization { name, approved, decided_by, .. } => {
                let word = if *approved { "approved" } else { "declined" };
                let (name, by) = (escaped_line(name), escaped_line(decided_by));
                note(with(DIM, &format!("· {name} {word} by {by}")))
            }
            Event::Lost { crashed, .. } => {
                let how = if *crashed { "its host died" } else { "its host gave it back" };
                note(with(NOTE, &format!("! {how}; it is continued by the next one")))
            }
            Event::Resumed { .. } => note(with(DIM, "· goes on")),
            Event::StepFailed { attempt, error, retry_after_ms, .. } => {
                let pause = human::duration(Duration::from_millis(*retry_after_ms));
                let error = excerpt(error, ERROR_CHARS_MAX);
                note(with(NOTE, &format!("! attempt {attempt} failed, again in {pause}: {error}")))
            }
            Event::TurnSkipped { turn, error, .. } => {
                let error = excerpt(error, ERROR_CHARS_MAX);
                note(with(NOTE, &format!("! turn {turn} is skipped: {error}")))
            }
            Event::ToolCallRepeated { attempt, .. } => note(with(
                NOTE,
                &format!("! a call that was cut off begins again, attempt {attempt}"),
            )),
            Event::ReplayDiverged { turn, .. } => {
                note(with(NOTE, &format!("! turn {turn} did something else than before the crash")))
            }
            Event::PauseRequested { by, reason, .. } => {
                let why = reason
                    .as_deref()
                    .map_or_else(String::new, |r| format!(": {}", escaped_line(r)));
                note(with(NOTE, &format!("! paused by {}{why}", escaped_line(by))))
            }
            Event::PauseEnded { why, .. } => match why {
                PauseEnd::Resumed => note(with(DIM, "· the pause is over")),
                PauseEnd::DeadlineExceeded => note(with(DIM, "· the time of the pause is over")),
                PauseEnd::Canceled | PauseEnd::Ended => Vec::new(),
            },
            Event::Injected { text, by } => {
                let text = excerpt(text, ERROR_CHARS_MAX);
                note(with(DIM, &format!("· told by {}: {text}", escaped_line(by))))
            }
            Event::ChildRunLinked { run_id, agent_name, .. } => {
                let agent = escaped_line(agent_name);
                note(with(DIM, &format!("· {agent} works on it as run {run_id}")))
            }
            Event::CancelRequested { reason, .. } => {
                let why = reason
                    .as_deref()
                    .map_or_else(String::new, |r| format!(": {}", escaped_line(r)));
                note(with(NOTE, &format!("! canceling{why}")))
            }
            Event::Queued { .. }
            | Event::Started { .. }
            | Event::ToolCallArgsDelta { .. }
            | Event::ThinkingBlock { .. }
            | Event::PromptRendered { .. }
            | Event::HistoryCarried { .. }
            | Event::Usage { .. }
            | Event::ToolCallScheduled { .. }
            | Event::ToolCallParked { .. }
            | Event::ToolCallUpdated { .. }
            | Event::FinalToolResult { .. }
            | Event::ModelAnswered { .. }
            | Event::ControllerAnswered { .. }
            | Event::MemoryAnswered { .. }
            | Event::MemoryAppended { .. }
            | Event::MetricsRecorded { .. }
            | Event::ModelWait { .. }
            | Event::ClockRead { .. }
            | Event::StepRestarted { .. }
            | Event::Log { .. }
            | Event::PlanDecided { .. }
            | Event::InboxShown { .. }
            | Event::Finalizing { .. }
            | Event::FinalizerStarted
            | Event::Finished { .. } => Vec::new(),
        }
    }

    fn count(&mut self, event: &Event) {
        let progress = &mut self.progress;
        let tokens = |usage: &Usage| usage.total_tokens;
        match event {
            Event::Queued { .. } => progress.status = Some(Status::Queued),
            Event::Started { .. } => progress.status = Some(Status::Running),
            // What was being canceled or finalized when its host died, still is.
            Event::Resumed { .. } if progress.status == Some(Status::Blocked) => {
                progress.status = Some(Status::Running);
            }
            Event::Blocked { .. } => progress.status = Some(Status::Blocked),
            Event::CancelRequested { .. } => progress.status = Some(Status::Canceling),
            Event::Finalizing { .. } => progress.status = Some(Status::Finalizing),
            Event::PlanDecided { turn, .. } | Event::TurnSkipped { turn, .. } => {
                progress.turns = *turn;
            }
            Event::ToolCallScheduled { name, tool_call_id, .. } => {
                progress.calling.insert(tool_call_id.clone(), name.clone());
            }
            Event::ToolResult { output, .. } => {
                progress.calling.remove(&output.tool_call_id);
                progress.tool_calls += 1;
            }
            Event::AssistantMessage { usage, .. } => {
                let used = usage.as_ref().map_or(0, tokens);
                progress.tokens = progress.tokens.saturating_add(used);
            }
            Event::Usage { usage } => {
                progress.tokens = progress.tokens.saturating_add(tokens(usage));
            }
            Event::ToolCallParked { tool_call_id, .. } => {
                progress.calling.remove(tool_call_id);
            }
            Event::Resumed { .. }
            | Event::Lost { .. }
            | Event::AssistantChunk { .. }
            | Event::ToolCallArgsDelta { .. }
            | Event::ThinkingBlock { .. }
            | Event::PlannerNote { .. }
            | Event::PromptRendered { .. }
            | Event::HistoryCarried { .. }
            | Event::ToolCallRepeated { .. }
            | Event::ChildRunLinked { .. }
            | Event::ToolCallUpdated { .. }
            | Event::FinalToolResult { .. }
            | Event::ModelAnswered { .. }
            | Event::ControllerAnswered { .. }
            | Event::MemoryAnswered { .. }
            | Event::MemoryAppended { .. }
            | Event::MetricsRecorded { .. }
            | Event::ModelWait { .. }
            | Event::ClockRead { .. }
            | Event::StepRestarted { .. }
            | Event::ReplayDiverged { .. }
            | Event::StepFailed { .. }
            | Event::Asked { .. }
            | Event::Answered { .. }
            | Event::PolicyDecision { .. }
            | Event::ToolAuthorization { .. }
            | Event::Log { .. }
            | Event::FinalizeRequested { .. }
            | Event::PauseRequested { .. }
            | Event::PauseEnded { .. }
            | Event::Injected { .. }
            | Event::InboxShown { .. }
            | Event::FinalizerStarted
            | Event::Finished { .. } => {}
        }
    }
}

impl Progress {
    /// In one line: `running, 2 turns, 5 tool calls, 1200 tokens, workspace/read`.
    #[must_use]
    pub(crate) fn text(&self) -> String {
        let mut parts = vec![match self.status {
            Some(status) => status.to_string(),
            None => "starting".to_owned(),
        }];
        if self.turns > 0 {
            parts.push(human::count(u64::from(self.turns), "turn"));
        }
        if self.tool_calls > 0 {
            parts.push(human::count(self.tool_calls, "tool call"));
        }
        if self.tokens > 0 {
            parts.push(human::count(self.tokens, "token"));
        }
        if let Some(name) = self.calling.values().next() {
            parts.push(excerpt(name, ARGUMENTS_CHARS_MAX));
        }
        parts.join(", ")
    }
}

fn call_line(output: &ToolOutput, duration_ms: u64) -> String {
    let arguments = match output.payload.as_str() {
        "{}" | "" => String::new(),
        payload => format!(" {}", excerpt(payload, ARGUMENTS_CHARS_MAX)),
    };
    let name = escaped_line(&output.name);
    let took = human::duration(Duration::from_millis(duration_ms));
    match &output.outcome {
        ToolOutcome::Value(_) => {
            format!("{} {name}{arguments} {}", with(GOOD, "✓"), with(DIM, &took))
        }
        ToolOutcome::Failure(failure) => {
            let error = excerpt(&failure.error.message, ERROR_CHARS_MAX);
            format!("{} {name}{arguments} {}", with(BAD, "✗"), with(BAD, &error))
        }
    }
}

/// The line about a refusal: what, and the rule that decided.
#[must_use]
pub(crate) fn refusal(capability: &str, subject: &str, rule: &str) -> String {
    let subject = excerpt(subject, ARGUMENTS_CHARS_MAX);
    let rule = shown_in(&escaped_line(rule));
    format!("{} {} {subject}: {rule}", with(BAD, "✗"), escaped_line(capability))
}

#[cfg(test)]
mod tests {
    use taskrun_journal::message::{Message, Role};
    use taskrun_journal::time::Timestamp;

    use super::*;

    fn lines(events: Vec<Event>) -> Vec<Line> {
        let mut lines = Lines::new(LogLevel::Warn);
        let recorded =
            |(index, event)| Recorded { seq: index as u64 + 1, id: 0, at: Timestamp(0), event };
        events.into_iter().enumerate().map(recorded).flat_map(|event| lines.of(&event)).collect()
    }

    fn message(text: &str) -> Event {
        let message = Message::text(Role::Assistant, text);
        Event::AssistantMessage { message, usage: None, model: None }
    }

    #[test]
    fn a_message_that_was_streamed_is_not_shown_twice() {
        let chunk = |text: &str| Event::AssistantChunk { text: text.to_owned() };
        let shown = lines(vec![chunk("a"), chunk("b"), message("ab"), message("c")]);
        let text = |text: &str| Line::Text(text.to_owned());
        assert_eq!(shown, [text("a"), text("b"), Line::TextEnd, text("c"), Line::TextEnd]);
    }

    #[test]
    fn guests_cannot_write_to_the_terminal_through_a_note() {
        let text = "x\x1b]0;owned\x07".to_owned();
        let shown = lines(vec![Event::PlannerNote { text, labels: BTreeMap::default() }]);
        let Some(Line::Note(note)) = shown.first() else { panic!("no note: {shown:?}") };
        assert!(!note.contains("\x1b]") && !note.contains('\x07'), "{note:?}");
    }
}
