//! Refusals by a rule, as the journal has them.

use taskrun::scope::CallScope;
use taskrun_journal::event::Event;
use taskrun_policy::{Capability, Use};

/// Most bytes of a denied path or address in the journal; a guest chooses them.
const SUBJECT_BYTES_MAX: usize = 1_024;

/// Records that a rule refused a guest something. `rule` is for operators.
pub(crate) fn record_denial(
    scope: &CallScope,
    capability: Capability,
    subject: &str,
    rule: String,
) {
    let subject = taskrun_journal::text::cut(subject, SUBJECT_BYTES_MAX).to_owned();
    let capability = capability.to_string();
    scope.record(Event::PolicyDecision { capability, subject, rule, decided: None });
}

/// Asks the rules of a call about a use; records a refusal, and gives it in words for the guest.
pub(crate) fn allow(scope: &CallScope, used: &Use<'_>) -> Result<(), String> {
    scope.rules().decide(used).map_err(|denied| {
        record_denial(scope, used.capability(), &used.subject(), denied.rule);
        denied.for_guest
    })
}
