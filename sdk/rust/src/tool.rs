//! Writing a tool: [`tool!`] for a table of functions, or [`Tool`] and [`export_tool!`] by hand.
//!
//! [`tool!`]: crate::tool!
//! [`export_tool!`]: crate::export_tool!

pub use crate::bindings::tool::exports::taskrun::plugin::tools::{ToolCall, ToolResult};
pub use crate::types::{
    Bounds, RetryHint, RetryReason, Telemetry, ToolError, ToolFailure, ToolHints, ToolSpec,
};
use std::ops::Deref;

/// A component with functions.
pub trait Tool {
    /// Its functions, the same each time. Only `log` can be used here.
    fn describe() -> Vec<ToolSpec>;

    /// Executes a call, which the host has checked against the function's schema.
    ///
    /// # Errors
    ///
    /// When the call failed. The run that made it goes on and is told.
    fn call(call: ToolCall) -> Result<ToolResult, Failure>;
}

/// The failure of a call: a [`ToolFailure`] in a box, since errors that are handed up should be
/// small.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure(Box<ToolFailure>);

impl ToolResult {
    /// A result, given as JSON.
    #[must_use]
    pub fn new(json: impl Into<String>) -> Self {
        Self {
            value: json.into(),
            server_data: None,
            bounds: None,
            telemetry: None,
            media: Vec::new(),
        }
    }

    /// A result that serde can write.
    ///
    /// # Errors
    ///
    /// With code `unserializable` for what has no JSON, such as a map with keys that are no text.
    #[cfg(feature = "json")]
    pub fn json<T: serde::Serialize + ?Sized>(value: &T) -> Result<Self, Failure> {
        serde_json::to_string(value).map(Self::new).map_err(|error| {
            Failure::new(format!("the result is not JSON: {error}")).code("unserializable")
        })
    }

    /// Says which part of a larger result this is.
    #[must_use]
    pub fn bounds(mut self, bounds: Bounds) -> Self {
        self.bounds = Some(bounds);
        self
    }

    /// Adds an image that a model is shown with the result: a PNG, JPEG, GIF or WebP.
    #[must_use]
    pub fn image(mut self, bytes: Vec<u8>) -> Self {
        self.media.push(bytes);
        self
    }

    /// Adds data for the agent and the operator, as JSON, that no model is given.
    #[must_use]
    pub fn server_data(mut self, json: impl Into<String>) -> Self {
        self.server_data = Some(json.into());
        self
    }
}

impl ToolCall {
    /// The arguments.
    ///
    /// # Errors
    ///
    /// With code `invalid-arguments` and a hint if they do not fit `T`.
    #[cfg(feature = "json")]
    pub fn args<T: serde::de::DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_str(&self.payload).map_err(|error| {
            let mut hint = RetryHint::new(RetryReason::InvalidArguments, &self.name);
            hint.prior_input = Some(self.payload.clone());
            Failure::new(format!("the arguments do not fit: {error}"))
                .code("invalid-arguments")
                .hint(hint)
        })
    }
}

impl Failure {
    /// A failure without code and hint.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self(Box::new(ToolFailure { error: ToolError::new(message), retry_hint: None }))
    }

    /// A failure for an error of Rust, with its sources as causes.
    #[must_use]
    pub fn of(error: &dyn std::error::Error) -> Self {
        Self(Box::new(ToolFailure { error: ToolError::of(error), retry_hint: None }))
    }

    /// The answer to a call of a function that the tool does not have.
    #[must_use]
    pub fn unknown_function(name: &str) -> Self {
        Self::new(format!("no function `{name}` here")).code("unknown-function")
    }

    /// Adds a short lower-case word for programs.
    #[must_use]
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.0.error.code = Some(code.into());
        self
    }

    /// Adds what led to it, after the causes already there.
    #[must_use]
    pub fn cause(mut self, cause: impl Into<String>) -> Self {
        self.0.error.causes.push(cause.into());
        self
    }

    /// Adds how to try again.
    #[must_use]
    pub fn hint(mut self, hint: RetryHint) -> Self {
        self.0.retry_hint = Some(hint);
        self
    }
}

impl Deref for Failure {
    type Target = ToolFailure;

    fn deref(&self) -> &ToolFailure {
        &self.0
    }
}

impl From<ToolFailure> for Failure {
    fn from(failure: ToolFailure) -> Self {
        Self(Box::new(failure))
    }
}

impl From<Failure> for ToolFailure {
    fn from(failure: Failure) -> Self {
        *failure.0
    }
}

/// The two functions that a tool exports.
#[doc(hidden)]
pub type Entries = (fn() -> Vec<ToolSpec>, fn(ToolCall) -> Result<ToolResult, ToolFailure>);

