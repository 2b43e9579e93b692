//! A tool that tries to leave its preopened folders, and to learn about its host, through WASI.

use serde::{Deserialize, Serialize};
use std::{
    fs::{self, OpenOptions},
    io,
};
use taskrun_guest::tool::{Failure, ToolCall, ToolResult};

const ATTEMPTS: &str = r#"{
  "type": "object",
  "properties": {
    "attempts": {"type": "array", "items": {
      "type": "object",
      "properties": {
        "op": {"enum": ["read", "list", "stat", "write", "append", "truncate", "create-directory", "remove", "remove-directory", "rename", "hard-link", "copy", "read-link", "set-read-only", "environment", "arguments", "current-directory", "print", "exit", "symbolic-link", "set-size", "write-at", "open-many", "open-many-and-stay", "write-on"]},
        "path": {"type": "string"},
        "to": {"type": "string"},
        "count": {"type": "integer", "minimum": 0}
      },
      "required": ["op"],
      "additionalProperties": false
    }}
  },
  "required": ["attempts"],
  "additionalProperties": false
}"#;

taskrun_guest::tool! {
    /// Tries each thing, and tells what came of it.
    fn attempt(ATTEMPTS) => attempt;
}

#[derive(Deserialize)]
struct Args {
    attempts: Vec<Attempt>,
}

#[derive(Deserialize)]
struct Attempt {
    op: Op,
    #[serde(default)]
    path: String,
    #[serde(default)]
    to: String,
    #[serde(default)]
    count: u64,
}

#[derive(Clone, Copy, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Op {
    Read,
    List,
    Stat,
    Write,
    Append,
    Truncate,
    CreateDirectory,
    Remove,
    RemoveDirectory,
    Rename,
    HardLink,
    Copy,
    ReadLink,
    SetReadOnly,
    Environment,
    Arguments,
    CurrentDirectory,
    Print,
    Exit,
    SymbolicLink,
    SetSize,
    WriteAt,
    OpenMany,
    OpenManyAndStay,
    WriteOn,
}

/// Exactly one of `ok` and `error` is there.
#[derive(Serialize)]
struct Outcome {
    op: Op,
    path: String,
    ok: Option<String>,
    error: Option<String>,
}

fn attempt(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: Args = call.args()?;
    let outcomes: Vec<Outcome> = args
        .attempts
        .into_iter()
        .map(|attempt| {
            let (ok, error) = match perform(&attempt) {
                Ok(text) => (Some(text), None),
                Err(error) => (None, Some(error.to_string())),
            };
            Outcome { op: attempt.op, path: attempt.path, ok, error }
        })
        .collect();
    ToolResult::json(&outcomes)
}

#[expect(clippy::disallowed_methods, reason = "whether the environment is empty is the question")]
fn perform(attempt: &Attempt) -> io::Result<String> {
    const CONTENTS: &[u8] = b"written by evil-wasi";
    let (path, to) = (&attempt.path, &attempt.to);
    let done = |()| "done".to_owned();
    match attempt.op {
        Op::Read => fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        Op::List => {
            let mut names = Vec::new();
            for entry in fs::read_dir(path)? {
                names.push(entry?.file_name().to_string_lossy().into_owned());
            }
            names.sort();
            Ok(names.join("\n"))
        }
        Op::Stat => fs::symlink_metadata(path).map(|metadata| metadata.len().to_string()),
        Op::Write => fs::write(path, CONTENTS).map(done),
        Op::Append => {
            let mut file = OpenOptions::new().append(true).create(true).open(path)?;
            io::Write::write_all(&mut file, CONTENTS).map(done)
        }
        Op::Truncate => OpenOptions::new().write(true).truncate(true).open(path).map(|_| done(())),
        Op::CreateDirectory => fs::create_dir_all(path).map(done),
        Op::Remove => fs::remove_file(path).map(done),
        Op::RemoveDirectory => fs::remove_dir_all(path).map(done),
        Op::Rename => fs::rename(path, to).map(done),
        Op::HardLink => fs::hard_link(path, to).map(done),
        Op::Copy => fs::copy(path, to).map(|bytes| bytes.to_string()),
        Op::ReadLink => fs::read_link(path).map(|target| target.to_string_lossy().into_owned()),
        Op::SetReadOnly => {
            let mut permissions = fs::metadata(path)?.permissions();
            permissions.set_readonly(true);
            fs::set_permissions(path, permissions).map(done)
        }
        Op::Environment => {
            let variables: Vec<String> =
                std::env::vars().map(|(name, value)| format!("{name}={value}")).collect();
            Ok(variables.join("\n"))
        }
        Op::Arguments => Ok(std::env::args().collect::<Vec<_>>().join("\n")),
        Op::CurrentDirectory => {
            std::env::current_dir().map(|path| path.to_string_lossy().into_owned())
        }
        Op::Print => {
            println!("{path}");
            eprintln!("{path}");
            Ok(done(()))
        }
        Op::Exit => std::process::exit(3),
        Op::SymbolicLink => symbolic_link(path, to).map(done),
        Op::SetSize => created(path)?.set_len(attempt.count).map(done),
        Op::WriteAt => {
            let mut file = created(path)?;
            io::Seek::seek(&mut file, io::SeekFrom::Start(attempt.count))?;
            io::Write::write_all(&mut file, CONTENTS).map(done)
        }
        Op::WriteOn => write_on(path),
        Op::OpenMany => open_many(path, attempt.count).map(|files| files.len().to_string()),
        Op::OpenManyAndStay => {
            let _open: Vec<fs::File> =
                (0..attempt.count).map_while(|_| fs::File::open(path).ok()).collect();
            loop {
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
        }
    }
}

/// Writes to a file that stays open, for as long as that goes well: how often it did.
fn write_on(path: &str) -> io::Result<String> {
    let mut file = created(path)?;
    for count in 1_u64.. {
        io::Seek::rewind(&mut file)?;
        io::Write::write_all(&mut file, format!("{count:020}").as_bytes())?;
    }
    Ok(String::new())
}

fn created(path: &str) -> io::Result<fs::File> {
    OpenOptions::new().write(true).create(true).truncate(false).open(path)
}

#[expect(deprecated, reason = "WASI's own is not stable")]
fn symbolic_link(target: &str, link: &str) -> io::Result<()> {
    fs::soft_link(target, link)
}

/// Opens a file so often, all at the same time.
fn open_many(path: &str, count: u64) -> io::Result<Vec<fs::File>> {
    (0..count).map(|_| fs::File::open(path)).collect()
}
