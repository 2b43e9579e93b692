//! Writing an agent: [`Agent`], [`Finalizer`] and [`export_agent!`](crate::export_agent!).

#[doc(hidden)]
pub mod finalizer;
mod reminders;
mod stream;

pub use crate::bindings::agent::exports::taskrun::plugin::planner::{
    Annotation, AwaitAsk, AwaitClarification, AwaitExternalTools, AwaitItem, AwaitMode,
    AwaitQuestions, AwaitRequest, AwaitRuns, Decision, DefaultAnswer, ExternalTool, FinalResponse,
    FinalToolResult, PlanInput, PlanResult, PlanResumeInput, PlannerError, Question,
    QuestionOption, Reminder, Termination, TerminationReason, ToolOutcome, ToolOutput, ToolRequest,
};
use crate::types::{DurationMs, Label, Media, causes_of};
pub use crate::types::{Message, Part, Role, ToolFailure, Usage};
pub use finalizer::{EndStatus, FinalizeInput, Finalizer, FinalizerError};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use reminders::instruct;
pub use reminders::with_reminders;
pub use stream::{Answer, ask_conversation, ask_model, consume_stream};

/// A component that decides. It must decide the same from the same input: after a crash a step
/// is repeated.
pub trait Agent {
    /// Decides the first step of a run.
    ///
    /// # Errors
    ///
    /// When the agent gives up; the run fails.
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError>;

    /// Decides each later step, after tool calls or answers.
    ///
    /// # Errors
    ///
    /// When the agent gives up; the run fails.
    fn resume(input: PlanResumeInput) -> Result<PlanResult, PlannerError>;
}

/// The text of the last message of role `user`, which in the first step is the task. Later steps of an
/// agent that uses [`conversation`](crate::conversation) may be given none.
#[must_use]
pub fn task(messages: &[Message]) -> Option<String> {
    messages.iter().rev().find(|message| message.role == Role::User).map(Message::plain_text)
}

/// Most images of an answer.
const IMAGES_MAX: usize = 16;

/// The images of that message.
#[must_use]
pub fn task_images(messages: &[Message]) -> Vec<Media> {
    let task = messages.iter().rfind(|message| message.role == Role::User);
    let parts = task.into_iter().flat_map(|task| &task.parts);
    let images = parts.filter_map(|part| match part {
        Part::Media(image) => Some(image.clone()),
        Part::Text(_)
        | Part::Json(_)
        | Part::Thinking(_)
        | Part::ToolUse(_)
        | Part::ToolAnswer(_) => None,
    });
    images.collect()
}

/// The images of the results that came since the agent spoke last, each once and at most 16 of them:
/// those which an answer is about that is given on them. An agent that uses
/// [`conversation`](crate::conversation) finds those that are new to its step.
#[must_use]
pub fn result_images(messages: &[Message]) -> Vec<Media> {
    let since = messages.iter().rposition(|message| message.role == Role::Assistant);
    let parts = messages[since.unwrap_or(0)..].iter().flat_map(|message| &message.parts);
    let images = parts.flat_map(|part| match part {
        Part::ToolAnswer(answer) => &answer.media[..],
        Part::Text(_) | Part::Json(_) | Part::Thinking(_) | Part::ToolUse(_) | Part::Media(_) => {
            &[]
        }
    });
    let mut shown: Vec<Media> = Vec::new();
    for image in images {
        if shown.len() < IMAGES_MAX && shown.iter().all(|known| known.hash != image.hash) {
            shown.push(image.clone());
        }
    }
    shown
}

impl PlanResult {
    /// A step that answers `decision` and nothing else.
    #[must_use]
    pub fn new(decision: Decision) -> Self {
        Self { decision, streamed: false, expected_children: None, notes: Vec::new() }
    }

    /// Calls tools; at least one.
    #[must_use]
    pub fn tool_calls(requests: Vec<ToolRequest>) -> Self {
        Self::new(Decision::ToolCalls(requests))
    }

    /// Waits until all of these runs, which are beneath this one, have ended. Their outcomes are
    /// the result of the last tool call then.
    #[must_use]
    pub fn await_runs(runs: Vec<String>) -> Self {
        let (mode, timeout, call) = (AwaitMode::All, None, None);
        Self::new(Decision::AwaitRuns(AwaitRuns { runs, mode, timeout, call }))
    }

    /// Asks a person, who answers in free text. The answer is the last message of role `user`
    /// then. `id` is unique among what the run asks.
    #[must_use]
    pub fn ask(id: impl Into<String>, question: impl Into<String>) -> Self {
        let question = AwaitClarification {
            id: id.into(),
            question: question.into(),
            missing_fields: Vec::new(),
            restrict_to_tool: None,
            example_input: None,
            clarifying_prompt: None,
        };
        let what = AwaitItem::Clarification(question);
        let asked = AwaitAsk { what, timeout: None, default_answer: None };
        Self::new(Decision::Await(AwaitRequest { items: vec![asked] }))
    }

    /// Ends the run with a text.
    #[must_use]
    pub fn final_text(text: impl Into<String>) -> Self {
        Self::final_message(Message::text(Role::Assistant, text))
    }

