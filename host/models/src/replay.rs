//! A model that answers as another one did while it was recorded.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use serde_json::json;
use taskrun::scope::model::{Model, ModelStream};
use taskrun_journal::completion::{CompletionRequest, ModelError};
use taskrun_journal::message::{Message, Role};

use crate::cassette::{self, CassetteError, Entry};

/// Most characters of a text in an error about it.
const SHOWN_CHARS_MAX: usize = 120;

/// Answers from a cassette.
///
/// *Strict* looks for an entry with the same contents: messages, tools and settings; the name of
/// the model may differ. Of several with the same contents the first asking gets the first, and
/// the last one is repeated. What is not there is an error that says what is nearest.
///
/// *By order* compares nothing: a new conversation is given the answers of one that was recorded,
/// in their order: of the one that began alike, or else of the first that is not taken.
///
/// The positions are not kept when the host ends. Plan steps that run again do not ask again.
#[derive(Debug)]
pub(crate) struct Replay {
    entries: Vec<Entry>,
    strict: bool,
    /// Entries by what they have to be found by.
    groups: Vec<(String, Vec<usize>)>,
    cursors: Mutex<Cursors>,
}

#[derive(Debug, Default)]
struct Cursors {
    /// The number of answers that each group has given.
    given: BTreeMap<usize, usize>,
    /// The group of a conversation that began otherwise than any that was recorded.
    adopted: BTreeMap<String, usize>,
}

impl Replay {
    /// Reads a cassette.
    ///
    /// # Errors
    /// [`CassetteError`].
    pub(crate) fn load(path: &Path, strict: bool) -> Result<Self, CassetteError> {
        Ok(Self::new(cassette::load(path)?, strict))
    }

    fn new(entries: Vec<Entry>, strict: bool) -> Self {
        let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        for (index, entry) in entries.iter().enumerate() {
            let key = key(&entry.request, strict);
            let place = *places.entry(key.clone()).or_insert_with(|| {
                groups.push((key, Vec::new()));
                groups.len() - 1
            });
            groups[place].1.push(index);
        }
        Self { entries, strict, groups, cursors: Mutex::default() }
    }

    fn find(&self, request: &CompletionRequest) -> Result<&Entry, ModelError> {
        let key = key(request, self.strict);
        let mut cursors = self.cursors.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.groups.iter().position(|(known, _)| *known == key);
        let group = match known {
            Some(group) => group,
            None if self.strict => return Err(self.miss(request)),
            None => self.adopt(key, &mut cursors)?,
        };
        let members = &self.groups[group].1;
        let given = cursors.given.entry(group).or_default();
        let index = if self.strict { (*given).min(members.len() - 1) } else { *given };
        let entry = members.get(index).ok_or_else(|| {
            ModelError::InvalidRequest(format!(
                "the cassette has {} answers for this conversation, and it asks for one more",
                members.len()
            ))
        })?;
        *given += 1;
        Ok(&self.entries[*entry])
    }

    /// The group of a conversation that began otherwise than all that were recorded.
    fn adopt(&self, key: String, cursors: &mut Cursors) -> Result<usize, ModelError> {
        if let Some(group) = cursors.adopted.get(&key) {
            return Ok(*group);
        }
        let taken = |group: &usize| {
            cursors.given.contains_key(group) || cursors.adopted.values().any(|one| one == group)
        };
        let free = (0..self.groups.len()).find(|group| !taken(group)).ok_or_else(|| {
            ModelError::InvalidRequest("the cassette has no conversation that is left".to_owned())
        })?;
        cursors.adopted.insert(key, free);
        Ok(free)
    }

    /// Says which entry comes nearest, and where it differs.
    fn miss(&self, request: &CompletionRequest) -> ModelError {
        let alike = |entry: &Entry| {
            let pairs = entry.request.messages.iter().zip(&request.messages);
            pairs.take_while(|(recorded, asked)| recorded == asked).count()
        };
        // Of those that are equally near, the first.
        let nearest = self.entries.iter().enumerate().rev().max_by_key(|(_, entry)| alike(entry));
        let detail = nearest.map_or_else(String::new, |(index, entry)| {
            let at = alike(entry);
            let (recorded, asked) = (entry.request.messages.get(at), request.messages.get(at));
            let number = index + 1;
            match (recorded, asked) {
                (None, None) => format!("; entry {number} differs in its tools or settings"),
                (recorded, asked) => format!(
                    "; entry {number} differs at message {}: it has {}, not {}",
                    at + 1,
                    shown(recorded),
                    shown(asked)
                ),
            }
        });
        ModelError::InvalidRequest(format!("the cassette has no answer to this{detail}"))
    }
}

