//! The code of an agent, which is loaded when a run wants it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun::agents::{AgentCode, BoundTags, CallBound, LoadCode, LoadFault};
use taskrun::ports::policy_engine::{PolicyEngine, PolicyFailure, PolicyInput};
use taskrun_engine::AgentError;
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{POLICY_TIMEOUT, PolicyDecision};

use super::{Bound, LoadedPolicy, load_fault};
use crate::loader::Loader;
use crate::loads::{Load, LoadFailure, Loads};
use crate::problem::Problem;

/// A load that takes longer is told of.
const TOLD_AFTER: Duration = Duration::from_millis(300);

/// The code of an agent, loaded when a run wants it.
pub(super) struct OnDemand {
    /// The loader of the agent.
    pub(super) loader: Arc<Loader>,
    /// The agent as it is loaded.
    pub(super) loaded: Arc<LoadedPolicy>,
    /// The agents of its name in policies as they are now, if it is of an earlier one.
    pub(super) bounds: Vec<Bound>,
    /// The place at which people are told of the load.
    pub(super) loads: Option<Arc<Loads>>,
}

impl OnDemand {
    async fn code(&self) -> Result<AgentCode, AgentError> {
        let mut code = self.loader.code_of(&self.loaded).await?;
        for Bound { loader, agent: now } in &self.bounds {
            let tools = &loader.policy.tools;
            let bound = |name: &str| {
                let tool = name.split_once('/').map_or(name, |(tool, _)| tool);
                let Some(tool) = tools.get(tool) else {
                    // An agent as a tool, or a tool of the host.
                    let bound = CallBound { time: now.limits.call, tags: BoundTags::Same };
                    return now.calls_without_component(name).then_some(bound);
                };
                let tags = tool.tags.as_deref().map_or(BoundTags::Claimed, BoundTags::Stated);
                now.call_time(name, tool).map(|time| CallBound { time, tags })
            };
            code.tools = code.tools.within(bound, &now.timeouts);
            // The engine of then and the one of now are both asked.
            if let Some(engine) = &now.engine {
                match loader.guard(now).await {
                    Ok(guard) => code.guard.engines.extend(guard.engines),
                    Err(error) => {
                        let reason = Problem::of_agent(&error).reason();
                        tracing::warn!(agent = now.name, "its runs may call nothing: {reason}");
                        let name = format!("policy component ({})", engine.location);
                        code.guard.engines.push(Arc::new(UnusableEngine { name, reason }));
                    }
                }
            }
        }
        Ok(code)
    }
}

/// A policy engine of now that does not load: it leaves no tool to the runs of then, which go on
/// otherwise.
struct UnusableEngine {
    name: String,
    reason: String,
}

#[async_trait]
impl PolicyEngine for UnusableEngine {
    fn name(&self) -> &str {
        &self.name
    }

    fn timeout(&self) -> Duration {
        POLICY_TIMEOUT
    }

    async fn decide(&self, _: &PolicyInput) -> Result<PolicyDecision, PolicyFailure> {
        Err(PolicyFailure(self.reason.clone()))
    }
}

#[async_trait]
impl LoadCode for OnDemand {
    async fn load(&self) -> Result<AgentCode, LoadFault> {
        let LoadedPolicy { agent, pin, .. } = &*self.loaded;
        let name = &agent.name;
        let load = self.code();
        let Some(loads) = &self.loads else {
            return load.await.map_err(|error| load_fault(&error));
        };
        let since = loads.clock.now().0;
        tokio::pin!(load);
        let loaded = match tokio::time::timeout(TOLD_AFTER, &mut load).await {
            Ok(loaded) => loaded,
            Err(_) => {
                tracing::info!(agent = name, "is being loaded");
                loads.tell(pin, Some(Load { since, error: None, code: None }));
                load.await
            }
        };
        match loaded {
            Ok(code) => {
                loads.tell(pin, None);
                Ok(code)
            }
            Err(error) => {
                let failure = LoadFailure::from(&error);
                tracing::warn!(agent = name, "does not load: {}", failure.reason);
                loads.fail(pin, &failure);
                Err(load_fault(&error))
            }
        }
    }

    /// They are known when its components are compiled.
    fn functions(&self) -> Option<Arc<Vec<ToolSpec>>> {
        None
    }
}
