//! Runs that continue others: ended runs stay ended, and a further one goes on where they stopped.

use std::collections::BTreeSet;
use std::time::Duration;

use taskrun_journal::dispatch::Subscription;
use taskrun_journal::hold::Hold;
use taskrun_journal::list::{ListFilter, PAGE_MAX};
use taskrun_journal::run::Run;
use taskrun_journal::schedule;
use taskrun_journal::spec::{Continuation, RunSpec};
use taskrun_journal::status::StopReason;
use taskrun_journal::store::Idempotency;
use taskrun_journal::time::Timestamp;
use taskrun_policy::TERMINAL;

use super::{Client, channels};
use crate::autonomy::AutonomyRequest;
use crate::driver::read_carried_usage;
use crate::error::{ControllerError, LockedWait};
use crate::spawn::{RuntimeStateKeys, SpawnRequest};

impl Client {
    /// The request for a run that continues an autonomous one which has ended: with its goal, its
    /// session and what belongs to it, and within what the policy gives its agent now. Accepting it
    /// gives the run itself, where that has what it was for.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], [`ControllerError::Invalid`] if the run is not autonomous, or
    /// beneath another one, [`ControllerError::Storage`].
    pub async fn continuation(&self, id: &str) -> Result<SpawnRequest, ControllerError> {
        let old = self.get(id).await?;
        let spec = &old.spec;
        let autonomy = autonomy_of(&old)?;
        // What it might spend does not bind: the policy does.
        let narrow = spec.narrow.rights();
        Ok(SpawnRequest {
            owner_user_id: spec.owner_user_id.clone(),
            parent_session_id: spec.parent_session_id.clone(),
            one_shot: spec.parent_session_id.is_empty(),
            parent_app_name: spec.parent_app_name.clone(),
            app_name: spec.app_name.clone(),
            agent_name: spec.agent_name.clone(),
            task: spec.task.clone(),
            runtime_state: spec.envelope.clone(),
            runtime_state_keys: RuntimeStateKeys::of(spec),
            metadata: spec.metadata.clone(),
            labels: spec.labels.clone(),
            priority: spec.priority,
            tree: spec.tree,
            narrow,
            answers: Some(spec.answers.clone()),
            autonomous: Some(autonomy),
            converses: !spec.history.is_none(),
            continues: Some(spec.id.to_string()),
            ..SpawnRequest::default()
        })
    }

    /// The latest autonomous run of a session, and of an agent if one is named.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn latest_autonomous(
        &self,
        session: &str,
        agent: Option<&str>,
    ) -> Result<Option<Run>, ControllerError> {
        let filter = ListFilter { agent_name: agent.map(str::to_owned), ..ListFilter::default() };
        let (mut latest, mut cursor): (Option<Run>, _) = (None, None);
        loop {
            let page = self.list(&filter, cursor.as_ref(), PAGE_MAX).await?;
            let of_session = page.runs.into_iter().filter(|run| {
                let spec = &run.spec;
                spec.autonomy.is_some() && spec.depth == 0 && spec.parent_session_id == session
            });
            let age = |run: &Run| (run.spec.created_at, run.id().clone());
            latest = latest.into_iter().chain(of_session).max_by_key(age);
            cursor = page.next;
            if cursor.is_none() {
                return Ok(latest);
            }
        }
    }

    /// The run that a request continues, if that has what it was for: whoever asks is given it.
    ///
    /// # Errors
    /// Those of [`Self::get`], and [`ControllerError::Locked`] while it is open.
    pub(super) async fn stored_result(
        &self,
        request: &SpawnRequest,
    ) -> Result<Option<Run>, ControllerError> {
        let Some(id) = &request.continues else { return Ok(None) };
        let old = self.get(id.trim()).await?;
        autonomy_of(&old)?;
        if !old.status().is_terminal() {
            return Err(locked(&old));
        }
        let is_there = old.ending().is_some_and(|ending| !is_continued(ending.stop_reason));
        Ok(is_there.then_some(old))
    }

    /// Has a run go on where the one ended that it continues, which it gives.
    pub(super) async fn carry_on(
        &self,
        continued: &str,
        spec: &mut RunSpec,
    ) -> Result<Run, ControllerError> {
        let old = self.get(continued.trim()).await?;
        let state = &old.state;
        spec.hops = old.spec.hops;
        let delivery = old.spec.delivery.clone();
        spec.delivery = spec.delivery.take().or(delivery);
        keep_told(&old.spec.subscriptions, &self.controller.subscribers().names(), spec);
        channels::keep(&old.spec.channels, spec)?;
        let store = &*self.controller.0.parts.store;
        let (usage, is_final) = read_carried_usage(store, &old).await?;
        spec.continues = Some(Box::new(Continuation {
            run: old.id().clone(),
            turns: state.turns,
            rounds: state.rounds.number(),
            tool_calls: state.tool_calls,
            ran_ms: state.ran_ms,
            usage,
            is_final,
            reply: state.reply.clone(),
            due: old.next_wake().cloned(),
        }));
        Ok(old)
    }
}

