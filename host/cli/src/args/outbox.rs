//! Commands about the outcomes of background runs, and about what subscribers are told of runs.

use clap::{Args, Subcommand, ValueEnum};
use taskrun_journal::delivery::ReportState;
use taskrun_journal::dispatch::DispatchState;

/// The outcomes of background runs, and what subscribers are told of runs.
#[derive(Debug, Subcommand)]
pub(crate) enum OutboxCommand {
    /// Lists outcomes and events of which nobody was told for good, in the order in which they came
    Ls(OutboxListArgs),
    /// Shows who was told of the outcome of a run, and of its events
    Show(OutboxArgs),
    /// Makes dead letters of a run pending again
    Retry(OutboxChangeArgs),
    /// Forgets what of a run is pending or a dead letter: nobody is told of it
    Drop(OutboxChangeArgs),
}

/// Arguments of `outbox ls`.
#[derive(Debug, Args)]
pub(crate) struct OutboxListArgs {
    /// Only those at this stage; several may be given [default: all but delivered]
    #[arg(long, value_name = "STATE")]
    pub state: Vec<OutboxState>,
}

/// Arguments of commands about one outcome.
#[derive(Debug, Args)]
pub(crate) struct OutboxArgs {
    /// The run
    #[arg(value_name = "RUN")]
    pub run: String,
}

/// Arguments of `outbox retry` and `outbox drop`.
#[derive(Debug, Args)]
pub(crate) struct OutboxChangeArgs {
    /// The run
    #[arg(value_name = "RUN")]
    pub run: String,
    /// Only what this subscriber is told, as in `webhook/ci` [default: the outcome and all
    /// subscribers]
    #[arg(long, value_name = "SUBSCRIBER")]
    pub subscriber: Option<String>,
}

/// The stages of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutboxState {
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
    pub(crate) fn state(self) -> ReportState {
        match self {
            Self::Pending => ReportState::Pending,
            Self::Taken => ReportState::Taken,
            Self::Delivered => ReportState::Delivered,
            Self::Dead => ReportState::Dead,
        }
    }

    /// The same of what a subscriber is told.
    #[must_use]
    pub(crate) fn of_dispatch(self) -> DispatchState {
        match self {
            Self::Pending => DispatchState::Pending,
            Self::Taken => DispatchState::Taken,
            Self::Delivered => DispatchState::Delivered,
            Self::Dead => DispatchState::Dead,
        }
    }
}
