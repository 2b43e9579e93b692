//! The arguments of a turn's calls, looked at before the calls pass the gate.

use std::pin::pin;
use std::sync::Arc;

use futures::FutureExt;
use taskrun_journal::message::ToolError;
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::tool::ToolFailure;

use super::parts::Parts;
use super::recorder::Recorder;
use super::stop::{Halt, Stop, goes_elsewhere};
use super::time_up::TimeUp;
use crate::arguments::TurnSteps;
use crate::gate::layer::{ArgumentFailures, call_id};

/// Looks at the arguments of calls, as far as their tools are the agent's.
///
/// A request to stop the run does not wait for it: no call begins then, and those that were not
/// looked at are refused. Nor does a host that hands the run over: `None` if it did so first, and no
/// call may begin then before its arguments were looked at.
pub(super) async fn misfits(
    parts: &Parts,
    recorder: &mut Recorder,
    requests: &[ToolRequest],
) -> Result<Option<ArgumentFailures>, Halt> {
    let (code, live) = (Arc::clone(&parts.code), Arc::clone(recorder.live()));
    let mut looked = pin!(async {
        let (steps, mut misfits) = (TurnSteps::default(), ArgumentFailures::new());
        for request in requests {
            let Some(tool) = code.tools.get(&request.name) else { continue };
            if let Err(failure) = tool.check(&request.payload, &steps).await {
                misfits.insert(call_id(request).to_owned(), failure);
            }
        }
        misfits
    });
    // Nearly always all of it is done in place.
    if let Some(misfits) = looked.as_mut().now_or_never() {
        return Ok(Some(misfits));
    }
    let mut time_up = TimeUp::never(Arc::clone(&parts.env.clock));
    let looked = recorder.attend(&mut time_up, async {
        tokio::select! {
            biased;
            misfits = looked => Some(misfits),
            () = live.asked() => None,
            () = live.handing_over().cancelled() => None,
        }
    });
    if let Some(misfits) = looked.await? {
        return Ok(Some(misfits));
    }
    let Some(cause) = recorder.live().cause() else { return Ok(None) };
    if goes_elsewhere(cause) {
        return Err(Stop::Asked(cause).into());
    }
    let stopped = || {
        let text = "the run was stopped before the arguments were looked at";
        ToolFailure { error: ToolError::coded("canceled", text), retry_hint: None }
    };
    let refused = requests.iter().map(|request| (call_id(request).to_owned(), stopped()));
    Ok(Some(refused.collect()))
}
