//! A host that looks for work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use taskrun_journal::layer::Layer;
use taskrun_journal::store::{Claim, Prospect, Store, StoreError};
use tokio::sync::Notify;

/// A store that counts how often a host looked for work, which one that has none does once a second of
/// real time.
pub struct Looks {
    inner: Arc<dyn Store>,
    count: AtomicU64,
    looked: Notify,
}

impl Looks {
    /// One over another store.
    #[must_use]
    pub fn of(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner, count: AtomicU64::new(0), looked: Notify::new() })
    }

    /// Returns when a host has looked some times more.
    pub async fn more(&self, times: u64) {
        let enough = self.count.load(Ordering::SeqCst) + times;
        while self.count.load(Ordering::SeqCst) < enough {
            self.looked.notified().await;
        }
    }
}

#[async_trait]
impl Layer for Looks {
    fn behind(&self) -> &dyn Store {
        &*self.inner
    }

    async fn prospect(&self, claim: &Claim) -> Result<Prospect, StoreError> {
        let prospect = self.inner.prospect(claim).await;
        self.count.fetch_add(1, Ordering::SeqCst);
        self.looked.notify_one();
        prospect
    }
}
