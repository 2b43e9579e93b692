//! The policy files that runs were accepted under.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use taskrun_journal::pin::has_digest;
use taskrun_runtime::RunRules;

/// The policy files of pins, as they are kept with these; each is read once.
#[derive(Default)]
pub(super) struct PinFiles {
    data_dir: Option<PathBuf>,
    known: Mutex<BTreeMap<String, Option<PathBuf>>>,
}

impl PinFiles {
    /// Those of a data directory.
    pub(super) fn of(data_dir: Option<PathBuf>) -> Self {
        Self { data_dir, known: Mutex::default() }
    }

    /// The file of a pin; `None` where nothing is kept under it.
    pub(super) fn file(&self, pin: &str) -> Option<PathBuf> {
        let dir = self.data_dir.as_ref().filter(|_| has_digest(pin))?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(pin.to_owned()).or_insert_with(|| RunRules::file_of_pin(dir, pin)).clone()
    }
}
