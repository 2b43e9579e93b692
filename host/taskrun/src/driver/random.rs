//! Random numbers of a plan step.

use std::sync::{Mutex, PoisonError};

use taskrun_journal::time::Random;

/// The purpose of the numbers; another use of the same seed gives others.
const CONTEXT: &str = "taskrun 2026-11 random numbers of a plan step";

/// Numbers that follow from a run's seed, turn and attempt: a step that runs again is given the
/// same, and nothing has to be recorded. Nobody who does not know the seed can foretell them.
pub(super) struct StepRandom(Mutex<blake3::OutputReader>);

impl StepRandom {
    pub(super) fn new(seed: &str, turn: u32, attempt: u32) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(seed.as_bytes());
        hasher.update(&turn.to_le_bytes());
        hasher.update(&attempt.to_le_bytes());
        Self(Mutex::new(hasher.finalize_xof()))
    }
}

impl Random for StepRandom {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(random: &StepRandom) -> [u8; 8] {
        let mut bytes = [0; 8];
        random.fill(&mut bytes);
        bytes
    }

    #[test]
    fn the_same_step_draws_the_same_and_any_other_draws_others() {
        let (first, again) = (StepRandom::new("a", 1, 1), StepRandom::new("a", 1, 1));
        let drawn = [draw(&first), draw(&first)];
        assert_eq!(drawn, [draw(&again), draw(&again)]);
        assert_ne!(drawn[0], drawn[1]);
        for other in [("b", 1, 1), ("a", 2, 1), ("a", 1, 2)] {
            assert_ne!(draw(&StepRandom::new(other.0, other.1, other.2)), drawn[0], "{other:?}");
        }
    }
}
