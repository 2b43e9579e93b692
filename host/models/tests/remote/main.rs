//! Remote models against a server on loopback that speaks their protocols.

mod anthropic;
mod anthropic_schemas;
mod ask;
mod bounds;
mod calls;
mod certificates;
mod chat;
mod choices;
mod estimates;
mod gemini;
mod images;
mod messages_rules;
#[path = "../../../../tests/harness/provider.rs"]
pub mod provider;
mod recording;
mod responses;
mod responses_answers;
mod responses_rules;
mod retries;
mod rules;
mod secrets;
mod servers;
mod stated_errors;
mod table;
mod tokens_left;
