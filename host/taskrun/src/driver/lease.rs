//! The lease of this host: while it is fresh things may begin, otherwise the host stands still.
//!
//! A host that could not write its heartbeat for most of its lease may soon be taken for dead. It
//! pauses then: it begins nothing, and keeps its guests, which are not executed. When it is heard
//! again it ends those of the runs that another host took meanwhile, and goes on with the others.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use taskrun_journal::ids::HostId;
use taskrun_journal::store::{Hosts, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::live::Live;
use super::stalls::{Stall, Stalls};
use super::stop::Stop;

/// Longest pause between two looks of a run that is about to begin something at the lease.
const LOOK_EVERY_MAX: Duration = Duration::from_millis(250);

/// The lease of this host, as its own clock sees it.
pub(crate) struct Lease {
    hosts: Arc<dyn Hosts>,
    host: HostId,
    length: Duration,
    stands: watch::Sender<bool>,
    /// The failure of the store after which this is no host any more.
    lost: OnceLock<StoreError>,
    over: CancellationToken,
}

impl Lease {
    pub(crate) fn new(hosts: Arc<dyn Hosts>, host: HostId, length: Duration) -> Self {
        Self {
            hosts,
            host,
            length,
            stands: watch::Sender::new(false),
            lost: OnceLock::new(),
            over: CancellationToken::new(),
        }
    }

    /// True while less than four fifths of it are over.
    pub(crate) fn is_fresh(&self) -> bool {
        let silence = self.hosts.silence(&self.host);
        silence.is_none_or(|silence| silence < self.nearly_over())
    }

    /// After so long a silence nothing begins: what is under way then stands still before another
    /// host may take the run.
    pub(crate) fn nearly_over(&self) -> Duration {
        self.length * 4 / 5
    }

    /// True if something may begin: the host was heard, and it is known which runs are still its own.
    pub(crate) fn may_begin(&self) -> bool {
        self.is_fresh() && !*self.stands.borrow()
    }

    /// The pause between two looks.
    pub(crate) fn look_every(&self) -> Duration {
        self.length / 20
    }

    /// Lets everything stand still; says whether it did not before.
    pub(crate) fn stand(&self) -> bool {
        !self.stands.send_replace(true)
    }

    /// Lets everything go on.
    pub(crate) fn go_on(&self) {
        self.stands.send_replace(false);
    }

    /// True while everything stands still.
    pub(crate) fn stands(&self) -> bool {
        *self.stands.borrow()
    }

    /// Waits until something may begin. Meanwhile the run stands still.
    ///
    /// # Errors
    /// [`Stop::Lease`] if the host gives the run up.
    pub(crate) async fn pass(&self, live: &Live, stalls: &Arc<Stalls>) -> Result<(), Stop> {
        let mut stall = None;
        let mut stands = self.stands.subscribe();
        loop {
            stands.borrow_and_update();
            if self.may_begin() {
                return Ok(());
            }
            if live.is_given_back() {
                return Err(Stop::Lease);
            }
            stall.get_or_insert_with(|| stalls.begin());
            tokio::select! {
                biased;
                () = live.given_back() => {}
                // The sender is here.
                _ = stands.changed() => {}
                // Real time, like that of the heartbeats.
                () = tokio::time::sleep(self.look_every().min(LOOK_EVERY_MAX)) => {}
            }
        }
    }

    /// Takes note of a failure of the store after which this host is none any more.
    pub(crate) fn note(&self, error: &StoreError) {
        if error.is_for_ever() {
            if self.lost.set(error.clone()).is_ok() {
                tracing::error!(%error, "nothing can be recorded any more");
            }
            self.over.cancel();
        }
    }

    /// Returns when such a failure was noted, and gives it.
    pub(crate) async fn over(&self) -> StoreError {
        self.over.cancelled().await;
        // It is set before.
        self.lost.get().cloned().unwrap_or(StoreError::Closed)
    }
}

/// The standstill of the calls of a run with their host. They do not stand still where the host gives
/// the run up: then they are to come to their end.
pub(crate) struct Standstill {
    live: Arc<Live>,
    stalls: Arc<Stalls>,
    stands: watch::Receiver<bool>,
    stall: Option<Stall>,
}

impl Standstill {
    pub(crate) fn new(lease: &Lease, live: &Arc<Live>, stalls: &Arc<Stalls>) -> Self {
        let (live, stalls) = (Arc::clone(live), Arc::clone(stalls));
        Self { live, stalls, stands: lease.stands.subscribe(), stall: None }
    }

    /// True if they stand still from this moment on.
    pub(crate) fn holds(&mut self) -> bool {
        let holds = *self.stands.borrow_and_update() && !self.live.is_given_back();
        self.stall = match (holds, self.stall.take()) {
            (true, stall) => Some(stall.unwrap_or_else(|| self.stalls.begin())),
            (false, _) => None,
        };
        holds
    }

    /// Returns when that may be otherwise.
    pub(crate) async fn changed(&mut self) {
        let holds = self.stall.is_some();
        tokio::select! {
            biased;
            () = self.live.given_back(), if holds => {}
            changed = self.stands.changed() => {
                if changed.is_err() {
                    // The host is gone, and with it whoever would say that.
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}
