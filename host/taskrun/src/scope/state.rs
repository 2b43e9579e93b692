//! The state and the notes that a run's planner keeps from step to step.

use std::collections::BTreeMap;

use taskrun_journal::reminders::{Reminder, ReminderChange, Reminders};

use super::CallScope;

/// Most keys of a run's state. State is for a handful of small values; large ones are artifacts.
pub(crate) const STATE_KEYS_MAX: usize = 1_000;
/// Most bytes of a state key.
pub(crate) const STATE_KEY_BYTES_MAX: usize = 256;
/// Most bytes of all state values of a run together.
pub(crate) const STATE_BYTES_MAX: usize = 1 << 20;

/// The state of a run, and the changes that a call makes.
#[derive(Default)]
pub(super) struct RunState {
    values: BTreeMap<String, String>,
    /// The last value of each key that was set or removed.
    changes: BTreeMap<String, Option<String>>,
}

impl RunState {
    pub(super) fn new(values: BTreeMap<String, String>) -> Self {
        Self { values, changes: BTreeMap::new() }
    }

    /// The changes so far, sorted by key. They are taken out.
    pub(super) fn take_changes(&mut self) -> Vec<(String, Option<String>)> {
        std::mem::take(&mut self.changes).into_iter().collect()
    }

    fn set(&mut self, key: String, value: Option<String>) -> Result<(), String> {
        if key.len() > STATE_KEY_BYTES_MAX {
            return Err(format!("a state key has at most {STATE_KEY_BYTES_MAX} bytes"));
        }
        if let Some(value) = &value {
            let others: usize =
                self.values.iter().filter(|(k, _)| **k != key).map(|(_, v)| v.len()).sum();
            if others + value.len() > STATE_BYTES_MAX {
                return Err(format!("a run's state has at most {STATE_BYTES_MAX} bytes"));
            }
            if !self.values.contains_key(&key) && self.values.len() >= STATE_KEYS_MAX {
                return Err(format!("a run's state has at most {STATE_KEYS_MAX} keys"));
            }
            self.values.insert(key.clone(), value.clone());
        } else {
            // Removing what is not there must not fill the journal either.
            if self.values.remove(&key).is_none() && !self.changes.contains_key(&key) {
                return Ok(());
            }
        }
        self.changes.insert(key, value);
        Ok(())
    }
}

/// The notes of a run, and the changes that a call makes.
#[derive(Default)]
pub(super) struct Notes {
    notes: Reminders,
    /// The last change of each note.
    changes: BTreeMap<String, ReminderChange>,
}

impl Notes {
    pub(super) fn new(notes: Reminders) -> Self {
        Self { notes, changes: BTreeMap::new() }
    }

    /// The changes so far, sorted by id. They are taken out.
    pub(super) fn take_changes(&mut self) -> Vec<ReminderChange> {
        std::mem::take(&mut self.changes).into_values().collect()
    }

    fn add(&mut self, note: Reminder) -> Result<(), String> {
        self.notes.add(note.clone())?;
        self.changes.insert(note.id.clone(), ReminderChange::Added(note));
        Ok(())
    }

    fn remove(&mut self, id: &str) {
        // Removing what is not there must not fill the journal.
        if self.notes.remove(id) {
            self.changes.insert(id.to_owned(), ReminderChange::Removed(id.to_owned()));
        }
    }
}

impl CallScope {
    /// The value last set for a key.
    #[must_use]
    pub fn state(&self, key: &str) -> Option<String> {
        self.open().state.values.get(key).cloned()
    }

    /// All keys, sorted.
    #[must_use]
    pub fn state_keys(&self) -> Vec<String> {
        self.open().state.values.keys().cloned().collect()
    }

    /// Keeps a value, or removes it.
    ///
    /// # Errors
    /// The bound that was met, in words.
    pub fn set_state(&self, key: String, value: Option<String>) -> Result<(), String> {
        self.open().state.set(key, value)
    }

    /// Keeps a note for later turns, or replaces the one of its id.
    ///
    /// # Errors
    /// The bound that was met, in words.
    pub fn add_reminder(&self, reminder: Reminder) -> Result<(), String> {
        self.open().notes.add(reminder)
    }

    /// Removes a note.
    pub fn remove_reminder(&self, id: &str) {
        self.open().notes.remove(id);
    }
}
