//! Supervision of runs while they are waited for.

mod awaited;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use taskrun::clock::SystemClock;
use taskrun::controller::Client;
use taskrun::error::ControllerError;
use taskrun_journal::dispatch::{Dispatch, keeps_host};
use taskrun_journal::hold::{Hold, WaitMode};
use taskrun_journal::ids::RunId;
use taskrun_journal::list::Scope;
use taskrun_journal::run::{Lifecycle, Run};
use taskrun_journal::status::BlockedOn;
use taskrun_journal::store::{Host, Hosts};
use taskrun_journal::time::{Clock, Timestamp};
use taskrun_policy::is_terminal;

use self::awaited::{asking, awaited, tree_of};
pub use self::awaited::{asking_run, awaited_runs, hindrance_of};
use crate::background::{BackgroundError, BackgroundHost};
use crate::loads::{AgentLoad, agent_loads, awaited_loads};
use crate::storage::Storage;

/// The time in which a living host takes an edit of its policy up, with room for one that is busy:
/// it looks about once a second.
const TAKES_UP_WITHIN: Duration = Duration::from_secs(3);

/// Keeps runs going for as long as they are waited for.
pub struct Supervisor {
    client: Client,
    hosts: Arc<dyn Hosts>,
    clock: Arc<dyn Clock>,
    background: Option<BackgroundHost>,
    data_dir: Option<PathBuf>,
    notify: Notify,
    warned: bool,
    /// The runs that no host was found to execute, with the time on the clock when that began.
    unattended: HashMap<RunId, Duration>,
    /// Set once it was told that the agent is being loaded, and that it did not load.
    said_loading: bool,
    said_failed: bool,
}

type Notify = Box<dyn FnMut(Notice) + Send>;

/// A message for a caller that waits for a run. Each is given at most once by a supervisor.
#[derive(Debug)]
pub enum Notice {
    /// No host executes the run, or one that it waits for, as none has its agent and those above
    /// it, and none is started. Of a run that is attended to it is given when hosts that live had
    /// time to look at their policies.
    Unattended {
        /// The run that no host executes.
        run: Box<Run>,
        /// The hosts that live.
        hosts: Vec<Host>,
        /// The error of the background host, where it was to be started for the run.
        error: Option<Box<BackgroundError>>,
    },
    /// The run waits for its agent to be loaded. Given once while it is loaded, and once where it did
    /// not load.
    Loading(AgentLoad),
}

/// The reason that a run cannot be supervised.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// The controller refuses or fails.
    #[error(transparent)]
    Controller(#[from] ControllerError),
    /// No host executes the run.
    #[error("no host executes run {run}")]
    Host {
        /// The run that is waited for.
        run: RunId,
        /// The error of the background host.
        source: BackgroundError,
    },
}

impl Supervisor {
    /// For runs that `client` may see. It starts no hosts, and gives no notice of agents that are
    /// being loaded.
    #[must_use]
    pub fn new(
        client: Client,
        storage: &Storage,
        notify: impl FnMut(Notice) + Send + 'static,
    ) -> Self {
        Self {
            client,
            hosts: Arc::clone(&storage.hosts),
            clock: Arc::new(SystemClock::new()),
            background: None,
            data_dir: None,
            notify: Box::new(notify),
            warned: false,
            unattended: HashMap::new(),
            said_loading: false,
            said_failed: false,
        }
    }

    /// The same, with notice of the agents that hosts of this data directory are loading.
    #[must_use]
    pub fn telling_of_loads(mut self, data_dir: &Path) -> Self {
        self.data_dir = Some(data_dir.to_owned());
        self
    }

    /// The same, starting this host where a run of its policy needs one.
    #[must_use]
    pub fn starting(mut self, background: BackgroundHost) -> Self {
        self.background = Some(background);
        self
    }

    /// Frees the runs of dead hosts, and sees to it that a host lives where one is needed for this
    /// run to go on. Gives the run, or one that it waits for, that needs an answer from outside.
    ///
    /// # Errors
    /// [`SupervisorError`].
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing that the next call does not look at again.
    pub async fn attend(&mut self, id: &RunId) -> Result<Option<Run>, SupervisorError> {
        let run = self.client.get(id.as_str()).await?;
        if run.status().is_terminal() {
            return Ok(None);
        }
        self.client.controller().sweep().await?;
        let now = self.clock.now();
        if needs_answer(&run, now) {
            return Ok(Some(run));
        }
        let tree = match run.state.hold {
            Hold::Runs { .. } => Some(tree_of(&self.client, &run).await?),
            Hold::Nobody | Hold::Beat | Hold::Wanted { .. } | Hold::Host { .. } => None,
        };
        self.find_host_within(&run, tree.as_ref(), TAKES_UP_WITHIN).await?;
        Ok(tree.and_then(|tree| asking(&run, &tree, now).cloned()))
    }

