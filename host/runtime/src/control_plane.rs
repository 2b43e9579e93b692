//! The runtime of futures for everything but guests.

use taskrun_priority::shorten_turns;
use tokio::runtime::{Builder, Runtime};

/// A runtime for everything but guests and the drivers that wait for them, which have threads of the
/// engine: signals, store, hearts, timers, HTTP and models' answers. It has a thread for each processor.
/// These and the thread that makes it, from which its futures are waited for, have turns of 0.1 ms
/// where the system has such: their work is short, and others wait for it.
///
/// # Errors
/// Those of the system, if it has no threads or no reactor to give.
pub fn control_plane() -> std::io::Result<Runtime> {
    shorten_turns();
    Builder::new_multi_thread().on_thread_start(shorten_turns).enable_all().build()
}

/// The same for a single future that asks the store and does little else, such as a command that
/// accepts a run: without a thread for each processor. Tasks, timers and connections go on only while
/// that future is awaited and waits itself.
///
/// # Errors
/// As for [`control_plane`].
pub fn control_plane_of_one() -> std::io::Result<Runtime> {
    shorten_turns();
    Builder::new_current_thread().on_thread_start(shorten_turns).enable_all().build()
}
