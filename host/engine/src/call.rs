//! One call: a slot, a fresh store, a fresh instance, a deadline for all of it, and an end in
//! every case.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use taskrun::ports::call::{CallFailure, CallScope, StopCause};
use tokio::time::Instant;
use wasmtime::{Store, UpdateDeadline};

use crate::failure::{HANDLES_MAX, classify};
use crate::guest::Guest;
use crate::state::{CallState, Mode};

/// Instantiates and calls a guest in a store of its own.
///
/// `body` does both, and is dropped with the store when the deadline passes or the stop is
/// forced, wherever the guest is: a spinning guest is interrupted by the epoch, one that waits in
/// a host function by the drop. The deadline counts from when a slot is free.
///
/// # Cancel safety
/// Dropping the future drops the instance at once.
pub(crate) async fn run<R, F>(
    guest: &Arc<Guest>,
    scope: Arc<CallScope>,
    mode: Mode,
    body: F,
) -> Result<R, CallFailure>
where
    R: Send,
    F: for<'s> FnOnce(&'s mut Store<CallState>) -> BoxFuture<'s, wasmtime::Result<R>> + Send,
{
    let _permit = guest.engine.admission().enter(&scope).await?;
    let limit = scope.deadline();
    let deadline = deadline_after(limit);
    let stopped = || {
        let cause = scope.stop().cause().unwrap_or(StopCause::Canceled);
        CallFailure::Stopped { cause }
    };
    let mut attempt = pin!(
        AssertUnwindSafe(async {
            let mut store = store(guest, Arc::clone(&scope), mode, deadline);
            body(&mut store).await
        })
        .catch_unwind()
    );
    // A guest that has yielded is not resumed once it must stop: it would take no notice of an
    // epoch that has passed meanwhile, and spin until the next.
    let attempt = std::future::poll_fn(|context| match scope.stop().is_forced() {
        true => Poll::Ready(None),
        false => attempt.as_mut().poll(context).map(Some),
    });
    // The guest first: most calls end at the first poll, and need neither timer nor signal.
    let outcome = tokio::select! {
        biased;
        outcome = attempt => outcome.ok_or_else(stopped)?,
        () = scope.stop().forced() => return Err(stopped()),
        () = tokio::time::sleep_until(deadline) => {
            return Err(CallFailure::Deadline { limit_ms: taskrun::time::millis(limit) });
        }
    };
    match outcome {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(error)) => {
            let failure = classify(&error, guest);
            report(&failure, &error, guest, &scope);
            Err(failure)
        }
        Err(panic) => {
            let message = panic_message(&*panic);
            let run = &scope.context().run_id;
            tracing::error!(%run, source = %guest.source, said = ?message, "a host function panicked");
            Err(CallFailure::Internal)
        }
    }
}

/// An hour is the longest that a policy allows; what is beyond the clock is as good as never.
fn deadline_after(limit: Duration) -> Instant {
    let now = Instant::now();
    let far = Duration::from_secs(365 * 24 * 3_600);
    now.checked_add(limit).unwrap_or(now + far)
}

fn store(
    guest: &Arc<Guest>,
    scope: Arc<CallScope>,
    mode: Mode,
    deadline: Instant,
) -> Store<CallState> {
    let state = CallState::new(Arc::clone(guest), scope, mode, deadline);
    let mut store = Store::new(guest.engine.wasmtime(), state);
    store.limiter(|state| &mut state.limiter);
    // Bounds what a host call's arguments and a result may take of the host's memory, before
    // they are read. Lists count with the size of their items here, so that a guest cannot make
    // much out of little by pointing at the same bytes many times.
    store.set_hostcall_fuel(usize::try_from(guest.limits.host_call_bytes).unwrap_or(usize::MAX));
    store.set_max_component_handles(HANDLES_MAX);
    store.epoch_deadline_callback(|store| match store.data().must_end() {
        Some(violation) => Err(violation.into()),
        None => Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now()))),
    });
    store.set_epoch_deadline(1);
    store
}

/// The guest's stack and the engine's own words go to the host's log and nowhere else.
fn report(failure: &CallFailure, error: &wasmtime::Error, guest: &Guest, scope: &CallScope) {
    let (run, source) = (&scope.context().run_id, &guest.source);
    match failure {
        CallFailure::Internal => {
            tracing::error!(%run, %source, ?error, "the host failed in a call");
        }
        CallFailure::Memory { .. }
        | CallFailure::Deadline { .. }
        | CallFailure::Stack
        | CallFailure::Limit { .. }
        | CallFailure::Trap { .. }
        | CallFailure::Contract { .. }
        | CallFailure::Stopped { .. } => {
            tracing::debug!(%run, %source, ?error, kind = failure.kind(), "a call was ended");
        }
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}
