//! Models that are not to be asked before a time, and the steps that are put off for that.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskrun_journal::completion::ModelError;
use taskrun_journal::message::Usage;
use taskrun_journal::stop::StopCause;
use taskrun_journal::time::{Clock, millis};

use super::CallScope;
use super::model::ChosenModel;

/// The longest wait for a model through which a step keeps its instance and its run its slot. A
/// step that runs again costs an instance and a look at its journal, which pays after about this.
const WAIT_IN_PLACE_MAX: Duration = Duration::from_secs(60);

/// Most models that are held at once, each for a tenant; beyond that the oldest holds are
/// forgotten, and a model is asked that says again when it wants to be.
const HELD_MODELS_MAX: usize = 10_000;

/// A model that is not to be asked for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PushBack {
    /// Its name in the policy.
    pub model: String,
    /// The time for which it is not to be asked from now on.
    pub wait: Duration,
    /// Why it may not before, in words.
    pub reason: String,
    /// The provider's words about it, which are for operators.
    pub said: Option<String>,
}

/// The models that are not to be asked, by the tenants whose runs asked them too often. They are
/// not kept on disk: after the death of a host each is asked once more.
pub(crate) struct HeldModels {
    /// The clock of the host, as that of a run stands still at times. Its monotonic count alone is
    /// used: a wait is as long as it was asked for, whatever is done to the time of day.
    clock: Arc<dyn Clock>,
    /// By tenant and model.
    held: Mutex<BTreeMap<(String, String), HeldModel>>,
}

/// The hold of one model.
struct HeldModel {
    until: Duration,
    reason: String,
    said: Option<String>,
}

impl fmt::Debug for HeldModels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldModels").finish_non_exhaustive()
    }
}

impl HeldModels {
    /// Holds none.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, held: Mutex::default() }
    }

    /// Keeps the runs of a tenant from asking a model before its time.
    fn hold(&self, tenant: &str, back: PushBack) {
        let now = self.clock.monotonic();
        let PushBack { model, wait, reason, said } = back;
        let held = HeldModel { until: now.saturating_add(wait), reason, said };
        let mut all = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, held| held.until > now);
        let key = (tenant.to_owned(), model);
        if all.get(&key).is_some_and(|known| known.until >= held.until) {
            return;
        }
        all.insert(key, held);
        while all.len() > HELD_MODELS_MAX {
            let first = all.iter().min_by_key(|(_, held)| held.until).map(|(key, _)| key.clone());
            let Some(first) = first else { return };
            all.remove(&first);
        }
    }

    /// The reason for which a run of a tenant may not ask a model, and the rest of the wait.
    fn held(&self, tenant: &str, model: &str) -> Option<PushBack> {
        let all = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let held = all.get(&(tenant.to_owned(), model.to_owned()))?;
        let wait = held.until.saturating_sub(self.clock.monotonic());
        let back = || PushBack {
            model: model.to_owned(),
            wait,
            reason: held.reason.clone(),
            said: held.said.clone(),
        };
        (!wait.is_zero()).then(back)
    }
}

/// Room for waits in which a step is put off, of a run that can be: it runs again on its tape.
#[derive(Clone, Debug)]
pub struct PushBackRoom {
    /// The models that are not to be asked.
    pub(crate) held: Arc<HeldModels>,
    /// The time for which the run was put off before.
    pub(crate) spent: Duration,
}

impl CallScope {
    /// Waits until a model may be asked that was asked too often. Where that takes long the step is
    /// put off, and this never returns.
    ///
    /// # Errors
    /// [`ModelError::RateLimited`] if the run has no patience for it.
    pub(super) async fn await_turn(
        &self,
        model: &ChosenModel,
        call: u32,
    ) -> Result<(), ModelError> {
        let Some(room) = &self.parts.services.push_backs else { return Ok(()) };
        let tenant = &self.parts.context.tenant;
        // Another run may be pushed back while this one waits.
        while let Some(held) = room.held.held(tenant, &model.name) {
            let left = held.wait;
            if left > WAIT_IN_PLACE_MAX {
                let said = held.said.clone();
                self.put_off(room, model, held, call).await;
                return Err(ModelError::RateLimited { retry_after_ms: Some(millis(left)), said });
            }
            self.parts.clock.sleep(left).await;
        }
        Ok(())
    }

