//! What the controller needs from outside: the seams behind which a component, a model provider
//! or a store stands. Each has at least two implementations.

pub mod call;
pub mod hook;
pub mod memory;
pub mod model;
pub mod planner;
pub mod policy_engine;
pub mod runs;
pub mod tool;
