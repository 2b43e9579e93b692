//! The runtime of futures for everything but guests.

use std::io;
use std::panic::catch_unwind;

use taskrun_priority::shorten_turns;
use tokio::runtime::{Builder, Runtime};

/// A runtime for everything but guests and the drivers that wait for them, which have threads of the
/// engine: signals, store, hearts, timers, HTTP and models' answers. It has a thread for each processor.
/// These and the thread that makes it, from which its futures are waited for, have turns of 0.1 ms
/// where the system has such: their work is short, and others wait for it.
///
/// # Errors
/// Those of the system, if it has no threads or no reactor to give.
pub fn control_plane() -> io::Result<Runtime> {
    shorten_turns();
    let build = || Builder::new_multi_thread().on_thread_start(shorten_turns).enable_all().build();
    // It panics where it gets not a single thread.
    let none = |_| Err(io::Error::other("this process may not have more threads (`ulimit -u`)"));
    catch_unwind(build).unwrap_or_else(none)
}

/// The same for a single future that asks the store and does little else, such as a command that
/// accepts a run: without a thread for each processor. Tasks, timers and connections go on only while
/// that future is awaited and waits itself.
///
/// # Errors
/// As for [`control_plane`].
pub fn control_plane_of_one() -> io::Result<Runtime> {
    shorten_turns();
    Builder::new_current_thread().on_thread_start(shorten_turns).enable_all().build()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use rustix::process::{Resource, Rlimit, geteuid, setrlimit};

    use super::*;

    const NO_THREADS: &str = "TASKRUN_TEST_NO_THREADS";

    /// Root may have as many as there are, so they are wanted by a process of somebody else.
    #[test]
    fn that_there_are_no_threads_is_an_error() {
        #[expect(clippy::disallowed_methods, reason = "how the parent tells its child what to do")]
        let told = std::env::var_os(NO_THREADS);
        if told.is_some() {
            let one = Rlimit { current: Some(1), maximum: Some(1) };
            setrlimit(Resource::Nproc, one).expect("limited");
            let error = control_plane().err().map(|error| error.to_string());
            println!("its error: {}", error.unwrap_or_default());
            return;
        }
        let mut child = Command::new(std::env::current_exe().expect("this test"));
        let name = "control_plane::tests::that_there_are_no_threads_is_an_error";
        child.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(NO_THREADS, "1");
        if geteuid().is_root() {
            child.uid(65_534).gid(65_534);
        }
        let output = child.output().expect("the child runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("its error: this process may not have more threads"), "{output:?}");
    }
}
