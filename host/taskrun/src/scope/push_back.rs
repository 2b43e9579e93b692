//! Models that are not to be asked before a time, and the steps that are put off for that.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskrun_journal::completion::ModelError;
use taskrun_journal::message::Usage;
use taskrun_journal::stop::StopCause;
use taskrun_journal::time::{Timestamp, millis};

use super::CallScope;
use super::model::ChosenModel;

/// The longest wait for a model through which a step keeps its instance and its run its slot. A
/// step that runs again costs an instance and a look at its journal, which pays after about this.
const WAIT_IN_PLACE_MAX: Duration = Duration::from_secs(60);

/// Most models that are held at once, each for a tenant; beyond that the oldest holds are
/// forgotten, and a model is asked that says again when it wants to be.
const HELD_MODELS_MAX: usize = 10_000;

/// A model that is not to be asked before a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PushBack {
    /// Its name in the policy.
    pub model: String,
    /// When it may be asked.
    pub until: Timestamp,
    /// Why it may not before, in words.
    pub reason: String,
}

/// The models that are not to be asked, by the tenants whose runs asked them too often. They are
/// not kept on disk: after the death of a host each is asked once more.
#[derive(Default)]
pub(crate) struct HeldModels(Mutex<BTreeMap<(String, String), PushBack>>);

impl fmt::Debug for HeldModels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldModels").finish_non_exhaustive()
    }
}

impl HeldModels {
    /// Keeps the runs of a tenant from asking a model before its time.
    fn hold(&self, tenant: &str, held: PushBack, now: Timestamp) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, held| held.until > now);
        let key = (tenant.to_owned(), held.model.clone());
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

    /// The reason for which a run of a tenant may not ask a model at a time.
    fn held(&self, tenant: &str, model: &str, now: Timestamp) -> Option<PushBack> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let held = all.get(&(tenant.to_owned(), model.to_owned()))?;
        (held.until > now).then(|| held.clone())
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
        while let Some(held) = room.held.held(tenant, &model.name, self.parts.clock.now()) {
            let left = held.until.since(self.parts.clock.now());
            if left > WAIT_IN_PLACE_MAX {
                self.put_off(room, model, held, call).await;
                return Err(ModelError::RateLimited { retry_after_ms: Some(millis(left)) });
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
        let now = self.parts.clock.now();
        let back = PushBack {
            model: model.name.clone(),
            until: now.plus(wait),
            reason: error.to_string(),
        };
        // A provider that asks for a year does not get it from runs that come later.
        let held = PushBack { until: now.plus(wait.min(model.patience)), ..back.clone() };
        room.held.hold(&self.parts.context.tenant, held, now);
        if wait > WAIT_IN_PLACE_MAX {
            self.put_off(room, model, back, call).await;
        }
    }

    /// Ends the attempt at the step, whose instance is dropped, unless the run has waited for
    /// models for too long.
    async fn put_off(&self, room: &PushBackRoom, model: &ChosenModel, back: PushBack, call: u32) {
        let wait = back.until.since(self.parts.clock.now());
        if !self.is_journalled() || room.spent.saturating_add(wait) > model.patience {
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
        ModelError::RateLimited { retry_after_ms } | ModelError::Overloaded { retry_after_ms } => {
            retry_after_ms.map(Duration::from_millis)
        }
        ModelError::Denied(_)
        | ModelError::UnknownModel(_)
        | ModelError::Unavailable(_)
        | ModelError::Unauthorized(_)
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
    use super::*;

    fn back(model: &str, until: u64) -> PushBack {
        PushBack { model: model.to_owned(), until: Timestamp(until), reason: "busy".to_owned() }
    }

    #[test]
    fn a_model_is_held_for_one_tenant_until_the_last_time_that_it_named() {
        let held = HeldModels::default();
        held.hold("t", back("m", 90), Timestamp(10));
        held.hold("t", back("m", 50), Timestamp(20));
        assert_eq!(held.held("t", "m", Timestamp(89)), Some(back("m", 90)));
        assert_eq!(held.held("t", "m", Timestamp(90)), None);
        assert_eq!(held.held("u", "m", Timestamp(20)), None);
        assert_eq!(held.held("t", "n", Timestamp(20)), None);
    }

    #[test]
    fn the_number_of_models_that_are_held_is_bounded() {
        let held = HeldModels::default();
        for at in 0..=HELD_MODELS_MAX as u64 {
            held.hold("t", back(&at.to_string(), 1_000 + at), Timestamp(1));
        }
        assert_eq!(held.held("t", "0", Timestamp(2)), None, "the first to be over is forgotten");
        assert!(held.held("t", "1", Timestamp(2)).is_some());
        held.hold("t", back("m", 1_000_000), Timestamp(999_999));
        assert_eq!(held.0.lock().expect("no panic").len(), 1, "what is over goes");
    }
}
