//! Which memory a rule is about.

use taskrun_journal::fact::MemoryScope;

/// Which memory a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemorySelector {
    /// That of the session and that of the tenant, written `*`.
    Any,
    /// This one.
    One(MemoryScope),
}

impl MemorySelector {
    /// Reads `session`, `tenant` or `*`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Any);
        }
        MemoryScope::ALL.into_iter().find(|scope| scope.as_str() == text).map(Self::One)
    }

    /// Whether it selects a memory.
    pub fn matches(self, scope: MemoryScope) -> bool {
        match self {
            Self::Any => true,
            Self::One(known) => known == scope,
        }
    }

    /// Whether it selects both.
    pub(super) fn is_everything(self) -> bool {
        match self {
            Self::Any => true,
            Self::One(_) => false,
        }
    }

    /// Whether it selects all that another one does.
    pub(super) fn covers(self, other: Self) -> bool {
        match other {
            Self::Any => self.is_everything(),
            Self::One(scope) => self.matches(scope),
        }
    }
}
