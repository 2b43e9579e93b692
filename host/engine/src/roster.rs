//! The agents of a policy, loaded: component, tools and models under one name.

mod described;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::try_join_all;
use taskrun::agents::{
    Agent, AgentCode, AgentTools, Agents, CodeSource, LoadCode, LoadedTool, ToolsError, check_rules,
};
use taskrun::gate::Guard;
use taskrun::ports::policy_engine::PolicyEngine;
use taskrun::ports::tool::Tool;
use taskrun::scope::model::Model;
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{AgentPolicy, EnginePolicy, Location, Policy, PolicyErrors, ToolPolicy};

use crate::component::{ExaminedComponent, LoadedComponent, LoadedComponentInner};
use crate::description;
use crate::engine::Engine;
use crate::error::LoadError;
use crate::grants::{self, Role};
use crate::guest::AgentGrants;
use crate::inspect::Inspection;

pub use self::described::{closure_of, pin_of, rules_of};
pub(crate) use self::described::{described, tools_of_host, with_tools_of_host};

/// The reason that an agent does not load.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Its own component, or one of its tools', does not load.
    #[error("agent {agent}: {path} does not load", path = .path.display())]
    Component {
        /// The agent's name.
        agent: String,
        /// The component's file.
        path: PathBuf,
        /// Where the policy names it.
        location: Location,
        /// The component's error.
        source: Box<LoadError>,
    },
    /// Its folder, or a file that it needs, cannot be used.
    #[error("agent {agent}: its files cannot be used")]
    Files {
        /// The agent's name.
        agent: String,
        /// Each of them, with the place where the policy names it.
        errors: PolicyErrors,
    },
    /// The model that it asks cannot be used.
    #[error("agent {agent}: its model cannot be used")]
    Model {
        /// The agent's name.
        agent: String,
        /// The model's name.
        model: String,
        /// Where the policy names the model.
        place: String,
        /// The model's error.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// Its tools do not fit.
    #[error("agent {agent}: its tools do not fit")]
    Tools {
        /// The agent's name.
        agent: String,
        /// Where the policy names the agent.
        location: Location,
        /// The error of its tools.
        source: ToolsError,
    },
}

impl AgentError {
    /// True if one of its components is at fault, and not something of the host that may be otherwise
    /// in a moment.
    #[must_use]
    pub fn is_of_component(&self) -> bool {
        match self {
            Self::Component { source, .. } => source.is_of_component(),
            Self::Tools { .. } => true,
            Self::Files { .. } | Self::Model { .. } => false,
        }
    }
}

impl Engine {
    /// Loads every agent of a policy. As long as the engine is there no guest moves or removes the
    /// folders in which they work.
    ///
    /// # Errors
    /// The first agent that does not load, and why.
    pub async fn load_agents(
        self: &Arc<Self>,
        policy: &Policy,
        models: &BTreeMap<String, Arc<dyn Model>>,
    ) -> Result<Agents, AgentError> {
        self.protect_policy(policy);
        let folders = policy.agents.values().map(|agent| agent.workspace.as_path());
        self.protected().keep_workspaces(folders);
        let mut by_name = BTreeMap::new();
        for agent in policy.agents.values() {
            let pin = self.pin_of(policy, agent).await?;
            let loaded = self.load_agent(policy, models, agent, pin).await?;
            by_name.insert(agent.name.clone(), Arc::new(loaded));
        }
        let path = policy.path.display().to_string();
        Ok(Agents { policy: path.into(), by_name, ..Agents::default() })
    }

    /// The pin of an agent, by the components as they are.
    async fn pin_of(&self, policy: &Policy, agent: &AgentPolicy) -> Result<String, AgentError> {
        let mut digests = BTreeMap::new();
        for path in policy.files_of(agent) {
            let examined = self.examine_file(path).await;
            let examined = examined.map_err(|error| Component::of_agent(agent).failed(error))?;
            digests.insert(path.to_owned(), examined.digest);
        }
        pin_of(policy, agent, &digests)
    }

    /// Loads one agent of a policy, which has this pin.
    ///
    /// # Errors
    /// [`AgentError`].
    pub async fn load_agent(
        self: &Arc<Self>,
        policy: &Policy,
        models: &BTreeMap<String, Arc<dyn Model>>,
        agent: &AgentPolicy,
        pin: String,
    ) -> Result<Agent, AgentError> {
        let parts = self.examine_agent(policy, agent).await?;
        let own = Arc::clone(&parts.own.inspection);
        let code = self.compile_agent(policy, agent, parts).await?;
        let of = (agent, pin);
        Ok(described(policy, models, of, &own, CodeSource::Loaded(Arc::new(code))))
    }

