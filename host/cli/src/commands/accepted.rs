//! A run that was asked for, as programs are shown it.

use serde::Serialize;
use taskrun::controller::Controller;
use taskrun_journal::message::Labels;
use taskrun_journal::run::{Run, RunView};

use crate::args::OutputFormat;
use crate::context::Context;
use crate::failure::Outcome;
use crate::output::versioned;

/// A run that was asked for.
#[derive(Serialize)]
pub(super) struct AcceptedRun {
    #[serde(flatten)]
    run: RunView,
    /// Its state without the host's own keys.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    runtime_state: Labels,
    /// True if the run was there before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reused: bool,
}

impl AcceptedRun {
    fn new(run: &Run, view: RunView, reused: bool) -> Self {
        Self { run: view, runtime_state: run.spec.given_state(), reused }
    }
}

pub(super) fn print_accepted(context: &Context, run: &Run, reused: bool) {
    let accepted = || versioned(AcceptedRun::new(run, run.into(), reused));
    match context.printer.format() {
        OutputFormat::Table | OutputFormat::Name => context.printer.line(run.id()),
        OutputFormat::Json => context.printer.json(&accepted()),
        OutputFormat::Ndjson => context.printer.json_line(&accepted()),
    }
}

/// A request for a run, which is waited for.
#[derive(Clone, Copy)]
pub(super) struct Submission<'a> {
    pub(super) controller: &'a Controller,
    /// True if the run was there before.
    pub(super) reused: bool,
}

impl Submission<'_> {
    /// The run as `taskrun get` shows it to programs, but for a change of its agent and its setback.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn view(self, run: &Run) -> Outcome<AcceptedRun> {
        let children = self.controller.children(run).await?;
        Ok(AcceptedRun::new(run, RunView::with_children(run, children), self.reused))
    }
}
