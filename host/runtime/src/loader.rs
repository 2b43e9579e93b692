//! The agents and tools of a policy, loaded.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use taskrun::agents::{Agent, AgentCode, Agents, LoadCode};
use taskrun::clock::{SystemClock, SystemRandom};
use taskrun::ports::tool::Tool;
use taskrun::scope::model::Model;
use taskrun_engine::{
    AgentError, AgentGrants, Cache, CompileWorker, Engine, EngineError, EngineOptions, Inspection,
    LoadError, digest_file,
};
use taskrun_journal::time::{Clock, Random};
use taskrun_journal::tool::ToolSpec;
use taskrun_models::OpenErrorCause;
use taskrun_policy::{AgentPolicy, Policy, ToolPolicy};

use crate::loads::{Load, Loads};
use crate::problem::Problem;
use crate::storage::DATA_DIR;

/// Folder of native code in a data directory.
pub const CACHE_DIR: &str = "native";
/// Instances of an engine that executes no runs; each costs address space.
const INSTANCES_FOR_LOOKING: u32 = 4;
/// Largest file of a policy that is read to tell whether it is the same.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// A load that takes longer is told of.
const TOLD_AFTER: Duration = Duration::from_millis(300);
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
    /// The program that compiles components in processes of their own. Default: none, so that they
    /// are compiled in this process, where time and memory of that are bounded by their size only.
    pub compile_worker: Option<CompileWorker>,
    /// True if runs are executed. Default: no, for components that are looked at and single calls.
    pub executes: bool,
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
    engine: Arc<Engine>,
    policy: Policy,
    digest: String,
    models: BTreeMap<String, Arc<dyn Model>>,
}

/// The reason that the agents of a policy cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoaderError {
    /// The engine cannot be set up.
    #[error("the WebAssembly engine does not start")]
    Engine(#[from] EngineError),
    /// A file that the policy names cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A model cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// A component or script of a policy that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {path}", path = .path.display())]
pub struct FileError {
    /// The component's file.
    pub path: PathBuf,
    /// The component's error.
    pub source: LoadError,
}

/// A model of a policy that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("model {model} cannot be used")]
pub struct ModelError {
    /// Its name in the policy.
    pub model: String,
    /// The place where the policy names it.
    pub place: String,
    /// The model's error.
    pub source: OpenErrorCause,
}

pub(crate) fn engine(options: LoaderOptions) -> Result<Arc<Engine>, EngineError> {
    let LoaderOptions { data_dir, cache, compile_worker, executes } = options;
    let cache = cache.and_then(|dir| open_cache(&dir));
    Engine::new(EngineOptions {
        instances: (!executes).then_some(INSTANCES_FOR_LOOKING),
        cache,
        compile_worker,
        // One for each processor: more would only wait for each other.
        guest_threads: Some(std::thread::available_parallelism().map_or(1, NonZero::get)),
        keep_free: data_dir.into_iter().collect(),
        ..EngineOptions::default()
    })
}

/// The files of a data directory that no guest reads or writes: the store, the log and the native
/// code. The files of the store by themselves, too: opened for a guest under a second name and
/// closed again, they would lose the locks that SQLite has on them.
pub(crate) fn protected(data_dir: Option<&Path>, policy: &Policy) -> Vec<PathBuf> {
    let files = data_dir.into_iter().flat_map(|dir| {
        let files = taskrun_store::FILE_NAMES.map(|name| dir.join(name));
        std::iter::once(dir.to_owned()).chain(files)
    });
    // Also where nobody has made one yet: whoever makes it decides what is in it.
    files.chain(policy.path.parent().map(|folder| folder.join(DATA_DIR))).collect()
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
        let engine = engine(options)?;
        engine.protect(own);
        engine.protect_policy(&policy);
        let (digest, files) = digests(&policy, digest_file)?;
        // What was looked at here is what runs, whoever replaces a file from now on.
        files.into_iter().for_each(|(path, digest)| engine.pin(path, digest));
        let models = open_models(&policy)?;
        Ok(Self { engine, policy, digest, models })
    }

    /// The policy that is loaded.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The [`execution_digest`] of the policy as it was opened.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Loads an agent of the policy with all of its tools.
    ///
    /// # Errors
    /// [`AgentError`]: the first thing that is wrong.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the load.
    pub async fn agent(&self, agent: &AgentPolicy) -> Result<Agent, AgentError> {
        self.engine.load_agent(&self.policy, &self.models, agent).await
    }

    /// Loads the code of an agent.
    pub(crate) async fn code(&self, agent: &AgentPolicy) -> Result<AgentCode, AgentError> {
        self.engine.load_code(&self.policy, agent).await
    }

    /// An agent whose components were looked at and are compiled when a run wants it.
    async fn agent_on_demand(
        self: &Arc<Self>,
        agent: &AgentPolicy,
        loads: Option<&Arc<Loads>>,
    ) -> Result<Agent, AgentError> {
        let source = OnDemand {
            loader: Arc::clone(self),
            agent: agent.clone(),
            loads: loads.map(Arc::clone),
        };
        let source = Arc::new(source);
        self.engine.agent_on_demand(&self.policy, &self.models, agent, source).await
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
        Ok(Agents { policy_digest: self.digest.clone(), by_name })
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
        Ok(Agents { policy_digest: self.digest.clone(), by_name })
    }

    /// Every agent of the policy, whose code is loaded when a run wants it. One that cannot be used
    /// is left out, so that it does not keep the others from working.
    ///
    /// # Errors
    /// [`AgentError`] of the first, if none can be used.
    pub(crate) async fn all_agents_on_demand(
        self: &Arc<Self>,
        loads: &Arc<Loads>,
    ) -> Result<Agents, AgentError> {
        let mut by_name = BTreeMap::new();
        let mut first = None;
        let looks = self.policy.agents.values().map(|agent| async move {
            (&agent.name, self.agent_on_demand(agent, Some(loads)).await)
        });
        for (name, known) in join_all(looks).await {
            match known {
                Ok(agent) => {
                    by_name.insert(name.clone(), Arc::new(agent));
                }
                Err(error) => {
                    tracing::warn!(agent = name, "left out: {}", Problem::of_agent(&error));
                    first.get_or_insert(error);
                }
            }
        }
        match first {
            Some(error) if by_name.is_empty() => Err(error),
            Some(_) | None => Ok(Agents { policy_digest: self.digest.clone(), by_name }),
        }
    }
}

