//! A run as it is shown.

use serde::Serialize;
use serde_json::Value;

use super::{Lifecycle, Run, RunState, SUMMARY_CHARS_MAX};
use crate::artifact::ArtifactRef;
use crate::autonomy::StateReport;
use crate::channel::Channel;
use crate::ending::{EndedBy, Ending};
use crate::hold::{Await, Hold};
use crate::ids::{RunId, Seq};
use crate::media::Media;
use crate::message::{Labels, Message, Usage};
use crate::metrics::MetricsView;
use crate::narrowing::Narrowing;
use crate::pause::Pause;
use crate::progress::{Children, Progress};
use crate::spec::RunClass;
use crate::status::{BlockedOn, Status, StopReason};
use crate::stop::CallAbort;
use crate::text::first_chars;
use crate::time::{Timestamp, millis};

/// A run as people and programs see it. Absent fields are left out of the JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunView {
    /// Id of the run.
    pub id: RunId,
    /// The name that people call it by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The user that asked.
    pub owner_user_id: String,
    /// Session from which it was asked.
    pub parent_session_id: String,
    /// Application from which it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_app_name: Option<String>,
    /// Application it runs as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_name: Option<String>,
    /// Session of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_session_id: Option<String>,
    /// Names the execution in logs of others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Agent that does it.
    pub agent_name: String,
    /// Digest of the agent's component.
    pub agent_digest: String,
    /// The task.
    pub task: String,
    /// The images that belong to it; their bytes are artifacts of the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Media>,
    /// The messages that it was given before that, where a single run is shown, or a tree.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub context_messages: Vec<Message>,
    /// Where it stands.
    pub status: Status,
    /// The word that task lists elsewhere have for that, where they have another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_alias: Option<&'static str>,
    /// The thing that it waits for, while blocked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_on: Option<BlockedOn>,
    /// When it goes on in any case, while blocked and not paused.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::time::rfc3339::option::serialize"
    )]
    pub blocked_until: Option<Timestamp>,
    /// The time at which its next round begins, while it is deferred.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::time::rfc3339::option::serialize"
    )]
    pub next_wake_at: Option<Timestamp>,
    /// The pause that lies over it. Where it is running still, what is under way comes to its end
    /// first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<PauseView>,
    /// Why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// The word that other systems have for that reason, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason_alias: Option<&'static str>,
    /// The agent that has the conversation of its session from here on, where it was handed over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handed_over_to: Option<String>,
    /// Why it is being canceled or was, in the words of whoever asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
    /// True if a limit cut the work short and the result is what there was.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// At most [`SUMMARY_CHARS_MAX`] characters of the result, or of the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// At most [`crate::reply::RESULT_CHARS_MAX`] characters of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// Bytes of the whole answer, where `result` is cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_bytes: Option<u64>,
    /// True if `result` is cut; the whole text is in the transcript.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// The whole answer of a run that ended, where `result` is cut; see
    /// `Controller::artifact`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactRef>,
    /// The images of the answer; their bytes are artifacts of the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub result_images: Vec<Media>,
    /// The error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The agent's own word for the error, such as `model-refused`, where it gave up with one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// The part of the host that gave it up, where that was for the agent's own doing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<EndedBy>,
    /// The way in which the component was stopped, where it was: `kind` and what belongs to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<CallAbort>,
    /// Counts; absent before there is anything to count. Those of the runs beneath it only where a
    /// single run is shown, or a tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The price of its tokens, in millionths of a US dollar, as far as prices are known; without
    /// the runs beneath it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_microusd: Option<u64>,
    /// The metrics of its components, of plan steps and calls that ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsView>,
    /// Plan steps that decided, and turns that were skipped.
    pub turns: u32,
    /// Rounds of a run that goes on by itself, the present one included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u32>,
    /// The run that it continues; its counts begin with those of that one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continues: Option<RunId>,
    /// Its own words that it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The result that it said it is done with, which is JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub returned: Option<Value>,
    /// The state that it said last it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reported: Option<StateReport>,
    /// Number of the attempt at the present plan step, from 1.
    pub attempt: u32,
    /// The questions that are open; a long one is cut, and has a mark at its end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub awaits: Vec<Await>,
    /// Keys and values to find it by.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Keys and values that belong to it.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub metadata: Labels,
    /// The narrowing of the request.
    #[serde(skip_serializing_if = "Narrowing::is_empty")]
    pub narrow: Narrowing,
    /// The channels that it has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<Channel>,
    /// Run that started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// Tool call of that run which this one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_tool_call_id: Option<String>,
    /// True if it is canceled when that ends.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub attached: bool,
    /// First run of its tree.
    pub root_run_id: RunId,
    /// Runs above it.
    pub depth: u32,
    /// By whom it is begun; absent for a run that the first host with a free slot begins.
    #[serde(skip_serializing_if = "RunClass::is_task")]
    pub class: RunClass,
    /// The batch run that works on it, or worked on it last, if it is an entry of a heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_run_id: Option<RunId>,
    /// The entries that it works on, if it is the batch run of a heartbeat.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<RunId>,
    /// Position of its last event; grows with every change.
    pub revision: Seq,
    /// When it was accepted.
    #[serde(serialize_with = "crate::time::rfc3339::serialize")]
    pub created_at: Timestamp,
    /// When the status last changed.
    #[serde(serialize_with = "crate::time::rfc3339::serialize")]
    pub updated_at: Timestamp,
    /// When its execution began.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::time::rfc3339::option::serialize"
    )]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::time::rfc3339::option::serialize"
    )]
    pub finished_at: Option<Timestamp>,
    /// From its beginning to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

