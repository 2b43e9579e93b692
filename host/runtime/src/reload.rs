//! A policy file and the files that it names, as they change under a host.

use std::collections::{BTreeSet, VecDeque};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use taskrun::agents::{Agent, Agents};
use taskrun::ports::deployments::{Deployments, PolicyChange, PolicyLook};
use taskrun_policy::Policy;

use tokio::time::Instant;

use crate::in_force::InForceNote;
use crate::kept_store::KeepAgain;
use crate::loader::Loader;
use crate::loads::Loads;
use crate::policy_file::load_policy;
use crate::problem::chain;

/// The time for which a change has to stand before it is read: editors write in pieces.
const SETTLED_AFTER: Duration = Duration::from_millis(300);

/// Policies before the one in force of which agents are still kept: those of runs that were on their
/// way to be accepted when the policy was replaced.
const EARLIER_MAX: usize = 3;

/// The time after which what is kept of the policy in force counts as wanted again: often enough
/// that it is never as old as what is removed, unless the host stood still.
const RENEWED_EVERY: Duration = Duration::from_secs(10 * 60);

/// The agents of a policy file, as it is now and as it was.
pub(crate) struct PolicyWatch {
    loads: Arc<Loads>,
    note: Arc<InForceNote>,
    state: Mutex<State>,
}

struct State {
    /// Of the policy in force.
    loader: Arc<Loader>,
    /// Of the policies before it, the last one first.
    earlier: VecDeque<Arc<Loader>>,
    /// The files of the policy in force, or of the last one that is wrong.
    looked_at: FilesSeen,
    /// The files as the last look found them, if they were others, and since when.
    seen: Option<(FilesSeen, Instant)>,
    /// When what is kept of the policy in force counted as wanted last; `None` if it is to now.
    renewed_at: Option<Instant>,
}

/// The files of a policy by device, inode, size and times, and the folders of its agents by device
/// and inode: where these are as they were, nothing was written that matters.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct FilesSeen(Vec<(PathBuf, Option<[i128; 5]>)>);

impl FilesSeen {
    /// Looks at the files of a policy, those of its prompts, components and models among them.
    pub(crate) fn of(policy: &Policy) -> Self {
        let look = |path: &Path| (path.to_owned(), path.metadata().ok().map(|meta| known(&meta)));
        let named = policy.files_read().map(look);
        let folders: BTreeSet<&Path> =
            policy.agents.values().map(|agent| agent.workspace.as_path()).collect();
        let folders = folders.into_iter().map(|path| (path.to_owned(), folder(path)));
        Self(std::iter::once(look(&policy.path)).chain(named).chain(folders).collect())
    }
}

/// A folder, whose size and times change with what is in it.
fn folder(path: &Path) -> Option<[i128; 5]> {
    let meta = path.metadata().ok().filter(Metadata::is_dir)?;
    Some([i128::from(meta.dev()), i128::from(meta.ino()), 0, 0, 0])
}

fn known(meta: &Metadata) -> [i128; 5] {
    let nanos = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    [
        i128::from(meta.dev()),
        i128::from(meta.ino()),
        i128::from(meta.size()),
        nanos(meta.mtime(), meta.mtime_nsec()),
        nanos(meta.ctime(), meta.ctime_nsec()),
    ]
}

