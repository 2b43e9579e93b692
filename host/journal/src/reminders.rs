//! Notes that a planner leaves for its own later turns, and which of them a turn is shown.
//!
//! Everything follows from the decisions in the journal: a turn is shown what is due in it, and
//! its decision says which notes were added and removed. So no showing is recorded, and a turn
//! that is planned again under another host is shown the same. The rules are those of goa-ai's
//! reminders.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Most notes of a run: a model heeds a handful.
pub(crate) const REMINDERS_MAX: usize = 100;
/// Most bytes of a note's id.
pub(crate) const REMINDER_ID_BYTES_MAX: usize = 256;
/// Most bytes of a note's text: a note is a paragraph, and is shown in every turn.
pub(crate) const REMINDER_TEXT_BYTES_MAX: usize = 4 << 10;
/// Most bytes of all texts of a run together. They take room from the conversation.
pub(crate) const REMINDERS_BYTES_MAX: usize = 64 << 10;

/// The importance of a note. Notes are shown in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Shown as often as it is due, whatever its `max_per_run` says.
    Safety,
    /// Shown at most so often.
    Guidance,
}

/// Where in the conversation a note belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attachment {
    /// To the instructions at its beginning.
    RunStart,
    /// To what was said last by others than the agent.
    UserTurn,
}

/// A note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reminder {
    /// Its name within the run.
    pub id: String,
    /// The text.
    pub text: String,
    /// Its importance.
    pub tier: Tier,
    /// Where it belongs.
    pub attachment: Attachment,
    /// In how many turns it may be shown; `None` is not bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_per_run: Option<u32>,
    /// Turns from one showing to the next; 0 and 1 are every turn.
    #[serde(default)]
    pub min_turns_between: u32,
}

/// The change that a plan step made to a note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReminderChange {
    /// Added it, or replaced the one of the same id.
    Added(Reminder),
    /// Removed the one of this id.
    Removed(String),
}

/// The notes of a run, and how often and when each was shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reminders {
    kept: BTreeMap<String, ReminderState>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ReminderState {
    reminder: Reminder,
    times: u32,
    last: Option<u32>,
}

impl Reminders {
    /// Takes the decision of a turn into account: the notes that were due in it were shown, and
    /// then these changes were made.
    pub fn decided(&mut self, turn: u32, changes: &[ReminderChange]) {
        for kept in self.kept.values_mut().filter(|kept| kept.is_due(turn)) {
            kept.times = kept.times.saturating_add(1);
            kept.last = Some(turn);
        }
        for change in changes {
            match change {
                ReminderChange::Added(reminder) => self.put(reminder.clone()),
                ReminderChange::Removed(id) => {
                    self.kept.remove(id);
                }
            }
        }
    }

    /// The notes that a turn is shown: the most important first, and then by id.
    #[must_use]
    pub fn due(&self, turn: u32) -> Vec<Reminder> {
        let due = self.kept.values().filter(|kept| kept.is_due(turn));
        let mut due: Vec<_> = due.map(|kept| kept.reminder.clone()).collect();
        // They come in the order of their ids, which the sort keeps within a tier.
        due.sort_by_key(|reminder| reminder.tier);
        due
    }

    /// Adds a note, or replaces the one of its id.
    ///
    /// # Errors
    /// Which bound was met, in words.
    pub fn add(&mut self, reminder: Reminder) -> Result<(), String> {
        if reminder.id.is_empty() || reminder.id.len() > REMINDER_ID_BYTES_MAX {
            return Err(format!("a reminder's id has 1 to {REMINDER_ID_BYTES_MAX} bytes"));
        }
        if reminder.text.is_empty() || reminder.text.len() > REMINDER_TEXT_BYTES_MAX {
            return Err(format!("a reminder's text has 1 to {REMINDER_TEXT_BYTES_MAX} bytes"));
        }
        if !self.kept.contains_key(&reminder.id) && self.kept.len() >= REMINDERS_MAX {
            return Err(format!("a run has at most {REMINDERS_MAX} reminders"));
        }
        let others = self.kept.values().map(|kept| &kept.reminder).filter(|r| r.id != reminder.id);
        if others.map(|r| r.text.len()).sum::<usize>() + reminder.text.len() > REMINDERS_BYTES_MAX {
            return Err(format!(
                "the reminders of a run have at most {REMINDERS_BYTES_MAX} bytes of text"
            ));
        }
        self.put(reminder);
        Ok(())
    }

    /// Removes a note; says whether there was one.
    pub fn remove(&mut self, id: &str) -> bool {
        self.kept.remove(id).is_some()
    }

    fn put(&mut self, reminder: Reminder) {
        match self.kept.get_mut(&reminder.id) {
            Some(kept) => kept.reminder = reminder,
            None => {
                let kept = ReminderState { reminder, times: 0, last: None };
                self.kept.insert(kept.reminder.id.clone(), kept);
            }
        }
    }
}

impl ReminderState {
    fn is_due(&self, turn: u32) -> bool {
        let is_spent = match self.reminder.tier {
            Tier::Safety => false,
            Tier::Guidance => self.reminder.max_per_run.is_some_and(|max| self.times >= max),
        };
        let is_too_soon = self
            .last
            .is_some_and(|last| turn.saturating_sub(last) < self.reminder.min_turns_between);
        !is_spent && !is_too_soon
    }
}
