//! Reading what is kept beside a record.

use std::ops::ControlFlow;
use std::sync::Arc;

use taskrun_journal::artifact::digest;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::ids::{RunId, Seq};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::StoreError;
use taskrun_journal::tool::ToolOutcome;

use super::{Client, Controller};
use crate::error::ControllerError;
use crate::scan::{WHOLE, scan};

impl Client {
    /// The bytes of an artifact of a run: the whole of its result, which is too long to be shown
    /// with it, as its view says; an image of its conversation; or the result of one of its tool
    /// calls, by the name that stands in the conversation where that is left out.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`] for the run, also outside the scope;
    /// [`ControllerError::NoArtifact`] if the run does not refer to it, whoever else does;
    /// [`ControllerError::Storage`], also if the bytes are not those of the name.
    pub async fn artifact(&self, id: &str, hash: &str) -> Result<Arc<[u8]>, ControllerError> {
        let run = self.get(id).await?;
        let no_artifact = || ControllerError::NoArtifact { id: run.id().clone() };
        // An artifact that was kept may have been removed with its run since.
        let kept = self.controller.0.parts.store.artifact(run.id(), hash).await?;
        match kept {
            Some(bytes) => Ok(bytes),
            None => self.controller.tool_result(run.id(), hash).await?.ok_or_else(no_artifact),
        }
    }
}

impl Controller {
    /// The result of a tool call of a run by its name, which stands at this position of its
    /// journal.
    pub(super) async fn tool_result_at(
        &self,
        id: &RunId,
        hash: &str,
        place: Seq,
    ) -> Result<Option<Arc<[u8]>>, StoreError> {
        let found = self.0.parts.store.read(id, place.saturating_sub(1), 1).await?;
        Ok(found.iter().find_map(|recorded| result_named(recorded, hash)))
    }

    /// The bytes of an artifact of a run, or of the nearest above it that has it.
    pub(super) async fn artifact_above(
        &self,
        spec: &RunSpec,
        hash: &str,
    ) -> Result<Option<Arc<[u8]>>, StoreError> {
        let store = &self.0.parts.store;
        let mut next = Some((spec.id.clone(), spec.parent_run_id.clone()));
        while let Some((id, parent)) = next {
            if let Some(bytes) = store.artifact(&id, hash).await? {
                return Ok(Some(bytes));
            }
            next = match parent {
                Some(parent) => store.get(&parent).await?.map(|run| {
                    let above = run.spec.parent_run_id.clone();
                    (parent, above)
                }),
                None => None,
            };
        }
        Ok(None)
    }

    /// The result of a tool call by its name, wherever it stands. The journal has it; it is kept nowhere else.
    async fn tool_result(&self, id: &RunId, hash: &str) -> Result<Option<Arc<[u8]>>, StoreError> {
        let mut found = None;
        let see = |recorded: EventRecord| {
            found = result_named(&recorded, hash);
            match found {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        };
        scan(&*self.0.parts.store, id, WHOLE, see).await?;
        Ok(found)
    }
}

/// The bytes of a tool's result, if that is what this is and they have this digest.
fn result_named(recorded: &EventRecord, hash: &str) -> Option<Arc<[u8]>> {
    let Event::ToolResult { output, .. } = &recorded.event else { return None };
    match &output.outcome {
        ToolOutcome::Value(value) if digest(value.as_bytes()) == hash => {
            Some(value.as_bytes().into())
        }
        ToolOutcome::Value(_) | ToolOutcome::Failure(_) => None,
    }
}
