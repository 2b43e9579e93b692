//! The terminal at which a person types, as to what was typed and nobody has read yet.

use std::io;

use rustix::termios::{LocalModes, OptionalActions, QueueSelector, tcflush, tcgetattr, tcsetattr};

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
