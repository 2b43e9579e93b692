//! One event in one line.

use std::time::Duration;

use taskrun_journal::answers::no_user;
use taskrun_journal::autonomy::Mark;
use taskrun_journal::event::{CallWait, Event, EventRecord};
use taskrun_journal::hold::{Wait, WaitMode};
use taskrun_journal::pause::PauseEnd;
use taskrun_journal::question::Answer;
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::ToolOutcome;

use crate::output::escape::excerpt;
use crate::output::human;
use crate::output::paint::{DIM, with};
use crate::paths::shown_in;

/// Characters of an event's detail that are shown.
pub(super) const DETAIL_CHARS_MAX: usize = 160;

/// The event: position, time since the run was accepted, kind, detail.
pub(crate) fn event_line(recorded: &EventRecord, accepted: Timestamp) -> String {
    let after = recorded.at.since(accepted);
    let offset = format!("+{}.{:03}s", after.as_secs(), after.subsec_millis());
    let detail = excerpt(&detail(&recorded.event), DETAIL_CHARS_MAX);
    let position = with(DIM, &format!("{:>5} {offset:>10}", recorded.seq));
    let line = format!("{position}  {:<20}  {detail}", recorded.event.kind());
    line.trim_end().to_owned()
}

/// An event in words; not yet fit for a terminal.
pub(super) fn detail(event: &Event) -> String {
    match event {
        Event::Queued { spec } => format!("{}: {}", spec.agent_name, spec.task),
        Event::Started { batch: Some(batch), .. } => format!("in batch {batch}"),
        Event::Started { host, batch: None, .. } | Event::Resumed { host, .. } => {
            format!("by {host}")
        }
        Event::Lost { host, crashed: true, .. } => format!("{host} died"),
        Event::Lost { host, crashed: false, .. } => format!("{host} gave it back"),
        Event::HistoryCarried { runs, .. } => {
            format!("of {}", human::count(runs.len() as u64, "earlier run"))
        }
        Event::Reported { runs, .. } => {
            let ids: Vec<_> = runs.iter().map(|run| run.as_str()).collect();
            format!("of {}", ids.join(", "))
        }
        Event::AssistantChunk { text } => format!("{text:?}"),
        Event::AssistantMessage { message, streamed, .. } => {
            let calls: Vec<&str> = message.tool_uses().map(|call| call.name.as_str()).collect();
            let text = if *streamed { "(as streamed)".to_owned() } else { message.joined_text() };
            if calls.is_empty() { text } else { format!("{text} calls {}", calls.join(", ")) }
        }
        Event::ToolCallArgsDelta { name, delta, .. } => format!("{name} {delta:?}"),
        Event::ThinkingBlock { block } => block.text.clone(),
        Event::PlannerNote { text, .. } => text.clone(),
        Event::PromptRendered { id, .. } => id.clone(),
        Event::Usage { usage } => human::count(usage.total_tokens, "token"),
        Event::ToolCallScheduled { name, payload, .. } => format!("{name} {payload}"),
        Event::Marked { mark, .. } => marked(mark),
        Event::ToolResult { output, duration_ms, .. } => {
            let took = human::duration(Duration::from_millis(*duration_ms));
            match &output.outcome {
                ToolOutcome::Value(value) => format!("{} in {took}: {value}", output.name),
                ToolOutcome::Failure(failure) => {
                    format!("{} failed: {}", output.name, failure.error.message)
                }
            }
        }
        Event::ToolCallRepeated { tool_call_id, attempt } => {
            format!("{tool_call_id}, attempt {attempt}")
        }
        Event::ToolCallParked { name, waits, .. } => format!("{name} waits for {}", parked(waits)),
        Event::ChildRunLinked { run_id, agent_name, .. } => format!("{agent_name} as run {run_id}"),
        Event::ToolCallUpdated { tool_call_id, expected_children_total } => {
            let calls = human::count(u64::from(*expected_children_total), "call");
            format!("{tool_call_id}: {calls}")
        }
        Event::HostAnswered { call, model, answer, .. } => {
            let question = format!("question {call} of the step: {}", answer.question());
            let model = model.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
            let error = answer.model_error().map(|error| format!(": {}", error.in_full()));
            format!("{question}{model}{}", error.unwrap_or_default())
        }
        Event::OutsideAnswered { number, answer, .. } => {
            let answer =
                answer.as_ref().map_or("not kept, for its size", |answer| answer.request());
            format!("request {number} of the step: {answer}")
        }
        Event::MemoryAppended { scope, key, bytes } => match bytes {
            Some(bytes) => format!("{} {key}: {}", scope.as_str(), human::bytes(*bytes)),
            None => format!("{} {key}: forgotten", scope.as_str()),
        },
        Event::MetricsRecorded { metrics } => human::count(metrics.series.len() as u64, "series"),
        Event::ModelWait { over, .. } => (if *over { "over" } else { "begins" }).to_owned(),
        Event::ContextWindowMet { model, bytes, .. } => {
            format!("{model}: {}", human::bytes(*bytes))
        }
        Event::ClockRead { readings } => {
            let told: u64 = readings.iter().map(|reading| u64::from(reading.times)).sum();
            human::count(told, "time")
        }
        Event::RulesChanged { pins } => pins.join(", "),
        Event::Adopted { from, to, by } => format!("by {by}: {to}, before {from}"),
        Event::StepRestarted { turn, .. } => format!("turn {turn}"),
        Event::ReplayDiverged { turn, recorded, found } => {
            format!("turn {turn}: recorded was {recorded}, found was {found}")
        }
        Event::StepFailed { turn, attempt, error, retry_after_ms } => {
            let pause = human::duration(Duration::from_millis(*retry_after_ms));
            format!("turn {turn}, attempt {attempt}, again in {pause}: {error}")
        }
        Event::PushedBack { turn, model, until: at, reason, said, .. } => {
            let said = said.as_deref().map(|said| format!(": {said}")).unwrap_or_default();
            format!("turn {turn}, model {model}{}: {reason}{said}", until(Some(*at)))
        }
        Event::TurnSkipped { turn, attempts, error, .. } => {
            let attempts = human::count(u64::from(*attempts), "attempt");
            format!("turn {turn}, after {attempts}: {error}")
        }
        Event::RoundEnded { round, prompt, .. } => format!("round {round}, then {prompt:?}"),
        Event::Asked { item } => {
            format!("{} ({}): {}", item.id(), item.what.word(), item.what.prompt())
        }
        Event::Answered { item, answer, by, by_default } => {
            let who = if *by_default { "default" } else { by };
            format!("{item} by {who}: {}", answer_text(answer))
        }
        Event::PolicyDecision { subject, rule, decided: Some(decided), .. } => {
            format!("{subject}: {decided} ({})", shown_in(rule))
        }
        Event::PolicyDecision { capability, subject, rule, decided: None, told: _ } => {
            format!("{capability} {subject}: {}", shown_in(rule))
        }
        Event::ToolAuthorization { tool_call_id, name, approved, decided_by, for_run, consent } => {
            let word = if *approved { "approved" } else { "declined" };
            let scope = match consent {
                Some(number) => format!(", consent {number}"),
                None if *for_run => ", for the run".to_owned(),
                None => String::new(),
            };
            format!("{name} ({tool_call_id}) {word} by {decided_by}{scope}")
        }
        Event::Log { level, source, message, .. } => {
            format!("{} {source}: {message}", level.as_str())
        }
        Event::PlanDecided { turn, decision, .. } => format!("turn {turn}: {}", decision.as_str()),
        Event::FinalToolResult { result } => match &result.outcome {
            ToolOutcome::Value(value) => value.clone(),
            ToolOutcome::Failure(failure) => format!("failed: {}", failure.error.message),
        },
        Event::FinalizeRequested { message, .. } => message.clone(),
        Event::Blocked { on, wait, .. } => format!("on {on}{}", wait_text(wait)),
        Event::Finished { finalizer_error: Some(error), .. } => {
            format!("without what the finalizer adds: {error}")
        }
        Event::PauseRequested { by, reason, until: at } => {
            let why = reason.as_deref().map_or_else(String::new, |reason| format!(": {reason}"));
            format!("by {by}{}{why}", until(*at))
        }
        Event::PauseEnded { why, by, note, messages } => {
            pause_ended(*why, by.as_ref(), note.as_ref(), messages)
        }
        Event::Injected { text, by } => format!("by {by}: {text}"),
        Event::InboxShown { messages } => human::count(u64::from(*messages), "message"),
        Event::FinalizerStarted | Event::Finished { .. } => String::new(),
        Event::CancelRequested { by, from: _, reason } => match reason {
            Some(reason) => format!("{by}: {reason}"),
            None => by.to_string(),
        },
        Event::Finalizing { ending } => {
            let error = ending.error.as_deref().unwrap_or_default();
            format!("{} {error}", ending.stop_reason)
        }
    }
}

