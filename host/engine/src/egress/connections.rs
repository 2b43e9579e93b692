//! The connections that guests' exchanges have open: each takes a descriptor of the process, also
//! while it waits for the next request.
//!
//! There is a pool for all, of which a tenant has a part for each lane of its calls. An exchange that
//! finds none free waits a little: idle connections of its own tenant are closed meanwhile.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Parts of the pool, of which a tenant has one for each lane: there are two, so it has a quarter.
const PARTS: usize = 8;
/// Time for which a connection is kept for the next request; it is closed before twice as long.
const IDLE: Duration = Duration::from_secs(4);
/// Most connections to one server that are kept.
const IDLE_MAX: usize = 4;
/// Fewest connections of a part of which some are kept. Fewer would stand in the way of those to
/// other servers: whoever asks one server after the other would wait for the end of each.
const KEPT_PART_MIN: usize = 64;
/// Time for which an exchange waits for a connection of its own: longer than any is idle.
const WAIT: Duration = Duration::from_secs(10);

/// The pool. Clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct Connections {
    all: Arc<Semaphore>,
    part: usize,
    idle: Duration,
    wait: Duration,
}

/// The part of a tenant for one lane. Clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct ConnectionsPart {
    own: Arc<Semaphore>,
    pool: Connections,
}

/// A place for one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPlace {
    _of_part: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

/// The refusal of a connection: others are open, and go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the host has too many connections open at the moment")]
pub(crate) struct NoConnection;

impl Connections {
    /// A pool of so many connections.
    pub(crate) fn new(count: usize) -> Self {
        Self::with_times(count, IDLE, WAIT)
    }

    /// For clients whose addresses no guest chooses.
    pub(super) fn unbounded() -> Self {
        Self::new(Semaphore::MAX_PERMITS)
    }

    pub(super) fn with_times(count: usize, idle: Duration, wait: Duration) -> Self {
        let all = Arc::new(Semaphore::new(count));
        Self { all, part: (count / PARTS).max(1), idle, wait }
    }

    /// The time for which a connection is kept for the next request.
    pub(super) fn idle(&self) -> Duration {
        self.idle
    }

    /// Most connections to one server that are kept for the next request.
    pub(super) fn idle_max(&self) -> usize {
        if self.part < KEPT_PART_MIN { 0 } else { IDLE_MAX }
    }

    /// A part of it, for a tenant and a lane.
    pub(super) fn part(&self) -> ConnectionsPart {
        ConnectionsPart { own: Arc::new(Semaphore::new(self.part)), pool: self.clone() }
    }
}

impl ConnectionsPart {
    /// A place for one more connection.
    ///
    /// # Errors
    /// [`NoConnection`] if none is free in time.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue.
    pub(super) async fn take(&self) -> Result<ConnectionPlace, NoConnection> {
        let places = async {
            let of_part = Arc::clone(&self.own).acquire_owned().await.map_err(|_| NoConnection)?;
            let of_all = Arc::clone(&self.pool.all).acquire_owned().await;
            let of_all = of_all.map_err(|_| NoConnection)?;
            Ok(ConnectionPlace { _of_part: of_part, _of_all: of_all })
        };
        tokio::time::timeout(self.pool.wait, places).await.map_err(|_| NoConnection)?
    }
}
