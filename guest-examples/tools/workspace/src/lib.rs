//! A tool for the files of the workspace: `list`, `search`, `read`, `write`.

mod answer;
mod rank;
mod text;

use answer::{file_failure, parent};
use rank::Search;
use serde::{Deserialize, Serialize};
use taskrun_guest::{
    tool::{Bounds, Failure, RetryHint, RetryReason, ToolCall, ToolResult},
    workspace::{self, EntryKind, FileError, WriteMode},
};

const LIST: &str = r#"{
  "type": "object",
  "properties": {
    "path": {"type": "string", "description": "Folder, from the workspace, such as `docs/api`. Empty: the whole workspace.", "default": ""},
    "recursive": {"type": "boolean", "description": "Whether to list what is in subfolders, too.", "default": false},
    "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 200}
  },
  "additionalProperties": false
}"#;
const LISTED: &str = r#"{
  "type": "object",
  "properties": {
    "entries": {"type": "array", "items": {
      "type": "object",
      "properties": {
        "path": {"type": "string"},
        "kind": {"enum": ["file", "directory", "other"]},
        "size": {"type": "integer", "minimum": 0}
      },
      "required": ["path", "kind", "size"],
      "additionalProperties": false
    }}
  },
  "required": ["entries"],
  "additionalProperties": false
}"#;
const SEARCH: &str = r#"{
  "type": "object",
  "properties": {
    "query": {"type": "string", "minLength": 1, "maxLength": 1000, "description": "Words to look for, or a question."},
    "path": {"type": "string", "description": "Folder to search in. Empty: the whole workspace.", "default": ""},
    "limit": {"type": "integer", "minimum": 1, "maximum": 50, "default": 8}
  },
  "required": ["query"],
  "additionalProperties": false
}"#;
const FOUND: &str = r#"{
  "type": "object",
  "properties": {
    "hits": {"type": "array", "items": {
      "type": "object",
      "properties": {
        "path": {"type": "string"},
        "line": {"type": "integer", "minimum": 1},
        "heading": {"type": "string"},
        "excerpt": {"type": "string"},
        "score": {"type": "number", "minimum": 0}
      },
      "required": ["path", "line", "heading", "excerpt", "score"],
      "additionalProperties": false
    }},
    "files_searched": {"type": "integer", "minimum": 0},
    "files_skipped": {"type": "integer", "minimum": 0}
  },
  "required": ["hits", "files_searched", "files_skipped"],
  "additionalProperties": false
}"#;
const READ: &str = r#"{
  "type": "object",
  "properties": {
    "path": {"type": "string", "minLength": 1, "description": "File, from the workspace, such as `docs/limits.md`."},
    "start_line": {"type": "integer", "minimum": 1, "default": 1},
    "line_count": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 200}
  },
  "required": ["path"],
  "additionalProperties": false
}"#;
const READ_OUT: &str = r#"{
  "type": "object",
  "properties": {
    "path": {"type": "string"},
    "start_line": {"type": "integer", "minimum": 1},
    "total_lines": {"type": "integer", "minimum": 0},
    "text": {"type": "string", "description": "Lines, each after its number and `: `."}
  },
  "required": ["path", "start_line", "total_lines", "text"],
  "additionalProperties": false
}"#;
const WRITE: &str = r#"{
  "type": "object",
  "properties": {
    "path": {"type": "string", "minLength": 1, "description": "File, from the workspace. Folders above it are made."},
    "contents": {"type": "string"},
    "mode": {"enum": ["create-new", "replace", "append"], "default": "create-new", "description": "What to do about a file that exists; `create-new` fails."}
  },
  "required": ["path", "contents"],
  "additionalProperties": false
}"#;
const WRITTEN: &str = r#"{
  "type": "object",
  "properties": {"path": {"type": "string"}, "bytes": {"type": "integer", "minimum": 0}},
  "required": ["path", "bytes"],
  "additionalProperties": false
}"#;

