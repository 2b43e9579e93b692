//! Refusals by a rule, as the journal has them.

use taskrun::scope::CallScope;
use taskrun_policy::Use;

/// Asks the rules of a call about a use; records a refusal, and gives it in words for the guest.
pub(crate) fn allow(scope: &CallScope, used: &Use<'_>) -> Result<(), String> {
    scope.decide(used).map_err(|denied| {
        scope.record_denial(used.capability(), &used.subject(), &denied);
        denied.for_guest
    })
}
