//! The decisions of rules about the doings of a call, and their refusals, which stand.

use taskrun_journal::event::Event;
use taskrun_journal::text::cut;
use taskrun_policy::{Capability, Denial, Use};

use super::CallScope;

/// Most bytes of the subject of a refusal in the journal; a guest chooses it.
const SUBJECT_BYTES_MAX: usize = 1_024;
/// The subject of a refusal of the model that an agent asks without naming one.
const OWN_MODEL: &str = "(the agent's own)";

impl CallScope {
    /// Decides about a use by the rules as they are now. What a step was refused when it ran before
    /// stays refused where the rules have become others since: it goes on as it did, and what it
    /// asked for instead, and paid, is of use.
    ///
    /// # Errors
    /// [`Denial`], which is to be recorded with [`Self::record_denial`] before anything else is.
    pub fn decide(&self, used: &Use<'_>) -> Result<(), Denial> {
        self.decide_about(used, &used.subject())
    }

    /// Decides about a use, as [`Self::decide`] does, and records a refusal.
    ///
    /// # Errors
    /// The refusal, in words for the guest.
    pub fn allow(&self, used: &Use<'_>) -> Result<(), String> {
        self.decide(used).map_err(|denied| {
            self.record_denial(used.capability(), &used.subject(), &denied);
            denied.for_guest
        })
    }

    /// The same decision about the model that the agent asks without naming one.
    pub(super) fn decide_own_model(&self, name: &str) -> Result<(), Denial> {
        self.decide_about(&Use::Model(name), OWN_MODEL)
    }

    fn decide_about(&self, used: &Use<'_>, subject: &str) -> Result<(), Denial> {
        self.rules().decide(used)?;
        let (capability, subject) =
            (used.capability().to_string(), cut(subject, SUBJECT_BYTES_MAX));
        let open = self.open();
        let refused = open.tape.as_ref().and_then(|tape| tape.refusal(&capability, subject));
        refused.map_or(Ok(()), Err)
    }

    /// Records that a rule refused something.
    pub fn record_denial(&self, capability: Capability, subject: &str, denial: &Denial) {
        let Denial { rule, for_guest } = denial;
        self.record(Event::PolicyDecision {
            capability: capability.to_string(),
            subject: cut(subject, SUBJECT_BYTES_MAX).to_owned(),
            rule: rule.clone(),
            told: Some(for_guest.clone()),
            decided: None,
        });
    }

    /// Records that a rule refused the model that the agent asks without naming one.
    pub fn record_denial_of_own_model(&self, told: &str) {
        let denial = Denial { for_guest: told.to_owned(), rule: told.to_owned() };
        self.record_denial(Capability::Model, OWN_MODEL, &denial);
    }

    /// Records that something was refused for another reason than a rule: a bound, or that it is a
    /// file of the host.
    pub fn record_refusal(&self, capability: Capability, subject: &str, reason: String) {
        self.record(Event::PolicyDecision {
            capability: capability.to_string(),
            subject: cut(subject, SUBJECT_BYTES_MAX).to_owned(),
            rule: reason,
            told: None,
            decided: None,
        });
    }
}
