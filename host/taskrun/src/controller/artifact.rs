//! Reading what is kept beside a record.

use std::sync::Arc;

use super::Controller;
use crate::error::ControllerError;
use crate::list::Scope;

impl Controller {
    /// The bytes of an artifact that a run refers to, as its view says: the whole of a result that
    /// is too long to be shown with the run.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`] for the run, also outside the scope;
    /// [`ControllerError::NoArtifact`] if the run does not refer to it, whoever else does;
    /// [`ControllerError::Storage`], also if the bytes are not those of the name.
    pub async fn artifact(
        &self,
        scope: &Scope,
        id: &str,
        hash: &str,
    ) -> Result<Arc<[u8]>, ControllerError> {
        let run = self.get(scope, id).await?;
        let no_artifact = || ControllerError::NoArtifact { id: run.id().clone() };
        if run.artifact().is_none_or(|artifact| artifact.hash != hash) {
            return Err(no_artifact());
        }
        let bytes = self.0.parts.store.artifact(run.id(), hash).await?;
        // The run may have been removed since.
        bytes.ok_or_else(no_artifact)
    }
}
