//! Prompts as a policy states them.

use std::path::PathBuf;

use taskrun_journal::message::Labels;

use crate::location::Location;

/// Most overrides of a prompt: a rendering looks at all of them.
pub const PROMPT_OVERRIDES_MAX: usize = 256;

/// A prompt that agents can be granted: `[prompt.ID]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptPolicy {
    /// `[a-z][a-z0-9_-]{0,63}`.
    pub id: String,
    /// The template where no override fits.
    pub template: PromptTemplate,
    /// Templates for some runs, in the order of the file. At most [`PROMPT_OVERRIDES_MAX`].
    pub overrides: Vec<PromptOverridePolicy>,
    /// Of its table's header.
    pub location: Location,
}

/// A template for the runs that a session asked for, or that have some labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptOverridePolicy {
    /// The session; `None` is any.
    pub session: Option<String>,
    /// Labels that a run must have.
    pub labels: Labels,
    /// The template.
    pub template: PromptTemplate,
}

/// A template, where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptTemplate {
    /// The file that it stands in, resolved; `None` if it stands in the policy.
    pub file: Option<PathBuf>,
    /// The template. `None` until the file is read, and where it cannot be used.
    pub text: Option<String>,
    /// The fault of the file that was read, if it has one.
    pub(super) fault: Option<String>,
    pub(super) span: std::ops::Range<usize>,
}
