//! Which metrics a rule is about.

use taskrun_journal::metrics::is_metric_name;

/// Which metrics a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricSelector {
    /// All, written `*`.
    Any,
    /// The one of this name.
    Named(String),
}

impl MetricSelector {
    /// Reads a name or `*`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "*" => Some(Self::Any),
            name => is_metric_name(name).then(|| Self::Named(name.to_owned())),
        }
    }

    /// Whether it selects a metric.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Named(known) => known == name,
        }
    }

    /// Whether it selects all.
    pub(super) fn is_everything(&self) -> bool {
        match self {
            Self::Any => true,
            Self::Named(_) => false,
        }
    }

    /// Whether it selects all that another one does.
    pub(super) fn covers(&self, other: &Self) -> bool {
        match other {
            Self::Any => self.is_everything(),
            Self::Named(name) => self.matches(name),
        }
    }
}
