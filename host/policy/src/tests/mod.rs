//! Tests of the policy: tables of texts and what must come out.

mod autonomy;
mod callees;
mod capabilities;
mod chain;
mod channels;
mod closure_rules;
mod closures;
mod decisions;
mod errors;
mod explanations;
mod files;
mod fuzz;
mod globs;
mod host_tools;
mod models;
mod money;
mod named_functions;
mod policies;
mod subscribers;
mod timeouts;

use std::path::Path;

use super::PolicyErrors;
use crate::policy::{AgentPolicy, Policy};

/// A policy with a tool, two models and the agent `a`, whose table ends with `body`.
fn with_agent(body: &str) -> String {
    format!(
        "[model.fast]\nprovider = \"echo\"\n[model.large]\nprovider = \"echo\"\n\
         [tool.workspace]\ncomponent = \"w.wasm\"\n\
         [agent.a]\ncomponent = \"a.wasm\"\n{body}\n"
    )
}

fn parse(text: &str) -> Result<Policy, PolicyErrors> {
    Policy::parse(text, Path::new("conf/taskrun.toml"))
}

/// The agent `a` of [`with_agent`].
fn agent(body: &str) -> AgentPolicy {
    let policy = parse(&with_agent(body)).unwrap_or_else(|errors| panic!("{errors}"));
    policy.agents["a"].clone()
}