/// A doc comment as the text it stands for: the lines of a paragraph joined, paragraphs apart.
#[doc(hidden)]
#[must_use]
pub fn doc_text(lines: &[&str]) -> String {
    let mut text = String::new();
    for line in lines {
        let line = line.trim();
        if line.is_empty() {
            text.push_str("\n\n");
        } else {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push(' ');
            }
            text.push_str(line);
        }
    }
    text.trim().to_owned()
}

/// A tool, as a table of its functions.
///
/// Each entry is the description that a model reads, as a doc comment; the function's name; in
/// parentheses its input schema and whatever builder methods of [`ToolSpec`] apply; and the Rust
/// function that executes it, `fn(&ToolCall) -> Result<ToolResult, Failure>`.
///
/// ```
/// use taskrun_guest::tool::{Failure, ToolCall, ToolResult};
///
/// fn now(_: &ToolCall) -> Result<ToolResult, Failure> {
///     Ok(ToolResult::new(taskrun_guest::clock::now().to_string()))
/// }
///
/// taskrun_guest::tool! {
///     /// The time of day,
///     /// in milliseconds since 1970.
///     fn now(r#"{"type":"object","additionalProperties":false}"#, read_only, tag("time")) => now;
/// }
///
/// # fn main() {
/// use taskrun_guest::tool::Tool;
/// let functions = Functions::describe();
/// assert_eq!(functions[0].description, "The time of day, in milliseconds since 1970.");
/// # }
/// ```
///
/// A function without a description does not compile:
///
/// ```compile_fail
/// # use taskrun_guest::tool::{Failure, ToolCall, ToolResult};
/// # fn now(_: &ToolCall) -> Result<ToolResult, Failure> { Ok(ToolResult::new("0")) }
/// taskrun_guest::tool! {
///     fn now(r#"{"type":"object"}"#) => now;
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! tool {
    ($(
        $(#[doc = $doc:literal])*
        fn $name:ident ($schema:expr $(, $method:ident $(($($argument:expr),*))?)* $(,)?)
            => $function:path;
    )+) => {
        $($crate::__described!($name $($doc)*);)+

        /// The functions of this component.
        struct Functions;

        impl $crate::tool::Tool for Functions {
            fn describe() -> ::std::vec::Vec<$crate::tool::ToolSpec> {
                ::std::vec![$(
                    $crate::tool::ToolSpec::new(
                        stringify!($name),
                        $crate::tool::doc_text(&[$($doc),*]),
                        $schema,
                    )$(.$method($($($argument),*)?))*
                ),+]
            }

            fn call(
                call: $crate::tool::ToolCall,
            ) -> ::std::result::Result<$crate::tool::ToolResult, $crate::tool::Failure> {
                match call.name.as_str() {
                    $(stringify!($name) => $function(&call),)+
                    other => ::std::result::Result::Err(
                        $crate::tool::Failure::unknown_function(other),
                    ),
                }
            }
        }

        $crate::export_tool!(Functions);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __described {
    ($name:ident) => {
        ::std::compile_error!(::std::concat!(
            "function `",
            stringify!($name),
            "` needs a doc comment: it is the description that a model reads"
        ));
    };
    ($name:ident $($doc:literal)+) => {};
}

/// Makes a type that implements [`Tool`] this component's tool. Exports
/// nothing on other targets than WebAssembly.
#[macro_export]
macro_rules! export_tool {
    ($tool:ty) => {
        const _: () = {
            struct Exported;

            impl $crate::bindings::tool::exports::taskrun::plugin::tools::Guest for Exported {
                fn describe() -> ::std::vec::Vec<$crate::tool::ToolSpec> {
                    $crate::panics::install_hook();
                    <$tool as $crate::tool::Tool>::describe()
                }

                fn call(
                    call: $crate::tool::ToolCall,
                ) -> ::std::result::Result<$crate::tool::ToolResult, $crate::tool::ToolFailure>
                {
                    $crate::panics::install_hook();
                    <$tool as $crate::tool::Tool>::call(call).map_err(::std::convert::Into::into)
                }
            }

            #[cfg(target_arch = "wasm32")]
            $crate::bindings::tool::export_tool_world!(
                Exported with_types_in $crate::bindings::tool
            );

            // Elsewhere nothing calls these, and nothing is unused for that.
            #[cfg(not(target_arch = "wasm32"))]
            const _: $crate::tool::Entries = {
                use $crate::bindings::tool::exports::taskrun::plugin::tools::Guest;
                (<Exported as Guest>::describe, <Exported as Guest>::call)
            };
        };
    };
}
