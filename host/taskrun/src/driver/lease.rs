//! Whether this host may still begin something.

use std::sync::Arc;
use std::time::Duration;

use crate::ids::HostId;
use crate::ports::store::Hosts;

/// The lease of this host, as its own clock sees it.
pub(crate) struct Lease {
    hosts: Arc<dyn Hosts>,
    host: HostId,
    length: Duration,
}

impl Lease {
    pub(crate) fn new(hosts: Arc<dyn Hosts>, host: HostId, length: Duration) -> Self {
        Self { hosts, host, length }
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
}
