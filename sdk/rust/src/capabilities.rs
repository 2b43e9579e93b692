//! The host's interfaces, one module each, under the names that authors use.

/// The time of day, and waiting.
pub mod clock {
    pub use crate::bindings::agent::taskrun::plugin::clock::WaitError;
    pub use crate::host::clock::{now, sleep};
}

/// Random numbers, good for keys.
pub mod random {
    pub use crate::host::random::bytes;
}

/// Lines for the run's log, which the operator reads.
pub mod log {
    pub use crate::bindings::agent::taskrun::plugin::log::Level;
    pub use crate::host::log::log;

    /// Logs for a developer who looks for a fault in this guest.
    pub fn debug(message: impl AsRef<str>) {
        log(Level::Debug, message.as_ref(), &[]);
    }

    /// Logs what an operator may want to know.
    pub fn info(message: impl AsRef<str>) {
        log(Level::Info, message.as_ref(), &[]);
    }

    /// Logs what an operator should look at.
    pub fn warn(message: impl AsRef<str>) {
        log(Level::Warn, message.as_ref(), &[]);
    }

    /// Logs what went wrong.
    pub fn error(message: impl AsRef<str>) {
        log(Level::Error, message.as_ref(), &[]);
    }
}

/// Counters and measurements for the operator.
pub mod metrics {
    pub use crate::host::metrics::{add, record_value};
}

/// The run this call belongs to, and what is left of its budget.
pub mod run {
    pub use crate::bindings::agent::taskrun::plugin::run::Remaining;
    pub use crate::host::run::{budget, context, read_result, tools};
}

/// The request to stop. A component that asks for it is given a grace period.
pub mod cancellation {
    pub use crate::host::cancellation::requested;
}

/// Files of the folder that the policy grants. Reading and writing are separate permissions: a
/// guest that calls only [`list`](workspace::list), [`stat`](workspace::stat) and
/// [`read`](workspace::read) does not ask for the other.
pub mod workspace {
    pub use crate::bindings::agent::taskrun::plugin::workspace_read::{
        Entry, EntryKind, FileError, Listing,
    };
    pub use crate::bindings::agent::taskrun::plugin::workspace_write::WriteMode;
    pub use crate::host::workspace_read::{list, read, stat};
    pub use crate::host::workspace_write::{create_directory, remove, write};

    impl FileError {
        /// The case's name in the contract, for `ToolError::code`.
        #[must_use]
        pub fn code(&self) -> &'static str {
            match self {
                Self::Denied(_) => "denied",
                Self::NotFound => "not-found",
                Self::InvalidPath(_) => "invalid-path",
                Self::NotAFile => "not-a-file",
                Self::NotADirectory => "not-a-directory",
                Self::AlreadyExists => "already-exists",
                Self::Limit(_) => "limit",
                Self::Other(_) => "other",
            }
        }

        /// The error, in words fit for a model.
        #[must_use]
        pub fn text(&self) -> String {
            match self {
                Self::Denied(rule) => format!("the policy does not allow it: {rule}"),
                Self::NotFound => "there is nothing at this path".into(),
                Self::InvalidPath(why) => format!("not a path inside the workspace: {why}"),
                Self::NotAFile => "this is not a file".into(),
                Self::NotADirectory => "this is not a directory".into(),
                Self::AlreadyExists => "there is a file at this path".into(),
                Self::Limit(which) => format!("too much: {which}"),
                Self::Other(why) => why.clone(),
            }
        }
    }
}

/// Requests to the addresses that the policy lists.
pub mod http {
    pub use crate::bindings::agent::taskrun::plugin::http::{Header, HttpError, Request, Response};
    pub use crate::host::http::send;

    impl HttpError {
        /// The case's name in the contract, for `ToolError::code`.
        #[must_use]
        pub fn code(&self) -> &'static str {
            match self {
                Self::Denied(_) => "denied",
                Self::InvalidRequest(_) => "invalid-request",
                Self::Unreachable(_) => "unreachable",
                Self::Timeout => "timeout",
                Self::Limit(_) => "limit",
                Self::Canceled => "canceled",
                Self::Other(_) => "other",
            }
        }

        /// The error, in words fit for a model.
        #[must_use]
        pub fn text(&self) -> String {
            match self {
                Self::Denied(rule) => format!("the policy does not allow it: {rule}"),
                Self::InvalidRequest(why) => format!("not a request that can be sent: {why}"),
                Self::Unreachable(why) => format!("nobody answers: {why}"),
                Self::Timeout => "the server took too long".into(),
                Self::Limit(which) => format!("too much: {which}"),
                Self::Canceled => "the run is being canceled".into(),
                Self::Other(why) => why.clone(),
            }
        }
    }
}

/// Events of an agent for observers of its run.
pub mod events {
    pub use crate::host::events::{
        assistant_chunk, assistant_message, planner_thinking_block, planner_thought,
        tool_call_args_delta, usage_delta,
    };
}

/// The conversation of the run, which the host has. An agent that uses this is shown in its later
/// steps only what is new: the messages and results that the step which decided last was not given.
/// [`ask_conversation`](crate::agent::ask_conversation) uses it.
pub mod conversation {
    pub use crate::conversation_host::conversation::{complete, read, stream};
}

/// The language models that the policy names.
pub mod model {
    pub use crate::bindings::agent::taskrun::plugin::model::{
        Chunk, Completion, CompletionRequest, CompletionStop, ModelError, ToolAccess,
        ToolCallDelta, ToolChoice,
    };
    pub use crate::host::model::{CompletionStream, complete, stream};

