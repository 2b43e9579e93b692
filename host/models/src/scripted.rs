//! A model whose answers are written down beforehand.
//!
//! A script is a text file of JSON objects, one a line, one for each turn; blank lines and lines
//! that begin with `#` are skipped:
//!
//! ```json
//! {"request": {"content": "what is 2+2?"}, "responses": [{"text": "4"}]}
//! {"responses": [{"usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}}]}
//! {"responses": [{"tool_call": {"tool_call_id": "c1", "name": "t/f", "payload": "{}"}}]}
//! {"error": "overloaded"}
//! ```
//!
//! `responses` are chunks as in [`Chunk`]; a last `stop` is added where it is missing. The turn
//! is the number of messages of role `assistant` in the request: so each caller has a place of
//! its own in the script, and a repeated request gets the same answer.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use serde::Deserialize;
use taskrun::scope::model::{Model, ModelStream};
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::message::{Message, Part, Role};

use crate::regular_file::open_regular;

/// Most bytes of a line; an answer with a large document in it fits.
pub(crate) const LINE_BYTES_MAX: usize = 16 << 20;
/// The model's name unless the policy gives another.
const NAME: &str = "scripted";

/// Answers turn by turn from a script.
#[derive(Debug)]
pub(crate) struct ScriptedModel {
    name: String,
    strict: bool,
    turns: Vec<Turn>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Turn {
    #[serde(default)]
    request: Option<Expectation>,
    #[serde(default)]
    responses: Vec<Chunk>,
    #[serde(default)]
    error: Option<String>,
}

/// The question that a strict script expects.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expectation {
    /// Text of the last message.
    content: String,
}

/// The reason that a script cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The file cannot be read.
    #[error("the script {path} cannot be read")]
    Read {
        /// The script's file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file has no turns.
    #[error("the script {path} has no turns")]
    Empty {
        /// The script's file.
        path: PathBuf,
    },
    /// A line is no turn.
    #[error("{path}:{line}: not a turn of a script: {detail}")]
    Line {
        /// The script's file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The fault of the script.
        detail: String,
    },
}

impl ScriptedModel {
    /// Reads a script.
    ///
    /// # Errors
    /// [`ScriptError`].
    pub(crate) fn load(path: &Path, strict: bool, name: Option<&str>) -> Result<Self, ScriptError> {
        let text = open_regular(OpenOptions::new().read(true), path)
            .and_then(std::io::read_to_string)
            .map_err(|source| ScriptError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path, strict, name)
    }

    /// Takes a script from memory; `path` is for error messages.
    ///
    /// # Errors
    /// [`ScriptError`], except for reading.
    pub(crate) fn parse(
        text: &str,
        path: &Path,
        strict: bool,
        name: Option<&str>,
    ) -> Result<Self, ScriptError> {
        let mut turns = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |detail: String| ScriptError::Line {
                path: path.to_owned(),
                line: index + 1,
                detail,
            };
            if line.len() > LINE_BYTES_MAX {
                return Err(wrong(format!("longer than {LINE_BYTES_MAX} bytes")));
            }
            let turn: Turn =
                serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
            if turn.responses.is_empty() && turn.error.is_none() {
                return Err(wrong("neither responses nor an error".to_owned()));
            }
            turns.push(turn);
        }
        if turns.is_empty() {
            return Err(ScriptError::Empty { path: path.to_owned() });
        }
        Ok(Self { name: name.unwrap_or(NAME).to_owned(), strict, turns })
    }
}

#[async_trait]
impl Model for ScriptedModel {
    async fn stream(&self, request: CompletionRequest) -> Result<ModelStream, ModelError> {
        let number = request.messages.iter().filter(|m| m.role == Role::Assistant).count();
        let turn = self.turns.get(number).ok_or_else(|| {
            ModelError::InvalidRequest(format!("script exhausted at turn {}", number + 1))
        })?;
        if let (true, Some(expected)) = (self.strict, &turn.request) {
            let asked = request.messages.last().map(content).unwrap_or_default();
            if asked != expected.content {
                return Err(ModelError::InvalidRequest(format!(
                    "turn {} of the script expects {:?}, not {asked:?}",
                    number + 1,
                    expected.content
                )));
            }
        }
        let mut chunks: Vec<_> = turn.responses.iter().cloned().map(Ok).collect();
        match &turn.error {
            Some(error) => chunks.push(Err(ModelError::Unavailable(error.clone()))),
            None => {
                if !matches!(turn.responses.last(), Some(Chunk::Stop { .. })) {
                    chunks.push(Ok(Chunk::Stop {
                        reason: natural_stop(&turn.responses),
                        model: self.name.clone(),
                    }));
                }
            }
        }
        Ok(stream::iter(chunks).boxed())
    }
}

