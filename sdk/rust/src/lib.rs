//! The library for authors of agents and tools for `taskrun` in Rust.
//!
//! A guest is a `cdylib` crate for `wasm32-unknown-unknown` (or `wasm32-wasip2`, for code that
//! wants files through `std::fs`). A **tool** lists its functions with [`tool!`]:
//!
//! ```
//! use taskrun_guest::tool::{Failure, ToolCall, ToolResult};
//!
//! const MEASURE: &str = r#"{
//!     "type": "object",
//!     "properties": {"text": {"type": "string"}},
//!     "required": ["text"],
//!     "additionalProperties": false
//! }"#;
//!
//! fn measure(call: &ToolCall) -> Result<ToolResult, Failure> {
//!     Ok(ToolResult::new(call.payload.len().to_string()))
//! }
//!
//! taskrun_guest::tool! {
//!     /// Tells how many bytes its arguments have.
//!     fn measure(MEASURE, read_only) => measure;
//! }
//! # fn main() {}
//! ```
//!
//! An **agent** implements [`agent::Agent`] and names itself in [`export_agent!`]:
//!
//! ```
//! use taskrun_guest::agent::{Agent, PlanInput, PlanResult, PlanResumeInput, PlannerError};
//!
//! struct Parrot;
//!
//! impl Agent for Parrot {
//!     fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
//!         Ok(PlanResult::final_text(taskrun_guest::agent::task(&input.messages).unwrap_or_default()))
//!     }
//!
//!     fn resume(_: PlanResumeInput) -> Result<PlanResult, PlannerError> {
//!         Err(PlannerError::new("a parrot calls no tools"))
//!     }
//! }
//!
//! taskrun_guest::export_agent!(Parrot);
//! # fn main() {}
//! ```
//!
//! An agent that also implements [`agent::Finalizer`] adds to the metadata of its runs when they
//! end.
//!
//! A **policy** decides which of its tools an agent may use; see [`policy`].
//!
//! Every other module is a capability of the host, one for each interface of the contract. A call
//! of a capability puts it into the component's import list, which is the guest's request to the
//! operator; a capability that is not called is not asked for. `log` is always there: a panic is
//! written to the run's log before it ends the call.
//!
//! For `wasm32-unknown-unknown` the library brings an allocator that spares the host work where a
//! call needs little memory. A guest with a `#[global_allocator]` of its own depends on the library
//! with `default-features = false`.
//!
//! On any target but WebAssembly the capabilities are stand-ins ([`native`]), so that
//! `cargo test` runs a guest's logic on the author's machine: [`native::tool_call`] makes a call
//! for it. The signatures of those that tools use most stand in `guest-examples/README.md`.

pub mod agent;
#[doc(hidden)]
pub mod bindings;
mod capabilities;
pub mod controller;
#[cfg(all(feature = "heap", target_arch = "wasm32", target_os = "unknown"))]
mod heap;
#[cfg(not(target_arch = "wasm32"))]
pub mod native;
#[doc(hidden)]
pub mod panics;
pub mod policy;
pub mod tool;
pub mod types;

pub use capabilities::{
    cancellation, clock, conversation, events, http, log, memory, metrics, model, prompts, random,
    reminders, run, state, workspace,
};

#[cfg(target_arch = "wasm32")]
pub(crate) use bindings::agent::taskrun::plugin as host;
#[cfg(target_arch = "wasm32")]
pub(crate) use bindings::agent_conversation::taskrun::plugin as conversation_host;
#[cfg(target_arch = "wasm32")]
pub(crate) use bindings::tool::taskrun::plugin as tool_host;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use native::imports::{self as host, self as conversation_host, self as tool_host};
