//! Supervision of runs while they are waited for.

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// No host executes the run, as none has its agent and those above it, and none is started. Of
    /// a run that is attended to it is given when hosts that live had time to look at their
    /// policies.
    Unattended(RunId),
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
        self.find_host_within(&run, TAKES_UP_WITHIN).await?;
        Ok(asking_run(&self.client, &run, now).await?)
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
        self.find_host_within(run, Duration::ZERO).await
    }

    /// The same, without notice of a run that no host executes before this has been so for a time
    /// in which hosts live.
    async fn find_host_within(
        &mut self,
        run: &Run,
        patience: Duration,
    ) -> Result<(), SupervisorError> {
        let hosts = self.hosts.hosts().await.map_err(ControllerError::from)?;
        // A host that could not bind its agent does not have it, and goes on trying.
        if self.tell_of_load(run, &hosts) || hosts.iter().any(|host| host.executes(&run.spec)) {
            self.unattended.remove(run.id());
            return Ok(());
        }
        let (tree, now) = (tree_of(&self.client, run).await?, self.clock.now());
        if !tree.values().any(|run| needs_host(run, &tree, now))
            && !self.has_to_tell(tree.values()).await?
        {
            return Ok(());
        }
        if let Some(host) = self.background.as_mut().filter(|host| host.is_missing(&hosts)) {
            self.unattended.remove(run.id());
            let attended = host.attend().await;
            return attended
                .map_err(|source| SupervisorError::Host { run: run.id().clone(), source });
        }
        let at = self.clock.monotonic();
        let since = *self.unattended.entry(run.id().clone()).or_insert(at);
        let is_sure = hosts.is_empty() || at.saturating_sub(since) >= patience;
        if is_sure && !self.warned {
            self.warned = true;
            (self.notify)(Notice::Unattended(run.id().clone()));
        }
        Ok(())
    }

    /// True if a subscriber of one of these runs is soon to be told something of it.
    async fn has_to_tell(
        &self,
        runs: impl Iterator<Item = &Run> + Send,
    ) -> Result<bool, ControllerError> {
        for run in runs.filter(|run| !run.spec.subscriptions.is_empty()) {
            let scope = Scope::tenant(&run.spec.tenant);
            let client = self.client.controller().at(&scope);
            let all = client.dispatches_of(run.id().as_str()).await?;
            let is_due_soon = |one: &Dispatch| {
                one.state.is_open() && keeps_host(one.attempts) && !is_terminal(&one.key.subscriber)
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

/// The whole tree of a run, also the parts that the caller may not see: nothing of it is shown.
async fn tree_of(client: &Client, run: &Run) -> Result<HashMap<RunId, Run>, ControllerError> {
    let client = client.controller().at(&Scope::tenant(&run.spec.tenant));
    let mut all = HashMap::from([(run.id().clone(), run.clone())]);
    // Without its first run, which somebody may have removed, it is looked at from here.
    let tree = match client.tree(run.spec.root_run_id.as_str()).await {
        Ok(tree) => tree,
        Err(ControllerError::NotFound { .. }) => client.tree(run.id().as_str()).await?,
        Err(error) => return Err(error),
    };
    let runs = std::iter::once(tree.run).chain(tree.descendants);
    all.extend(runs.map(|run| (run.id().clone(), run)));
    Ok(all)
}

/// The run, or one that it waits for, that needs an answer from outside and without which the run
/// does not go on. The caller may be one who does not see that run.
///
/// # Errors
/// Those of reading the tree of the run.
///
/// # Cancel safety
/// It only looks.
pub async fn asking_run(
    client: &Client,
    run: &Run,
    now: Timestamp,
) -> Result<Option<Run>, ControllerError> {
    match run.state.hold {
        Hold::Runs { .. } => {
            let tree = tree_of(client, run).await?;
            Ok(asking(run, &tree, now).cloned())
        }
        Hold::Nobody | Hold::Beat | Hold::Wanted { .. } | Hold::Host { .. } => {
            Ok(needs_answer(run, now).then(|| run.clone()))
        }
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

/// The run that needs an answer from outside and without which this one does not go on.
fn asking<'t>(run: &'t Run, tree: &'t HashMap<RunId, Run>, now: Timestamp) -> Option<&'t Run> {
    let Hold::Runs { runs, mode, until: None } = &run.state.hold else {
        return needs_answer(run, now).then_some(run);
    };
    // The store lets no run wait for one that waits for it, so this comes to an end.
    let mut found = runs.iter().map(|id| tree.get(id).and_then(|run| asking(run, tree, now)));
    match mode {
        WaitMode::All => found.flatten().next(),
        WaitMode::Any => {
            let first = found.next()??;
            found.all(|one| one.is_some()).then_some(first)
        }
    }
}
