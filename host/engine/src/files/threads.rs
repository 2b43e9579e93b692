//! Threads for file operations.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

use crate::course::Course;

/// The way of a call to the threads for file operations: of those where it is polled, for as many at
/// once as there are turns.
#[derive(Debug, Clone)]
pub(crate) struct FileThreads {
    turns: Arc<Semaphore>,
    course: Course,
}

impl FileThreads {
    pub(crate) fn new(turns: &Arc<Semaphore>, course: &Course) -> Self {
        Self { turns: Arc::clone(turns), course: course.clone() }
    }

    /// Does something on such a thread, as soon as one may be used. The time of the processor that it
    /// takes is the call's. `None` if it panics, or the host is going.
    ///
    /// # Cancel safety
    /// Dropping the future loses the result; what has begun comes to its end, and keeps its turn.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let Self { turns, course } = self;
        let turn = turns.acquire_owned().await.ok()?;
        let task = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            course.charge_for(work)
        });
        match AbortOnDropHandle::new(task).await {
            Ok(done) => Some(done),
            Err(error) => {
                tracing::error!(%error, "a file operation did not come to its end");
                None
            }
        }
    }
}
