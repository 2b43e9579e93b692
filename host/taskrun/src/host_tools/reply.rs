//! Runs as the host's tools show them to models.

use serde_json::{Map, Value, json};
use taskrun_journal::event::RunsReport;
use taskrun_journal::ids::RunId;
use taskrun_journal::run::{Run, summary};
use taskrun_journal::runs::{OutputPart, RunInfo};
use taskrun_journal::status::{BlockedOn, Status, StopReason};
use taskrun_journal::text::cut;
use taskrun_journal::time::Timestamp;

use crate::controller::run_info;
use crate::driver::CONVERSATION_RESULT_BYTES_MAX;

/// The status of a task, in the words of `check_tasks`: a run that is being ended is still in
/// progress, and one that was canceled has failed.
pub(super) fn task_status(status: Status) -> &'static str {
    match status {
        Status::Queued => "queued",
        Status::Running | Status::Canceling | Status::Finalizing => "in_progress",
        Status::Blocked => "blocked",
        Status::Completed => "finished",
        Status::Failed | Status::Canceled => "failed",
    }
}

/// The statuses that a word means, that of a task or of a run; `None` if it means none.
pub(super) fn statuses(word: &str) -> Option<Vec<Status>> {
    let mut meant = Status::meant_by(word).ok()?;
    // Of tasks it means those that were canceled, too.
    if meant == [Status::Failed] {
        meant.push(Status::Canceled);
    }
    Some(meant)
}

/// The error of a task: that of its run, or for one that was canceled, which has failed as a task,
/// the words for that and the reason that was given.
fn task_error(run: &RunInfo) -> Option<String> {
    if run.status != Status::Canceled {
        return run.error.clone();
    }
    let words = if run.stop_reason == Some(StopReason::CanceledByOwner) {
        "killed by user"
    } else if run.stop_reason == Some(StopReason::CanceledByParent) {
        "canceled by a run above"
    } else {
        "canceled"
    };
    let reason = detail(run, "cancel_reason").filter(|reason| !reason.trim().is_empty());
    Some(reason.map_or_else(|| words.to_owned(), |reason| format!("{words}: {reason}")))
}

/// Most bytes of an answer: of a larger one a model would be shown the beginning only.
const ANSWER_BYTES_MAX: usize = CONVERSATION_RESULT_BYTES_MAX - (4 << 10);
/// Most bytes of the texts of one run where it stands alone.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// Most bytes of a task in a list.
const TASK_BYTES_MAX: usize = 400;
/// Stands at the end of a text that was cut.
pub(super) const CUT: &str = "\u{2026}";

