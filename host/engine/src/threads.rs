//! The threads on which guests run: those where every call begins, those of lower priority where a
//! call goes on that has used up its slice, and those of the lowest, where it goes on while the
//! processors have time for it.
//!
//! Nothing else runs there but drivers of runs, which wait for their guests. The HTTP exchanges of calls
//! have threads of their own, and those of calls that go on behind others have others again: what
//! servers make a host read may take milliseconds, which nothing else is to wait for. A call that needs
//! a reactor or a timer has it from the runtime of its caller, which no guest can hold up.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use async_task::FallibleTask;
use taskrun_priority::{Priority, shorten_turns};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

use crate::executor::{Executor, Spawner};

const TAKEN_AT_DROP: &str = "taken when it is dropped only";

/// Most threads of each kind: beyond that a host has other bounds.
const THREADS_MAX: usize = 64;

thread_local! {
    static IS_FIRST: Cell<bool> = const { Cell::new(false) };
}

/// The threads on which a call is polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Lane {
    /// Those of its owner, in an engine without threads for guests.
    Owner,
    /// Those where calls begin, and where drivers wait for them.
    First,
    /// Those where it goes on when its slice is used up, with a tenth of a processor that others
    /// want.
    Share,
    /// Those where it goes on if it had half of a processor there, until it has less than a
    /// tenth. Whatever else wants the processor comes first.
    Behind,
}

impl Lane {
    pub(crate) fn of(number: u8) -> Self {
        [Self::First, Self::Share, Self::Behind]
            .into_iter()
            .find(|lane| *lane as u8 == number)
            .unwrap_or(Self::Owner)
    }
}

/// Sets of threads, as many of each.
#[derive(Debug)]
pub(crate) struct GuestThreads {
    first: Executor,
    share: Option<Runtime>,
    behind: Option<Runtime>,
    exchanges: Option<Runtime>,
    long_exchanges: Option<Runtime>,
}

impl GuestThreads {
    /// Starts so many of each kind, at least one.
    pub(crate) fn start(count: usize) -> std::io::Result<Self> {
        let count = count.clamp(1, THREADS_MAX);
        let begins = || {
            shorten_turns();
            IS_FIRST.set(true);
        };
        let first = Executor::start(count, "taskrun-guest", begins)?;
        let lowered = |priority, name| {
            let mut builder = builder(count, name);
            builder.on_thread_start(move || lower(priority));
            builder
        };
        let share = lowered(Priority::Low, "taskrun-share").build()?;
        let behind = lowered(Priority::Idle, "taskrun-behind").build()?;
        // With a reactor and timers of their own, see `egress`.
        let exchanges = lowered(Priority::Low, "taskrun-http").enable_all().build()?;
        let mut long_exchanges = lowered(Priority::LowCooperative, "taskrun-longnet");
        let long_exchanges = long_exchanges.enable_all().build()?;
        Ok(Self {
            first,
            share: Some(share),
            behind: Some(behind),
            exchanges: Some(exchanges),
            long_exchanges: Some(long_exchanges),
        })
    }

    /// The threads for the HTTP exchanges of calls that have some of their slice left.
    pub(crate) fn exchanges(&self) -> &Handle {
        self.exchanges.as_ref().expect(TAKEN_AT_DROP).handle()
    }

    /// The threads for those of calls that have none left. Each piece of work there is to be followed by
    /// an offer of the processor, see [`Priority::LowCooperative`].
    pub(crate) fn long_exchanges(&self) -> &Handle {
        self.long_exchanges.as_ref().expect(TAKEN_AT_DROP).handle()
    }

    /// The threads where calls begin.
    pub(crate) fn first(&self) -> &Spawner {
        self.first.spawner()
    }

    /// Begins a task on the threads of a lane that is not its owner's.
    pub(crate) fn spawn<F>(&self, lane: Lane, future: F) -> LaneTask<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        let runtime = match lane {
            Lane::Owner | Lane::First => {
                return LaneTask::First(Some(self.first.spawner().spawn(future)));
            }
            Lane::Share => &self.share,
            Lane::Behind => &self.behind,
        };
        LaneTask::Lower(runtime.as_ref().expect(TAKEN_AT_DROP).handle().spawn(future))
    }
}

impl Drop for GuestThreads {
    fn drop(&mut self) {
        // The last call to hold the engine may end on one of these threads: nothing is joined.
        let Self { first: _, share, behind, exchanges, long_exchanges } = self;
        let all = [share, behind, exchanges, long_exchanges].map(Option::take);
        for runtime in all.into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}

/// A task on the threads of a lane, whose output is `None` if it was canceled. Dropping it cancels it.
#[derive(Debug)]
pub(crate) enum LaneTask<T> {
    /// In front; `None` once it is canceled.
    First(Option<FallibleTask<T>>),
    /// Behind that.
    Lower(JoinHandle<T>),
}

impl<T> LaneTask<T> {
    /// Cancels it, and returns when it is not polled any more.
    pub(crate) async fn cancel(&mut self) {
        match self {
            Self::First(task) => {
                if let Some(task) = task.take() {
                    task.cancel().await;
                }
            }
            Self::Lower(task) if task.is_finished() => {}
            Self::Lower(task) => {
                task.abort();
                // An error says that it was aborted, which it was.
                task.await.ok();
            }
        }
    }
}

impl<T> Future for LaneTask<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        match self.get_mut() {
            Self::First(None) => Poll::Ready(None),
            Self::First(Some(task)) => pin!(task).poll(context),
            Self::Lower(task) => pin!(task).poll(context).map(Result::ok),
        }
    }
}

impl<T> Drop for LaneTask<T> {
    fn drop(&mut self) {
        match self {
            // By its own drop.
            Self::First(_) => {}
            Self::Lower(task) => task.abort(),
        }
    }
}

/// Of a runtime that only executes: it has neither reactor nor timers unless they are enabled.
fn builder(count: usize, name: &str) -> Builder {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(count).thread_name(name);
    builder
}

/// Lowers the priority of this thread.
fn lower(priority: Priority) {
    if let Err(error) = taskrun_priority::lower(priority) {
        tracing::warn!(%error, "a thread for long calls keeps its priority");
    }
}

/// True on a thread where calls begin.
pub(crate) fn is_first() -> bool {
    IS_FIRST.get()
}
