//! One run in full.

use std::time::Duration;

use taskrun_journal::channel::Channel;
use taskrun_journal::media::Media;
use taskrun_journal::message::{Labels, Message, Usage};
use taskrun_journal::metrics::{MeasureView, MetricsView, SeriesView};
use taskrun_journal::money::UsdDisplay;
use taskrun_journal::progress::{Children, Progress};
use taskrun_journal::run::{PauseView, Run, RunView};
use taskrun_journal::time::Timestamp;

use super::escape::{escaped_block, escaped_line};
use super::table::pairs;
use super::{human, status_text, without_answer};

/// The consumption of the runs beneath one.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsageBeneath {
    /// Of those that were read, together.
    pub usage: Usage,
    /// True if these are not all of them: at least that was spent.
    pub is_least: bool,
}

/// The things that are shown with a run and are not in its record.
#[derive(Clone, Copy, Debug, Default)]
pub struct Surroundings<'a> {
    /// The counts of the runs that it started.
    pub children: Children,
    /// The consumption of all runs beneath it that may be seen; none where it was not read.
    pub beneath: UsageBeneath,
    /// The heartbeat that takes it, if it is an entry that waits.
    pub beat: Option<Timestamp>,
    /// The lines about its setback, each with its name.
    pub setback: &'a [(&'static str, String)],
}

/// The run, as `get` shows it.
#[must_use]
pub fn run_details(run: &Run, around: &Surroundings<'_>, now: Timestamp) -> String {
    let view = RunView::with_children(run, around.children);
    let line = |text: &str| escaped_line(text).into_owned();
    let mut lines = vec![("run", view.id.to_string())];
    if let Some(name) = &view.name {
        lines.push(("name", line(name)));
    }
    lines.push(("agent", format!("{} ({})", line(&view.agent_name), view.agent_digest)));
    lines.push(("status", status_text(run)));
    if let Some(reason) = view.stop_reason {
        let alias = reason.alias().map(|alias| format!(" ({alias})")).unwrap_or_default();
        lines.push(("stop reason", format!("{reason}{alias}")));
    }
    if let Some(reason) = &view.cancel_reason {
        lines.push(("reason", line(reason)));
    }
    if let Some(until) = view.blocked_until.or(around.beat) {
        let then = without_answer(run).map(|then| format!("; {then} then")).unwrap_or_default();
        lines.push(("goes on", format!("{until} ({}{then})", human::due(until, now))));
    }
    if let Some(pause) = &view.paused {
        lines.push(("paused", paused(pause, now)));
    }
    for open in &view.awaits {
        let text = format!("{} ({}): {}", open.id, open.on, open.prompt);
        lines.push(("asks", line(&text)));
    }
    if !view.narrow.is_empty() {
        lines.push(("narrowed", line(&view.narrow.to_string())));
    }
    if let Some(parent) = &view.parent_run_id {
        let attached = if view.attached { ", and ends with it" } else { "" };
        lines.push(("parent", format!("{parent}{attached}")));
    }
    lines.push(("owner", line(&view.owner_user_id)));
    let session = Some(&view.parent_session_id).filter(|session| !session.is_empty());
    lines.push(("session", session.map_or_else(|| "none".to_owned(), |session| line(session))));
    if let Some(text) = application(&view) {
        lines.push(("application", text));
    }
    lines.push(("created", moment(view.created_at, now)));
    if let Some(started) = view.started_at {
        lines.push(("started", moment(started, now)));
    }
    if let Some(finished) = view.finished_at {
        lines.push(("finished", moment(finished, now)));
    }
    if let Some(ms) = view.duration_ms {
        lines.push(("took", human::duration(Duration::from_millis(ms))));
    }
    lines.push(("work", work(run, &view)));
    push_autonomy(&mut lines, run, &view, now);
    if let Some(text) = view.progress.as_ref().and_then(|all| beneath(all, &around.beneath)) {
        lines.push(("beneath", text));
    }
    if let Some(metrics) = &view.metrics {
        lines.push(("metrics", metrics_text(metrics)));
    }
    if view.attempt > 1 {
        lines.push(("attempt", view.attempt.to_string()));
    }
    lines.extend(around.setback.iter().cloned());
    push_labels(&mut lines, "labels", &view.labels);
    push_labels(&mut lines, "metadata", &view.metadata);
    push_labels(&mut lines, "state", &run.spec.given_state());
    push_channels(&mut lines, &view.channels);
    if let Some(text) = context(&view) {
        lines.push(("context", text));
    }
    lines.push(("task", escaped_block(&view.task).into_owned()));
    push_images(&mut lines, &view.images);
    if let Some(error) = &view.error {
        lines.push(("error", escaped_block(error).into_owned()));
    }
    if let Some(failure) = &view.failure {
        lines.push(("failure", format!("{}: {}", failure.kind(), line(&failure.to_string()))));
    }
    if let Some(result) = &view.result {
        let mut text = escaped_block(result).into_owned();
        if view.truncated {
            let size = human::bytes(view.result_bytes.unwrap_or(0));
            let id = &view.id;
            let whole = match view.artifact {
                // That prints what the run returned.
                Some(_) if view.returned.is_none() => format!("`taskrun get {id} --result`"),
                Some(_) | None => format!("`taskrun transcript {id}`"),
            };
            text.push_str(&format!("\n… ({size} in all; see {whole})"));
        }
        lines.push(("result", text));
    }
    push_images(&mut lines, &view.result_images);
    pairs(&lines)
}

