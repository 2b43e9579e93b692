//! The port of hosts.

use std::ops::Bound;
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::run::Run;
use taskrun_journal::store::{Host, Hosts, PresentHost, Stay, StoreError};
use taskrun_journal::time::Timestamp;

use super::MemoryStore;

#[async_trait]
impl Hosts for MemoryStore {
    async fn register(&self, host: Host) -> Result<(), StoreError> {
        self.lock().hosts.insert(host.id.clone(), host);
        Ok(())
    }

    async fn retire(&self, host: &HostId, stay: Stay) -> Result<bool, StoreError> {
        let mut state = self.lock();
        let out = !state.is_needed(host, &stay);
        if out {
            state.hosts.remove(host);
        }
        Ok(out)
    }

    async fn is_needed(&self, host: &HostId, stay: Stay) -> Result<bool, StoreError> {
        Ok(self.lock().is_needed(host, &stay))
    }

    async fn hosts(&self) -> Result<Vec<Host>, StoreError> {
        let state = self.lock();
        Ok(state.hosts.values().filter(|host| !host.is_leaving()).cloned().collect())
    }

    async fn present_hosts(&self) -> Result<Vec<PresentHost>, StoreError> {
        let present = |host| PresentHost { host, silence: None };
        Ok(self.lock().hosts.values().cloned().map(present).collect())
    }

    async fn orphans(&self, limit: usize) -> Result<Vec<Run>, StoreError> {
        let state = self.lock();
        let lost = state.held.iter().filter(|(host, _)| !state.hosts.contains_key(host));
        let runs = lost.flat_map(|(_, ids)| ids).filter_map(|id| state.runs.get(id));
        Ok(runs.take(limit).map(|entry| entry.run.clone()).collect())
    }

    /// Never known: there is no heart here.
    async fn heard(&self, _host: &HostId) -> Result<Option<Timestamp>, StoreError> {
        Ok(None)
    }

    async fn held(
        &self,
        host: &HostId,
        after: Option<&RunId>,
        limit: usize,
    ) -> Result<Vec<Run>, StoreError> {
        let state = self.lock();
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.clone()));
        let held = state.held.get(host).into_iter();
        let ids = held.flat_map(|held| held.range((from.clone(), Bound::Unbounded)));
        let runs = ids.filter_map(|id| state.runs.get(id));
        Ok(runs.take(limit).map(|entry| entry.run.clone()).collect())
    }

    fn silence(&self, host: &HostId) -> Option<Duration> {
        self.lock().hosts.contains_key(host).then_some(Duration::ZERO)
    }

    fn abandon(&self, host: &HostId) {
        self.forget(host);
    }
}
