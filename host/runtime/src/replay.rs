//! Executing the steps of an exported run again, with nothing but what is in its file.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use taskrun::agents::{Agent, AgentNow, CodeSource, Origin};
use taskrun::driver::replay::{
    Form, Forms, ReplayError, ReplayWorld, ReplayedStep, RunRecord, replay as replay_steps,
};
use taskrun::ports::planner::Planner;
use taskrun::scope::model::{Model, ModelStream};
use taskrun::scope::{ModelSettings, Models};
use taskrun_engine::{AgentError, CompileWorker, Engine, EngineError, rules_of};
use taskrun_journal::completion::{CompletionRequest, ModelError};
use taskrun_journal::pin::{agent_of, has_digest, split};
use taskrun_journal::run::Run;
use taskrun_policy::{AgentPolicy, Policy, model_names};
use taskrun_store::{Blobs, MemoryStore};

use crate::export::Export;
use crate::loader::{LoaderOptions, engine, open_cache};
use crate::problem::Problem;
use crate::snapshot::{self, KeptPaths};

/// The parts of an engine for replays. The default compiles in this process, each time anew.
#[derive(Clone, Debug, Default)]
pub struct ReplayOptions {
    /// Folder in which native code is kept.
    pub cache: Option<PathBuf>,
    /// The program that looks at components and compiles them in processes of their own; see
    /// [`Options::compile_worker`](crate::Options::compile_worker).
    pub compile_worker: Option<CompileWorker>,
}

/// The reason that a run is not executed again.
#[derive(Debug, thiserror::Error)]
pub enum ReplayFailure {
    /// The engine cannot be set up.
    #[error("the WebAssembly engine does not start")]
    Engine(#[from] EngineError),
    /// The component that is to decide does not load under the agent's policy.
    #[error("the component to replay against cannot be used")]
    Against(#[from] AgentError),
    /// The policy of the run is not in the export, or the agent has no component there; in words.
    #[error("{0}")]
    Missing(String),
    /// The record cannot be executed again.
    #[error(transparent)]
    Record(#[from] ReplayError),
}

/// A process in which exports are executed again; its engine, and what it has compiled, serve all
/// of them.
pub struct ReplayEngine {
    engine: Arc<Engine>,
}

impl ReplayEngine {
    /// Starts the engine.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn start(options: &ReplayOptions) -> Result<Self, EngineError> {
        let cache = options.cache.as_deref();
        let options = LoaderOptions {
            cache: cache.filter(|dir| open_cache(dir).is_some()).map(Path::to_owned),
            compile_worker: options.compile_worker.clone(),
            ..LoaderOptions::default()
        };
        Ok(Self { engine: engine(options)? })
    }

    /// Executes the steps of an exported run again, and shows each with the outcome of its
    /// comparison. Network, files and other runs are not touched.
    ///
    /// # Errors
    /// [`ReplayFailure`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the step under way.
    pub async fn replay(
        &self,
        export: &Export,
        against: Option<&Path>,
        see: impl FnMut(ReplayedStep) + Send,
    ) -> Result<(), ReplayFailure> {
        let forms = ExportedForms { engine: Arc::clone(&self.engine), export };
        let against = match against {
            Some(component) => Some(forms.planner(component).await?),
            None => None,
        };
        let store = Arc::new(MemoryStore::new());
        let world = ReplayWorld {
            store: store.clone(),
            hosts: store.clone(),
            memory: store,
            interrupt: self.engine.interrupt(),
            images: export.images().clone(),
        };
        let record = RunRecord { own: export.records().into(), before: export.before() };
        Ok(replay_steps(record, &forms, world, against, see).await?)
    }
}

/// The agents of an exported run.
struct ExportedForms<'e> {
    engine: Arc<Engine>,
    export: &'e Export,
}

/// An agent under one policy, before its code is loaded.
struct PinnedPolicy {
    policy: Policy,
    agent: AgentPolicy,
    now: Option<AgentNow>,
    origin: Option<Origin>,
    paths: KeptPaths,
    models: Vec<String>,
}

impl ExportedForms<'_> {
    /// The agent with a pin, where the agent of its name has these in the policies in force.
    fn policy(&self, pin: &str, pins_now: &str) -> Result<PinnedPolicy, String> {
        for pin in std::iter::once(pin).chain(split(pins_now)).filter(|pin| has_digest(pin)) {
            if let Some(why) = self.export.list().missing.get(pin) {
                return Err(format!("{pin} is not in the export: {why}"));
            }
        }
        let blobs = Blobs::existing(self.export.folder());
        let name = agent_of(pin);
        let (mut policy, digests) = snapshot::open(&blobs, pin).map_err(|why| why.to_string())?;
        let models = model_names(policy.text())?;
        self.move_folders(&mut policy)?;
        let mut bounds = Vec::new();
        for pin_now in split(pins_now) {
            bounds.push(self.bound(&mut policy, pin, pin_now)?);
        }
        let mut bounds = bounds.into_iter();
        let now = bounds.next().flatten();
        let origin = bounds.next().flatten();
        let origin = origin.map(|now| Origin { policy: String::new(), now: Some(now) });
        let paths = KeptPaths::put_into(&mut policy, name, &digests, &blobs);
        let agent = policy.agents.get(name).cloned();
        let agent = agent.ok_or_else(|| format!("the policy has no agent {name}"))?;
        Ok(PinnedPolicy { policy, agent, now, origin, paths, models })
    }