/// Cuts the texts of a shown run that are longer than so many bytes each.
fn shortened(mut shown: Value, bytes: usize) -> Value {
    let Value::Object(keys) = &mut shown else { return shown };
    for (key, value) in keys {
        let bytes =
            if key == "task" || key == "description" { bytes.min(TASK_BYTES_MAX) } else { bytes };
        match value {
            Value::String(text) if text.len() > bytes => {
                *text = format!("{}{CUT}", cut(text, bytes));
            }
            // A result is shown as far as it goes, labels and the like whole or not at all.
            Value::Object(_) | Value::Array(_) if value.to_string().len() > bytes => {
                *value = match key.as_str() {
                    "result" | "output" => {
                        json!(format!("{}{CUT}", cut(&value.to_string(), bytes)))
                    }
                    _ => Value::Null,
                };
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Object(_)
            | Value::Array(_) => {}
        }
    }
    shown
}

/// Runs in a list, each with its share of the room; those for which there is none are left out, and
/// the flag tells.
pub(super) fn listed(shown: Vec<Value>) -> (Vec<Value>, bool) {
    let share = ANSWER_BYTES_MAX / shown.len().max(1);
    let (mut listed, mut bytes, all) = (Vec::new(), 0, shown.len());
    for one in shown {
        // A run has a few short words beside its texts.
        let one = shortened(one, (share / 4).max(TASK_BYTES_MAX));
        bytes += one.to_string().len();
        if bytes > ANSWER_BYTES_MAX {
            break;
        }
        listed.push(one);
    }
    let is_cut = listed.len() < all;
    (listed, is_cut)
}

/// A run as `get_task_run` shows it: all of its record, under the documented names.
pub(super) fn task_run(run: &RunInfo) -> Value {
    shortened(whole(run), TEXT_BYTES_MAX)
}

/// A part of a run's result as `get_task_run` shows it; `result_next` is where the rest begins.
pub(super) fn result_part(id: &str, part: &OutputPart) -> Value {
    let next = part.from + part.text.len() as u64;
    let mut shown = json!({
        "id": id,
        "status": part.status,
        "result": part.text,
        "result_from": part.from,
        "result_bytes": part.bytes,
    });
    if next < part.bytes && !part.text.is_empty() {
        shown["result_next"] = json!(next);
    }
    shown
}

/// The same without a bound, for a list.
pub(super) fn whole(run: &RunInfo) -> Value {
    let mut shown: Map<String, Value> = serde_json::from_str(&run.details).unwrap_or_default();
    let result = given(run);
    // It would be there twice.
    if result.is_some() && shown.get("returned") == result.as_ref() {
        shown.remove("returned");
    }
    let summary = summary(run.status, run.error.as_deref(), run.result.as_deref());
    let optional = [
        ("summary", summary.map(|text| json!(text))),
        ("parent_run_id", Some(json!(run.parent_run_id)).filter(|_| !run.parent_run_id.is_empty())),
        ("blocked_on", run.blocked_on.map(|on| json!(on))),
        ("stop_reason", run.stop_reason.map(|reason| json!(reason))),
        ("result", result),
        ("result_images", (!run.images.is_empty()).then(|| json!(run.images))),
        ("truncated", run.truncated.then_some(json!(true))),
        ("partial", run.partial.then_some(json!(true))),
        ("error", run.error.as_ref().map(|error| json!(error))),
        ("awaits", (!run.awaits.is_empty()).then(|| json!(run.awaits))),
        ("labels", (!run.labels.is_empty()).then(|| json!(run.labels))),
    ];
    let always = [
        ("id", json!(run.id)),
        ("agent_name", json!(run.agent_name)),
        ("status", json!(run.status)),
        ("turns", json!(run.turns)),
    ];
    let present = optional.into_iter().filter_map(|(key, value)| Some((key, value?)));
    shown.extend(always.into_iter().chain(present).map(|(key, value)| (key.to_owned(), value)));
    Value::Object(shown)
}

/// A run as `check_tasks` shows it.
pub(super) fn task(run: &RunInfo, now: Timestamp) -> Value {
    let details: Map<String, Value> = serde_json::from_str(&run.details).unwrap_or_default();
    let detail = |key: &str| details.get(key).cloned().unwrap_or(Value::Null);
    let until = run.finished_at.unwrap_or(now);
    let questions: Vec<_> =
        run.awaits.iter().filter(|one| !one.answered).map(|one| one.prompt.as_str()).collect();
    let mut shown = json!({
        "task_id": run.id,
        "agent": run.agent_name,
        "status": task_status(run.status),
        "description": detail("task"),
        "parent_id": run.parent_run_id,
        "result": given(run),
        "error": task_error(run),
        "blocked_on": questions.first(),
        "created_by": detail("created_by"),
        "alive_secs": until.0.saturating_sub(run.created_at.0) / 1_000,
        "prompt_tokens": run.usage.prompt_tokens,
        "completion_tokens": run.usage.completion_tokens,
    });
    mark_cut(&mut shown, run);
    shown
}

/// A run as `delegate_task` shows it. One that has just been accepted is shown as it was then: another
/// one has ended before, and its result is used again.
pub(super) fn delegated(run: &RunInfo) -> Value {
    let mut shown = json!({
        "status": "delegated",
        "task_id": run.id,
        "child_room_id": detail(run, "child_session_id"),
        "agent_id": run.agent_name,
    });
    if run.status.is_terminal() {
        shown["status"] = json!(run.status);
        shown["from_cache"] = json!(true);
        shown["result"] = json!(given(run));
        mark_cut(&mut shown, run);
    }
    shortened(shown, TEXT_BYTES_MAX)
}

/// Says so where the result of a run is shown as far as its record has it.
fn mark_cut(shown: &mut Value, run: &RunInfo) {
    if run.truncated {
        shown["truncated"] = json!(true);
    }
}

/// The name by which the model of its parent knows a subagent: its id where it was given none.
pub(super) fn called(run: &RunInfo) -> String {
    detail(run, "name").unwrap_or_else(|| run.id.clone())
}

/// True for a run that the first one of its tree started, where that is another tree than this one.
pub(super) fn stands_beneath_first(run: &RunInfo, own_root: &str) -> bool {
    let root = detail(run, "root_run_id").unwrap_or_default();
    root != own_root && run.parent_run_id == root
}

/// The agent whose run started it.
fn created_by(run: &RunInfo) -> String {
    detail(run, "created_by").unwrap_or_default()
}

/// The result that a run gives: the one that it returned, as it is unless it is too long for that,
/// or else its answer as a text.
fn given(run: &RunInfo) -> Option<Value> {
    let text = run.result.as_ref()?;
    let details: Map<String, Value> = serde_json::from_str(&run.details).unwrap_or_default();
    let returned = details.get("returned").filter(|_| !run.truncated);
    Some(returned.cloned().unwrap_or_else(|| json!(text)))
}

fn detail(run: &RunInfo, key: &str) -> Option<String> {
    let details: Map<String, Value> = serde_json::from_str(&run.details).unwrap_or_default();
    Some(details.get(key)?.as_str()?.to_owned())
}

/// True if its budget ended it, and not its work.
fn is_cut_short(run: &RunInfo) -> bool {
    let by_budget = |reason| {
        matches!(
            reason,
            StopReason::MaxTurns
                | StopReason::MaxTokens
                | StopReason::MaxCost
                | StopReason::Wallclock
                | StopReason::ToolCap
                | StopReason::TimeBudget
        )
    };
    run.partial || run.stop_reason.is_some_and(by_budget)
}

/// The status of a subagent, in the words of `spawn_agent`: one that a limit cut short, or that
/// waits for its time, is put off and may be asked to go on.
fn subagent_status(run: &RunInfo) -> &'static str {
    match run.status {
        Status::Blocked if run.blocked_on == Some(BlockedOn::Schedule) => "deferred",
        Status::Queued | Status::Running | Status::Blocked | Status::Finalizing => "running",
        Status::Canceling | Status::Canceled => "stopped",
        Status::Completed | Status::Failed if is_cut_short(run) => "deferred",
        Status::Completed => "completed",
        Status::Failed => "failed",
    }
}

