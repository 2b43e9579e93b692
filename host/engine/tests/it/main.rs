//! Components that try things, and what must come of it.

#![expect(clippy::unwrap_used, reason = "a test that finds nothing to unwrap has failed")]

mod boundary;
mod cache;
mod clocks;
mod controller;
mod describe;
mod endless;
mod examples;
mod finalizer;
mod forms;
mod grants;
mod guest_memory;
mod handles;
mod host;
mod http;
mod limits;
mod load;
mod model;
mod own_files;
mod residue;
mod roster;
mod rules;
mod stop;
mod support;
mod threads;
mod wasi_folders;
mod wasi_http;
mod work;
mod workspaces;
mod worlds;