fn runs_text(runs: &[taskrun_journal::ids::RunId], mode: WaitMode) -> String {
    let ids: Vec<&str> = runs.iter().map(taskrun_journal::ids::RunId::as_str).collect();
    let one_of = match mode {
        WaitMode::Any if runs.len() > 1 => "one of ",
        WaitMode::Any | WaitMode::All => "",
    };
    format!("{one_of}{}", ids.join(", "))
}

fn until(at: Option<Timestamp>) -> String {
    at.map_or_else(String::new, |at| format!(", until {at}"))
}

fn parked(waits: &CallWait) -> String {
    match waits {
        CallWait::Runs { runs, mode, until: at, report: _ } => {
            format!("{}{}", runs_text(runs, *mode), until(*at))
        }
        CallWait::Child { run } => format!("run {run}"),
        CallWait::Answer { item } => format!("an answer to {item}"),
    }
}

fn pause_ended(
    why: PauseEnd,
    by: Option<&String>,
    note: Option<&String>,
    messages: &[String],
) -> String {
    let mut text = why.as_str().to_owned();
    if let Some(by) = by {
        text.push_str(&format!(" by {by}"));
    }
    for more in note.into_iter().chain(messages) {
        text.push_str(&format!(": {more}"));
    }
    text
}

fn wait_text(wait: &Wait) -> String {
    match wait {
        Wait::Answers { at } => until(*at),
        Wait::Runs { runs, mode, at } => format!(": {}{}", runs_text(runs, *mode), until(*at)),
        Wait::Word => String::new(),
        Wait::Time { at } => until(Some(*at)),
    }
}

