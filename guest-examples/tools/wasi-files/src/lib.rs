//! A tool that reads and writes files through `std::fs`, as existing code does. Built for
//! `wasm32-wasip2`, it sees the folders that the policy preopens, and nothing else.

use serde::{Deserialize, Serialize};
use std::{fs, io, path::Path};
use taskrun_guest::tool::{Failure, ToolCall, ToolResult};

const PATH: &str = r#"{
  "type": "object",
  "properties": {
    "path": {"type": "string", "minLength": 1, "description": "From the root of the granted folders, such as `/docs/a.md`."}
  },
  "required": ["path"],
  "additionalProperties": false
}"#;
const WRITE: &str = r#"{
  "type": "object",
  "properties": {
    "path": {"type": "string", "minLength": 1, "description": "From the root of the granted folders, such as `/docs/a.md`."},
    "contents": {"type": "string"}
  },
  "required": ["path", "contents"],
  "additionalProperties": false
}"#;

taskrun_guest::tool! {
    /// Reads a whole text file.
    fn read(PATH, title("Read a file"), read_only, tag("files")) => read;

    /// Writes a text file, in place of the one that is there.
    fn write(WRITE, title("Write a file"), destructive, idempotent, tag("files")) => write;

    /// Lists the names in a folder, sorted; those of folders end with a slash.
    fn list(PATH, title("List a folder"), read_only, tag("files")) => list;
}

#[derive(Deserialize)]
struct PathArgs {
    path: String,
}

#[derive(Deserialize)]
struct WriteArgs {
    path: String,
    contents: String,
}

#[derive(Serialize)]
struct Text {
    text: String,
}

#[derive(Serialize)]
struct Written {
    bytes: usize,
}

#[derive(Serialize)]
struct Names {
    names: Vec<String>,
}

fn read(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: PathArgs = call.args()?;
    let text = fs::read_to_string(&args.path).map_err(|error| failure(&error, &args.path))?;
    ToolResult::json(&Text { text })
}

fn write(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: WriteArgs = call.args()?;
    fs::write(&args.path, &args.contents).map_err(|error| failure(&error, &args.path))?;
    ToolResult::json(&Written { bytes: args.contents.len() })
}

fn list(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: PathArgs = call.args()?;
    let names = names(Path::new(&args.path)).map_err(|error| failure(&error, &args.path))?;
    ToolResult::json(&Names { names })
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
        names.push(format!("{}{slash}", entry.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(names)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "of many kinds a model can act on these")]
fn failure(error: &io::Error, path: &str) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::NotFound => "not-found",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => "denied",
        io::ErrorKind::IsADirectory => "not-a-file",
        io::ErrorKind::NotADirectory => "not-a-directory",
        _ => "other",
    };
    Failure::new(format!("{path}: {error}")).code(code)
}
