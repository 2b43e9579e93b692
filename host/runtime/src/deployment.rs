//! Agents as they are loaded: of the policy as it is, and of those that runs were accepted under.

mod on_demand;

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use taskrun::agents::{Agent, AgentCode, AgentNow, CodeSource, LoadFault, Origin};
use taskrun::gate::Guard;
use taskrun_engine::{AgentError, LoadError, pin_of, rules_of};
use taskrun_journal::pin::{agent_of, pin_of_rules};
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{AgentPolicy, Policy};
use taskrun_store::BlobError;

use self::on_demand::OnDemand;
use crate::loader::{COMPONENT_BYTES_MAX, Loader, pin_of_whole};
use crate::loads::{LoadFailure, Loads};
use crate::origins::OriginPolicies;
use crate::problem::{Problem, chain, io_kind, reason_for_guest};
use crate::snapshot::{self, KeepError, KeptPaths, PinError};

/// One agent of a policy, as it is loaded.
pub(crate) struct LoadedPolicy {
    /// The policy; the agent's components are named by where they are kept.
    pub(crate) policy: Policy,
    /// The agent.
    pub(crate) agent: AgentPolicy,
    /// Its pin.
    pub(crate) pin: String,
    paths: Option<KeptPaths>,
}

impl Loader {
    /// Loads an agent of the policy with all of its tools.
    ///
    /// # Errors
    /// [`AgentError`]: the first thing that is wrong.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the load.
    pub async fn agent(&self, agent: &AgentPolicy) -> Result<Agent, AgentError> {
        let LoadedPolicy { policy, agent, pin, paths } = self.loaded(agent).await?;
        let loaded = self.engine.load_agent(&policy, &self.models, &agent, pin).await;
        loaded.map_err(|error| named(error, paths.as_ref()))
    }

    /// The pin of an agent of the policy, by its files as they were when this was opened; `None` if
    /// that of one of them is not known.
    #[must_use]
    pub fn pin(&self, agent: &AgentPolicy) -> Option<String> {
        pin_of(&self.policy, agent, &self.digests).ok()
    }

    /// The digest of the names and pins of all agents of the policy: of what [`Self::pin`] gives.
    #[must_use]
    pub fn pins_digest(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for (name, agent) in &self.policy.agents {
            let pin = self.pin(agent).unwrap_or_default();
            for text in [name.as_str(), pin.as_str()] {
                hash.update(&(text.len() as u64).to_le_bytes());
                hash.update(text.as_bytes());
            }
        }
        format!("blake3:{}", hash.finalize().to_hex())
    }

    /// Loads the code of an agent.
    pub(crate) async fn code(&self, agent: &AgentPolicy) -> Result<AgentCode, AgentError> {
        self.code_of(&self.loaded(agent).await?).await
    }

    async fn code_of(&self, loaded: &LoadedPolicy) -> Result<AgentCode, AgentError> {
        let load = || self.engine.load_code(&loaded.policy, &loaded.agent);
        match load().await.map_err(|error| named(error, loaded.paths.as_ref())) {
            Err(error) if is_of_kept(&error) && self.mend(loaded).await => {
                load().await.map_err(|error| named(error, loaded.paths.as_ref()))
            }
            code => code,
        }
    }

    /// Makes what is kept of an agent whole where a file that the policy names has the same bytes;
    /// says whether anything was.
    async fn mend(&self, loaded: &LoadedPolicy) -> bool {
        let (Some(blobs), Some(paths)) = (self.blobs.clone(), &loaded.paths) else { return false };
        let kept: Vec<blake3::Hash> = paths.digests().map(|(_, digest)| *digest).collect();
        let files = self.digests.clone();
        let mended = tokio::task::spawn_blocking(move || {
            let is_whole = |digest: &blake3::Hash| matches!(blobs.check(digest), Ok(true));
            let damaged = kept.into_iter().filter(|digest| !is_whole(digest));
            let mended = damaged.filter(|digest| {
                let mut same = files.iter().filter(|(_, of)| *of == digest);
                same.any(|(file, _)| {
                    let mended = blobs.mend(digest, file, COMPONENT_BYTES_MAX);
                    // Whatever keeps it from being mended, the damage is what is told of.
                    mended.is_ok_and(|is_mended| is_mended)
                })
            });
            mended.collect::<Vec<_>>()
        });
        let mended = mended.await.unwrap_or_default();
        for digest in &mended {
            tracing::warn!(%digest, "a component was damaged where it is kept, and is whole again");
        }
        !mended.is_empty()
    }

