//! Calls that belong to no run's journal: a tool that describes itself, a policy that decides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use taskrun::clock::{SeededRandom, SimulatedClock};
use taskrun::scope::{
    CallScope, CallScopeParts, CurrentRules, Remaining, RunContext, ScopeLimits, Services,
    StopSignal,
};
use taskrun_journal::event::Event;
use taskrun_journal::message::LogLevel;
use taskrun_journal::time::Timestamp;
use taskrun_policy::CallRules;

use crate::guest::Guest;

/// Lines that such a call may log.
const EVENTS_MAX: u32 = 100;
/// Bytes of those lines.
const LOG_BYTES_MAX: u64 = 64 << 10;

/// A scope in which no time passes and the random numbers are the same each time, so that the guest
/// can only say the same.
pub(crate) fn scope(context: RunContext, deadline: Duration) -> Arc<CallScope> {
    Arc::new(CallScope::new(CallScopeParts {
        context,
        stop: StopSignal::never(),
        deadline,
        clock: Arc::new(SimulatedClock::new(Timestamp(0))),
        random: Arc::new(SeededRandom::new(0)),
        models: None,
        rules: CurrentRules::fixed(CallRules::nothing()),
        pins: Vec::new(),
        runs: None,
        tools: Arc::new(Vec::new()),
        state: BTreeMap::new(),
        services: Services::default(),
        remaining: Remaining::default(),
        limits: ScopeLimits { events: EVENTS_MAX, bytes: LOG_BYTES_MAX },
        wake: Arc::default(),
        journal: None,
        tape: None,
    }))
}

/// There is no run's log that could take these lines; they go to the host's.
pub(crate) fn show_log(guest: &Guest, scope: &CallScope, call: &str) {
    for event in scope.finish().events {
        if let Event::Log { level, message, .. } = event {
            let source = &guest.source;
            match level {
                LogLevel::Trace | LogLevel::Debug => {
                    tracing::debug!(%source, said = ?message, "{call}")
                }
                LogLevel::Info => tracing::info!(%source, said = ?message, "{call}"),
                LogLevel::Warn | LogLevel::Error => {
                    tracing::warn!(%source, said = ?message, "{call}")
                }
            }
        }
    }
}
