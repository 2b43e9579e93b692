//! The order in which the calls of a turn start runs: the one in which they were requested.

use tokio::sync::oneshot;

/// Calls that start runs, one after the other. Runs that take turns go by the order in which they
/// were accepted, and each of these calls returns once its runs are: it waits for no end of theirs.
#[derive(Default)]
pub(super) struct StartOrder {
    /// Heard when the last call that was added has returned.
    last: Option<oneshot::Receiver<()>>,
}

/// The place of a call in that order.
pub(super) struct StartPlace {
    before: Option<oneshot::Receiver<()>>,
    returned: oneshot::Sender<()>,
}

impl StartOrder {
    /// Adds a call at the end.
    pub(super) fn add(&mut self) -> StartPlace {
        let (returned, heard) = oneshot::channel();
        StartPlace { before: self.last.replace(heard), returned }
    }
}

impl StartPlace {
    /// Waits until the call before has returned. One that was dropped starts nothing any more.
    ///
    /// # Cancel safety
    /// Dropping the future loses the place of the call before, so it is not to be called again.
    pub(super) async fn come(&mut self) {
        if let Some(before) = self.before.take() {
            before.await.ok();
        }
    }

    /// Lets the call after this one begin. Nobody hears it where there is none.
    pub(super) fn leave(self) {
        self.returned.send(()).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn each_call_waits_for_the_one_before_also_where_that_was_dropped() {
        let mut order = StartOrder::default();
        let (mut first, mut second, mut third) = (order.add(), order.add(), order.add());
        assert!(first.come().now_or_never().is_some(), "nothing is before it");
        let mut waits = Box::pin(second.come());
        assert!(waits.as_mut().now_or_never().is_none(), "the first has not returned");
        first.leave();
        assert!(waits.now_or_never().is_some());
        let mut waits = Box::pin(third.come());
        assert!(waits.as_mut().now_or_never().is_none(), "the second has not returned");
        drop(second);
        assert!(waits.now_or_never().is_some());
    }
}
