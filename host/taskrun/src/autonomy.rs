//! A request for a run that goes on by itself, and how it is checked.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use taskrun_journal::autonomy::{
    Autonomy, AutonomyMode, CONTINUATION, CONTINUATION_BYTES_MAX, DEFER_DEFAULT,
    RESULT_SCHEMA_BYTES_MAX,
};
use taskrun_journal::time::millis;
use taskrun_policy::least;

use crate::agents::Agent;
use crate::error::ControllerError;
use crate::host_tools::read_schema;

/// The request for a run to go on by itself. What is not given is as the agent's
/// policy says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AutonomyRequest {
    /// Most rounds; no more than the agent's policy allows.
    pub rounds: Option<u32>,
    /// The prompt of every round but the first.
    pub continuation: Option<String>,
    /// The schema of the result that the run has to give, as JSON.
    pub result_schema: Option<String>,
    /// The longest time for which a round of the run is put off: what it asks for beyond is cut.
    pub max_defer: Option<Duration>,
    /// True if the run ends, as `deferred`, where it would be deferred; a run that continues it waits
    /// for the time. For callers that keep no host for that long.
    pub exit_on_defer: bool,
}

/// The way in which a run of an agent goes on by itself: one that is asked to, and one that another
/// run starts of an agent whose policy says how.
///
/// # Errors
/// [`ControllerError::Invalid`] with the first thing that is wrong.
pub(crate) fn accepted(
    request: Option<&AutonomyRequest>,
    agent: &Agent,
    is_beneath: bool,
) -> Result<Option<Autonomy>, ControllerError> {
    let default = AutonomyRequest::default();
    let asked = match (request, &agent.autonomous) {
        (Some(asked), _) => asked,
        (None, Some(_)) if is_beneath => &default,
        (None, Some(_) | None) => return Ok(None),
    };
    let stated = agent.autonomous.clone().unwrap_or_default();
    if let (Some(asked), Some(most)) = (asked.rounds, stated.rounds)
        && asked > most
    {
        let name = &agent.name;
        let reason = format!(
            "{asked} rounds are more than the {most} of agent {name}; its policy may allow more: \
             autonomous = {{ rounds = {asked} }}"
        );
        return Err(invalid(reason));
    }
    if asked.rounds == Some(0) {
        return Err(invalid("a run has one round at least"));
    }
    let continuation = asked.continuation.as_deref().map(str::trim);
    let continuation = continuation.or(stated.continuation.as_deref()).unwrap_or(CONTINUATION);
    if continuation.is_empty() || continuation.len() > CONTINUATION_BYTES_MAX {
        let reason = format!("the prompt to go on has 1 to {CONTINUATION_BYTES_MAX} bytes");
        return Err(invalid(reason));
    }
    let result_schema = asked.result_schema.clone().or(stated.result_schema);
    if let Some(schema) = &result_schema {
        if schema.len() > RESULT_SCHEMA_BYTES_MAX {
            let most = RESULT_SCHEMA_BYTES_MAX;
            return Err(invalid(format!("the schema of the result has more than {most} bytes")));
        }
        read_schema(schema).map_err(|detail| {
            invalid(format!("the schema of the result is not a usable JSON schema: {detail}"))
        })?;
    }
    let may_defer = stated.max_defer.is_some_and(|most| !most.is_zero());
    let usual = match is_beneath && !may_defer {
        true => AutonomyMode::Bounded,
        false => AutonomyMode::Standing,
    };
    let mode = stated.mode.unwrap_or(usual);
    let max_defer = max_defer(stated.max_defer, mode);
    Ok(Some(Autonomy {
        mode,
        continuation: continuation.to_owned(),
        rounds: least(asked.rounds, stated.rounds),
        result_schema,
        done: stated.done,
        states: stated.states,
        max_defer_ms: max_defer.map(millis),
        longest_defer_ms: asked.max_defer.map(millis),
        exits_on_defer: asked.exit_on_defer,
    }))
}

/// The longest time for which a run of this mode may put a round off, if it may put any off.
fn max_defer(stated: Option<Duration>, mode: AutonomyMode) -> Option<Duration> {
    match (stated, mode) {
        (Some(most), _) => Some(most).filter(|most| !most.is_zero()),
        (None, AutonomyMode::Standing) => Some(DEFER_DEFAULT),
        (None, AutonomyMode::Bounded) => None,
    }
}

/// The way in which an accepted run goes on by itself, within the bounds that its agent has by now.
pub(crate) fn within_agent(accepted: &Autonomy, agent: &Agent) -> Autonomy {
    let bounds = agent.autonomous.clone().unwrap_or_default();
    let now = max_defer(bounds.max_defer, accepted.mode).map(millis);
    Autonomy {
        rounds: least(accepted.rounds, bounds.rounds),
        max_defer_ms: accepted.max_defer_ms.zip(now).map(|(then, now)| then.min(now)),
        ..accepted.clone()
    }
}

fn invalid(reason: impl Into<String>) -> ControllerError {
    ControllerError::Invalid { field: "autonomous", reason: reason.into() }
}
