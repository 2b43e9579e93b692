//! The stand-ins that answer: models, the network, memory, prompts.

pub(crate) mod model {
    use crate::{
        bindings::agent::taskrun::plugin::model::{
            Chunk, Completion, CompletionRequest, CompletionStop, ModelError,
        },
        native::host,
        types::{Message, Part, Role, Usage},
    };
    use std::{cell::RefCell, collections::VecDeque};

    /// An answer on its way.
    #[derive(Debug)]
    pub struct CompletionStream {
        chunks: RefCell<VecDeque<Chunk>>,
    }

    impl CompletionStream {
        /// At most `max` chunks of what has arrived; none when the answer is complete.
        ///
        /// # Errors
        ///
        /// None here; a model may fail on the way.
        pub fn next(&self, max: u32) -> Result<Vec<Chunk>, ModelError> {
            let mut chunks = self.chunks.borrow_mut();
            let count = chunks.len().min(max.max(1) as usize);
            Ok(chunks.drain(..count).collect())
        }
    }

    fn answer(request: &CompletionRequest) -> Result<Vec<Chunk>, ModelError> {
        host(|host| {
            host.completion_requests.push(request.clone());
            host.completions
                .pop_front()
                .unwrap_or_else(|| Err(ModelError::Unavailable("no answer was set up".into())))
        })
    }

    /// Asks, and gives the answer piece by piece.
    ///
    /// # Errors
    ///
    /// As set up in [`Host::completions`](crate::native::Host::completions).
    pub fn stream(request: &CompletionRequest) -> Result<CompletionStream, ModelError> {
        let chunks = RefCell::new(answer(request)?.into());
        Ok(CompletionStream { chunks })
    }

    /// Asks, and waits for the whole answer.
    ///
    /// # Errors
    ///
    /// As set up in [`Host::completions`](crate::native::Host::completions).
    pub fn complete(request: &CompletionRequest) -> Result<Completion, ModelError> {
        let mut whole = Completion {
            message: Message { role: Role::Assistant, parts: Vec::new() },
            usage: Usage::default(),
            stop: CompletionStop::Other,
            model: "native".into(),
        };
        for chunk in answer(request)? {
            match chunk {
                Chunk::Text(piece) => match whole.message.parts.last_mut() {
                    Some(Part::Text(text)) => text.push_str(&piece),
                    Some(
                        Part::Thinking(_)
                        | Part::ToolUse(_)
                        | Part::ToolAnswer(_)
                        | Part::Json(_)
                        | Part::Media(_),
                    )
                    | None => whole.message.parts.push(Part::Text(piece)),
                },
                Chunk::Thinking(block) => whole.message.parts.push(Part::Thinking(block)),
                Chunk::ToolCallDelta(_) => {}
                Chunk::ToolCall(call) => whole.message.parts.push(Part::ToolUse(call)),
                Chunk::Usage(usage) => whole.usage = usage,
                Chunk::Stop(reason) => whole.stop = reason,
            }
        }
        Ok(whole)
    }
}

pub(crate) mod conversation {
    use super::model::{self, CompletionStream};
    use crate::{
        agent::instruct,
        bindings::agent::taskrun::plugin::model::{Completion, CompletionRequest, ModelError},
        native::host,
        types::Message,
    };

    const MESSAGES_MAX: u32 = 256;

    /// The question about the conversation.
    fn about(instructions: Option<&str>, request: &CompletionRequest) -> CompletionRequest {
        let mut messages = host(|host| host.conversation.clone());
        if let Some(text) = instructions {
            instruct(&mut messages, text.to_owned());
        }
        messages.extend(request.messages.iter().cloned());
        CompletionRequest { messages, ..request.clone() }
    }

    /// Asks about the conversation, and gives the answer piece by piece.
    ///
    /// # Errors
    ///
    /// As set up in [`Host::completions`](crate::native::Host::completions).
    pub fn stream(
        instructions: Option<&str>,
        request: &CompletionRequest,
    ) -> Result<CompletionStream, ModelError> {
        model::stream(&about(instructions, request))
    }

