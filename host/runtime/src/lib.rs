//! A policy and a data directory in, a running controller out: the door for Rust programs, and what
//! every front door of `taskrun` (command line, server) has in common.
//!
//! A [`Runtime`] executes the runs of the agents that a policy names, and keeps them in the store of
//! a data directory. A program that embeds one (`examples/embed.rs`):
//!
//! ```no_run
#![doc = include_str!("../examples/embed.rs")]
//! ```
//!
//! Runs are durable: those that are under way when [`Runtime::shutdown`] is called, when the tokio
//! runtime is dropped, or when the process dies, go on when a runtime is opened on the same policy
//! and data directory, by whichever program. So `taskrun ps`, `get` and `transcript` show what an
//! embedding program started.
//!
//! # Files that are too large
//!
//! Where the system bounds the files of a process (`ulimit -f`, systemd's `LimitFSIZE`), a signal ends
//! the process at the first write beyond that: a guest's, or the store's as it grows. A program that
//! executes runs calls [`survive_file_size_limit`] first, as the command line does. Then such a guest is
//! told `limit`, and what the store cannot write waits, as on a full disk.
//!
//! # Front doors that execute nothing
//!
//! A program that only queues runs and looks at them needs no [`Runtime`]: [`Storage::watch`] gives
//! a controller without slots, [`agents_to_spawn`] the agents that it accepts runs of, and a
//! [`Supervisor`] keeps a [`BackgroundHost`] alive as long as a run is waited for.
//! [`Loader::functions`] calls single functions of tools outside any run.

mod acceptance;
mod background;
mod check;
mod control_plane;
mod deployment;
mod error;
mod export;
mod file_size;
mod files_seen;
mod in_force;
mod kept_agents;
mod kept_store;
mod left_notes;
mod loader;
mod loads;
mod lock;
mod log_file;
mod model_probe;
mod note_file;
mod origins;
mod policy_file;
mod problem;
mod reload;
mod removal;
#[cfg(test)]
mod replaced;
mod replay;
mod run_rules;
mod runtime;
mod snapshot;
mod storage;
mod subscribers;
mod supervisor;
mod tool_call;
mod unmet;
mod user_folders;
mod versions;

pub use acceptance::{AcceptanceError, agents_to_spawn};
pub use background::{BackgroundError, BackgroundHost, HostCommand};
pub use check::{
    CheckError, KeptComponents, check_components, check_engine, check_keeping, check_native_code,
    check_store, inspect_component, repair_store,
};
pub use control_plane::{control_plane, control_plane_of_one};
pub use error::OpenError;
pub use export::{
    EXPORT_FORM, Export, ExportError, ExportList, ExportOptions, ExportPart, ExportSummary,
    ExportedModel, export_run,
};
pub use file_size::survive_file_size_limit;
pub use files_seen::{FilesSeen, UnsettledFiles};
pub use in_force::{PolicyInForce, policies_in_force};
pub use kept_agents::KeptAgents;
pub use loader::{CACHE_DIR, Loader, LoaderError, LoaderOptions, ModelError, check_models};
pub use loads::{AgentLoad, CLOSURE_UNUSABLE, agent_loads, awaited_loads};
pub use log_file::LogFile;
pub use model_probe::{ModelProbe, probe_model};
pub use policy_file::{PolicyLoadError, load_policy, load_policy_with, read_whole_policy};
pub use problem::{Problem, io_kind};
pub use removal::{KeptRemoval, KeptRemovalError, RemovedKept, remove_kept, remove_old_code};
pub use replay::{ReplayEngine, ReplayFailure, ReplayOptions};
pub use run_rules::{RunRules, StrandingAgent, is_own_file, rules_of_agent, rules_of_kept_run};
pub use runtime::{Options, Runtime, StoreLayer};
pub use snapshot::PinError;
pub use storage::{STORE_BYTES_DEFAULT, Storage, StorageOptions, make_data_dir};
pub use subscribers::{SubscriberError, check_subscribers};
pub use supervisor::{
    Notice, Supervisor, SupervisorError, asking_run, awaited_runs, hindrance_of, needs_answer,
};
pub use taskrun::driver::replay::{ReplayError, ReplayedStep, StepComparison, StepDifference};
pub use taskrun::scope::NotedQuestion;
pub use taskrun_engine::{
    AgentError, COMPONENT_BYTES_DEFAULT, CORE_INSTANCES_MAX, CacheError, CachedFiles,
    CompileWorker, DATA_DIR, ENGINE_VERSION, EngineError, ExportInfo, ImportClass, ImportInfo,
    Inspection, Kind, LoadError, MEMORIES_MAX, MissingGrant, NeedBound, RequestLine,
    RequestLineError, TABLES_MAX, compile_worker_main, guest_memory_default, instances_for,
    tenant_memory_default,
};
pub use taskrun_store::SCHEMA_VERSION as STORE_VERSION;
pub use taskrun_store::StoreThreads;
pub use taskrun_store::{RemovedBlobs, Repair};
pub use tool_call::{
    CallEnd, Caller, FunctionsError, ToolFunction, ToolFunctions, callers, check_functions,
};
pub use unmet::{KeptError, NeedFault, UNMET_RUNS_MAX, UnmetNeeds, UnmetRun, unmet_needs};
pub use user_folders::{user_cache_folder, user_state_folder};
pub use versions::{
    AgentVersion, PinRuns, agent_versions, closure_now, closure_of_version, runs_by_pin,
};
