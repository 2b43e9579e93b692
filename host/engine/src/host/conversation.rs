//! `conversation`: questions about the conversation of the run, which the host has.

use taskrun_journal::message as port;
use wasmtime::component::Resource;

use super::model::Preamble;
use crate::bindings::conversation::Host;
use crate::bindings::interfaces::model::{Completion, CompletionRequest, ModelError};
use crate::bindings::interfaces::types::Message;
use crate::completion_stream::CompletionStream;
use crate::state::CallState;

/// Most messages that one `read` gives.
const MESSAGES_MAX: usize = 256;

impl Host for CallState {
    async fn complete(
        &mut self,
        instructions: Option<String>,
        request: CompletionRequest,
    ) -> wasmtime::Result<Result<Completion, ModelError>> {
        self.enter_capability("conversation")?;
        Ok(self.ask_whole(Preamble::Conversation(instructions), request).await)
    }

    async fn stream(
        &mut self,
        instructions: Option<String>,
        request: CompletionRequest,
    ) -> wasmtime::Result<Result<Resource<CompletionStream>, ModelError>> {
        self.enter_capability("conversation")?;
        self.ask_stream(Preamble::Conversation(instructions), request).await
    }

    async fn read(&mut self, from: u32, max: u32) -> wasmtime::Result<Vec<Message>> {
        self.enter_capability("conversation")?;
        let all = self.scope.conversation();
        let page = page(&all, from as usize, max as usize);
        self.before_work(page.iter().map(port::Message::bytes).sum()).await;
        Ok(page.iter().map(Into::into).collect())
    }
}

/// The messages from a place on, at most `max` of them; 0 counts as all.
fn page(all: &[port::Message], from: usize, max: usize) -> &[port::Message] {
    let rest = all.get(from..).unwrap_or_default();
    let max = if max == 0 { MESSAGES_MAX } else { max.min(MESSAGES_MAX) };
    &rest[..max.min(rest.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_bounded_and_the_last_one_is_empty() {
        let message = |number: usize| port::Message::text(port::Role::User, number.to_string());
        let all: Vec<_> = (0..MESSAGES_MAX + 2).map(message).collect();
        for (from, max, length) in [
            (0, 0, MESSAGES_MAX),
            (0, usize::MAX, MESSAGES_MAX),
            (1, 2, 2),
            (MESSAGES_MAX, 0, 2),
            (MESSAGES_MAX + 2, 0, 0),
            (usize::MAX, usize::MAX, 0),
        ] {
            let page = page(&all, from, max);
            assert_eq!(page.len(), length, "{from} {max}");
            assert_eq!(page.first(), all.get(from));
        }
    }
}