/// A pause as people and programs see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PauseView {
    /// When it was asked for.
    #[serde(serialize_with = "crate::time::rfc3339::serialize")]
    pub since: Timestamp,
    /// The person or program that asked.
    pub by: String,
    /// In words, from whoever asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it is over in any case.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::time::rfc3339::option::serialize"
    )]
    pub until: Option<Timestamp>,
}

impl From<&Pause> for PauseView {
    fn from(pause: &Pause) -> Self {
        let Pause { since, by, reason, until, then: _ } = pause;
        Self { since: *since, by: by.clone(), reason: reason.clone(), until: *until }
    }
}

impl RunView {
    /// The run with the counts of those beneath it, and with what it was told before its task.
    #[must_use]
    pub fn with_children(run: &Run, children: Children) -> Self {
        let progress = counted(run.state.progress.with(children));
        let context_messages = run.spec.context_messages.clone();
        Self { progress, context_messages, ..Self::from(run) }
    }
}

impl From<&Run> for RunView {
    fn from(run: &Run) -> Self {
        let (spec, state) = (&run.spec, &run.state);
        let execution = run.execution();
        let (blocked_on, finished_at) = match &state.lifecycle {
            Lifecycle::Blocked { on, .. } => (Some(*on), None),
            Lifecycle::Ended { finished_at, .. } => (None, Some(*finished_at)),
            Lifecycle::Queued
            | Lifecycle::Running { .. }
            | Lifecycle::Canceling { .. }
            | Lifecycle::Finalizing { .. } => (None, None),
        };
        let ending = if run.status().is_terminal() { run.ending() } else { None };
        let result = state.reply.result();
        let started_at = execution.map(|e| e.started_at);
        let mut metadata = spec.metadata.clone();
        metadata.extend(state.metadata.clone());
        Self {
            id: spec.id.clone(),
            name: spec.name.clone(),
            owner_user_id: spec.owner_user_id.clone(),
            parent_session_id: spec.parent_session_id.clone(),
            parent_app_name: spec.parent_app_name.clone(),
            app_name: spec.app_name.clone(),
            child_session_id: execution
                .map(|e| e.child_session_id.clone())
                .or_else(|| spec.child_session_id.clone()),
            request_id: execution.map(|e| e.request_id.clone()).or_else(|| spec.request_id.clone()),
            agent_name: spec.agent_name.clone(),
            agent_digest: spec.agent_digest.clone(),
            task: spec.task.clone(),
            images: spec.images.clone(),
            context_messages: Vec::new(),
            status: run.status(),
            status_alias: run.status().alias(),
            blocked_on,
            blocked_until: blocked_on.and_then(|_| blocked_until(state)),
            next_wake_at: run.next_wake().map(|wanted| wanted.at),
            paused: state.pause.as_ref().map(PauseView::from),
            stop_reason: ending.map(|e| e.stop_reason),
            stop_reason_alias: ending.and_then(|e| e.stop_reason.alias()),
            handed_over_to: ending.and_then(|e| e.handed_to.clone()),
            cancel_reason: run.cancel_reason().map(str::to_owned),
            partial: ending.is_some_and(|e| e.partial),
            summary: summary(
                run.status(),
                ending.and_then(|ending| ending.error.as_deref()),
                result.as_deref(),
            ),
            result_bytes: state.reply.is_cut().then_some(state.reply.bytes()),
            truncated: state.reply.is_cut(),
            artifact: ending.and_then(|e| e.artifact.clone()),
            result: result.clone(),
            result_images: state.reply.images().to_vec(),
            error: ending.and_then(|e| e.error.clone()),
            error_code: ending.and_then(|e| e.code.clone()),
            by: ending.and_then(|e| e.by),
            failure: ending.and_then(|e| e.failure.clone()),
            progress: counted(Progress {
                expected_children: None,
                cost_rounding: 0,
                ..state.progress.clone()
            }),
            cost_microusd: Some(state.progress.cost_microusd).filter(|cost| *cost > 0),
            metrics: MetricsView::of(&state.metrics),
            turns: state.turns,
            rounds: spec.autonomy.as_ref().map(|_| state.rounds.number()),
            continues: spec.continues.as_ref().map(|continued| continued.run.clone()),
            detail: detail(ending, state, result.as_deref()),
            returned: run.returned(),
            reported: state.rounds.state.clone(),
            attempt: state.failed_attempts + 1,
            awaits: open_awaits(state),
            labels: spec.labels.clone(),
            metadata,
            narrow: spec.narrow.clone(),
            channels: spec.channels.clone(),
            parent_run_id: spec.parent_run_id.clone(),
            parent_tool_call_id: spec.parent_tool_call_id.clone(),
            attached: spec.attached,
            root_run_id: spec.root_run_id.clone(),
            depth: spec.depth,
            class: spec.class,
            batch_run_id: execution.and_then(|e| e.batch.clone()),
            entries: spec.entries.clone(),
            revision: state.head,
            created_at: spec.created_at,
            updated_at: state.updated_at,
            started_at,
            finished_at,
            duration_ms: started_at.zip(finished_at).map(|(from, to)| millis(to.since(from))),
        }
    }
}

