//! Durable runs of sandboxed agents: the records, the state machine, the controller that spawns,
//! lists, watches and cancels, the driver of a run's turns, and the policy that decides what a
//! component may do.
//!
//! This crate knows no WebAssembly engine, no socket and no database. What it needs of them
//! stands behind the traits of [`ports`].

pub mod agents;
pub mod arguments;
pub mod artifact;
pub mod batch;
pub mod clock;
pub mod completion;
pub mod controller;
pub mod delegate;
pub mod driver;
pub mod ending;
pub mod error;
pub mod event;
mod example;
pub mod fact;
pub mod guard;
pub mod history;
pub mod hold;
pub mod ids;
pub mod json;
pub mod list;
pub mod machine;
pub mod memory;
pub mod message;
pub mod metrics;
pub mod money;
pub mod name;
pub mod narrow;
pub mod narrowing;
pub mod operation;
pub mod pause;
pub mod plain;
pub mod plan;
pub mod policy;
pub mod ports;
pub mod progress;
pub mod quantity;
pub mod question;
pub mod reminders;
pub mod ruling;
pub mod run;
pub mod runs;
mod schema;
pub mod spawn;
pub mod spec;
pub mod status;
pub mod stop;
pub mod store;
pub mod text;
pub mod time;
pub mod tool;
