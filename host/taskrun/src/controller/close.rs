//! The end of a controller.

use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::ids::RunId;
use taskrun_journal::stop::StopCause;
use taskrun_journal::store::Stay;

use super::Controller;
use crate::driver::Live;
use crate::error::ControllerError;

/// The time for which [`Controller::close`] and [`Controller::hand_over`] wait for runs unless told
/// otherwise.
pub const DRAIN_DEFAULT: Duration = Duration::from_secs(10);
/// The time that a guest may take to be gone that was forced to stop.
const FORCED: Duration = Duration::from_secs(2);

/// The end of a controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloseOutcome {
    /// Runs that had not stopped in time; they stay what they are until another process finds
    /// them.
    pub stragglers: Vec<RunId>,
}

impl Controller {
    /// True if this host has work, or runs wait for it that are wanted at once or within `release`.
    /// Nothing is written to find that out.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn is_needed(&self, release: Duration) -> Result<bool, ControllerError> {
        if !self.live().is_empty() {
            return Ok(true);
        }
        Ok(self.0.parts.hosts.is_needed(&self.0.host, self.stay(release)).await?)
    }

    fn stay(&self, release: Duration) -> Stay {
        let until = self.0.parts.clock.now().plus(release);
        Stay { without: self.stuck(), until: Some(until) }
    }

    /// Takes this host out of the list, unless it is needed ([`Self::is_needed`]); then it executes
    /// nothing more. Says whether it is out.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn retire(&self, release: Duration) -> Result<bool, ControllerError> {
        let _no_claims = self.0.claiming.write().await;
        if !self.live().is_empty() {
            return Ok(false);
        }
        let out = self.0.parts.hosts.retire(&self.0.host, self.stay(release)).await?;
        if out {
            self.give_work_up();
        }
        Ok(out)
    }

    /// Begins nothing more, and keeps no run. In this order: a run that was claimed just before is
    /// driven on another thread, and canceled by a host that ends and gives nothing back.
    pub(super) fn give_work_up(&self) {
        self.0.draining.cancel();
        self.0.closing.cancel();
    }

    /// Accepts and begins nothing more, cancels what runs here, and waits at most `drain` for
    /// that to end. Calling it again waits again.
    pub async fn close(&self, drain: Duration) -> CloseOutcome {
        let is_first = !self.0.closing.is_cancelled();
        self.0.closing.cancel();
        self.0.tasks.close();
        self.each_live(|live| live.stop(StopCause::Shutdown));
        let end = async {
            if !self.drained(drain).await {
                self.each_live(Live::force);
                self.drained(FORCED).await;
            }
        };
        self.listed_as_leaving(is_first, end).await;
        self.leave().await
    }

    /// Accepts and begins nothing more, and gives the runs that are executed here back, so that
    /// they are continued by another process or when one is started. For at most `drain` each run
    /// may come to the next point at which nothing has to be done again; then its guests are
    /// stopped.
    pub async fn hand_over(&self, drain: Duration) -> CloseOutcome {
        let is_first = !self.0.closing.is_cancelled();
        self.give_work_up();
        self.0.tasks.close();
        let end = async {
            if !self.drained(drain).await {
                self.each_live(|live| live.stop(StopCause::HandOver));
                self.each_live(Live::force);
                self.drained(FORCED).await;
            }
        };
        self.listed_as_leaving(is_first, end).await;
        self.leave().await
    }

    /// Waits for the end of what is executed here. Meanwhile, if this is the first time, the list
    /// of hosts shows this one as leaving, so that another one is started for what is accepted. The
    /// end does not wait for a store that cannot be written.
    async fn listed_as_leaving(&self, is_first: bool, end: impl Future<Output = ()>) {
        let listed = async {
            if is_first
                && self.0.registered.initialized()
                && let Err(error) = self.register().await
            {
                tracing::warn!(%error, "the list of hosts does not show that this one leaves");
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = listed => {}
            () = end => {}
        }
    }

    /// Waits until nothing is executed here any more; says whether that came to be.
    async fn drained(&self, time: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.0.tasks.wait() => true,
            // Guests come to their end in it, whatever clock their runs see.
            () = self.0.parts.machine.sleep(time) => false,
        }
    }

    pub(super) fn each_live(&self, act: impl Fn(&Live)) {
        let live: Vec<Arc<Live>> = self.live().values().cloned().collect();
        live.iter().for_each(|live| act(live));
    }

    async fn leave(&self) -> CloseOutcome {
        let stay = Stay { without: self.stuck(), until: None };
        if let Err(error) = self.0.parts.hosts.retire(&self.0.host, stay).await {
            tracing::warn!(%error, "this host could not be taken out of the list");
        }
        CloseOutcome { stragglers: self.live().keys().cloned().collect() }
    }
}
