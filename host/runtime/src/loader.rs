//! The agents and tools of a policy, loaded.

mod models;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskrun::agents::{Agent, Agents, Origins, UnusableAgent};
use taskrun::ports::tool::Tool;
use taskrun::scope::model::Model;
use taskrun_engine::{
    AgentError, AgentGrants, COMPONENT_BYTES_DEFAULT, Cache, CompileWorker, DATA_DIR, Engine,
    EngineError, EngineOptions, Inspection, LoadError, WorkspaceHold, digest_file, pin_of,
};
use taskrun_policy::{AgentPolicy, ModelPolicy, Policy, Provider, ToolPolicy};
use taskrun_store::{BlobError, Blobs};

use self::models::ModelFaults;
pub use self::models::{ModelError, check_models};
pub(crate) use self::models::{check_model, model_error, open_models};
use crate::files_seen::FilesSeen;
use crate::kept_agents::KeptAgents;
use crate::loads::Loads;
use crate::policy_file::check_files_of;
use crate::problem::{Problem, chain};
use crate::snapshot::Digests;
use crate::subscribers::subscribers_of;
use crate::user_folders::user_folders;

/// Folder of native code in a data directory.
pub const CACHE_DIR: &str = "native";
/// Instances of an engine that executes no runs; each costs address space.
const INSTANCES_FOR_LOOKING: u32 = 4;
/// Largest component that is read to tell which one it is, and kept.
pub(crate) const COMPONENT_BYTES_MAX: u64 = 1 << 30;
/// Longest that an agent is loaded before its run is accepted.
const LOAD_WITHIN: Duration = Duration::from_secs(1);

/// The engine that a loader works with.
#[derive(Clone, Debug, Default)]
pub struct LoaderOptions {
    /// The data directory, which is kept from guests and whose disk is kept from being filled.
    /// Default: none.
    pub data_dir: Option<PathBuf>,
    /// Folder in which native code is kept. Default: none, so that each start compiles anew.
    pub cache: Option<PathBuf>,
    /// The program that looks at components and compiles them in processes of their own. Default:
    /// none, so that both are done in this process, where sizes and counts are bounded and time and
    /// memory are not; see [`Options::compile_worker`](crate::Options::compile_worker).
    pub compile_worker: Option<CompileWorker>,
    /// True if runs are executed. Default: no, for components that are looked at and single calls.
    pub executes: bool,
    /// True if runs are accepted or executed: their agents are kept in the data directory as they
    /// are, and loaded from there. Default: no.
    pub keeps: bool,
    /// The agents that are known to be kept there. Default: none is known yet.
    pub kept: Option<Arc<KeptAgents>>,
    /// Most bytes of a component. Default: [`COMPONENT_BYTES_DEFAULT`].
    pub component_bytes_max: Option<u64>,
    /// Bytes of the memories of all guests together; see
    /// [`Options::guest_memory_bytes`](crate::Options::guest_memory_bytes).
    pub guest_memory_bytes: Option<u64>,
}

impl LoaderOptions {
    /// For a data directory, in which native code is kept.
    #[must_use]
    pub fn of_data_dir(dir: &Path) -> Self {
        let cache = Some(dir.join(CACHE_DIR));
        Self { data_dir: Some(dir.to_owned()), cache, ..Self::default() }
    }
}

/// Loads the agents and tools of a policy. Dropping it ends its engine, once nothing that it loaded
/// is left.
pub struct Loader {
    pub(crate) engine: Arc<Engine>,
    pub(crate) policy: Policy,
    pub(crate) digests: Digests,
    pub(crate) models: BTreeMap<String, Arc<dyn Model>>,
    /// Those of the models that cannot be used.
    model_faults: ModelFaults,
    /// Where agents are kept, and loaded from.
    pub(crate) blobs: Option<Blobs>,
    /// The folders of all its agents, until another policy is in its place.
    workspaces: Mutex<Option<WorkspaceHold>>,
}

