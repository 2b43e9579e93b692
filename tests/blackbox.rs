//! Black-box tests: whole hosts with real components, reached through the public interfaces.

mod changes;
mod sandbox;
mod scenarios;
