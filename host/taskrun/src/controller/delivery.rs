//! The delivery of a run's outcome, settled when the run is accepted: who is told, and when.

use taskrun_journal::delivery::{
    Conversation, Delivery, DeliverySettings, IDLE_WAIT_MAX, PROMPT_BYTES_MAX, SEPARATOR_BYTES_MAX,
    Strategy,
};
use taskrun_journal::history::History;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::time::millis;

use super::Controller;
use crate::error::ControllerError;
use crate::spawn::SpawnRequest;

/// The field of a request about which refusals speak.
const FIELD: &str = "delivery";

fn invalid(reason: impl Into<String>) -> ControllerError {
    ControllerError::Invalid { field: FIELD, reason: reason.into() }
}

impl Controller {
    /// The delivery of the outcome of a run that is accepted; `None` if nobody is told.
    ///
    /// # Errors
    /// [`ControllerError::Invalid`] for a request that names a delivery which cannot be,
    /// [`ControllerError::Forbidden`] for one to an agent that may not be told;
    /// [`ControllerError::Storage`].
    pub(super) async fn delivery_of(
        &self,
        spec: &RunSpec,
        request: &SpawnRequest,
    ) -> Result<Option<Delivery>, ControllerError> {
        if let Some(stated) = &request.delivery {
            check(stated)?;
        }
        let stated = request.delivery.as_ref();
        let is_waited_for =
            spec.attached || spec.parent_tool_call_id.is_some() || !spec.class.is_task();
        match (stated.is_some_and(|stated| stated.strategy.is_some()), is_waited_for) {
            (true, true) => {
                let reason = "the outcome of a run that is attached, of a tool call and of an \
                              entry of a heartbeat is told to whoever waits for it";
                return Err(invalid(reason));
            }
            (false, true) => return Ok(None),
            (_, false) => {}
        }
        match (&spec.parent_run_id, stated) {
            (Some(_), None) if !request.delivers => Ok(None),
            (Some(_), _) => self.delivery_beneath(spec, stated).await,
            (None, Some(stated)) => self.delivery_alone(spec, stated),
            (None, None) => Ok(None),
        }
    }

    /// The delivery of a run beneath another one.
    async fn delivery_beneath(
        &self,
        spec: &RunSpec,
        stated: Option<&DeliverySettings>,
    ) -> Result<Option<Delivery>, ControllerError> {
        let store = &self.0.parts.store;
        let (mut above, mut next) = (Vec::new(), spec.parent_run_id.clone());
        let (mut parent, mut root) = (None, None);
        while let Some(id) = next {
            let run = store.get(&id).await?;
            next = run.as_ref().and_then(|run| run.spec.parent_run_id.clone());
            parent = parent.or_else(|| run.clone());
            above.push(id);
            root = run;
        }
        let Some(parent) = parent else { return Ok(None) };
        let usual = || {
            let agents = self.agents();
            let agent = agents.by_name.get(&parent.spec.agent_name);
            agent.map(|agent| agent.delivery.clone()).unwrap_or_default()
        };
        let DeliverySettings { strategy, notify, prompt } = stated.cloned().unwrap_or_else(usual);
        let Some(strategy) = strategy else { return Ok(None) };
        let root = root.filter(|root| {
            let session = &root.spec.parent_session_id;
            !root.spec.history.is_none() && !session.is_empty() && root.spec.depth == 0
        });
        let conversation = match root {
            Some(root) => Some(self.conversation(&parent, &root.spec, notify)?),
            None => None,
        };
        Ok(Some(Delivery { above, conversation, strategy, prompt, vetted: true }))
    }

