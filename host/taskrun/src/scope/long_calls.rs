//! The components of a run whose last call took long.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The components of a run, by their names in the run's log, whose last call used up the time for
/// which it came before others. The next one begins behind them: a run that makes many such calls
/// would come first with each otherwise. Copies share what they know.
#[derive(Clone, Debug, Default)]
pub struct LongCalls(Arc<Mutex<BTreeSet<String>>>);

impl LongCalls {
    /// True if the last call of this component took long.
    #[must_use]
    pub fn has(&self, source: &str) -> bool {
        self.lock().contains(source)
    }

    /// Notes whether a call of this component took long.
    pub fn note(&self, source: &str, was_long: bool) {
        let mut long = self.lock();
        if !was_long {
            long.remove(source);
        } else if !long.contains(source) {
            long.insert(source.to_owned());
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
