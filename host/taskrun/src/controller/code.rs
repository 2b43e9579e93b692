//! Code of agents that is loaded when a run wants it. Until it is there no run of the agent is taken,
//! so that runs which wait for a compiler hold no slots.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::watch;

use super::Controller;
use crate::agents::{Agent, AgentCode, CodeSource, LoadCode};

/// The time for which a failure to load counts: runs that come meanwhile fail with it, and later ones
/// have it tried again.
const FAILED_FOR: Duration = Duration::from_secs(10);

/// The code of each agent that is loaded on demand, as far as anybody wanted it.
pub(super) struct Codes {
    known: Mutex<BTreeMap<String, Standing>>,
    /// Counts the loads that came to their end.
    ended: watch::Sender<u64>,
}

#[derive(Clone)]
enum Standing {
    Loading,
    Ready(Arc<AgentCode>),
    /// It did not load, at this time of the monotonic clock.
    Failed(Arc<str>, Duration),
}

impl Codes {
    pub(super) fn new() -> Self {
        Self { known: Mutex::default(), ended: watch::Sender::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Standing>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees the loads that end from now on.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.ended.subscribe()
    }
}

impl Controller {
    /// The code of an agent, or why it does not load; `None` while that is not known.
    pub(super) fn code(&self, agent: &Agent) -> Option<Result<Arc<AgentCode>, Arc<str>>> {
        if let CodeSource::Loaded(code) = &agent.code {
            return Some(Ok(Arc::clone(code)));
        }
        match self.0.codes.lock().get(&agent.name)? {
            Standing::Ready(code) => Some(Ok(Arc::clone(code))),
            Standing::Failed(why, _) => Some(Err(Arc::clone(why))),
            Standing::Loading => None,
        }
    }

    /// Agents whose runs cannot be executed now, and are no failures either.
    pub(super) fn without_code(&self) -> BTreeSet<String> {
        self.without_code_in(&self.0.codes.lock())
    }

    fn without_code_in(&self, known: &BTreeMap<String, Standing>) -> BTreeSet<String> {
        let now = self.0.parts.clock.monotonic();
        let is_without = |agent: &&Arc<Agent>| match (&agent.code, known.get(&agent.name)) {
            (CodeSource::Loaded(_), _) | (_, Some(Standing::Ready(_))) => false,
            (_, Some(Standing::Failed(_, at))) => now.saturating_sub(*at) >= FAILED_FOR,
            (_, Some(Standing::Loading) | None) => true,
        };
        let agents = self.0.parts.agents.by_name.values();
        agents.filter(is_without).map(|agent| agent.name.clone()).collect()
    }

    /// Begins to load those of these agents that are to be had on demand and are not loaded yet.
    pub(super) fn load_code_of(&self, names: &BTreeSet<String>) {
        // Under one lock: what was loaded meanwhile is not taken away from a run that was claimed for it.
        let mut known = self.0.codes.lock();
        for name in self.without_code_in(&known).intersection(names) {
            let Some(agent) = self.0.parts.agents.by_name.get(name) else { continue };
            let CodeSource::OnDemand(source) = &agent.code else { continue };
            let before = known.insert(name.clone(), Standing::Loading);
            if !matches!(before, Some(Standing::Loading)) {
                let load = self.clone().load(Arc::clone(agent), Arc::clone(source));
                self.0.tasks.spawn(load);
            }
        }
    }

    async fn load(self, agent: Arc<Agent>, source: Arc<dyn LoadCode>) {
        let inner = &self.0;
        let loaded = tokio::select! {
            biased;
            () = inner.closing.cancelled() => None,
            loaded = AssertUnwindSafe(source.load()).catch_unwind() => Some(loaded),
        };
        // Runs that wait for a load which panicked would wait for ever.
        let panicked = |_| Err("internal error of the host; see its log".to_owned());
        let loaded = loaded.map(|loaded| loaded.unwrap_or_else(panicked));
        let standing = match loaded {
            None => None,
            Some(Ok(code)) if code.planner.digest() == agent.digest => {
                Some(Standing::Ready(Arc::new(code)))
            }
            Some(Ok(_)) => Some(self.failed("its component is another one than before".to_owned())),
            Some(Err(why)) => Some(self.failed(why)),
        };
        {
            let mut known = inner.codes.lock();
            match standing {
                Some(standing) => known.insert(agent.name.clone(), standing),
                None => known.remove(&agent.name),
            };
        }
        inner.codes.ended.send_modify(|ended| *ended += 1);
    }

    fn failed(&self, why: String) -> Standing {
        Standing::Failed(why.into(), self.0.parts.clock.monotonic())
    }

    /// The code of an agent, loaded if it is not there yet.
    ///
    /// # Errors
    /// Why it does not load.
    pub(super) async fn code_of(&self, agent: &Agent) -> Result<Arc<AgentCode>, Arc<str>> {
        let mut ended = self.0.codes.watch();
        let name = BTreeSet::from([agent.name.clone()]);
        loop {
            self.load_code_of(&name);
            if let Some(known) = self.code(agent) {
                return known;
            }
            if self.0.closing.is_cancelled() {
                return Err("the controller is closed".into());
            }
            // The sender lives as long as the controller.
            ended.changed().await.ok();
        }
    }
}
