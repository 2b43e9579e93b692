//! Stopping where somebody paused the run, and showing it what it was told.
//!
//! A pause takes effect where nothing is under way: before a plan step, and before a tool call
//! begins. A step or call that has begun comes to its end and is recorded; calls that were decided
//! on and have not begun do so when the run goes on.

use taskrun_journal::event::Event;
use taskrun_journal::machine::decide;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;

use super::{Driver, Halt};

impl Driver {
    /// Whether nothing more may begin, as far as is known here.
    pub(super) fn is_paused(&self) -> bool {
        self.journal.run().state.pause.is_some()
    }

    /// The same, after a pause whose time is over was ended.
    pub(super) async fn stays_paused(&mut self) -> Result<bool, Halt> {
        let now = self.env.clock.now();
        let over = |run: &Run| decide::over(run, now);
        if !over(self.journal.run()).is_empty() {
            let written = self.journal.commit(over).await?;
            self.take_in(&written);
        }
        Ok(self.is_paused())
    }

    /// Makes what the run was told a part of the conversation. To be done between two steps and
    /// not before one that runs again, which is to be shown what it was shown before.
    pub(super) async fn show_inbox(&mut self) -> Result<(), Halt> {
        let shown = |run: &Run| {
            let messages = run.state.inbox.messages;
            match run.status() == Status::Running && messages > 0 {
                true => vec![Event::InboxShown { messages }],
                false => Vec::new(),
            }
        };
        let written = self.journal.commit(shown).await?;
        if !written.is_empty() {
            self.take_in(&written);
        }
        Ok(())
    }
}
