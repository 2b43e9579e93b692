//! One engine for all components of a process.

use std::path::PathBuf;
use std::sync::Arc;

use futures::task::Spawn;
use taskrun::scope::Interrupt;
use taskrun_policy::{AgentPolicy, Policy};

use crate::admission::Admission;
use crate::buffers::Buffers;
use crate::compile::Compiler;
use crate::component::{Inspections, KnownFiles, Pins, SharedComponents};
use crate::config;
use crate::egress::{ByLane, Connections, Egress, ExchangeThreads};
use crate::files::disk::Disk;
use crate::files::{ProtectedPaths, WorkspaceHold};
use crate::guest_memory::GuestMemory;
use crate::handles::{DESCRIPTORS_MIN, Handles, connections, raise_descriptors};
use crate::heap;
use crate::options::EngineOptions;
use crate::threads::GuestThreads;
use crate::ticker::Ticker;

/// Compiles, links and runs components. One per process; it lives as long as anything that it
/// made.
pub struct Engine {
    wasmtime: wasmtime::Engine,
    compiler: Compiler,
    admission: Admission,
    memory: GuestMemory,
    egress: Egress,
    blocking: Arc<tokio::sync::Semaphore>,
    walks: Arc<tokio::sync::Semaphore>,
    disk: Arc<Disk>,
    handles: Handles,
    buffers: Buffers,
    recent: SharedComponents,
    inspections: Inspections,
    files: KnownFiles,
    pins: Pins,
    protected: ProtectedPaths,
    options: EngineOptions,
    threads: Option<GuestThreads>,
    ticker: Ticker,
}