    /// An agent whose components were looked at and are compiled when a run wants it.
    pub(crate) async fn agent_on_demand(
        self: &Arc<Self>,
        agent: &AgentPolicy,
        loads: Option<&Arc<Loads>>,
    ) -> Result<Agent, AgentError> {
        let loaded = self.loaded(agent).await?;
        self.described(loaded, Vec::new(), loads).await
    }

    /// Keeps the components of all agents of the policy, each once; gives the files that cannot be
    /// kept.
    pub(crate) async fn keep_components(self: &Arc<Self>) -> BTreeSet<PathBuf> {
        let Some(blobs) = self.blobs.clone() else { return BTreeSet::new() };
        let loader = Arc::clone(self);
        let keep = move || {
            let mut done = HashSet::new();
            let digests = loader.digests.iter().filter(|(_, digest)| done.insert(**digest));
            let fails = |(path, digest): &(&PathBuf, &blake3::Hash)| {
                snapshot::keep_component(&blobs, path, digest).is_err()
            };
            let failed: HashSet<_> = digests.filter(fails).map(|(_, digest)| *digest).collect();
            let files = loader.digests.iter().filter(|(_, digest)| failed.contains(digest));
            files.map(|(path, _)| path.clone()).collect()
        };
        // What is not known to be kept is looked at for each agent.
        let all = || self.digests.keys().cloned().collect();
        tokio::task::spawn_blocking(keep).await.unwrap_or_else(|_| all())
    }

    /// An agent of a host, which keeps what its runs need when the first of them is accepted: of a
    /// hundred agents that change at once few are asked for. The components are kept by then, but for
    /// the files that are `unkept`.
    pub(crate) async fn agent_of_host(
        self: &Arc<Self>,
        agent: &AgentPolicy,
        loads: &Arc<Loads>,
        unkept: &BTreeSet<PathBuf>,
    ) -> Result<Agent, AgentError> {
        let needs_unkept = || self.policy.files_of(agent).iter().any(|file| unkept.contains(*file));
        let Some(blobs) = self.blobs.as_ref().filter(|_| !needs_unkept()) else {
            return self.agent_on_demand(agent, Some(loads)).await;
        };
        let pin = pin_of_whole(&self.policy, agent, &self.digests)?;
        self.check_model(agent)?;
        let mut policy = self.policy.around(agent);
        let paths = KeptPaths::put_into(&mut policy, &agent.name, &self.digests, blobs);
        self.described(self.at_kept(policy, agent, pin, paths), Vec::new(), Some(loads)).await
    }

    /// An agent as it is loaded: with its pin, and with its components where they are kept.
    async fn loaded(&self, agent: &AgentPolicy) -> Result<LoadedPolicy, AgentError> {
        let pin = pin_of_whole(&self.policy, agent, &self.digests)?;
        self.check_model(agent)?;
        let mut policy = self.policy.around(agent);
        let Some(blobs) = self.blobs.clone() else {
            return Ok(LoadedPolicy { policy, agent: agent.clone(), pin, paths: None });
        };
        let (digests, kept_as) = (self.digests.clone(), pin.clone());
        let (kept_policy, kept_agent, kept_in) = (policy.clone(), agent.clone(), blobs.clone());
        let keep =
            move || snapshot::keep(&kept_in, &kept_policy, (&kept_agent, &kept_as), &digests);
        let kept = tokio::task::spawn_blocking(keep).await;
        let kept = kept.unwrap_or(Err(KeepError::Panicked));
        kept.map_err(|error| unkept(agent, error))?;
        let paths = KeptPaths::put_into(&mut policy, &agent.name, &self.digests, &blobs);
        Ok(self.at_kept(policy, agent, pin, paths))
    }

    /// The pin and rules of an agent of this policy, which bind the runs that were accepted with it
    /// as it was before.
    pub(crate) fn agent_now(&self, agent: &AgentPolicy) -> AgentNow {
        let rules = rules_of(agent);
        // One whose components are missing has no pin; its rules bind all the same, and are told apart.
        let pin = pin_of(&self.policy, agent, &self.digests);
        let pin = pin.unwrap_or_else(|_| pin_of_rules(&agent.name, &rules.digest()));
        AgentNow { pin, rules: Arc::new(rules) }
    }

    /// Keeps the agent of this policy that has a pin, if there is one and it is not kept any more;
    /// says whether it is.
    ///
    /// # Errors
    /// Why it cannot be kept, in words.
    pub(crate) fn keep_again(&self, pin: &str) -> Result<bool, String> {
        let (Some(blobs), Some(agent)) = (&self.blobs, self.policy.agents.get(agent_of(pin)))
        else {
            return Ok(false);
        };
        let now = pin_of(&self.policy, agent, &self.digests);
        if !now.is_ok_and(|now| now == pin) {
            return Ok(false);
        }
        let kept = snapshot::keep(blobs, &self.policy, (agent, pin), &self.digests);
        kept.map(|()| true).map_err(|error| chain(&unkept(agent, error)).join(": "))
    }

