//! Values that several interfaces share, with what makes them pleasant to build.

pub use crate::bindings::agent::taskrun::plugin::types::{
    Attachment, Bounds, DurationMs, Label, Media, Message, Part, RetryHint, RetryReason, Role,
    RunContext, Telemetry, Thinking, TimestampMs, ToolAnswer, ToolError, ToolFailure, ToolHints,
    ToolSpec, ToolUse, Usage,
};

impl Message {
    /// A message of one text.
    #[must_use]
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self { role, parts: vec![Part::Text(text.into())] }
    }

    /// Its texts, joined; all other parts left out.
    #[must_use]
    pub fn plain_text(&self) -> String {
        self.parts
            .iter()
            .filter_map(|part| match part {
                Part::Text(text) => Some(text.as_str()),
                Part::Thinking(_)
                | Part::ToolUse(_)
                | Part::ToolAnswer(_)
                | Part::Json(_)
                | Part::Media(_) => None,
            })
            .collect()
    }
}

impl Default for Usage {
    /// Nothing.
    fn default() -> Self {
        Self {
            prompt_tokens: 0,
            completion_tokens: 0,
            total_tokens: 0,
            cached_tokens: 0,
            cache_write_tokens: 0,
            reasoning_tokens: 0,
        }
    }
}

impl Usage {
    /// The sum of two, saturating.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens.saturating_add(other.prompt_tokens),
            completion_tokens: self.completion_tokens.saturating_add(other.completion_tokens),
            total_tokens: self.total_tokens.saturating_add(other.total_tokens),
            cached_tokens: self.cached_tokens.saturating_add(other.cached_tokens),
            cache_write_tokens: self.cache_write_tokens.saturating_add(other.cache_write_tokens),
            reasoning_tokens: self.reasoning_tokens.saturating_add(other.reasoning_tokens),
        }
    }
}

impl ToolError {
    /// An error without code and causes.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: None, message: message.into(), causes: Vec::new() }
    }

    /// An error of Rust, with its sources as causes.
    #[must_use]
    pub fn of(error: &dyn std::error::Error) -> Self {
        Self { code: None, message: error.to_string(), causes: causes_of(error) }
    }

    /// Adds a short lower-case word for programs.
    #[must_use]
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// Adds what led to it, after the causes already there.
    #[must_use]
    pub fn cause(mut self, cause: impl Into<String>) -> Self {
        self.causes.push(cause.into());
        self
    }
}

/// The sources of an error, the nearest first.
pub(crate) fn causes_of(error: &dyn std::error::Error) -> Vec<String> {
    let sources = std::iter::successors(error.source(), |source| source.source());
    sources.map(ToString::to_string).collect()
}

impl RetryHint {
    /// A hint about the function `tool`, with nothing but its reason.
    #[must_use]
    pub fn new(reason: RetryReason, tool: impl Into<String>) -> Self {
        Self {
            reason,
            tool: tool.into(),
            restrict_to_tool: false,
            missing_fields: Vec::new(),
            example_input: None,
            prior_input: None,
            clarifying_question: None,
            message: None,
        }
    }

    /// Adds advice for the model.
    #[must_use]
    pub fn advice(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// Adds arguments that would have been accepted, as JSON.
    #[must_use]
    pub fn example(mut self, input: impl Into<String>) -> Self {
        self.example_input = Some(input.into());
        self
    }
}

impl Bounds {
    /// All `returned` items there are.
    #[must_use]
    pub fn whole(returned: u64) -> Self {
        Self {
            returned,
            total: Some(returned),
            truncated: false,
            continuation: None,
            refinement: None,
        }
    }

    /// Some of the items; `refinement` says in words how to ask for less, or for the rest.
    #[must_use]
    pub fn truncated(returned: u64, total: Option<u64>, refinement: impl Into<String>) -> Self {
        Self {
            returned,
            total,
            truncated: true,
            continuation: None,
            refinement: Some(refinement.into()),
        }
    }

    /// Adds the arguments, as JSON, of the call that continues where this one stopped.
    #[must_use]
    pub fn continued_by(mut self, input: impl Into<String>) -> Self {
        self.continuation = Some(input.into());
        self
    }
}

impl Default for ToolHints {
    /// Promises nothing.
    fn default() -> Self {
        Self {
            read_only: false,
            destructive: false,
            idempotent: false,
            terminal: false,
            bounded: false,
        }
    }
}

impl ToolSpec {
    /// A function that promises nothing. `input_schema` is a JSON schema of type `object`.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        input_schema: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            title: None,
            description: description.into(),
            input_schema: input_schema.into(),
            output_schema: None,
            hints: ToolHints::default(),
            timeout: None,
            tags: Vec::new(),
        }
    }

    /// Adds a few words for people.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Adds a JSON schema of the result.
    #[must_use]
    pub fn output(mut self, schema: impl Into<String>) -> Self {
        self.output_schema = Some(schema.into());
        self
    }

    /// Promises that it changes nothing anywhere, and so that it may be repeated.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.hints.read_only = true;
        self.hints.idempotent = true;
        self
    }

    /// Warns that it may destroy what cannot be had back.
    #[must_use]
    pub fn destructive(mut self) -> Self {
        self.hints.destructive = true;
        self
    }

    /// Promises that a second call with the same id and arguments has no further effect.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.hints.idempotent = true;
        self
    }

    /// Makes its answer end the run.
    #[must_use]
    pub fn terminal(mut self) -> Self {
        self.hints.terminal = true;
        self
    }

    /// Promises that its results carry `bounds`.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        self.hints.bounded = true;
        self
    }

    /// Sets how long a call may take.
    #[must_use]
    pub fn timeout_ms(mut self, timeout_ms: DurationMs) -> Self {
        self.timeout = Some(timeout_ms);
        self
    }

    /// Adds a word that policies select by.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::PlannerError;

    #[derive(Debug)]
    struct Fault(&'static str, Option<Box<Fault>>);

    impl std::fmt::Display for Fault {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl std::error::Error for Fault {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            self.1.as_deref().map(|source| source as _)
        }
    }

    #[test]
    fn l_018_an_error_keeps_its_sources_as_causes() {
        let disk = Fault("the disk is full", None);
        let error =
            Fault("nothing is kept", Some(Box::new(Fault("no write", Some(Box::new(disk))))));
        let told = ToolError::of(&error).code("storage").cause("see the log");
        assert_eq!((told.code.as_deref(), &*told.message), (Some("storage"), "nothing is kept"));
        assert_eq!(told.causes, ["no write", "the disk is full", "see the log"]);
        assert_eq!(PlannerError::of(&error).cause("x").causes.len(), 3);
    }
}
