//! From events to lines for people.

use std::time::Duration;

use taskrun_journal::event::{
    CallEvent, DialogEvent, EventRecord, EventView, LifecycleEvent, StepEvent, TapedEvent,
};
use taskrun_journal::message::LogLevel;
use taskrun_journal::pause::PauseEnd;
use taskrun_journal::tool::{ToolOutcome, ToolOutput};

use super::progress::{Progress, Rounds};
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

/// Makes lines of events, which must come in order.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    progress: Progress,
    /// Text of the agent that was shown in parts, since its last message or since it began anew.
    shown: String,
    level: LogLevel,
}

impl Lines {
    /// Shows log lines from `level`.
    #[must_use]
    pub(crate) fn new(level: LogLevel) -> Self {
        Self { progress: Progress::default(), shown: String::new(), level }
    }

    /// The same for a run that goes on by itself, for so many rounds at most.
    #[must_use]
    pub(crate) fn in_rounds(mut self, most: Option<u32>) -> Self {
        self.progress.rounds = Some(Rounds { number: 1, most });
        self
    }

    /// Notes what is left of the scarcest budget.
    pub(crate) fn note_left(&mut self, left: Option<String>) {
        self.progress.left = left;
    }

    /// The numbers so far.
    #[must_use]
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The lines of an event; none for events that only matter to programs.
    pub(crate) fn of(&mut self, recorded: &EventRecord) -> Vec<Line> {
        self.progress.count(&recorded.event);
        match recorded.event.view() {
            EventView::Lifecycle(event) => lifecycle_lines(event),
            EventView::Dialog(event) => self.dialog_lines(event),
            EventView::Step(event) => self.step_lines(event),
            EventView::Call(event) => call_lines(event),
            EventView::Taped(event) => self.taped_lines(event),
            EventView::Account(_) => Vec::new(),
        }
    }

    fn dialog_lines(&mut self, event: DialogEvent<'_>) -> Vec<Line> {
        match event {
            DialogEvent::AssistantMessage { message, .. } => {
                message_lines(&std::mem::take(&mut self.shown), message.joined_text())
            }
            DialogEvent::Asked { item } => {
                let prompt = excerpt(&item.what.prompt(), ERROR_CHARS_MAX);
                let text =
                    format!("? {} ({}): {prompt}", escaped_line(item.id()), item.what.word());
                note(with(NOTE, &text))
            }
            DialogEvent::Answered { item, by, .. } => {
                let text = format!("· {} was answered by {}", escaped_line(item), escaped_line(by));
                note(with(DIM, &text))
            }
            DialogEvent::Injected { text, by } => {
                let text = excerpt(text, ERROR_CHARS_MAX);
                note(with(DIM, &format!("· told by {}: {text}", escaped_line(by))))
            }
            DialogEvent::Reported { runs, .. } => {
                let text =
                    format!("· told of {}", human::count(runs.len() as u64, "background run"));
                note(with(DIM, &text))
            }
            DialogEvent::HistoryCarried { .. } | DialogEvent::InboxShown { .. } => Vec::new(),
        }
    }

    fn taped_lines(&mut self, event: TapedEvent<'_>) -> Vec<Line> {
        match event {
            TapedEvent::AssistantChunk { text } => {
                self.shown.push_str(text);
                vec![Line::Text(text.to_owned())]
            }
            TapedEvent::PlannerNote { text, .. } => {
                note(with(DIM, &format!("· {}", excerpt(text, ERROR_CHARS_MAX))))
            }
            TapedEvent::PolicyDecision { rule, decided: Some(decided), .. } => {
                let what = excerpt(&decided.to_string(), ERROR_CHARS_MAX);
                note(with(DIM, &format!("· {what} ({})", shown_in(&escaped_line(rule)))))
            }
            TapedEvent::PolicyDecision { capability, subject, rule, decided: None, told: _ } => {
                note(refusal(capability, subject, rule))
            }
            TapedEvent::Log { level, source, message, .. } if level >= self.level => {
                let line = format!(
                    "{} {}: {}",
                    level.as_str(),
                    escaped_line(source),
                    escaped_line(message)
                );
                note(with(DIM, &line))
            }
            TapedEvent::Log { .. }
            | TapedEvent::ToolCallArgsDelta { .. }
            | TapedEvent::ThinkingBlock { .. }
            | TapedEvent::PromptRendered { .. }
            | TapedEvent::HostAnswered { .. }
            | TapedEvent::OutsideAnswered { .. }
            | TapedEvent::ClockRead { .. } => Vec::new(),
            TapedEvent::StepRestarted { .. } => self.begin_anew(),
        }
    }

