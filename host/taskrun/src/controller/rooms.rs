//! Tasks that runs delegate into rooms of their own: the results that are used again, the tasks that
//! were given before, and the turns that rooms take.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Map, Value, json};
use taskrun_journal::message::Message;
use taskrun_journal::narrowing::Ancestor;
use taskrun_journal::run::Run;
use taskrun_journal::runs::{ChildRequest, RunsAnswer};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::Status;
use taskrun_journal::text::cut;
use taskrun_journal::time::{Timestamp, millis};
use taskrun_policy::DelegationSettings;

use super::Controller;
use super::child::{ancestors_beneath, context, given_context, own_room_of, room_of, told_context};
use super::descendants::{accepted, one};
use crate::error::ControllerError;
use crate::scope::runs::Caller;
use crate::spawn::{SpawnRequest, narrowing_of};

/// Most tasks of before that a delegated run is told of.
const PREVIOUS_MAX: usize = 3;
/// Most bytes that it is told of each.
const PREVIOUS_BYTES_MAX: usize = 4 << 10;
/// The key under which these stand in its context.
const PREVIOUS: &str = "previous_tasks";

/// The settings of a room, as they were when its run was accepted. They are no part of what is asked:
/// a call that is made again finds its run, whatever the policy says by then.
#[derive(Default)]
pub(super) struct Room {
    /// The channels that it has where the call names none.
    share_channels: Vec<String>,
    /// The name of the rooms of which one is worked in at a time.
    serial_in: Option<String>,
    /// The context that its run is told instead of the call's.
    context: Option<Message>,
}

impl Room {
    /// The channels of the run above that its run is given.
    pub(super) fn shared<'a>(&'a self, request: &'a SpawnRequest) -> &'a [String] {
        match request.share_channels.is_empty() {
            true => &self.share_channels,
            false => &request.share_channels,
        }
    }

    /// Has a run work in it.
    pub(super) fn furnish(&self, spec: &mut RunSpec) {
        if let Some(name) = &self.serial_in {
            (spec.serial, spec.serial_in) = (true, Some(name.clone()));
        }
        if let Some(context) = &self.context {
            spec.context_messages = vec![context.clone()];
        }
    }
}

/// The time within which a task that was done is not done again.
#[derive(Clone, Copy)]
struct RecentTime {
    now: Timestamp,
    within: Duration,
}

impl RecentTime {
    /// True for a run that last changed in it. A change that seems to come long after this was made
    /// before the clock was set back: nothing says how long ago.
    fn has(self, run: &Run) -> bool {
        self.now.0.abs_diff(run.state.updated_at.0) <= millis(self.within)
    }
}

impl Controller {
    /// Delegates a task into a room of its own, which is shown as it was accepted; or gives the run
    /// that completed the same task before, where its result may be used again.
    pub(super) async fn delegate(
        &self,
        caller: &Caller,
        child: ChildRequest,
    ) -> Result<RunsAnswer, ControllerError> {
        let agents = self.agents();
        let settings = agents.by_name.get(&caller.spec.agent_name).map(|one| &one.delegation);
        let settings = settings.cloned().unwrap_or_default();
        let DelegationSettings { share_channels, reuse_within, serial } = settings;
        let mut given = given_context(child.context.as_deref());
        let request = self.child_request(caller, child).await?;
        let rooms = room_of(caller);
        // Runs that share a session and no conversation do not wait for each other's rooms.
        let serial_in = serial.then(|| match caller.spec.history.is_none() {
            true => own_room_of(caller),
            false => rooms.clone(),
        });
        let mut room = Room { share_channels, serial_in, context: None };
        if let Some(within) = reuse_within {
            let lately = RecentTime { now: self.0.parts.clock.now(), within };
            let before = self.delegated(caller, &request, (&rooms, lately)).await?;
            let above = match before.is_empty() {
                true => Vec::new(),
                false => {
                    ancestors_beneath(&self.client(caller).get(caller.spec.id.as_str()).await?)
                }
            };
            // Who may less is not given what somebody found who may more, nor the other way round.
            let is_same = |run: &&Run| {
                may_the_same(&run.spec.ancestors, &above)
                    && self.is_same(run, &request, (&given, lately))
            };
            if let Some(same) = before.iter().find(is_same) {
                return Ok(one(same));
            }
            let mut known = BTreeSet::new();
            let tasks = before.iter().map(|run| cut(&run.spec.task, PREVIOUS_BYTES_MAX));
            let tasks: Vec<&str> =
                tasks.filter(|task| known.insert(*task)).take(PREVIOUS_MAX).collect();
            if !tasks.is_empty() {
                given.insert(PREVIOUS.to_owned(), json!(tasks));
                room.context = Some(context(&Value::Object(given).to_string()));
            }
        }
        let outcome = self.client(caller).submit_into(&request, &room).await?;
        Ok(one(&self.begun(RunSpec::clone(&outcome.run.spec)).0))
    }

    /// The runs of a caller's rooms that were accepted or ended lately, the latest first; none if
    /// the call has begun its own run, which is found by its key.
    async fn delegated(
        &self,
        caller: &Caller,
        request: &SpawnRequest,
        (rooms, lately): (&str, RecentTime),
    ) -> Result<Vec<Run>, ControllerError> {
        let (mut runs, _) = self.visible(&caller.spec).await?;
        if runs.iter().any(|run| run.spec.child_session_id == request.child_session_id) {
            return Ok(Vec::new());
        }
        runs.retain(|run| {
            let room = run.spec.child_session_id.as_deref().and_then(|id| id.strip_prefix(rooms));
            // Rooms of rooms have more behind that.
            room.is_some_and(|rest| !rest.contains(':')) && lately.has(run)
        });
        runs.sort_by(|one, other| accepted(other).cmp(&accepted(one)));
        Ok(runs)
    }

    /// True for a run whose result answers a request: of the same agent as it is now, from which
    /// the same rights were taken away, for the same task with the same context, completed lately
    /// and not cut short.
    fn is_same(
        &self,
        run: &Run,
        request: &SpawnRequest,
        (given, lately): (&Map<String, Value>, RecentTime),
    ) -> bool {
        let spec = &run.spec;
        let agents = self.agents();
        let is_as_now = agents.by_name.get(&spec.agent_name).is_some_and(|agent| {
            agent.pin == spec.pin && narrowing_of(request, agent).rights() == spec.narrow.rights()
        });
        let told = spec.context_messages.first().map(Message::joined_text);
        let mut told = told_context(told.as_deref());
        if !given.contains_key(PREVIOUS) {
            told.remove(PREVIOUS);
        }
        let has_result = run.status() == Status::Completed
            && run.ending().is_some_and(|ending| !ending.partial)
            && run.state.reply.result().is_some();
        is_as_now
            && has_result
            && lately.has(run)
            && spec.agent_name == request.agent_name
            && spec.task.to_lowercase() == request.task.trim().to_lowercase()
            && told == *given
    }
}

/// True if those above two runs leave them the same rights. Amounts are no part of these: a nudge
/// is given what is left of a budget, which is never the same.
fn may_the_same(above: &[Ancestor], other: &[Ancestor]) -> bool {
    let leaves_the_same = |(one, other): (&Ancestor, &Ancestor)| {
        (&one.agent_name, &one.pin) == (&other.agent_name, &other.pin)
            && one.narrow.rights() == other.narrow.rights()
    };
    above.len() == other.len() && above.iter().zip(other).all(leaves_the_same)
}