/// The state of a run that goes on by itself, in its own words too.
fn push_autonomy(lines: &mut Vec<(&str, String)>, run: &Run, view: &RunView, now: Timestamp) {
    if let Some(before) = &view.continues {
        lines.push(("continues", before.to_string()));
    }
    if let Some(rounds) = view.rounds {
        let most = run.spec.autonomy.as_ref().and_then(|autonomy| autonomy.rounds);
        let of = most.map(|most| format!(" of {most}")).unwrap_or_default();
        lines.push(("rounds", format!("{rounds}{of}")));
    }
    // While it is blocked that is when it goes on.
    if let (Some(at), None) = (view.next_wake_at, view.blocked_until) {
        lines.push(("next wake", format!("{at} ({})", human::due(at, now))));
    }
    if let Some(reported) = &view.reported {
        let detail = reported.detail.as_ref().map(|detail| format!(": {detail}"));
        let text = format!("{}{}", reported.state, detail.unwrap_or_default());
        lines.push(("reported", escaped_line(&text).into_owned()));
    }
    // The answer stands below.
    if let Some(detail) = view.detail.as_ref().filter(|detail| view.result.as_ref() != Some(detail))
    {
        lines.push(("detail", escaped_line(detail).into_owned()));
    }
    if let Some(returned) = &view.returned {
        lines.push(("returned", escaped_line(&returned.to_string()).into_owned()));
    }
}

/// Images of what stands before them.
fn push_images(lines: &mut Vec<(&str, String)>, images: &[Media]) {
    if !images.is_empty() {
        let images: Vec<_> = images.iter().map(human::image).collect();
        lines.push(("images", images.join("\n")));
    }
}

/// The channels of a run, with what is not the usual of each.
fn push_channels(lines: &mut Vec<(&'static str, String)>, channels: &[Channel]) {
    let shown = channels.iter().map(|channel| {
        let access = (!channel.access.is_open()).then_some(channel.access.as_str());
        let muted = channel.muted.then_some("muted");
        let hidden = channel.hidden.then_some("hidden");
        let words: Vec<&str> = [access, muted, hidden].into_iter().flatten().collect();
        let end = if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) };
        format!("{} to {}{end}", escaped_line(&channel.name), escaped_line(&channel.to))
    });
    let shown: Vec<String> = shown.collect();
    if !shown.is_empty() {
        lines.push(("channels", shown.join("\n")));
    }
}