    /// Has all that is kept of the agents of this policy count as wanted now; false if some of what
    /// is kept is just being removed. Waits for nobody.
    ///
    /// # Errors
    /// [`BlobError`].
    pub(crate) fn renew(&self) -> Result<bool, BlobError> {
        let Some(blobs) = &self.blobs else { return Ok(true) };
        let Some(_held) = blobs.hold(Duration::ZERO)? else { return Ok(false) };
        for digest in self.digests.values() {
            blobs.renew(digest)?;
        }
        for agent in self.policy.agents.values() {
            // One without a pin, whose component is missing, is not kept.
            if let Ok(pin) = pin_of(&self.policy, agent, &self.digests) {
                snapshot::renew(blobs, &pin)?;
            }
        }
        Ok(true)
    }

    /// An agent whose components are loaded from what is kept of them.
    fn at_kept(
        &self,
        policy: Policy,
        agent: &AgentPolicy,
        pin: String,
        paths: KeptPaths,
    ) -> LoadedPolicy {
        for (path, digest) in paths.digests() {
            self.engine.pin(path.to_owned(), *digest);
        }
        let agent = policy.agents.get(&agent.name).unwrap_or(agent).clone();
        LoadedPolicy { policy, agent, pin, paths: Some(paths) }
    }

    /// The agent with a pin, of this or an earlier policy, within what this policy gives the agent
    /// of its name, and the file that it was accepted under if that is one of these `origins`.
    ///
    /// # Errors
    /// Why its runs cannot be executed.
    pub(crate) async fn pinned(
        self: &Arc<Self>,
        pin: &str,
        origins: Option<&OriginPolicies>,
        loads: Option<&Arc<Loads>>,
    ) -> Result<Agent, LoadFailure> {
        let nothing = || LoadFailure::from("nothing is kept here".to_owned());
        let blobs = self.blobs.clone().ok_or_else(nothing)?;
        let name = agent_of(pin);
        let gone = || PinError::Gone(name.to_owned());
        let now = self.policy.agents.get(name).ok_or_else(gone)?;
        let (kept_in, of, loader) = (blobs.clone(), pin.to_owned(), Arc::clone(self));
        let open = move || snapshot::open_beside(&kept_in, &of, &loader.policy);
        let opened = tokio::task::spawn_blocking(open).await;
        let failed = |_| Err(PinError::Kept("the host failed to read it".to_owned()));
        let (mut policy, digests) = opened.unwrap_or_else(failed)?;
        policy.bound_by(name, &self.policy);
        let mut origin = None;
        let mut bounds = vec![Bound { loader: Arc::clone(self), agent: now.clone() }];
        if let Some(origins) = origins.filter(|_| policy.path != self.policy.path) {
            let path = policy.path.clone();
            let there = origins.of(&path, self).await;
            let there = there.map_err(|error| PinError::Kept(chain(&error).join(": ")))?;
            let bound = there.map(|loader| Bound::of_origin(loader, name)).transpose()?;
            if let Some(Bound { loader, .. }) = &bound {
                // Whatever its pin is: the bounds of rounds are in none.
                policy.bound_by(name, &loader.policy);
            }
            let bound = bound.filter(|bound| {
                let there = bound.agent_now().pin;
                there != pin && there != self.agent_now(now).pin
            });
            let there = bound.as_ref().map(Bound::agent_now);
            origin = Some(Origin { policy: path.display().to_string(), now: there });
            bounds.extend(bound);
        }
        let paths = KeptPaths::put_into(&mut policy, name, &digests, &blobs);
        let loaded = self.at_kept(policy, now, pin.to_owned(), paths);
        let unusable = |error: AgentError| LoadFailure::from(&error);
        self.check_model(&loaded.agent).map_err(unusable)?;
        let described = self.described(loaded, bounds, loads).await;
        let agent = described.map_err(unusable)?;
        Ok(Agent { now: Some(self.agent_now(now)), origin, ..agent })
    }

    /// The functions that the agent with a pin, of an earlier policy, may call within what this
    /// policy gives the agent of its name. The loader has to be one that keeps agents.
    ///
    /// # Errors
    /// Why they are not known, in words.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the load.
    pub async fn functions_of_pin(
        self: &Arc<Self>,
        pin: &str,
    ) -> Result<Arc<Vec<ToolSpec>>, String> {
        let pinned = self.pinned(pin, None, None).await.map_err(|failure| failure.reason)?;
        let code = match pinned.code {
            CodeSource::Loaded(code) => code,
            CodeSource::OnDemand(source) => {
                Arc::new(source.load().await.map_err(|fault| fault.to_string())?)
            }
        };
        Ok(Arc::clone(code.tools.specs()))
    }

