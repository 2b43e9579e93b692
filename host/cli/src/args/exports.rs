//! Arguments of the commands about runs as files.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The file of an exported run
    pub file: PathBuf,
    /// Another build of the agent's component, which decides instead of the recorded one
    #[arg(long, value_name = "COMPONENT")]
    pub against: Option<PathBuf>,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The run
    pub run: String,
    /// The file, which must not be there yet [default: RUN.taskrun]
    pub file: Option<PathBuf>,
}