/// The reason that the agents of a policy cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoaderError {
    /// The engine cannot be set up.
    #[error("the WebAssembly engine does not start")]
    Engine(#[from] EngineError),
    /// The data directory cannot be used.
    #[error("agents cannot be kept as they are")]
    Blobs(#[from] BlobError),
}

pub(crate) fn engine(options: LoaderOptions) -> Result<Arc<Engine>, EngineError> {
    let LoaderOptions { data_dir, cache, compile_worker, executes, .. } = options;
    let cache = cache.and_then(|dir| open_cache(&dir));
    let component_bytes_max = options.component_bytes_max.unwrap_or(COMPONENT_BYTES_DEFAULT);
    Engine::new(EngineOptions {
        instances: (!executes).then_some(INSTANCES_FOR_LOOKING),
        cache,
        compile_worker,
        component_bytes_max,
        guest_memory_bytes: options.guest_memory_bytes,
        // One for each processor: more would only wait for each other.
        guest_threads: Some(std::thread::available_parallelism().map_or(1, NonZero::get)),
        keep_free: data_dir.into_iter().collect(),
        ..EngineOptions::default()
    })
}

/// The files that no guest reads or writes: those of a data directory, which are the store, the log
/// and the native code, and the user's, whichever cache is in use. The files of the store by
/// themselves, too: opened for a guest under a second name and closed again, they would lose the
/// locks that SQLite has on them.
pub(crate) fn protected(data_dir: Option<&Path>, policy: &Policy) -> Vec<PathBuf> {
    let files = data_dir.into_iter().flat_map(|dir| {
        let files = taskrun_store::FILE_NAMES.map(|name| dir.join(name));
        std::iter::once(dir.to_owned()).chain(files)
    });
    // Also where nobody has made one yet: whoever makes it decides what is in it.
    let beside = policy.path.parent().map(|folder| folder.join(DATA_DIR));
    files.chain(beside).chain(user_folders()).collect()
}

pub(crate) fn open_cache(dir: &Path) -> Option<Cache> {
    match Cache::open(dir) {
        Ok(cache) => Some(cache),
        Err(error) => {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, "native code is not kept");
            None
        }
    }
}

impl Loader {
    /// Starts an engine, opens the models of a policy and takes note of its files as they are.
    ///
    /// # Errors
    /// [`LoaderError`].
    pub fn open(policy: Policy, options: LoaderOptions) -> Result<Self, LoaderError> {
        let own = protected(options.data_dir.as_deref(), &policy);
        let blobs = kept_agents(&options).map(|kept| kept.blobs().cloned()).transpose()?;
        let engine = engine(options)?;
        engine.protect(own);
        let models = open_models(&policy, &BTreeMap::new());
        let digests = digests(&policy, digest_file);
        Ok(Self::of(engine, policy, digests, models, blobs))
    }

    /// A loader of another policy with the same engine, after these files have changed. Models that
    /// are the same are kept as they are, and components that have not changed are not read again.
    pub(crate) fn reopen(&self, policy: Policy, changed: &[PathBuf]) -> Self {
        let is_same = |name: &str| {
            !self.model_faults.contains_key(name) && self.has_same_model(&policy, name, changed)
        };
        let kept = self.models.iter().filter(|(name, _)| is_same(name));
        let kept = kept.map(|(name, model)| (name.clone(), Arc::clone(model))).collect();
        let models = open_models(&policy, &kept);
        let digests = digests(&policy, |path, limit| match self.digests.get(path) {
            Some(known) if changed.iter().all(|changed| changed != path) => Ok(*known),
            Some(_) | None => digest_file(path, limit),
        });
        let (engine, blobs) = (Arc::clone(&self.engine), self.blobs.clone());
        engine.protect(protected(None, &policy));
        Self::of(engine, policy, digests, models, blobs)
    }

    fn of(
        engine: Arc<Engine>,
        policy: Policy,
        digests: Digests,
        (models, model_faults): (BTreeMap<String, Arc<dyn Model>>, ModelFaults),
        blobs: Option<Blobs>,
    ) -> Self {
        engine.protect_policy(&policy);
        let workspaces = Mutex::new(Some(engine.hold_workspaces(policy.agents.values())));
        // What was looked at here is what runs, whoever replaces a file from now on.
        for (path, digest) in &digests {
            engine.pin(path.clone(), *digest);
        }
        Self { engine, policy, digests, models, model_faults, blobs, workspaces }
    }

