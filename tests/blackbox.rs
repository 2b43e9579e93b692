//! Black-box tests: whole hosts with real components, reached through the public interfaces.

mod sandbox;
mod scenarios;
