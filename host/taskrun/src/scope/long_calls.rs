//! The components of a run whose last call took long.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The components of a run, by their digests, whose last call used more of a processor than it had
/// before others. The next one begins behind them: a run that makes many such calls would come first
/// with each otherwise. Copies share what they know.
#[derive(Clone, Debug, Default)]
pub struct LongCalls(Arc<Mutex<BTreeSet<String>>>);

impl LongCalls {
    /// True if the last call of this component took long.
    #[must_use]
    pub fn has(&self, component: &str) -> bool {
        self.lock().contains(component)
    }

    /// Notes whether a call of this component took long.
    pub fn note(&self, component: &str, was_long: bool) {
        let mut long = self.lock();
        if !was_long {
            long.remove(component);
        } else if !long.contains(component) {
            long.insert(component.to_owned());
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