/// Checks that the models of a policy can be used: scripts, cassettes and keys are read, and no
/// model is asked.
///
/// # Errors
/// [`ModelError`] of the first that cannot.
pub fn check_models(policy: &Policy) -> Result<(), ModelError> {
    open_models(policy).map(|_| ())
}

/// The models of a policy, ready to be asked.
pub(crate) fn open_models(policy: &Policy) -> Result<BTreeMap<String, Arc<dyn Model>>, ModelError> {
    let (clock, random): (Arc<dyn Clock>, Arc<dyn Random>) =
        (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
    taskrun_models::open(&policy.models, &clock, &random).map_err(|error| {
        let place = policy.models.get(&error.model).map(|model| model.location.to_string());
        let place = place.unwrap_or_else(|| policy.path.display().to_string());
        ModelError { model: error.model, place, source: error.cause }
    })
}

/// Names everything that decides what a run may do and what code does it: the policy and where it
/// is, and the bytes of every component and script. Runs are executed by hosts with the same
/// digest, so neither an edited policy nor a component built anew changes what an accepted run is.
///
/// # Errors
/// [`FileError`], if one of those files cannot be read.
pub fn execution_digest(policy: &Policy) -> Result<String, FileError> {
    digests(policy, digest_file).map(|(digest, _)| digest)
}

/// The same, and the digest of each of the files.
pub(crate) fn digests(
    policy: &Policy,
    digest_file: impl Fn(&Path, u64) -> Result<blake3::Hash, LoadError>,
) -> Result<(String, BTreeMap<PathBuf, blake3::Hash>), FileError> {
    let mut files = BTreeMap::new();
    let mut hasher = blake3::Hasher::new();
    let mut add = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    add(env!("CARGO_PKG_VERSION").as_bytes());
    add(policy.path.as_os_str().as_encoded_bytes());
    add(policy.digest.as_bytes());
    for path in files_of(policy) {
        let digest = digest_file(path, FILE_BYTES_MAX)
            .map_err(|source| FileError { path: path.to_owned(), source })?;
        add(digest.as_bytes());
        files.insert(path.to_owned(), digest);
    }
    Ok((hasher.finalize().to_hex().to_string(), files))
}

fn files_of(policy: &Policy) -> Vec<&Path> {
    let agents = policy.agents.values().map(|agent| agent.component.as_path());
    let tools = policy.tools.values().map(|tool| tool.component.as_path());
    let answers = policy.models.values().filter_map(|model| model.answers_file());
    let engines = policy.agents.values().filter_map(|agent| agent.engine.as_ref());
    let engines = engines.filter_map(|engine| engine.component.as_deref());
    agents.chain(tools).chain(engines).chain(answers).collect()
}

/// The code of an agent, loaded when a run wants it.
struct OnDemand {
    /// The loader of the agent.
    loader: Arc<Loader>,
    /// The agent's settings.
    agent: AgentPolicy,
    /// Where people are told of the load.
    loads: Option<Arc<Loads>>,
}

#[async_trait]
impl LoadCode for OnDemand {
    async fn load(&self) -> Result<AgentCode, String> {
        let Self { loader, agent, loads } = self;
        let name = &agent.name;
        let load = loader.code(agent);
        let Some(loads) = loads else {
            return load.await.map_err(|error| Problem::of_agent(&error).reason());
        };
        let since = loads.clock.now().0;
        tokio::pin!(load);
        let loaded = match tokio::time::timeout(TOLD_AFTER, &mut load).await {
            Ok(loaded) => loaded,
            Err(_) => {
                tracing::info!(agent = name, "is being loaded");
                loads.tell(name, Some(Load { since, error: None }));
                load.await
            }
        };
        loaded.inspect(|_| loads.tell(name, None)).map_err(|error| {
            let reason = Problem::of_agent(&error).reason();
            tracing::warn!(agent = name, "does not load: {reason}");
            let since = loads.clock.now().0;
            loads.tell(name, Some(Load { since, error: Some(reason.clone()) }));
            reason
        })
    }

    /// They are known when its components are compiled.
    fn functions(&self) -> Option<Arc<Vec<ToolSpec>>> {
        None
    }
}
