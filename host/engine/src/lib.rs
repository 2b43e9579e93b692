//! Wasmtime behind the ports of `taskrun`: load a component, check what it asks for against what
//! policy grants, give every call a fresh instance, and stop it when it must stop.
//!
//! ```no_run
//! # async fn example(policy: taskrun_policy::Policy) -> Result<(), Box<dyn std::error::Error>> {
//! use taskrun_engine::{AgentGrants, Cache, Engine, EngineOptions};
//!
//! let engine = Engine::new(EngineOptions {
//!     cache: Some(Cache::open("/var/lib/taskrun/native".as_ref())?),
//!     ..EngineOptions::default()
//! })?;
//! let agent = &policy.agents["readonly_researcher"];
//! let loaded = engine.load_file(&agent.component).await?;
//! println!("{:#?}", loaded.inspect());
//! let planner = engine.agent(&loaded, AgentGrants::of_agent(agent))?;
//! # let _ = planner; Ok(()) }
//! ```
//!
//! An [`Engine`] is one per process. [`Engine::load_file`] and [`Engine::load`] compile a
//! component, or take its native code from the [`Cache`], and know nothing of grants.
//! [`Engine::agent`], [`Engine::tool`] and [`Engine::policy`] check its imports against the grants
//! of one agent and link exactly those; what they return is called through the ports
//! [`taskrun::ports::planner`] and [`taskrun::ports::tool`]. [`Engine::interrupt`] goes into every
//! [`taskrun::scope::StopSignal`], so that a forced stop is noticed at once.
//!
//! # What is enforced where
//!
//! | what | where |
//! | --- | --- |
//! | size of a component and of its parts | `load`, `shape` |
//! | time and memory of compiling it | `compile`, `worker` |
//! | native code is ours and unchanged | `cache` |
//! | what is known of a component without loading it | `catalog` |
//! | imports against grants, one world per role, versions | `grants` |
//! | types of exported functions | `exports` |
//! | calls at once | `admission` |
//! | which threads guests run on, and for how long before others | `threads`, `attempt` |
//! | deadline, forced stop, panics of the host | `call` |
//! | memory, tables, number of instances | `limiter` |
//! | bytes that cross in one call or one result | `call`, `measure` |
//! | number of host calls | `state` |
//! | paths, links, special files, the host's own files | `files`, `link` |
//! | what is written to files | `files::disk` |
//! | descriptors | `handles` |
//! | memory of the host for answers | `buffers` |
//! | addresses, redirects, bodies | `egress` |
//!
//! # What is not
//!
//! Without a compile worker, time and memory of compiling are bounded by the component's size
//! only.
//! WASI's file system follows links inside a folder that the rules grant, never out of it; a
//! wait by WASI's clock takes real time, whatever the scope's clock says. Folders are granted to
//! WASI on Linux only. Native code that nobody needs any more stays until somebody calls
//! [`Cache::remove_unneeded`].
//!
//! Nothing here knows of runs: what a call may reach is a
//! [`CallScope`](taskrun::scope::CallScope).

mod admission;
mod apart;
mod attempt;
mod bindings;
mod buffers;
mod cache;
mod call;
mod catalog;
mod compile;
mod completion_stream;
mod component;
mod config;
mod convert;
mod course;
mod description;
mod digest;
mod egress;
mod engine;
mod error;
mod executor;
mod exports;
mod failure;
mod file_identity;
mod files;
mod grants;
mod guest;
mod guest_memory;
mod handles;
mod heap;
mod host;
mod inspect;
mod limiter;
mod link;
mod load;
mod machine_memory;
mod measure;
mod options;
mod outside;
mod planner;
mod policy;
mod refusal;
mod roster;
mod shape;
mod share;
mod spec;
mod state;
mod threads;
mod ticker;
mod tool;
mod wasi;
mod worker;

pub use cache::{Cache, CacheError, CachedFiles};
pub use catalog::Catalog;
pub use compile::CompileWorker;
pub use component::{ExaminedComponent, LoadedComponent};
pub use config::{
    CORE_INSTANCES_MAX, ENGINE_VERSION, MEMORIES_MAX, TABLES_MAX, pooled as wasmtime_config,
};
pub use egress::{HostClient, PostError, RequestLine, RequestLineError};
pub use engine::{Engine, EngineError};
pub use error::{LoadError, MissingGrant, Need, NeedBound};
pub use files::{DATA_DIR, WorkspaceHold, is_own_file};
pub use guest::AgentGrants;
pub use heap::give_back_memory;
pub use inspect::{ExportInfo, ImportClass, ImportInfo, Inspection, Kind};
pub use load::digest_file;
pub use machine_memory::guest_memory_default;
pub use options::{
    COMPONENT_BYTES_DEFAULT, EngineOptions, INSTANCES_DEFAULT, instances_for, tenant_memory_default,
};
pub use roster::{AgentError, closure_of, pin_of, rules_of};
pub use worker::{compile_worker_main, is_compile_worker};
