//! Filling the disk of the host.

use serde::{Deserialize, Serialize};
use taskrun_guest::tool::{Failure, ToolCall, ToolResult};
use taskrun_guest::workspace::{self, WriteMode};

#[derive(Deserialize)]
struct Args {
    folder: String,
    files: u32,
    bytes: usize,
    how: How,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum How {
    Create,
    Append,
    Replace,
    Folders,
}

#[derive(Serialize)]
struct Filled {
    done: u32,
    refused: Option<String>,
}

pub(crate) fn fill(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: Args = call.args()?;
    let contents = vec![b'x'; args.bytes];
    let mut done = 0;
    let mut refused = None;
    for number in 0..args.files {
        let (own, same) = (format!("{}/{number}", args.folder), format!("{}/one", args.folder));
        let written = match args.how {
            How::Create => workspace::write(&own, &contents, WriteMode::CreateNew),
            How::Append => workspace::write(&same, &contents, WriteMode::Append),
            How::Replace => workspace::write(&same, &contents, WriteMode::Replace),
            How::Folders => workspace::create_directory(&own),
        };
        if let Err(error) = written {
            refused = Some(error.to_string());
            break;
        }
        done += 1;
    }
    ToolResult::json(&Filled { done, refused })
}

#[derive(Deserialize)]
struct Folder {
    folder: String,
}

#[derive(Serialize)]
struct Listed {
    entries: usize,
    truncated: bool,
}

pub(crate) fn list_all(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: Folder = call.args()?;
    let listing = workspace::list(&args.folder, true, u32::MAX)
        .map_err(|error| Failure::new(error.to_string()))?;
    ToolResult::json(&Listed { entries: listing.entries.len(), truncated: listing.truncated })
}
