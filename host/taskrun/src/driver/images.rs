//! The images of an answer: those that a planner names are kept with the run that names them.

use std::collections::BTreeSet;

use taskrun_journal::media::{MEDIA_MAX, Media};
use taskrun_journal::message::Part;
use taskrun_journal::plan::PlannerError;

use super::parts::Parts;
use super::recorder::Recorder;
use crate::ports::planner::{Decision, PlanResult};

/// Code of the failure of a run that names an image which it does not have.
const NOT_FOUND: &str = "not-found";

/// Has the images of a plan's answer kept with the run, each once and under what its bytes say.
///
/// # Errors
/// An error of the planner with the code `not-found` for a name under which the run may name no
/// image, with `unavailable` if that cannot be read, and with `limit` for more than [`MEDIA_MAX`].
pub(super) async fn keep(
    parts: &Parts,
    recorder: &mut Recorder,
    mut plan: PlanResult,
) -> Result<PlanResult, PlannerError> {
    let Decision::FinalResponse(message) = &mut plan.decision else { return Ok(plan) };
    let caller = parts.runs_access(recorder.run(), String::new()).caller;
    // Before any is looked for, so that a step that is replayed without them is refused alike.
    let names = message.images().map(|image| &*image.hash).collect::<BTreeSet<_>>().len();
    if names > MEDIA_MAX {
        return Err(failure("limit", format!("the answer has more than {MEDIA_MAX} images")));
    }
    let (mut named, mut kept) = (BTreeSet::new(), Vec::with_capacity(message.parts.len()));
    for part in std::mem::take(&mut message.parts) {
        let Part::Media(name) = part else {
            kept.push(part);
            continue;
        };
        // One that is named again is there already.
        if !named.insert(name.hash.clone()) {
            continue;
        }
        let found = parts.env.runs.artifact(&caller, &name.hash).await;
        let bytes = found.map_err(|error| failure("unavailable", error.to_string()))?;
        let image = bytes.and_then(|bytes| Media::of(bytes).ok());
        let (media, artifact) = image.ok_or_else(|| {
            failure(NOT_FOUND, format!("the run has no image {:?}", name.shown_hash()))
        })?;
        kept.push(Part::Media(media));
        recorder.keep([artifact]);
    }
    message.parts = kept.into();
    Ok(plan)
}

fn failure(code: &str, message: String) -> PlannerError {
    PlannerError { code: Some(code.to_owned()), message, causes: Vec::new(), retry_after_ms: None }
}
