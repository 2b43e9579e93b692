//! The policy files that runs on this host were accepted under, where the host has another one: what
//! they give as they are now binds those runs, too.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use taskrun::agents::Origins;
use taskrun::ports::deployments::Settling;
use taskrun_journal::store::{Policies, StoreError};
use taskrun_journal::time::Clock;
use taskrun_policy::{Defaults, Policy};

use crate::files_seen::{FilesSeen, UnsettledFiles};
use crate::loader::Loader;
use crate::policy_file::{Disk, parse_policy, read_prompts};
use crate::problem::chain;
use crate::storage::put_in_force;

/// The policies of other files that bind runs on this host.
pub(crate) struct OriginPolicies {
    policies: Arc<dyn Policies>,
    clock: Arc<dyn Clock>,
    known: Mutex<BTreeMap<PathBuf, OriginPolicy>>,
}

/// A file that runs were accepted under.
#[derive(Clone)]
struct OriginPolicy {
    /// Its text in force; `None` if none is known.
    loader: Option<Arc<Loader>>,
    /// The files as they were when they were read last.
    read: FilesSeen,
    /// The files as the last look found them, if they were others.
    unsettled: UnsettledFiles,
}

impl OriginPolicies {
    /// Of a store of which nobody else knows.
    #[cfg(test)]
    pub(crate) fn of_nobody() -> Self {
        let store = Arc::new(taskrun_store::MemoryStore::new());
        Self::new(store, Arc::new(taskrun::clock::SystemClock::new()))
    }

    pub(crate) fn new(policies: Arc<dyn Policies>, clock: Arc<dyn Clock>) -> Self {
        Self { policies, clock, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<PathBuf, OriginPolicy>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the text of a policy in force for its file, if that has it still. Where the store cannot
    /// be written, it is as soon as somebody reads the file again.
    pub(crate) async fn apply(&self, policy: &Policy) {
        let applied = put_in_force(&*self.policies, policy, self.clock.now()).await;
        if let Err(error) = applied {
            let why = chain(&error).join(": ");
            tracing::warn!("the policy does not bind its runs on hosts of other files: {why}");
        }
    }

    /// The policy in force of a file, for a host of another one; `None` if none is known.
    ///
    /// # Errors
    /// [`StoreError`], so that nothing begins whose bounds are not known.
    pub(crate) async fn of(
        &self,
        path: &Path,
        host: &Arc<Loader>,
    ) -> Result<Option<Arc<Loader>>, StoreError> {
        if let Some(known) = self.known().get(path) {
            return Ok(known.loader.clone());
        }
        let read = self.read(path, host).await?;
        let loader = read.loader.clone();
        self.known().insert(path.to_owned(), read);
        Ok(loader)
    }

    /// Reads the files again that have changed, and gives the agents of all of them if any did.
    pub(crate) async fn look(&self, host: &Arc<Loader>, settling: Settling) -> Option<Origins> {
        let known = self.known().clone();
        let mut has_changed = false;
        for (path, before) in known {
            let (looked_at, policy) = (path.clone(), before.loader.clone());
            let look = move || match policy {
                Some(loader) => FilesSeen::of(loader.policy()),
                None => FilesSeen::of_file(&looked_at),
            };
            let Ok(found) = tokio::task::spawn_blocking(look).await else { continue };
            if !self.is_to_be_read(&path, &found, settling) {
                continue;
            }
            // What cannot be read is read again at the next look.
            let Ok(read) = self.read(&path, host).await else { continue };
            let is_other = match (&before.loader, &read.loader) {
                (Some(before), Some(now)) => !now.is_like(before),
                (None, None) => false,
                (Some(_), None) | (None, Some(_)) => true,
            };
            has_changed |= is_other;
            // What is like it is the one that agents were loaded under.
            let loader = match is_other {
                true => {
                    before.loader.iter().for_each(|before| before.give_up_workspaces());
                    read.loader
                }
                false => before.loader,
            };
            self.known().insert(path, OriginPolicy { loader, ..read });
        }
        has_changed.then(|| self.agents())
    }

    /// The agents of all files that are known.
    pub(crate) fn agents(&self) -> Origins {
        let known = self.known();
        let known = known.iter().filter_map(|(path, known)| Some((path, known.loader.as_ref()?)));
        let agents = known.map(|(path, loader)| {
            let agents = loader.policy().agents.values();
            let agents = agents.map(|agent| (agent.name.clone(), loader.agent_now(agent)));
            (path.display().to_string(), Arc::new(agents.collect()))
        });
        agents.collect()
    }

    /// True if a file is to be read again: it has been another one for a moment, or somebody says so.
    fn is_to_be_read(&self, path: &Path, found: &FilesSeen, settling: Settling) -> bool {
        let mut known = self.known();
        let Some(known) = known.get_mut(path) else { return false };
        if known.read == *found {
            known.unsettled.forget();
            return settling == Settling::Told;
        }
        match settling {
            Settling::Told | Settling::Over => true,
            Settling::Awaited => known.unsettled.have_settled(found),
        }
    }

    async fn read(&self, path: &Path, host: &Arc<Loader>) -> Result<OriginPolicy, StoreError> {
        let (file, defaults) = (path.to_owned(), Arc::clone(host.policy().defaults()));
        let load = move || (FilesSeen::of_file(&file), FilesSeen::load(&file, &defaults).ok());
        // Where the host fails at it the text that is kept counts.
        let loaded = tokio::task::spawn_blocking(load).await.ok();
        let (file, loaded) = loaded.unwrap_or_else(|| (FilesSeen::of_file(path), None));
        let (policy, read) = match loaded {
            Some((policy, seen)) => {
                self.apply(&policy).await;
                (Some(policy), seen)
            }
            None => (in_force(&*self.policies, path, host.policy().defaults()).await?, file),
        };
        let Some(mut policy) = policy else {
            return Ok(OriginPolicy { loader: None, read, unsettled: UnsettledFiles::default() });
        };
        // Models are those of the host.
        policy.models.clear();
        let host = Arc::clone(host);
        let open = move || Arc::new(host.reopen(policy, &[]));
        let loader = tokio::task::spawn_blocking(open).await;
        let loader = loader.map_err(|_| StoreError::Closed)?;
        Ok(OriginPolicy { loader: Some(loader), read, unsettled: UnsettledFiles::default() })
    }
}

/// The policy of a file as it is now, or, where it cannot be read or has a mistake, its text in
/// force; `None` if there is none.
///
/// # Errors
/// [`StoreError`].
pub(crate) async fn as_it_is_now(
    policies: &dyn Policies,
    path: &Path,
    defaults: &Arc<Defaults>,
) -> Result<Option<Policy>, StoreError> {
    match parse_policy(&Disk, path, defaults) {
        Ok(mut policy) => {
            read_prompts(&mut policy);
            Ok(Some(policy))
        }
        Err(_) => in_force(policies, path, defaults).await,
    }
}

/// The text of a file that is in force; `None` if there is none that this program reads.
async fn in_force(
    policies: &dyn Policies,
    path: &Path,
    defaults: &Arc<Defaults>,
) -> Result<Option<Policy>, StoreError> {
    let Some(kept) = policies.policy_in_force(&path.display().to_string()).await? else {
        return Ok(None);
    };
    let parsed = Policy::parse_with(&kept.policy.text, path, defaults).ok();
    Ok(parsed.map(|mut policy| {
        read_prompts(&mut policy);
        policy
    }))
}
