//! Giving runs another form of their agent: the one that the policy has now.

use taskrun_journal::event::Event;
use taskrun_journal::ids::RunId;
use taskrun_journal::machine::decide::{self, AdoptRefusal};
use taskrun_journal::run::Run;

use super::Client;
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
