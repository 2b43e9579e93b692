//! The largest file that a process may make (`ulimit -f`, systemd's `LimitFSIZE`).

use std::io;
use std::sync::Arc;

use signal_hook::consts::SIGXFSZ;

/// Has a write beyond the largest file that this process may make fail as on a full disk, instead of
/// ending the process by a signal (`SIGXFSZ`), which one guest could bring about. To be called before
/// anything is opened, by each program that executes runs.
///
/// The signal is caught and not ignored: programs that this one starts begin with its default again.
///
/// # Errors
/// Those of the system. The signal ends the process then.
pub fn survive_file_size_limit() -> io::Result<()> {
    // Nobody asks whether it came: the write has failed.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
}
