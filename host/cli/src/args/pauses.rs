//! Commands that pause runs, and that tell them something.

use std::time::Duration;

use clap::Args;

use super::parse::{Budget, budget, duration};

/// Arguments of `pause`.
#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// Runs to pause
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<String>,
    /// Reason, in words; kept in the journal
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// When they go on by themselves [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Pauses everything beneath them as well
    #[arg(long)]
    pub tree: bool,
}

/// Arguments of `resume`.
#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    /// Runs to resume; an autonomous one that has ended is continued by another run. Without any, the
    /// latest autonomous run of the session that --session names
    #[arg(value_name = "RUN")]
    pub runs: Vec<String>,
    /// Agent of the run that is looked for in the session, and that begins one where there is none
    #[arg(long, value_name = "AGENT", conflicts_with = "runs")]
    pub agent: Option<String>,
    /// Message of the user for their next turn, which may be that of the run that continues one which
    /// has ended; `-` reads it from stdin, `@FILE` from a file
    #[arg(long, value_name = "TEXT")]
    pub message: Option<String>,
    /// Note of the end of a pause, in words; kept in the journal, and told to no agent
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// Resumes everything beneath paused ones as well
    #[arg(long)]
    pub tree: bool,
    /// Less than the agent's own budget for the run that continues one which has ended, as a total of
    /// both: the keys of `run --budget`
    #[arg(long, value_name = "KEY=VALUE,..", value_parser = budget)]
    pub budget: Option<Budget>,
    /// Most rounds of that run, those before included; no more than its agent's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
}

/// Arguments of `adopt`.
#[derive(Debug, Args)]
#[group(required = true)]
pub(crate) struct AdoptArgs {
    /// Runs to adopt
    #[arg(value_name = "RUN", conflicts_with = "agent")]
    pub runs: Vec<String>,
    /// All open runs of this agent, but for those that are under way
    #[arg(long, value_name = "AGENT")]
    pub agent: Option<String>,
}

/// Arguments of `wake`.
#[derive(Debug, Args)]
pub(crate) struct WakeArgs {
    /// Runs to wake
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<String>,
    /// Message for their next turn, which is told in any case that it comes early; `-` reads it from
    /// stdin, `@FILE` from a file
    #[arg(long, value_name = "TEXT")]
    pub message: Option<String>,
}

/// Arguments of `inject`.
#[derive(Debug, Args)]
pub(crate) struct InjectArgs {
    /// Run that is told
    pub run: String,
    /// Channel of the run over which it was said
    #[arg(long, value_name = "CHANNEL")]
    pub channel: Option<String>,
    /// Text of the message; `-` reads it from stdin, `@FILE` from a file
    #[arg(required = true, value_name = "TEXT")]
    pub words: Vec<String>,
}
