//! The comparison of a step with its record: what it said on the way, then what it decided.

use std::fmt::Write as _;

use taskrun_journal::event::{DecisionKind, Event, EventRecord};
use taskrun_journal::machine::decide::{self, Outcome};
use taskrun_journal::message::{Message, Part};
use taskrun_journal::question::AwaitItem;
use taskrun_journal::run::Run;
use taskrun_journal::stop::CallAbort;
use taskrun_journal::text::cut;

use super::step::{Attempted, StepEndRecord};
use super::{StepComparison, StepDifference};
use crate::driver::step::fault_of;
use crate::ports::planner::Decision;
use crate::scope::{END, HOST, json_of};

/// The reason for which a step is not compared that could not be executed to its end here.
const NO_MEMORY: &str = "this host has no memory for it";
/// Most bytes that are told of each side of a difference.
const SHOWN_BYTES_MAX: usize = 64 << 10;

/// A decision and what belongs to it, without times and tokens: those of answers that were given up
/// are estimates.
#[derive(Default, PartialEq)]
struct Decided<'e> {
    decision: Option<&'e Event>,
    result: Option<&'e Event>,
    message: Option<Event>,
    asked: Vec<&'e AwaitItem>,
}

/// Compares a step with what the record of the run, which is `run` before its end, says of it.
pub(super) fn compare(attempted: &Attempted, end: &StepEndRecord<'_>, run: &Run) -> StepComparison {
    if matches!(attempted.outcome, Err(Outcome::Failed(CallAbort::Unavailable))) {
        return StepComparison::Skipped(NO_MEMORY.to_owned());
    }
    if let Some(what) = &attempted.unrecorded {
        return StepComparison::Skipped(format!("it {what}"));
    }
    if let Some(Event::ReplayDiverged { recorded, found, .. }) = attempted.pending.first() {
        return differs(recorded, found, attempted);
    }
    let notes: Vec<&Event> = attempted.pending.iter().filter(|event| is_note(event)).collect();
    let left: Vec<&Event> = attempted.tape.emitted().collect();
    if notes != left {
        let shown = |events: &[&Event]| match events.first() {
            Some(event) => json_of(event),
            None => END.to_owned(),
        };
        let same = notes.iter().zip(&left).take_while(|(note, left)| note == left).count();
        return differs(&shown(&left[same..]), &shown(&notes[same..]), attempted);
    }
    if !attempted.tape.is_answered() {
        return differs(&attempted.tape.next_left(), END, attempted);
    }
    match end {
        StepEndRecord::Decided(rest) => compare_decisions(rest, attempted, run),
        StepEndRecord::Failed(error) => match attempted.fault() {
            Some(found) if found == **error => StepComparison::Same,
            Some(_) | None => {
                differs(&format!("fails: {error}"), &shown_of(attempted, run), attempted)
            }
        },
        StepEndRecord::Ended(ending) => {
            let outcome = attempted.outcome.as_ref().err();
            let found = outcome.map(|outcome| decide::ending(run, outcome.clone()));
            // A run that gave up after attempts, or for lack of patience, has the error of the last.
            let is_same = found.as_ref().is_some_and(|found| {
                (found.stop_reason, &found.code) == (ending.stop_reason, &ending.code)
                    && found.error == ending.error
            }) || (attempted
                .fault()
                .is_some_and(|error| ending.error.as_ref().is_some_and(|at| at.ends_with(&error))));
            let recorded = ending.error.as_deref().unwrap_or_default();
            match is_same {
                true => StepComparison::Same,
                false => {
                    differs(&format!("fails: {recorded}"), &shown_of(attempted, run), attempted)
                }
            }
        }
        StepEndRecord::Stopped(why) => StepComparison::Skipped((*why).to_owned()),
    }
}

impl Attempted {
    /// The text of the failure of the step itself.
    fn fault(&self) -> Option<String> {
        self.outcome.as_ref().err().and_then(fault_of).map(|fault| fault.text())
    }
}

