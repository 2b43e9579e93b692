//! Writing a policy: [`Policy`] and [`export_policy!`](crate::export_policy!).

pub use crate::bindings::policy_engine::exports::taskrun::plugin::policy::{
    Phase, PolicyDecision, PolicyInput, RequestedCall,
};
pub use crate::types::{RetryHint, RetryReason, ToolError, ToolSpec};

/// A component that decides, turn by turn, which of its tools an agent may use:
///
/// ```
/// use taskrun_guest::policy::{Policy, PolicyDecision, PolicyInput, ToolError};
///
/// /// Leaves only tools that change nothing.
/// struct LookOnly;
///
/// impl Policy for LookOnly {
///     fn decide(input: PolicyInput) -> Result<PolicyDecision, ToolError> {
///         Ok(PolicyDecision::only(input.tools.iter().filter(|tool| tool.hints.read_only)))
///     }
/// }
///
/// taskrun_guest::export_policy!(LookOnly);
/// # fn main() {}
/// ```
pub trait Policy {
    /// Decides before a plan step, and again before the calls that it decided on.
    ///
    /// # Errors
    ///
    /// When it cannot decide; no tool is left then.
    fn decide(input: PolicyInput) -> Result<PolicyDecision, ToolError>;
}

impl Default for PolicyDecision {
    /// Takes nothing away.
    fn default() -> Self {
        Self {
            allowed_tools: None,
            tool_calls: None,
            disable_tools: false,
            labels: Vec::new(),
            metadata: Vec::new(),
        }
    }
}

impl PolicyDecision {
    /// Leaves these tools.
    #[must_use]
    pub fn only<'t>(tools: impl Iterator<Item = &'t ToolSpec>) -> Self {
        let names = tools.map(|tool| tool.name.clone()).collect();
        Self { allowed_tools: Some(names), ..Self::default() }
    }

    /// Leaves no tool.
    #[must_use]
    pub fn nothing() -> Self {
        Self { disable_tools: true, ..Self::default() }
    }

    /// Leaves so many calls in this turn.
    #[must_use]
    pub fn calls(mut self, most: u32) -> Self {
        self.tool_calls = Some(most);
        self
    }

    /// Adds a label that later decisions about the run are shown.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.push((key.into(), value.into()));
        self
    }
}

/// The function that a policy exports.
#[doc(hidden)]
pub type Entry = fn(PolicyInput) -> Result<PolicyDecision, ToolError>;

/// Makes a type that implements [`Policy`] this component's policy. Exports
/// nothing on other targets than WebAssembly.
#[macro_export]
macro_rules! export_policy {
    ($policy:ty) => {
        const _: () = {
            struct Exported;

            impl $crate::bindings::policy_engine::exports::taskrun::plugin::policy::Guest
                for Exported
            {
                fn decide(
                    input: $crate::policy::PolicyInput,
                ) -> ::std::result::Result<$crate::policy::PolicyDecision, $crate::policy::ToolError>
                {
                    $crate::panics::install_hook();
                    <$policy as $crate::policy::Policy>::decide(input)
                }
            }

            #[cfg(target_arch = "wasm32")]
            $crate::bindings::policy_engine::export_policy_engine_world!(
                Exported with_types_in $crate::bindings::policy_engine
            );

            // Elsewhere nothing calls it, and nothing is unused for that.
            #[cfg(not(target_arch = "wasm32"))]
            const _: $crate::policy::Entry = {
                use $crate::bindings::policy_engine::exports::taskrun::plugin::policy::Guest;
                <Exported as Guest>::decide
            };
        };
    };
}
