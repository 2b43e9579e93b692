//! Attempts to get out of the workspace.

use serde::{Deserialize, Serialize};
use taskrun_guest::{
    tool::{Failure, ToolCall, ToolResult},
    workspace::{self, FileError, WriteMode},
};

#[derive(Deserialize)]
struct Args {
    paths: Vec<String>,
}

/// The results of the attempts at one path: `ok`, or the error's code.
#[derive(Serialize)]
struct Read<'a> {
    path: &'a str,
    read: String,
    list: String,
    stat: String,
    /// The start of what was read.
    text: Option<String>,
}

#[derive(Serialize)]
struct Write<'a> {
    path: &'a str,
    create: String,
    replace: String,
    append: String,
    create_directory: String,
    remove: String,
}

fn outcome<T>(result: &Result<T, FileError>) -> String {
    match result {
        Ok(_) => "ok".into(),
        Err(error) => error.code().into(),
    }
}

pub(crate) fn escape_paths(call: &ToolCall) -> Result<ToolResult, Failure> {
    const BYTES: u32 = 256;
    let args: Args = call.args()?;
    let tried: Vec<Read> = args
        .paths
        .iter()
        .map(|path| {
            let read = workspace::read(path, 0, BYTES);
            Read {
                path,
                read: outcome(&read),
                list: outcome(&workspace::list(path, true, 10)),
                stat: outcome(&workspace::stat(path)),
                text: read.ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
            }
        })
        .collect();
    ToolResult::json(&tried)
}

pub(crate) fn write_paths(call: &ToolCall) -> Result<ToolResult, Failure> {
    const CONTENTS: &[u8] = b"written by evil-tool";
    let args: Args = call.args()?;
    let tried: Vec<Write> = args
        .paths
        .iter()
        .map(|path| Write {
            path,
            create: outcome(&workspace::write(path, CONTENTS, WriteMode::CreateNew)),
            replace: outcome(&workspace::write(path, CONTENTS, WriteMode::Replace)),
            append: outcome(&workspace::write(path, CONTENTS, WriteMode::Append)),
            create_directory: outcome(&workspace::create_directory(path)),
            remove: outcome(&workspace::remove(path)),
        })
        .collect();
    ToolResult::json(&tried)
}
