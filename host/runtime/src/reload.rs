//! A policy file and the files that it names, as they change under a host.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use taskrun::agents::{Agent, Agents};
use taskrun::ports::deployments::{Deployments, PolicyChange, PolicyLook, Settling};
use tokio::time::Instant;

use crate::files_seen::{FilesSeen, UnsettledFiles};
use crate::in_force::InForceNote;
use crate::kept_store::KeepAgain;
use crate::loader::Loader;
use crate::loads::Loads;
use crate::origins::OriginPolicies;
use crate::policy_file::PolicyLoadError;
use crate::problem::chain;

/// Policies before the one in force of which agents are still kept: those of runs that were on their
/// way to be accepted when the policy was replaced.
const EARLIER_MAX: usize = 3;

/// The time after which what is kept of the policy in force counts as wanted again: often enough
/// that it is never as old as what is removed, unless the host stood still.
const RENEWED_EVERY: Duration = Duration::from_secs(10 * 60);

/// The pause before what could not be opened is read again, though it looks as it did: too many open
/// files, or an error of the disk, is over some time. Each further one is twice as long, so that what
/// stays as it is costs little and is seldom told.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(10);
const READ_AGAIN_AFTER_MAX: Duration = Duration::from_secs(10 * 60);

/// The agents of a policy file, as it is now and as it was.
pub(crate) struct PolicyWatch {
    loads: Arc<Loads>,
    note: Arc<InForceNote>,
    origins: OriginPolicies,
    state: Mutex<State>,
}

struct State {
    /// Of the policy in force.
    loader: Arc<Loader>,
    /// Of the policies before it, the last one first.
    earlier: VecDeque<Arc<Loader>>,
    /// The files of the policy in force, as they were when it was read.
    in_force: FilesSeen,
    /// The files as they were when they were read last: those of the policy in force, or of a later
    /// one that is wrong.
    looked_at: FilesSeen,
    /// When something of them could not be opened.
    unread_since: Option<Instant>,
    /// The time from then until it is read again.
    read_again_after: Duration,
    /// The files as the last look found them, if they were others.
    unsettled: UnsettledFiles,
    /// When what is kept of the policy in force counted as wanted last; `None` if it is to now.
    renewed_at: Option<Instant>,
}

impl State {
    /// Says that the files were read, and whether something of them could not be opened, once more.
    fn was_read(&mut self, is_unread: bool, again: bool) {
        self.read_again_after = match is_unread && again {
            true => self.read_again_after.saturating_mul(2).min(READ_AGAIN_AFTER_MAX),
            false => READ_AGAIN_AFTER,
        };
        self.unread_since = is_unread.then(Instant::now);
    }
}

impl PolicyWatch {
    /// Watches the policy of a loader, whose files were looked at before they were read.
    pub(crate) fn new(
        loader: Arc<Loader>,
        (loads, note): (Arc<Loads>, Arc<InForceNote>),
        origins: OriginPolicies,
        looked_at: FilesSeen,
    ) -> Self {
        let unread_since = loader.has_unread(&looked_at).then(Instant::now);
        let state = State {
            loader,
            earlier: VecDeque::new(),
            in_force: looked_at.clone(),
            looked_at,
            unread_since,
            read_again_after: READ_AGAIN_AFTER,
            unsettled: UnsettledFiles::default(),
            renewed_at: Some(Instant::now()),
        };
        Self { loads, note, origins, state: Mutex::new(state) }
    }

