//! `reminders`: notes of a planner for its own later turns.

use taskrun_journal::reminders as domain;

use crate::bindings::interfaces::reminders::{Host, ReminderError, ReminderSpec, Tier};
use crate::bindings::interfaces::types::Attachment;
use crate::state::CallState;

impl Host for CallState {
    fn add(&mut self, reminder: ReminderSpec) -> wasmtime::Result<Result<(), ReminderError>> {
        self.enter_capability("reminders")?;
        Ok(self.scope.add_reminder(reminder.into()).map_err(ReminderError::Limit))
    }

    fn remove(&mut self, id: String) -> wasmtime::Result<()> {
        self.enter_capability("reminders")?;
        self.scope.remove_reminder(&id);
        Ok(())
    }
}

impl From<ReminderSpec> for domain::Reminder {
    fn from(spec: ReminderSpec) -> Self {
        Self {
            id: spec.id,
            text: spec.text,
            tier: match spec.priority {
                Tier::Safety => domain::Tier::Safety,
                Tier::Guidance => domain::Tier::Guidance,
            },
            attachment: match spec.attachment {
                Attachment::RunStart => domain::Attachment::RunStart,
                Attachment::UserTurn => domain::Attachment::UserTurn,
            },
            max_per_run: spec.max_per_run,
            min_turns_between: spec.min_turns_between,
        }
    }
}
