//! Components that were linked before: what is kept of them beside their native code is enough to
//! accept runs of their agents without an engine.
//!
//! A component is known by the digest of its bytes, and a file's digest by device, inode, size and
//! times, so that nothing is read twice. The host that executes a run reads the bytes, and holds
//! them against the digests that the run was accepted under.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use taskrun::agents::{
    Agent, AgentTools, CodeSource, LoadCode, LoadedTool, check_rules, functions,
};
use taskrun::clock::SystemClock;
use taskrun::ports::tool::{Tool, ToolCall, ToolReply};
use taskrun::scope::CallScope;
use taskrun::scope::model::Model;
use taskrun_journal::stop::CallAbort;
use taskrun_journal::time::Clock;
use taskrun_journal::tool::{ToolFailure, ToolSpec};
use taskrun_policy::{AgentPolicy, Policy};

use crate::cache::Cache;
use crate::description::{Description, entry};
use crate::digest;
use crate::error::LoadError;
use crate::file_identity::{self, FileIdentity};
use crate::files::ProtectedPaths;
use crate::grants::{self, Role};
use crate::guest::AgentGrants;
use crate::inspect::Inspection;
use crate::link::folders;
use crate::load::open_regular;
use crate::measure;
use crate::roster::{AgentError, Component, described, tools_of_host, with_tools_of_host};

/// The components that engines linked before, by what is kept of them in a [`Cache`].
pub struct Catalog {
    cache: Cache,
    protected: ProtectedPaths,
    clock: SystemClock,
}

impl Catalog {
    /// The components that are known in a cache. `protected` are the host's own files and folders,
    /// as in [`EngineOptions::protected`](crate::EngineOptions::protected); the cache and the files
    /// of the policy are among them without being named.
    #[must_use]
    pub fn new(
        cache: Cache,
        protected: impl IntoIterator<Item = PathBuf>,
        policy: &Policy,
    ) -> Self {
        let own = ProtectedPaths::default();
        own.add(protected);
        own.add([cache.dir().to_owned()]);
        own.add_policy(policy);
        Self { cache, protected: own, clock: SystemClock::new() }
    }

    /// The digest of a file's bytes, which are read only where device, inode, size and times are
    /// not those of a file that was read before.
    ///
    /// # Errors
    /// As [`digest_file`](crate::digest_file).
    pub fn digest_file(&self, path: &Path, limit: u64) -> Result<blake3::Hash, LoadError> {
        let failed = |source| LoadError::Read { path: path.to_owned(), source };
        let now = self.clock.now();
        let file = open_regular(path, limit)?;
        let before = file.metadata().map_err(failed)?;
        let entry = FileIdentity::of(&before).entry();
        let kept = self.cache.file_digest(entry);
        if let Some(bytes) = kept.and_then(|kept| <[u8; 32]>::try_from(kept.code()).ok()) {
            return Ok(blake3::Hash::from_bytes(bytes));
        }
        let digest = digest::of_reader((&file).take(limit), before.len()).map_err(failed)?;
        let after = file.metadata().map_err(failed)?;
        if file_identity::is_settled(&before, now) && FileIdentity::of(&after).entry() == entry {
            self.cache.put_file_digest(entry, digest.as_bytes());
        }
        Ok(digest)
    }

    fn find(&self, digest: Option<&blake3::Hash>, role: Role) -> Option<(Inspection, Description)> {
        let digest = digest?;
        let kept = self.cache.description(entry(*digest, role))?;
        let description: Description = serde_json::from_slice(kept.code()).ok()?;
        Some((description.inspection(digest), description))
    }

