//! One call: a slot, a fresh store, a fresh instance, a deadline for all of it, and an end in
//! every case.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use taskrun::clock::process_time;
use taskrun::scope::CallScope;
use taskrun_journal::stop::{CallAbort, StopCause};
use tracing::{Instrument, Span};
use wasmtime::{Store, UpdateDeadline};

use crate::attempt::Attempt;
use crate::course::{Course, TickAction};
use crate::failure::{RESOURCES_MAX, classify};
use crate::guest::Guest;
use crate::guest::Mode;
use crate::state::CallState;
use crate::threads::Lane;

/// Least pause between two looks at a time that may stand still.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// Instantiates and calls a guest in a store of its own.
///
/// `body` does both, and is dropped with the store when the deadline passes or the stop is
/// forced, wherever the guest is: a spinning guest is interrupted by the epoch, one that waits in
/// a host function by the drop. The deadline counts from when memory and a slot are free, without
/// the waits for models and the time in which the host stands still.
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
    let memory = Arc::new(guest.engine.memory().begin(&scope, guest.begin_bytes.known()).await?);
    // After the memory: who waits for that holds no slot meanwhile.
    let permit = memory.enter(guest.engine.admission()).await?;
    let limit = scope.deadline();
    let deadline = process_time().saturating_add(limit);
    let stopped = || {
        let cause = scope.stop().cause().unwrap_or(StopCause::Canceled);
        CallAbort::Stopped { cause }
    };
    let times = (deadline, course.clone());
    let state =
        CallState::new(Arc::clone(guest), Arc::clone(&scope), mode, Arc::clone(&memory), times);
    let future = AssertUnwindSafe(async move {
        // Free when the instance is gone, wherever that is.
        let _held = (permit, memory);
        let mut store = store(state);
        let result = body(&mut store).await;
        if result.is_ok() {
            let state = store.data();
            state.guest.begin_bytes.note(state.limiter.begun_bytes());
        }
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

/// Returns when the guest has used up its time, which stands still while a model is waited for, and
/// with the host.
async fn used_up(deadline: Duration, scope: &CallScope) {
    loop {
        scope.model_waits_over().await;
        let left = put_off(deadline, scope).saturating_sub(process_time());
        if left.is_zero() {
            return;
        }
        pause(left).await;
    }
}

/// Sleeps for what is left of a time that may stand still, and no shorter than the timer can: while
/// it stands still nothing becomes of the little that is left, however often one looks.
pub(crate) async fn pause(left: Duration) {
    tokio::time::sleep(left.max(PAUSE_MIN)).await;
}

/// The deadline, in the time of the process, with the time for which models were waited for and for
/// which the call stood still.
pub(crate) fn put_off(deadline: Duration, scope: &CallScope) -> Duration {
    deadline.saturating_add(scope.model_time()).saturating_add(scope.stop().held_for())
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
        | CallAbort::Unavailable
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
