//! The canonical form of settings that are neither rules nor patterns.

use taskrun_journal::spec::TreeBounds;

use super::canonical::{Canonical, Object};
use crate::defaults::Defaults;
use crate::limits::{Budget, LimitSettings, Limits, Reserve};
use crate::settings::{InterruptionPolicy, MissingFields, Retry, RetryExhaustion, RetryOn};

/// Limits as they are enforced.
pub(super) fn limits(limits: &Limits) -> Object {
    let Limits {
        memory_bytes,
        call,
        step,
        last_step,
        grace,
        tool_calls,
        turn_calls,
        tool_failures,
        result_bytes,
        log_bytes,
        table_elements,
        host_calls,
        host_call_bytes,
        events,
        journal_bytes,
        write_bytes,
        new_files,
    } = limits;
    Object::new()
        .with("memory_bytes", *memory_bytes)
        .with("call_ms", *call)
        .with("step_ms", *step)
        .with_some("last_step_ms", *last_step)
        .with("grace_ms", *grace)
        .with_some("tool_calls", *tool_calls)
        .with_some("turn_calls", *turn_calls)
        .with("tool_failures", *tool_failures)
        .with("result_bytes", *result_bytes)
        .with("log_bytes", *log_bytes)
        .with("table_elements", *table_elements)
        .with("host_calls", *host_calls)
        .with("host_call_bytes", *host_call_bytes)
        .with("events", *events)
        .with("journal_bytes", *journal_bytes)
        .with("write_bytes", *write_bytes)
        .with("new_files", *new_files)
}

/// Limits as they are stated: in a call of a tool those of both are combined, where one that is
/// stated counts and a default does not.
pub(super) fn stated_limits(stated: &LimitSettings) -> Object {
    let LimitSettings {
        memory_bytes,
        call,
        step,
        last_step,
        grace,
        tool_calls,
        turn_calls,
        tool_failures,
        result_bytes,
        log_bytes,
        table_elements,
        host_calls,
        host_call_bytes,
        events,
        journal_bytes,
        write_bytes,
        new_files,
    } = stated;
    Object::new()
        .with_some("memory_bytes", *memory_bytes)
        .with_some("call_ms", *call)
        .with_some("step_ms", *step)
        .with_some("last_step_ms", *last_step)
        .with_some("grace_ms", *grace)
        .with_some("tool_calls", *tool_calls)
        .with_some("turn_calls", *turn_calls)
        .with_some("tool_failures", *tool_failures)
        .with_some("result_bytes", *result_bytes)
        .with_some("log_bytes", *log_bytes)
        .with_some("table_elements", *table_elements)
        .with_some("host_calls", *host_calls)
        .with_some("host_call_bytes", *host_call_bytes)
        .with_some("events", *events)
        .with_some("journal_bytes", *journal_bytes)
        .with_some("write_bytes", *write_bytes)
        .with_some("new_files", *new_files)
}

/// Bounds of trees, where any is stated.
pub(super) fn tree(bounds: &TreeBounds) -> Option<Object> {
    let TreeBounds { depth, runs, slots } = bounds;
    (!bounds.is_open()).then(|| {
        Object::new().with_some("depth", *depth).with_some("runs", *runs).with_some("slots", *slots)
    })
}

pub(super) fn budget(budget: &Budget) -> Object {
    let Budget {
        turns,
        tokens,
        prompt_tokens,
        completion_tokens,
        cost_microusd,
        subagent_cost_microusd,
        wall,
        round,
        reserve,
    } = budget;
    let Reserve { turns: reserved_turns, tokens: reserved_tokens, cost_microusd: reserved_cost } =
        reserve;
    let reserve = Object::new()
        .with("turns", *reserved_turns)
        .with("tokens", *reserved_tokens)
        .with("cost_microusd", *reserved_cost);
    Object::new()
        .with_some("turns", *turns)
        .with_some("tokens", *tokens)
        .with_some("prompt_tokens", *prompt_tokens)
        .with_some("completion_tokens", *completion_tokens)
        .with_some("cost_microusd", *cost_microusd)
        .with_some("subagent_cost_microusd", *subagent_cost_microusd)
        .with_some("wall_ms", *wall)
        .with_some("round_ms", *round)
        .with("reserve", reserve)
}

pub(super) fn retry(retry: &Retry, on: &RetryOn) -> Object {
    let Retry { attempts, pause, then } = retry;
    let (then, skips) = match then {
        RetryExhaustion::Abort => ("abort", None),
        RetryExhaustion::Skip { in_a_row } => ("skip", Some(*in_a_row)),
    };
    Object::new()
        .with("attempts", *attempts)
        .with("pause_ms", *pause)
        .with("then", then)
        .with_some("skips", skips)
        .with_some("on", (*on != Defaults::first().retry_on()).then(|| Canonical::set(on.words())))
}

pub(super) fn interrupted(policy: InterruptionPolicy) -> Canonical {
    Canonical::from(match policy {
        InterruptionPolicy::Fail => "fail",
        InterruptionPolicy::Ask => "ask",
    })
}

pub(super) fn missing_fields(setting: MissingFields) -> Canonical {
    Canonical::from(match setting {
        MissingFields::Resume => "resume",
        MissingFields::AwaitClarification => "await_clarification",
        MissingFields::Finalize => "finalize",
    })
}
