//! When the machine stood still: a thread that does what every host does, a write that reaches the
//! disk, and notes how long it had to wait. What nobody could do in that time is no run's fault.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use taskrun::clock::SystemClock;
use taskrun_journal::time::{Clock, Timestamp};

/// Between two writes.
const PAUSE: Duration = Duration::from_millis(50);
/// A write that took longer, its pause included, was held up.
const STALL: Duration = Duration::from_millis(500);

/// Stretches of time, none of which overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stalls(Vec<(Timestamp, Timestamp)>);

impl Stalls {
    /// The part of the time between two moments at which the machine stood still.
    pub(crate) fn between(&self, from: Timestamp, to: Timestamp) -> Duration {
        let parts = self.0.iter().map(|(begin, end)| (*end).min(to).since((*begin).max(from)));
        parts.sum()
    }
}

/// The thread.
pub(crate) struct Pulse {
    stalls: Arc<Mutex<Stalls>>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<()>>,
}

impl Pulse {
    /// Begins, with a file of its own in a folder.
    ///
    /// # Errors
    /// If the file or the thread cannot be made.
    pub(crate) fn begin(folder: &Path) -> io::Result<Self> {
        let mut file = File::create(folder.join("pulse"))?;
        let (stalls, over) = (Arc::<Mutex<Stalls>>::default(), Arc::<AtomicBool>::default());
        let (noted, ends) = (Arc::clone(&stalls), Arc::clone(&over));
        let thread = std::thread::Builder::new().name("pulse".to_owned()).spawn(move || {
            let clock = SystemClock::new();
            while !ends.load(Ordering::Acquire) {
                let began = clock.now();
                std::thread::sleep(PAUSE);
                file.rewind()?;
                file.write_all(began.0.to_string().as_bytes())?;
                file.sync_all()?;
                let ended = clock.now();
                if ended.since(began) > STALL {
                    noted.lock().unwrap_or_else(PoisonError::into_inner).0.push((began, ended));
                }
            }
            Ok(())
        })?;
        Ok(Self { stalls, over, thread })
    }

    /// Ends, and says when the machine stood still.
    ///
    /// # Errors
    /// If the file could not be written.
    pub(crate) fn end(self) -> io::Result<Stalls> {
        self.over.store(true, Ordering::Release);
        match self.thread.join() {
            Ok(written) => written?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
        Ok(self.stalls.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// Shows that time is counted once and only within its bounds.
///
/// # Errors
/// The things that were counted wrongly.
pub(crate) fn prove() -> Result<(), String> {
    let at = Timestamp;
    let stalls = Stalls(vec![(at(1_000), at(3_000)), (at(5_000), at(6_000))]);
    for (from, to, expected) in [
        (0, 10_000, 3_000),
        (2_000, 5_500, 1_500),
        (1_500, 2_000, 500),
        (3_000, 5_000, 0),
        (7_000, 9_000, 0),
    ] {
        let counted = stalls.between(at(from), at(to)).as_millis();
        if counted != expected {
            return Err(format!("stalls from {from} to {to}: {counted} and not {expected} ms"));
        }
    }
    Ok(())
}
