//! A whole host in a temporary folder, for tests: policy, components, engine, store, controller,
//! reached through the public interfaces only.

pub mod changes;
pub mod foreign;
mod house;
#[path = "../native/mod.rs"]
pub mod native;
pub mod native_code;
pub mod provider;
pub mod receiver;
pub mod replays;
mod script;

pub use house::{Builder, House, Storage, engine};
pub use script::Script;
