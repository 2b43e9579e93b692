//! The decisions of rules about the doings of a call, and their refusals, which stand.

use std::collections::BTreeMap;

use taskrun_journal::event::Event;
use taskrun_journal::text::cut;
use taskrun_policy::{Capability, Denial, Use};

use super::CallScope;

/// Most bytes of the subject of a refusal in the journal; a guest chooses it.
const SUBJECT_BYTES_MAX: usize = 1_024;
/// Most refusals of a call in the journal, and most bytes of them: enough to see what it was after.
/// Whatever else a guest has written down takes nothing of that.
const REFUSALS_MAX: u32 = 1_000;
const REFUSAL_BYTES_MAX: u64 = 1 << 20;
/// The subject of a refusal of the model that an agent asks without naming one.
const OWN_MODEL: &str = "(the agent's own)";

/// The refusals of a call, counted apart from what the guest has written down.
#[derive(Default)]
pub(super) struct Refusals {
    recorded: u32,
    bytes: u64,
    /// Those over the bounds, by their capability.
    dropped: BTreeMap<String, u32>,
}

impl Refusals {
    /// True if one of so many bytes has room.
    pub(super) fn admit(&mut self, size: u64) -> bool {
        let bytes = self.bytes.saturating_add(size);
        let has_room = self.recorded < REFUSALS_MAX && bytes <= REFUSAL_BYTES_MAX;
        if has_room {
            (self.recorded, self.bytes) = (self.recorded + 1, bytes);
        }
        has_room
    }

    /// Counts one that is not put on record.
    pub(super) fn count_dropped(&mut self, capability: &str) {
        let dropped = self.dropped.entry(capability.to_owned()).or_default();
        *dropped = dropped.saturating_add(1);
    }

    /// The counts of those that are not on record, which are taken out.
    pub(super) fn take_dropped(&mut self) -> BTreeMap<String, u32> {
        std::mem::take(&mut self.dropped)
    }
}

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

    /// The refusal of every model, to an agent that has none of its own and names none.
    pub(super) fn denial_of_models(&self) -> Option<Denial> {
        let denied = self.rules().denial_of_all(Capability::Model);
        denied.or_else(|| self.refused_before(Capability::Model, OWN_MODEL))
    }

    fn decide_about(&self, used: &Use<'_>, subject: &str) -> Result<(), Denial> {
        self.rules().decide(used)?;
        let subject = cut(subject, SUBJECT_BYTES_MAX);
        self.refused_before(used.capability(), subject).map_or(Ok(()), Err)
    }

    /// The refusal that the step was told here when it ran before, under other rules.
    fn refused_before(&self, capability: Capability, subject: &str) -> Option<Denial> {
        let open = self.open();
        open.tape.as_ref().and_then(|tape| tape.refusal(&capability.to_string(), subject))
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
