//! Whether this host may still begin something.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::ids::HostId;
use crate::ports::store::{Hosts, StoreError};

/// The lease of this host, as its own clock sees it.
pub(crate) struct Lease {
    hosts: Arc<dyn Hosts>,
    host: HostId,
    length: Duration,
    /// The store that was replaced under this host, after which it is none.
    replaced: OnceLock<String>,
    over: CancellationToken,
}

impl Lease {
    pub(crate) fn new(hosts: Arc<dyn Hosts>, host: HostId, length: Duration) -> Self {
        let (replaced, over) = (OnceLock::new(), CancellationToken::new());
        Self { hosts, host, length, replaced, over }
    }

    /// Whether less than four fifths of it are over. After that nothing begins, and what is under
    /// way is stopped, so that it is gone when another host may take the run.
    pub(crate) fn is_fresh(&self) -> bool {
        self.hosts.silence(&self.host).is_none_or(|silence| silence < self.length * 4 / 5)
    }

    /// How often to look.
    pub(crate) fn look_every(&self) -> Duration {
        self.length / 20
    }

    /// Takes note of a failure of the store after which this host is none any more.
    pub(crate) fn note(&self, error: &StoreError) {
        if let StoreError::Replaced { path } = error {
            if self.replaced.set(path.clone()).is_ok() {
                tracing::error!(path, "the store was removed or replaced; nothing can be recorded");
            }
            self.over.cancel();
        }
    }

    /// Returns when such a failure was noted, and gives it.
    pub(crate) async fn over(&self) -> StoreError {
        self.over.cancelled().await;
        StoreError::Replaced { path: self.replaced.get().cloned().unwrap_or_default() }
    }
}
