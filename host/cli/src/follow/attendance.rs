//! The hosts that go on with open runs, and the words about a run with which none goes on.

use std::path::Path;

use taskrun_journal::hold::Hold;
use taskrun_journal::ids::RunId;
use taskrun_journal::pin::{Pins, agent_of};
use taskrun_journal::run::{Lifecycle, Run};
use taskrun_journal::spec::RunClass;
use taskrun_journal::store::{Host, StoreError};
use taskrun_journal::time::Timestamp;
use taskrun_policy::Policy;
use taskrun_runtime::{PolicyInForce, Storage, policies_in_force};

use super::pin_files::PinFiles;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::escape::escaped_line;
use crate::output::{Beats, Printer, human, without_answer};
use crate::place::NO_POLICY;

/// The hosts that live and the policy at hand: from these it follows if an open run goes on.
#[derive(Default)]
pub(crate) struct Attendance {
    hosts: Vec<Host>,
    /// The policies of these hosts, as far as they tell.
    in_force: Vec<PolicyInForce>,
    policy: Option<Policy>,
    files: PinFiles,
}

/// The reason for which no host goes on with a run that waits for no other one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// Neither a living host nor the policy has this agent: its own, or that of a run above it. It
    /// was accepted under the file of that policy.
    Agent(String),
    /// Its agent has no heartbeat that would take it.
    Heartbeat,
    /// Its agent does not load on the hosts that have it, for this reason, so that no heartbeat
    /// takes it.
    Load(String),
    /// No living host executes it. The first that does goes on with it at once, or at this time.
    Host(Option<Timestamp>),
}

/// The prospect of a run that was waited for in vain.
pub(crate) struct Outlook {
    /// In words that follow the name of the run.
    pub(crate) words: String,
    /// The run, or one that it waits for, that does not go on before the policy is another one, or
    /// a file that this names.
    pub(crate) stranded: Option<RunId>,
}

impl Attendance {
    /// That of a policy in the data directory in which these hosts live.
    pub(crate) fn new(context: &Context, hosts: Vec<Host>, policy: Option<Policy>) -> Self {
        let in_force = context.data_dir().map(|dir| policies_in_force(&dir, &hosts));
        let in_force = in_force.unwrap_or_default();
        Self { hosts, in_force, policy, files: PinFiles::of(context) }
    }

    /// That of the policy at hand.
    pub(crate) fn of(context: &Context, hosts: Vec<Host>) -> Self {
        Self::new(context, hosts, context.policy_at_hand())
    }

