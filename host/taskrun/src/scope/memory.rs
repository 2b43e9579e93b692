//! The port to memory: facts by key, and by the words in them.

use std::sync::Arc;

use taskrun_journal::fact::{FactNamespace, MemoryScope};
use taskrun_journal::ids::RunId;
use taskrun_journal::memory::Memory;

/// The access of a call to memory.
#[derive(Clone)]
pub struct MemoryAccess {
    /// Keeps the facts.
    pub memory: Arc<dyn Memory>,
    /// The facts of the session.
    pub session: FactNamespace,
    /// Those of the tenant.
    pub tenant: FactNamespace,
    /// The run, and what the call is known by when it is repeated; `None` for a call that belongs
    /// to no run.
    pub writer: Option<(RunId, String)>,
}

impl std::fmt::Debug for MemoryAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryAccess").field("session", &self.session).finish_non_exhaustive()
    }
}

impl MemoryAccess {
    /// Where the facts of a scope are.
    #[must_use]
    pub(crate) fn place(&self, scope: MemoryScope) -> &FactNamespace {
        match scope {
            MemoryScope::Session => &self.session,
            MemoryScope::Tenant => &self.tenant,
        }
    }
}
