//! The agents that are needed to accept runs of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use taskrun::agents::{AgentCode, Agents, LoadCode, LoadFault};
use taskrun_engine::{AgentError, Catalog};
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{AgentPolicy, Policy};

use crate::deployment::{load_fault, unkept};
use crate::loader::{
    Loader, LoaderError, LoaderOptions, agents_of, check_model, digests, kept_agents, open_cache,
    open_models, pin_of_whole, protected,
};

/// The reason that runs of an agent are not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptanceError {
    /// The agents of the policy cannot be loaded.
    #[error(transparent)]
    Loader(#[from] LoaderError),
    /// The agent, or one above it, does not load.
    #[error("an agent cannot be used")]
    Agent(#[from] AgentError),
}

/// The agents that a controller needs to accept runs of them, so that the caller hears at once of
/// faults in them. Where their components were loaded before with the same cache, by whichever
/// process, no engine is started and none is read. Others are loaded; one that takes longer than a
/// second is loaded by the host that executes the run. Names that the policy does not have are left
/// out.
///
/// # Errors
/// [`AcceptanceError`]: the first fault.
///
/// # Cancel safety
/// Dropping the future gives up the loads.
pub async fn agents_to_spawn(
    policy: Policy,
    options: LoaderOptions,
    names: &[String],
) -> Result<Agents, AcceptanceError> {
    if let Some(agents) = known(&policy, &options, names)? {
        return Ok(agents);
    }
    let loader = Arc::new(Loader::open(policy, options)?);
    Ok(loader.agents(names).await?)
}

/// The agents, if the components of each were loaded before.
fn known(
    policy: &Policy,
    options: &LoaderOptions,
    names: &[String],
) -> Result<Option<Agents>, AcceptanceError> {
    let Some(cache) = options.cache.as_deref().and_then(open_cache) else { return Ok(None) };
    let worker = options.compile_worker.iter().map(|worker| worker.program.clone());
    let own = protected(options.data_dir.as_deref(), policy).into_iter().chain(worker);
    let catalog = Catalog::new(cache, own, policy);
    let read = |path: &Path, limit| catalog.digest_file(path, limit);
    let files = digests(policy, read);
    let (models, faults) = open_models(policy, &BTreeMap::new());
    let opened = Arc::new((policy.clone(), options.clone()));
    let kept_in = kept_agents(options);
    kept_in.iter().try_for_each(|kept| kept.blobs().map(drop)).map_err(LoaderError::from)?;
    let mut by_name = BTreeMap::new();
    for agent in names.iter().filter_map(|name| policy.agents.get(name)) {
        let source = |functions| -> Arc<dyn LoadCode> {
            Arc::new(DescribedAgent {
                opened: Arc::clone(&opened),
                agent: agent.clone(),
                functions,
            })
        };
        let pin = pin_of_whole(policy, agent, &files)?;
        check_model(&faults, agent)?;
        let Some(known) = catalog.agent(policy, &models, (agent, pin.clone()), &files, source)?
        else {
            return Ok(None);
        };
        if let Some(kept) = &kept_in {
            let kept = kept.keep(policy, (agent, &pin), &files);
            kept.map_err(|error| unkept(agent, error))?;
        }
        by_name.insert(agent.name.clone(), Arc::new(known));
    }
    Ok(Some(agents_of(policy, by_name, BTreeMap::new())))
}

/// The code of an agent that is known by the descriptions of its components.
struct DescribedAgent {
    opened: Arc<(Policy, LoaderOptions)>,
    agent: AgentPolicy,
    functions: Arc<Vec<ToolSpec>>,
}

#[async_trait]
impl LoadCode for DescribedAgent {
    async fn load(&self) -> Result<AgentCode, LoadFault> {
        let (policy, options) = &*self.opened;
        let loader = Loader::open(policy.clone(), options.clone());
        let loader = loader.map_err(|error| LoadFault::Host(error.to_string()))?;
        let code = loader.code(&self.agent).await;
        code.map_err(|error| load_fault(&error))
    }

    fn functions(&self) -> Option<Arc<Vec<ToolSpec>>> {
        Some(Arc::clone(&self.functions))
    }
}