    /// One agent of a policy, whose components were read and held against their grants and are
    /// compiled when `source` is asked, which [`Self::load_code`] is for. It has this pin.
    ///
    /// # Errors
    /// [`AgentError`], as far as it is known without compiling.
    pub async fn agent_on_demand(
        self: &Arc<Self>,
        policy: &Policy,
        models: &BTreeMap<String, Arc<dyn Model>>,
        (agent, pin): (&AgentPolicy, String),
        source: Arc<dyn LoadCode>,
    ) -> Result<Agent, AgentError> {
        let own = self.inspect_agent(policy, agent).await?;
        Ok(described(policy, models, (agent, pin), &own, CodeSource::OnDemand(source)))
    }

    /// Holds what the components of an agent ask for against the grants, by what is known of them;
    /// gives what is known of its own.
    async fn inspect_agent(
        &self,
        policy: &Policy,
        agent: &AgentPolicy,
    ) -> Result<Arc<Inspection>, AgentError> {
        self.protect_policy(policy);
        let of = Component::of_agent(agent);
        let with = AgentGrants::of_agent(agent);
        let own = self.inspect_as(Role::Agent, &agent.component, &with).await;
        let own = own.map_err(|error| of.failed(error))?;
        for tool in policy.tools.values().filter(|tool| agent.uses_tool(&tool.name)) {
            let with = AgentGrants::of_tool(agent, tool);
            let asked = self.inspect_as(Role::Tool, &tool.component, &with).await;
            asked.map_err(|error| Component::of_tool(agent, tool).failed(error))?;
        }
        if let Some(engine) = &agent.engine
            && let Some(path) = &engine.component
        {
            let with = AgentGrants::of_policy(agent);
            let asked = self.inspect_as(Role::Policy, path, &with).await;
            asked.map_err(|source| of_guard(agent, engine, path, source))?;
        }
        Ok(own)
    }

    async fn inspect_as(
        &self,
        role: Role,
        path: &Path,
        with: &AgentGrants,
    ) -> Result<Arc<Inspection>, LoadError> {
        let found = self.inspection(path).await?;
        grants::check(&found, role, &with.agent, &with.grants)?;
        Ok(found)
    }

    /// Loads the code of one agent of a policy.
    ///
    /// # Errors
    /// [`AgentError`].
    pub async fn load_code(
        self: &Arc<Self>,
        policy: &Policy,
        agent: &AgentPolicy,
    ) -> Result<AgentCode, AgentError> {
        let parts = self.examine_agent(policy, agent).await?;
        self.compile_agent(policy, agent, parts).await
    }

    /// Looks at everything of an agent, and holds it against the grants, before anything is
    /// compiled.
    async fn examine_agent<'p>(
        &self,
        policy: &'p Policy,
        agent: &AgentPolicy,
    ) -> Result<Parts<'p>, AgentError> {
        self.protect_policy(policy);
        let of = Component::of_agent(agent);
        let with = AgentGrants::of_agent(agent);
        let own = self.examine_as(Role::Agent, &agent.component, &with).await;
        let own = own.map_err(|error| of.failed(error))?;
        let mut tools = Vec::new();
        for tool in policy.tools.values() {
            if !agent.uses_tool(&tool.name) {
                continue;
            }
            let with = AgentGrants::of_tool(agent, tool);
            let examined = self.examine_as(Role::Tool, &tool.component, &with).await;
            let examined =
                examined.map_err(|error| Component::of_tool(agent, tool).failed(error))?;
            tools.push((tool, with, examined));
        }
        Ok(Parts { own, tools, guard: self.examine_guard(agent).await? })
    }

    /// Compiles and links what was looked at.
    async fn compile_agent(
        self: &Arc<Self>,
        policy: &Policy,
        agent: &AgentPolicy,
        parts: Parts<'_>,
    ) -> Result<AgentCode, AgentError> {
        let of = Component::of_agent(agent);
        let own = (&parts.own, of);
        let tools =
            parts.tools.iter().map(|(tool, _, part)| (part, Component::of_tool(agent, tool)));
        let compiled = std::iter::once(own).chain(tools).map(|(part, of)| async move {
            self.compile(part).await.map_err(|error| of.failed(error))
        });
        let compiled = try_join_all(compiled).await?;
        let mut native: BTreeMap<String, u64> = compiled.iter().map(native_code).collect();
        let mut compiled = compiled.into_iter();
        let own = compiled.next().ok_or_else(|| of.failed(LoadError::internal("not compiled")))?;
        let planner = self.agent(&own, AgentGrants::of_agent(agent));
        let planner = planner.map_err(|error| of.failed(error))?;
        self.keep(Role::Agent, &parts.own, &[]).await;
        let mut tools = Vec::new();
        for ((tool, with, examined), loaded) in parts.tools.into_iter().zip(compiled) {
            let limits = with.limits.clone();
            let linked = self.tool(&loaded, with).await;
            let linked = linked.map_err(|error| Component::of_tool(agent, tool).failed(error))?;
            self.keep(Role::Tool, &examined, linked.specs()).await;
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
            .and_then(|selected| check_rules(&agent.named_functions, &tools).map(|()| selected))
            .and_then(|tools| with_tools_of_host(&tools, policy, agent))
            .map_err(|source| AgentError::Tools {
                agent: agent.name.clone(),
                location: agent.location.clone(),
                source,
            })?;
        let (guard, of_guard) = self.guard(agent, parts.guard).await?;
        native.extend(of_guard);
        Ok(AgentCode { planner, tools, guard, native })
    }
}

