//! `model`: completions, through the call's scope, which keeps the account.

use std::collections::HashSet;

use taskrun_journal::completion as port;
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::Use;
use wasmtime::component::Resource;

use crate::bindings::interfaces::model::{
    Chunk, Completion, CompletionRequest, Host, HostCompletionStream, ModelError, ToolAccess,
};
use crate::completion_stream::CompletionStream;
use crate::convert::model::{error_to_guest, request_bytes, request_from_guest};
use crate::failure::Violation;
use crate::measure;
use crate::state::CallState;

/// Most chunks that one `next` hands over, whatever the guest asks for.
const CHUNKS_MAX: u32 = 1_024;

/// Answers that one call may have open at once: each is a request to a provider.
const STREAMS_MAX: usize = 16;

/// Tools that one request may name: more than any model is good with.
pub(crate) const TOOLS_NAMED_MAX: usize = 256;

/// The messages that stand before those of a question.
pub(super) enum Preamble {
    None,
    /// The conversation of the run, with these instructions.
    Conversation(Option<String>),
}

impl CallState {
    /// Decides about the model, and makes the port's request of the guest's.
    fn prepare(
        &self,
        preamble: Preamble,
        request: CompletionRequest,
    ) -> Result<port::CompletionRequest, ModelError> {
        let asked = request.model.as_deref().or_else(|| self.scope.default_model());
        if let Some(name) = asked
            && let Err(denied) = self.allow(&Use::Model(name))
        {
            return Err(ModelError::Denied(denied));
        }
        let tools = match &request.tools {
            ToolAccess::None => Vec::new(),
            ToolAccess::All => self.scope.tools().to_vec(),
            ToolAccess::Only(names) => named(names, self.scope.tools())?,
        };
        let request = request_from_guest(request, tools);
        match preamble {
            Preamble::None => Ok(request),
            Preamble::Conversation(instructions) => {
                self.scope.about_conversation(instructions, request).map_err(error_to_guest)
            }
        }
    }

    /// Bytes of a request with what stands before it, and with the tools that it can be about.
    fn request_bytes(&self, preamble: &Preamble, request: &CompletionRequest) -> usize {
        let before = match preamble {
            Preamble::None => 0,
            Preamble::Conversation(instructions) => {
                self.scope.conversation_bytes() + instructions.as_ref().map_or(0, String::len)
            }
        };
        let tools = match &request.tools {
            ToolAccess::None => 0,
            ToolAccess::All => measure::specs(self.scope.tools()),
            ToolAccess::Only(names) => measure::texts(names) + measure::specs(self.scope.tools()),
        };
        before + request_bytes(request) + tools
    }

    /// Asks a model and waits for the whole answer.
    pub(super) async fn ask_whole(
        &mut self,
        preamble: Preamble,
        request: CompletionRequest,
    ) -> Result<Completion, ModelError> {
        self.before_work(self.request_bytes(&preamble, &request)).await;
        let request = self.prepare(preamble, request)?;
        let answer = self.scope.ask(request).await;
        answer.map(Into::into).map_err(|error| self.no_answer(error))
    }

    /// Asks a model and opens its answer.
    pub(super) async fn ask_stream(
        &mut self,
        preamble: Preamble,
        request: CompletionRequest,
    ) -> wasmtime::Result<Result<Resource<CompletionStream>, ModelError>> {
        self.before_work(self.request_bytes(&preamble, &request)).await;
        let request = match self.prepare(preamble, request) {
            Ok(request) => request,
            Err(error) => return Ok(Err(error)),
        };
        if self.open_streams.len() >= STREAMS_MAX {
            let bound = format!("at most {STREAMS_MAX} answers may be open at once");
            return Ok(Err(ModelError::Other(bound)));
        }
        match self.scope.stream(request).await {
            Ok(answer) => {
                let stream = self.table.push(CompletionStream { answer })?;
                self.open_streams.push(stream.rep());
                Ok(Ok(stream))
            }
            Err(error) => Ok(Err(self.no_answer(error))),
        }
    }

