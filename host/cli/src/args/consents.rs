//! Commands about consents to tool calls that hold in more than one run.

use clap::{Args, Subcommand};

/// Arguments of `consents`.
#[derive(Debug, Args)]
pub(crate) struct ConsentsArgs {
    /// The change of one, instead of the list
    #[command(subcommand)]
    pub command: Option<ConsentsCommand>,
    /// Those that are over, too, as far as they are not removed
    #[arg(short, long)]
    pub all: bool,
}

/// Changes of consents.
#[derive(Debug, Subcommand)]
pub(crate) enum ConsentsCommand {
    /// Revokes a consent: calls that begin from now on ask again
    ///
    /// It stays on record until `gc` removes it. The run that it answered keeps its answer.
    Revoke(ConsentsRevokeArgs),
}

/// Arguments of `consents revoke`.
#[derive(Debug, Args)]
pub(crate) struct ConsentsRevokeArgs {
    /// Number of the consent
    #[arg(value_name = "NUMBER")]
    pub number: u64,
}