/// The digest of a component and the bytes of its native code.
fn native_code(loaded: &LoadedComponent) -> (String, u64) {
    let LoadedComponentInner { component, inspection } = &*loaded.0;
    let image = component.image_range();
    let bytes = image.end.addr().saturating_sub(image.start.addr());
    (inspection.digest.clone(), bytes as u64)
}

/// The parts of an agent, read and not compiled.
struct Parts<'p> {
    own: ExaminedComponent,
    tools: Vec<(&'p ToolPolicy, AgentGrants, ExaminedComponent)>,
    guard: Option<ExaminedComponent>,
}

/// A component as the policy names it for an agent.
#[derive(Clone, Copy)]
pub(crate) struct Component<'p> {
    pub(crate) agent: &'p str,
    pub(crate) path: &'p Path,
    pub(crate) location: &'p Location,
}

impl<'p> Component<'p> {
    pub(crate) fn of_agent(agent: &'p AgentPolicy) -> Self {
        Self { agent: &agent.name, path: &agent.component, location: &agent.location }
    }

    pub(crate) fn of_tool(agent: &'p AgentPolicy, tool: &'p ToolPolicy) -> Self {
        Self { agent: &agent.name, path: &tool.component, location: &tool.location }
    }

    pub(crate) fn failed(&self, source: LoadError) -> AgentError {
        AgentError::Component {
            agent: self.agent.to_owned(),
            path: self.path.to_owned(),
            location: self.location.clone(),
            source: Box::new(source),
        }
    }
}

impl Engine {
    /// Loads a tool's component under the grants of the agent that will call it. What it asks for
    /// is held against them before it is compiled.
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
    ) -> Result<ExaminedComponent, LoadError> {
        let examined = self.examine_file(path).await?;
        grants::check(examined.inspect(), role, &with.agent, &with.grants)?;
        Ok(examined)
    }

    /// Keeps what was found out about a component that was linked, for a
    /// [`Catalog`](crate::Catalog).
    async fn keep(&self, role: Role, examined: &ExaminedComponent, specs: &[ToolSpec]) {
        let Some(cache) = self.options().cache.clone() else { return };
        let (id, inspection) = ((examined.digest, role), Arc::clone(&examined.inspection));
        let specs = specs.to_vec();
        let kept =
            tokio::task::spawn_blocking(move || description::keep(&cache, id, &inspection, &specs));
        if let Err(error) = kept.await {
            tracing::error!(%error, "keeping a description panicked");
        }
    }

    /// The component that decides about the agent's tool calls, if there is one.
    async fn examine_guard(
        &self,
        agent: &AgentPolicy,
    ) -> Result<Option<ExaminedComponent>, AgentError> {
        let Some(engine) = &agent.engine else { return Ok(None) };
        let Some(path) = &engine.component else { return Ok(None) };
        let examined = self.examine_as(Role::Policy, path, &AgentGrants::of_policy(agent)).await;
        examined.map(Some).map_err(|source| of_guard(agent, engine, path, source))
    }

    /// The engines that decide about the tool calls of an agent, beside its rules.
    ///
    /// # Errors
    /// [`AgentError`].
    pub async fn load_guard(self: &Arc<Self>, agent: &AgentPolicy) -> Result<Guard, AgentError> {
        Ok(self.guard(agent, self.examine_guard(agent).await?).await?.0)
    }

    /// The guard of the agent's tool calls, beside its rules.
    async fn guard(
        self: &Arc<Self>,
        agent: &AgentPolicy,
        examined: Option<ExaminedComponent>,
    ) -> Result<(Guard, Option<(String, u64)>), AgentError> {
        let mut engines: Vec<Arc<dyn PolicyEngine>> = Vec::new();
        let mut native = None;
        if let Some(engine) = &agent.engine {
            engines.push(Arc::new(engine.lists.clone()));
            if let (Some(path), Some(examined)) = (&engine.component, examined) {
                let name = format!("policy component ({})", engine.location);
                let policy = self.compile(&examined).await.and_then(|loaded| {
                    native = Some(native_code(&loaded));
                    self.policy(&loaded, AgentGrants::of_policy(agent), name, engine.timeout)
                });
                engines.push(policy.map_err(|source| of_guard(agent, engine, path, source))?);
                self.keep(Role::Policy, &examined, &[]).await;
            }
        }
        Ok((Guard { engines }, native))
    }
}

fn of_guard(
    agent: &AgentPolicy,
    engine: &EnginePolicy,
    path: &Path,
    source: LoadError,
) -> AgentError {
    Component { agent: &agent.name, path, location: &engine.location }.failed(source)
}
