//! The time that a call waits for models, which is no time of its own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::CallScope;

/// The time that a call has waited for models. Several waits at once count once.
#[derive(Default)]
pub(super) struct ModelTime {
    /// Waits under way.
    waits: AtomicU32,
    /// When the first of them began, and the time of those before.
    spent: Mutex<(Option<Duration>, Duration)>,
    over: Notify,
}

/// A wait for a model under way; it ends with this value.
pub(super) struct ModelWaitGuard<'a>(&'a CallScope);

impl ModelTime {
    fn begin(&self, now: Duration) {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        if self.waits.fetch_add(1, Ordering::SeqCst) == 0 {
            spent.0 = Some(now);
        }
    }

    fn end(&self, now: Duration) {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        if self.waits.fetch_sub(1, Ordering::SeqCst) == 1 {
            let since = spent.0.take().unwrap_or(now);
            spent.1 = spent.1.saturating_add(now.saturating_sub(since));
            drop(spent);
            self.over.notify_waiters();
        }
    }

    fn spent(&self, now: Duration) -> Duration {
        let (since, before) = *self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        before.saturating_add(since.map_or(Duration::ZERO, |since| now.saturating_sub(since)))
    }

    async fn is_over(&self) {
        loop {
            let over = self.over.notified();
            tokio::pin!(over);
            // Before the look: an end in between is heard.
            over.as_mut().enable();
            if self.waits.load(Ordering::SeqCst) == 0 {
                return;
            }
            over.await;
        }
    }
}

impl Drop for ModelWaitGuard<'_> {
    fn drop(&mut self) {
        self.0.model_time.end(self.0.parts.clock.monotonic());
    }
}

impl CallScope {
    /// From now on the call waits for a model.
    pub(super) fn waits_for_model(&self) -> ModelWaitGuard<'_> {
        self.model_time.begin(self.parts.clock.monotonic());
        ModelWaitGuard(self)
    }

    /// The time that the call has waited for models, which its deadline does not count: models have
    /// time-outs of their own, and the run has its `wall`.
    #[must_use]
    pub fn model_time(&self) -> Duration {
        self.model_time.spent(self.parts.clock.monotonic())
    }

    /// Returns when the call waits for no model.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait.
    pub async fn model_waits_over(&self) {
        self.model_time.is_over().await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn waits_at_once_count_once() {
        let time = ModelTime::default();
        time.begin(SECOND);
        time.begin(2 * SECOND);
        time.end(5 * SECOND);
        assert_eq!(time.spent(6 * SECOND), 5 * SECOND);
        assert!(time.is_over().now_or_never().is_none());
        time.end(7 * SECOND);
        assert_eq!(time.spent(100 * SECOND), 6 * SECOND);
        time.begin(100 * SECOND);
        time.end(101 * SECOND);
        assert_eq!(time.spent(200 * SECOND), 7 * SECOND);
        assert!(time.is_over().now_or_never().is_some());
    }
}