fn work(run: &Run, view: &RunView) -> String {
    let tokens = view.progress.as_ref().map_or(0, |progress| progress.total_tokens);
    let mut text = format!(
        "{}, {}",
        human::count(u64::from(view.turns), "turn"),
        human::count(u64::from(run.state.tool_calls), "tool call")
    );
    push_spent(&mut text, tokens, view.cost_microusd.unwrap_or(0));
    text
}

/// Tokens and their price, as far as there are any.
fn push_spent(text: &mut String, tokens: u64, cost_microusd: u64) {
    if tokens > 0 {
        text.push_str(&format!(", {}", human::count(tokens, "token")));
    }
    if cost_microusd > 0 {
        text.push_str(&format!(", {} USD", UsdDisplay(cost_microusd)));
    }
}

/// The application as which it runs, and the one that asked for it, where that is another.
fn application(view: &RunView) -> Option<String> {
    let own = view.app_name.clone();
    let other = view.parent_app_name.as_ref().filter(|asked| Some(*asked) != own.as_ref());
    let other = other.map(|asked| format!("asked for from {asked}"));
    let words: Vec<String> = own.into_iter().chain(other).collect();
    (!words.is_empty()).then(|| escaped_line(&words.join(", ")).into_owned())
}

/// The size of what it was told before its task, which may be a whole conversation.
fn context(view: &RunView) -> Option<String> {
    let messages = &view.context_messages;
    let (number, id) = (human::count(messages.len() as u64, "message"), &view.id);
    let size = human::bytes(messages.iter().map(Message::bytes).sum::<usize>() as u64);
    (!messages.is_empty()).then(|| format!("{number}, {size}: `taskrun transcript {id}`"))
}

/// The number of the runs beneath it that have ended, and the consumption there.
fn beneath(progress: &Progress, spent: &UsageBeneath) -> Option<String> {
    let (finished, expected) = progress.finished_children.zip(progress.expected_children)?;
    let mut text = format!("{finished} of {} ended", human::count(expected, "run"));
    let UsageBeneath { usage, is_least } = spent;
    let mut tokens = usage.total_tokens;
    if *is_least {
        // Also where none were found: there may be some.
        text.push_str(&format!(", at least {}", human::count(tokens, "token")));
        tokens = 0;
    }
    push_spent(&mut text, tokens, usage.cost_microusd);
    Some(text)
}

/// A line for each series.
fn metrics_text(metrics: &MetricsView) -> String {
    let line = |series: &SeriesView| {
        let labels: Vec<String> = series.labels.iter().map(|(k, v)| format!(" {k}={v}")).collect();
        let value = match series.measure {
            MeasureView::Counter { sum } => sum.to_string(),
            MeasureView::Values { count, sum, min, max } => {
                format!("{count} of {min} to {max}, together {sum}")
            }
        };
        let text = format!("{}: {}{}: {value}", series.source, series.name, labels.concat());
        escaped_line(&text).into_owned()
    };
    let mut lines: Vec<String> = metrics.series.iter().map(line).collect();
    if metrics.dropped > 0 {
        lines.push(format!("({} not taken into account)", metrics.dropped));
    }
    lines.join("\n")
}

fn moment(time: Timestamp, now: Timestamp) -> String {
    format!("{time} ({} ago)", human::age(now.since(time)))
}

fn paused(pause: &PauseView, now: Timestamp) -> String {
    let mut text = format!("{} by {}", moment(pause.since, now), pause.by);
    if let Some(until) = pause.until {
        text.push_str(&format!(", until {until}"));
    }
    if let Some(reason) = &pause.reason {
        text.push_str(&format!(": {reason}"));
    }
    escaped_line(&text).into_owned()
}

fn push_labels(lines: &mut Vec<(&'static str, String)>, name: &'static str, labels: &Labels) {
    if !labels.is_empty() {
        let all: Vec<String> =
            labels.iter().map(|(k, v)| escaped_line(&format!("{k}={v}")).into_owned()).collect();
        lines.push((name, all.join(" ")));
    }
}
