//! Runs that continue others, or the conversation of a session.

use taskrun::autonomy::AutonomyRequest;
use taskrun::controller::{Client, SpawnOutcome};
use taskrun::error::ControllerError;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::autonomy::CONTINUATION;
use taskrun_journal::ids::RunId;
use taskrun_journal::run::Run;

use super::narrowing::within;
use crate::args::Budget;
use crate::context::{Context, OWNER_DEFAULT};
use crate::failure::{Failure, Outcome, background_failure};
use crate::lookup::agent_of;
use crate::output::paint::{DIM, with};

/// The beginning of a run that continues something.
pub(super) enum Begin {
    /// An autonomous run.
    After(Box<Run>),
    /// The conversation of a session, in which no autonomous run of the agent was.
    Anew { session: String, agent: String },
}

impl Begin {
    fn agent(&self) -> &str {
        match self {
            Self::After(run) => &run.spec.agent_name,
            Self::Anew { agent, .. } => agent,
        }
    }
}

/// The bounds that are laid on a run which continues something, as totals.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TotalBounds {
    pub(super) budget: Budget,
    pub(super) rounds: Option<u32>,
}

/// Starts a run that continues something and is told the message, and a host where none lives.
pub(super) async fn continue_run(
    context: &Context,
    begin: Begin,
    TotalBounds { budget, rounds }: TotalBounds,
    message: Option<&str>,
) -> Outcome<SpawnOutcome> {
    let policy = context.policy()?;
    agent_of(&policy, begin.agent())?;
    let storage = context.storage(&context.data_dir()?)?;
    let controller = context.accepting(&storage, &policy, &[begin.agent().to_owned()]).await?;
    let client = context.client(&controller);
    let mut request = match begin {
        Begin::After(run) => client.continuation(run.id().as_str()).await?,
        Begin::Anew { session, agent } => SpawnRequest {
            owner_user_id: context
                .globals
                .owner
                .clone()
                .unwrap_or_else(|| OWNER_DEFAULT.to_owned()),
            parent_session_id: session,
            agent_name: agent,
            task: CONTINUATION.to_owned(),
            autonomous: Some(AutonomyRequest::default()),
            converses: true,
            ..SpawnRequest::default()
        },
    };
    request.narrow = within(request.narrow, budget);
    request.autonomous = request.autonomous.map(|asked| AutonomyRequest { rounds, ..asked });
    request.messages.extend(message.map(str::to_owned));
    let SpawnOutcome { run, reused } = match client.submit(&request).await {
        Ok(outcome) => outcome,
        Err(ControllerError::Locked { id, .. }) if was_told(&client, &id, &request).await? => {
            SpawnOutcome { run: client.get(id.as_str()).await?, reused: true }
        }
        Err(error) => return Err(error.into()),
    };
    if reused && message.is_some() {
        if !was_told(&client, run.id(), &request).await? {
            return Err(untold(&run, &request));
        }
        let text = format!("{} was there before, and was told the message", run.id());
        context.printer.talk(with(DIM, &text));
    }
    if !run.status().is_terminal() {
        let attended = context.background_host(&policy, &storage)?.attend().await;
        attended.map_err(|error| background_failure(&error).about(run.id()))?;
    }
    Ok(SpawnOutcome { run, reused })
}

/// True if a run was accepted with the message of this request, which is made again then: the answer
/// to the first one was lost.
async fn was_told(client: &Client, id: &RunId, request: &SpawnRequest) -> Outcome<bool> {
    let messages = &request.messages;
    Ok(!messages.is_empty() && client.was_told_from_the_start(id.as_str(), messages).await?)
}

/// The refusal of a message to a run that was there before it.
fn untold(run: &Run, request: &SpawnRequest) -> Box<Failure> {
    let id = run.id();
    let (code, message, hint) = match &request.continues {
        Some(continued) if continued != id.as_str() => (
            "already-exists",
            format!("{id} continues run {continued} already, and was not told the message"),
            format!("tell it with `taskrun inject {id} TEXT`"),
        ),
        Some(_) | None => (
            "run-ended",
            format!("run {id} has what it was for, and does not hear the message"),
            format!("see that with `taskrun get {id}`, or start another run of its session"),
        ),
    };
    Failure::usage(code, message).about(id).hint(hint)
}