    /// Lets guests have the folders of its agents, as another policy is in the place of this one.
    /// Those of agents whose code is loaded still stay where they are.
    pub(crate) fn give_up_workspaces(&self) {
        drop(self.workspaces.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// True if another policy has this model, too, and it reads none of the files that have changed.
    fn has_same_model(&self, policy: &Policy, name: &str, changed: &[PathBuf]) -> bool {
        let (Some(own), Some(other)) = (self.policy.models.get(name), policy.models.get(name))
        else {
            return false;
        };
        let is_said_alike = *own == ModelPolicy { location: own.location.clone(), ..other.clone() };
        is_said_alike
            && own.files_read().all(|file| changed.iter().all(|changed| changed != file))
            && match &own.provider {
                Provider::Faulty { of, .. } => self.has_same_model(policy, of, changed),
                Provider::Scripted { .. }
                | Provider::Echo
                | Provider::Remote(_)
                | Provider::Replay { .. } => true,
            }
    }

    /// The models of this policy and of that one that are not the same in both, where this one
    /// takes the place of that one after these files have changed.
    pub(crate) fn other_models(&self, before: &Self, changed: &[PathBuf]) -> Vec<String> {
        let names: BTreeSet<&String> = self.models.keys().chain(before.models.keys()).collect();
        let is_in_both =
            |name: &str| self.models.contains_key(name) && before.models.contains_key(name);
        let is_other = |name: &&String| {
            !is_in_both(name) || !before.has_same_model(&self.policy, name, changed)
        };
        names.into_iter().filter(is_other).cloned().collect()
    }

    /// True if a component, or a file that a model reads, was there and could not be opened.
    pub(crate) fn has_unread(&self, files: &FilesSeen) -> bool {
        let is_unread = |path: &Path| !self.digests.contains_key(path) && files.has(path);
        let faulty = self.model_faults.keys().filter_map(|name| self.policy.models.get(name));
        components(&self.policy).any(is_unread)
            || faulty.flat_map(ModelPolicy::files_read).any(|path| files.has(path))
    }

    /// True if what was read for it is the same, byte by byte, as for another one.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.policy.digest == other.policy.digest
            && self.digests == other.digests
            && self.model_faults.keys().eq(other.model_faults.keys())
    }

    /// The policy that is loaded.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Looks for the folder of an agent, for its components, its prompts and what its model needs.
    ///
    /// # Errors
    /// [`AgentError::Files`], with each that cannot be used, or [`AgentError::Model`].
    pub fn check_files(&self, agent: &AgentPolicy) -> Result<(), AgentError> {
        check_files_of(&self.policy, agent)?;
        self.check_model(agent)
    }

    /// Says whether the model that an agent asks, if it does not name one, can be used.
    ///
    /// # Errors
    /// [`AgentError::Model`].
    pub(crate) fn check_model(&self, agent: &AgentPolicy) -> Result<(), AgentError> {
        check_model(&self.model_faults, agent)
    }

    /// Loads a tool under the grants of an agent.
    ///
    /// # Errors
    /// [`LoadError`].
    ///
    /// # Cancel safety
    /// Dropping the future gives up the load.
    pub async fn tool(
        &self,
        agent: &AgentPolicy,
        tool: &ToolPolicy,
    ) -> Result<Arc<dyn Tool>, LoadError> {
        self.engine.load_tool(&tool.component, AgentGrants::of_tool(agent, tool)).await
    }

    /// Reads a component and says what it is, asks for and offers. Nothing is compiled.
    ///
    /// # Errors
    /// [`LoadError`].
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn inspect(&self, component: &Path) -> Result<Inspection, LoadError> {
        Ok(self.engine.examine_file(component).await?.inspect().clone())
    }

    /// The agents of these names, loaded; one that takes longer than a second is loaded by the host
    /// that executes the run.
    pub(crate) async fn agents(self: &Arc<Self>, names: &[String]) -> Result<Agents, AgentError> {
        let mut by_name = BTreeMap::new();
        for agent in names.iter().filter_map(|name| self.policy.agents.get(name)) {
            let loaded = match tokio::time::timeout(LOAD_WITHIN, self.agent(agent)).await {
                Ok(loaded) => loaded?,
                Err(_) => self.agent_on_demand(agent, None).await?,
            };
            by_name.insert(agent.name.clone(), Arc::new(loaded));
        }
        Ok(agents_of(&self.policy, by_name, BTreeMap::new()))
    }

    /// Every agent of the policy, loaded.
    ///
    /// # Errors
    /// [`AgentError`]: the first agent that does not load.
    pub(crate) async fn all_agents(&self) -> Result<Agents, AgentError> {
        let mut by_name = BTreeMap::new();
        for agent in self.policy.agents.values() {
            by_name.insert(agent.name.clone(), Arc::new(self.agent(agent).await?));
        }
        Ok(agents_of(&self.policy, by_name, BTreeMap::new()))
    }

    /// Every agent of the policy, whose code is loaded when a run wants it. One that cannot be used
    /// is left out, so that it does not keep the others from working, nor runs that were accepted
    /// with it as it was before.
    ///
    /// # Errors
    /// [`AgentError`] of the first, if none can be used and not even `earlier` runs are to be
    /// executed.
    pub(crate) async fn all_agents_on_demand(
        self: &Arc<Self>,
        loads: &Arc<Loads>,
        earlier: bool,
    ) -> Result<Agents, AgentError> {
        let (mut by_name, mut unusable) = (BTreeMap::new(), BTreeMap::new());
        let mut first = None;
        for fault in self.model_faults.values() {
            tracing::warn!(model = fault.model, "left out: {}", chain(fault).join(": "));
        }
        let unkept = self.keep_components().await;
        // One after the other: all at once would take the processors from the runs under way.
        for agent in self.policy.agents.values() {
            let name = agent.name.clone();
            match self.agent_of_host(agent, loads, &unkept).await {
                Ok(agent) => {
                    by_name.insert(name, Arc::new(agent));
                }
                Err(error) => {
                    let problem = Problem::of_agent(&error);
                    tracing::warn!(agent = name, "left out: {problem}");
                    let (now, reason) = (self.agent_now(agent), problem.reason());
                    unusable.insert(name, UnusableAgent { now, reason });
                    first.get_or_insert(error);
                }
            }
            // Nothing in it waits as a rule, and runs under way are driven on the same threads.
            tokio::task::yield_now().await;
        }
        match first {
            Some(error) if by_name.is_empty() && !earlier => Err(error),
            Some(_) | None => Ok(agents_of(&self.policy, by_name, unusable)),
        }
    }
}

/// The agents of a policy that were loaded and those that cannot be, with all that it says beside
/// them. What other files say is for whoever looks at those.
pub(crate) fn agents_of(
    policy: &Policy,
    by_name: BTreeMap<String, Arc<Agent>>,
    unusable: BTreeMap<String, UnusableAgent>,
) -> Agents {
    Agents {
        policy: policy.path.display().to_string().into(),
        by_name,
        unusable,
        descriptions: Arc::clone(&policy.descriptions),
        subscribers: subscribers_of(policy),
        channels: policy.channels.clone(),
        origins: Origins::default(),
    }
}

/// Where agents are kept, if they are.
pub(crate) fn kept_agents(options: &LoaderOptions) -> Option<Arc<KeptAgents>> {
    let dir = options.data_dir.as_deref().filter(|_| options.keeps)?;
    Some(options.kept.clone().unwrap_or_else(|| KeptAgents::new(dir)))
}

/// The digests of the components of all agents of a policy, as its files are now, without those
/// that cannot be read.
pub(crate) fn digests(
    policy: &Policy,
    digest_file: impl Fn(&Path, u64) -> Result<blake3::Hash, LoadError>,
) -> Digests {
    let mut digests = Digests::new();
    for path in components(policy) {
        if !digests.contains_key(path)
            && let Ok(digest) = digest_file(path, COMPONENT_BYTES_MAX)
        {
            digests.insert(path.to_owned(), digest);
        }
    }
    digests
}

/// The files of all components that a policy names.
fn components(policy: &Policy) -> impl Iterator<Item = &Path> {
    let tools = policy.tools.values().map(|tool| tool.component.as_path());
    policy.agents.values().flat_map(|agent| policy.files_of(agent)).chain(tools)
}

/// The pin of an agent, whose components have these digests, if its folder and they are there.
///
/// # Errors
/// [`AgentError`]: that one of them is missing, or cannot be read.
pub(crate) fn pin_of_whole(
    policy: &Policy,
    agent: &AgentPolicy,
    digests: &Digests,
) -> Result<String, AgentError> {
    check_files_of(policy, agent)?;
    pin_of(policy, agent, digests).map_err(|error| match error {
        AgentError::Component { agent, path, location, source: _ } => {
            // Its digest is not known: it could not be read then.
            let source = match digest_file(&path, COMPONENT_BYTES_MAX) {
                Ok(_) => LoadError::Changed { path: path.clone() },
                Err(error) => error,
            };
            AgentError::Component { agent, path, location, source: Box::new(source) }
        }
        error
        @ (AgentError::Files { .. } | AgentError::Model { .. } | AgentError::Tools { .. }) => error,
    })
}
