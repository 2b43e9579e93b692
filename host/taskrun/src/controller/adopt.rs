//! Giving runs another form of their agent: the one that the policy has now.

use taskrun_journal::event::Event;
use taskrun_journal::ids::RunId;
use taskrun_journal::machine::decide::{self, AdoptRefusal};
use taskrun_journal::pin::agent_of;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_policy::Upgrade;

use super::code::WithCode;
use super::{Client, Controller};
use crate::agents::Agent;
use crate::driver::is_between_steps;
use crate::error::ControllerError;

/// The effect of a request to adopt.
#[derive(Clone, Debug)]
pub struct AdoptOutcome {
    /// The run afterwards.
    pub run: Run,
    /// Its pin before; `None` if nothing changed, as it had that of now.
    pub from: Option<String>,
}

impl Client {
    /// Gives a run the form that its agent has in the policy now, and returns when that is durable:
    /// components, settings, prompts and rules, in both directions. What it has done and said stays,
    /// and so do the bounds of its request and of the runs above it. A call that waits ends as it was
    /// begun; of one whose tool is gone the agent is told so.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::RunEnded`] if it has
    /// ended or is on its way out; [`ControllerError::UnderWay`] if a step or a call of it may be
    /// under way; [`ControllerError::Invalid`] for an entry of a heartbeat, or if the policy does not
    /// have its agent; [`ControllerError::Storage`].
    pub async fn adopt(&self, id: &str) -> Result<AdoptOutcome, ControllerError> {
        let run = self.get(id).await?;
        let agents = self.controller.agents();
        let name = &run.spec.agent_name;
        let agent = agents.by_name.get(name).ok_or_else(|| {
            let reason = format!("the policy has no agent {name} that could be used");
            ControllerError::Invalid { field: "agent_name", reason }
        })?;
        let (to, by) = (agent.pin_now(), self.principal.name.as_str());
        let decide = |run: &Run| decide::adopt(run, to, by).map_err(|why| refused(run.id(), why));
        let done = self.controller.record(run, decide).await?;
        let from = done.events.iter().find_map(|recorded| {
            let Event::Adopted { from, .. } = &recorded.event else { return None };
            Some(from.clone())
        });
        Ok(AdoptOutcome { run: done.run, from })
    }
}

impl Controller {
    /// The form that the agent of a run has in the policy now, with its code, if the run has another
    /// one and the policy says that it is to have that.
    pub(super) fn newer_form(&self, run: &Run) -> Option<WithCode> {
        let known = self.agent_with(run.pin());
        let pin = self.pin_to_adopt(run.pin(), known.as_deref());
        let pin = pin.filter(|_| run.spec.class.is_task())?;
        self.code_with(&pin).filter(|(_, code)| code.is_ok())
    }

    /// The pin that runs with this one are given where they are taken up, if the policy says so. Those
    /// of an agent that is `known` to be of another file stay within that.
    pub(super) fn pin_to_adopt(&self, pin: &str, known: Option<&Agent>) -> Option<String> {
        let agents = self.agents();
        let now = agents.by_name.get(agent_of(pin))?;
        let is_of_other_file = known.is_some_and(|agent| agent.origin.is_some());
        match now.upgrade {
            Upgrade::Pinned => None,
            Upgrade::Adopt => (now.pin != pin && !is_of_other_file).then(|| now.pin.clone()),
        }
    }

    /// Gives a run that was taken up this form of its agent, if nothing of it is under way. Where that
    /// cannot be had it goes on as it is.
    pub(super) async fn upgraded(
        &self,
        run: Run,
        agent: Option<WithCode>,
        newer: Option<WithCode>,
    ) -> (Run, Option<WithCode>) {
        let Some(newer) = newer.filter(|_| run.status() == Status::Running) else {
            return (run, agent);
        };
        let mut journal = self.journal(run.clone());
        let is_between = match is_between_steps(&journal).await {
            Ok(is_between) => is_between,
            Err(error) => {
                tracing::warn!(run = %run.id(), %error, "it is not adopted");
                false
            }
        };
        if !is_between {
            return (run, agent);
        }
        // What somebody else writes in this moment is for the driver to find.
        let head = run.state.head;
        let decide = |run: &Run| match run.state.head == head {
            true => decide::adopted(run, &newer.0.pin, "host"),
            false => Vec::new(),
        };
        match journal.commit(decide).await {
            Ok(events) if !events.is_empty() => (journal.run().clone(), Some(newer)),
            Ok(_) => (run, agent),
            Err(halt) => {
                tracing::warn!(run = %run.id(), %halt, "it is not adopted");
                (run, agent)
            }
        }
    }
}

fn refused(id: &RunId, why: AdoptRefusal) -> ControllerError {
    let id = id.clone();
    match why {
        AdoptRefusal::Ended => ControllerError::RunEnded { id },
        AdoptRefusal::UnderWay => ControllerError::UnderWay { id },
        AdoptRefusal::Entry => {
            let reason =
                format!("run {id} is an entry of a heartbeat, which has no agent of its own");
            ControllerError::Invalid { field: "id", reason }
        }
    }
}