taskrun_guest::tool! {
    /// Lists the files and folders of a folder in the workspace, sorted by path, with kind and size
    /// in bytes. Entries that the policy hides are not listed.
    fn list(LIST, output(LISTED), title("List files"), read_only, bounded, tag("files")) => list;

    /// Searches all text files of the workspace for passages about the words of a query or
    /// question, and returns the best ones first, each with its file, line, the heading it stands
    /// under, an excerpt and a score. Words count more the rarer they are, and in headings. Read
    /// the passage itself with `read` before relying on it.
    fn search(
        SEARCH,
        output(FOUND),
        title("Search files"),
        read_only,
        bounded,
        timeout_ms(30_000),
        tag("files"),
        tag("search"),
    ) => search;

    /// Reads lines of a text file in the workspace, each after its number. Start where `search`
    /// found something, or at the top. An image (PNG, JPEG, GIF, WebP) is shown.
    fn read(READ, output(READ_OUT), title("Read a file"), read_only, bounded, tag("files")) => read;

    /// Writes a text file in the workspace: a file of its own, in place of one that exists, or at
    /// the end of one that exists.
    fn write(WRITE, output(WRITTEN), title("Write a file"), destructive, tag("files")) => write;
}

/// Bytes of the largest file that is read. Two copies of it must fit into the instance's memory.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Bytes asked for at once.
const READ_BYTES: u32 = 1 << 20;
/// Bytes of text in one answer of `read`: what a model can take.
const TEXT_BYTES_MAX: usize = 64 << 10;

#[derive(Deserialize)]
struct ListArgs {
    #[serde(default)]
    path: String,
    #[serde(default)]
    recursive: bool,
    #[serde(default = "list_limit")]
    limit: u32,
}

fn list_limit() -> u32 {
    200
}

#[derive(Serialize)]
struct Listed {
    entries: Vec<ListedEntry>,
}

#[derive(Serialize)]
struct ListedEntry {
    path: String,
    kind: &'static str,
    size: u64,
}

fn list(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: ListArgs = call.args()?;
    let listing = workspace::list(&args.path, args.recursive, args.limit.clamp(1, 1_000))
        .map_err(|error| file_failure(&error, &args.path, call))?;
    let returned = listing.entries.len() as u64;
    let entries = listing
        .entries
        .into_iter()
        .map(|entry| ListedEntry {
            path: entry.path,
            kind: match entry.kind {
                EntryKind::File => "file",
                EntryKind::Directory => "directory",
                EntryKind::Other => "other",
            },
            size: entry.size,
        })
        .collect();
    let bounds = if listing.truncated {
        Bounds::truncated(returned, None, "list a folder below, or ask for a larger `limit`")
    } else {
        Bounds::whole(returned)
    };
    Ok(ToolResult::json(&Listed { entries })?.bounds(bounds))
}

#[derive(Deserialize)]
struct SearchArgs {
    query: String,
    #[serde(default)]
    path: String,
    #[serde(default = "search_limit")]
    limit: usize,
}

fn search_limit() -> usize {
    8
}

#[derive(Serialize)]
struct Found {
    hits: Vec<rank::Hit>,
    files_searched: u64,
    files_skipped: u64,
}

/// Files looked at in one search. More of them would not be done within its time-out.
const FILES_MAX: u32 = 10_000;
/// Bytes of the largest file searched: larger ones are data, not text.
const SEARCHED_BYTES_MAX: u64 = 1 << 20;