    /// The same with the hosts that live now.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(crate) async fn look(context: &Context, storage: &Storage) -> Result<Self, StoreError> {
        Ok(Self::of(context, storage.hosts.hosts().await?))
    }

    /// The hosts that live.
    pub(crate) fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// True if a living host executes the run, as far as the names of agents tell.
    fn is_executed(&self, run: &Run) -> bool {
        self.hosts.iter().any(|host| host.executes(&run.spec))
    }

    /// The agent of the run, or of one above it, that neither a living host nor the policy has. A
    /// run that was accepted under another file is none of this policy's: that may have its agent.
    pub(crate) fn gone(&self, run: &Run) -> Option<String> {
        let policy = self.policy.as_ref()?;
        let pins = Pins::of(run);
        let agents: Vec<(&str, &str)> = match run.spec.class {
            RunClass::Task => pins.all().map(|pin| (agent_of(pin), pin)).collect(),
            // Any form of its agent takes it; its pin says under which file it was accepted.
            RunClass::Heartbeat => vec![(run.spec.agent_name.as_str(), run.pin())],
        };
        let is_gone = |(name, pin): &(&str, &str)| {
            !policy.agents.contains_key(*name)
                && self.hosts.iter().all(|host| !host.agents.contains(*name))
                && self.files.is_of(policy, pin)
        };
        agents.into_iter().find(is_gone).map(|(name, _)| name.to_owned())
    }

    /// True if the policy has all agents of the run.
    fn is_at_hand(&self, run: &Run) -> bool {
        let has = |policy: &Policy| {
            Pins::of(run).all().all(|pin| policy.agents.contains_key(agent_of(pin)))
        };
        self.policy.as_ref().is_some_and(has)
    }

    /// True for an entry whose agent has no heartbeat. A host of another policy may know of one.
    fn is_heartless(&self, run: &Run) -> bool {
        let of_it = |policy: &&Policy| self.files.is_of(policy, run.pin());
        let Some(policy) = self.policy.as_ref().filter(of_it) else { return false };
        let is_other = |host: &Host| {
            host.executes(&run.spec) && Path::new(&host.policy) != policy.path.as_path()
        };
        let agent = policy.agents.get(&run.spec.agent_name);
        run.state.hold == Hold::Beat
            && agent.is_some_and(|agent| agent.heartbeat.is_none())
            && !self.hosts.iter().any(is_other)
    }

    /// The reason for which the agent of an entry loads on none of the hosts that execute it, so
    /// that no heartbeat takes it there.
    fn unloaded(&self, run: &Run) -> Option<&str> {
        if run.state.hold != Hold::Beat {
            return None;
        }
        let reason = |host: &Host| {
            let told = self.in_force.iter().find(|told| told.host == host.id)?;
            told.left_out.get(&run.spec.agent_name).map(String::as_str)
        };
        let hosts = self.hosts.iter().filter(|host| host.executes(&run.spec));
        let reasons: Option<Vec<&str>> = hosts.map(reason).collect();
        reasons?.into_iter().next()
    }

    /// The heartbeat that takes an entry which waits, as far as the policy tells; `None` where its
    /// agent does not load. The next host makes up for ticks that none was there for.
    pub(crate) fn beat(&self, run: &Run, now: Timestamp) -> Option<Timestamp> {
        if self.unloaded(run).is_some() {
            return None;
        }
        let since = if self.is_executed(run) { now } else { run.spec.created_at };
        next_beat(self.policy.as_ref()?, run, since)
    }

    /// The same of all entries among these runs.
    pub(crate) fn beats(&self, runs: &[Run], now: Timestamp) -> Beats {
        runs.iter().filter_map(|run| Some((run.id().clone(), self.beat(run, now)?))).collect()
    }

    /// The reason for which no host goes on with a run; `None` if one does, or if it waits for other
    /// runs or for somebody's word, or has ended.
    pub(crate) fn lack(&self, run: &Run, now: Timestamp) -> Option<Lack> {
        let due = match &run.state.hold {
            Hold::Wanted { not_before, .. } => Some(*not_before),
            Hold::Beat => self.beat(run, now),
            Hold::Nobody | Hold::Runs { .. } | Hold::Host { .. } => return None,
        };
        if let Some(agent) = self.gone(run) {
            return Some(Lack::Agent(agent));
        }
        if self.is_heartless(run) {
            return Some(Lack::Heartbeat);
        }
        if let Some(reason) = self.unloaded(run) {
            return Some(Lack::Load(reason.to_owned()));
        }
        // One that has lost its host is wanted: the moment of rest before it goes on is no time.
        let is_later = |due: &Timestamp| *due > now && !is_lost(run);
        (!self.is_executed(run)).then(|| Lack::Host(due.filter(is_later)))
    }

    /// The words about a run that lacks something. Their commands have the options of the command
    /// line, but for the policy where that may not be the one of the run.
    pub(crate) fn text(&self, run: &Run, lack: &Lack, now: Timestamp, printer: &Printer) -> String {
        let id = run.id();
        let cancel = printer.command(&format!("taskrun cancel {id}"));
        let agent = escaped_line(&run.spec.agent_name);
        match lack {
            Lack::Agent(gone) => format!(
                "no host goes on with {id}: the policy has no agent {}; put it back, or end the run \
                 with `{cancel}`",
                missing(run, gone)
            ),
            Lack::Heartbeat => format!(
                "agent {agent} has no heartbeat now: {id} waits until it has one again; `{cancel}` \
                 ends it"
            ),
            Lack::Load(reason) => {
                let check = format!("agent check {agent}");
                let check = match self.is_at_hand(run) {
                    true => printer.command(&format!("taskrun {check}")),
                    false => printer.invocation().elsewhere(&check),
                };
                format!(
                    "agent {agent} does not load: {}; {id} waits until it does: see `{check}`, or \
                     end it with `{cancel}`",
                    escaped_line(reason)
                )
            }
            Lack::Host(_) if run.state.hold == Hold::Beat => {
                printer.completed(&self.entry_text(run, now))
            }
            Lack::Host(Some(due)) => self.due_text(run, *due, now, printer),
            Lack::Host(None) => {
                let wait = printer.invocation().elsewhere(&format!("wait {id}"));
                match is_lost(run) {
                    true => format!(
                        "no host executes {id}: the one that did has died, or has given it back; \
                         where its policy is, `{wait}` starts the next one, which continues it"
                    ),
                    false => format!(
                        "no host executes {id}: none lives whose policy has its agent and those \
                         above it; where that policy is, `{wait}` starts one, and if it has them no \
                         more, `{cancel}` ends the run"
                    ),
                }
            }
        }
    }

    /// The words about a run that was found to be executed by none of the hosts.
    pub(crate) fn unattended_text(&self, run: &Run, now: Timestamp, printer: &Printer) -> String {
        let gone = self.gone(run).map(Lack::Agent);
        let lack = gone.or_else(|| self.lack(run, now)).unwrap_or(Lack::Host(None));
        self.text(run, &lack, now, printer)
    }

    /// The words about such a run where no host can be started, for this reason. Without a policy at
    /// hand they say what helps where there is one.
    pub(crate) fn unstarted_text(
        &self,
        run: &Run,
        failure: &Failure,
        now: Timestamp,
        printer: &Printer,
    ) -> String {
        let why = format!("no host is started: {}", failure.line());
        if failure.code == NO_POLICY {
            return format!("{}; {why}", self.unattended_text(run, now, printer));
        }
        let hint = failure.hint.as_deref().map(|hint| printer.completed(hint));
        let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        format!("no host executes {}, and {why}{hint}", run.id())
    }

    fn due_text(&self, run: &Run, due: Timestamp, now: Timestamp, printer: &Printer) -> String {
        const SERVICE: &str = "host --service";
        let (id, due) = (run.id(), human::due(due, now));
        let then = without_answer(run).unwrap_or("it goes on");
        let elsewhere = printer.invocation().elsewhere(SERVICE);
        match (self.hosts.is_empty(), self.is_at_hand(run)) {
            (true, true) => format!(
                "{id} is {due}, no host runs; {then} when one runs then: `{}` stays, and any command \
                 that starts a host wakes what is due",
                printer.command(&format!("taskrun {SERVICE}"))
            ),
            (true, false) => format!(
                "{id} is {due}, no host runs; {then} when one runs then: where its policy is, \
                 `{elsewhere}` stays, and any command that starts a host wakes what is due"
            ),
            (false, _) => format!(
                "{id} is {due}, and no host that lives has its agent and those above it; {then} when \
                 one that has them runs then: where its policy is, `{elsewhere}` stays"
            ),
        }
    }

    fn entry_text(&self, run: &Run, now: Timestamp) -> String {
        let (id, agent) = (run.id(), escaped_line(&run.spec.agent_name));
        let beat = self.beat(run, now);
        let due = beat.map(|at| format!(", {}", human::due(at, now))).unwrap_or_default();
        let nobody = match self.hosts.is_empty() {
            true => "no host runs",
            false => "no host that lives has that agent",
        };
        // Entries keep a host that has their agent.
        let then = match beat.is_some_and(|at| at <= now) {
            true => "the next host that has it makes up for that",
            false => "a host that has it stays until then, whichever command starts it",
        };
        format!("{id} waits for the heartbeat of {agent}{due}, {nobody}; {then}")
    }

    /// The prospect of an open run that waits for no other one, or for others up to a time; `None`
    /// if it goes on as far as can be told. It is told of the run `id`, which may wait for it. With
    /// it, true if it does not go on before the policy, or a file that this names, is another one.
    pub(crate) fn outlook(&self, id: &RunId, run: &Run, now: Timestamp) -> Option<(bool, Outlook)> {
        let until = until_of(run);
        let lack = match until {
            Some(_) => self.gone(run).map(Lack::Agent),
            None => self.lack(run, now),
        };
        let agent = escaped_line(&run.spec.agent_name);
        let words = match (&lack, self.beat(run, now), until) {
            (Some(Lack::Agent(gone)), _, _) => {
                let gone = missing(run, gone);
                format!("no host goes on with it, as the policy has no agent {gone}")
            }
            (Some(Lack::Heartbeat), _, _) => {
                format!("no heartbeat takes it, as agent {agent} has none now")
            }
            (Some(Lack::Load(reason)), _, _) => {
                let reason = escaped_line(reason);
                format!("no heartbeat takes it, as agent {agent} does not load: {reason}")
            }
            (Some(Lack::Host(_)) | None, Some(beat), _) => {
                format!("the heartbeat of {agent} takes it, which is {}", human::due(beat, now))
            }
            (None, None, Some(until)) if until > now => {
                format!("it goes on at {until}, {}", human::due(until, now))
            }
            (None, None, Some(_)) if self.is_executed(run) => return None,
            (Some(Lack::Host(_)), None, _) | (None, None, Some(_)) => {
                "it goes on when a host executes it".to_owned()
            }
            (None, None, None) => return None,
        };
        let is_stranded = matches!(lack, Some(Lack::Agent(_) | Lack::Heartbeat | Lack::Load(_)));
        let outlook = Outlook {
            words: match run.id() == id {
                true => words,
                false => format!("it waits for {}: {words}", run.id()),
            },
            stranded: is_stranded.then(|| run.id().clone()),
        };
        Some((is_stranded, outlook))
    }
}