    /// The loader whose agents are to count as wanted again; `None` where they do.
    fn loader_to_renew(&self) -> Option<Arc<Loader>> {
        let mut state = self.state();
        let is_due = state.renewed_at.is_none_or(|at| at.elapsed() >= RENEWED_EVERY);
        is_due.then(|| {
            state.renewed_at = Some(Instant::now());
            Arc::clone(&state.loader)
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn loader(&self) -> Arc<Loader> {
        Arc::clone(&self.state().loader)
    }

    /// True if the files are to be read: somebody says so, they have been others than those that
    /// were read last for a while, or one of those could not be opened. `None` if they were others
    /// just now, and may be changed further.
    fn is_to_be_read(&self, found: &FilesSeen, settling: Settling) -> Option<bool> {
        let mut state = self.state();
        if settling == Settling::Told {
            return Some(true);
        }
        if state.looked_at == *found {
            state.unsettled.forget();
            return Some(
                state.unread_since.is_some_and(|at| at.elapsed() >= state.read_again_after),
            );
        }
        if settling == Settling::Over {
            return Some(true);
        }
        state.unsettled.have_settled(found).then_some(true)
    }

    /// Reads the policy and looks at its agents. All of it can be used, or none: but for agents that
    /// cannot be used themselves, which are left out.
    async fn read(&self, before: &Arc<Loader>, in_force: FilesSeen) -> Result<Reading, Unusable> {
        let (path, opened) = (before.policy().path.clone(), Arc::clone(before));
        let open = move || {
            let read = FilesSeen::load(&path, opened.policy().defaults());
            let (policy, files) = read.map_err(|error| Unusable {
                is_unread: matches!(error, PolicyLoadError::Read { .. }),
                why: chain(&error).join(": "),
            })?;
            let changed = files.changed_since(&in_force);
            let loader = opened.reopen(policy, &changed);
            let models = loader.other_models(&opened, &changed);
            Ok((Arc::new(loader), files, models))
        };
        let opened = tokio::task::spawn_blocking(open).await;
        let unread = || Unusable { why: "the host failed to read it".to_owned(), is_unread: true };
        let (loader, files, models) = opened.unwrap_or_else(|_| Err(unread()))?;
        let agents = loader.all_agents_on_demand(&self.loads, true).await;
        let agents =
            agents.map_err(|error| Unusable { why: chain(&error).join(": "), is_unread: false })?;
        Ok(Reading { loader, files, agents, models })
    }
}

/// A policy that was read and can be used.
struct Reading {
    loader: Arc<Loader>,
    /// Its files, each looked at before it was read.
    files: FilesSeen,
    agents: Agents,
    /// The names of the models that are others than those in force.
    models: Vec<String>,
}

/// Why a policy cannot be used.
struct Unusable {
    why: String,
    /// True if the file could not be opened, so that nothing is known of its text.
    is_unread: bool,
}

impl KeepAgain for PolicyWatch {
    fn keep_again(&self, pin: &str) -> bool {
        let state = self.state();
        let loaders: Vec<_> =
            std::iter::once(&state.loader).chain(&state.earlier).map(Arc::clone).collect();
        drop(state);
        loaders.into_iter().any(|loader| {
            loader.keep_again(pin).unwrap_or_else(|why| {
                tracing::warn!(pin, "it cannot be kept: {why}");
                false
            })
        })
    }
}

#[async_trait]
impl Deployments for PolicyWatch {
    async fn look(&self, settling: Settling) -> PolicyLook {
        let before = self.loader();
        if let Some(origins) = self.origins.look(&before, settling).await {
            return PolicyLook::OriginsChanged(origins);
        }
        let (looked_from, renewed) = (Arc::clone(&before), self.loader_to_renew());
        let look = move || {
            let is_renewed = match renewed.map(|loader| loader.renew()) {
                Some(Ok(is_renewed)) => is_renewed,
                Some(Err(error)) => {
                    let why = chain(&error).join(": ");
                    tracing::warn!("components in use may be removed: {why}");
                    true
                }
                None => true,
            };
            (FilesSeen::of(looked_from.policy()), is_renewed)
        };
        let found = tokio::task::spawn_blocking(look).await;
        // Where the look itself fails nothing is known to have changed.
        let Ok((found, is_renewed)) = found else { return PolicyLook::Same };
        if !is_renewed {
            // Some are being removed: the next look tries again.
            self.state().renewed_at = None;
        }
        match self.is_to_be_read(&found, settling) {
            Some(true) => {}
            Some(false) => return PolicyLook::Same,
            None => return PolicyLook::Unsettled,
        }
        // Of what was read under a policy that is wrong nothing is in force.
        let in_force = self.state().in_force.clone();
        let read = self.read(&before, in_force).await;
        if let Ok(reading) = &read {
            self.origins.apply(reading.loader.policy()).await;
        }
        let mut state = self.state();
        state.unsettled.forget();
        let is_read_again = state.looked_at == found && settling != Settling::Told;
        let Reading { loader, files, mut agents, models } = match read {
            Ok(reading) => reading,
            Err(Unusable { why, is_unread }) => {
                state.looked_at = found;
                state.was_read(is_unread, is_read_again);
                if !is_read_again {
                    self.note.refused(&why);
                    tracing::warn!("the policy has changed and cannot be used: {why}");
                }
                return PolicyLook::Same;
            }
        };
        state.was_read(loader.has_unread(&files), is_read_again);
        state.looked_at = files.clone();
        state.in_force = files;
        self.note.switched(&loader, &agents);
        if is_read_again && loader.is_like(&before) {
            return PolicyLook::Same;
        }
        agents.origins = self.origins.agents();
        state.loader = loader;
        before.give_up_workspaces();
        state.earlier.push_front(before);
        state.earlier.truncate(EARLIER_MAX);
        PolicyLook::Changed(PolicyChange { agents, models })
    }

    async fn pinned(&self, pin: &str) -> Result<Agent, String> {
        let pinned = self.loader().pinned(pin, Some(&self.origins), Some(&self.loads)).await;
        pinned.map_err(|failure| {
            // It is tried again every few seconds, for as long as a run waits.
            if self.loads.fail(pin, &failure) {
                tracing::warn!(pin, "runs that were accepted with it wait: {}", failure.reason);
            }
            failure.reason
        })
    }
}