fn search(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: SearchArgs = call.args()?;
    let mut search = Search::new(&args.query);
    if !search.has_words() {
        let hint = RetryHint::new(RetryReason::InvalidArguments, &call.name)
            .advice("give words to look for, such as those of the question")
            .example(r#"{"query":"retry limit"}"#);
        return Err(Failure::new("the query has no words").code("invalid-arguments").hint(hint));
    }
    let listing = workspace::list(&args.path, true, FILES_MAX)
        .map_err(|error| file_failure(&error, &args.path, call))?;
    let (mut files_searched, mut files_skipped) = (0, 0);
    for entry in &listing.entries {
        if entry.kind != EntryKind::File {
            continue;
        }
        // A file that cannot be read does not keep the others from being found.
        let contents =
            if entry.size > SEARCHED_BYTES_MAX { None } else { read_text(&entry.path).ok() };
        if let Some(contents) = contents {
            files_searched += 1;
            search.add(&entry.path, &contents);
        } else {
            files_skipped += 1;
        }
    }
    let (hits, total) = search.best(args.limit.clamp(1, 50));
    let returned = hits.len() as u64;
    let bounds = if returned < total || listing.truncated {
        let total = (!listing.truncated).then_some(total);
        Bounds::truncated(returned, total, "use rarer words, search a folder, or raise `limit`")
    } else {
        Bounds::whole(returned)
    };
    Ok(ToolResult::json(&Found { hits, files_searched, files_skipped })?.bounds(bounds))
}

/// The reason that a file's text cannot be had.
enum TextError {
    File(FileError),
    Binary(Vec<u8>),
}

fn read_text(path: &str) -> Result<String, TextError> {
    let mut bytes = Vec::new();
    loop {
        let piece =
            workspace::read(path, bytes.len() as u64, READ_BYTES).map_err(TextError::File)?;
        if piece.is_empty() {
            break;
        }
        bytes.extend_from_slice(&piece);
        if bytes.len() as u64 > FILE_BYTES_MAX {
            let limit = format!("files of at most {} MiB can be read", FILE_BYTES_MAX >> 20);
            return Err(TextError::File(FileError::Limit(limit)));
        }
    }
    if bytes.contains(&0) {
        return Err(TextError::Binary(bytes));
    }
    String::from_utf8(bytes).map_err(|error| TextError::Binary(error.into_bytes()))
}

/// Tells if these are the bytes of an image that models may see.
fn is_image(bytes: &[u8]) -> bool {
    let begins = |magic: &[u8]| bytes.starts_with(magic);
    begins(b"\x89PNG\r\n\x1a\n")
        || begins(b"\xff\xd8\xff")
        || begins(b"GIF8")
        || (begins(b"RIFF") && bytes.get(8..12) == Some(b"WEBP"))
}

/// An image is shown beside the result.
fn image(path: &str, bytes: Vec<u8>) -> Result<ToolResult, Failure> {
    let text = format!("1: [an image of {} bytes, shown with this result]", bytes.len());
    let read = ReadLines { path, start_line: 1, total_lines: 1, text };
    Ok(ToolResult::json(&read)?.bounds(Bounds::whole(1)).image(bytes))
}

#[derive(Deserialize)]
struct ReadArgs {
    path: String,
    #[serde(default = "start_line")]
    start_line: u64,
    #[serde(default = "line_count")]
    line_count: u64,
}

fn start_line() -> u64 {
    1
}

fn line_count() -> u64 {
    200
}

#[derive(Serialize)]
struct ReadLines<'a> {
    path: &'a str,
    start_line: u64,
    total_lines: u64,
    text: String,
}

fn read(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: ReadArgs = call.args()?;
    let contents = match read_text(&args.path) {
        Ok(contents) => contents,
        Err(TextError::File(error)) => return Err(file_failure(&error, &args.path, call)),
        Err(TextError::Binary(bytes)) if is_image(&bytes) => return image(&args.path, bytes),
        Err(TextError::Binary(_)) => {
            return Err(Failure::new(format!("{}: not a text file", args.path)).code("not-text"));
        }
    };
    let start_line = args.start_line.max(1);
    let count = args.line_count.clamp(1, 1_000);
    let lines = text::numbered(&contents, start_line, count, TEXT_BYTES_MAX);
    let next = start_line + lines.returned;
    let bounds = if next <= lines.total {
        let input = serde_json::json!({
            "path": args.path, "start_line": next, "line_count": count,
        });
        Bounds::truncated(lines.returned, Some(lines.total), "read on from the next line")
            .continued_by(input.to_string())
    } else if lines.returned < lines.total {
        Bounds::truncated(lines.returned, Some(lines.total), "start at an earlier line")
    } else {
        Bounds::whole(lines.returned)
    };
    let read =
        ReadLines { path: &args.path, start_line, total_lines: lines.total, text: lines.text };
    Ok(ToolResult::json(&read)?.bounds(bounds))
}

#[derive(Deserialize)]
struct WriteArgs {
    path: String,
    contents: String,
    #[serde(default)]
    mode: Mode,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    #[default]
    CreateNew,
    Replace,
    Append,
}

impl From<Mode> for WriteMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::CreateNew => Self::CreateNew,
            Mode::Replace => Self::Replace,
            Mode::Append => Self::Append,
        }
    }
}

#[derive(Serialize)]
struct Written<'a> {
    path: &'a str,
    bytes: u64,
}

fn write(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: WriteArgs = call.args()?;
    let contents = args.contents.as_bytes();
    let attempt = || workspace::write(&args.path, contents, args.mode.into());
    let mut outcome = attempt();
    if outcome == Err(FileError::NotFound)
        && let Some(parent) = parent(&args.path)
    {
        outcome = workspace::create_directory(parent).and_then(|()| attempt());
    }
    outcome.map_err(|error| file_failure(&error, &args.path, call))?;
    ToolResult::json(&Written { path: &args.path, bytes: contents.len() as u64 })
}

#[cfg(test)]
mod tests;
