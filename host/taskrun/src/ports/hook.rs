//! Hooks: code of the host that is asked before something happens. There is no way for a guest or
//! a caller to register one.
//!
//! Code that only wants to know what happened reads the journal: an observer has a cursor, cannot
//! block a run and cannot crash it. A hook is for a decision that the policy cannot express.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::join_all;
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::text::cut;
use taskrun_journal::time::{Clock, millis};

use super::delivery_hook::DeliveryHookEntry;

/// The time that a hook may take unless it is registered otherwise. A decision should take less
/// than 100 ms, as a run stands still for it; this is for one that asks somebody over a network,
/// and short enough that nobody takes the host for dead.
pub const HOOK_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of a reason that are passed on: it stands in the conversation of the run.
pub(crate) const HOOK_REASON_BYTES_MAX: usize = 1 << 10;

/// A thing that is about to happen.
#[derive(Clone, Copy, Debug)]
pub enum Moment<'a> {
    /// A run is about to be accepted. The request passed all checks but those of the store, so it
    /// may yet be refused, or be the repetition of one that was accepted before.
    Spawn {
        /// The run as it would be kept.
        spec: &'a RunSpec,
    },
    /// A tool is about to be called. The call passed all checks but the one for the number of
    /// calls that are left. A call that is repeated after the death of a host is the same call
    /// and is not asked about again; one whose host died before that was recorded is.
    ToolCall {
        /// The run.
        spec: &'a RunSpec,
        /// Number of the turn, from 1.
        turn: u32,
        /// The call.
        request: &'a ToolRequest,
    },
    /// A round of a run that goes on by itself is about to begin: no budget forbids it, and the time
    /// of one that was put off has come. A veto ends the run. A round whose first plan step is on
    /// record, or did anything that is, is not asked about again; one whose host died before that
    /// is, and so is one whose model wanted to be asked later.
    Round {
        /// The run.
        spec: &'a RunSpec,
        /// Number of the round, from 1; a run that continues another goes on from its number.
        round: u32,
    },
}

/// The word of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// It may happen.
    Go,
    /// It must not.
    Veto {
        /// Why, for whoever asked: the caller, the agent, or whoever reads how the run ended.
        reason: String,
    },
}

/// Why a hook has no verdict.
pub type HookError = Box<dyn std::error::Error + Send + Sync>;

/// Something that is asked before.
#[async_trait]
pub trait Hook: Send + Sync {
    /// Decides. May be asked about several things at once, and more than once about the same.
    ///
    /// # Errors
    /// If it cannot decide.
    ///
    /// # Cancel safety
    /// The future is dropped when its time is up.
    async fn before(&self, moment: &Moment<'_>) -> Result<Verdict, HookError>;
}

/// A hook and what its word counts for.
#[derive(Clone)]
pub struct HookEntry {
    /// Names it in refusals and in the log.
    pub name: String,
    /// True if its veto counts, and its silence: a critical hook that fails, panics or is too
    /// slow refuses. What any other says is logged and ignored.
    pub critical: bool,
    /// The time that it may take. Default: [`HOOK_TIMEOUT`].
    pub timeout: Duration,
    /// The hook.
    pub hook: Arc<dyn Hook>,
}

impl HookEntry {
    /// A hook without which nothing happens.
    pub fn critical(name: impl Into<String>, hook: Arc<dyn Hook>) -> Self {
        Self { name: name.into(), critical: true, timeout: HOOK_TIMEOUT, hook }
    }

    /// A hook that is asked and not obeyed.
    pub fn advisory(name: impl Into<String>, hook: Arc<dyn Hook>) -> Self {
        Self { critical: false, ..Self::critical(name, hook) }
    }
}

/// The hooks of a controller, fixed before it starts. By default there are none, which costs
/// nothing.
#[derive(Clone, Default)]
pub struct Hooks {
    asked: Arc<[HookEntry]>,
    deliveries: Arc<[DeliveryHookEntry]>,
}

/// The word of a critical hook against something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Veto {
    pub(crate) hook: String,
    pub(crate) reason: String,
}

impl fmt::Display for Veto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused by hook {}: {}", self.hook, self.reason)
    }
}

impl Hooks {
    /// These. All of them are asked at the same time; of several vetoes the first one's counts.
    #[must_use]
    pub fn new(hooks: Vec<HookEntry>) -> Self {
        Self { asked: hooks.into(), deliveries: Arc::default() }
    }

    /// These around the deliveries of outcomes. They are asked one after the other, each about the
    /// words of the one before.
    #[must_use]
    pub fn with_deliveries(self, hooks: Vec<DeliveryHookEntry>) -> Self {
        Self { deliveries: hooks.into(), ..self }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// The hooks around deliveries.
    pub(crate) fn deliveries(&self) -> &[DeliveryHookEntry] {
        &self.deliveries
    }

    /// Asks all of them, and gives the veto, if there is one that counts.
    pub(crate) async fn ask(&self, clock: &dyn Clock, moment: &Moment<'_>) -> Option<Veto> {
        if self.is_empty() {
            return None;
        }
        let vetoes = join_all(self.asked.iter().map(|one| one.ask(clock, moment))).await;
        vetoes.into_iter().flatten().next()
    }
}

impl HookEntry {
    async fn ask(&self, clock: &dyn Clock, moment: &Moment<'_>) -> Option<Veto> {
        let hook = &self.name;
        let reason = match self.verdict(clock, moment).await {
            Ok(Verdict::Go) => return None,
            Ok(Verdict::Veto { reason }) => {
                tracing::info!(hook, self.critical, reason, "a hook is against it");
                reason
            }
            Err(reason) => {
                tracing::warn!(hook, self.critical, reason, "a hook did not decide");
                reason
            }
        };
        let reason = cut(&reason, HOOK_REASON_BYTES_MAX).to_owned();
        self.critical.then(|| Veto { hook: hook.clone(), reason })
    }

    /// Its verdict, or the reason for which it has none.
    async fn verdict(&self, clock: &dyn Clock, moment: &Moment<'_>) -> Result<Verdict, String> {
        let decides = AssertUnwindSafe(async { self.hook.before(moment).await }).catch_unwind();
        tokio::select! {
            biased;
            decided = decides => match decided {
                Ok(Ok(verdict)) => Ok(verdict),
                Ok(Err(error)) => Err(format!("it failed: {error}")),
                Err(_) => Err("it failed".to_owned()),
            },
            () = clock.sleep(self.timeout) => {
                Err(format!("it did not decide within {} ms", millis(self.timeout)))
            }
        }
    }
}
