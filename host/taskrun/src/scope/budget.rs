//! The rest of the budget, as a call asks for it.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::OnceCell;

use super::{CallScope, Remaining};

/// The source of the rest of a budget.
#[async_trait]
pub(crate) trait BudgetSource: Send + Sync {
    /// Reads the rest as it is now. Dropping the future gives up the read with all that it holds.
    async fn read(&self) -> Remaining;
}

/// A rest that is known.
#[async_trait]
impl BudgetSource for Remaining {
    async fn read(&self) -> Remaining {
        *self
    }
}

/// A reading of the rest of a budget, which is made when the first call asks for it. Copies are the
/// same reading.
#[derive(Clone)]
pub struct BudgetReading(Arc<ReadingParts<dyn BudgetSource>>);

struct ReadingParts<S: ?Sized> {
    read: OnceCell<Remaining>,
    source: S,
}

impl BudgetReading {
    /// A reading that is not made yet.
    pub(crate) fn new(source: impl BudgetSource + 'static) -> Self {
        Self(Arc::new(ReadingParts { read: OnceCell::new(), source }))
    }

    /// The rest as it was when it was first read. The read is that of whoever asks: with a call that
    /// ends before its answer nothing of it stays, and the next one begins anew.
    async fn remaining(&self) -> Remaining {
        let Self(parts) = self;
        *parts.read.get_or_init(|| parts.source.read()).await
    }
}

impl fmt::Debug for BudgetReading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BudgetReading").field(&self.0.read.get()).finish()
    }
}

impl CallScope {
    /// The part of the budget that is left: that of a plan step as it stood when the step began, that
    /// of a tool call as it stood when a call that began with it first asked.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn remaining(&self) -> Remaining {
        match &self.parts.services.budget {
            Some(reading) => reading.remaining().await,
            None => self.parts.remaining,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::FutureExt;

    use super::*;

    /// A source whose first read never ends. Each read holds something.
    struct StuckSource {
        reads: Arc<AtomicU32>,
        held: Arc<()>,
    }

    #[async_trait]
    impl BudgetSource for StuckSource {
        async fn read(&self) -> Remaining {
            let held = Arc::clone(&self.held);
            let read = self.reads.fetch_add(1, Ordering::SeqCst) + 1;
            if read == 1 {
                std::future::pending::<()>().await;
            }
            drop(held);
            Remaining { turns: Some(read), ..Remaining::default() }
        }
    }

    #[test]
    fn a_read_ends_with_the_call_that_made_it_and_the_next_one_begins_anew() {
        let (reads, held) = (Arc::new(AtomicU32::new(0)), Arc::new(()));
        let source = StuckSource { reads: Arc::clone(&reads), held: Arc::clone(&held) };
        let reading = BudgetReading::new(source);
        let other = reading.clone();
        assert!(reading.remaining().now_or_never().is_none(), "it never ends");
        assert_eq!(Arc::strong_count(&held), 2, "the test and the source have it alone");
        for reading in [other, reading] {
            let read = reading.remaining().now_or_never().expect("it does not wait");
            assert_eq!(read.turns, Some(2));
        }
        assert_eq!(reads.load(Ordering::SeqCst), 2);
    }
}