fn natural_stop(chunks: &[Chunk]) -> CompletionStop {
    if chunks.iter().any(|chunk| matches!(chunk, Chunk::ToolCall(_))) {
        CompletionStop::ToolUse
    } else {
        CompletionStop::EndTurn
    }
}

/// The text of a message, results of tools included.
fn content(message: &Message) -> String {
    let texts = message.parts.iter().map(|part| match part {
        Part::Text(text) | Part::Json(text) => text.as_str(),
        Part::ToolAnswer(answer) => &answer.content,
        Part::Thinking(_) | Part::ToolUse(_) | Part::Media(_) => "",
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use taskrun::scope::model::collect;
    use taskrun_journal::completion::Completion;

    use super::*;

    fn script(text: &str, strict: bool) -> Result<ScriptedModel, ScriptError> {
        ScriptedModel::parse(text, Path::new("s.jsonl"), strict, None)
    }

    fn request(messages: Vec<Message>) -> CompletionRequest {
        CompletionRequest {
            model: None,
            messages,
            tools: Vec::new(),
            max_tokens: None,
            temperature: None,
            tool_choice: taskrun_journal::completion::ToolChoice::Auto,
            stop_sequences: Vec::new(),
            response_schema: None,
            media: taskrun_journal::media::MediaBytes::default(),
            tokens_left: None,
        }
    }

    async fn ask(
        model: &ScriptedModel,
        messages: &[(Role, &str)],
    ) -> Result<Completion, ModelError> {
        let messages = messages.iter().map(|(role, text)| Message::text(*role, *text)).collect();
        collect(model.stream(request(messages)).await?).await
    }

    const TWO: &str = r#"
# first turn
{"request":{"content":"hi"},"responses":[{"text":"a"},{"text":"b"},{"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}}]}
{"responses":[{"tool_call":{"tool_call_id":"c1","name":"t/f","payload":"{}"}}]}
{"responses":[{"text":"half"}],"error":"overloaded"}
"#;

    #[tokio::test]
    async fn cs_31_each_caller_is_answered_turn_by_turn() {
        let model = script(TWO, true).expect("a script");
        let first = ask(&model, &[(Role::User, "hi")]).await.expect("answers");
        assert_eq!((first.message.joined_text(), first.usage.total_tokens), ("ab".to_owned(), 3));
        let again = ask(&model, &[(Role::User, "hi")]).await.expect("answers");
        assert_eq!(first, again);
        let history = [(Role::User, "hi"), (Role::Assistant, "ab"), (Role::User, "go on")];
        let second = ask(&model, &history).await.expect("answers");
        assert_eq!(second.message.tool_uses().next().map(|call| &*call.name), Some("t/f"));
        assert_eq!(second.stop, CompletionStop::ToolUse);
    }

    #[tokio::test]
    async fn cs_31_a_turn_may_fail_and_a_script_may_end() {
        let model = script(TWO, false).expect("a script");
        let history = [(Role::Assistant, "1"), (Role::Assistant, "2"), (Role::User, "x")];
        let error = ask(&model, &history).await.expect_err("fails");
        assert_eq!(error, ModelError::Unavailable("overloaded".to_owned()));
        let history = [(Role::Assistant, "1"), (Role::Assistant, "2"), (Role::Assistant, "3")];
        let error = ask(&model, &history).await.expect_err("is over");
        assert!(error.to_string().ends_with("script exhausted at turn 4"), "{error}");
    }

    #[tokio::test]
    async fn cs_31_a_strict_script_refuses_another_question() {
        let lax = script(TWO, false).expect("a script");
        assert!(ask(&lax, &[(Role::User, "other")]).await.is_ok());
        let strict = script(TWO, true).expect("a script");
        let error = ask(&strict, &[(Role::User, "other")]).await.expect_err("refuses");
        assert!(error.to_string().contains("expects \"hi\", not \"other\""), "{error}");
    }

    #[test]
    fn cs_31_a_bad_script_is_refused_with_its_line() {
        let line = |text| script(text, false).expect_err("is bad").to_string();
        assert!(line("\n{\"responses\":[}").starts_with("s.jsonl:2: not a turn"));
        assert!(line("{}").contains("neither responses nor an error"));
        assert!(line("{\"respones\":[]}").contains("unknown field `respones`"));
        assert!(line("# nothing\n").contains("has no turns"));
    }
}