fn differs(recorded: &str, found: &str, attempted: &Attempted) -> StepComparison {
    let question = attempted.question.clone().map(|question| (None, question));
    let shown = |text: &str| cut(text, SHOWN_BYTES_MAX).to_owned();
    let (recorded, found) = (shown(recorded), shown(found));
    StepComparison::Differs(Box::new(StepDifference { recorded, found, question }))
}

/// True for what an agent says beside its decision.
fn is_note(event: &Event) -> bool {
    matches!(event, Event::PlannerNote { .. })
}

fn compare_decisions(rest: &[EventRecord], attempted: &Attempted, run: &Run) -> StepComparison {
    let events: Vec<&Event> = rest.iter().map(|record| &record.event).collect();
    let recorded = Decided::of(&events);
    let pending: Vec<&Event> = attempted
        .pending
        .iter()
        .filter(|event| !is_note(event) && !is_of_host(event))
        .skip_while(|event| matches!(event, Event::MetricsRecorded { .. }))
        .collect();
    let mut found = Decided::of(&pending);
    if let Ok(plan) = &attempted.outcome
        && let Decision::Await(items) = &plan.decision
    {
        found.asked = items.iter().map(|item| &item.what).collect();
    }
    match recorded.is_same(&found) {
        true => StepComparison::Same,
        false => differs(&recorded.shown(), &shown_of(attempted, run), attempted),
    }
}

fn is_of_host(event: &Event) -> bool {
    matches!(event, Event::Log { source, .. } if source == HOST)
}

/// A step in words: its decision, or why it has none, by which `run` would end.
fn shown_of(attempted: &Attempted, run: &Run) -> String {
    match &attempted.outcome {
        Ok(plan) => {
            let pending: Vec<&Event> = attempted
                .pending
                .iter()
                .skip_while(|event| !matches!(event, Event::PlanDecided { .. }))
                .collect();
            let mut decided = Decided::of(&pending);
            if let Decision::Await(items) = &plan.decision {
                decided.asked = items.iter().map(|item| &item.what).collect();
            }
            decided.shown()
        }
        Err(Outcome::Error(error)) => format!("fails: {error}"),
        Err(Outcome::Failed(failure)) => format!("fails: {failure}"),
        Err(Outcome::Refused(detail)) => format!("fails: {detail}"),
        Err(
            outcome @ (Outcome::Answered(_)
            | Outcome::RoundOver { .. }
            | Outcome::HandedOver { .. }
            | Outcome::Deferred
            | Outcome::Partial(_)
            | Outcome::Exhausted { .. }
            | Outcome::RetryAborted { .. }
            | Outcome::OutOfPatience { .. }
            | Outcome::NoResult { .. }
            | Outcome::RoundRefused(_)
            | Outcome::NothingToTell
            | Outcome::PersistFailed(_)
            | Outcome::HostFailed(_)),
        ) => {
            let ending = decide::ending(run, outcome.clone());
            let why = ending.error.unwrap_or_else(|| ending.stop_reason.to_string());
            format!("fails: {why}")
        }
    }
}