    /// Sees to it that a host lives if somebody is to be told of an outcome that the caller may see.
    ///
    /// # Errors
    /// [`SupervisorError`].
    ///
    /// # Cancel safety
    /// As [`Self::attend`].
    pub async fn attend_due(&mut self) -> Result<(), SupervisorError> {
        let Some(due) = self.client.due_report().await? else { return Ok(()) };
        let hosts = self.hosts.hosts().await.map_err(ControllerError::from)?;
        let has = |host: &Host| due.notify.as_ref().is_some_and(|name| host.agents.contains(name));
        if hosts.iter().any(has) {
            return Ok(());
        }
        match self.background.as_mut().filter(|host| host.is_missing(&hosts)) {
            Some(host) => {
                let attended = host.attend().await;
                attended.map_err(|source| SupervisorError::Host { run: due.run, source })
            }
            None => Ok(()),
        }
    }

    /// Sees to it that a host lives if something in the tree of this run can go on.
    ///
    /// # Errors
    /// [`SupervisorError`].
    ///
    /// # Cancel safety
    /// As [`Self::attend`].
    pub async fn find_host(&mut self, run: &Run) -> Result<(), SupervisorError> {
        self.find_host_within(run, None, Duration::ZERO).await
    }

    /// The same, without notice of a run that no host executes before this has been so for a time
    /// in which hosts live. Runs that it waits for are looked at where its tree is known.
    async fn find_host_within(
        &mut self,
        run: &Run,
        known: Option<&HashMap<RunId, Run>>,
        patience: Duration,
    ) -> Result<(), SupervisorError> {
        let hosts = self.hosts.hosts().await.map_err(ControllerError::from)?;
        self.background.iter_mut().for_each(|host| host.learn_from(&hosts));
        // A host that could not bind its agent does not have it, and goes on trying.
        if self.tell_of_load(run, &hosts) || hosts.iter().any(|host| host.executes(&run.spec)) {
            self.unattended.remove(run.id());
            if let Some(tree) = known {
                self.attend_awaited(run, tree, &hosts, patience);
            }
            return Ok(());
        }
        let read;
        let tree = match known {
            Some(tree) => tree,
            None => {
                read = tree_of(&self.client, run).await?;
                &read
            }
        };
        let now = self.clock.now();
        if !tree.values().any(|run| needs_host(run, tree, now))
            && !self.has_to_tell(tree.values(), &hosts).await?
        {
            return Ok(());
        }
        if let Some(host) = self.background.as_mut().filter(|host| host.is_missing(&hosts)) {
            self.unattended.remove(run.id());
            let attended = host.attend().await;
            return attended
                .map_err(|source| SupervisorError::Host { run: run.id().clone(), source });
        }
        self.tell_unattended(run, &hosts, patience, None);
        Ok(())
    }

    /// Starts a host if none executes a run that another one waits for, which goes on only when
    /// that has ended. Where none can be started, or it lives already, it gives notice of that run:
    /// the one above has a host, and may go on without it.
    fn attend_awaited(
        &mut self,
        run: &Run,
        tree: &HashMap<RunId, Run>,
        hosts: &[Host],
        patience: Duration,
    ) {
        let (now, mut is_tried) = (self.clock.now(), false);
        for one in awaited(run, tree) {
            let is_executed = hosts.iter().any(|host| host.executes(&one.spec));
            if is_executed || !needs_host(one, tree, now) || self.tell_of_load(one, hosts) {
                self.unattended.remove(one.id());
                continue;
            }
            // What cannot be started for one of them cannot be for the next.
            let missing = self.background.as_mut().filter(|host| host.is_missing(hosts));
            let missing = missing.filter(|_| !std::mem::replace(&mut is_tried, true));
            let error = match missing.map(|host| host.attend_beside(hosts)) {
                Some(Ok(())) => {
                    self.unattended.remove(one.id());
                    return;
                }
                Some(Err(error)) => Some(error),
                None => None,
            };
            self.tell_unattended(one, hosts, patience, error);
        }
    }