/// The heartbeats that take the entries which wait among these runs.
///
/// # Errors
/// [`StoreError`].
pub(crate) async fn beats(
    context: &Context,
    storage: &Storage,
    runs: &[Run],
) -> Result<Beats, StoreError> {
    if runs.iter().all(|run| run.state.hold != Hold::Beat) {
        return Ok(Beats::new());
    }
    Ok(Attendance::look(context, storage).await?.beats(runs, context.now()))
}

/// The first heartbeat of its agent after a moment, for an entry that waits.
pub(crate) fn next_beat(policy: &Policy, run: &Run, since: Timestamp) -> Option<Timestamp> {
    if run.state.hold != Hold::Beat {
        return None;
    }
    policy.agents.get(&run.spec.agent_name)?.heartbeat.as_ref()?.times.next_after(since)
}

/// The time for which a run waits that nobody holds, if it has not come.
#[must_use]
pub(crate) fn due_later(run: &Run, now: Timestamp) -> Option<Timestamp> {
    match &run.state.hold {
        Hold::Wanted { not_before, .. } => Some(*not_before).filter(|due| *due > now),
        Hold::Nobody | Hold::Beat | Hold::Runs { .. } | Hold::Host { .. } => None,
    }
}

/// The time at which a run goes on that waits for other ones, whether they have ended or not.
fn until_of(run: &Run) -> Option<Timestamp> {
    match &run.state.hold {
        Hold::Runs { until, .. } => *until,
        Hold::Nobody | Hold::Beat | Hold::Wanted { .. } | Hold::Host { .. } => None,
    }
}

