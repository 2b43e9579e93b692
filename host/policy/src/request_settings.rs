//! Settings of `[model.NAME]` that go into each of its requests.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

/// Most headers, and most parameters of the query, of one model.
pub(crate) const PAIRS_MAX: usize = 32;
/// Most bytes of the value of a header or of a parameter.
pub(crate) const PAIR_BYTES_MAX: usize = 4 << 10;

/// Settings that an operator gives a model's requests beside those that the host needs itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestSettings {
    /// The effort with which the model reasons; `None` leaves that to the provider.
    pub effort: Option<Effort>,
    /// Allows or forbids several calls in one answer; `None` leaves that to the provider.
    pub parallel_tool_calls: Option<bool>,
    /// Headers, by their names in lower case. None of them is one that the host sets.
    pub headers: BTreeMap<String, Undisclosed>,
    /// Parameters of the address.
    pub query: BTreeMap<String, Undisclosed>,
    /// Further members of the request's body. None of them is one that the host sets.
    pub extra: Map<String, Value>,
}

/// A text that no log shows, as operators write secrets of gateways there.
#[derive(Clone, PartialEq, Eq)]
pub struct Undisclosed(String);

impl Undisclosed {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The text, for the request.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// Prints that there is one.
impl fmt::Debug for Undisclosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// The amount of a model's reasoning, in the words of OpenAI and Anthropic. Which of them a model takes is for
/// its provider to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// It does not reason.
    None,
    /// As little as it can.
    Minimal,
    /// Little.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
    /// More than much.
    XHigh,
    /// As much as it can.
    Max,
}

impl Effort {
    /// Every amount, with its word in the policy and in requests.
    pub(crate) const ALL: [(&'static str, Self); 7] = [
        ("none", Self::None),
        ("minimal", Self::Minimal),
        ("low", Self::Low),
        ("medium", Self::Medium),
        ("high", Self::High),
        ("xhigh", Self::XHigh),
        ("max", Self::Max),
    ];

    /// True for those that Anthropic knows.
    pub(crate) fn is_of_anthropic(self) -> bool {
        match self {
            Self::None | Self::Minimal => false,
            Self::Low | Self::Medium | Self::High | Self::XHigh | Self::Max => true,
        }
    }

    /// The word in requests.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::XHigh => "xhigh",
            Self::Max => "max",
        }
    }
}
