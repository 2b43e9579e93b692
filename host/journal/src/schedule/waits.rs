//! Waits for the end of other runs.

use crate::hold::WaitMode;

/// Whether a wait for `all` different runs, of which `open` have not ended, is over. A wait for
/// none is.
#[must_use]
pub fn enough(mode: WaitMode, open: usize, all: usize) -> bool {
    match mode {
        WaitMode::All => open == 0,
        WaitMode::Any => open < all || all == 0,
    }
}
