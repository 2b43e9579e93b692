//! Pins: a run is executed with its agent, and beneath those of all runs above it, in the form in
//! which it was accepted, or which it was given since.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::hold::Lane;
use crate::run::Run;
use crate::spec::{RunClass, RunSpec};

/// Stands between two pins; no pin has it.
const BETWEEN: char = ' ';
/// Stands between the name of an agent and the digest in a pin; no name has it.
const BEFORE_DIGEST: char = '@';
/// Stands between the name of an agent and a digest of its rules alone.
const BEFORE_RULES: char = '!';

/// The pins of a run: its own, then those of the runs above it, each once.
///
/// Each is the name of an agent, an `@` and a digest of all that decides about its runs. An entry of
/// a heartbeat, which no host executes, has the name of its agent alone: a host that has an agent of
/// this name, in whatever form, takes it into a batch and ends it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pins(String);

impl Pins {
    /// Those that are in force for a run.
    #[must_use]
    pub fn of(run: &Run) -> Self {
        Self::beneath(run.pin(), &run.spec)
    }

    /// Those that a run is accepted with.
    #[must_use]
    pub(crate) fn accepted(spec: &RunSpec) -> Self {
        Self::beneath(&spec.pin, spec)
    }

    fn beneath(own: &str, spec: &RunSpec) -> Self {
        match spec.class {
            RunClass::Task => {}
            RunClass::Heartbeat => return Self(spec.agent_name.clone()),
        }
        let above: BTreeSet<&str> = spec.ancestors.iter().map(|one| one.pin.as_str()).collect();
        let mut text = own.to_owned();
        for pin in above.into_iter().filter(|pin| *pin != own) {
            text.push(BETWEEN);
            text.push_str(pin);
        }
        Self(text)
    }

    /// The pins of a text that [`Self::as_str`] gave.
    #[must_use]
    pub fn from_text(text: String) -> Self {
        Self(text)
    }

    /// All of them as one text, for stores.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The run's own.
    #[must_use]
    pub fn own(&self) -> &str {
        self.0.split(BETWEEN).next().unwrap_or_default()
    }

    /// All of them, the run's own first.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.0.split(BETWEEN)
    }

    /// Those of the runs above it that have another one than it.
    pub fn ancestors(&self) -> impl Iterator<Item = &str> {
        self.0.split(BETWEEN).skip(1)
    }
}

/// The agent of a pin, of what stands for one, or of an entry's name.
#[must_use]
pub fn agent_of(pin: &str) -> &str {
    pin.split_once([BEFORE_DIGEST, BEFORE_RULES]).map_or(pin, |(name, _)| name)
}

/// False for an entry's name, and for what stands for a pin: nothing is kept under these.
#[must_use]
pub fn has_digest(pin: &str) -> bool {
    pin.contains(BEFORE_DIGEST)
}

/// The pin of an agent that has this digest: its name, an `@` and the digest.
#[must_use]
pub fn pin(agent: &str, digest: &str) -> String {
    format!("{agent}{BEFORE_DIGEST}{digest}")
}

/// The text that stands for the pin of an agent whose components are missing, among the pins of a
/// policy that is in force: its rules have this digest, and no run is accepted with it.
#[must_use]
pub fn pin_of_rules(agent: &str, digest: &str) -> String {
    format!("{agent}{BEFORE_RULES}{digest}")
}

/// The pins of one agent under several policies, as one text.
#[must_use]
pub fn join<'p>(pins: impl IntoIterator<Item = &'p str>) -> String {
    let pins: Vec<&str> = pins.into_iter().collect();
    pins.join(&BETWEEN.to_string())
}

/// The pins of a text that [`join`] gave.
pub fn split(pins: &str) -> impl Iterator<Item = &str> {
    pins.split(BETWEEN)
}

