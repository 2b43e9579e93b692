//! The images of questions to models: their bytes are had by their names, as far as the run has them.

use taskrun_journal::completion::{CompletionRequest, ModelError};
use taskrun_journal::media::{MEDIA_TOTAL_BYTES_MAX, MediaBytes, media_type};
use taskrun_journal::message::Message;
use taskrun_journal::runs::RunsError;

use super::CallScope;

impl CallScope {
    /// A question with the bytes of its images, the newest first and as far as a question has room
    /// for them; those that are older are left out of what the model is shown.
    ///
    /// # Errors
    /// [`ModelError::NotFound`] for a name under which the run may name no image.
    pub(super) async fn with_media(
        &self,
        mut request: CompletionRequest,
    ) -> Result<CompletionRequest, ModelError> {
        let (mut media, mut left) = (MediaBytes::default(), MEDIA_TOTAL_BYTES_MAX);
        for name in request.messages.iter().rev().flat_map(Message::media) {
            if media.get(&name.hash).is_some() {
                continue;
            }
            let missing = || ModelError::NotFound(name.shown_hash().to_owned());
            let access = self.parts.runs.as_ref().ok_or_else(missing)?;
            let found = access.runs.artifact(&access.caller, &name.hash).await;
            let bytes = found.map_err(|error| unavailable(&error))?;
            let bytes = bytes.filter(|bytes| media_type(bytes).is_some()).ok_or_else(missing)?;
            let Some(rest) = left.checked_sub(bytes.len()) else { break };
            left = rest;
            media.add(&name.hash, bytes);
        }
        request.media = media;
        Ok(request)
    }
}

fn unavailable(error: &RunsError) -> ModelError {
    ModelError::Unavailable(format!("the images of the question cannot be read: {error}"))
}
