//! Waiting for runs.

use std::pin::Pin;

use crate::run::Run;

/// A wait for the end of a run: it gives the run as it has ended where the store has it at hand. It may
/// return early, without a run, and never later than a second after the fact. Dropping it gives up the
/// wait.
pub type EndFuture<'a> = Pin<Box<dyn Future<Output = Option<Run>> + Send + 'a>>;

/// A run, and a wait for its end ([`super::Store::watch_end`]).
pub struct RunWatch<'a> {
    /// The run as it stood.
    pub run: Run,
    /// The wait, which is over at once for a run that had ended.
    pub end: EndFuture<'a>,
}

impl RunWatch<'_> {
    /// The watch of a run that has ended.
    #[must_use]
    pub fn over(run: Run) -> Self {
        let end = Box::pin(std::future::ready(Some(run.clone())));
        Self { run, end }
    }
}