/// The next step of the model about a subagent that gave no whole result, in words.
fn guidance(run: &RunInfo, status: &str) -> Option<String> {
    let reason = run.stop_reason.map_or("a limit", StopReason::as_str);
    Some(match (status, run.result.is_some()) {
        ("running", _) => "It goes on in the background. Its result is told when it has ended; \
                           wait for it only if there is nothing else to do."
            .to_owned(),
        ("deferred", _) if !run.status.is_terminal() => {
            "It goes on at its time. Its result is told when it has ended.".to_owned()
        }
        ("deferred", true) => format!(
            "It was cut short ({reason}). The output is what it had by then; start another one \
             for the rest."
        ),
        ("deferred", false) => {
            format!("It was cut short ({reason}) and produced no output. Give less at a time.")
        }
        _ => return None,
    })
}

/// A run as `spawn_agent` and `stop_agent` show it.
pub(super) fn subagent(run: &RunInfo) -> Value {
    let (name, status) = (called(run), subagent_status(run));
    let mut shown = json!({
        "name": name,
        "branch": format!("{}.{name}", created_by(run)),
        "id": run.id,
        "status": status,
    });
    // One that is stopped is shown alike while it ends and afterwards: a call that is repeated says
    // the same.
    let is_stopped = status == "stopped";
    let optional = [
        ("output", given(run)),
        ("final_text", detail(run, "final_text").map(Value::String)),
        ("error", run.error.clone().filter(|_| !is_stopped).map(Value::String)),
        ("stop_reason", run.stop_reason.filter(|_| !is_stopped).map(|one| json!(one))),
        ("guidance", guidance(run, status).map(Value::String)),
    ];
    for (key, value) in optional {
        if let Some(value) = value {
            shown[key] = value;
        }
    }
    mark_cut(&mut shown, run);
    shortened(shown, TEXT_BYTES_MAX)
}

