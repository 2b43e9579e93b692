//! Reading what is kept beside a record.

use std::ops::ControlFlow;
use std::sync::Arc;

use taskrun_journal::artifact::digest;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::ids::{RunId, Seq};
use taskrun_journal::media::{MEDIA_TOTAL_BYTES_MAX, Media, media_type};
use taskrun_journal::reply::WholeReply;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::runs::{OUTPUT_PART_BYTES_MAX, OutputPart};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::StoreError;
use taskrun_journal::text::cut;
use taskrun_journal::tool::ToolOutcome;

use super::{Client, Controller};
use crate::error::ControllerError;
use crate::image::ImageBytes;
use crate::scan::{WHOLE, scan};

impl Client {
    /// The result that a run returned, as JSON unless that is a text, or else its whole answer so
    /// far, of which its record may hold only the beginning: `None` if it has said nothing. It may
    /// be that of a run which has failed.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn result(&self, id: &str) -> Result<Option<String>, ControllerError> {
        let mut run = self.get(id).await?;
        if let Some(returned) = run.returned_text() {
            return Ok(Some(returned));
        }
        let shown = run.state.reply.result();
        if !run.state.reply.is_cut() {
            return Ok(shown);
        }
        // The answer of a run which it continues is kept there, as long as that is.
        while run.artifact().is_none()
            && let Some(before) = answered_by(&run)
        {
            match self.get(before.as_str()).await {
                Ok(found) => run = found,
                Err(ControllerError::NotFound { .. }) => return Ok(shown),
                Err(error) => return Err(error),
            }
        }
        let store = &self.controller.0.parts.store;
        if let Some(named) = run.artifact()
            && let Some(bytes) = store.artifact(run.id(), &named.hash).await?
        {
            return Ok(Some(String::from_utf8_lossy(&bytes).into_owned()));
        }
        // It has not ended, or ended before answers were kept so, or its answer is longer than any
        // artifact.
        let mut whole = WholeReply::unbounded();
        let count = |recorded: EventRecord| {
            whole.count(&recorded.event);
            ControlFlow::Continue(())
        };
        scan(&**store, run.id(), WHOLE, count).await?;
        Ok(whole.into_text())
    }

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
    /// The part of a run's answer, or of the result that it returned instead, that begins with a
    /// byte of it.
    pub(super) async fn output_part(
        &self,
        run: &Run,
        from: u64,
    ) -> Result<OutputPart, ControllerError> {
        let whole = match (run.returned_text(), run.artifact()) {
            (Some(returned), _) => Some(returned),
            (None, Some(named)) => {
                let kept = self.0.parts.store.artifact(run.id(), &named.hash).await?;
                kept.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            }
            (None, None) => None,
        };
        let (text, bytes) = match whole {
            Some(text) => {
                let bytes = text.len() as u64;
                (text, bytes)
            }
            // Where it is cut the rest was never kept.
            None => {
                let text = run.state.reply.result().unwrap_or_default();
                let bytes = RunView::from(run).result_bytes.unwrap_or(text.len() as u64);
                (text, bytes)
            }
        };
        let asked = usize::try_from(from).unwrap_or(usize::MAX).min(text.len());
        let begin = text.floor_char_boundary(asked);
        Ok(OutputPart {
            status: run.status(),
            text: cut(&text[begin..], OUTPUT_PART_BYTES_MAX).to_owned(),
            from: begin as u64,
            bytes,
        })
    }

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

    /// The bytes of an artifact that a run may name: its own, that of a run which it continues or
    /// which is above it, the nearest first, or that of one which it may see.
    pub(super) async fn artifact_for(
        &self,
        spec: &RunSpec,
        hash: &str,
    ) -> Result<Option<Arc<[u8]>>, ControllerError> {
        let store = &self.0.parts.store;
        let (mut id, mut before) = (spec.id.clone(), before(spec));
        loop {
            if let Some(bytes) = store.artifact(&id, hash).await? {
                return Ok(Some(bytes));
            }
            let Some(next) = before else { break };
            before = store.get(&next).await?.and_then(|run| self::before(&run.spec));
            id = next;
        }
        for run in self.visible(spec).await?.0 {
            if let Some(bytes) = store.artifact(run.id(), hash).await? {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// The bytes of images that a run names, for one that it starts.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`] with the first name that it may not name.
    pub(super) async fn images_for(
        &self,
        spec: &RunSpec,
        named: &[Media],
    ) -> Result<Vec<ImageBytes>, ControllerError> {
        let (mut images, mut bytes) = (Vec::with_capacity(named.len()), 0);
        for name in named {
            let found = self.artifact_for(spec, &name.hash).await?;
            let image = found.filter(|bytes| media_type(bytes).is_some());
            let not_found = || ControllerError::NotFound { id: name.shown_hash().to_owned() };
            let image = image.ok_or_else(not_found)?;
            bytes += image.len();
            images.push(ImageBytes(image));
            // They are refused for that, and no more of them is read.
            if bytes > MEDIA_TOTAL_BYTES_MAX {
                break;
            }
        }
        Ok(images)
    }

    /// The result of a tool call by its name, wherever it stands. The journal has it; it is kept
    /// nowhere else.
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

/// The run that one continues, where its answer is still that of it.
fn answered_by(run: &Run) -> Option<&RunId> {
    let continued = run.spec.continues.as_ref()?;
    let (kept, own) = (&continued.reply, &run.state.reply);
    let is_same = kept.bytes() == own.bytes() && kept.result() == own.result();
    is_same.then_some(&continued.run)
}

/// The run that one continues, or else the one above it: none has both.
fn before(spec: &RunSpec) -> Option<RunId> {
    let continued = spec.continues.as_ref().map(|continued| continued.run.clone());
    continued.or_else(|| spec.parent_run_id.clone())
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
