//! The output of commands that change runs: each with whether it changed, and the runs beneath it;
//! and the refusals of others.

use serde::Serialize;
use taskrun_journal::ids::RunId;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::time::Timestamp;

use crate::args::OutputFormat;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
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

/// The failures of a command that goes on with the next run where one is refused. The first is the
/// failure of the command; the others are told as they come.
pub(super) struct Refusals<'a> {
    context: &'a Context,
    /// True if a failure has to say of which run it is.
    are_several: bool,
    first: Option<Box<Failure>>,
}

impl<'a> Refusals<'a> {
    /// None yet, of a command to which these runs were named.
    pub(super) fn none(context: &'a Context, runs: &[String]) -> Self {
        Self { context, are_several: runs.len() > 1, first: None }
    }

    /// The value of a run that was not refused.
    pub(super) fn sort_out<T>(
        &mut self,
        run: &RunId,
        result: Result<T, impl Into<Box<Failure>>>,
    ) -> Option<T> {
        result.map_err(|refusal| self.add(run, refusal.into())).ok()
    }

    fn add(&mut self, run: &RunId, mut failure: Box<Failure>) {
        if self.are_several && !failure.message.contains(run.as_str()) {
            failure.message = format!("run {run}: {}", failure.message);
        }
        failure.run_id.get_or_insert_with(|| run.clone());
        if self.first.is_none() {
            self.first = Some(failure);
            return;
        }
        self.context.printer.tell_failure(failure, true);
    }

    /// The end of the command.
    pub(super) fn outcome(self) -> Outcome {
        self.first.map_or(Ok(Exit::Completed), Err)
    }
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

/// Prints the changes; nothing, not even an empty list, where all runs were refused.
pub(super) fn print<'a>(context: &Context, changes: impl Iterator<Item = Change<'a>>) {
    let printer = &context.printer;
    let mut changes = changes.peekable();
    if changes.peek().is_none() {
        return;
    }
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
