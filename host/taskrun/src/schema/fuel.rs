//! The steps that may be taken, and who may end them before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Steps between two looks at whether somebody asked to stop: a few hundred microseconds.
const LOOK_EVERY: u64 = 4_096;

/// Steps that are left.
#[derive(Debug)]
pub(crate) struct Fuel {
    left: u64,
    depth: u32,
    depth_max: u32,
    until_look: u64,
    stop: Option<Arc<AtomicBool>>,
}

/// The fuel is used up, the value is nested too deep for its schema, or somebody asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spent {
    /// There are no steps left.
    Steps,
    /// More schemas meet values within values than there may be in each other.
    Depth,
    /// Somebody asked to stop.
    Stopped,
}

impl Fuel {
    /// So many steps, with so many schemas within each other; each of these takes a piece of the
    /// stack.
    pub(crate) fn new(steps: u64, depth_max: u32) -> Self {
        Self { left: steps, depth: 0, depth_max, until_look: LOOK_EVERY, stop: None }
    }

    /// The same, until the flag is set.
    pub(crate) fn stopped_by(self, stop: Arc<AtomicBool>) -> Self {
        Self { stop: Some(stop), ..self }
    }

    /// Steps that are left.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// A schema meets a value, within those that do already.
    pub(super) fn enter(&mut self) -> Result<(), Spent> {
        if self.depth >= self.depth_max {
            return Err(Spent::Depth);
        }
        self.depth += 1;
        self.take(1)
    }

    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Takes so many steps, before they are gone.
    pub(super) fn take(&mut self, steps: u64) -> Result<(), Spent> {
        self.left = match self.left.checked_sub(steps) {
            Some(left) => left,
            None => {
                self.left = 0;
                return Err(Spent::Steps);
            }
        };
        self.until_look = self.until_look.saturating_sub(steps.max(1));
        if self.until_look == 0 {
            self.until_look = LOOK_EVERY;
            if self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                return Err(Spent::Stopped);
            }
        }
        Ok(())
    }
}