impl<'e> Decided<'e> {
    /// The decision that these events begin with.
    fn of(events: &[&'e Event]) -> Self {
        let mut decided = Self::default();
        for event in events {
            if let (Event::PlanDecided { .. }, None) = (event, decided.decision) {
                decided.decision = Some(*event);
            } else if let Event::FinalToolResult { .. } = event {
                decided.result = Some(*event);
            } else if let Event::AssistantMessage { message, model, streamed, .. } = event {
                decided.message = Some(Event::AssistantMessage {
                    message: message.clone(),
                    usage: None,
                    model: model.clone(),
                    streamed: *streamed,
                });
            } else if let Event::Asked { item } = event {
                decided.asked.push(&item.what);
                continue;
            } else if let Event::Usage { .. } = event {
                continue;
            } else {
                break;
            }
        }
        // Only a step that asks is followed by what it asked; a person may be asked about a call.
        if !decided.asks() {
            decided.asked.clear();
        }
        decided
    }

    fn asks(&self) -> bool {
        let asking = DecisionKind::Await;
        matches!(self.decision, Some(Event::PlanDecided { decision, .. }) if *decision == asking)
    }

    fn is_same(&self, other: &Self) -> bool {
        let without_time = |event: Option<&Event>| {
            let mut event = event.cloned();
            if let Some(Event::PlanDecided { ran_ms, .. }) = &mut event {
                *ran_ms = 0;
            }
            event
        };
        without_time(self.decision) == without_time(other.decision)
            && self.result == other.result
            && self.message == other.message
            && self.asked == other.asked
    }

    /// It in words, a line for each thing.
    fn shown(&self) -> String {
        let mut text = String::new();
        let mut line = |words: std::fmt::Arguments<'_>| {
            // Nothing is written where that could fail.
            writeln!(text, "{words}").ok();
        };
        if let Some(Event::PlanDecided {
            turn: _,
            decision,
            state,
            reminders,
            expected_children,
            parents,
            ran_ms: _,
        }) = self.decision
        {
            line(format_args!("decides: {}", word(*decision)));
            for (key, value) in state {
                match value {
                    Some(value) => line(format_args!("state: {key} = {}", json_of(value))),
                    None => line(format_args!("state: {key} is removed")),
                }
            }
            for change in reminders {
                line(format_args!("reminder: {}", json_of(change)));
            }
            if let Some(number) = expected_children {
                line(format_args!("expects children: {number}"));
            }
            for (call, above) in parents {
                line(format_args!("call {call} is beneath {above}"));
            }
        }
        if let Some(Event::AssistantMessage { message, model, streamed, .. }) = &self.message {
            shown_message(message, &mut line);
            if let Some(model) = model {
                line(format_args!("model: {model}"));
            }
            if *streamed {
                line(format_args!("sent in parts"));
            }
        }
        if let Some(Event::FinalToolResult { result }) = self.result {
            line(format_args!("result: {}", json_of(result)));
        }
        for item in &self.asked {
            line(format_args!("asks: {}", json_of(item)));
        }
        text
    }
}

fn shown_message(message: &Message, line: &mut impl FnMut(std::fmt::Arguments<'_>)) {
    for part in &message.parts {
        match part {
            Part::Text(text) => line(format_args!("says: {text}")),
            Part::Json(text) => line(format_args!("json: {text}")),
            Part::Thinking(block) => line(format_args!("thinks: {}", block.text)),
            Part::ToolUse(call) => {
                line(format_args!("calls: {} {} ({})", call.name, call.payload, call.tool_call_id))
            }
            Part::ToolAnswer(answer) => line(format_args!("answers: {}", json_of(answer))),
            Part::Media(image) => line(format_args!("shows: {} {}", image.media_type, image.hash)),
        }
    }
}

fn word(decision: DecisionKind) -> &'static str {
    match decision {
        DecisionKind::ToolCalls => "tool calls",
        DecisionKind::FinalResponse => "final response",
        DecisionKind::FinalToolResult => "final tool result",
        DecisionKind::Await => "to wait for an answer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::run;
    use crate::scope::ReplayEnd;

    #[test]
    fn a_step_for_which_there_is_no_memory_here_is_not_compared() {
        let compared = |abort| {
            let ReplayEnd { tape, question, unrecorded } = ReplayEnd::default();
            let outcome = Err(Outcome::Failed(abort));
            let attempted = Attempted { pending: Vec::new(), outcome, tape, question, unrecorded };
            compare(&attempted, &StepEndRecord::Failed("it broke"), &run([]))
        };
        let found = compared(CallAbort::Unavailable);
        assert!(matches!(found, StepComparison::Skipped(why) if why == NO_MEMORY));
        assert!(matches!(compared(CallAbort::Stack), StepComparison::Differs(_)));
    }
}
