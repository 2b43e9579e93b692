//! A tool that remembers: it keeps notes as facts of the session, or of the whole tenant, finds them
//! by their words and forgets them. Each function asks for its own permission.

use serde::{Deserialize, Serialize};
use taskrun_guest::{
    memory::{self, Fact, MemoryError, MemoryScope, NewFact, WriteError},
    tool::{Failure, ToolCall, ToolResult},
};

const KEEP: &str = r#"{
  "type": "object",
  "properties": {
    "key": {"type": "string", "minLength": 1, "maxLength": 256, "description": "Name of the note; the one that has it is replaced."},
    "text": {"type": "string", "maxLength": 65536, "description": "What to remember."},
    "topic": {"type": "string", "maxLength": 256, "description": "A word to find it by."},
    "scope": {"enum": ["session", "tenant"], "description": "For this session, which is the default, or for all."}
  },
  "required": ["key", "text"],
  "additionalProperties": false
}"#;
const FORGET: &str = r#"{
  "type": "object",
  "properties": {
    "key": {"type": "string", "minLength": 1, "maxLength": 256, "description": "Name of the note."},
    "scope": {"enum": ["session", "tenant"], "description": "Of this session, which is the default, or of all."}
  },
  "required": ["key"],
  "additionalProperties": false
}"#;
const FIND: &str = r#"{
  "type": "object",
  "properties": {
    "query": {"type": "string", "minLength": 1, "maxLength": 4096, "description": "Words that are in the notes."},
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "description": "Most notes; 10 unless given."}
  },
  "required": ["query"],
  "additionalProperties": false
}"#;
const FOUND: &str = r#"{
  "type": "object",
  "properties": {
    "notes": {
      "type": "array",
      "description": "The best first.",
      "items": {
        "type": "object",
        "properties": {"key": {"type": "string"}, "text": {"type": "string"}},
        "required": ["key", "text"],
        "additionalProperties": false
      }
    }
  },
  "required": ["notes"],
  "additionalProperties": false
}"#;

/// Notes that are given unless another number is asked for.
const LIMIT_DEFAULT: u32 = 10;

taskrun_guest::tool! {
    /// Keeps a note under its key, in place of the one that has it.
    fn keep(KEEP, title("Keep a note"), idempotent, tag("memory")) => keep;

    /// Forgets a note, and says whether there was one.
    fn forget(FORGET, title("Forget a note"), idempotent, destructive, tag("memory")) => forget;

    /// Finds notes of this session, and then those for all, by their words.
    fn find(FIND, output(FOUND), title("Find notes"), read_only, tag("memory")) => find;
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Scope {
    #[default]
    Session,
    Tenant,
}

impl From<Scope> for MemoryScope {
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::Session => Self::Session,
            Scope::Tenant => Self::Tenant,
        }
    }
}

#[derive(Deserialize)]
struct Keep {
    key: String,
    text: String,
    topic: Option<String>,
    #[serde(default)]
    scope: Scope,
}

#[derive(Deserialize)]
struct Forget {
    key: String,
    #[serde(default)]
    scope: Scope,
}

#[derive(Deserialize)]
struct Find {
    query: String,
    limit: Option<u32>,
}

#[derive(Serialize)]
struct Found {
    notes: Vec<Note>,
}

#[derive(Serialize)]
struct Note {
    key: String,
    text: String,
}

impl From<Fact> for Note {
    fn from(fact: Fact) -> Self {
        Self { key: fact.key, text: fact.text }
    }
}

fn keep(call: &ToolCall) -> Result<ToolResult, Failure> {
    let Keep { key, text, topic, scope } = call.args()?;
    let labels = topic.map(|topic| ("topic".to_owned(), topic)).into_iter().collect();
    memory::put(scope.into(), &NewFact { key, text, labels }).map_err(|e| not_written(&e))?;
    ToolResult::json(&true)
}

fn forget(call: &ToolCall) -> Result<ToolResult, Failure> {
    let Forget { key, scope } = call.args()?;
    let forgotten = memory::delete(scope.into(), &key).map_err(|error| not_written(&error))?;
    ToolResult::json(&forgotten)
}

fn find(call: &ToolCall) -> Result<ToolResult, Failure> {
    let Find { query, limit } = call.args()?;
    let facts = memory::search(&query, limit.unwrap_or(LIMIT_DEFAULT))
        .map_err(|error: MemoryError| Failure::new(error.text()).code(error.code()))?;
    ToolResult::json(&Found { notes: facts.into_iter().map(Note::from).collect() })
}

fn not_written(error: &WriteError) -> Failure {
    Failure::new(error.text()).code(error.code())
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_guest::{native, tool::Tool as _};

    fn call(name: &str, payload: &str) -> String {
        Functions::call(native::tool_call(name, payload)).expect("a result").value
    }

    #[test]
    fn a_note_is_kept_found_and_forgotten() {
        native::reset();
        call("keep", r#"{"key":"day","text":"Friday","topic":"deploy"}"#);
        call("keep", r#"{"key":"day","text":"Monday","scope":"tenant"}"#);
        let found = call("find", r#"{"query":"monday"}"#);
        assert_eq!(found, r#"{"notes":[{"key":"day","text":"Monday"}]}"#);
        assert_eq!(call("forget", r#"{"key":"day"}"#), "true");
        assert_eq!(call("forget", r#"{"key":"day"}"#), "false");
        assert_eq!(call("find", r#"{"query":"monday"}"#), r#"{"notes":[]}"#);
    }
}