    fn step_lines(&mut self, event: StepEvent<'_>) -> Vec<Line> {
        match event {
            StepEvent::FinalizeRequested { message, .. } => {
                note(with(NOTE, &format!("! {}", escaped_line(message))))
            }
            StepEvent::StepFailed { attempt, error, retry_after_ms } => {
                let mut lines = self.begin_anew();
                let pause = human::duration(Duration::from_millis(retry_after_ms));
                let error = excerpt(error, ERROR_CHARS_MAX);
                let text = format!("! attempt {attempt} failed, again in {pause}: {error}");
                lines.extend(note(with(NOTE, &text)));
                lines
            }
            StepEvent::PushedBack { model, until, reason, said, .. } => {
                let reason = said.map_or_else(|| reason.to_owned(), |s| format!("{reason}: {s}"));
                let (model, reason) = (escaped_line(model), excerpt(&reason, ERROR_CHARS_MAX));
                note(with(NOTE, &format!("! model {model} is not asked before {until}: {reason}")))
            }
            StepEvent::TurnSkipped { turn, error, .. } => {
                let mut lines = self.begin_anew();
                let error = excerpt(error, ERROR_CHARS_MAX);
                lines.extend(note(with(NOTE, &format!("! turn {turn} is skipped: {error}"))));
                lines
            }
            StepEvent::RoundEnded { round, .. } => {
                note(with(DIM, &format!("· round {round} ended")))
            }
            StepEvent::ReplayDiverged { turn } => {
                note(with(NOTE, &format!("! turn {turn} did something else than before the crash")))
            }
            StepEvent::Usage { .. } | StepEvent::PlanDecided { .. } => Vec::new(),
        }
    }

    /// Ends the part of an answer that was shown: the answer is said again, perhaps in other words.
    fn begin_anew(&mut self) -> Vec<Line> {
        if std::mem::take(&mut self.shown).is_empty() { Vec::new() } else { vec![Line::TextEnd] }
    }
}

fn note(text: String) -> Vec<Line> {
    vec![Line::Note(text)]
}

fn lifecycle_lines(event: LifecycleEvent<'_>) -> Vec<Line> {
    let because = |reason: Option<&str>| {
        reason.map_or_else(String::new, |reason| format!(": {}", escaped_line(reason)))
    };
    match event {
        LifecycleEvent::Blocked { on, .. } => note(with(NOTE, &format!("! waits for {on}"))),
        LifecycleEvent::Lost { crashed, .. } => {
            let how = if crashed { "its host died" } else { "its host gave it back" };
            note(with(NOTE, &format!("! {how}; it is continued by the next one")))
        }
        LifecycleEvent::Resumed { .. } => note(with(DIM, "· goes on")),
        LifecycleEvent::PauseRequested { by, reason, .. } => {
            let why = because(reason);
            note(with(NOTE, &format!("! paused by {}{why}", escaped_line(by))))
        }
        LifecycleEvent::PauseEnded { why, .. } => match why {
            PauseEnd::Resumed => note(with(DIM, "· the pause is over")),
            PauseEnd::DeadlineExceeded => note(with(DIM, "· the time of the pause is over")),
            PauseEnd::Canceled | PauseEnd::Ended => Vec::new(),
        },
        LifecycleEvent::Adopted { .. } => note(with(DIM, "· goes on as its agent is now")),
        LifecycleEvent::CancelRequested { reason, .. } => {
            note(with(NOTE, &format!("! canceling{}", because(reason))))
        }
        LifecycleEvent::Queued { .. }
        | LifecycleEvent::Started { .. }
        | LifecycleEvent::Finalizing { .. }
        | LifecycleEvent::FinalizerStarted
        | LifecycleEvent::Finished { .. } => Vec::new(),
    }
}

/// The lines of a whole message of which `shown` was seen in parts: what it says beyond that, or all
/// of it where it says something else.
fn message_lines(shown: &str, text: String) -> Vec<Line> {
    match text.strip_prefix(shown) {
        Some("") if shown.is_empty() => Vec::new(),
        _ if text.is_empty() => vec![Line::TextEnd],
        Some("") => vec![Line::TextEnd],
        Some(rest) => vec![Line::Text(rest.to_owned()), Line::TextEnd],
        None => vec![Line::TextEnd, Line::Text(text), Line::TextEnd],
    }
}

