//! Commands about the outcomes of background runs.

use clap::{Args, Subcommand, ValueEnum};
use taskrun_journal::delivery::ReportState;

/// The outcomes of background runs.
#[derive(Debug, Subcommand)]
pub enum OutboxCommand {
    /// Lists outcomes of which nobody was told for good, in the order in which the runs ended
    Ls(OutboxListArgs),
    /// Shows the outcome of a run, and who was told of it
    Show(OutboxArgs),
    /// Makes a dead letter pending again: the next run that may be told is
    Retry(OutboxArgs),
    /// Forgets an outcome that is pending or a dead letter: nobody is told of it
    Drop(OutboxArgs),
}

/// Arguments of `outbox ls`.
#[derive(Debug, Args)]
pub struct OutboxListArgs {
    /// Only outcomes at this stage; several may be given [default: all but delivered]
    #[arg(long, value_name = "STATE")]
    pub state: Vec<OutboxState>,
}

/// Arguments of commands about one outcome.
#[derive(Debug, Args)]
pub struct OutboxArgs {
    /// The run that ended
    #[arg(value_name = "RUN")]
    pub run: String,
}

/// The stages of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutboxState {
    /// Nobody was told
    Pending,
    /// A run was told that has not ended
    Taken,
    /// It stands in a conversation
    Delivered,
    /// Nobody is told any more
    Dead,
}

impl OutboxState {
    /// The stage that it names.
    #[must_use]
    pub fn state(self) -> ReportState {
        match self {
            Self::Pending => ReportState::Pending,
            Self::Taken => ReportState::Taken,
            Self::Delivered => ReportState::Delivered,
            Self::Dead => ReportState::Dead,
        }
    }
}
