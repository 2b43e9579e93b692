//! The host side of `wit/`, one file for each interface, and what components get of WASI.
//!
//! Every function first counts itself ([`CallState::enter`](crate::state::CallState::enter)),
//! then decides, then acts. A refusal by policy is a value that the guest can handle, and a line
//! in the journal with the rule.

pub(crate) mod cancellation;
pub(crate) mod clock;
pub(crate) mod controller;
pub(crate) mod conversation;
pub(crate) mod events;
pub(crate) mod http;
pub(crate) mod log;
pub(crate) mod memory;
pub(crate) mod memory_write;
pub(crate) mod metrics;
pub(crate) mod model;
pub(crate) mod prompts;
pub(crate) mod random;
pub(crate) mod reminders;
pub(crate) mod run;
pub(crate) mod state;
#[cfg(test)]
mod waiting;
pub(crate) mod wasi;
mod wasi_entries;
pub(crate) mod wasi_files;
mod wasi_messages;
mod wasi_streams;
pub(crate) mod workspace_read;
pub(crate) mod workspace_write;

/// The interface has no functions.
impl crate::bindings::interfaces::types::Host for crate::state::CallState {}
