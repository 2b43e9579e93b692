//! Hooks around the delivery of an outcome: code of the host that may keep it back or tell it in other
//! words before a run is told of it, and that is told afterwards.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::join_all;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::time::{Clock, millis};

use super::hook::{HOOK_TIMEOUT, HookError};

/// The outcome of a run that another one is told of.
#[derive(Clone, Copy, Debug)]
pub struct OutcomeDelivery<'a> {
    /// The run that is told.
    pub to: &'a RunSpec,
    /// The run that ended.
    pub ended: &'a Run,
    /// The words in which it is told: heading, how it ended, and its texts between fences.
    pub words: &'a str,
}

/// The word of a hook before a run is told of an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum DeliveryVerdict {
    /// It is told as it is.
    Go,
    /// This text is told in place of its error, its reason and its result, between fences and cut
    /// to the length of a result.
    Rewrite {
        /// The text.
        text: String,
    },
    /// Nobody is told: it becomes a dead letter, which people may retry.
    Block,
}

/// Something that is asked before a run is told of an outcome, and told when it was.
#[async_trait]
pub trait DeliveryHook: Send + Sync {
    /// Decides. May be asked about several outcomes at once, and more than once about the same.
    ///
    /// # Errors
    /// If it cannot decide: the outcome is told as if there were no such hook.
    ///
    /// # Cancel safety
    /// The future is dropped when its time is up.
    async fn before(&self, delivery: &OutcomeDelivery<'_>) -> Result<DeliveryVerdict, HookError>;

    /// Called when the outcome is on record in the run that is told, at most once for each such
    /// record: not if the host dies in between.
    ///
    /// # Cancel safety
    /// As of [`Self::before`].
    async fn after(&self, delivery: &OutcomeDelivery<'_>);
}

/// A hook around deliveries.
#[derive(Clone)]
pub struct DeliveryHookEntry {
    /// Names it in the log.
    pub name: String,
    /// The time that it may take. Default: [`HOOK_TIMEOUT`].
    pub timeout: Duration,
    /// The hook.
    pub hook: Arc<dyn DeliveryHook>,
}

impl DeliveryHookEntry {
    /// A hook with the usual time.
    pub fn new(name: impl Into<String>, hook: Arc<dyn DeliveryHook>) -> Self {
        Self { name: name.into(), timeout: HOOK_TIMEOUT, hook }
    }

    /// Its verdict; to go on if it has none.
    pub(crate) async fn before(
        &self,
        clock: &dyn Clock,
        delivery: &OutcomeDelivery<'_>,
    ) -> DeliveryVerdict {
        let hook = &self.name;
        let decides = AssertUnwindSafe(async { self.hook.before(delivery).await }).catch_unwind();
        let silence = tokio::select! {
            biased;
            decided = decides => match decided {
                Ok(Ok(verdict)) => return verdict,
                Ok(Err(error)) => format!("it failed: {error}"),
                Err(_) => "it failed".to_owned(),
            },
            () = clock.sleep(self.timeout) => {
                format!("it did not decide within {} ms", millis(self.timeout))
            }
        };
        let run = delivery.ended.id();
        tracing::warn!(hook, %run, silence, "a hook did not decide about a delivery");
        DeliveryVerdict::Go
    }

    async fn after(&self, clock: &dyn Clock, delivery: &OutcomeDelivery<'_>) {
        let hears = AssertUnwindSafe(async { self.hook.after(delivery).await }).catch_unwind();
        let heard = tokio::select! {
            biased;
            heard = hears => heard.is_ok(),
            () = clock.sleep(self.timeout) => false,
        };
        if !heard {
            tracing::warn!(hook = self.name, "a hook did not take note of a delivery");
        }
    }
}

/// Tells all of these of all deliveries, at the same time.
pub(crate) async fn tell_all(
    hooks: &[DeliveryHookEntry],
    clock: &dyn Clock,
    deliveries: &[OutcomeDelivery<'_>],
) {
    let each = |delivery| hooks.iter().map(move |hook| hook.after(clock, delivery));
    join_all(deliveries.iter().flat_map(each)).await;
}
