//! A model of which the script, the cassette or the key cannot be had.

use async_trait::async_trait;
use taskrun::scope::model::{Model, ModelStream};
use taskrun_journal::completion::{CompletionRequest, ModelError};

/// Stands in the place of a model that cannot be used, and refuses to answer. Why it cannot is the
/// host's to say, and not told to those who ask.
pub(crate) struct Unusable;

#[async_trait]
impl Model for Unusable {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        Err(ModelError::Unavailable("the host cannot use this model at present".to_owned()))
    }
}