    impl CompletionRequest {
        /// The agent's own model, shown `messages` and all its tools, with the policy's settings.
        #[must_use]
        pub fn new(messages: Vec<crate::types::Message>) -> Self {
            Self {
                model: None,
                messages,
                tools: ToolAccess::All,
                tool_choice: ToolChoice::Auto,
                max_tokens: None,
                temperature: None,
                stop_sequences: Vec::new(),
                response_schema: None,
            }
        }
    }

    impl ModelError {
        /// The error's word for `PlannerError::code`: the case's name in the contract, and
        /// `model-refused` for a refusal.
        #[must_use]
        pub fn code(&self) -> &'static str {
            match self {
                Self::Denied(_) => "denied",
                Self::UnknownModel(_) => "unknown-model",
                Self::RateLimited(_) => "rate-limited",
                Self::Unavailable(_) => "unavailable",
                Self::InvalidRequest(_) => "invalid-request",
                Self::NotFound(_) => "not-found",
                Self::Refused(_) => "model-refused",
                Self::Misfit(_) => "misfit",
                Self::Budget(_) => "budget",
                Self::Timeout => "timeout",
                Self::Canceled => "canceled",
                Self::Other(_) => "other",
            }
        }

        /// The error, in words.
        #[must_use]
        pub fn text(&self) -> String {
            match self {
                Self::Denied(rule) => format!("the policy does not allow this model: {rule}"),
                Self::UnknownModel(name) => format!("there is no model {name}"),
                Self::RateLimited(Some(pause_ms)) => {
                    format!("the model wants a pause of {pause_ms} ms")
                }
                Self::RateLimited(None) => "the model wants a pause".into(),
                Self::Unavailable(why) => format!("the model cannot be reached: {why}"),
                Self::InvalidRequest(why) => format!("the model refuses the request: {why}"),
                Self::NotFound(hash) => format!("the run has no image {hash}"),
                Self::Refused(why) => format!("the model declines to answer: {why}"),
                Self::Misfit(why) => format!("the model's answer {why}"),
                Self::Budget(which) => format!("the budget does not allow it: {which}"),
                Self::Timeout => "the model took too long".into(),
                Self::Canceled => "the run is being canceled".into(),
                Self::Other(why) => why.clone(),
            }
        }
    }
}

/// Facts kept for the session and tenant. Reading and writing are separate permissions: a guest that
/// calls only [`get`](memory::get) and [`search`](memory::search) does not ask for the other, which
/// only tools may have.
pub mod memory {
    pub use crate::bindings::agent::taskrun::plugin::memory::{Fact, MemoryError};
    pub use crate::bindings::tool::taskrun::plugin::memory_write::{
        MemoryScope, NewFact, WriteError,
    };
    pub use crate::host::memory::{get, search};
    pub use crate::tool_host::memory_write::{delete, put};

    impl MemoryError {
        /// The case's name in the contract, for `ToolError::code`.
        #[must_use]
        pub fn code(&self) -> &'static str {
            match self {
                Self::Denied(_) => "denied",
                Self::Other(_) => "other",
            }
        }

        /// The error, in words fit for a model.
        #[must_use]
        pub fn text(&self) -> String {
            match self {
                Self::Denied(rule) => format!("the policy does not allow it: {rule}"),
                Self::Other(why) => why.clone(),
            }
        }
    }

    impl WriteError {
        /// The case's name in the contract, for `ToolError::code`.
        #[must_use]
        pub fn code(&self) -> &'static str {
            match self {
                Self::Denied(_) => "denied",
                Self::Invalid(_) => "invalid",
                Self::Full => "full",
                Self::Canceled => "canceled",
                Self::Other(_) => "other",
            }
        }

        /// The error, in words fit for a model.
        #[must_use]
        pub fn text(&self) -> String {
            match self {
                Self::Denied(rule) => format!("the policy does not allow it: {rule}"),
                Self::Invalid(why) | Self::Other(why) => why.clone(),
                Self::Full => "no more facts fit there; forget some".into(),
                Self::Canceled => "the run is being canceled".into(),
            }
        }
    }
}

/// Small values kept between the steps of one run.
pub mod state {
    pub use crate::bindings::agent::taskrun::plugin::state::StateError;
    pub use crate::host::state::{get, keys, set};
}

/// Prompts that the operator has registered.
pub mod prompts {
    pub use crate::bindings::agent::taskrun::plugin::prompts::PromptError;
    pub use crate::host::prompts::render;

    impl PromptError {
        /// The case's name in the contract, for `PlannerError::code`.
        #[must_use]
        pub fn code(&self) -> &'static str {
            match self {
                Self::Unknown(_) => "unknown",
                Self::InvalidData(_) => "invalid-data",
                Self::Denied(_) => "denied",
                Self::Other(_) => "other",
            }
        }

        /// The error, in words.
        #[must_use]
        pub fn text(&self) -> String {
            match self {
                Self::Unknown(id) => format!("there is no prompt {id}"),
                Self::InvalidData(why) => format!("the data does not fit the prompt: {why}"),
                Self::Denied(rule) => format!("the policy does not allow this prompt: {rule}"),
                Self::Other(why) => format!("the prompt cannot be rendered: {why}"),
            }
        }
    }
}

/// Notes of a planner for its own later turns.
pub mod reminders {
    pub use crate::bindings::agent::taskrun::plugin::reminders::{
        ReminderError, ReminderSpec, Tier,
    };
    pub use crate::host::reminders::{add, remove};
    pub use crate::types::Attachment;
}
