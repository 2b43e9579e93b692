//! What the host has for a call beside models and tools.

use super::CallScope;
use crate::reminders::{Reminder, ReminderChange, Reminders};

/// What the host has for a call beside models and tools. The default is nothing.
#[derive(Clone, Debug, Default)]
pub struct Services {
    /// Notes of the run's planner.
    pub reminders: Reminders,
}

impl CallScope {
    /// Keeps a note for later turns, or replaces the one of its id.
    ///
    /// # Errors
    /// Which bound was met, in words.
    pub fn add_reminder(&self, reminder: Reminder) -> Result<(), String> {
        let mut open = self.open();
        open.reminders.add(reminder.clone())?;
        open.reminder_changes.insert(reminder.id.clone(), ReminderChange::Added(reminder));
        Ok(())
    }

    /// Removes a note.
    pub fn remove_reminder(&self, id: &str) {
        let mut open = self.open();
        // Removing what is not there must not fill the journal.
        if open.reminders.remove(id) {
            let change = ReminderChange::Removed(id.to_owned());
            open.reminder_changes.insert(id.to_owned(), change);
        }
    }
}
