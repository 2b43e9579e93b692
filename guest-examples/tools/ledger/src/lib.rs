//! A tool whose effects can be counted from outside: for tests of what a crash repeats.
//!
//! `note` may not be repeated: each call leaves one more line, `ID TEXT`, in `ledger.txt`. `put`
//! may: it leaves a file `put/ID`, however often the call of that id is made. The id is that of
//! the tool call.

use serde::{Deserialize, Serialize};
use taskrun_guest::{
    tool::{Failure, ToolCall, ToolResult},
    workspace::{self, FileError, WriteMode},
};

const TEXT: &str = r#"{
  "type": "object",
  "properties": {
    "text": {"type": "string", "minLength": 1, "maxLength": 1000, "pattern": "^[^\r\n]*$", "description": "One line."}
  },
  "required": ["text"],
  "additionalProperties": false
}"#;
const WRITTEN: &str = r#"{
  "type": "object",
  "properties": {
    "id": {"type": "string", "description": "The call, as the ledger names it."},
    "path": {"type": "string", "description": "The file that has the text."}
  },
  "required": ["id", "path"],
  "additionalProperties": false
}"#;

/// The file that `note` adds to.
const LEDGER: &str = "ledger.txt";
/// The folder that `put` writes to.
const FOLDER: &str = "put";

taskrun_guest::tool! {
    /// Adds a line with the call's id and a text to the end of `ledger.txt`. A call that is made
    /// twice leaves two lines.
    fn note(TEXT, output(WRITTEN), title("Add to the ledger"), destructive, tag("ledger")) => note;

    /// Keeps a text as the file `put/ID`, where the id is that of the call. A call that is made
    /// twice leaves the same file.
    fn put(TEXT, output(WRITTEN), title("Keep a text"), idempotent, tag("ledger")) => put;
}

#[derive(Deserialize)]
struct Args {
    text: String,
}

#[derive(Serialize)]
struct Written<'a> {
    id: &'a str,
    path: &'a str,
}

fn note(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: Args = call.args()?;
    let line = format!("{} {}\n", call.tool_call_id, args.text);
    workspace::write(LEDGER, line.as_bytes(), WriteMode::Append)
        .map_err(|error| refused(LEDGER, &error))?;
    ToolResult::json(&Written { id: &call.tool_call_id, path: LEDGER })
}

fn put(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: Args = call.args()?;
    let path = format!("{FOLDER}/{}", call.tool_call_id);
    let attempt = || workspace::write(&path, args.text.as_bytes(), WriteMode::Replace);
    let mut outcome = attempt();
    if outcome == Err(FileError::NotFound) {
        outcome = workspace::create_directory(FOLDER).and_then(|()| attempt());
    }
    outcome.map_err(|error| refused(&path, &error))?;
    ToolResult::json(&Written { id: &call.tool_call_id, path: &path })
}

fn refused(path: &str, error: &FileError) -> Failure {
    Failure::new(format!("{path}: {}", error.text())).code(error.code())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use taskrun_guest::{native, tool::Tool as _};

    fn call(name: &str, id: &str, payload: &str) -> Result<ToolResult, Failure> {
        let call = native::tool_call(name, payload);
        Functions::call(ToolCall { tool_call_id: id.into(), ..call })
    }

    #[test]
    fn each_call_of_note_leaves_a_line() {
        native::reset();
        for id in ["a", "b", "a"] {
            call("note", id, r#"{"text":"one"}"#).expect("a result");
        }
        native::host(|host| assert_eq!(host.files["ledger.txt"], b"a one\nb one\na one\n"));
    }

    #[test]
    fn a_repeated_call_of_put_leaves_what_the_first_left() {
        native::reset();
        for _ in 0..2 {
            let put = call("put", "a", r#"{"text":"one"}"#).expect("a result");
            assert_eq!(put.value, r#"{"id":"a","path":"put/a"}"#);
        }
        native::host(|host| {
            assert_eq!(host.files["put/a"], b"one");
            assert_eq!(host.files.len(), 1);
        });
    }

    #[test]
    fn only_put_promises_that_it_may_be_repeated() {
        for spec in Functions::describe() {
            serde_json::from_str::<Value>(&spec.input_schema).expect("the schema is JSON");
            assert_eq!(spec.hints.idempotent, spec.name == "put");
            assert!(!spec.hints.read_only);
        }
    }
}
