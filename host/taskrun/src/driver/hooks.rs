//! Asking the host's hooks before tools are called.

use std::sync::Arc;

use futures::future::join_all;
use taskrun_journal::event::{Event, Refusal};
use taskrun_journal::message::ToolError;
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::tool::ToolFailure;

use super::gate::Gate;
use super::parts::Parts;
use super::recorder::Recorder;
use super::results::refused;
use super::stop::Halt;
use super::time_up::TimeUp;
use crate::ports::hook::{Moment, Veto};

/// The vetoes of the hooks against the calls of a turn, each at its place; empty if there are no
/// hooks. They are not asked about calls that are refused anyway.
///
/// Whoever stops the run meanwhile waits for them: a call that nobody decided about must not be
/// recorded, and their time is bounded.
pub(super) async fn vetoes(
    (parts, recorder): (&Parts, &mut Recorder),
    turn: u32,
    requests: &[ToolRequest],
    gate: &Gate<'_>,
) -> Result<Vec<Option<Veto>>, Halt> {
    if parts.env.hooks.is_empty() {
        return Ok(Vec::new());
    }
    let spec = Arc::clone(&recorder.run().spec);
    let asked = requests.iter().map(|request| {
        let (env, spec) = (&parts.env, &spec);
        async move {
            gate.fits(request).ok()?;
            let moment = Moment::ToolCall { spec, turn, request };
            env.hooks.ask(&*env.clock, &moment).await
        }
    });
    let mut time_up = TimeUp::never(Arc::clone(&parts.env.clock));
    recorder.attend(&mut time_up, join_all(asked)).await
}

/// What is recorded of a call that a hook is against.
pub(super) fn denied(request: &ToolRequest, veto: &Veto) -> [Event; 2] {
    let decision = Event::PolicyDecision {
        capability: "tool".to_owned(),
        subject: request.name.clone(),
        rule: format!("hook {}", veto.hook),
        decided: None,
    };
    let error = ToolError::coded("denied", format!("{}: {veto}", request.name));
    let failure = ToolFailure { error, retry_hint: None };
    [decision, refused(request, Refusal::Denied, failure)]
}
