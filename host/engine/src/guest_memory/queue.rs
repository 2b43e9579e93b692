//! The wait of a call for the memory that its instance begins with.

use std::sync::atomic::Ordering;
use std::time::Duration;

use taskrun::clock::process_time;
use taskrun_journal::stop::{CallAbort, StopCause};
use tokio::sync::OwnedSemaphorePermit;

use super::CallMemory;
use crate::admission::Admission;
use crate::call::pause;

/// Longest wait, where the call itself may take longer: the run, or its caller, hears of it.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The time after which a wait is told of.
const TOLD_AFTER: Duration = Duration::from_secs(1);

/// Takes so many bytes as soon as there are as many and nobody of the same tenant waits before.
///
/// # Errors
/// [`CallAbort::Unavailable`] if that takes longer than the call may, or than a minute;
/// [`CallAbort::Stopped`] if the call is stopped meanwhile.
pub(super) async fn wait(memory: &CallMemory, bytes: u64) -> Result<(), CallAbort> {
    let place = Place::last(memory);
    if place.takes(bytes) {
        return Ok(());
    }
    let stop = memory.scope.stop();
    tokio::select! {
        biased;
        () = place.has_taken(bytes) => Ok(()),
        () = stop.forced() => {
            Err(CallAbort::Stopped { cause: stop.cause().unwrap_or(StopCause::Canceled) })
        }
        () = is_late(memory, bytes, "a call waits for memory, which other guests have") => {
            Err(CallAbort::Unavailable)
        }
    }
}

/// Waits for a slot with so many bytes that are taken.
///
/// # Errors
/// [`CallAbort::Unavailable`] if that takes longer than the call may, or than a minute: the guests
/// that have the slots may wait for calls that need these bytes, or the slots that lend them.
/// [`CallAbort::Stopped`] if the call is stopped meanwhile.
pub(super) async fn wait_for_slot(
    memory: &CallMemory,
    bytes: u64,
    slots: &Admission,
) -> Result<OwnedSemaphorePermit, CallAbort> {
    tokio::select! {
        biased;
        permit = slots.enter(&memory.scope) => permit,
        () = is_late(memory, bytes, "a call with memory waits for a slot") => {
            Err(CallAbort::Unavailable)
        }
    }
}

/// Returns when a call has waited for as long as it may, in a time that stands still with the
/// process and with the call. The host's log is told before.
async fn is_late(memory: &CallMemory, bytes: u64, told: &str) {
    let scope = &memory.scope;
    let most = scope.deadline().min(WAIT_MAX);
    let silent = most.min(TOLD_AFTER);
    let own_time = || process_time().saturating_sub(scope.stop().held_for());
    let begun = own_time();
    let left_of = |time: Duration| time.saturating_sub(own_time().saturating_sub(begun));
    none_left(|| left_of(silent)).await;
    if most > silent {
        let run = &scope.context().run_id;
        tracing::warn!(%run, bytes, "{told}");
        none_left(|| left_of(most)).await;
    }
}

/// Returns when nothing is left of a time that may stand still.
async fn none_left(left: impl Fn() -> Duration) {
    loop {
        let left = left();
        if left.is_zero() {
            return;
        }
        pause(left).await;
    }
}

/// The place of a call among those of its tenant that wait, until this is dropped.
struct Place<'m> {
    memory: &'m CallMemory,
    number: u64,
}

impl<'m> Place<'m> {
    /// The place behind all others.
    fn last(memory: &'m CallMemory) -> Self {
        let pool = &memory.pool.0;
        let mut held = pool.held();
        let number = held.next;
        held.next += 1;
        let account = held.by_tenant.entry(memory.tenant().to_owned()).or_default();
        account.waits[queue_of(memory)].push_back(number);
        pool.waiting.fetch_add(1, Ordering::SeqCst);
        Self { memory, number }
    }

    /// Takes so many bytes, if there are as many and it is the first place.
    fn takes(&self, bytes: u64) -> bool {
        let mut held = self.memory.pool.0.held();
        let account = held.by_tenant.get(self.memory.tenant());
        let first = account.and_then(|account| account.waits[queue_of(self.memory)].front());
        first == Some(&self.number) && self.memory.take(&mut held, bytes).is_ok()
    }

    /// Returns once so many bytes are taken.
    async fn has_taken(&self, bytes: u64) {
        loop {
            let freed = self.memory.pool.0.freed.notified();
            tokio::pin!(freed);
            // Before the look: what is given back in between is heard.
            freed.as_mut().enable();
            if self.takes(bytes) {
                return;
            }
            freed.await;
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let (pool, tenant) = (&self.memory.pool.0, self.memory.tenant());
        let mut held = pool.held();
        if let Some(account) = held.by_tenant.get_mut(tenant) {
            account.waits[queue_of(self.memory)].retain(|number| *number != self.number);
        }
        held.forget_if_empty(tenant);
        pool.waiting.fetch_sub(1, Ordering::SeqCst);
        drop(held);
        // The next one of its tenant is the first.
        pool.tell();
    }
}

/// The queue of a call, by the last pot that it may take from: one beneath another run does not
/// wait behind those that may take less.
fn queue_of(memory: &CallMemory) -> usize {
    memory.pots().len() - 1
}
