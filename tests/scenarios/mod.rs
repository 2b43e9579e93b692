//! The scenarios of the systems that this project brings together, each under its id.

mod agent_tools;
mod driver;
mod history;
mod m_03;
mod memory;
mod metrics;
mod models;
mod policy;
mod prompts;
mod reminders;
mod replay;
mod sizes;
mod ts_basic;
mod ts_result;