    /// Gives notice of a run that none of these hosts executes, once that is sure, and of the reason
    /// for which the one that would execute it is not started.
    fn tell_unattended(
        &mut self,
        run: &Run,
        hosts: &[Host],
        patience: Duration,
        error: Option<BackgroundError>,
    ) {
        let at = self.clock.monotonic();
        let since = *self.unattended.entry(run.id().clone()).or_insert(at);
        let is_sure = hosts.is_empty() || at.saturating_sub(since) >= patience;
        if is_sure && !self.warned {
            self.warned = true;
            (self.notify)(Notice::Unattended {
                run: Box::new(run.clone()),
                hosts: hosts.to_vec(),
                error: error.map(Box::new),
            });
        }
    }

    /// True if a subscriber of one of these runs is soon to be told something of it, which none of
    /// these hosts does. One that the host to be started does not know, either, waits for another.
    async fn has_to_tell(
        &self,
        runs: impl Iterator<Item = &Run> + Send,
        hosts: &[Host],
    ) -> Result<bool, ControllerError> {
        for run in runs.filter(|run| !run.spec.subscriptions.is_empty()) {
            let scope = Scope::tenant(&run.spec.tenant);
            let client = self.client.controller().at(&scope);
            let all = client.dispatches_of(run.id().as_str()).await?;
            let has_to_be_told = |name: &str| {
                !is_terminal(name)
                    && self.background.as_ref().is_none_or(|host| host.tells(name))
                    && hosts.iter().all(|host| !host.subscribers.contains(name))
            };
            let is_due_soon = |one: &Dispatch| {
                one.state.is_open()
                    && keeps_host(one.attempts)
                    && has_to_be_told(&one.key.subscriber)
            };
            if all.iter().any(is_due_soon) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Tells once that a run waits for its agent to be loaded, and once that this did not load. True
    /// if a living host tells of it.
    fn tell_of_load(&mut self, run: &Run, hosts: &[Host]) -> bool {
        let Some(dir) = &self.data_dir else { return false };
        let loads = agent_loads(dir, hosts);
        let Some(load) = awaited_loads(&loads, std::slice::from_ref(run)).next() else {
            return false;
        };
        let said = match load.error {
            Some(_) => &mut self.said_failed,
            None => &mut self.said_loading,
        };
        if !std::mem::replace(said, true) {
            (self.notify)(Notice::Loading(load.clone()));
        }
        load.lives
    }
}

/// True if a run waits for an answer from outside and for nothing else.
#[must_use]
pub fn needs_answer(run: &Run, now: Timestamp) -> bool {
    // Whoever paused it, and set no time, is the one who lets it go on.
    if run.state.pause.as_ref().is_some_and(|pause| pause.until.is_none()) {
        return run.state.hold.host().is_none();
    }
    let Lifecycle::Blocked { on, .. } = &run.state.lifecycle else { return false };
    let is_asked = match on {
        BlockedOn::Input | BlockedOn::Confirmation | BlockedOn::ExternalTools => true,
        BlockedOn::Pause => false,
        BlockedOn::Children | BlockedOn::Schedule => return false,
    };
    match run.state.hold {
        Hold::Nobody => true,
        // What is asked with a time limit is wanted when that is over.
        Hold::Wanted { not_before, .. } => is_asked && not_before > now,
        Hold::Beat | Hold::Runs { .. } | Hold::Host { .. } => false,
    }
}

/// True if a run can go on and a host has to execute it for that. Runs outside the tree count as
/// ended: the host that takes it up looks for itself.
fn needs_host(run: &Run, tree: &HashMap<RunId, Run>, now: Timestamp) -> bool {
    match &run.state.hold {
        // The heart that takes it beats in a host.
        Hold::Beat => true,
        // A host may leave while the time is far, and is started when it comes.
        Hold::Wanted { not_before, .. } => *not_before <= now,
        Hold::Runs { until: Some(until), .. } if *until <= now => true,
        Hold::Runs { runs, mode, .. } => {
            let has_ended = |id: &RunId| tree.get(id).is_none_or(|run| run.status().is_terminal());
            match mode {
                WaitMode::All => runs.iter().all(has_ended),
                WaitMode::Any => runs.iter().any(has_ended),
            }
        }
        Hold::Nobody | Hold::Host { .. } => false,
    }
}
