//! An agent by what follows of it from the policy and from the descriptions of its components.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use taskrun::agents::{Agent, AgentTools, Callee, CodeSource, LoadedTool, ToolsError};
use taskrun::scope::model::Model;
use taskrun::scope::{ModelSettings, Models};
use taskrun_journal::money::Price;
use taskrun_journal::pin::pin;
use taskrun_journal::spec::TreeBounds;
use taskrun_policy::{
    AgentPolicy, AgentRules, Closure, ModelPolicy, Policy, Provider, TREE_DEPTH_MAX,
};

use super::{AgentError, Component};
use crate::error::LoadError;
use crate::inspect::{FINALIZER, Inspection, named};

/// An agent, by what the policy says of it and by what is known of its component.
pub(crate) fn described(
    policy: &Policy,
    models: &BTreeMap<String, Arc<dyn Model>>,
    (agent, pin): (&AgentPolicy, String),
    own: &Inspection,
    code: CodeSource,
) -> Agent {
    Agent {
        name: agent.name.clone(),
        pin,
        digest: own.digest.clone(),
        has_finalizer: own.exports(FINALIZER),
        code,
        models: Arc::new(Models {
            by_name: models.clone(),
            prices: prices(policy),
            settings: settings(policy),
            default: agent.model.clone(),
        }),
        rules: Arc::new(rules_of(agent)),
        now: None,
        origin: None,
        prompts: Arc::new(policy.prompts()),
        limits: agent.limits.clone(),
        budget: agent.budget.clone(),
        members: agent.all_members(),
        tree: tree_of(agent),
        durable: agent.durable,
        retry: agent.retry,
        retry_on: agent.retry_on.clone(),
        autonomous: agent.autonomous.clone(),
        heartbeat: agent.heartbeat.clone(),
        delivery: agent.delivery.clone(),
        max_nudges: agent.max_nudges,
        conversation: agent.conversation,
        ask: agent.ask.clone(),
        on_missing_fields: agent.on_missing_fields,
        upgrade: agent.upgrade,
        interrupts: agent.interrupts,
        subscribers: agent.subscribers.clone(),
        channels: agent.channels.clone(),
        delegation: agent.delegation.clone(),
    }
}

/// The pin of an agent, whose components have these digests.
///
/// # Errors
/// [`AgentError::Component`] if there is no digest of one of them.
pub fn pin_of(
    policy: &Policy,
    agent: &AgentPolicy,
    digests: &BTreeMap<PathBuf, blake3::Hash>,
) -> Result<String, AgentError> {
    Ok(pin(&agent.name, &closure_of(policy, agent, digests)?.pin()))
}

/// The closure of an agent, whose components have these digests.
///
/// # Errors
/// Those of [`pin_of`].
pub fn closure_of(
    policy: &Policy,
    agent: &AgentPolicy,
    digests: &BTreeMap<PathBuf, blake3::Hash>,
) -> Result<Closure, AgentError> {
    let digest = |path: &Path| digests.get(path).map(named);
    policy.closure(agent, &digest).map_err(|error| {
        Component { path: &error.path, ..Component::of_agent(agent) }
            .failed(LoadError::internal("its digest is not known"))
    })
}

/// The rules of an agent, which begin at its folder by the one name that this has without links.
#[must_use]
pub fn rules_of(agent: &AgentPolicy) -> AgentRules {
    AgentRules { workspace: real(&agent.workspace), ..AgentRules::of(agent) }
}

/// The prices of models, as far as they are known.
fn prices(policy: &Policy) -> BTreeMap<String, Price> {
    let known = policy.models.values().filter_map(|model| Some((model.name.clone(), model.price?)));
    known.collect()
}

/// The settings of models that have any.
fn settings(policy: &Policy) -> BTreeMap<String, ModelSettings> {
    let of = |model: &ModelPolicy| match &model.provider {
        Provider::Remote(remote) => {
            let (patience, context_tokens) = (remote.patience, remote.context_tokens);
            Some((model.name.clone(), ModelSettings { patience, context_tokens }))
        }
        Provider::Scripted { .. }
        | Provider::Echo
        | Provider::Replay { .. }
        | Provider::Faulty { .. } => None,
    };
    policy.models.values().filter_map(of).collect()
}

/// The bounds of the trees in which runs of an agent have a part; the deepest tree of all is every
/// host's own bound.
fn tree_of(agent: &AgentPolicy) -> TreeBounds {
    let depth = Some(agent.tree_depth()).filter(|depth| *depth < TREE_DEPTH_MAX);
    TreeBounds { depth, ..agent.tree }
}

/// The functions of components that an agent may call, and with them agents as tools and the tools of
/// the host.
pub(crate) fn with_tools_of_host(
    tools: &AgentTools,
    policy: &Policy,
    agent: &AgentPolicy,
) -> Result<AgentTools, ToolsError> {
    let bounds = (&agent.limits, &agent.timeouts);
    let tools = tools.with_agents(&callees(policy, &agent.callees), bounds)?;
    let members = callees(policy, &agent.all_members());
    tools.with_host_tools(&agent.host_tools, &members, bounds)
}

/// The tools that an agent has of the host: agents, and the host's own.
pub(crate) fn tools_of_host(policy: &Policy, agent: &AgentPolicy) -> Vec<LoadedTool> {
    let called = callees(policy, &agent.callees);
    let called = called.iter().map(|callee| LoadedTool::of_callee(callee, &agent.limits));
    let members = callees(policy, &agent.all_members());
    let own = LoadedTool::of_functions(&agent.host_tools, &members, &agent.limits);
    called.chain([own]).collect()
}

/// The agents of these names, as those are described that start runs of them.
fn callees(policy: &Policy, names: &[String]) -> Vec<Callee> {
    let callee = |name: &String| Callee {
        name: name.clone(),
        description: policy.descriptions.get(name).cloned(),
    };
    names.iter().map(callee).collect()
}

/// A folder by the one name that it has without links. One that is not there keeps its own: it is
/// never opened.
fn real(folder: &Path) -> PathBuf {
    folder.canonicalize().unwrap_or_else(|_| folder.to_owned())
}
