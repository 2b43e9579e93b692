//! Asking the host's hooks before tools are called, and before a round begins.

use std::sync::Arc;

use futures::future::join_all;
use taskrun_journal::plan::ToolRequest;

use super::parts::Parts;
use super::recorder::Recorder;
use super::stop::Halt;
use super::time_up::TimeUp;
use crate::gate::Gate;
use crate::gate::layer::call_id;
use crate::ports::hook::{Moment, Veto};

/// The vetoes of the hooks against calls of a turn, by the ids of these. They are not asked about
/// calls that are refused anyway.
///
/// A request to stop the run waits for them: a call that nobody decided about must not be
/// recorded, and their time is bounded.
pub(super) async fn vetoes(
    (parts, recorder): (&Parts, &mut Recorder),
    turn: u32,
    requests: &[ToolRequest],
    gate: &Gate<'_>,
) -> Result<Vec<(String, Veto)>, Halt> {
    if parts.env.hooks.is_empty() {
        return Ok(Vec::new());
    }
    let spec = Arc::clone(&recorder.run().spec);
    let asked = requests.iter().map(|request| {
        let (env, spec) = (&parts.env, &spec);
        async move {
            if !gate.fits(request) {
                return None;
            }
            let moment = Moment::ToolCall { spec, turn, request };
            let veto = env.hooks.ask(&*env.machine, &moment).await?;
            Some((call_id(request).to_owned(), veto))
        }
    });
    let mut time_up = TimeUp::never(Arc::clone(&parts.env.clock));
    let vetoes = recorder.attend(&mut time_up, join_all(asked)).await?;
    Ok(vetoes.into_iter().flatten().collect())
}

/// The veto of the hooks against the round that is next, of a run that goes on by itself.
///
/// A request to stop the run waits for them here, too, and their time is bounded.
pub(super) async fn veto_of_round(
    parts: &Parts,
    recorder: &mut Recorder,
) -> Result<Option<Veto>, Halt> {
    let (env, run) = (Arc::clone(&parts.env), recorder.run());
    let rounds = &run.state.rounds;
    if env.hooks.is_empty() || run.spec.autonomy.is_none() || rounds.has_begun {
        return Ok(None);
    }
    let (spec, round) = (Arc::clone(&run.spec), rounds.ended + 1);
    let asked = async { env.hooks.ask(&*env.machine, &Moment::Round { spec: &spec, round }).await };
    let mut time_up = TimeUp::never(Arc::clone(&env.clock));
    recorder.attend(&mut time_up, asked).await
}
