//! The policy as it changes under a controller that executes.

use std::panic::resume_unwind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use taskrun_journal::pin::agent_of;
use tokio::time::Instant;

use super::Controller;
use crate::agents::{Agents, Origins};
use crate::driver::Live;
use crate::ports::deployments::{
    Deployments, PolicyChange, PolicyLook, Settling, UNSETTLED_AT_MOST, UNSETTLED_PAUSE,
};

/// The pause between two looks at the policy where nothing begins.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The time after such a wait in which nobody waits for the policy.
const UNSETTLED_FOR: Duration = Duration::from_secs(10);
/// Shortest time between two looks where runs begin: a look at a hundred files costs a hundredth of
/// it.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_millis(10);

impl Controller {
    /// Looks at the policy and takes it up as it is, if it has changed: somebody says that the change
    /// is complete. One with a mistake changes nothing, and the log says what is wrong with it. Without
    /// [`Deployments`] nothing happens.
    ///
    /// # Cancel safety
    /// A change that was found is taken up whether or not it is waited for.
    pub async fn reload(&self) {
        self.look_at_policy(Settling::Told).await;
    }

    /// Looks at the policy from time to time, until the controller is closed.
    pub(super) async fn reload_loop(self) {
        loop {
            // Real time: files are changed in it.
            tokio::select! {
                biased;
                () = self.0.closing.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            self.settle_policy().await;
        }
    }

    /// Looks at the policy before runs are accepted or begin, so that none is so under one that is no
    /// more in force; waits for one that is just being written, but not for long.
    pub(super) async fn settle_policy(&self) {
        if self.0.parts.deployments.is_none() {
            return;
        }
        let since = |looked: Instant| looked.elapsed() < LOOK_AT_MOST_EVERY;
        if self.0.looked_at.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(since) {
            return;
        }
        let began = Instant::now();
        loop {
            let is_settled = tokio::select! {
                biased;
                () = self.0.closing.cancelled() => return,
                is_settled = self.look_at_policy(Settling::Awaited) => is_settled,
            };
            if is_settled {
                return;
            }
            if began.elapsed() >= UNSETTLED_AT_MOST {
                tracing::warn!("files of the policy keep changing; the one before stays in force");
                // A time to come: until then nobody waits for it again.
                let later = Instant::now() + UNSETTLED_FOR;
                *self.0.looked_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(later);
                return;
            }
            tokio::select! {
                biased;
                () = self.0.closing.cancelled() => return,
                () = tokio::time::sleep(UNSETTLED_PAUSE) => {}
            }
        }
    }

    /// Takes up the policy as it is now, if it has changed. False if it is just being changed.
    ///
    /// # Cancel safety
    /// That of [`Self::reload`].
    pub(super) async fn look_at_policy(&self, settling: Settling) -> bool {
        let Some(deployments) = self.0.parts.deployments.clone() else { return true };
        let look = self.clone().take_up_policy(deployments, settling);
        // A change is told once. Who asks may be a guest's call, which ends when it is stopped.
        let look = match self.0.home.get() {
            Some(home) => self.0.tasks.spawn_on(look, home),
            None => self.0.tasks.spawn(look),
        };
        match look.await {
            Ok(is_settled) => is_settled,
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            // The runtime ends.
            Err(_) => true,
        }
    }

    async fn take_up_policy(self, deployments: Arc<dyn Deployments>, settling: Settling) -> bool {
        let _alone = self.0.reloading.lock().await;
        let began = Instant::now();
        loop {
            match deployments.look(settling).await {
                PolicyLook::Same => break,
                PolicyLook::Unsettled => return false,
                PolicyLook::Changed(change) => {
                    self.switch(change).await;
                    break;
                }
                PolicyLook::OriginsChanged(origins) => self.switch_origins(origins).await,
            }
        }
        *self.0.looked_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(began);
        true
    }

    /// Puts the agents of another policy in the place of those before. Runs under way whose agents,
    /// or those above them, are others now have their rules for every decision from now on, and go
    /// on with all of them from the next point at which nothing has to be done again.
    async fn switch(&self, change: PolicyChange) {
        let PolicyChange { agents, models } = change;
        let concerns_all = !models.is_empty();
        let (before, now) = (self.agents(), Arc::new(agents));
        // Code has them in its tools, whatever its pin. Runs under way go on with those of before.
        let same_words = before.descriptions == now.descriptions;
        let forms = |pin: &str| {
            let name = agent_of(pin);
            before.by_name.get(name).zip(now.by_name.get(name))
        };
        let is_as_before =
            |pin: &str| forms(pin).is_some_and(|(before, now)| before.pin == now.pin);
        let is_same = |live: &Live| {
            let own = live.pins().own();
            let run = (own, live.is_autonomous());
            let binds = forms(own).is_some_and(|(before, now)| now.binds_run_like(before, run));
            // What is in no pin is asked of the run's own agent only.
            !concerns_all && binds && live.pins().all().all(is_as_before)
        };
        let is_kept = |pin: &str| same_words && !concerns_all && now.with_pin(pin).is_some();
        self.put_in_force(&now, is_kept, is_same).await;
        tell(&before, &now, &models);
        self.list_as_it_is().await;
        self.begin_beating();
        self.begin_dispatching();
    }

    /// Has the list of hosts show this one as it is now, or notes that it does not.
    async fn list_as_it_is(&self) {
        let listed = self.register().await;
        self.0.is_listed_as_before.store(listed.is_err(), Ordering::Release);
        if let Err(error) = listed {
            tracing::warn!(%error, "the list of hosts has the agents of the policy before");
        }
    }

    /// Tries again what failed as the policy changed, unless it is changing again.
    pub(super) async fn list_again(&self) {
        if self.0.is_listed_as_before.load(Ordering::Acquire)
            && let Ok(_alone) = self.0.reloading.try_lock()
        {
            self.list_as_it_is().await;
        }
    }

    /// The same with what other files give now: it concerns the runs that were not accepted with an
    /// agent as the policy of this host has it.
    async fn switch_origins(&self, origins: Origins) {
        let now = Arc::new(Agents { origins, ..(*self.agents()).clone() });
        let is_own = |pin: &str| now.with_pin(pin).is_some();
        let is_same = |live: &Live| live.pins().all().all(is_own);
        self.put_in_force(&now, is_own, is_same).await;
    }

    /// Puts agents in the place of those before, but for what is known of those with the pins that
    /// `is_kept`, and hands over the runs under way that are not the same.
    async fn put_in_force(
        &self,
        now: &Arc<Agents>,
        is_kept: impl Fn(&str) -> bool,
        is_same: impl Fn(&Live) -> bool,
    ) {
        let inner = &self.0;
        // No run is claimed under the agents of before once those of now are in force.
        let claiming = inner.claiming.write().await;
        *inner.agents.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(now);
        inner.codes.forget_all_but(is_kept);
        drop(claiming);
        self.each_live(|live| {
            if !is_same(live) {
                live.take_up(now);
                live.hand_over();
            }
        });
    }
}

fn tell(before: &Agents, now: &Agents, models: &[String]) {
    let changed = |name: &&String| {
        let forms = (before.by_name.get(*name), now.by_name.get(*name));
        matches!(forms, (Some(before), Some(now)) if !now.binds_like(before))
    };
    let list = |names: Vec<&String>| {
        let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
        names.join(",")
    };
    // What waits for one of them is told to nobody.
    let (told, tells) = (before.subscribers.names(), now.subscribers.names());
    tracing::info!(
        policy = &*now.policy,
        changed = list(now.by_name.keys().filter(changed).collect()),
        added = list(now.names().filter(|name| !before.has(name)).collect()),
        gone = list(before.names().filter(|name| !now.has(name)).collect()),
        models = list(models.iter().collect()),
        subscribers_gone = list(told.difference(&tells).collect()),
        "the policy is in force"
    );
}
