//! Agents made ready: components loaded, tools selected, models opened.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use taskrun::agents::{Agent, AgentCode, Agents, LoadCode};
use taskrun::clock::{SystemClock, SystemRandom};
use taskrun::ports::model::Model;
use taskrun::ports::tool::Tool;
use taskrun_engine::{
    AgentGrants, Cache, CompileWorker, Engine, EngineError, EngineOptions, Examined, digest_file,
};
use taskrun_journal::time::{Clock, Random};
use taskrun_policy::{AgentPolicy, Policy, ToolPolicy};

use crate::context::Context;
use crate::failure::{Failure, Outcome, agent_failure, load_failure};
use crate::place::{DATA_DIR, cache_folder};

/// Folder of native code in a data directory.
pub(crate) const CACHE_DIR: &str = "native";
/// Instances of an engine that executes no runs; each costs address space.
const INSTANCES_FOR_LOOKING: u32 = 4;

/// An engine and the policy that it works under.
pub(crate) struct House {
    /// The engine.
    pub engine: Arc<Engine>,
    /// The policy.
    pub policy: Policy,
    /// Names policy and components as they are; see [`Self::digest`].
    digest: String,
    models: BTreeMap<String, Arc<dyn Model>>,
}

/// What an engine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineUse {
    /// Loading components and single calls.
    Looking,
    /// Executing runs.
    Executing,
}

/// Largest file of a policy that is read to tell whether it is the same.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// An engine for looking at the components of the policy at hand. Native code is kept in the data
/// directory; where there is none yet, in the user's cache folder, as nobody asked for a data
/// directory.
///
/// # Errors
/// If the engine cannot be set up, or nothing says where the data directory would be.
pub(crate) fn engine_for_looking(context: &Context) -> Outcome<Arc<Engine>> {
    let data_dir = context.data_dir()?;
    match data_dir.is_dir() {
        true => engine(Some(&data_dir), EngineUse::Looking),
        false => make_engine(None, cache_folder(), EngineUse::Looking),
    }
}

/// An engine that keeps its native code in a data directory, or nowhere.
///
/// # Errors
/// If the engine cannot be set up.
pub(crate) fn engine(data_dir: Option<&Path>, usage: EngineUse) -> Outcome<Arc<Engine>> {
    make_engine(data_dir, data_dir.map(|dir| dir.join(CACHE_DIR)), usage)
}

fn make_engine(
    data_dir: Option<&Path>,
    cache: Option<PathBuf>,
    usage: EngineUse,
) -> Outcome<Arc<Engine>> {
    let cache = cache.and_then(|dir| match Cache::open(&dir) {
        Ok(cache) => Some(cache),
        Err(error) => {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, "native code is not kept");
            None
        }
    });
    let compile_worker = std::env::current_exe()
        .ok()
        .map(|program| CompileWorker { program, args: vec!["compile-worker".into()] });
    let instances = match usage {
        EngineUse::Looking => Some(INSTANCES_FOR_LOOKING),
        EngineUse::Executing => None,
    };
    // One for each processor: more would only wait for each other.
    let guest_threads = Some(std::thread::available_parallelism().map_or(1, NonZero::get));
    // The store, the log and the native code of this host: no guest reads or writes them. The files
    // of the store by themselves, too: opened for a guest under a second name and closed again, they
    // would lose the locks that SQLite has on them.
    let protected = data_dir.map(|dir| {
        let files = taskrun_store::FILE_NAMES.map(|name| dir.join(name));
        std::iter::once(dir.to_owned()).chain(files)
    });
    let protected = protected.into_iter().flatten().collect();
    let options = EngineOptions {
        instances,
        cache,
        compile_worker,
        guest_threads,
        keep_free: data_dir.map(Path::to_owned).into_iter().collect(),
        protected,
        ..EngineOptions::default()
    };
    Engine::new(options).map_err(|error| {
        let failure = Failure::unexpected("the WebAssembly engine does not start").because(&error);
        match error {
            EngineError::Descriptors { needed, .. } => failure
                .hint(format!("raise the hard limit of open files: `ulimit -n {needed}`, or more")),
            EngineError::Wasmtime(_) | EngineError::Threads(_) | EngineError::Ticker(_) => failure,
        }
    })
}

impl House {
    /// Opens the models of a policy and takes note of its files as they are.
    ///
    /// # Errors
    /// If a script or a component cannot be read.
    pub(crate) fn new(engine: Arc<Engine>, policy: Policy) -> Outcome<Self> {
        engine.protect_policy(&policy);
        // Also where nobody has made one yet: whoever makes it decides what is in it.
        engine.protect(policy.path.parent().map(|folder| folder.join(DATA_DIR)));
        let (digest, files) = digests(&policy)?;
        // What was looked at here is what runs, whoever replaces a file from now on.
        files.into_iter().for_each(|(path, digest)| engine.pin(path, digest));
        let models = open_models(&policy)?;
        Ok(Self { engine, policy, digest, models })
    }