    /// An agent of a policy, if each of its components was linked before; `None` if one was not.
    /// It has this pin; `digests` are those of the policy's files, and `source` makes the source of its code, given
    /// the functions that it may call.
    ///
    /// # Errors
    /// [`AgentError`], as [`Engine::load_agent`](crate::Engine::load_agent), as far as it follows
    /// from the policy, the components' descriptions and the folders of the workspace.
    pub fn agent(
        &self,
        policy: &Policy,
        models: &BTreeMap<String, Arc<dyn Model>>,
        (agent, pin): (&AgentPolicy, String),
        digests: &BTreeMap<PathBuf, blake3::Hash>,
        source: impl FnOnce(Arc<Vec<ToolSpec>>) -> Arc<dyn LoadCode>,
    ) -> Result<Option<Agent>, AgentError> {
        let find = |path: &Path, role| self.find(digests.get(path), role);
        let Some((own, _)) = find(&agent.component, Role::Agent) else { return Ok(None) };
        let mut parts = vec![(
            Component::of_agent(agent),
            Role::Agent,
            AgentGrants::of_agent(agent),
            own.clone(),
        )];
        let (mut tools, mut are_usable) = (Vec::new(), true);
        for tool in policy.tools.values() {
            if !agent.uses_tool(&tool.name) {
                continue;
            }
            let found = find(&tool.component, Role::Tool);
            let Some((inspection, Description { specs, is_usable, .. })) = found else {
                return Ok(None);
            };
            are_usable &= is_usable;
            let of = Component::of_tool(agent, tool);
            let with = AgentGrants::of_tool(agent, tool);
            let fits = measure::check(measure::specs(&specs), with.limits.result_bytes);
            fits.map_err(|failure| of.failed(LoadError::Describe(failure)))?;
            let digest = inspection.digest.clone();
            tools.push(LoadedTool {
                name: tool.name.clone(),
                tool: Arc::new(DescribedTool { digest, specs }),
                limits: with.limits.clone(),
                interrupted: tool.interrupted,
                tags: tool.tags.clone(),
                timeouts: agent.call_timeouts(tool),
            });
            parts.push((of, Role::Tool, with, inspection));
        }
        if let Some(engine) = &agent.engine
            && let Some(path) = &engine.component
        {
            let Some((inspection, _)) = find(path, Role::Policy) else { return Ok(None) };
            let of = Component { agent: &agent.name, path, location: &engine.location };
            parts.push((of, Role::Policy, AgentGrants::of_policy(agent), inspection));
        }
        for (of, role, with, inspection) in &parts {
            let checked = grants::check(inspection, *role, &with.agent, &with.grants);
            checked.map_err(|error| of.failed(error))?;
        }
        for (of, role, with, inspection) in &parts {
            let found = folders(&self.protected, inspection, *role, with);
            found.map_err(|error| of.failed(error))?;
        }
        let functions = match are_usable {
            true => functions(&agent.tools, &tools, &tools_of_host(policy, agent)).map(Arc::new),
            // This tells the fault.
            false => AgentTools::select(&agent.tools, &tools)
                .and_then(|tools| with_tools_of_host(&tools, policy, agent))
                .map(|tools| Arc::clone(tools.specs())),
        };
        let checked = |functions| check_rules(&agent.named_functions, &tools).map(|()| functions);
        let functions = functions.and_then(checked).map_err(|source| AgentError::Tools {
            agent: agent.name.clone(),
            location: agent.location.clone(),
            source,
        })?;
        let code = CodeSource::OnDemand(source(functions));
        Ok(Some(described(policy, models, (agent, pin), &own, code)))
    }
}

/// A tool by its description, to be selected from; its functions are called where its component is
/// loaded.
struct DescribedTool {
    digest: String,
    specs: Vec<ToolSpec>,
}

#[async_trait]
impl Tool for DescribedTool {
    fn digest(&self) -> &str {
        &self.digest
    }

    fn hears_cancellation(&self) -> bool {
        false
    }

    fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    async fn call(
        &self,
        _: ToolCall,
        _: Arc<CallScope>,
    ) -> Result<Result<ToolReply, ToolFailure>, CallAbort> {
        Err(CallAbort::Internal)
    }
}

#[cfg(test)]
mod tests;
