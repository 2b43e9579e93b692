//! Runs of other agents beneath this one's: started, watched, awaited, answered, canceled.
//!
//! ```
//! use taskrun_guest::controller::{self, SpawnRequest};
//!
//! let child = controller::spawn(&SpawnRequest::new("reader", "What is in docs?").label("for", "me"))
//!     .expect("`reader` is a member");
//! let waited = controller::wait(&child.id, Some(1_000)).expect("it is there");
//! assert!(waited.timed_out && !waited.run.is_over());
//! ```
//!
//! `wait` keeps the run's slot. An agent that has nothing else to do decides
//! [`PlanResult::await_runs`](crate::agent::PlanResult::await_runs) instead.

pub use crate::bindings::agent::taskrun::plugin::controller::{
    Answer, CallTimeout, CancelOutcome, ChangeOutcome, ControllerError, Delivery, DeliveryStrategy,
    EventPage, ExceededLimit, ExternalResult, IdleWait, InvalidField, ListFilter, Narrowing,
    NotAwaitableReason, OpenItem, RunEvent, RunPage, RunRecord, RunStatus, SpawnRequest,
    WaitOutcome,
};
pub use crate::host::controller::{
    cancel, cancel_tree, get, list, pause, provide, resume, spawn, subscribe, wait,
};
use crate::types::Media;

impl Narrowing {
    /// Nothing is taken away.
    #[must_use]
    pub fn none() -> Self {
        Self {
            tools: None,
            deny: Vec::new(),
            only_tags: None,
            deny_tags: Vec::new(),
            turns: None,
            tokens: None,
            cost_microusd: None,
            tool_calls: None,
            prompt_tokens: None,
            completion_tokens: None,
            wall: None,
            turn_calls: None,
            tool_failures: None,
            timeouts: Vec::new(),
            step: None,
            last_step: None,
            no_pause: false,
        }
    }
}

impl Delivery {
    /// A delivery by this strategy, to the conversation's own agent.
    #[must_use]
    pub fn new(strategy: DeliveryStrategy) -> Self {
        Self { strategy, notify: None, prompt: None }
    }
}

impl SpawnRequest {
    /// A run of this agent on this task, with everything else left to the host.
    #[must_use]
    pub fn new(agent_name: impl Into<String>, task: impl Into<String>) -> Self {
        Self {
            agent_name: agent_name.into(),
            task: task.into(),
            images: Vec::new(),
            timeout: None,
            labels: Vec::new(),
            metadata: Vec::new(),
            envelope: Vec::new(),
            key: None,
            name: None,
            attached: false,
            narrow: Narrowing::none(),
            delivery: None,
        }
    }

    /// Adds images to the task, of those that this run may name.
    #[must_use]
    pub fn images(mut self, images: impl IntoIterator<Item = Media>) -> Self {
        self.images.extend(images);
        self
    }

    /// Says how its outcome is delivered, instead of as the policy of this run's agent says.
    #[must_use]
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = Some(delivery);
        self
    }

    /// Names it for people.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Has it canceled when this run ends.
    #[must_use]
    pub fn attached(mut self) -> Self {
        self.attached = true;
        self
    }

    /// Takes rights and means away from its agent.
    #[must_use]
    pub fn narrow(mut self, narrow: Narrowing) -> Self {
        self.narrow = narrow;
        self
    }

    /// Bounds how long it may run, in milliseconds.
    #[must_use]
    pub fn timeout(mut self, timeout_ms: u64) -> Self {
        self.timeout = Some(timeout_ms);
        self
    }

    /// Adds a label to find it by.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.push((key.into(), value.into()));
        self
    }

    /// Names it among all that this run starts, so that it is started once, whatever step or call
    /// asks for it.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }
}

impl ListFilter {
    /// Everything beneath this run.
    #[must_use]
    pub fn all() -> Self {
        Self { status: Vec::new(), agent_name: None, parent_run_id: None, labels: Vec::new() }
    }
}

impl RunStatus {
    /// The word that the host uses everywhere.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Blocked => "blocked",
            Self::Canceling => "canceling",
            Self::Finalizing => "finalizing",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }

    /// True if a run of this status never changes again.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Canceled => true,
            Self::Queued | Self::Running | Self::Blocked | Self::Canceling | Self::Finalizing => {
                false
            }
        }
    }
}

impl RunRecord {
    /// True if the run has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.status.is_terminal()
    }
}

impl NotAwaitableReason {
    /// The case's name in the contract.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::UnknownItem => "unknown-item",
            Self::Answered => "answered",
            Self::Ended => "ended",
        }
    }
}

impl ControllerError {
    /// The case's name in the contract, for `ToolError::code`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Denied(_) => "denied",
            Self::NotFound(_) => "not-found",
            Self::AlreadyExists(_) => "already-exists",
            Self::NotStarted => "not-started",
            Self::Closed => "closed",
            Self::Invalid(_) => "invalid",
            Self::Forbidden(_) => "forbidden",
            Self::Limit(_) => "limit",
            Self::NotAwaitable(_) => "not-awaitable",
            Self::Locked(_) => "locked",
            Self::Conflict => "conflict",
            Self::Timeout => "timeout",
            Self::Canceled => "canceled",
            Self::Storage(_) => "storage",
            Self::Trap(_) => "trap",
            Self::Other(_) => "other",
        }
    }

    /// The error, in words fit for a model.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Denied(rule) => format!("the policy does not allow it: {rule}"),
            Self::NotFound(id) => format!("no such run or image: {id}"),
            Self::AlreadyExists(id) => {
                format!("the key or the name belongs to another run: run {id}")
            }
            Self::NotStarted => "there is no controller here".into(),
            Self::Closed => "no work is accepted any more".into(),
            Self::Invalid(field) => field.reason.clone(),
            Self::Forbidden(why) | Self::Trap(why) | Self::Other(why) => why.clone(),
            Self::Limit(limit) => format!("too much: {} ({})", limit.kind, limit.cap),
            Self::NotAwaitable(why) => format!("the run takes no such answer: {}", why.name()),
            Self::Locked(holder) => format!("the run is locked by {holder}"),
            Self::Conflict => "somebody else changed it in this moment".into(),
            Self::Timeout => "the host was not ready in time".into(),
            Self::Canceled => "the run is being canceled".into(),
            Self::Storage(word) => format!("the host's store failed: {word}"),
        }
    }
}
