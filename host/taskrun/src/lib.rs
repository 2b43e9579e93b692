//! Durable runs of sandboxed agents, as far as something acts: the controller that spawns, lists,
//! watches and cancels, and the driver of a run's turns. What happened, and what follows from that,
//! is [`taskrun_journal`]'s; who may do what is [`taskrun_policy`]'s.
//!
//! This crate knows no WebAssembly engine, no socket and no database. What it needs of them
//! stands behind the traits of [`ports`] and [`scope`], and behind those of
//! [`taskrun_journal::store`].

pub mod agents;
pub mod arguments;
pub mod autonomy;
pub mod batch;
pub mod byte_pool;
pub mod clock;
mod compaction;
pub mod controller;
pub mod driver;
pub mod error;
mod example;
#[cfg(test)]
mod fixtures;
mod form;
pub mod gate;
mod host_tools;
pub mod image;
pub mod ports;
mod scan;
mod schema;
pub mod scope;
pub mod spawn;
