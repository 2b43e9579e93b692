//! The code that the generator makes of the contract in `wit/`; `tests/bindings.rs` keeps it in step. The
//! other worlds take their imports from the agent world's, as far as that has them.

#[allow(
    missing_docs,
    unsafe_code,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    clippy::wildcard_enum_match_arm,
    clippy::unwrap_used,
    reason = "generated"
)]
#[rustfmt::skip]
pub mod agent;
#[allow(
    missing_docs,
    unsafe_code,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    clippy::wildcard_enum_match_arm,
    clippy::unwrap_used,
    reason = "generated"
)]
#[rustfmt::skip]
pub mod agent_conversation;
#[allow(
    missing_docs,
    unsafe_code,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    clippy::wildcard_enum_match_arm,
    clippy::unwrap_used,
    reason = "generated"
)]
#[rustfmt::skip]
pub mod agent_finalizer;
#[allow(
    missing_docs,
    unsafe_code,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    clippy::wildcard_enum_match_arm,
    clippy::unwrap_used,
    reason = "generated"
)]
#[rustfmt::skip]
pub mod policy_engine;
#[allow(
    missing_docs,
    unsafe_code,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    clippy::wildcard_enum_match_arm,
    clippy::unwrap_used,
    reason = "generated"
)]
#[rustfmt::skip]
pub mod tool;
