//! `prompts`: templates of the policy, rendered.

use taskrun_policy::{Use, template as domain};

use crate::bindings::interfaces::prompts::{Host, PromptError};
use crate::state::CallState;
use taskrun_journal::json;

/// Templates often go through their data more than once, and through lists in it in a square.
const STEPS_PER_BYTE: usize = 16;

impl Host for CallState {
    async fn render(
        &mut self,
        id: String,
        data: String,
    ) -> wasmtime::Result<Result<String, PromptError>> {
        self.enter_capability("prompts")?;
        if let Err(denied) = self.allow(&Use::Prompt(&id)) {
            return Ok(Err(PromptError::Denied(denied)));
        }
        // The steps of a template are bounded; how much each of them works is the data's doing.
        self.before_work(data.len().saturating_mul(STEPS_PER_BYTE)).await;
        if data.len() <= domain::PROMPT_DATA_BYTES_MAX
            && let Err(reason) = json::check(&data)
        {
            return Ok(Err(PromptError::InvalidData(reason)));
        }
        Ok(self.scope.render_prompt(&id, &data).map_err(Into::into))
    }
}

impl From<domain::PromptError> for PromptError {
    fn from(error: domain::PromptError) -> Self {
        match error {
            domain::PromptError::Unknown(id) => Self::Unknown(id),
            domain::PromptError::InvalidData(detail) => Self::InvalidData(detail),
            domain::PromptError::Unusable(detail) => Self::Other(detail),
        }
    }
}