/// True if a run was being executed, and its host has died or has given it back.
fn is_lost(run: &Run) -> bool {
    let is_running = matches!(run.state.lifecycle, Lifecycle::Running { .. });
    is_running && matches!(run.state.hold, Hold::Wanted { .. })
}

/// The agent that is missing, and whose it is.
fn missing(run: &Run, gone: &str) -> String {
    let name = escaped_line(gone);
    match gone == run.spec.agent_name {
        true => name.into_owned(),
        false => format!("{name}, of a run above it"),
    }
}

#[cfg(test)]
mod tests {
    use taskrun_fixtures::{run_id, run_of, spec};
    use taskrun_journal::hold::WaitMode;

    use super::*;

    #[test]
    fn a_run_that_waits_for_others_up_to_a_time_goes_on_then_whatever_becomes_of_them() {
        let mut run = run_of(spec("w"), []);
        let until = Timestamp(3_600_000);
        let runs = vec![run_id("one")];
        run.state.hold = Hold::Runs { runs, mode: WaitMode::All, until: Some(until) };
        let told = |id: &RunId, now: Timestamp| {
            let found = Attendance::default().outlook(id, &run, now);
            let (is_stranded, outlook) = found.expect("a prospect");
            assert_eq!((is_stranded, outlook.stranded), (false, None));
            outlook.words
        };
        let words = told(run.id(), Timestamp(0));
        assert!(words.starts_with("it goes on at 1970-01-01T01:00:00"), "{words}");
        let words = told(&run_id("above"), until);
        assert_eq!(words, "it waits for w: it goes on when a host executes it");
    }
}