fn shown(message: Option<&Message>) -> String {
    let Some(message) = message else { return "no such message".to_owned() };
    let text: String = serde_json::to_string(&message.parts)
        .unwrap_or_default()
        .chars()
        .take(SHOWN_CHARS_MAX)
        .collect();
    format!("{} {text}", message.role.as_str())
}

/// The key by which a request is found: all of it but the model's name, or the beginning of its
/// conversation.
fn key(request: &CompletionRequest, strict: bool) -> String {
    if strict {
        let CompletionRequest {
            model: _,
            messages,
            tools,
            tool_choice,
            max_tokens,
            temperature,
            stop_sequences,
            response_schema,
            media: _,
            tokens_left: _,
        } = request;
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        let mut all = vec![json!([
            messages,
            names,
            max_tokens,
            temperature,
            stop_sequences,
            response_schema
        ])];
        all.extend((!tool_choice.is_auto()).then(|| json!(tool_choice)));
        return json!(all).to_string();
    }
    let first = request.messages.iter().position(|message| message.role != Role::System);
    let beginning = &request.messages[..first.map_or(request.messages.len(), |at| at + 1)];
    json!(beginning).to_string()
}

#[async_trait]
impl Model for Replay {
    async fn stream(&self, request: CompletionRequest) -> Result<ModelStream, ModelError> {
        let entry = self.find(&request)?;
        match (&entry.error, entry.responses.is_empty()) {
            (Some(error), true) => Err(error.clone()),
            (error, _) => {
                let chunks = entry.responses.iter().cloned().map(Ok);
                let end = error.clone().map(Err);
                Ok(stream::iter(chunks.chain(end).collect::<Vec<_>>()).boxed())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use taskrun::scope::model::collect;
    use taskrun_journal::completion::{Chunk, CompletionStop};

    use super::*;

    fn request(texts: &[(Role, &str)]) -> CompletionRequest {
        CompletionRequest {
            model: None,
            messages: texts.iter().map(|(role, text)| Message::text(*role, *text)).collect(),
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

    fn entry(texts: &[(Role, &str)], answer: &str) -> Entry {
        let stop = Chunk::Stop { reason: CompletionStop::EndTurn, model: "m".into() };
        let responses = vec![Chunk::Text(answer.into()), stop];
        Entry { request: request(texts), responses, error: None }
    }

    async fn ask(model: &Replay, texts: &[(Role, &str)]) -> Result<String, ModelError> {
        let completion = collect(model.stream(request(texts)).await?).await?;
        Ok(completion.message.joined_text())
    }

    const A: &[(Role, &str)] = &[(Role::System, "be brief"), (Role::User, "a")];
    const A2: &[(Role, &str)] = &[
        (Role::System, "be brief"),
        (Role::User, "a"),
        (Role::Assistant, "1"),
        (Role::User, "more"),
    ];
    const B: &[(Role, &str)] = &[(Role::User, "b")];

    #[tokio::test]
    async fn strict_answers_what_was_asked_in_any_order_and_nothing_else() {
        let entries = vec![entry(A, "1"), entry(B, "2"), entry(A2, "3"), entry(A, "4")];
        let model = Replay::new(entries, true);
        assert_eq!(ask(&model, A2).await.as_deref(), Ok("3"));
        assert_eq!(ask(&model, B).await.as_deref(), Ok("2"));
        // The same question again gets the next answer that was recorded to it, then the last.
        assert_eq!(ask(&model, A).await.as_deref(), Ok("1"));
        assert_eq!(ask(&model, A).await.as_deref(), Ok("4"));
        assert_eq!(ask(&model, A).await.as_deref(), Ok("4"));
        let error = ask(&model, &[A[0], (Role::User, "c")]).await.expect_err("a miss");
        let text = error.to_string();
        assert!(text.contains("no answer to this; entry 1 differs at message 2"), "{text}");
        assert!(text.contains(r#"it has user [{"text":"a"}], not user [{"text":"c"}]"#), "{text}");
    }

    #[tokio::test]
    async fn by_order_each_conversation_has_a_place_of_its_own() {
        let entries = vec![entry(A, "1"), entry(B, "2"), entry(A2, "3")];
        let model = Replay::new(entries, false);
        // One that began otherwise gets the first conversation that nobody has.
        let other: &[(Role, &str)] = &[(Role::User, "something else")];
        assert_eq!(ask(&model, B).await.as_deref(), Ok("2"));
        assert_eq!(ask(&model, other).await.as_deref(), Ok("1"));
        assert_eq!(ask(&model, other).await.as_deref(), Ok("3"));
        let error = ask(&model, other).await.expect_err("is over");
        assert!(error.to_string().contains("has 2 answers for this conversation"), "{error}");
        let error = ask(&model, &[(Role::User, "third")]).await.expect_err("none is left");
        assert!(error.to_string().contains("no conversation that is left"), "{error}");
    }
}
