//! The real program as processes: two terminals, kill -9, wrong input, and what each prints.

mod asks;
mod damage;
mod demo;
mod descriptors;
mod durable;
mod escapes;
mod heartbeat;
mod input;
mod loading;
mod models;
mod owners;
mod paid;
mod pause;
mod project;
mod readme;
mod schemas;
mod sessions;
mod store;
mod trust;
mod two;
mod waits;
