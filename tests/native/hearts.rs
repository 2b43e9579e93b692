//! A list of hosts whose hearts stand still when the test says so.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::run::Run;
use taskrun_journal::store::{Host, Hosts, PresentHost, Stay, StoreError};
use taskrun_journal::time::Timestamp;
use tokio::sync::watch;

/// The list that it wraps, with silences of its own.
pub struct Hearts {
    inner: Arc<dyn Hosts>,
    silent: Mutex<BTreeMap<HostId, Duration>>,
    /// Registrations that are still to fail.
    refusals: AtomicU32,
    /// True while registrations wait.
    held: watch::Sender<bool>,
    /// Looks that found a run.
    looks: watch::Sender<u64>,
}

impl Hearts {
    /// All hearts beat.
    #[must_use]
    pub fn new(inner: Arc<dyn Hosts>) -> Self {
        let looks = watch::Sender::new(0);
        Self {
            inner,
            silent: Mutex::default(),
            refusals: AtomicU32::new(0),
            held: watch::Sender::new(false),
            looks,
        }
    }

    /// Returns when it was asked so often what a host holds, and it held something.
    pub async fn holds(&self, looks: u64) {
        let mut found = self.looks.subscribe();
        found.wait_for(|found| *found >= looks).await.expect("the sender is here");
    }

    /// Registrations wait until it is said otherwise.
    pub fn hold_registrations(&self, held: bool) {
        self.held.send_replace(held);
    }

    /// So many registrations fail from now on.
    pub fn refuse(&self, registrations: u32) {
        self.refusals.store(registrations, Ordering::SeqCst);
    }

    /// The heart of a host was last heard so long ago, until something else is said.
    pub fn silence_of(&self, host: &HostId, silence: Duration) {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.insert(host.clone(), silence);
    }
}

#[async_trait]
impl Hosts for Hearts {
    async fn register(&self, host: Host) -> Result<(), StoreError> {
        let mut held = self.held.subscribe();
        held.wait_for(|held| !held).await.expect("the sender is here");
        let fewer = |left: u32| left.checked_sub(1);
        if self.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok() {
            return Err(StoreError::Locked { path: "hosts".to_owned() });
        }
        self.inner.register(host).await
    }

    async fn is_needed(&self, host: &HostId, stay: Stay) -> Result<bool, StoreError> {
        self.inner.is_needed(host, stay).await
    }

    async fn retire(&self, host: &HostId, stay: Stay) -> Result<bool, StoreError> {
        self.inner.retire(host, stay).await
    }

    async fn hosts(&self) -> Result<Vec<Host>, StoreError> {
        self.inner.hosts().await
    }

    async fn present_hosts(&self) -> Result<Vec<PresentHost>, StoreError> {
        self.inner.present_hosts().await
    }

    async fn orphans(&self, limit: usize) -> Result<Vec<Run>, StoreError> {
        self.inner.orphans(limit).await
    }

    async fn heard(&self, host: &HostId) -> Result<Option<Timestamp>, StoreError> {
        self.inner.heard(host).await
    }

    async fn held(
        &self,
        host: &HostId,
        after: Option<&RunId>,
        limit: usize,
    ) -> Result<Vec<Run>, StoreError> {
        let held = self.inner.held(host, after, limit).await;
        let has_found = held.as_ref().is_ok_and(|held| !held.is_empty());
        self.looks.send_modify(|looks| *looks += u64::from(has_found));
        held
    }

    fn silence(&self, host: &HostId) -> Option<Duration> {
        let silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.get(host).copied().or_else(|| self.inner.silence(host))
    }

    fn abandon(&self, host: &HostId) {
        self.inner.abandon(host);
    }
}
