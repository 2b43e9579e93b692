//! Adding to the metadata of a run when it ends.

pub use crate::bindings::agent_finalizer::exports::taskrun::plugin::finalizer::{
    EndStatus, FinalizeInput, FinalizerError,
};
use crate::types::Label;

/// An agent that has a word to say on each of its runs after the outcome is fixed:
///
/// ```
/// use taskrun_guest::agent::{
///     Agent, FinalizeInput, Finalizer, FinalizerError, PlanInput, PlanResult, PlanResumeInput,
///     PlannerError,
/// };
/// use taskrun_guest::types::Label;
///
/// struct Greeter;
///
/// impl Agent for Greeter {
///     fn start(_: PlanInput) -> Result<PlanResult, PlannerError> {
///         Ok(PlanResult::final_text("hello"))
///     }
///
///     fn resume(_: PlanResumeInput) -> Result<PlanResult, PlannerError> {
///         Err(PlannerError::new("a greeter calls no tools"))
///     }
/// }
///
/// impl Finalizer for Greeter {
///     fn finalize(input: FinalizeInput) -> Result<Vec<Label>, FinalizerError> {
///         let letters = input.result.map_or(0, |text| text.chars().count());
///         Ok(vec![("letters".into(), letters.to_string())])
///     }
/// }
///
/// taskrun_guest::export_agent!(Greeter, finalizer);
///
/// # fn main() {
/// let input = taskrun_guest::native::finalize_input("hello");
/// assert_eq!(Greeter::finalize(input), Ok(vec![("letters".into(), "5".into())]));
/// # }
/// ```
pub trait Finalizer {
    /// Names keys and values for the run's metadata: at most 64 keys, and 4 KiB a key or value.
    /// Called once for each run, also for one that failed or was canceled before it began.
    ///
    /// # Errors
    ///
    /// When there is nothing to add. The error is recorded; the run's outcome stays what it is.
    fn finalize(input: FinalizeInput) -> Result<Vec<Label>, FinalizerError>;
}

impl FinalizerError {
    /// An error without code and causes.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: None, message: message.into(), causes: Vec::new() }
    }

    /// Adds a short lower-case word for programs.
    #[must_use]
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }
}

impl EndStatus {
    /// The case's name in the contract.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }
}

/// The function that a finalizer exports.
#[doc(hidden)]
pub type Entry = fn(FinalizeInput) -> Result<Vec<Label>, FinalizerError>;