    /// Keeps a model from being asked that does not want to be for a while. Where that is long the
    /// step is put off, and this never returns; it does where the run has no patience for it.
    pub(super) async fn heed(&self, model: &ChosenModel, error: &ModelError, call: u32) {
        let Some(room) = &self.parts.services.push_backs else { return };
        let Some(wait) = asked_wait(error) else { return };
        let said = error.said().map(str::to_owned);
        let back = PushBack { model: model.name.clone(), wait, reason: error.to_string(), said };
        // A provider that asks for a year does not get it from runs that come later.
        let held = PushBack { wait: wait.min(model.patience), ..back.clone() };
        room.held.hold(&self.parts.context.tenant, held);
        if wait > WAIT_IN_PLACE_MAX {
            self.put_off(room, model, back, call).await;
        }
    }

    /// Ends the attempt at the step, whose instance is dropped, unless the run has waited for
    /// models for too long.
    async fn put_off(&self, room: &PushBackRoom, model: &ChosenModel, back: PushBack, call: u32) {
        if !self.is_journalled() || room.spent.saturating_add(back.wait) > model.patience {
            self.open().out_of_patience = true;
            return;
        }
        self.forget_wait(call);
        self.open().pushed_back = Some(back);
        self.parts.stop.force(StopCause::PushedBack);
        // The guest hears nothing of it: what it did then would be on its tape.
        std::future::pending().await
    }

    /// The model for which the step was put off.
    pub(crate) fn pushed_back(&self) -> Option<PushBack> {
        self.open().pushed_back.clone()
    }

    /// The tokens of answers that were given up. They are taken out.
    pub(crate) fn given_up(&self) -> Option<Usage> {
        Some(self.unfinished.take()).filter(|usage| *usage != Usage::default())
    }
}

/// The wait that a provider asks for.
fn asked_wait(error: &ModelError) -> Option<Duration> {
    match error {
        ModelError::RateLimited { retry_after_ms, said: _ }
        | ModelError::Overloaded { retry_after_ms, said: _ } => {
            retry_after_ms.map(Duration::from_millis)
        }
        ModelError::Denied(_)
        | ModelError::UnknownModel(_)
        | ModelError::Unavailable(_)
        | ModelError::Unauthorized(_)
        | ModelError::NoQuota(_)
        | ModelError::Unreachable(_)
        | ModelError::InvalidRequest(_)
        | ModelError::NotFound(_)
        | ModelError::ContextWindow(_)
        | ModelError::Refused(_)
        | ModelError::Misfit(_)
        | ModelError::CutOff
        | ModelError::Malformed(_)
        | ModelError::TooLarge(_)
        | ModelError::Budget(_)
        | ModelError::Timeout
        | ModelError::Canceled
        | ModelError::Other(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use taskrun_journal::time::Timestamp;

    use super::*;
    use crate::clock::SimulatedClock;

    fn back(model: &str, wait_ms: u64) -> PushBack {
        let (model, wait) = (model.to_owned(), Duration::from_millis(wait_ms));
        PushBack { model, wait, reason: "busy".to_owned(), said: None }
    }

    fn none() -> (Arc<SimulatedClock>, HeldModels) {
        let clock = Arc::new(SimulatedClock::new(Timestamp(1_000_000)));
        let held = HeldModels::new(Arc::clone(&clock) as Arc<dyn Clock>);
        (clock, held)
    }

    #[test]
    fn a_model_is_held_for_one_tenant_until_the_last_time_that_it_named() {
        let (clock, held) = none();
        held.hold("t", back("m", 80));
        clock.advance(Duration::from_millis(10));
        held.hold("t", back("m", 30));
        assert_eq!(held.held("u", "m"), None);
        assert_eq!(held.held("t", "n"), None);
        clock.set_time_of_day(Timestamp(1));
        clock.advance(Duration::from_millis(69));
        assert_eq!(held.held("t", "m"), Some(back("m", 1)), "whatever the time of day is");
        clock.advance(Duration::from_millis(1));
        assert_eq!(held.held("t", "m"), None);
    }

    #[test]
    fn the_number_of_models_that_are_held_is_bounded() {
        let (clock, held) = none();
        for at in 0..=HELD_MODELS_MAX as u64 {
            held.hold("t", back(&at.to_string(), 1_000 + at));
        }
        assert_eq!(held.held("t", "0"), None, "the first to be over is forgotten");
        assert!(held.held("t", "1").is_some());
        clock.advance(Duration::from_secs(1_000));
        held.hold("t", back("m", 1));
        assert_eq!(held.held.lock().expect("no panic").len(), 1, "what is over goes");
    }
}