    /// Ends the run with a message.
    #[must_use]
    pub fn final_message(message: Message) -> Self {
        Self::new(Decision::FinalResponse(FinalResponse { message }))
    }

    /// Says that the answer's text already went out in chunks.
    #[must_use]
    pub fn streamed(mut self) -> Self {
        self.streamed = true;
        self
    }

    /// Adds a remark for observers of the run.
    #[must_use]
    pub fn note(self, text: impl Into<String>) -> Self {
        self.labelled_note(text, Vec::new())
    }

    /// Adds a remark for observers of the run, with labels to find it by.
    #[must_use]
    pub fn labelled_note(mut self, text: impl Into<String>, labels: Vec<Label>) -> Self {
        self.notes.push(Annotation { text: text.into(), labels });
        self
    }
}

impl ToolRequest {
    /// A call of `name`, such as `workspace/read`, with arguments given as JSON. The host makes
    /// its id.
    #[must_use]
    pub fn new(name: impl Into<String>, payload: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            payload: payload.into(),
            tool_call_id: None,
            parent_tool_call_id: None,
        }
    }

    /// Keeps a model's own id for the call.
    #[must_use]
    pub fn id(mut self, tool_call_id: impl Into<String>) -> Self {
        self.tool_call_id = Some(tool_call_id.into());
        self
    }
}

impl PlannerError {
    /// An error without code and causes.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: None, message: message.into(), causes: Vec::new(), retry_after: None }
    }

    /// An error of Rust, with its sources as causes.
    #[must_use]
    pub fn of(error: &dyn std::error::Error) -> Self {
        let message = error.to_string();
        Self { code: None, message, causes: causes_of(error), retry_after: None }
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

    /// Asks for a pause before the step is tried again.
    #[must_use]
    pub fn retry_after(mut self, pause_ms: DurationMs) -> Self {
        self.retry_after = Some(pause_ms);
        self
    }
}

impl TerminationReason {
    /// The case's name in the contract.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TimeBudget => "time-budget",
            Self::ToolCap => "tool-cap",
            Self::FailureCap => "failure-cap",
            Self::TurnCap => "turn-cap",
            Self::TokenCap => "token-cap",
            Self::CostCap => "cost-cap",
        }
    }
}

/// The two functions that an agent exports.
#[doc(hidden)]
pub type Entries = (
    fn(PlanInput) -> Result<PlanResult, PlannerError>,
    fn(PlanResumeInput) -> Result<PlanResult, PlannerError>,
);

/// Makes a type that implements [`Agent`] this component's agent, and with `, finalizer` after it
/// a type that implements [`Finalizer`] besides. Exports nothing on other targets than
/// WebAssembly.
#[macro_export]
macro_rules! export_agent {
    ($agent:ty, finalizer) => {
        $crate::export_agent!($agent);

        const _: () = {
            struct Exported;

            impl $crate::bindings::agent_finalizer::exports::taskrun::plugin::finalizer::Guest
                for Exported
            {
                fn finalize(
                    input: $crate::agent::FinalizeInput,
                ) -> ::std::result::Result<
                    ::std::vec::Vec<$crate::types::Label>,
                    $crate::agent::FinalizerError,
                > {
                    $crate::panics::install_hook();
                    <$agent as $crate::agent::Finalizer>::finalize(input)
                }
            }

            #[cfg(target_arch = "wasm32")]
            $crate::bindings::agent_finalizer::export_agent_finalizer_world!(
                Exported with_types_in $crate::bindings::agent_finalizer
            );

            // Elsewhere nothing calls it, and nothing is unused for that.
            #[cfg(not(target_arch = "wasm32"))]
            const _: $crate::agent::finalizer::Entry = {
                use $crate::bindings::agent_finalizer::exports::taskrun::plugin::finalizer::Guest;
                <Exported as Guest>::finalize
            };
        };
    };
    ($agent:ty) => {
        const _: () = {
            struct Exported;

            impl $crate::bindings::agent::exports::taskrun::plugin::planner::Guest for Exported {
                fn plan_start(
                    input: $crate::agent::PlanInput,
                ) -> ::std::result::Result<$crate::agent::PlanResult, $crate::agent::PlannerError>
                {
                    $crate::panics::install_hook();
                    <$agent as $crate::agent::Agent>::start(input)
                }

                fn plan_resume(
                    input: $crate::agent::PlanResumeInput,
                ) -> ::std::result::Result<$crate::agent::PlanResult, $crate::agent::PlannerError>
                {
                    $crate::panics::install_hook();
                    <$agent as $crate::agent::Agent>::resume(input)
                }
            }

            #[cfg(target_arch = "wasm32")]
            $crate::bindings::agent::export_agent_world!(
                Exported with_types_in $crate::bindings::agent
            );

            // Elsewhere nothing calls these, and nothing is unused for that.
            #[cfg(not(target_arch = "wasm32"))]
            const _: $crate::agent::Entries = {
                use $crate::bindings::agent::exports::taskrun::plugin::planner::Guest;
                (<Exported as Guest>::plan_start, <Exported as Guest>::plan_resume)
            };
        };
    };
}
