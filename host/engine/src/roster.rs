//! The agents of a policy, loaded: component, tools and models under one name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::try_join_all;
use taskrun::agents::{Agent, AgentTools, Agents, Callee, LoadedTool, ToolsError};
use taskrun::guard::Guard;
use taskrun::money::Price;
use taskrun::policy::{AgentPolicy, AgentRules, EnginePolicy, Location, Policy};
use taskrun::ports::call::Models;
use taskrun::ports::model::Model;
use taskrun::ports::policy_engine::PolicyEngine;
use taskrun::ports::tool::Tool;

use crate::engine::Engine;
use crate::error::LoadError;
use crate::grants::{self, Role};
use crate::guest::AgentGrants;
use crate::load::Examined;

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
        // Everything is looked at, and held against the grants, before anything is compiled.
        let wrong = |error| failed(&agent.component, &agent.location, error);
        let with = AgentGrants::of_agent(agent);
        let own = self.examine_as(Role::Agent, &agent.component, &with).await.map_err(wrong)?;
        let mut parts = vec![(own, &agent.component, &agent.location)];
        let mut chosen = Vec::new();
        for tool in policy.tools.values() {
            if !agent.tools.iter().any(|selector| selector.tool == tool.name) {
                continue;
            }
            let with = AgentGrants::of_tool(agent, tool);
            let examined = self.examine_as(Role::Tool, &tool.component, &with).await;
            let examined =
                examined.map_err(|error| failed(&tool.component, &tool.location, error))?;
            parts.push((examined, &tool.component, &tool.location));
            chosen.push((tool, with));
        }
        let guard = self.examine_guard(agent).await?;
        let compiled = parts.iter().map(|(part, path, location)| async move {
            self.compile(part).await.map_err(|error| failed(path, location, error))
        });
        let mut compiled = try_join_all(compiled).await?.into_iter();
        let own = compiled.next().ok_or_else(|| wrong(LoadError::internal("nothing compiled")))?;
        let planner = self.agent(&own, with).map_err(wrong)?;
        let mut tools = Vec::new();
        for ((tool, with), loaded) in chosen.into_iter().zip(compiled) {
            let limits = with.limits.clone();
            let linked = self.tool(&loaded, with).await;
            let linked = linked.map_err(|error| failed(&tool.component, &tool.location, error))?;
            tools.push(LoadedTool {
                name: tool.name.clone(),
                tool: linked,
                limits,
                interrupted: tool.interrupted,
                tags: tool.tags.clone(),
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
            guard: self.guard(agent, guard).await?,
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
    /// Loads a tool's component under the grants of the agent that will call it. What it asks for is
    /// held against them before it is compiled.
    ///
    /// # Errors
    /// [`LoadError`].
    pub async fn load_tool(
        self: &Arc<Self>,
        path: &Path,
        with: AgentGrants,
    ) -> Result<Arc<dyn Tool>, LoadError> {
        let examined = self.examine_as(Role::Tool, path, &with).await?;
        self.tool(&self.compile(&examined).await?, with).await
    }

    /// Reads a component, and holds what it asks for against the grants that it would have.
    async fn examine_as(
        &self,
        role: Role,
        path: &Path,
        with: &AgentGrants,
    ) -> Result<Examined, LoadError> {
        let examined = self.examine_file(path).await?;
        grants::check(examined.inspect(), role, &with.agent, &with.grants)?;
        Ok(examined)
    }

    /// The component that decides about the agent's tool calls, if there is one.
    async fn examine_guard(&self, agent: &AgentPolicy) -> Result<Option<Examined>, AgentError> {
        let Some(engine) = &agent.engine else { return Ok(None) };
        let Some(path) = &engine.component else { return Ok(None) };
        let examined = self.examine_as(Role::Policy, path, &AgentGrants::of_policy(agent)).await;
        examined.map(Some).map_err(|source| of_guard(agent, engine, path, source))
    }

    /// What the agent's tool calls are held to beside its rules.
    async fn guard(
        self: &Arc<Self>,
        agent: &AgentPolicy,
        examined: Option<Examined>,
    ) -> Result<Guard, AgentError> {
        let mut engines: Vec<Arc<dyn PolicyEngine>> = Vec::new();
        if let Some(engine) = &agent.engine {
            engines.push(Arc::new(engine.lists.clone()));
            if let (Some(path), Some(examined)) = (&engine.component, examined) {
                let name = format!("policy component ({})", engine.location);
                let policy = self.compile(&examined).await.and_then(|loaded| {
                    self.policy(&loaded, AgentGrants::of_policy(agent), name, engine.timeout)
                });
                engines.push(policy.map_err(|source| of_guard(agent, engine, path, source))?);
            }
        }
        Ok(Guard { engines, ask: agent.ask.clone() })
    }
}

fn of_guard(
    agent: &AgentPolicy,
    engine: &EnginePolicy,
    path: &Path,
    source: LoadError,
) -> AgentError {
    AgentError::Component {
        agent: agent.name.clone(),
        path: path.to_owned(),
        location: engine.location.clone(),
        source: Box::new(source),
    }
}

/// A folder by the one name that it has without links. One that is not there keeps its own: nobody
/// opens it.
fn real(folder: &Path) -> PathBuf {
    folder.canonicalize().unwrap_or_else(|_| folder.to_owned())
}
