//! The resource `completion-stream` of `model`.

use taskrun::scope::AnswerStream;

/// An answer on its way. Dropping it cancels the provider's request.
#[expect(unreachable_pub, reason = "the bindings name it, and they are `pub` in a private module")]
pub struct CompletionStream {
    pub(crate) answer: AnswerStream,
}
