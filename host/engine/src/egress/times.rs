//! The times of the parts of an exchange, beside that of the whole.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::TIMEOUT_MAX;

/// The times that a guest gives the parts of an exchange. `None`, or a longer one, is as long as an
/// exchange may take at all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ExchangeTimes {
    /// Until there is a connection: a new one with TLS, or one that is free.
    pub(crate) connection: Option<Duration>,
    /// From there until the head of the answer is there.
    pub(crate) head: Option<Duration>,
    /// For each piece of the answer's body, from the one before it.
    pub(crate) piece: Option<Duration>,
}

/// A part of an exchange with a time of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExchangePart {
    /// Coming to a connection.
    Connection,
    /// Sending the request and waiting for the head of the answer.
    Head,
    /// Reading the answer's body.
    Body,
}

impl ExchangeTimes {
    /// The time for a piece of the answer's body.
    pub(super) fn piece(self) -> Duration {
        bounded(self.piece)
    }

    /// The head of an answer, with its times: `connected` comes to its end when the request has a
    /// connection.
    ///
    /// # Errors
    /// The part for which there is no time left.
    ///
    /// # Cancel safety
    /// That of `head`.
    pub(super) async fn head<H>(
        self,
        connected: impl Future<Output = ()>,
        head: impl Future<Output = H>,
    ) -> Result<H, ExchangePart> {
        let mut head = pin!(head);
        tokio::select! {
            biased;
            head = &mut head => return Ok(head),
            () = connected => {}
            () = sleep(bounded(self.connection)) => return Err(ExchangePart::Connection),
        }
        timeout(bounded(self.head), head).await.map_err(|_| ExchangePart::Head)
    }
}

fn bounded(time: Option<Duration>) -> Duration {
    time.map_or(TIMEOUT_MAX, |time| time.min(TIMEOUT_MAX))
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The outcome of `head`, and the whole seconds that it takes.
    async fn timed<H>(head: impl Future<Output = H>) -> (H, u64) {
        let begun = tokio::time::Instant::now();
        (head.await, begun.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn each_part_until_the_head_has_its_own_time() {
        let times = ExchangeTimes {
            connection: Some(2 * SECOND),
            head: Some(5 * SECOND),
            ..ExchangeTimes::default()
        };
        let (none, took) = timed(times.head(pending(), pending::<()>())).await;
        assert_eq!((none, took), (Err(ExchangePart::Connection), 2));
        let (none, took) = timed(times.head(sleep(SECOND), pending::<()>())).await;
        assert_eq!((none, took), (Err(ExchangePart::Head), 6));
        let (head, took) = timed(times.head(sleep(SECOND), sleep(5 * SECOND))).await;
        assert_eq!((head, took), (Ok(()), 5));
        assert_eq!(times.head(pending(), ready(1)).await, Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_without_a_time_has_that_of_the_whole() {
        for connection in [None, Some(Duration::MAX)] {
            let times = ExchangeTimes { connection, ..ExchangeTimes::default() };
            let (none, took) = timed(times.head(pending(), pending::<()>())).await;
            assert_eq!((none, took), (Err(ExchangePart::Connection), TIMEOUT_MAX.as_secs()));
        }
    }
}
