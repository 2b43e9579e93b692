//! The images of an answer: those that a planner names are kept with the run that names them.

use taskrun_journal::media::Media;
use taskrun_journal::message::Part;
use taskrun_journal::plan::PlannerError;
use taskrun_journal::text::cut;

use super::parts::Parts;
use super::recorder::Recorder;
use crate::ports::planner::{Decision, PlanResult};

/// Code of the failure of a run that names an image which it does not have.
const NOT_FOUND: &str = "not-found";
/// Bytes that are shown of a name which no artifact has: those of a name that one could have.
const HASH_BYTES: usize = 64;

/// Has the images of a plan's answer kept with the run, each under what its bytes say.
///
/// # Errors
/// An error of the planner with the code `not-found` for a name under which neither the run nor one
/// above it has an image; with `unavailable` if that cannot be read.
pub(super) async fn keep(
    parts: &Parts,
    recorder: &mut Recorder,
    mut plan: PlanResult,
) -> Result<PlanResult, PlannerError> {
    let Decision::FinalResponse(message) = &mut plan.decision else { return Ok(plan) };
    let caller = parts.runs_access(recorder.run(), String::new()).caller;
    for part in &mut message.parts {
        let Part::Media(named) = part else { continue };
        let found = parts.env.runs.artifact(&caller, &named.hash).await;
        let bytes = found.map_err(|error| failure("unavailable", error.to_string()))?;
        let image = bytes.and_then(|bytes| Media::of(bytes).ok());
        let (media, artifact) = image.ok_or_else(|| {
            failure(NOT_FOUND, format!("the run has no image {:?}", cut(&named.hash, HASH_BYTES)))
        })?;
        *named = media;
        recorder.keep([artifact]);
    }
    Ok(plan)
}

fn failure(code: &str, message: String) -> PlannerError {
    PlannerError { code: Some(code.to_owned()), message, causes: Vec::new(), retry_after_ms: None }
}