    /// Names everything that decides what a run may do and what code does it: the policy and
    /// where it is, and the bytes of every component and script. Runs are executed by hosts with
    /// the same digest, so neither an edited policy nor a component built anew changes what an
    /// accepted run is.
    #[must_use]
    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }

    /// An agent of the policy.
    ///
    /// # Errors
    /// If there is none of that name; then with the nearest one.
    pub(crate) fn agent_policy(&self, name: &str) -> Outcome<&AgentPolicy> {
        agent_of(&self.policy, name)
    }

    /// Loads an agent with all of its tools.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(crate) async fn agent(&self, name: &str) -> Outcome<Agent> {
        let agent = self.agent_policy(name)?;
        let loaded = self.engine.load_agent(&self.policy, &self.models, agent).await;
        loaded.map_err(|error| agent_failure(&error))
    }

    /// Loads the code of an agent.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(crate) async fn code(&self, name: &str) -> Outcome<AgentCode> {
        let agent = self.agent_policy(name)?;
        let loaded = self.engine.load_code(&self.policy, agent).await;
        loaded.map_err(|error| agent_failure(&error))
    }

    /// An agent whose components were looked at and are compiled when a run wants it.
    ///
    /// # Errors
    /// The first thing that is wrong, as far as that is known without compiling.
    pub(crate) async fn agent_on_demand(
        &self,
        name: &str,
        source: Arc<dyn LoadCode>,
    ) -> Outcome<Agent> {
        let agent = self.agent_policy(name)?;
        let known = self.engine.agent_on_demand(&self.policy, &self.models, agent, source).await;
        known.map_err(|error| agent_failure(&error))
    }

    /// Loads a tool under the grants of an agent.
    ///
    /// # Errors
    /// Why it does not load.
    pub(crate) async fn tool(
        &self,
        agent: &AgentPolicy,
        tool: &ToolPolicy,
    ) -> Outcome<Arc<dyn Tool>> {
        let what = format!("tool {} of agent {}", tool.name, agent.name);
        let loaded =
            self.engine.load_tool(&tool.component, AgentGrants::of_tool(agent, tool)).await;
        loaded.map_err(|error| load_failure(&error, &what, &tool.component))
    }

    /// Looks at a component; nothing is compiled.
    ///
    /// # Errors
    /// Why it cannot be.
    pub(crate) async fn component(&self, path: &Path, what: &str) -> Outcome<Examined> {
        self.engine.examine_file(path).await.map_err(|error| load_failure(&error, what, path))
    }

    /// The named agents as a controller wants them.
    ///
    /// # Errors
    /// The first agent that does not load.
    pub(crate) async fn agents(&self, names: &[&str]) -> Outcome<Agents> {
        let mut by_name = BTreeMap::new();
        for name in names {
            by_name.insert((*name).to_owned(), Arc::new(self.agent(name).await?));
        }
        Ok(Agents { policy_digest: self.digest.clone(), by_name })
    }
}

/// The models of a policy, ready to be asked.
///
/// # Errors
/// If a script or a cassette cannot be read, or a key is not where the policy says.
pub(crate) fn open_models(policy: &Policy) -> Outcome<BTreeMap<String, Arc<dyn Model>>> {
    let (clock, random): (Arc<dyn Clock>, Arc<dyn Random>) =
        (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
    taskrun_models::open(&policy.models, &clock, &random).map_err(|error| {
        let name = &error.model;
        let place = policy.models.get(name).map(|model| model.location.to_string());
        let place = place.unwrap_or_else(|| policy.path.display().to_string());
        Failure::usage("model", error.to_string())
            .because(&error.cause)
            .hint(format!("correct [model.{name}] at {place}, or the file that it names"))
    })
}

/// An agent of a policy.
///
/// # Errors
/// If there is none of that name; then with the nearest one.
pub(crate) fn agent_of<'p>(policy: &'p Policy, name: &str) -> Outcome<&'p AgentPolicy> {
    policy
        .agents
        .get(name)
        .ok_or_else(|| unknown("agent", name, policy.agents.keys().map(String::as_str), policy))
}

/// A tool of a policy.
///
/// # Errors
/// If there is none of that name; then with the nearest one.
pub(crate) fn tool_of<'p>(policy: &'p Policy, name: &str) -> Outcome<&'p ToolPolicy> {
    policy
        .tools
        .get(name)
        .ok_or_else(|| unknown("tool", name, policy.tools.keys().map(String::as_str), policy))
}

fn unknown<'k>(
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'k str>,
    policy: &Policy,
) -> Box<Failure> {
    let near = nearest(name, known);
    let list = format!("list the {what}s with `taskrun {what} ls`");
    let hint = near.map_or(list.clone(), |near| format!("did you mean {near}? {list}"));
    let message = format!("there is no {what} {name:?} in {}", policy.path.display());
    let code = if what == "agent" { "unknown-agent" } else { "unknown-tool" };
    Failure::usage(code, message).hint(hint)
}

/// The known word that `name` is most likely a misspelling of.
pub(crate) fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let name: String = name.chars().take(64).flat_map(char::to_lowercase).collect();
    let changes_max = (name.chars().count() / 3).max(1);
    known
        .map(|word| (strsim::damerau_levenshtein(&name, word), word))
        .filter(|(changes, word)| *changes <= changes_max || word.contains(&name) && name.len() > 2)
        .min_by_key(|(changes, _)| *changes)
        .map(|(_, word)| word)
}

/// Names a policy, where it is, and the bytes of every component and script of it.
///
/// # Errors
/// If one of those files cannot be read.
pub(crate) fn execution_digest(policy: &Policy) -> Outcome<String> {
    digests(policy).map(|(digest, _)| digest)
}

/// The same, and the digest of each of the files.
fn digests(policy: &Policy) -> Outcome<(String, BTreeMap<PathBuf, blake3::Hash>)> {
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
        let digest = digest_file(path, FILE_BYTES_MAX).map_err(|error| {
            Failure::usage("file-unreadable", format!("cannot read {}", path.display()))
                .because(&error)
                .hint("correct its path in the policy, or make it readable")
        })?;
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

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_misspelt_name_finds_its_neighbour() {
        let known = ["readonly_researcher", "note_writer"];
        assert_eq!(nearest("readonly_reseacher", known.into_iter()), Some("readonly_researcher"));
        assert_eq!(nearest("researcher", known.into_iter()), Some("readonly_researcher"));
        assert_eq!(nearest("x", known.into_iter()), None);
    }
}