    /// Gives up the answers that the guest has not dropped, in the order of its questions, as if it
    /// had. It does nothing any more.
    pub(crate) fn abandon_streams(&mut self) {
        for number in std::mem::take(&mut self.open_streams) {
            if let Ok(stream) = self.table.delete(Resource::<CompletionStream>::new_own(number)) {
                self.scope.abandon(stream.answer);
            }
        }
    }

    fn no_answer(&self, error: port::ModelError) -> ModelError {
        if let port::ModelError::Denied(told) = &error {
            self.scope.record_denial_of_own_model(told);
        }
        error_to_guest(error)
    }
}

/// Those of the tools that a guest names.
fn named(names: &[String], tools: &[ToolSpec]) -> Result<Vec<ToolSpec>, ModelError> {
    if names.len() > TOOLS_NAMED_MAX {
        let bound = format!("at most {TOOLS_NAMED_MAX} tools can be named");
        return Err(ModelError::InvalidRequest(bound));
    }
    let names: HashSet<&str> = names.iter().map(String::as_str).collect();
    Ok(tools.iter().filter(|tool| names.contains(tool.name.as_str())).cloned().collect())
}

impl Host for CallState {
    async fn complete(
        &mut self,
        request: CompletionRequest,
    ) -> wasmtime::Result<Result<Completion, ModelError>> {
        self.enter_capability("model")?;
        Ok(self.ask_whole(Preamble::None, request).await)
    }

    async fn stream(
        &mut self,
        request: CompletionRequest,
    ) -> wasmtime::Result<Result<Resource<CompletionStream>, ModelError>> {
        self.enter_capability("model")?;
        self.ask_stream(Preamble::None, request).await
    }
}

impl HostCompletionStream for CallState {
    async fn next(
        &mut self,
        stream: Resource<CompletionStream>,
        max: u32,
    ) -> wasmtime::Result<Result<Vec<Chunk>, ModelError>> {
        self.enter_capability("model")?;
        let max = max.clamp(1, CHUNKS_MAX) as usize;
        let scope = std::sync::Arc::clone(&self.scope);
        let stream = self.table.get_mut(&stream)?;
        match scope.next_chunks(&mut stream.answer, max).await {
            Ok(chunks) => Ok(Ok(chunks.into_iter().map(Into::into).collect())),
            Err(error) => Ok(Err(self.no_answer(error))),
        }
    }

    fn drop(&mut self, stream: Resource<CompletionStream>) -> wasmtime::Result<()> {
        let number = stream.rep();
        let stream = self.table.delete(stream).map_err(|error| {
            Violation::Contract(format!("it dropped a stream that it does not have: {error}"))
        })?;
        self.scope.abandon(stream.answer);
        self.open_streams.retain(|open| *open != number);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use taskrun_journal::tool::ToolHints;

    use super::*;

    fn spec(name: &str) -> ToolSpec {
        ToolSpec {
            name: name.to_owned(),
            title: None,
            description: String::new(),
            input_schema: String::new(),
            output_schema: None,
            hints: ToolHints::default(),
            timeout: None,
            tags: Vec::new(),
            stated_tags: Vec::new(),
        }
    }

    #[test]
    fn a_request_names_a_bounded_number_of_tools() {
        let tools: Vec<ToolSpec> = ["a/x", "a/y", "b/z"].map(spec).into();
        let few = ["b/z", "a/x", "c/q"].map(str::to_owned);
        let chosen = named(&few, &tools).unwrap();
        assert_eq!(chosen, [spec("a/x"), spec("b/z")]);
        let many = vec!["a/x".to_owned(); TOOLS_NAMED_MAX];
        assert_eq!(named(&many, &tools).unwrap().len(), 1);
        let more = vec!["a/x".to_owned(); TOOLS_NAMED_MAX + 1];
        assert!(matches!(named(&more, &tools), Err(ModelError::InvalidRequest(_))));
    }
}