/// The reason that there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// wasmtime does not accept the settings, or cannot reserve what they ask for.
    #[error("cannot set up the WebAssembly engine: {0}")]
    Wasmtime(String),
    /// The process may not have enough files open.
    #[error("the process may have {found} files open; executing guests needs {needed}")]
    Descriptors {
        /// The most that it may have.
        found: u64,
        /// The fewest that are enough.
        needed: u64,
    },
    /// The thread that interrupts guests does not start.
    #[error("cannot start the epoch thread")]
    Ticker(#[source] std::io::Error),
    /// The threads for guests do not start.
    #[error("cannot start the threads for guests")]
    Threads(#[source] std::io::Error),
}

/// File operations of guests at once; each takes a thread while it lasts.
const BLOCKING_MAX: usize = 64;
/// Listings of guests at once that go into the folders below: each has two descriptors open for
/// every folder on its way, of which there may be 65.
const WALKS_MAX: usize = 2;

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Engine {
    /// Raises the number of files that the process may have open to what it may raise it to, has
    /// the allocator give large blocks back as soon as they are freed and the rest when no guest
    /// ran for a second (glibc only), reserves the pool of instances and starts the thread that
    /// interrupts them.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn new(options: EngineOptions) -> Result<Arc<Self>, EngineError> {
        let descriptors = raise_descriptors();
        if descriptors < DESCRIPTORS_MIN {
            return Err(EngineError::Descriptors { found: descriptors, needed: DESCRIPTORS_MIN });
        }
        let memory_bytes = options.guest_memory_bytes();
        let instances = options.instances(memory_bytes);
        let wasmtime = wasmtime::Engine::new(&config::pooled(instances))
            .map_err(|error| EngineError::Wasmtime(format!("{error:#}")))?;
        heap::set_up();
        let ticker =
            Ticker::start(&wasmtime, heap::give_back_memory).map_err(EngineError::Ticker)?;
        let threads = options.guest_threads.map(GuestThreads::start);
        let threads = threads.transpose().map_err(EngineError::Threads)?;
        let exchanges = threads.as_ref().map(|threads| ByLane {
            first: ExchangeThreads::of(threads.exchanges()),
            share: ExchangeThreads::cooperative(threads.long_exchanges()),
        });
        let compiler =
            Compiler::new(&wasmtime, options.cache.clone(), options.compile_worker.clone());
        let protected = ProtectedPaths::default();
        protected.add(options.protected.iter().cloned());
        protected.add(options.cache.iter().map(|cache| cache.dir().to_owned()));
        protected.add(options.compile_worker.iter().map(|worker| worker.program.clone()));
        tracing::debug!(instances, memory_bytes, "engine ready");
        let admission = Admission::new(instances);
        Ok(Arc::new(Self {
            compiler,
            memory: GuestMemory::new(memory_bytes, instances, admission.clone()),
            admission,
            egress: Egress::new(
                exchanges.unwrap_or_default(),
                Connections::new(connections(descriptors)),
            ),
            blocking: Arc::new(tokio::sync::Semaphore::new(BLOCKING_MAX)),
            walks: Arc::new(tokio::sync::Semaphore::new(WALKS_MAX)),
            handles: Handles::new(descriptors),
            buffers: Buffers::new(),
            disk: Arc::new(Disk::new(options.keep_free.clone())),
            recent: SharedComponents::default(),
            inspections: Inspections::default(),
            files: KnownFiles::default(),
            pins: Pins::default(),
            protected,
            options,
            threads,
            ticker,
            wasmtime,
        }))
    }

    /// Makes every running guest look at its stop signal now. For
    /// [`StopSignal::new`](taskrun::scope::StopSignal::new); harmless to guests that are
    /// not meant.
    #[must_use]
    pub fn interrupt(&self) -> Interrupt {
        let engine = self.wasmtime.weak();
        Arc::new(move || {
            if let Some(engine) = engine.upgrade() {
                engine.increment_epoch();
            }
        })
    }

    /// Where drivers of runs belong: the threads on which their guests begin, so that a short call
    /// needs no hand-over. `None` where guests run with their callers. For
    /// [`Controller::driving_on`](taskrun::controller::Controller::driving_on).
    #[must_use]
    pub fn drivers(&self) -> Option<Arc<dyn Spawn + Send + Sync>> {
        self.threads.as_ref().map(|threads| Arc::new(threads.first().clone()) as _)
    }

    /// Keeps every guest, also one that is loaded already, from files and folders, whatever its
    /// rules allow; they need not exist yet.
    pub fn protect(&self, paths: impl IntoIterator<Item = PathBuf>) {
        self.protected.add(paths);
    }

    /// The same for the files that a policy consists of: itself, its components and the scripts,
    /// cassettes and keys of its models.
    /// [`Engine::load_agent`] does so by itself; call this before loading a policy's tools in
    /// another way.
    pub fn protect_policy(&self, policy: &Policy) {
        self.protected.add_policy(policy);
    }

    /// Keeps every guest from moving or removing the folders in which these agents work, and from
    /// making those that are missing, for as long as the hold is there. That of an agent which uses
    /// files is also kept so for as long as its code is loaded.
    #[must_use]
    pub fn hold_workspaces<'p>(
        &self,
        agents: impl IntoIterator<Item = &'p AgentPolicy>,
    ) -> WorkspaceHold {
        self.protected.hold_workspaces(agents.into_iter().map(|agent| agent.workspace.as_path()))
    }

    pub(crate) fn protected(&self) -> &ProtectedPaths {
        &self.protected
    }

    pub(crate) fn wasmtime(&self) -> &wasmtime::Engine {
        &self.wasmtime
    }

    pub(crate) fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    pub(crate) fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Memory of all guests.
    pub(crate) fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    pub(crate) fn egress(&self) -> &Egress {
        &self.egress
    }

    pub(crate) fn blocking(&self) -> &Arc<tokio::sync::Semaphore> {
        &self.blocking
    }

    /// Listings that go into the folders below.
    pub(crate) fn walks(&self) -> &Arc<tokio::sync::Semaphore> {
        &self.walks
    }

    pub(crate) fn threads(&self) -> Option<&GuestThreads> {
        self.threads.as_ref()
    }

    pub(crate) fn ticker(&self) -> &Ticker {
        &self.ticker
    }

    /// The account of what guests write to the disk.
    pub(crate) fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// Memory of the host for what guests ask for.
    pub(crate) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Descriptors for guests.
    pub(crate) fn handles(&self) -> &Handles {
        &self.handles
    }

    pub(crate) fn recent(&self) -> &SharedComponents {
        &self.recent
    }

    pub(crate) fn inspections(&self) -> &Inspections {
        &self.inspections
    }

    pub(crate) fn files(&self) -> &KnownFiles {
        &self.files
    }

    pub(crate) fn pins(&self) -> &Pins {
        &self.pins
    }

    pub(crate) fn options(&self) -> &EngineOptions {
        &self.options
    }
}
