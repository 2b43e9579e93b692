//! The tokio runtime in which a controller was started.
//!
//! It has the loops of the controller, and timers and connections of drivers. A program that drops it
//! before the controller is closed takes these along, and leaves what has threads of its own: drivers,
//! guests and the heart, for which others would take this host for alive for ever. So the host ends with
//! it, as if the process had died: nothing is lost that was recorded, and others take its runs over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use taskrun_journal::stop::StopCause;
use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Controller, Inner};
use crate::driver::Live;

/// The home of a controller, once it executes runs.
pub(super) struct Home {
    runtime: OnceLock<Handle>,
    is_gone: AtomicBool,
    /// Canceled when the controller is dropped.
    unwatched: CancellationToken,
    _at_drop: DropGuard,
}

impl Home {
    /// None so far.
    pub(super) fn new() -> Self {
        let unwatched = CancellationToken::new();
        Self {
            runtime: OnceLock::new(),
            is_gone: AtomicBool::new(false),
            _at_drop: unwatched.clone().drop_guard(),
            unwatched,
        }
    }

    /// The runtime, if there is one.
    pub(super) fn get(&self) -> Option<&Handle> {
        self.runtime.get()
    }

    /// The runtime at hand is the home from now on, if it is the first.
    pub(super) fn settle(&self) {
        self.runtime.get_or_init(Handle::current);
    }

    /// True once it was dropped: what waits for its timers panics.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }
}

/// Dropped with the runtime, or after the controller.
struct HomeGuard(Weak<Inner>);

impl Drop for HomeGuard {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            Controller(inner).end_with_home();
        }
    }
}

impl Controller {
    /// Has this host end with the runtime at hand. The task that sees to it is none of those which are
    /// waited for at the end: until the controller is dropped it is to be there.
    pub(super) fn watch_home(&self) {
        let unwatched = self.0.home.unwatched.clone();
        let guard = HomeGuard(Arc::downgrade(&self.0));
        drop(tokio::spawn(async move {
            unwatched.cancelled().await;
            drop(guard);
        }));
    }

    /// Stops what is left, and waits for nothing of it: it may wait for what is gone.
    fn end_with_home(&self) {
        let inner = &self.0;
        inner.home.is_gone.store(true, Ordering::Release);
        if !inner.closing.is_cancelled() {
            let runs = self.executing();
            tracing::error!(host = %inner.host, runs, "its tokio runtime ends before it was closed");
        }
        self.give_work_up();
        inner.tasks.close();
        self.each_live(|live| live.stop(StopCause::HandOver));
        self.each_live(Live::force);
        inner.parts.hosts.abandon(&inner.host);
    }
}
