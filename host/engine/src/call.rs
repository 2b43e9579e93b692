//! One call: a slot, a fresh store, a fresh instance, a deadline for all of it, and an end in
//! every case.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use taskrun::scope::CallScope;
use taskrun_journal::stop::{CallAbort, StopCause};
use tokio::time::Instant;
use tracing::{Instrument, Span};
use wasmtime::{Store, UpdateDeadline};

use crate::attempt::Attempt;
use crate::course::{Course, TickAction};
use crate::failure::{RESOURCES_MAX, classify};
use crate::guest::Guest;
use crate::guest::Mode;
use crate::state::CallState;
use crate::threads::Lane;

/// Instantiates and calls a guest in a store of its own.
///
/// `body` does both, and is dropped with the store when the deadline passes or the stop is
/// forced, wherever the guest is: a spinning guest is interrupted by the epoch, one that waits in
/// a host function by the drop. The deadline counts from when a slot is free, without the waits for
/// models.
///
/// Where the engine has threads for guests the guest runs on those, on whatever thread the caller
/// is.
///
/// # Cancel safety
/// Dropping the future drops the instance at once, or where a guest is just running on another
/// thread as soon as that has looked at the epoch; no host function begins in between.
pub(crate) async fn run<R, F>(
    guest: &Arc<Guest>,
    scope: Arc<CallScope>,
    mode: Mode,
    body: F,
) -> Result<R, CallAbort>
where
    R: Send + 'static,
    F: for<'s> FnOnce(&'s mut Store<CallState>) -> BoxFuture<'s, wasmtime::Result<R>>
        + Send
        + 'static,
{
    let course = Course::new(guest.engine.options().slice);
    run_on(guest, scope, (mode, course), body).await
}

/// The same on a course of the caller's.
///
/// # Cancel safety
/// As [`run`].
pub(crate) async fn run_on<R, F>(
    guest: &Arc<Guest>,
    scope: Arc<CallScope>,
    (mode, course): (Mode, Course),
    body: F,
) -> Result<R, CallAbort>
where
    R: Send + 'static,
    F: for<'s> FnOnce(&'s mut Store<CallState>) -> BoxFuture<'s, wasmtime::Result<R>>
        + Send
        + 'static,
{
    let permit = guest.engine.admission().enter(&scope).await?;
    let limit = scope.deadline();
    let deadline = deadline_after(limit);
    let stopped = || {
        let cause = scope.stop().cause().unwrap_or(StopCause::Canceled);
        CallAbort::Stopped { cause }
    };
    let state =
        CallState::new(Arc::clone(guest), Arc::clone(&scope), mode, (deadline, course.clone()));
    let future = AssertUnwindSafe(async move {
        // Free when the instance is gone, wherever that is.
        let _permit = permit;
        let mut store = store(state);
        let result = body(&mut store).await;
        // How the guest met with its end says less than what the host had found before.
        match (result, store.data().violation()) {
            (Err(_), Some(violation)) => Err(violation.clone().into()),
            (result, _) => result,
        }
    });
    let (engine, stop) = (Arc::clone(&guest.engine), scope.stop().clone());
    let lane = match scope.long_calls().has(&guest.digest) {
        true => Lane::Share,
        false => Lane::First,
    };
    let mut attempt = Attempt::new(
        engine,
        (course.clone(), lane),
        stop,
        Box::pin(future.catch_unwind().instrument(Span::current())),
    );
    // The guest first: most calls end at the first poll, and need neither timer nor signal.
    let outcome = tokio::select! {
        biased;
        outcome = attempt.outcome() => outcome.ok_or_else(stopped),
        () = scope.stop().forced() => Err(stopped()),
        () = used_up(deadline, &scope) => {
            Err(CallAbort::Deadline { limit_ms: taskrun_journal::time::millis(limit) })
        }
    };
    attempt.end().await;
    scope.long_calls().note(&guest.digest, course.was_long(lane));
    match outcome? {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(error)) => {
            let failure = classify(&error, &guest.limits);
            report(&failure, &error, guest, &scope);
            Err(failure)
        }
        Err(panic) => {
            let message = panic_message(&*panic);
            let run = &scope.context().run_id;
            tracing::error!(%run, source = %guest.source, said = ?message, "a host function panicked");
            Err(CallAbort::Internal)
        }
    }
}

/// Returns when the guest has used up its time, which stands still while a model is waited for.
async fn used_up(deadline: Instant, scope: &CallScope) {
    loop {
        scope.model_waits_over().await;
        let deadline = put_off(deadline, scope);
        if Instant::now() >= deadline {
            return;
        }
        tokio::time::sleep_until(deadline).await;
    }
}

/// The deadline with the time for which models were waited for.
pub(crate) fn put_off(deadline: Instant, scope: &CallScope) -> Instant {
    deadline.checked_add(scope.model_time()).unwrap_or(deadline)
}

/// An hour is the longest that a policy allows; what is beyond the clock is as good as never.
fn deadline_after(limit: Duration) -> Instant {
    let now = Instant::now();
    let far = Duration::from_secs(365 * 24 * 3_600);
    now.checked_add(limit).unwrap_or(now + far)
}

fn store(state: CallState) -> Store<CallState> {
    let guest = Arc::clone(&state.guest);
    let mut store = Store::new(guest.engine.wasmtime(), state);
    store.limiter(|state| &mut state.limiter);
    // Bounds what a host call's arguments and a result may take of the host's memory, before
    // they are read. Lists count with the size of their items here, so that a guest cannot make
    // much out of little by pointing at the same bytes many times.
    store.set_hostcall_fuel(usize::try_from(guest.limits.host_call_bytes).unwrap_or(usize::MAX));
    store.set_max_component_handles(RESOURCES_MAX);
    store.epoch_deadline_callback(|store| {
        if let Some(violation) = store.data().must_end() {
            return Err(violation.into());
        }
        Ok(match store.data().course.at_tick() {
            TickAction::GoOn => UpdateDeadline::Continue(1),
            TickAction::Yield => UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())),
        })
    });
    store.set_epoch_deadline(1);
    store
}

/// The guest's stack and the engine's own words go to the host's log and nowhere else.
fn report(failure: &CallAbort, error: &wasmtime::Error, guest: &Guest, scope: &CallScope) {
    let (run, source) = (&scope.context().run_id, &guest.source);
    match failure {
        CallAbort::Internal => {
            tracing::error!(%run, %source, ?error, "the host failed in a call");
        }
        CallAbort::Memory { .. }
        | CallAbort::Deadline { .. }
        | CallAbort::Stack
        | CallAbort::Limit { .. }
        | CallAbort::Trap { .. }
        | CallAbort::Contract { .. }
        | CallAbort::Stopped { .. } => {
            tracing::debug!(%run, %source, ?error, kind = failure.kind(), "a call was ended");
        }
    }
}

/// The words of a panic.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}
