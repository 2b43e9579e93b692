//! Arguments of the commands about runs as files.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `replay`.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The file of an exported run
    pub file: PathBuf,
    /// Another build of the agent's component, which decides instead of the recorded one
    #[arg(long, value_name = "COMPONENT")]
    pub against: Option<PathBuf>,
}

/// The files of `run`.
#[derive(Debug, Args)]
pub(crate) struct RecordingArgs {
    /// Writes the run into this file, which must not be there yet, when it has ended, as `taskrun
    /// export` does; waits for that
    #[arg(long, value_name = "FILE", conflicts_with_all = ["detach", "heartbeat"])]
    pub record: Option<PathBuf>,
    /// Executes the run in this file again by the component that the agent has now, as `taskrun
    /// replay` does, and starts nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = NOT_OF_A_REPLAY)]
    pub replay: Option<PathBuf>,
}

/// The arguments about a run that is started.
const NOT_OF_A_REPLAY: [&str; 38] = [
    "task",
    "images",
    "detach",
    "wait",
    "labels",
    "timeout",
    "idempotency_key",
    "reuse",
    "parent",
    "attached",
    "name",
    "only_tools",
    "only_tags",
    "deny_tags",
    "tool_timeouts",
    "deny",
    "budget",
    "no_pause",
    "tree",
    "autonomous",
    "rounds",
    "continuation",
    "result_schema",
    "max_defer",
    "exit_on_defer",
    "serial",
    "one_shot",
    "no_history",
    "deliver",
    "deliver_prompt",
    "no_queue",
    "answers",
    "unattended",
    "heartbeat",
    "subscriber",
    "channel",
    "id",
    "record",
];

/// Arguments of `export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The run
    pub run: String,
    /// The file, which must not be there yet [default: RUN.taskrun]
    pub file: Option<PathBuf>,
}
