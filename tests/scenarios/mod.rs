//! The scenarios of the systems that this project brings together, each under its id.

mod agent_tools;
mod caching;
mod choices;
mod conversation;
mod delegation;
mod driver;
mod history;
mod host_tools;
mod images;
mod images_between;
mod imitations;
mod lifecycle;
mod memory;
mod metrics;
mod models;
mod policy;
mod prompts;
mod reminders;
mod replay;
mod responses;
mod result;
mod sizes;
mod structured;
mod windows;
