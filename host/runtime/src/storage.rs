//! A data directory and the store in it.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use taskrun::agents::Agents;
use taskrun::clock::{SystemClock, SystemRandom};
use taskrun::controller::{Controller, ControllerParts, Settings};
use taskrun::ports::deployments::Deployments;
use taskrun::ports::hook::Hooks;
use taskrun::ports::retry::SharedRetryPolicy;
use taskrun::ports::transport::Subscribers;
use taskrun::scope::Interrupt;
use taskrun_engine::Engine;
use taskrun_journal::consent::Consents;
use taskrun_journal::format::JournalFormat;
use taskrun_journal::list::{Cursor, ListFilter, PAGE_MAX, Scope};
use taskrun_journal::memory::Memory;
use taskrun_journal::run::Run;
use taskrun_journal::store::{
    Dispatches, Hosts, Policies, PolicyRevision, PolicyText, Sessions, Store, StoreError,
};
use taskrun_journal::time::{Clock, Timestamp};
use taskrun_policy::Policy;
use taskrun_store::{FILE_NAMES, MemoryStore, SqliteOptions, SqliteStore, StoreThreads};

use crate::kept_agents::KeptAgents;
use crate::kept_store::{KeepAgain, KeptStore};
use crate::policy_file::{PolicyLoadError, load_policy_with};
use crate::reload::PolicyWatch;

/// Most bytes of a store unless set otherwise: some five million small runs.
pub const STORE_BYTES_DEFAULT: u64 = 16 << 30;
/// Most looks at a policy file after a text of it was put in force: one, and one more for each edit
/// that takes the text of before back in between. Nobody edits a file as fast as that.
const LOOKS_MAX: usize = 8;
/// Keeps a data directory out of version control.
const GITIGNORE: &str = "*\n";
/// The fault of something else in the place of a data directory.
const NO_FOLDER: &str = "it is no folder";

/// Options of the store of a data directory.
#[derive(Clone, Copy, Debug)]
pub struct StorageOptions {
    /// Most bytes of it, beyond which it takes no more runs. Default: [`STORE_BYTES_DEFAULT`].
    pub bytes_max: u64,
    /// The format in which journals are written, and the latest that is read. Default:
    /// [`JournalFormat::CURRENT`].
    pub format: JournalFormat,
    /// The threads that do its work. Default: its own.
    pub threads: StoreThreads,
}

impl Default for StorageOptions {
    fn default() -> Self {
        Self {
            bytes_max: STORE_BYTES_DEFAULT,
            format: JournalFormat::CURRENT,
            threads: StoreThreads::default(),
        }
    }
}

/// The ports of a controller that are the program's own.
pub(crate) struct ProgramPorts {
    /// Decides about plan steps that fail.
    pub(crate) retry_policy: SharedRetryPolicy,
    /// Subscribers beside those of the policy.
    pub(crate) subscribers: Subscribers,
    /// Asked before something happens.
    pub(crate) hooks: Hooks,
    /// The time of runs.
    pub(crate) clock: Arc<dyn Clock>,
}

impl Default for ProgramPorts {
    fn default() -> Self {
        Self {
            retry_policy: None,
            subscribers: Subscribers::default(),
            hooks: Hooks::default(),
            clock: Arc::new(SystemClock::new()),
        }
    }
}

/// An open store, by the ports that a controller works with. Clones are the same store.
#[derive(Clone)]
pub struct Storage {
    /// Journal, records and queue.
    pub store: Arc<dyn Store>,
    /// The processes that share the store.
    pub hosts: Arc<dyn Hosts>,
    /// The sessions from which runs are started.
    pub sessions: Arc<dyn Sessions>,
    /// Facts of sessions and tenants.
    pub memory: Arc<dyn Memory>,
    /// Consents to tool calls that hold in more than one run.
    pub consents: Arc<dyn Consents>,
    /// The rows of what subscribers are to be told.
    pub dispatches: Arc<dyn Dispatches>,
    /// The texts of policy files that are in force.
    pub policies: Arc<dyn Policies>,
    /// The data directory, if there is one.
    data_dir: Option<Arc<Path>>,
    /// The agents that are kept in it.
    kept: Option<Arc<KeptAgents>>,
    format: JournalFormat,
    findings: Arc<[String]>,
}

impl Storage {
    fn of<S>(store: S, findings: Vec<String>) -> Self
    where
        S: Store + Hosts + Sessions + Memory + Consents + Dispatches + Policies + 'static,
    {
        let store = Arc::new(store);
        Self {
            store: store.clone(),
            hosts: store.clone(),
            sessions: store.clone(),
            memory: store.clone(),
            consents: store.clone(),
            dispatches: store.clone(),
            policies: store,
            data_dir: None,
            kept: None,
            format: JournalFormat::CURRENT,
            findings: findings.into(),
        }
    }

