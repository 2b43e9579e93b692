//! Commands that pause runs, and that tell them something.

use std::time::Duration;

use clap::Args;

use super::parse::duration;

/// Arguments of `pause`.
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The runs
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<String>,
    /// Why, in words; kept in the journal
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
pub struct ResumeArgs {
    /// The runs
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<String>,
    /// What their next turn is told, as a message of the user; `-` reads it from stdin, `@FILE`
    /// from a file
    #[arg(long, value_name = "TEXT")]
    pub message: Option<String>,
    /// Why, in words; kept in the journal, and told to no agent
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// Resumes everything beneath them as well
    #[arg(long)]
    pub tree: bool,
}

/// Arguments of `inject`.
#[derive(Debug, Args)]
pub struct InjectArgs {
    /// The run
    pub run: String,
    /// What it is told; `-` reads it from stdin, `@FILE` from a file
    #[arg(required = true, value_name = "TEXT")]
    pub words: Vec<String>,
}
