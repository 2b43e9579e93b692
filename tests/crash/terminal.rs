//! The program as a person uses it beside the hosts.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use taskrun_journal::ids::RunId;

/// Words of a failed command where the run went on, or the store was held by a stopped process:
/// whoever looks again finds out.
const OVERTAKEN: [&str; 4] = ["already-answered", "unknown-item", "run-ended", "store-locked"];

/// A program on a data directory.
#[derive(Clone)]
pub(crate) struct Terminal {
    pub(crate) program: PathBuf,
    /// Where it is started: a folder without a policy.
    pub(crate) folder: PathBuf,
    pub(crate) data: PathBuf,
}

impl Terminal {
    /// `taskrun answer RUN ITEM --accept`, or `--decline`. Says whether it was acknowledged.
    ///
    /// # Errors
    /// The words of the program, if that is none of what may happen.
    pub(crate) fn answer(&self, run: &RunId, item: &str, accept: bool) -> Result<bool, String> {
        let word = if accept { "--accept" } else { "--decline" };
        let mut command = Command::new(&self.program);
        command.arg("--data-dir").arg(&self.data).args(["answer", run.as_str(), item, word]);
        forget_surroundings(&mut command);
        command.current_dir(&self.folder).stdin(Stdio::null());
        let output = command.output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(true);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let last: Value =
            serde_json::from_str(said.lines().last().unwrap_or_default()).unwrap_or_default();
        match last["error"]["code"].as_str() {
            Some(code) if OVERTAKEN.contains(&code) => Ok(false),
            Some(_) | None => Err(format!("taskrun answer {run} {item} {word}: {said}")),
        }
    }
}

/// Variables around the tests mean nothing to the programs that they start.
pub(crate) fn forget_surroundings(command: &mut Command) {
    for name in [
        "TASKRUN_CONFIG",
        "TASKRUN_DATA_DIR",
        "TASKRUN_TENANT",
        "TASKRUN_OUTPUT",
        "TASKRUN_OWNER",
        "TASKRUN_SESSION",
        "TASKRUN_LEASE",
    ] {
        command.env_remove(name);
    }
}
