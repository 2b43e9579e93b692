//! The channels of runs: bound as a run is accepted, and shared with runs beneath it.

use std::collections::BTreeSet;

use taskrun_journal::channel::{CHANNELS_MAX, Channel};
use taskrun_journal::dispatch::{SUBSCRIPTIONS_MAX, Subscription, TaskEvent};
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;

use super::{Client, Controller};
use crate::error::{ControllerError, tell_known};

/// Stands before the name of a channel where somebody is named who said something over it.
const SAID_OVER: &str = "channel/";

impl Client {
    /// Tells a run what people said over one of its channels, as [`Self::inject`] does.
    ///
    /// # Errors
    /// Those of [`Self::inject`]; [`ControllerError::Invalid`] if the run has no such channel, and
    /// [`ControllerError::Forbidden`] if nothing that is said over it is passed on.
    pub async fn hear(&self, id: &str, channel: &str, text: &str) -> Result<Run, ControllerError> {
        let run = self.get(id).await?;
        let known = run.spec.channels.iter().find(|one| one.name == channel);
        let known = known.ok_or_else(|| invalid(format!("run {id} has no channel {channel:?}")))?;
        if !known.is_heard() {
            let state = if known.muted { "muted" } else { known.access.as_str() };
            let reason = format!("channel {channel} of run {id} is {state}");
            return Err(ControllerError::Forbidden { reason });
        }
        self.inject_by(id, &format!("{SAID_OVER}{channel}"), text).await
    }
}

impl Controller {
    /// Binds the channels of a run that nothing is above: those of its agent, and those that its
    /// request names. One beneath others has what these share with it.
    ///
    /// # Errors
    /// [`ControllerError::Invalid`] for one that the policy does not have, and for too many.
    pub(super) fn open_channels(
        &self,
        spec: &mut RunSpec,
        asked: &[String],
    ) -> Result<(), ControllerError> {
        if !spec.ancestors.is_empty() {
            return Ok(());
        }
        let agents = self.agents();
        let agent = agents.by_name.get(&spec.agent_name);
        let own = agent.map(|agent| agent.channels.as_slice()).unwrap_or_default();
        let names: BTreeSet<&str> = own.iter().chain(asked).map(|name| name.trim()).collect();
        let channel = |name: &str| {
            agents.channels.get(name).cloned().ok_or_else(|| {
                let known = tell_known(agents.channels.keys());
                invalid(format!("the policy has no channel {name:?}; {known}"))
            })
        };
        let channels = names.into_iter().map(channel).collect::<Result<_, _>>()?;
        bind(spec, channels)
    }
}

/// Binds the channels of the run above that are named, as that has them. Other names are passed over:
/// whoever shares a channel need not know if it is there.
pub(super) fn share(
    above: &RunSpec,
    names: &[String],
    spec: &mut RunSpec,
) -> Result<(), ControllerError> {
    let is_named = |channel: &&Channel| names.iter().any(|name| name.trim() == channel.name);
    bind(spec, above.channels.iter().filter(is_named).cloned().collect())
}

/// Binds the channels of the run that one continues beside its own.
pub(super) fn keep(before: &[Channel], spec: &mut RunSpec) -> Result<(), ControllerError> {
    let mut channels = std::mem::take(&mut spec.channels);
    let is_there = |one: &&Channel| channels.iter().all(|own| own.name != one.name);
    let kept: Vec<Channel> = before.iter().filter(is_there).cloned().collect();
    channels.extend(kept);
    bind(spec, channels)
}

/// Makes these the channels of a run, and those that are told its subscribers.
pub(super) fn bind(spec: &mut RunSpec, channels: Vec<Channel>) -> Result<(), ControllerError> {
    if channels.len() > CHANNELS_MAX {
        return Err(invalid(format!("a run has at most {CHANNELS_MAX} channels")));
    }
    for channel in channels.iter().filter(|channel| channel.is_told()) {
        let known = spec.subscriptions.iter_mut().find(|one| one.subscriber == channel.to);
        match known {
            Some(known) if known.events.contains(&TaskEvent::Completed) => {}
            Some(known) => known.events.push(TaskEvent::Completed),
            None => {
                let (subscriber, events) = (channel.to.clone(), vec![TaskEvent::Completed]);
                spec.subscriptions.push(Subscription { subscriber, events, without_text: false });
            }
        }
    }
    if spec.subscriptions.len() > SUBSCRIPTIONS_MAX {
        let reason = format!("channels and subscribers together are at most {SUBSCRIPTIONS_MAX}");
        return Err(invalid(reason));
    }
    spec.channels = channels;
    Ok(())
}

fn invalid(reason: String) -> ControllerError {
    ControllerError::Invalid { field: "channels", reason }
}
