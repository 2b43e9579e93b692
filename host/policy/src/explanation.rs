//! Decisions layer by layer: what each set of rules among those that bound a run says of one use,
//! and what would turn it.

use std::fmt;

use crate::change::RuleChange;
use crate::grants::Decision;
use crate::rule::Rule;

/// A set of rules among those that bound a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleLayer {
    /// The rules of the run's own agent, under the policy of its pin.
    Own,
    /// The rules that the policy as it is now has for an agent of an earlier one.
    Now {
        /// The agent: the run's own, or one above it.
        agent: String,
    },
    /// The rules of the agent of a run above, under the policy of its pin.
    Above {
        /// The agent.
        agent: String,
    },
    /// The narrowing of a request.
    Request {
        /// For whom it is: `this run`, or the agent of a run above.
        of: String,
    },
    /// A run above of which nothing is recorded.
    Unrecorded,
}

/// The answer of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerOutcome<T> {
    /// The answer of its rules.
    Asked(T),
    /// It is about a path outside of the workspace that the rules are about, which they cannot
    /// allow.
    Outside,
    /// Its rules are not known here, so nothing is allowed.
    Unknown,
}

/// The decision of a layer about one use, and what would turn it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerExplanation<'r> {
    /// The layer.
    pub layer: &'r RuleLayer,
    /// Its decision.
    pub outcome: LayerOutcome<Decision<'r>>,
    /// The change of its rules that turns the decision; `None` if no change does.
    pub change: Option<RuleChange<'r>>,
}

/// The words for rules that this host does not have.
const UNKNOWN: &str = "what it allows is not known here";
/// The words for a path that rules have no name for.
const OUTSIDE: &str = "it is outside of its workspace";

impl LayerOutcome<Decision<'_>> {
    /// Tells if the layer lets the use pass.
    #[must_use]
    pub fn allowed(&self) -> bool {
        match self {
            Self::Asked(decision) => decision.allowed,
            Self::Outside | Self::Unknown => false,
        }
    }

    /// Tells if no rule of the layer is about the use: one that allows it is all that is missing.
    #[must_use]
    pub fn is_unlisted(&self) -> bool {
        match self {
            Self::Asked(decision) => decision.is_unlisted(),
            Self::Outside | Self::Unknown => false,
        }
    }
}

/// Prints the decision with its rule and the place of that, for operators.
impl fmt::Display for LayerOutcome<Decision<'_>> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked(decision) => decision.fmt(f),
            Self::Outside => f.write_str(OUTSIDE),
            Self::Unknown => f.write_str(UNKNOWN),
        }
    }
}

impl<'r> LayerExplanation<'r> {
    pub(crate) fn new(
        layer: &'r RuleLayer,
        outcome: LayerOutcome<(Decision<'r>, Option<RuleChange<'r>>)>,
    ) -> Self {
        let (outcome, change) = match outcome {
            LayerOutcome::Asked((decision, change)) => (LayerOutcome::Asked(decision), change),
            LayerOutcome::Outside => (LayerOutcome::Outside, None),
            LayerOutcome::Unknown => (LayerOutcome::Unknown, None),
        };
        Self { layer, outcome, change }
    }

    /// The rule that decided; `None` if none is about the use, or rules were not asked.
    #[must_use]
    pub fn rule(&self) -> Option<&'r Rule> {
        match &self.outcome {
            LayerOutcome::Asked(decision) => decision.rule,
            LayerOutcome::Outside | LayerOutcome::Unknown => None,
        }
    }
}

/// Prints whose rules they are, as refusals name them.
impl fmt::Display for RuleLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("the run's own agent"),
            Self::Now { agent } | Self::Above { agent } => write!(f, "agent {agent}"),
            Self::Request { of } => write!(f, "the request for {of}"),
            Self::Unrecorded => f.write_str("a run above that is not recorded"),
        }
    }
}