    async fn described(
        self: &Arc<Self>,
        loaded: LoadedPolicy,
        bounds: Vec<Bound>,
        loads: Option<&Arc<Loads>>,
    ) -> Result<Agent, AgentError> {
        let loaded = Arc::new(loaded);
        let source = Arc::new(OnDemand {
            loader: Arc::clone(self),
            loaded: Arc::clone(&loaded),
            bounds,
            loads: loads.map(Arc::clone),
        });
        let LoadedPolicy { policy, agent, pin, paths } = &*loaded;
        let describe = || {
            let of = (agent, pin.clone());
            self.engine.agent_on_demand(policy, &self.models, of, source.clone())
        };
        match describe().await.map_err(|error| named(error, paths.as_ref())) {
            Err(error) if is_of_kept(&error) && self.mend(&loaded).await => {
                describe().await.map_err(|error| named(error, paths.as_ref()))
            }
            described => described,
        }
    }

    /// The engines that decide about the tool calls of an agent.
    async fn guard(&self, agent: &AgentPolicy) -> Result<Guard, AgentError> {
        let loaded = self.loaded(agent).await?;
        let guard = self.engine.load_guard(&loaded.agent).await;
        guard.map_err(|error| named(error, loaded.paths.as_ref()))
    }
}

/// The fault of an agent whose code does not load.
pub(crate) fn load_fault(error: &AgentError) -> LoadFault {
    let words = Problem::of_agent(error).reason();
    match error.is_of_component() {
        true => LoadFault::Component { words, for_guest: reason_for_guest(error) },
        false => LoadFault::Host(words),
    }
}

/// An agent that cannot be kept as it is.
pub(crate) fn unkept(agent: &AgentPolicy, error: KeepError) -> AgentError {
    let (path, source) = match error {
        KeepError::Changed(path) => (path.clone(), LoadError::Changed { path }),
        KeepError::Unreadable { path, source } => (path.clone(), LoadError::Read { path, source }),
        KeepError::Blobs(error) => (agent.component.clone(), kept_failed(&error)),
        KeepError::Panicked => (agent.component.clone(), kept_failed(&error)),
    };
    AgentError::Component {
        agent: agent.name.clone(),
        path,
        location: agent.location.clone(),
        source: Box::new(source),
    }
}

fn kept_failed(error: &(dyn std::error::Error + 'static)) -> LoadError {
    LoadError::Kept { detail: chain(error).join(": "), kind: io_kind(error) }
}

/// True if an agent does not load for what is kept of it.
fn is_of_kept(error: &AgentError) -> bool {
    matches!(error, AgentError::Component { source, .. } if matches!(**source, LoadError::Kept { .. }))
}

/// The error of a component that is kept, and not as it was; `None` if it is something else.
fn fault_of_kept(error: &LoadError) -> Option<LoadError> {
    if matches!(error, LoadError::Changed { .. }) {
        let detail = "what is kept of it is damaged; see `taskrun doctor --check`".to_owned();
        return Some(LoadError::Kept { detail, kind: None });
    }
    let LoadError::Read { path, source } = error else { return None };
    let detail = format!("what is kept of it cannot be read: {}: {source}", path.display());
    Some(LoadError::Kept { detail, kind: Some(source.kind()) })
}

/// The same error with the path that the policy names, where it is about one at which a component
/// is kept.
fn named(error: AgentError, paths: Option<&KeptPaths>) -> AgentError {
    match (error, paths) {
        (AgentError::Component { agent, path, location, source }, Some(paths)) => {
            let is_kept = *paths.named(&path) != *path;
            let source = match fault_of_kept(&source).filter(|_| is_kept) {
                Some(fault) => Box::new(fault),
                None => source,
            };
            let path = paths.named(&path).to_owned();
            AgentError::Component { agent, path, location, source }
        }
        (error, _) => error,
    }
}

/// An agent of a policy as it is now, within whose bounds one of an earlier policy is executed.
struct Bound {
    /// The loader of the policy.
    loader: Arc<Loader>,
    agent: AgentPolicy,
}

impl Bound {
    /// The agent of this name in the policy of another file, which its runs were accepted under.
    fn of_origin(loader: Arc<Loader>, name: &str) -> Result<Self, PinError> {
        match loader.policy.agents.get(name).cloned() {
            Some(agent) => Ok(Self { loader, agent }),
            None => {
                let policy = loader.policy.path.clone();
                Err(PinError::GoneThere { agent: name.to_owned(), policy })
            }
        }
    }

    fn agent_now(&self) -> AgentNow {
        self.loader.agent_now(&self.agent)
    }
}
