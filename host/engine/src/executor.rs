//! Threads that poll futures, of which one is woken for a task that becomes ready.
//!
//! The runtimes of the field (tokio's, smol's) have each thread that wakes up and finds a task wake
//! another one, which looks whether there is more. Linux gives that one the processor of the first, and
//! then picks by what threads are owed: threads of low priority keep it, for a millisecond or more,
//! while the first one waits with the task that it had found. Here a thread that takes a task wakes
//! another only if there is one left.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use async_task::{FallibleTask, Runnable, ScheduleInfo, WithInfo};
use futures::task::{FutureObj, Spawn, SpawnError};

/// Threads with one queue. Dropping it drops the tasks that are in the queue, and ends each thread when
/// it has polled what it is just polling; none is waited for.
#[derive(Debug)]
pub(crate) struct Executor(Spawner);

/// Begins tasks on the threads of an [`Executor`].
#[derive(Debug, Clone)]
pub(crate) struct Spawner(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    tasks: VecDeque<Runnable>,
    /// Threads that wait for a task.
    waiting: usize,
    /// True if one of them was told of a task, and did not look yet.
    is_told: bool,
    is_closed: bool,
}

impl Executor {
    /// Starts so many threads, each of which does this first.
    ///
    /// # Errors
    /// Those of the system, if there is no thread; those that were started end.
    pub(crate) fn start(
        count: usize,
        name: &str,
        begin: impl Fn() + Clone + Send + 'static,
    ) -> std::io::Result<Self> {
        let executor = Self(Spawner(Arc::default()));
        for _ in 0..count {
            let (shared, begin) = (Arc::clone(&executor.0.0), begin.clone());
            std::thread::Builder::new().name(name.to_owned()).spawn(move || {
                begin();
                shared.work();
            })?;
        }
        Ok(executor)
    }

    pub(crate) fn spawner(&self) -> &Spawner {
        &self.0
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        let Shared { queue, ready } = &*self.0.0;
        let mut queue = lock(queue);
        queue.is_closed = true;
        let tasks = std::mem::take(&mut queue.tasks);
        drop(queue);
        ready.notify_all();
        // Their futures may wake others.
        drop(tasks);
    }
}

impl Spawner {
    /// Begins a task. Dropping it cancels the future, which is dropped where it would be polled; of one
    /// that panicked, or of a closed executor, there is no output.
    pub(crate) fn spawn<F>(&self, future: F) -> FallibleTask<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        let shared = Arc::clone(&self.0);
        let schedule = WithInfo(move |task, info| shared.push(task, info));
        let (runnable, task) = async_task::spawn(future, schedule);
        runnable.schedule();
        task.fallible()
    }
}

impl Spawn for Spawner {
    fn spawn_obj(&self, future: FutureObj<'static, ()>) -> Result<(), SpawnError> {
        self.status()?;
        self.spawn(future).detach();
        Ok(())
    }

    fn status(&self) -> Result<(), SpawnError> {
        match lock(&self.0.queue).is_closed {
            true => Err(SpawnError::shutdown()),
            false => Ok(()),
        }
    }
}

impl Shared {
    /// Puts a task behind the others, and tells a thread that waits, if none was told of another.
    fn push(&self, task: Runnable, info: ScheduleInfo) {
        let mut queue = lock(&self.queue);
        if queue.is_closed {
            drop(queue);
            // Its future may wake others.
            return drop(task);
        }
        // The thread that polled it takes it again at once.
        let is_taken = info.woken_while_running && queue.tasks.is_empty();
        queue.tasks.push_back(task);
        let tells = !is_taken && queue.tell();
        drop(queue);
        if tells {
            self.ready.notify_one();
        }
    }

    /// Polls tasks until the executor is dropped.
    fn work(&self) {
        while let Some(task) = self.next() {
            // A guest's panic is caught by its call; this keeps the thread whatever else panics.
            if std::panic::catch_unwind(AssertUnwindSafe(|| task.run())).is_err() {
                tracing::error!("a task of the threads for guests panicked");
            }
        }
    }

    /// The next task, which is waited for; `None` once the executor is dropped.
    fn next(&self) -> Option<Runnable> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.is_closed {
                return None;
            }
            if let Some(task) = queue.tasks.pop_front() {
                let tells = !queue.tasks.is_empty() && queue.tell();
                drop(queue);
                if tells {
                    self.ready.notify_one();
                }
                return Some(task);
            }
            queue.waiting += 1;
            queue = self.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.waiting -= 1;
            queue.is_told = false;
        }
    }
}

impl Queue {
    /// True if a thread is to be told, and none was yet.
    fn tell(&mut self) -> bool {
        let tells = self.waiting > 0 && !self.is_told;
        self.is_told |= tells;
        tells
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