/// Has those told of a run who are told of the one that it continues and are still known. A terminal
/// looked at that one alone.
fn keep_told(before: &[Subscription], known: &BTreeSet<String>, spec: &mut RunSpec) {
    for one in before {
        let name = &one.subscriber;
        let is_known = known.contains(name) || taskrun_policy::is_transport(name);
        let is_there = spec.subscriptions.iter().any(|own| own.subscriber == *name);
        if is_known && !is_there && name != TERMINAL {
            spec.subscriptions.push(one.clone());
        }
    }
}

/// Has a run begin now that continues a deferred one: it was told something.
pub(super) fn wake_at_once(spec: &mut RunSpec, now: Timestamp) {
    let due = spec.continues.as_mut().and_then(|continued| continued.due.as_mut());
    if let Some(schedule) = due {
        schedule.at = schedule.at.min(now);
    }
}

/// The key by which a run is continued once.
pub(super) fn once(continued: &Continuation) -> Idempotency {
    Idempotency {
        key: schedule::continuation_key(&continued.run),
        fingerprint: String::new(),
        completed_since: None,
    }
}

/// The request that a run was made by, but for the number of its rounds.
fn autonomy_of(run: &Run) -> Result<AutonomyRequest, ControllerError> {
    let invalid = |reason: String| ControllerError::Invalid { field: "continues", reason };
    let id = run.id();
    if run.spec.depth > 0 {
        return Err(invalid(format!(
            "run {id} is beneath another one, which alone goes on with it"
        )));
    }
    let Some(autonomy) = &run.spec.autonomy else {
        return Err(invalid(format!("run {id} was not autonomous; start another one")));
    };
    Ok(AutonomyRequest {
        rounds: None,
        continuation: Some(autonomy.continuation.clone()),
        result_schema: autonomy.result_schema.clone(),
        max_defer: autonomy.longest_defer_ms.map(Duration::from_millis),
        exit_on_defer: autonomy.exits_on_defer,
    })
}

pub(super) fn locked(run: &Run) -> ControllerError {
    let state = &run.state;
    let (holder, waits) = match &state.hold {
        Hold::Host { host } => (host.to_string(), None),
        Hold::Nobody | Hold::Beat | Hold::Wanted { .. } | Hold::Runs { .. } => {
            let waits = if state.pause.is_some() {
                Some(LockedWait::Paused)
            } else if state.rounds.due.is_some() {
                Some(LockedWait::Deferred)
            } else {
                let asks = state.awaits.iter().any(|one| !one.answered);
                asks.then_some(LockedWait::Asking)
            };
            ("nobody".to_owned(), waits)
        }
    };
    ControllerError::Locked { id: run.id().clone(), holder, waits }
}

/// True if a run that ended so is gone on with; the others have what they were for.
fn is_continued(reason: StopReason) -> bool {
    match reason {
        StopReason::Done
        | StopReason::NaturalEnd
        | StopReason::FinalResponse
        | StopReason::TerminalTool => false,
        StopReason::MaxTurns
        | StopReason::MaxTokens
        | StopReason::MaxCost
        | StopReason::Wallclock
        | StopReason::ToolCap
        | StopReason::FailureCap
        | StopReason::TimeBudget
        | StopReason::RunTimeout
        | StopReason::TurnTimeout
        | StopReason::RetryAborted
        | StopReason::RateLimited
        | StopReason::PlannerError
        | StopReason::AgentError
        | StopReason::AgentTrap
        | StopReason::ContractViolation
        | StopReason::CanceledByOwner
        | StopReason::CanceledByParent
        | StopReason::HostShutdown
        | StopReason::LeaseLost
        | StopReason::InterruptedByRestart
        | StopReason::PersistFailed
        | StopReason::Deferred => true,
    }
}
