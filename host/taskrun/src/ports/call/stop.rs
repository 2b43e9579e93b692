//! How a call is stopped, and why it may have no answer.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Context;

use futures::task::AtomicWaker;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

/// Who or what stops a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    /// The run was cancelled.
    Canceled,
    /// The run's own time-out passed.
    RunTimeout,
    /// The host is being shut down.
    Shutdown,
    /// A plan step did something else than when it ran before.
    Diverged,
    /// The run's journal has as many bytes as it may.
    JournalFull,
    /// The host gives the run back, to be taken up by another one.
    HandOver,
    /// The host could not renew its lease, and another one has the run.
    LeaseLost,
}

impl fmt::Display for StopCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Canceled => "the run was canceled",
            Self::RunTimeout => "the run's time-out passed",
            Self::Shutdown => "the host is shutting down",
            Self::JournalFull => "the run's journal is full",
            Self::Diverged => "it did something else than when it ran before",
            Self::HandOver => "the host gives the run to another one",
            Self::LeaseLost => "the host lost its lease",
        })
    }
}

/// Stops calls in two grades: first asks, then forces. Clones are the same signal.
#[derive(Clone)]
pub struct StopSignal(Arc<StopInner>);

struct StopInner {
    asked: CancellationToken,
    forced: CancellationToken,
    cause: OnceLock<StopCause>,
    held: AtomicBool,
    /// Whoever would poll the call, were it not held.
    poller: AtomicWaker,
    /// Makes running guests look at their signal now instead of at the next tick.
    interrupt: Interrupt,
}

/// Makes every running guest of the engine look at its [`StopSignal`] now. Cheap and harmless to
/// those that are not meant.
pub type Interrupt = Arc<dyn Fn() + Send + Sync>;

impl fmt::Debug for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StopSignal")
            .field("cause", &self.cause())
            .field("forced", &self.is_forced())
            .finish()
    }
}

impl StopSignal {
    /// A signal that nobody has given.
    #[must_use]
    pub fn new(interrupt: Interrupt) -> Self {
        Self(Arc::new(StopInner {
            asked: CancellationToken::new(),
            forced: CancellationToken::new(),
            cause: OnceLock::new(),
            held: AtomicBool::new(false),
            poller: AtomicWaker::new(),
            interrupt,
        }))
    }

    /// A signal for callers that stop calls by dropping them.
    #[must_use]
    pub fn never() -> Self {
        Self::new(Arc::new(|| {}))
    }

    /// Asks to stop. The first cause counts.
    pub fn ask(&self, cause: StopCause) {
        // A second cause changes nothing.
        self.0.cause.set(cause).ok();
        self.0.asked.cancel();
    }

    /// Forces the stop: running guests are interrupted.
    pub fn force(&self, cause: StopCause) {
        self.ask(cause);
        self.0.forced.cancel();
        self.0.poller.wake();
        (self.0.interrupt)();
    }

    /// Lets the call stand still, or go on. One that stands still is not resumed once it has yielded,
    /// wherever it is polled; its stop can be forced all the same.
    pub fn hold(&self, held: bool) {
        self.0.held.store(held, Ordering::SeqCst);
        match held {
            true => (self.0.interrupt)(),
            false => self.0.poller.wake(),
        }
    }

    /// Whether the call stands still. Whoever asks in order to poll it is woken when it may go on; one
    /// call has one who polls it.
    #[must_use]
    pub fn is_held(&self, context: &Context<'_>) -> bool {
        if !self.0.held.load(Ordering::SeqCst) {
            return false;
        }
        self.0.poller.register(context.waker());
        self.0.held.load(Ordering::SeqCst)
    }

    /// Why, if anybody asked.
    #[must_use]
    pub fn cause(&self) -> Option<StopCause> {
        self.0.cause.get().copied()
    }

    /// Whether somebody asked.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.asked.is_cancelled()
    }

    /// Whether the stop is forced.
    #[must_use]
    pub fn is_forced(&self) -> bool {
        self.0.forced.is_cancelled()
    }

    /// Returns when somebody asks.
    pub async fn asked(&self) {
        self.0.asked.cancelled().await;
    }

    /// Returns when the stop is forced.
    pub async fn forced(&self) {
        self.0.forced.cancelled().await;
    }
}

/// Why a call has no answer of its own. Nothing in here speaks of the host's insides; details
/// for the operator go to the host's log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum CallFailure {
    /// It wanted more memory than it may have.
    #[error("stopped: memory limit of {limit_bytes} bytes")]
    Memory {
        /// The limit.
        limit_bytes: u64,
    },
    /// It took longer than it may.
    #[error("stopped: deadline of {limit_ms} ms exceeded")]
    Deadline {
        /// The limit.
        limit_ms: u64,
    },
    /// Its stack overflowed.
    #[error("stopped: stack overflow")]
    Stack,
    /// It met another of its limits.
    #[error("stopped: limit on {what} ({limit})")]
    Limit {
        /// What is limited.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// It trapped.
    #[error("trapped: {code}")]
    Trap {
        /// WebAssembly's name of the trap.
        code: String,
    },
    /// It did what its interface forbids.
    #[error("contract violated: {detail}")]
    Contract {
        /// What.
        detail: String,
    },
    /// Somebody stopped it.
    #[error("stopped: {cause}")]
    Stopped {
        /// Who or what.
        cause: StopCause,
    },
    /// The host itself failed.
    #[error("internal error of the host")]
    Internal,
}

impl CallFailure {
    /// The word for programs.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Memory { .. } => "memory",
            Self::Deadline { .. } => "deadline",
            Self::Stack => "stack",
            Self::Limit { .. } => "limit",
            Self::Trap { .. } => "trap",
            Self::Contract { .. } => "contract",
            Self::Stopped { .. } => "stopped",
            Self::Internal => "internal",
        }
    }
}