/// An answer in words; not yet fit for a terminal.
pub(crate) fn answer_text(answer: &Answer) -> String {
    match answer {
        Answer::Text(text) => text.clone(),
        Answer::Choices(choices) => {
            let one = |(question, chosen): (&String, &Vec<String>)| {
                format!("{question}={}", chosen.join(","))
            };
            choices.iter().map(one).collect::<Vec<_>>().join(" ")
        }
        Answer::Results(results) => {
            let calls: Vec<&str> = results.keys().map(String::as_str).collect();
            format!("results of {}", calls.join(", "))
        }
        Answer::ConfirmedForRun(true) => "accepted, for the run".to_owned(),
        Answer::ConfirmedForRun(false) => "declined, for the run".to_owned(),
        Answer::Confirmed(true) => "accepted".to_owned(),
        Answer::Confirmed(false) => "declined".to_owned(),
        Answer::TimedOut => "nobody answered in time".to_owned(),
        Answer::Refused(reason) => no_user(reason),
    }
}

/// A word of a run about itself.
fn marked(mark: &Mark) -> String {
    match mark {
        Mark::Done(done) => format!("done: {}", done.detail),
        Mark::Rejected => "a result that does not fit".to_owned(),
        Mark::Schedule(schedule) => match &schedule.detail {
            Some(detail) => format!("next round at {}: {detail}", schedule.at),
            None => format!("next round at {}", schedule.at),
        },
        Mark::Status(state) => match &state.detail {
            Some(detail) => format!("{}: {detail}", state.state),
            None => state.state.clone(),
        },
    }
}

#[cfg(test)]
mod tests {
    use taskrun_journal::event::DecisionKind;

    use super::*;

    #[test]
    fn a_decision_has_the_word_that_it_has_in_the_journal() {
        let all = [
            DecisionKind::ToolCalls,
            DecisionKind::FinalResponse,
            DecisionKind::FinalToolResult,
            DecisionKind::Await,
        ];
        for decision in all {
            let event = Event::PlanDecided {
                turn: 3,
                decision,
                state: Vec::new(),
                reminders: Vec::new(),
                expected_children: None,
                parents: Default::default(),
                ran_ms: 0,
            };
            let word = serde_json::to_value(decision).expect("a word");
            assert_eq!(detail(&event), format!("turn 3: {}", word.as_str().expect("a word")));
        }
    }
}
