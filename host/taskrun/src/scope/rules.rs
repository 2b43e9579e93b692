//! The rules of a run, as they change under its calls.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use taskrun_journal::event::Event;
use taskrun_policy::CallRules;

use super::CallScope;

/// The rules of a run as they are now: each decision asks them anew, so that a right that is taken
/// away is gone at the next host call. One for each run that a host executes.
pub struct CurrentRules {
    changes: AtomicU64,
    now: Mutex<Arc<RulesUnderPins>>,
}

/// Rules, and the pins of the policy that they come from: of the run's agent and of those above it.
struct RulesUnderPins {
    rules: CallRules,
    pins: Vec<String>,
}

impl fmt::Debug for CurrentRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentRules").field("changes", &self.changes).finish_non_exhaustive()
    }
}

impl CurrentRules {
    /// The rules of a run under a policy in which its agent, and those above it, have these pins.
    #[must_use]
    pub fn new(rules: CallRules, pins: Vec<String>) -> Self {
        Self {
            changes: AtomicU64::new(0),
            now: Mutex::new(Arc::new(RulesUnderPins { rules, pins })),
        }
    }

    /// Rules that nobody replaces.
    #[must_use]
    pub fn fixed(rules: CallRules) -> Arc<Self> {
        Arc::new(Self::new(rules, Vec::new()))
    }

    /// Puts other rules in the place of these, for every decision from now on.
    pub fn replace(&self, rules: CallRules, pins: Vec<String>) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        *now = Arc::new(RulesUnderPins { rules, pins });
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The number of times that they were replaced.
    #[must_use]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The rules as they are now.
    #[must_use]
    pub(crate) fn rules(&self) -> CallRules {
        self.now().1.rules.clone()
    }

    /// The pins of the policy that they come from.
    #[must_use]
    pub(crate) fn pins(&self) -> Vec<String> {
        self.now().1.pins.clone()
    }

    fn now(&self) -> (u64, Arc<RulesUnderPins>) {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        (self.changes(), Arc::clone(&now))
    }
}

/// The rules as a call knows them.
#[derive(Default)]
pub(super) struct KnownRules {
    /// After so many changes.
    pub(super) rules: Option<(u64, CallRules)>,
    /// The pins under which the journal says that the work goes on.
    pub(super) pins: Vec<String>,
}

impl CallScope {
    /// The rules for what is done in the call now. Where they are others than a step began under,
    /// the journal says so before anything that follows from them.
    #[must_use]
    pub fn rules(&self) -> CallRules {
        let changes = self.parts.rules.changes();
        let mut open = self.open();
        if let Some((known, rules)) = &open.rules.rules
            && *known == changes
        {
            return rules.clone();
        }
        let (changes, now) = self.parts.rules.now();
        open.rules.rules = Some((changes, now.rules.clone()));
        if self.is_journalled() && open.rules.pins != now.pins {
            open.rules.pins.clone_from(&now.pins);
            if let Some(tape) = &mut open.tape {
                tape.change_rules();
            }
            self.keep_in(&mut open, Event::RulesChanged { pins: now.pins.clone() });
        }
        now.rules.clone()
    }

    /// The number of times that the rules of the run were replaced since a host began to execute
    /// it.
    #[must_use]
    pub fn rule_changes(&self) -> u64 {
        self.parts.rules.changes()
    }
}