/// The runs that are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// All.
    All,
    /// Those of agents with these names, beneath runs of such, whatever their pins.
    Named(Arc<BTreeSet<String>>),
    /// Those all of whose pins are among these.
    Only {
        /// Pins of agents whose runs can be executed, and names of agents whose entries are taken.
        own: Arc<BTreeSet<String>>,
        /// Pins of agents of which those runs are taken, too, that were never executed.
        fresh: Arc<BTreeSet<String>>,
        /// Pins of agents that may stand above them.
        ancestors: Arc<BTreeSet<String>>,
    },
}

impl Ready {
    /// Runs with these pins, and those beneath such.
    #[must_use]
    pub fn only<'p>(pins: impl IntoIterator<Item = &'p str>) -> Self {
        let pins: Arc<BTreeSet<String>> = Arc::new(pins.into_iter().map(str::to_owned).collect());
        Self::Only { own: Arc::clone(&pins), fresh: Arc::default(), ancestors: pins }
    }

    /// True for a run in this lane that is taken.
    #[must_use]
    pub fn includes(&self, pins: &Pins, lane: Lane) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => pins.all().all(|pin| names.contains(agent_of(pin))),
            Self::Only { own, fresh, ancestors } => {
                let is_taken = match lane {
                    Lane::Resume => own.contains(pins.own()),
                    Lane::Fresh => own.contains(pins.own()) || fresh.contains(pins.own()),
                };
                is_taken && pins.ancestors().all(|pin| ancestors.contains(pin))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_ready_by_the_names_of_their_agents_or_by_their_pins() {
        let pins = Pins::from_text("a@1 b@2".to_owned());
        let names = |names: &[&str]| {
            Ready::Named(Arc::new(names.iter().map(|&name| name.to_owned()).collect()))
        };
        let takes = |ready: Ready, pins: &Pins| {
            let both = [Lane::Resume, Lane::Fresh].map(|lane| ready.includes(pins, lane));
            assert_eq!(both[0], both[1], "{ready:?}");
            both[0]
        };
        assert!(takes(names(&["a", "b"]), &pins));
        assert!(!takes(names(&["a"]), &pins), "an agent above it is not there");
        assert!(!takes(names(&["b"]), &pins));
        assert!(takes(Ready::only(["a@1", "b@2"]), &pins));
        assert!(!takes(Ready::only(["a@1", "b@3"]), &pins));
        assert!(!takes(Ready::only(["a@3", "b@2"]), &pins));
        let entry = Pins::from_text("a".to_owned());
        assert!(has_digest("a@1") && !has_digest(entry.own()));
        assert!(takes(names(&["a"]), &entry) && takes(Ready::only(["a"]), &entry));
        assert_eq!((agent_of("a@1"), agent_of("a"), pin("a", "1")), ("a", "a", "a@1".to_owned()));
        let of_rules = pin_of_rules("a", "1");
        assert!(agent_of(&of_rules) == "a" && !has_digest(&of_rules), "{of_rules}");
        for pins in [&["a@1"][..], &["a@1", "a@2"]] {
            assert_eq!(split(&join(pins.iter().copied())).collect::<Vec<_>>(), pins);
        }
    }

    #[test]
    fn of_some_agents_only_runs_are_taken_that_were_never_executed() {
        let set = |pins: &[&str]| Arc::new(pins.iter().map(|&pin| pin.to_owned()).collect());
        let (own, fresh, ancestors) = (set(&["a@1"]), set(&["b@2"]), set(&["a@1"]));
        let ready = Ready::Only { own, fresh, ancestors };
        for (pins, is_taken) in [
            ("a@1", [true, true]),
            ("b@2", [false, true]),
            ("b@2 a@1", [false, true]),
            ("b@2 c@3", [false, false]),
            ("a@1 b@2", [false, false]),
        ] {
            let of = Pins::from_text(pins.to_owned());
            let found = [Lane::Resume, Lane::Fresh].map(|lane| ready.includes(&of, lane));
            assert_eq!(found, is_taken, "{pins}");
        }
    }
}