    /// The conversation of the first run of a tree, with the agent that is told there.
    fn conversation(
        &self,
        parent: &Run,
        root: &RunSpec,
        notify: Option<String>,
    ) -> Result<Conversation, ControllerError> {
        let agent = match notify {
            Some(notify) if notify != root.agent_name => {
                // No more may be started by way of this than by a request.
                if notify != parent.spec.agent_name {
                    self.check_member(parent, &notify)?;
                }
                self.check_converses(&notify)?;
                notify
            }
            Some(_) | None => root.agent_name.clone(),
        };
        let (session, app) = (root.parent_session_id.clone(), root.parent_app_name.clone());
        Ok(Conversation { session, app, agent })
    }

    /// The delivery of a run that people start.
    fn delivery_alone(
        &self,
        spec: &RunSpec,
        stated: &DeliverySettings,
    ) -> Result<Option<Delivery>, ControllerError> {
        let DeliverySettings { strategy, notify, prompt } = stated.clone();
        let Some(strategy) = strategy else { return Ok(None) };
        if spec.parent_session_id.is_empty() {
            return Err(invalid("a run that belongs to no session is told of in none"));
        }
        let agent = notify.unwrap_or_else(|| spec.agent_name.clone());
        if agent == spec.agent_name && !spec.history.is_none() {
            let reason = "the answer of a run of the conversation stands there already; name \
                          another agent that is told, or keep the run out of the conversation";
            return Err(invalid(reason));
        }
        self.check_converses(&agent)?;
        let (session, app) = (spec.parent_session_id.clone(), spec.parent_app_name.clone());
        let conversation = Some(Conversation { session, app, agent });
        Ok(Some(Delivery { above: Vec::new(), conversation, strategy, prompt, vetted: true }))
    }

    /// Refuses an agent that is not there, or takes part in no conversation.
    fn check_converses(&self, name: &str) -> Result<(), ControllerError> {
        let agents = self.agents();
        match agents.by_name.get(name).map(|agent| agent.conversation) {
            Some(History::Agent | History::Session) => Ok(()),
            Some(History::None) => {
                Err(invalid(format!("agent {name} takes part in no conversation")))
            }
            None if agents.has(name) => Ok(()),
            None => Err(invalid(format!("unknown agent {name:?}"))),
        }
    }
}

/// Refuses the texts of a component: whoever is told would take them for the words of people.
pub(super) fn check_texts(stated: &DeliverySettings) -> Result<(), ControllerError> {
    let separator = stated.strategy.as_ref().and_then(Strategy::separator);
    let texts = [("prompt", stated.prompt.as_deref()), ("separator", separator)];
    let mut said =
        texts.into_iter().filter(|(_, text)| text.is_some_and(|text| !text.trim().is_empty()));
    match said.next() {
        None => Ok(()),
        Some((what, _)) => {
            let reason = format!("the {what} of a delivery is for people and the policy to say");
            Err(ControllerError::Forbidden { reason })
        }
    }
}

fn check(stated: &DeliverySettings) -> Result<(), ControllerError> {
    let DeliverySettings { strategy, notify: _, prompt } = stated;
    if prompt.as_ref().is_some_and(|prompt| prompt.len() > PROMPT_BYTES_MAX) {
        return Err(invalid(format!("the prompt has more than {PROMPT_BYTES_MAX} bytes")));
    }
    let (times, separator) = match strategy {
        None | Some(Strategy::ContextOnly | Strategy::Immediate) => return Ok(()),
        Some(Strategy::WaitForIdle { buffer_ms, timeout_ms, interrupt: _ }) => {
            ([*buffer_ms, *timeout_ms], "")
        }
        Some(Strategy::Queued { buffer_ms, timeout_ms, separator }) => {
            ([*buffer_ms, *timeout_ms], separator.as_str())
        }
    };
    if times.into_iter().any(|time| time > millis(IDLE_WAIT_MAX)) {
        return Err(invalid(format!("buffer and timeout are at most {IDLE_WAIT_MAX:?}")));
    }
    if separator.len() > SEPARATOR_BYTES_MAX {
        return Err(invalid(format!("the separator has more than {SEPARATOR_BYTES_MAX} bytes")));
    }
    Ok(())
}