    /// Bounds the agent with a pin by the one with a pin of a policy in force; `None` if that is
    /// the same one.
    fn bound(
        &self,
        policy: &mut Policy,
        pin: &str,
        pin_now: &str,
    ) -> Result<Option<AgentNow>, String> {
        let name = agent_of(pin);
        if pin_now == pin {
            return Ok(None);
        }
        if !has_digest(pin_now) {
            return Err(format!(
                "it is not on record which rules {name} had then: components of it were missing"
            ));
        }
        let blobs = Blobs::existing(self.export.folder());
        let (mut then, _) = snapshot::open(&blobs, pin_now).map_err(|why| why.to_string())?;
        self.move_folders(&mut then)?;
        policy.bound_by(name, &then);
        let rules = then.agents.get(name).map(|agent| Arc::new(rules_of(agent)));
        Ok(rules.map(|rules| AgentNow { pin: pin_now.to_owned(), rules }))
    }

    /// Has the workspaces of a policy be empty folders of our own, which lie to each other as those
    /// of the policy did. What a step reads there is not recorded, so it is never asked for.
    fn move_folders(&self, policy: &mut Policy) -> Result<(), String> {
        let root = self.export.folder().join("workspaces");
        for agent in policy.agents.values_mut() {
            agent.workspace = root.join(from_root(&agent.workspace));
            agent.workspace_root = None;
            let granted = agent.grants.preopens().unwrap_or_default();
            let folders = granted.iter().map(|granted| agent.workspace.join(&granted.dir));
            for folder in folders.chain([agent.workspace.clone()]) {
                std::fs::create_dir_all(&folder)
                    .map_err(|error| format!("{}: {error}", folder.display()))?;
            }
        }
        Ok(())
    }

    async fn agent(&self, pin: &str, pins_now: &str) -> Result<Agent, String> {
        let PinnedPolicy { policy, agent, now, origin, paths, models } =
            self.policy(pin, pins_now)?;
        for (path, digest) in paths.digests() {
            self.engine.pin(path.to_owned(), *digest);
        }
        let asked = models.into_iter().chain(self.export.list().models.keys().cloned());
        let by_name: BTreeMap<String, Arc<dyn Model>> =
            asked.map(|name| (name, Arc::new(RecordedModel) as Arc<dyn Model>)).collect();
        let loaded = self.engine.load_agent(&policy, &by_name, &agent, pin.to_owned()).await;
        let loaded = loaded.map_err(|error| Problem::of_agent(&error).reason())?;
        let settings = self.export.list().models.iter().map(|(name, model)| {
            let context_tokens = model.context_tokens;
            (name.clone(), ModelSettings { context_tokens, ..ModelSettings::default() })
        });
        let models = Models {
            by_name,
            prices: BTreeMap::new(),
            settings: settings.collect(),
            default: agent.model,
        };
        Ok(Agent { models: Arc::new(models), now, origin, ..loaded })
    }

    /// The code of a component in the place of the agent's own.
    async fn planner(&self, component: &Path) -> Result<Arc<dyn Planner>, ReplayFailure> {
        let pin = match self.export.records().first().map(|first| &first.event) {
            Some(taskrun_journal::event::Event::Queued { spec }) => spec.pin.clone(),
            Some(_) | None => String::new(),
        };
        let pinned = self.policy(&pin, &pin).map_err(ReplayFailure::Missing)?;
        let PinnedPolicy { mut policy, mut agent, paths, .. } = pinned;
        for (path, digest) in paths.digests() {
            self.engine.pin(path.to_owned(), *digest);
        }
        agent.component = std::path::absolute(component).unwrap_or_else(|_| component.to_owned());
        policy.agents.insert(agent.name.clone(), agent.clone());
        Ok(self.engine.load_code(&policy, &agent).await?.planner)
    }
}

#[async_trait]
impl Forms for ExportedForms<'_> {
    async fn form(&self, run: &Run, pins_now: &[String]) -> Result<Form, String> {
        let (own_now, above_now) =
            pins_now.split_first().ok_or("it is not known which rules it had")?;
        let agent = self.agent(run.pin(), own_now).await?;
        let CodeSource::Loaded(code) = agent.code.clone() else {
            return Err("its code is not loaded".to_owned());
        };
        let mut above = Vec::new();
        for (ancestor, now) in run.spec.ancestors.iter().zip(above_now) {
            above.push(Some(Arc::new(self.agent(&ancestor.pin, now).await?)));
        }
        Ok(Form { agent: Arc::new(agent), code, above })
    }
}

/// A model of a run that is executed again: its answers are on record, and it is never asked.
struct RecordedModel;

#[async_trait]
impl Model for RecordedModel {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        Err(ModelError::Unavailable("its answers are on record".to_owned()))
    }
}

/// A path as it is from the root of the file system, without `..`. The export may be a stranger's,
/// and joined to a folder the path must not lead out of it.
fn from_root(path: &Path) -> PathBuf {
    let mut names = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            // Above the root there is the root.
            Component::ParentDir => {
                names.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_of_an_export_does_not_lead_out_of_its_folder() {
        for (path, expected) in [
            ("/a/b/c", "a/b/c"),
            ("/a/./b/../c", "a/c"),
            ("/a/../../../../b/c", "b/c"),
            ("../../b/c", "b/c"),
            ("/..", ""),
            ("/", ""),
        ] {
            assert_eq!(from_root(Path::new(path)), Path::new(expected), "{path}");
        }
    }
}
