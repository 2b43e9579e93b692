//! The future of a call, and where it is polled.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use taskrun::scope::StopSignal;
use tokio::runtime::Handle;
use tokio_util::context::TokioContext;

use crate::course::Course;
use crate::engine::Engine;
use crate::threads::{GuestThreads, Lane, LaneTask, is_first};

/// The result of polling a call for a while.
#[derive(Debug)]
enum PollOutcome<R> {
    /// The call ended.
    Ended(R),
    /// It goes on there.
    Elsewhere(Lane),
    /// Its stop is forced: it is not resumed.
    Stopped,
}

/// A call that owns its instance, on its way to its end.
///
/// It is polled where its owner is, if that is a thread for guests or the engine has none; else it
/// begins on one of those, behind others where the one before took long. When its slice is used up it goes on behind the others, and where these
/// leave it nothing, on threads that have a share.
pub(crate) struct Attempt<R: Send + 'static> {
    engine: Arc<Engine>,
    course: Course,
    stop: StopSignal,
    place: Location<R>,
}

enum Location<R: Send + 'static> {
    /// Where the owner is.
    Here(BoxFuture<'static, R>),
    /// On another thread.
    There(There<R>),
    /// The call ended.
    Nowhere,
}

impl<R: Send + 'static> Attempt<R> {
    /// The call begins when [`Self::outcome`] is polled, or at once on another thread; in this lane, if
    /// the engine has threads for guests.
    pub(crate) fn new(
        engine: Arc<Engine>,
        (course, lane): (Course, Lane),
        stop: StopSignal,
        future: BoxFuture<'static, R>,
    ) -> Self {
        let mut attempt = Self { engine, course, stop, place: Location::Nowhere };
        attempt.place = match attempt.engine.threads() {
            None => Location::Here(future),
            Some(_) if is_first() && lane == Lane::First => {
                attempt.course.goes_on(lane);
                Location::Here(future)
            }
            Some(threads) => attempt.there(future, threads, lane),
        };
        attempt
    }

    /// Lets the call go on elsewhere.
    fn there(
        &self,
        future: BoxFuture<'static, R>,
        threads: &GuestThreads,
        lane: Lane,
    ) -> Location<R> {
        self.course.goes_on(lane);
        let (slot, course, stop) =
            (Arc::new(Mutex::new(Some(future))), self.course.clone(), self.stop.clone());
        let polled = CallTask {
            slot: Arc::clone(&slot),
            course: course.clone(),
            stop,
            engine: Arc::clone(&self.engine),
        };
        // Timers and connections are those of the owner's runtime.
        let task = threads.spawn(lane, TokioContext::new(polled, Handle::current()));
        Location::There(There { slot, course, task, engine: Arc::clone(&self.engine) })
    }

    /// The call's result; `None` if its stop was forced.
    ///
    /// # Cancel safety
    /// The call goes on where it is; [`Self::end`] ends it.
    pub(crate) async fn outcome(&mut self) -> Option<R> {
        loop {
            let turn = match &mut self.place {
                Location::Here(future) => {
                    let (engine, course, stop) = (&self.engine, &self.course, &self.stop);
                    std::future::poll_fn(|context| poll(future, (engine, course, stop), context))
                        .await
                }
                Location::There(there) => there.turn().await,
                Location::Nowhere => PollOutcome::Stopped,
            };
            let lane = match turn {
                PollOutcome::Ended(outcome) => {
                    self.place = Location::Nowhere;
                    return Some(outcome);
                }
                PollOutcome::Stopped => return None,
                PollOutcome::Elsewhere(lane) => lane,
            };
            let future = match std::mem::replace(&mut self.place, Location::Nowhere) {
                Location::Here(future) => Some(future),
                Location::There(there) => take(&there.slot),
                Location::Nowhere => None,
            };
            let (Some(future), Some(threads)) = (future, self.engine.threads()) else {
                return None;
            };
            self.place = self.there(future, threads, lane);
        }
    }

    /// Ends the call, wherever it is, and returns when its instance is gone.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the rest to [`Drop`].
    pub(crate) async fn end(mut self) {
        match std::mem::replace(&mut self.place, Location::Nowhere) {
            Location::There(mut there) => there.end().await,
            Location::Here(_) | Location::Nowhere => {}
        }
    }
}

/// Polls a call once.
fn poll<R>(
    future: &mut BoxFuture<'static, R>,
    (engine, course, stop): (&Engine, &Course, &StopSignal),
    context: &mut Context<'_>,
) -> Poll<PollOutcome<R>> {
    // A guest that has yielded is not resumed once it must stop: it would take no notice of an
    // epoch that has passed meanwhile, and spin until the next.
    if stop.is_forced() {
        return Poll::Ready(PollOutcome::Stopped);
    }
    // Nor while its host stands still.
    if stop.is_held(context) {
        return Poll::Pending;
    }
    let _ticking = engine.ticker().guest();
    course.begin();
    match future.as_mut().poll(context) {
        Poll::Ready(outcome) => {
            course.finish();
            Poll::Ready(PollOutcome::Ended(outcome))
        }
        Poll::Pending => match course.pause() {
            Some(lane) => Poll::Ready(PollOutcome::Elsewhere(lane)),
            None => Poll::Pending,
        },
    }
}

type Slot<R> = Arc<Mutex<Option<BoxFuture<'static, R>>>>;

fn take<R>(slot: &Slot<R>) -> Option<BoxFuture<'static, R>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// A call as the thread sees it that polls it. The lock is held while it is polled, so that its
/// owner can end it at any other time.
struct CallTask<R> {
    slot: Slot<R>,
    course: Course,
    stop: StopSignal,
    engine: Arc<Engine>,
}

impl<R> Future for CallTask<R> {
    type Output = PollOutcome<R>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<PollOutcome<R>> {
        let this = &*self;
        let mut slot = this.slot.lock().unwrap_or_else(PoisonError::into_inner);
        if this.course.is_over() {
            // Before the owner hears that it is gone.
            slot.take();
        }
        let Some(future) = slot.as_mut() else { return Poll::Ready(PollOutcome::Stopped) };
        let turn = poll(future, (&this.engine, &this.course, &this.stop), context);
        if this.course.is_over() || matches!(turn, Poll::Ready(PollOutcome::Ended(_))) {
            slot.take();
        }
        turn
    }
}

/// A call on another thread, as its owner sees it. Dropping it ends the call.
struct There<R: Send + 'static> {
    slot: Slot<R>,
    course: Course,
    task: LaneTask<PollOutcome<R>>,
    engine: Arc<Engine>,
}

impl<R: Send + 'static> There<R> {
    async fn turn(&mut self) -> PollOutcome<R> {
        // Nobody else aborts it, and a panic of the guest's host functions is caught within.
        (&mut self.task).await.unwrap_or(PollOutcome::Stopped)
    }

    async fn end(&mut self) {
        self.drop_instance();
        // A guest that waits in a host function is not polled otherwise.
        self.task.cancel().await;
        take(&self.slot);
    }

    /// Drops the instance. If a thread is just polling it, that is done there, as soon as the guest
    /// has looked at the epoch.
    fn drop_instance(&self) {
        match self.slot.try_lock() {
            Ok(mut slot) => drop(slot.take()),
            Err(TryLockError::Poisoned(poisoned)) => drop(poisoned.into_inner().take()),
            Err(TryLockError::WouldBlock) => {
                self.course.end();
                self.engine.wasmtime().increment_epoch();
            }
        }
    }
}

impl<R: Send + 'static> Drop for There<R> {
    fn drop(&mut self) {
        self.drop_instance();
    }
}
