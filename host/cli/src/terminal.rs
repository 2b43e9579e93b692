//! The terminal at which a person types, as to what was typed and nobody has read yet.

use std::io;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::termios::{LocalModes, OptionalActions, QueueSelector, tcflush, tcgetattr, tcsetattr};

/// Most bytes of a line that a terminal of Linux gives, without the end of the line. It drops what
/// is typed beyond them.
const LINE_BYTES_MAX: usize = 4_095;

/// Discards what was typed and is not read yet. Called once a question is written and before its
/// answer is read, it keeps keys from answering that were pressed before the question was there.
///
/// # Errors
/// If stdin is no terminal, or is gone.
pub(crate) fn discard_typed() -> io::Result<()> {
    tcflush(io::stdin(), QueueSelector::IFlush).map_err(io::Error::from)
}

/// Does something while what was typed of a line can be read though its end was not typed. Keys do
/// not erase what was read so.
///
/// # Errors
/// If stdin is no terminal, or is gone.
pub(crate) fn with_begun_line(act: impl FnOnce()) -> io::Result<()> {
    let by_line = tcgetattr(io::stdin())?;
    let mut by_key = by_line.clone();
    by_key.local_modes.remove(LocalModes::ICANON);
    tcsetattr(io::stdin(), OptionalActions::Now, &by_key)?;
    act();
    tcsetattr(io::stdin(), OptionalActions::Now, &by_line).map_err(io::Error::from)
}

/// True if these bytes, which a terminal gave at once, are as much as it gives of a line, so that
/// more may have been typed. The bound of other systems than Linux is not known.
pub(crate) fn is_cut_off(bytes: &[u8]) -> bool {
    let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    cfg!(target_os = "linux") && line.len() == LINE_BYTES_MAX && !line.contains(&b'\n')
}

/// The text about a line that was cut off, with a command that takes a longer one.
pub(crate) fn cut_off(command: &str) -> String {
    format!("a terminal gives at most 4,095 bytes of a line; `{command}`")
}

/// True if something was typed that is not read yet. Of a terminal that is gone nothing is read.
pub(crate) fn has_unread() -> bool {
    let stdin = io::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
    let found = retry_on_intr(|| poll(&mut polled, Some(&Timespec::default())));
    found.is_ok() && polled[0].revents() == PollFlags::IN
}
