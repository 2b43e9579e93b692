//! The part of `taskrun outbox` about what subscribers are told.

use serde::Serialize;
use taskrun::controller::Client;
use taskrun_journal::dispatch::{Dispatch, DispatchState, TaskEvent};
use taskrun_journal::list::PAGE_MAX;
use taskrun_journal::store::ReportChange;
use taskrun_journal::time::Timestamp;

use crate::args::OutputFormat;
use crate::context::Context;
use crate::failure::Outcome;
use crate::output::escape::excerpt;
use crate::output::table;

/// Longest name of a subscriber, and longest error, that is shown whole in a table.
const NAME_CHARS_MAX: usize = 32;
const ERROR_CHARS_MAX: usize = 60;

/// A dispatch, as the JSON output shows it.
#[derive(Serialize)]
pub(super) struct DispatchRow<'a> {
    run_id: &'a str,
    event: TaskEvent,
    subscriber: &'a str,
    state: DispatchState,
    attempts: u32,
    /// The next attempt, of one that is pending.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "taskrun_journal::time::rfc3339::option::serialize"
    )]
    due: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

impl<'a> DispatchRow<'a> {
    pub(super) fn of(dispatch: &'a Dispatch) -> Self {
        let is_pending = dispatch.state == DispatchState::Pending;
        Self {
            run_id: dispatch.key.run.as_str(),
            event: dispatch.key.event,
            subscriber: &dispatch.key.subscriber,
            state: dispatch.state,
            attempts: dispatch.attempts,
            due: Some(dispatch.due).filter(|due| is_pending && due.0 > 0),
            error: dispatch.error.as_deref(),
        }
    }
}

/// Those at some stages that the caller sees.
pub(super) async fn list(client: &Client, states: &[DispatchState]) -> Outcome<Vec<Dispatch>> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let page = client.dispatches(states, after, PAGE_MAX).await?;
        let Some(last) = page.last() else { return Ok(all) };
        after = last.number;
        all.extend(page);
    }
}

/// Changes those of a run that are of one subscriber, or of all; says how many there were.
pub(super) async fn change(
    client: &Client,
    run: &str,
    subscriber: Option<&str>,
    change: ReportChange,
) -> Outcome<usize> {
    Ok(client.change_dispatches(run, subscriber, change).await?)
}

/// A table of them for people.
pub(super) fn print_table(context: &Context, dispatches: &[Dispatch]) {
    let printer = &context.printer;
    if dispatches.is_empty() || printer.format() != OutputFormat::Table {
        return;
    }
    let rows = dispatches.iter().map(DispatchRow::of).map(|row| {
        vec![
            row.run_id.to_owned(),
            row.event.to_string(),
            excerpt(row.subscriber, NAME_CHARS_MAX),
            row.state.as_str().to_owned(),
            row.attempts.to_string(),
            row.error.map(|error| excerpt(error, ERROR_CHARS_MAX)).unwrap_or_default(),
        ]
    });
    let headings = ["RUN", "EVENT", "SUBSCRIBER", "STATE", "ATTEMPTS", "ERROR"];
    printer.line(table(&headings, rows.collect(), printer.width()));
}