    /// Opens the store of a data directory; both are made if they are not there.
    ///
    /// # Errors
    /// [`StoreError`], if the directory cannot be made or the store in it cannot be used.
    pub fn open(dir: &Path, options: StorageOptions) -> Result<Self, StoreError> {
        make_data_dir(dir)?;
        Self::open_made(dir, options)
    }

    /// The same for a front door that only looks: a data directory that is not there stands for an
    /// empty store, and is not made.
    ///
    /// # Errors
    /// [`StoreError`], if there is something else in its place, or the store cannot be used.
    pub fn open_existing(dir: &Path, options: StorageOptions) -> Result<Self, StoreError> {
        match dir.metadata() {
            Ok(about) if about.is_dir() => Self::open_made(dir, options),
            Ok(_) => Err(unavailable(dir, NO_FOLDER)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::in_memory()),
            Err(error) => Err(unavailable(dir, &error.to_string())),
        }
    }

    fn open_made(dir: &Path, options: StorageOptions) -> Result<Self, StoreError> {
        let StorageOptions { bytes_max, format, threads } = options;
        let store = SqliteStore::open(
            dir,
            SqliteOptions {
                bytes_max: Some(bytes_max),
                format,
                threads,
                at_rest: Some(taskrun_engine::give_back_memory),
                ..SqliteOptions::default()
            },
        )?;
        let findings = store.findings();
        let (data_dir, kept) = (Some(dir.into()), Some(KeptAgents::new(dir)));
        Ok(Self { data_dir, kept, format, ..Self::of(store, findings) })
    }

    /// An empty store whose runs end with the process.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::of(MemoryStore::new(), Vec::new())
    }

    /// The damage that hosts found in the store beside their work, a line each; none if the store
    /// is whole as far as that is known.
    #[must_use]
    pub fn findings(&self) -> &[String] {
        &self.findings
    }

    /// The data directory; `None` of a store in memory.
    #[must_use]
    pub fn data_dir(&self) -> Option<&Path> {
        self.data_dir.as_deref()
    }

    /// Bytes of the file of the store, without its log and with what was removed; 0 of a store in
    /// memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let [name, ..] = FILE_NAMES;
        let file = self.data_dir().and_then(|dir| std::fs::metadata(dir.join(name)).ok());
        file.map_or(0, |file| file.len())
    }

    /// Keeps the store open until the process has ended, which saves the time that closing takes. It is
    /// for a process that ends now, while another one has the store open.
    pub fn leave_open(&self) {
        std::mem::forget(Arc::clone(&self.store));
    }

    /// The agents that are kept in the data directory, if there is one.
    #[must_use]
    pub fn kept(&self) -> Option<Arc<KeptAgents>> {
        self.kept.clone()
    }

    /// Shows all runs that scope and filter admit, the one changed last before the others. One that
    /// changes meanwhile may be left out.
    ///
    /// # Errors
    /// As those of listing runs.
    pub async fn each_run(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        mut show: impl FnMut(&Run) + Send,
    ) -> Result<(), StoreError> {
        let mut after: Option<Cursor> = None;
        loop {
            let page = self.store.list(scope, filter, after.as_ref(), PAGE_MAX).await?;
            page.runs.iter().for_each(&mut show);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Puts the text of a policy in force for its file, unless it is: it binds from now on all
    /// runs that were accepted under this file, whichever host executes them. One that the file
    /// does not have any more replaces none, and the one before is in force again where the file
    /// has that again. Gives the text that is in force then.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn apply(
        &self,
        policy: &Policy,
        now: Timestamp,
    ) -> Result<PolicyRevision, StoreError> {
        put_in_force(&*self.policies, policy, now).await
    }

    /// A controller that executes nothing: it looks, and queues runs of these agents for hosts. It is
    /// for one caller at a time: before it accepts a run it looks for the agent's files on the thread
    /// that polls it.
    #[must_use]
    pub fn watch(&self, agents: Agents) -> Controller {
        let settings = Settings { slots: 0, ..Settings::default() };
        self.controller((agents, ProgramPorts::default()), None, None, settings)
    }

    /// A controller with these bounds; watch and engine are those of agents that are executed.
    pub(crate) fn controller(
        &self,
        (agents, ports): (Agents, ProgramPorts),
        watch: Option<Arc<PolicyWatch>>,
        engine: Option<&Engine>,
        settings: Settings,
    ) -> Controller {
        let settings = Settings { format: self.format, ..settings };
        let store = Arc::clone(&self.store);
        let again = watch.clone().map(|watch| watch as Arc<dyn KeepAgain>);
        let store = match self.kept() {
            Some(kept) => Arc::new(KeptStore::new(store, kept, again)) as Arc<dyn Store>,
            None => store,
        };
        let deployments = watch.map(|watch| watch as Arc<dyn Deployments>);
        let parts = ControllerParts {
            store,
            hosts: Arc::clone(&self.hosts),
            sessions: Arc::clone(&self.sessions),
            memory: Arc::clone(&self.memory),
            consents: Arc::clone(&self.consents),
            dispatches: Arc::clone(&self.dispatches),
            subscribers: ports.subscribers,
            agents,
            deployments,
            clock: ports.clock,
            machine: Arc::new(SystemClock::new()),
            random: Arc::new(SystemRandom),
            interrupt: engine.map_or_else(|| Arc::new(|| {}) as Interrupt, Engine::interrupt),
            hooks: ports.hooks,
            retry_policy: ports.retry_policy,
            settings,
        };
        Controller::driving_on(parts, engine.and_then(Engine::drivers))
    }
}

