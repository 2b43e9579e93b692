//! The agents of a policy, loaded: component, tools and models under one name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use taskrun::agents::{Agent, AgentTools, Agents, Callee, LoadedTool, ToolsError};
use taskrun::guard::Guard;
use taskrun::money::Price;
use taskrun::policy::{AgentPolicy, AgentRules, Location, Policy};
use taskrun::ports::call::Models;
use taskrun::ports::model::Model;
use taskrun::ports::policy_engine::PolicyEngine;

use crate::engine::Engine;
use crate::error::LoadError;
use crate::guest::AgentGrants;

/// Why an agent does not load.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Its own component, or one of its tools', does not load.
    #[error("agent {agent}: {path} does not load", path = .path.display())]
    Component {
        /// The agent.
        agent: String,
        /// The component.
        path: PathBuf,
        /// Where the policy names it.
        location: Location,
        /// Why.
        source: Box<LoadError>,
    },
    /// Its tools do not fit.
    #[error("agent {agent}: its tools do not fit")]
    Tools {
        /// The agent.
        agent: String,
        /// Where the policy names the agent.
        location: Location,
        /// Why.
        source: ToolsError,
    },
}

impl Engine {
    /// Loads every agent of a policy.
    ///
    /// # Errors
    /// The first agent that does not load, and why.
    pub async fn load_agents(
        self: &Arc<Self>,
        policy: &Policy,
        models: &BTreeMap<String, Arc<dyn Model>>,
    ) -> Result<Agents, AgentError> {
        let mut by_name = BTreeMap::new();
        for agent in policy.agents.values() {
            let loaded = self.load_agent(policy, models, agent).await?;
            by_name.insert(agent.name.clone(), Arc::new(loaded));
        }
        Ok(Agents { policy_digest: policy.digest.clone(), by_name })
    }

    /// Loads one agent of a policy.
    ///
    /// # Errors
    /// [`AgentError`].
    pub async fn load_agent(
        self: &Arc<Self>,
        policy: &Policy,
        models: &BTreeMap<String, Arc<dyn Model>>,
        agent: &AgentPolicy,
    ) -> Result<Agent, AgentError> {
        self.protect_policy(policy);
        let failed =
            |path: &PathBuf, location: &Location, source: LoadError| AgentError::Component {
                agent: agent.name.clone(),
                path: path.clone(),
                location: location.clone(),
                source: Box::new(source),
            };
        let loaded = self.load_file(&agent.component).await;
        let planner = loaded
            .and_then(|loaded| self.agent(&loaded, AgentGrants::of_agent(agent)))
            .map_err(|error| failed(&agent.component, &agent.location, error))?;
        let mut tools = Vec::new();
        for tool in policy.tools.values() {
            if !agent.tools.iter().any(|selector| selector.tool == tool.name) {
                continue;
            }
            let wrong = |error| failed(&tool.component, &tool.location, error);
            let loaded = self.load_file(&tool.component).await.map_err(wrong)?;
            let grants = AgentGrants::of_tool(agent, tool);
            let limits = grants.limits.clone();
            let linked = self.tool(&loaded, grants).await.map_err(wrong)?;
            tools.push(LoadedTool {
                name: tool.name.clone(),
                tool: linked,
                limits,
                interrupted: tool.interrupted,
                timeouts: agent.call_timeouts(tool),
            });
        }
        let tools = AgentTools::select(&agent.tools, &tools)
            .and_then(|tools| tools.with_agents(&callees(policy, agent), &agent.limits))
            .map_err(|source| AgentError::Tools {
                agent: agent.name.clone(),
                location: agent.location.clone(),
                source,
            })?;
        Ok(Agent {
            name: agent.name.clone(),
            planner,
            tools,
            models: Arc::new(Models {
                by_name: models.clone(),
                prices: prices(policy),
                default: agent.model.clone(),
                grants: agent.grants.clone(),
            }),
            rules: Arc::new(AgentRules {
                workspace: real(&agent.workspace),
                ..AgentRules::of(agent)
            }),
            prompts: Arc::new(policy.prompts()),
            limits: agent.limits.clone(),
            budget: agent.budget.clone(),
            members: agent.all_members(),
            durable: agent.durable,
            retry: agent.retry,
            heartbeat: agent.heartbeat.clone(),
            conversation: agent.conversation,
            guard: self.guard(agent).await?,
            on_missing_fields: agent.on_missing_fields,
        })
    }
}

/// What is known of what models cost.
fn prices(policy: &Policy) -> BTreeMap<String, Price> {
    let known = policy.models.values().filter_map(|model| Some((model.name.clone(), model.price?)));
    known.collect()
}

/// The agents that one may call as tools.
fn callees(policy: &Policy, agent: &AgentPolicy) -> Vec<Callee> {
    let callees = agent.callees.iter().map(|name| Callee {
        name: name.clone(),
        description: policy.agents.get(name).and_then(|callee| callee.description.clone()),
    });
    callees.collect()
}

impl Engine {
    /// What the agent's tool calls are held to beside its rules.
    async fn guard(self: &Arc<Self>, agent: &AgentPolicy) -> Result<Guard, AgentError> {
        let mut engines: Vec<Arc<dyn PolicyEngine>> = Vec::new();
        if let Some(engine) = &agent.engine {
            engines.push(Arc::new(engine.lists.clone()));
            if let Some(path) = &engine.component {
                let name = format!("policy component ({})", engine.location);
                let loaded = self.load_file(path).await;
                let policy = loaded.and_then(|loaded| {
                    self.policy(&loaded, AgentGrants::of_policy(agent), name, engine.timeout)
                });
                engines.push(policy.map_err(|source| AgentError::Component {
                    agent: agent.name.clone(),
                    path: path.clone(),
                    location: engine.location.clone(),
                    source: Box::new(source),
                })?);
            }
        }
        Ok(Guard { engines, ask: agent.ask.clone() })
    }
}

/// A folder by the one name that it has without links. One that is not there keeps its own: nobody
/// opens it.
fn real(folder: &Path) -> PathBuf {
    folder.canonicalize().unwrap_or_else(|_| folder.to_owned())
}
