//! The real program as processes: two terminals, kill -9, wrong input, and what each prints.

mod asks;
mod damage;
mod demo;
mod deployments;
mod descriptors;
mod documents;
mod durable;
mod escapes;
mod explain;
mod explain_runs;
mod heartbeat;
mod input;
mod kept;
mod known;
mod loading;
mod models;
mod owners;
mod paid;
mod pause;
mod project;
mod schemas;
mod sessions;
mod store;
mod trust;
mod two;
mod waits;