/// The result of a call that waited for runs, in the order asked for. That of a tool of the host is
/// one that a model is shown whole. With each run stands the number of the images of its answer that
/// the result has.
pub(crate) fn report(
    form: RunsReport,
    (ids, images): (&[RunId], &[usize]),
    found: &[Option<Run>],
) -> Value {
    let infos = ids.iter().zip(found).zip(images);
    let infos = infos.map(|((id, run), images)| ((id, *images), run.as_ref().map(run_info)));
    match form {
        RunsReport::List => infos.map(|(id, run)| entry("run_id", id, run.as_ref())).collect(),
        RunsReport::Tasks => {
            let entries = infos.map(|(id, run)| {
                let mut entry = entry("task_id", id, run.as_ref());
                if let Some(run) = run {
                    entry["status"] = json!(task_status(run.status));
                    if let Some(error) = task_error(&run) {
                        entry["error"] = json!(error);
                    }
                }
                entry
            });
            // With its id alone each has room.
            let share = ANSWER_BYTES_MAX / ids.len().max(1);
            let bytes = share.saturating_sub(ENTRY_BYTES) / 2;
            entries.map(|entry| shortened(entry, bytes)).collect()
        }
        RunsReport::Subagent => {
            let one = infos.into_iter().next();
            one.and_then(|((_, images), run)| Some(with_images(subagent(&run?), images)))
                .unwrap_or_default()
        }
        RunsReport::Run => {
            let one = infos.into_iter().next().and_then(|(_, run)| run);
            one.map_or(Value::Null, |run| {
                let mut shown = task_run(&run);
                if !run.status.is_terminal() {
                    shown["timed_out"] = json!(true);
                }
                shown
            })
        }
    }
}

/// About the bytes of an entry of a wait beside its result and its error.
const ENTRY_BYTES: usize = 140;

/// A shown run with the number of the images of its answer that are shown with it.
fn with_images(mut shown: Value, images: usize) -> Value {
    if images > 0 {
        shown["images"] = json!(images);
    }
    shown
}

fn entry(key: &str, (id, images): (&RunId, usize), run: Option<&RunInfo>) -> Value {
    let mut entry = json!({ key: id });
    match run {
        Some(run) => {
            entry["status"] = json!(run.status);
            if let Some(result) = given(run) {
                entry["result"] = result;
            }
            if let Some(error) = &run.error {
                entry["error"] = json!(error);
            }
            mark_cut(&mut entry, run);
        }
        None => entry["status"] = json!("not_found"),
    }
    with_images(entry, images)
}

#[cfg(test)]
mod tests {
    use taskrun_journal::runs::OUTPUT_PART_BYTES_MAX;

    use super::*;

    #[test]
    fn w_001_every_status_has_a_word_of_tasks_and_every_word_means_statuses() {
        for &status in Status::ALL {
            let word = task_status(status);
            let meant = statuses(word).expect(word);
            assert!(meant.contains(&status), "{status} is shown as {word}");
            assert!(statuses(status.as_str()).expect("known").contains(&status));
        }
        assert_eq!(statuses("in progress"), None);
    }

    #[test]
    fn answers_are_such_that_a_model_is_shown_them_whole() {
        let run = |text: &str| json!({ "id": "r", "task": text, "result": text, "error": text, "labels": { "k": text } });
        for text in ["\"\\".repeat(4_000), "ä".repeat(4_000)] {
            for count in [1, 16, 50, 256] {
                let (listed, is_cut) = listed(vec![run(&text); count]);
                assert_eq!(is_cut, listed.len() < count);
                assert!(!listed.is_empty());
                let bytes = Value::Array(listed).to_string().len();
                assert!(bytes <= CONVERSATION_RESULT_BYTES_MAX, "{count}: {bytes}");
            }
            let alone = shortened(run(&text), TEXT_BYTES_MAX).to_string().len();
            assert!(alone <= CONVERSATION_RESULT_BYTES_MAX, "{alone}");
        }
        for text in ["\u{0}".repeat(OUTPUT_PART_BYTES_MAX), "\"".repeat(OUTPUT_PART_BYTES_MAX)] {
            let part = OutputPart { status: Status::Completed, text, from: 0, bytes: 1 << 20 };
            let bytes = result_part("r", &part).to_string().len();
            assert!(bytes <= CONVERSATION_RESULT_BYTES_MAX, "{bytes}");
        }
        let text = "x".repeat(500);
        let cut = shortened(json!({ "result": { "k": text }, "labels": { "k": text } }), 100);
        assert!(cut["result"].as_str().is_some_and(|text| text.ends_with(CUT)), "{cut}");
        assert_eq!(cut["labels"], Value::Null);
        let short = json!({ "id": "r", "result": "short" });
        assert_eq!(listed(vec![short.clone()]), (vec![short], false));
    }
}
