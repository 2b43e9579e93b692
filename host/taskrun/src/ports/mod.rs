//! The seams behind which a component or code of the host stands that is called in a run. Each has
//! at least two implementations; a planner and a tool act in a
//! [`CallScope`](crate::scope::CallScope). The ports that a call itself asks through stand in
//! [`crate::scope`].

pub mod delivery_hook;
pub mod deployments;
pub mod hook;
pub mod planner;
pub mod policy_engine;
pub mod retry;
pub mod tool;
pub mod transport;