impl PolicyWatch {
    /// Watches the policy of a loader, whose files were looked at before they were read.
    pub(crate) fn new(
        loader: Arc<Loader>,
        (loads, note): (Arc<Loads>, Arc<InForceNote>),
        looked_at: FilesSeen,
    ) -> Self {
        let (seen, earlier, renewed_at) = (None, VecDeque::new(), Some(Instant::now()));
        let state = State { loader, earlier, looked_at, seen, renewed_at };
        Self { loads, note, state: Mutex::new(state) }
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

    /// Whether the files are others than those that were read last: true if so and either `at_once`
    /// or for a while, `None` if it may go on.
    fn have_changed(&self, found: &FilesSeen, at_once: bool) -> Option<bool> {
        let mut state = self.state();
        if state.looked_at == *found {
            state.seen = None;
            return Some(false);
        }
        if at_once {
            return Some(true);
        }
        match &state.seen {
            Some((before, since)) if before == found => {
                (since.elapsed() >= SETTLED_AFTER).then_some(true)
            }
            Some(_) | None => {
                state.seen = Some((found.clone(), Instant::now()));
                None
            }
        }
    }

    /// Reads the policy and looks at its agents. All of it can be used, or none: but for agents that
    /// cannot be used themselves, which are left out.
    async fn read(
        &self,
        before: &Arc<Loader>,
        changed: Vec<PathBuf>,
    ) -> Result<(Arc<Loader>, Agents), String> {
        let (path, opened) = (before.policy().path.clone(), Arc::clone(before));
        let open = move || {
            let policy = load_policy(&path).map_err(|error| chain(&error).join(": "))?;
            Ok(opened.reopen(policy, &changed))
        };
        let loader = tokio::task::spawn_blocking(open).await;
        let loader = loader.unwrap_or_else(|_| Err("the host failed to read it".to_owned()))?;
        let loader = Arc::new(loader);
        let agents = loader.all_agents_on_demand(&self.loads, true).await;
        Ok((loader, agents.map_err(|error| chain(&error).join(": "))?))
    }
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
    async fn look(&self, at_once: bool) -> PolicyLook {
        let before = self.loader();
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
        match self.have_changed(&found, at_once) {
            Some(true) => {}
            Some(false) => return PolicyLook::Same,
            None => return PolicyLook::Unsettled,
        }
        let changed = found.changed_since(&self.state().looked_at);
        let read = self.read(&before, changed.clone()).await;
        let mut state = self.state();
        state.seen = None;
        match read {
            Ok((loader, agents)) => {
                let concerns_all = loader.has_other_models(&before, &changed);
                // Other files may be named now. One that was written while it was read is found by
                // the next look.
                state.looked_at = found.with_those_of(loader.policy());
                self.note.switched(loader.policy());
                state.loader = loader;
                state.earlier.push_front(before);
                state.earlier.truncate(EARLIER_MAX);
                PolicyLook::Changed(PolicyChange { agents, concerns_all })
            }
            Err(why) => {
                state.looked_at = found;
                self.note.refused(&why);
                tracing::warn!("the policy has changed and cannot be used: {why}");
                PolicyLook::Same
            }
        }
    }

    async fn pinned(&self, pin: &str) -> Result<Agent, String> {
        let pinned = self.loader().pinned(pin, Some(&self.loads)).await;
        pinned.inspect_err(|why| {
            tracing::warn!(pin, "runs that were accepted with it wait: {why}");
            self.loads.fail(pin, why);
        })
    }
}

impl FilesSeen {
    /// Those that are not as they were.
    fn changed_since(&self, before: &Self) -> Vec<PathBuf> {
        let changed = self.0.iter().filter(|one| !before.0.contains(one));
        changed.map(|(path, _)| path.clone()).collect()
    }

    /// The files of a policy that was read since: those that were looked at before as they were
    /// then.
    fn with_those_of(&self, policy: &Policy) -> Self {
        let before = |path: &Path| self.0.iter().find(|(known, _)| known == path).cloned();
        let Self(now) = Self::of(policy);
        Self(now.into_iter().map(|one| before(&one.0).unwrap_or(one)).collect())
    }
}

#[cfg(test)]
mod tests {
    use taskrun::clock::SystemClock;
    use taskrun_store::Blobs;

    use super::*;
    use crate::loader::LoaderOptions;
    use crate::snapshot;

    fn policy(folder: &Path, tool_calls: usize) -> Policy {
        let path = folder.join("taskrun.toml");
        let text = format!(
            "[agent.worker]\ncomponent = \"worker.wasm\"\nlimits = {{ tool_calls = {tool_calls} }}\n"
        );
        std::fs::write(&path, text).expect("written");
        load_policy(&path).expect("a policy")
    }

    #[tokio::test]
    async fn a_run_that_is_accepted_while_the_policy_is_replaced_finds_its_agent_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("worker.wasm"), b"no component").expect("written");
        let first = policy(folder.path(), 1);
        let looked_at = FilesSeen::of(&first);
        let data = folder.path().join("data");
        std::fs::create_dir(&data).expect("made");
        let options = LoaderOptions { keeps: true, ..LoaderOptions::of_data_dir(&data) };
        let loader = Arc::new(Loader::open(first, options).expect("opens"));
        let pin = loader.pin(&loader.policy().agents["worker"]).expect("it is there");
        let loads = Arc::new(Loads::new(folder.path(), Arc::new(SystemClock::new())));
        let clock = Arc::new(SystemClock::new());
        let note = Arc::new(InForceNote::new(&data, loader.policy(), clock));
        let watch = PolicyWatch::new(loader, (loads, note), looked_at);
        let blobs = Blobs::existing(&data);
        for tool_calls in 2..=1 + EARLIER_MAX {
            policy(folder.path(), tool_calls);
            assert!(matches!(watch.look(true).await, PolicyLook::Changed(_)));
        }
        assert!(!snapshot::is_there(&blobs, &pin).expect("looked"), "nobody has asked for it");
        assert!(watch.keep_again(&pin));
        assert!(snapshot::is_there(&blobs, &pin).expect("looked"));
        policy(folder.path(), 100);
        watch.look(true).await;
        policy(folder.path(), 101);
        watch.look(true).await;
        assert!(!watch.keep_again(&pin), "policies of long before are let go");
    }
}
