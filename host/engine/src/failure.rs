//! From whatever ended a call to the reason that the caller is given.

use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_policy::Limits;
use wasmtime::component::ResourceTableError;
use wasmtime::{PoolConcurrencyLimitError, Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;

/// The reason that the host itself ends a guest. Travels through the guest's frames as an error.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Violation {
    /// See [`CallAbort::Memory`].
    #[error("memory limit of {limit_bytes} bytes")]
    Memory {
        /// The limit that was met.
        limit_bytes: u64,
    },
    /// See [`CallAbort::Unavailable`].
    #[error("the memory for all guests is in use")]
    Unavailable,
    /// See [`CallAbort::Deadline`].
    #[error("deadline of {limit_ms} ms")]
    Deadline {
        /// The limit that was met.
        limit_ms: u64,
    },
    /// See [`CallAbort::Limit`].
    #[error("limit on {what} ({limit})")]
    Limit {
        /// The name of the limit.
        what: &'static str,
        /// The limit that was met.
        limit: u64,
    },
    /// See [`CallAbort::Contract`].
    #[error("contract: {0}")]
    Contract(String),
    /// See [`CallAbort::Stopped`].
    #[error("{0}")]
    Stopped(StopCause),
}

impl From<Violation> for CallAbort {
    fn from(violation: Violation) -> Self {
        match violation {
            Violation::Memory { limit_bytes } => Self::Memory { limit_bytes },
            Violation::Unavailable => Self::Unavailable,
            Violation::Deadline { limit_ms } => Self::Deadline { limit_ms },
            Violation::Limit { what, limit } => Self::Limit { what: what.to_owned(), limit },
            Violation::Contract(detail) => Self::Contract { detail },
            Violation::Stopped(cause) => Self::Stopped { cause },
        }
    }
}

/// Handles of resources that a store may hold at once. Those of open files are far fewer; see
/// [`crate::handles`].
pub(crate) const RESOURCES_MAX: usize = 1_000;

/// The reason for the caller. Details, such as the guest's stack, stay in the host's log.
pub(crate) fn classify(error: &wasmtime::Error, limits: &Limits) -> CallAbort {
    if let Some(violation) = error.downcast_ref::<Violation>() {
        return violation.clone().into();
    }
    if let Some(I32Exit(status)) = error.downcast_ref::<I32Exit>() {
        return CallAbort::Trap { code: format!("exit with status {status}") };
    }
    if let Some(trap) = error.downcast_ref::<Trap>() {
        return from_trap(*trap);
    }
    if let Some(full) = error.downcast_ref::<ResourceTableError>() {
        return match full {
            ResourceTableError::Full => limit("resource handles", RESOURCES_MAX as u64),
            ResourceTableError::NotPresent
            | ResourceTableError::WrongType
            | ResourceTableError::HasChildren => {
                contract("it used a resource handle that it does not have")
            }
        };
    }
    // The operating system refused something, or the count of slots is wrong: not the guest's
    // doing.
    if error.is::<std::io::Error>() || error.is::<PoolConcurrencyLimitError>() {
        return CallAbort::Internal;
    }
    from_text(error, limits)
}

/// WebAssembly's own traps, under short names. Those of a later engine keep their text.
const TRAPS: [(Trap, &str); 8] = [
    (Trap::UnreachableCodeReached, "unreachable"),
    (Trap::MemoryOutOfBounds, "memory out of bounds"),
    (Trap::TableOutOfBounds, "table out of bounds"),
    (Trap::IndirectCallToNull, "indirect call to null"),
    (Trap::BadSignature, "indirect call type mismatch"),
    (Trap::IntegerOverflow, "integer overflow"),
    (Trap::IntegerDivisionByZero, "integer divide by zero"),
    (Trap::BadConversionToInteger, "invalid conversion to integer"),
];

fn from_trap(trap: Trap) -> CallAbort {
    if trap == Trap::StackOverflow {
        return CallAbort::Stack;
    }
    let code = match TRAPS.iter().find(|(known, _)| *known == trap) {
        Some((_, name)) => (*name).to_owned(),
        None => {
            let text = trap.to_string();
            text.strip_prefix("wasm trap: ").unwrap_or(&text).to_owned()
        }
    };
    CallAbort::Trap { code }
}

/// Errors that wasmtime gives no type. Those of the canonical ABI are the guest's doing.
fn from_text(error: &wasmtime::Error, limits: &Limits) -> CallAbort {
    let text = error.root_cause().to_string();
    if text.contains("fuel allocated for hostcalls has been exhausted") {
        // What a guest passes to a host function is read while the guest's frames are on the
        // stack; its result is read when they are gone.
        let (what, bound) = match error.downcast_ref::<WasmBacktrace>() {
            Some(_) => ("bytes of a host call", limits.host_call_bytes),
            None => ("result bytes", limits.result_bytes.min(limits.host_call_bytes)),
        };
        return limit(what, bound);
    }
    if text.contains("handle limit exceeded") {
        return limit("resource handles", RESOURCES_MAX as u64);
    }
    if text.contains("instance count too high") {
        return limit("core instances", crate::config::CORE_INSTANCES_MAX.into());
    }
    if text.contains("memory count too high") {
        return limit("memories", crate::config::MEMORIES_MAX.into());
    }
    if text.contains("table count too high") {
        return limit("tables", crate::config::TABLES_MAX.into());
    }
    let is_no_text =
        ["utf-8", "utf-16", "utf8", "surrogate"].iter().any(|word| text.contains(word));
    let detail = if is_no_text {
        "it passed text that is not valid Unicode"
    } else if text.contains("out of bounds") || text.contains("aligned") {
        "it passed a pointer that leads outside its memory or is not aligned"
    } else if text.contains("discriminant") || text.contains("char") {
        "it passed a value that its type does not have"
    } else if text.contains("handle") || text.contains("resource") {
        "it used a resource handle that it does not have"
    } else {
        "it broke the rules of the component model"
    };
    contract(detail)
}

fn limit(what: &str, limit: u64) -> CallAbort {
    CallAbort::Limit { what: what.to_owned(), limit }
}

fn contract(detail: &str) -> CallAbort {
    CallAbort::Contract { detail: detail.to_owned() }
}
