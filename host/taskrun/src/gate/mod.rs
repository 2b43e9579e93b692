//! The layers that decide which tools a run has, and which of its calls may begin. Each of them can
//! only take away. ARCHITECTURE.md has their order.
//!
//! Nothing here knows the driver, the journal's port or the controller.

pub(crate) mod engines;
pub(crate) mod narrowing;

pub use self::engines::Guard;