/// Counts, where there are any: an answer that was given up has tokens and no event.
fn counted(progress: Progress) -> Option<Progress> {
    let any = progress.event_count > 0
        || progress.expected_children.is_some()
        || progress.usage() != Usage::default();
    any.then_some(progress)
}

/// The words with which a run was done; those of one that came to its end are its answer.
fn detail(ending: Option<&Ending>, state: &RunState, result: Option<&str>) -> Option<String> {
    let is_natural = ending.is_some_and(|ending| ending.stop_reason == StopReason::NaturalEnd);
    let done = state.rounds.done.as_ref().map(|done| done.detail.as_str());
    done.or(result.filter(|_| is_natural)).map(str::to_owned)
}

/// When a blocked run is wanted in any case.
fn blocked_until(state: &RunState) -> Option<Timestamp> {
    if state.pause.is_some() {
        return None;
    }
    match &state.hold {
        Hold::Wanted { not_before, .. } => Some(*not_before).filter(|at| at.0 > 0),
        Hold::Runs { until, .. } => *until,
        Hold::Nobody | Hold::Beat | Hold::Host { .. } => None,
    }
}

fn open_awaits(state: &RunState) -> Vec<Await> {
    match state.lifecycle {
        Lifecycle::Blocked { .. } => {
            state.awaits.iter().filter(|one| !one.answered).map(shown_await).collect()
        }
        Lifecycle::Queued
        | Lifecycle::Running { .. }
        | Lifecycle::Canceling { .. }
        | Lifecycle::Finalizing { .. }
        | Lifecycle::Ended { .. } => Vec::new(),
    }
}

/// An item as it is shown. The record has no more of a question than is shown, and does not say if
/// there is more; so one that fills that gives its last character to a mark.
fn shown_await(item: &Await) -> Await {
    let mut shown = item.clone();
    if let Some((last, _)) = shown.prompt.char_indices().nth(SUMMARY_CHARS_MAX - 1) {
        shown.prompt.truncate(last);
        shown.prompt.push('\u{2026}');
    }
    shown
}

/// At most [`SUMMARY_CHARS_MAX`] characters of the result of a run, or of its error; `None` before
/// it has ended.
#[must_use]
pub fn summary(status: Status, error: Option<&str>, result: Option<&str>) -> Option<String> {
    let text = match status {
        Status::Completed => result,
        Status::Failed => error.or(result),
        Status::Canceled => result.or(Some("canceled")),
        Status::Queued
        | Status::Running
        | Status::Blocked
        | Status::Canceling
        | Status::Finalizing => None,
    };
    text.map(|text| first_chars(text, SUMMARY_CHARS_MAX).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_of_which_no_more_is_kept_ends_with_a_mark() {
        let shown = |prompt: String| {
            let (id, on) = ("q".to_owned(), BlockedOn::Input);
            shown_await(&Await { id, on, prompt, answered: false }).prompt
        };
        let whole = "ä".repeat(SUMMARY_CHARS_MAX - 1);
        assert_eq!(shown(whole.clone()), whole);
        assert_eq!(shown("ä".repeat(SUMMARY_CHARS_MAX)), format!("{whole}\u{2026}"));
    }

    #[test]
    fn t_031_each_end_has_its_summary() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(summary(Status::Completed, None, Some("done")), text("done"));
        assert_eq!(summary(Status::Failed, Some("broke"), Some("half")), text("broke"));
        assert_eq!(summary(Status::Canceled, None, None), text("canceled"));
        assert_eq!(summary(Status::Canceled, None, Some("half")), text("half"));
        assert_eq!(summary(Status::Running, None, Some("half")), None);
    }
}