    /// Asks about the conversation, and waits for the whole answer.
    ///
    /// # Errors
    ///
    /// As set up in [`Host::completions`](crate::native::Host::completions).
    pub fn complete(
        instructions: Option<&str>,
        request: &CompletionRequest,
    ) -> Result<Completion, ModelError> {
        model::complete(&about(instructions, request))
    }

    /// The messages of the conversation from a place on, at most `max` and at most 256; 0 counts as
    /// all.
    #[must_use]
    pub fn read(from: u32, max: u32) -> Vec<Message> {
        let max = if max == 0 { MESSAGES_MAX } else { max.min(MESSAGES_MAX) };
        host(|host| {
            host.conversation.iter().skip(from as usize).take(max as usize).cloned().collect()
        })
    }
}

pub(crate) mod http {
    use crate::{
        bindings::agent::taskrun::plugin::http::{HttpError, Request, Response},
        native::host,
    };

    /// Sends a request and waits for the whole answer.
    ///
    /// # Errors
    ///
    /// As set up in [`Host::http_answers`](crate::native::Host::http_answers).
    pub fn send(request: &Request) -> Result<Response, HttpError> {
        host(|host| {
            host.http_requests.push(request.clone());
            host.http_answers
                .pop_front()
                .unwrap_or_else(|| Err(HttpError::Unreachable("no answer was set up".into())))
        })
    }
}

pub(crate) mod memory {
    use crate::{
        bindings::agent::taskrun::plugin::memory::{Fact, MemoryError},
        native::host,
    };

    const FACTS_MAX: u32 = 100;

    /// The fact with exactly this key.
    ///
    /// # Errors
    ///
    /// None here; the policy may deny.
    pub fn get(key: &str) -> Result<Option<Fact>, MemoryError> {
        host(|host| Ok(host.facts.iter().find(|fact| fact.key == key).cloned()))
    }

    /// Facts with a word of `query` in key or text, at most `limit`, in the order in which they were
    /// written.
    ///
    /// # Errors
    ///
    /// None here; the policy may deny.
    pub fn search(query: &str, limit: u32) -> Result<Vec<Fact>, MemoryError> {
        let words: Vec<String> = query.split_whitespace().map(str::to_lowercase).collect();
        host(|host| {
            let fits = |fact: &&Fact| {
                let text = format!("{} {}", fact.key, fact.text).to_lowercase();
                words.iter().any(|word| text.contains(word))
            };
            let count = limit.min(FACTS_MAX) as usize;
            Ok(host.facts.iter().filter(fits).take(count).cloned().collect())
        })
    }
}

pub(crate) mod memory_write {
    use crate::{
        bindings::{
            agent::taskrun::plugin::memory::Fact,
            tool::taskrun::plugin::memory_write::{MemoryScope, NewFact, WriteError},
        },
        native::host,
    };

    /// Keeps a fact. The stand-in has one memory for all scopes.
    ///
    /// # Errors
    ///
    /// None here; the policy may deny, and the host has bounds.
    pub fn put(_scope: MemoryScope, fact: &NewFact) -> Result<(), WriteError> {
        host(|host| {
            let NewFact { key, text, labels } = fact.clone();
            host.facts.retain(|known| known.key != key);
            host.facts.push(Fact { key, text, labels, written_at: host.now_ms });
        });
        Ok(())
    }

    /// Forgets a fact; says whether there was one.
    ///
    /// # Errors
    ///
    /// None here; the policy may deny.
    pub fn delete(_scope: MemoryScope, key: &str) -> Result<bool, WriteError> {
        Ok(host(|host| {
            let before = host.facts.len();
            host.facts.retain(|known| known.key != key);
            host.facts.len() < before
        }))
    }
}

pub(crate) mod prompts {
    use crate::{bindings::agent::taskrun::plugin::prompts::PromptError, native::host};

    /// Renders a prompt. The stand-in gives its text as it was set up, and ignores `data`.
    ///
    /// # Errors
    ///
    /// When there is no prompt of that id.
    pub fn render(id: &str, _data: &str) -> Result<String, PromptError> {
        host(|host| {
            host.prompts.get(id).cloned().ok_or_else(|| PromptError::Unknown(id.to_owned()))
        })
    }
}
