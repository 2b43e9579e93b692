//! The port to language models: a request in, a stream of chunks out.

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use taskrun_journal::completion::{
    Chunk, Completion, CompletionBuilder, CompletionRequest, ModelError,
};

/// A provider under one name of the policy's table of models.
#[async_trait]
pub trait Model: Send + Sync {
    /// Asks, and returns when the provider begins to answer. Dropping the stream, or this
    /// future, cancels the provider's request.
    ///
    /// The stream ends after [`Chunk::Stop`] or after an error, and yields exactly one of them.
    ///
    /// # Errors
    /// Every case of [`ModelError`] but `Denied`, `Budget` and `Canceled`, which are the host's.
    async fn stream(&self, request: CompletionRequest) -> Result<ModelStream, ModelError>;
}

/// An answer on its way.
pub type ModelStream = BoxStream<'static, Result<Chunk, ModelError>>;

/// Drains a stream into a whole answer.
///
/// Text is joined in order, usage summed. A request for a tool without a name is dropped.
///
/// # Errors
/// The stream's error, or [`ModelError::CutOff`] if it ends without a stop.
pub async fn collect(mut stream: ModelStream) -> Result<Completion, ModelError> {
    let mut collected = CompletionBuilder::default();
    while let Some(chunk) = stream.next().await {
        if let Some(done) = collected.push(chunk?) {
            return Ok(done);
        }
    }
    Err(ModelError::CutOff)
}