/// Puts the text of a policy in force for its file: see [`Storage::apply`].
pub(crate) async fn put_in_force(
    policies: &dyn Policies,
    policy: &Policy,
    now: Timestamp,
) -> Result<PolicyRevision, StoreError> {
    let text = policy_text(policy, now);
    // One that cannot be read is replaced, unless that fails, too.
    let known = policies.policy_in_force(&text.path).await.unwrap_or_default();
    // Loading took its time, and whoever reads what the file has by now puts that in force.
    if let Some(known) = &known
        && (known.policy.digest == text.digest
            || digest_in_file(policy).await.as_ref() != Some(&text.digest))
    {
        return Ok(known.clone());
    }
    let before = known.map(|known| known.policy);
    let mut applied = policies.apply_policy(text.clone()).await?;
    if before.is_none() && applied.policy.digest == text.digest {
        return Ok(applied);
    }
    // The file may have the one of two that is not in force: this text, where the clock was set
    // back since the other one was read; or the one before again, which was still in force when it
    // was read again, so that nothing was written. A third one is put in force by whoever reads it.
    for _ in 0..LOOKS_MAX {
        let found = digest_in_file(policy).await;
        let is_to_be = |one: &&PolicyText| {
            found.as_ref() == Some(&one.digest) && one.digest != applied.policy.digest
        };
        let Some(one) = before.iter().chain([&text]).find(is_to_be) else { break };
        // It is there after the other one was put in force, whatever the clock says.
        let read_at = now.max(Timestamp(applied.policy.read_at.0.saturating_add(1)));
        applied = policies.apply_policy(PolicyText { read_at, ..one.clone() }).await?;
    }
    Ok(applied)
}

/// The digest of the text that the file of a policy has, with those of its prompts; `None` for one
/// with a mistake. One that cannot be read has the text that was read of it.
async fn digest_in_file(policy: &Policy) -> Option<String> {
    let (path, defaults) = (policy.path.clone(), Arc::clone(policy.defaults()));
    let read = tokio::task::spawn_blocking(move || load_policy_with(&path, &defaults)).await;
    match read {
        Ok(Ok(found)) => Some(found.digest),
        Ok(Err(PolicyLoadError::Invalid(_))) => None,
        Ok(Err(PolicyLoadError::Read { .. })) | Err(_) => Some(policy.digest.clone()),
    }
}

/// The text of a policy, as a store keeps it.
fn policy_text(policy: &Policy, read_at: Timestamp) -> PolicyText {
    PolicyText {
        path: policy.path.display().to_string(),
        digest: policy.digest.clone(),
        text: policy.text().to_owned(),
        read_at,
    }
}

fn unavailable(dir: &Path, detail: &str) -> StoreError {
    StoreError::Unavailable { path: dir.display().to_string(), detail: detail.to_owned() }
}

/// Makes a data directory that only its owner reads and that version control ignores.
///
/// # Errors
/// [`StoreError::Unavailable`], with the words of the operating system, or if there is something
/// else in its place.
pub fn make_data_dir(dir: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::DirBuilderExt;
    // Of a file the system would only say that it is there.
    let failed = |error: std::io::Error| match dir.exists() {
        true => unavailable(dir, NO_FOLDER),
        false => unavailable(dir, &error.to_string()),
    };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    let ignore = dir.join(".gitignore");
    // One that was made on a full disk is empty. Two processes at once write the same.
    let is_written = ignore.metadata().is_ok_and(|about| !about.is_file() || about.len() > 0);
    if !is_written {
        // Without it version control sees the store, which harms nothing here.
        std::fs::write(ignore, GITIGNORE).ok();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_control_ignores_a_data_directory_that_was_first_made_on_a_full_disk() {
        let folder = tempfile::tempdir().expect("a folder");
        let ignore = folder.path().join(".gitignore");
        let made = || {
            make_data_dir(folder.path()).expect("it is made");
            std::fs::read_to_string(&ignore).expect("it is there")
        };
        assert_eq!(made(), GITIGNORE);
        std::fs::write(&ignore, "").expect("written");
        assert_eq!(made(), GITIGNORE);
        std::fs::write(&ignore, "/taskrun.db\n").expect("written");
        assert_eq!(made(), "/taskrun.db\n", "what somebody wrote stays");
    }
}
