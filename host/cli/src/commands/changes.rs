//! The output of commands that change runs: each with whether it changed, and the runs beneath it.

use serde::Serialize;
use taskrun_journal::ids::RunId;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::time::Timestamp;

use crate::args::OutputFormat;
use crate::context::Context;
use crate::output::{human, progress_text, versioned};

/// The change of one of the runs that were named.
pub(super) struct Change<'a> {
    /// As it stands then.
    pub(super) run: &'a Run,
    /// True if it was this command that changed it.
    pub(super) changed: bool,
    /// Runs beneath it that were changed as well.
    pub(super) descendants: &'a [RunId],
}

#[derive(Serialize)]
struct ChangeView<'a> {
    changed: bool,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    descendants: &'a [RunId],
    #[serde(flatten)]
    run: RunView,
}

#[derive(Serialize)]
struct List<'a> {
    runs: Vec<ChangeView<'a>>,
}

impl<'a> From<&Change<'a>> for ChangeView<'a> {
    fn from(change: &Change<'a>) -> Self {
        let Change { run, changed, descendants } = *change;
        Self { changed, descendants, run: run.into() }
    }
}

pub(super) fn print<'a>(context: &Context, changes: impl Iterator<Item = Change<'a>>) {
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table => {
            let now = context.now();
            changes.for_each(|change| printer.line(line(&change, now)));
        }
        OutputFormat::Json => {
            let runs = changes.map(|change| ChangeView::from(&change)).collect();
            printer.json(&versioned(List { runs }));
        }
        OutputFormat::Ndjson => {
            changes.for_each(|change| printer.json_line(&versioned(ChangeView::from(&change))));
        }
        OutputFormat::Name => changes.for_each(|change| printer.line(change.run.id())),
    }
}

fn line(change: &Change<'_>, now: Timestamp) -> String {
    let note = if change.changed { "" } else { ", nothing changed" };
    let beneath = match change.descendants.len() as u64 {
        0 => String::new(),
        many => format!(", and {} beneath it", human::count(many, "run")),
    };
    format!("{}  {}{note}{beneath}", change.run.id(), progress_text(change.run, now))
}
