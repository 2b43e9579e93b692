//! The folders that were granted, asked about once more where an operation has waited for its
//! thread: the rules may have become others meanwhile.

use std::sync::Arc;

use rustix::io::Errno;
use taskrun::scope::CallScope;
use taskrun_policy::{CallRules, Capability, Denial, Preopen};

/// The folders of a call, as far as it was checked that they are granted.
#[derive(Clone)]
pub(in crate::host) struct GrantCheck {
    scope: Arc<CallScope>,
    /// The number of changes of the rules after which they were granted.
    changes: u64,
    granted: Arc<[Preopen]>,
}

impl GrantCheck {
    pub(in crate::host) fn new(
        scope: &Arc<CallScope>,
        changes: u64,
        granted: &Arc<[Preopen]>,
    ) -> Self {
        Self { scope: Arc::clone(scope), changes, granted: Arc::clone(granted) }
    }

    /// Refuses where one of the folders is not granted any more. The guest ends at its next host call,
    /// which records the rule.
    pub(in crate::host) fn pass(&self) -> Result<(), Errno> {
        if self.scope.rule_changes() == self.changes {
            return Ok(());
        }
        match lost(&self.scope.rules(), &self.granted) {
            Some(_) => Err(Errno::PERM),
            None => Ok(()),
        }
    }
}

/// The first of these folders that the rules do not grant any more, with what they refuse of it.
pub(super) fn lost(rules: &CallRules, granted: &[Preopen]) -> Option<(Capability, String, Denial)> {
    granted.iter().find_map(|Preopen { dir, writable }| {
        let needed = std::iter::once(Capability::WorkspaceRead)
            .chain(writable.then_some(Capability::WorkspaceWrite));
        let mut refused = needed.filter_map(|what| Some((what, rules.folder_denial(what, dir)?)));
        refused.next().map(|(what, denial)| (what, dir.clone(), denial))
    })
}
