//! The things that the host has for a call beside models and tools.

use std::sync::Arc;

use taskrun_journal::artifact::Artifact;
use taskrun_journal::event::Event;
use taskrun_journal::format::JournalFormat;
use taskrun_journal::reminders::Reminders;
use taskrun_policy::template::{PromptError, Prompts};

use super::CallScope;
use super::budget::BudgetReading;
use super::conversation::StepConversation;
use super::digest::DigestsSince;
use super::long_calls::LongCalls;
use super::memory::MemoryAccess;
use super::push_back::PushBackRoom;
use super::result_digests::StepResults;

/// The things that the host has for a call beside models and tools. The default is nothing.
#[derive(Clone, Debug, Default)]
pub struct Services {
    /// Notes of the run's planner.
    pub reminders: Reminders,
    /// Prompts of the policy.
    pub prompts: Arc<Prompts>,
    /// Facts of the session and the tenant.
    pub memory: Option<MemoryAccess>,
    /// The results that a plan step reads by the digests of their bytes.
    pub results: StepResults,
    /// The conversation that the call is shown, where it is a plan step.
    pub conversation: Option<StepConversation>,
    /// The messages that are left out of the conversation that the call was given.
    pub left_out: Option<Artifact>,
    /// The components of the run whose last call took long.
    pub long_calls: LongCalls,
    /// Room for waits for models, where the call is one that can be put off.
    pub push_backs: Option<PushBackRoom>,
    /// The rest of the budget, where it is read for those that ask for it alone.
    pub budget: Option<BudgetReading>,
    /// The format in which questions are recorded.
    pub format: JournalFormat,
    /// The first format in which they are named as this program names them.
    pub digests_since: DigestsSince,
}

impl CallScope {
    /// The components of the run whose last call took long.
    #[must_use]
    pub fn long_calls(&self) -> &LongCalls {
        &self.parts.services.long_calls
    }

    /// Renders a prompt of the policy with `data`, a JSON object, and records that.
    ///
    /// # Errors
    /// [`PromptError`].
    pub fn render_prompt(&self, id: &str, data: &str) -> Result<String, PromptError> {
        let run = &self.parts.context;
        let prompts = &self.parts.services.prompts;
        let rendered = prompts.render(id, data, &run.parent_session_id, &run.labels)?;
        self.record(Event::PromptRendered {
            id: id.to_owned(),
            digest: rendered.digest,
            chosen_by: rendered.chosen_by,
        });
        Ok(rendered.text)
    }
}