fn call_lines(event: CallEvent<'_>) -> Vec<Line> {
    match event {
        CallEvent::ToolResult { output, duration_ms, .. } => note(call_line(output, duration_ms)),
        CallEvent::ToolAuthorization { name, approved, decided_by, consent, .. } => {
            let word = if approved { "approved" } else { "declined" };
            let (name, by) = (escaped_line(name), escaped_line(decided_by));
            let number = consent.map_or_else(String::new, |number| format!(" (consent {number})"));
            note(with(DIM, &format!("· {name} {word} by {by}{number}")))
        }
        CallEvent::ToolCallRepeated { attempt, .. } => {
            note(with(NOTE, &format!("! a call that was cut off begins again, attempt {attempt}")))
        }
        CallEvent::ChildRunLinked { run_id, agent_name } => {
            let agent = escaped_line(agent_name);
            note(with(DIM, &format!("· {agent} works on it as run {run_id}")))
        }
        CallEvent::ToolCallScheduled { .. }
        | CallEvent::Marked { .. }
        | CallEvent::ToolCallParked { .. }
        | CallEvent::ToolCallUpdated { .. } => Vec::new(),
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
    use std::collections::BTreeMap;

    use taskrun_journal::event::Event;
    use taskrun_journal::message::{Message, Role};
    use taskrun_journal::time::Timestamp;

    use super::*;

    fn lines(events: Vec<Event>) -> Vec<Line> {
        let mut lines = Lines::new(LogLevel::Warn);
        let recorded =
            |(index, event)| EventRecord { seq: index as u64 + 1, id: 0, at: Timestamp(0), event };
        events.into_iter().enumerate().map(recorded).flat_map(|event| lines.of(&event)).collect()
    }

    fn message(text: &str) -> Event {
        let message = Message::text(Role::Assistant, text);
        Event::AssistantMessage { message, usage: None, model: None, streamed: false }
    }

    #[test]
    fn a_message_that_was_streamed_is_not_shown_twice() {
        let chunk = |text: &str| Event::AssistantChunk { text: text.to_owned() };
        let shown = lines(vec![chunk("a"), chunk("b"), message("ab"), message("c")]);
        let text = |text: &str| Line::Text(text.to_owned());
        assert_eq!(shown, [text("a"), text("b"), Line::TextEnd, text("c"), Line::TextEnd]);
    }

    #[test]
    fn an_answer_that_differs_from_its_parts_is_shown_and_one_that_goes_on_is_shown_from_there() {
        let chunk = |text: &str| Event::AssistantChunk { text: text.to_owned() };
        let text = |text: &str| Line::Text(text.to_owned());
        let end = Line::TextEnd;
        let other = lines(vec![chunk("Checking..."), message("42")]);
        assert_eq!(other, [text("Checking..."), end.clone(), text("42"), end.clone()]);
        let longer = lines(vec![chunk("It is"), message("It is 42.")]);
        assert_eq!(longer, [text("It is"), text(" 42."), end.clone()]);
        let nothing = lines(vec![chunk("Checking..."), message("")]);
        assert_eq!(nothing, [text("Checking..."), end]);
    }

    #[test]
    fn an_answer_that_begins_anew_is_shown_whole() {
        let chunk = |text: &str| Event::AssistantChunk { text: text.to_owned() };
        let failed = Event::StepFailed {
            turn: 1,
            attempt: 1,
            error: "cut off".to_owned(),
            retry_after_ms: 1_000,
        };
        let kept = taskrun_journal::event::StepPrefix::default();
        for again in [failed, Event::StepRestarted { turn: 1, kept }] {
            let events = vec![chunk("It i"), again, chunk("It is"), message("It is 42.")];
            let texts = lines(events).into_iter().filter(|line| !matches!(line, Line::Note(_)));
            let said: Vec<Line> = texts.collect();
            let text = |text: &str| Line::Text(text.to_owned());
            let answer = [text("It is"), text(" 42."), Line::TextEnd];
            assert_eq!(said, [[text("It i"), Line::TextEnd].as_slice(), &answer].concat());
        }
    }

    #[test]
    fn guests_cannot_write_to_the_terminal_through_a_note() {
        let text = "x\x1b]0;owned\x07".to_owned();
        let shown = lines(vec![Event::PlannerNote { text, labels: BTreeMap::default() }]);
        let Some(Line::Note(note)) = shown.first() else { panic!("no note: {shown:?}") };
        assert!(!note.contains("\x1b]") && !note.contains('\x07'), "{note:?}");
    }
}
