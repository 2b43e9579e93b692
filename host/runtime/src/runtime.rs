//! A policy and a data directory in, a running controller out.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use taskrun::clock::SystemClock;
use taskrun::controller::{CloseOutcome, Controller, DRAIN_DEFAULT, Settings};
use taskrun::ports::hook::Hooks;
use taskrun::ports::retry::SharedRetryPolicy;
use taskrun::ports::transport::{Subscriber, Subscribers};
use taskrun_engine::{COMPONENT_BYTES_DEFAULT, CompileWorker, is_compile_worker};
use taskrun_journal::format::JournalFormat;
use taskrun_journal::list::PAGE_MAX;
use taskrun_journal::pin::{Pins, agent_of};
use taskrun_journal::store::Store;
use taskrun_journal::time::Clock;
use taskrun_policy::{Defaults, Policy};

use crate::error::OpenError;
use crate::files_seen::FilesSeen;
use crate::in_force::InForceNote;
use crate::left_notes;
use crate::loader::{Loader, LoaderOptions};
use crate::loads::Loads;
use crate::lock::{BackgroundLock, HeldLock};
use crate::origins::OriginPolicies;
use crate::reload::PolicyWatch;
use crate::storage::{ProgramPorts, STORE_BYTES_DEFAULT, Storage, StorageOptions};

/// The lease, from a time in which a busy machine gives several signs of life to one after which
/// somebody has looked.
const LEASES: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(86_400);

/// Puts something between the controller and its store, such as a store that injects faults.
pub type StoreLayer = Arc<dyn Fn(Arc<dyn Store>) -> std::io::Result<Arc<dyn Store>> + Send + Sync>;

/// The parts and bounds of a [`Runtime`]. [`Options::new`] has the defaults.
pub struct Options {
    /// The policy file.
    pub policy: PathBuf,
    /// The data directory; made if it is not there.
    pub data: PathBuf,
    /// Runs executed at once, at least 1. Default: 64.
    pub slots: usize,
    /// Agents kept loaded at once, at least 1. Default: 32.
    pub agents_loaded: usize,
    /// The silence after which other processes take this one for dead, of 100 ms to a day. Default:
    /// [`LEASE`](taskrun_journal::store::LEASE).
    pub lease: Duration,
    /// Most bytes of the store, beyond which it takes no more runs. Default:
    /// [`STORE_BYTES_DEFAULT`].
    pub store_bytes_max: u64,
    /// The program that looks at components and compiles them in processes of their own, such as
    /// this one where its `main` gives an argument of yours to
    /// [`compile_worker_main`](crate::compile_worker_main). Default: none, so that both are done in
    /// this process, where sizes and counts are bounded and time and memory are not: a hostile
    /// component of 130 KB has it take 6 GiB. So a program whose components are not all its own
    /// names one.
    pub compile_worker: Option<CompileWorker>,
    /// Loads every agent before the runtime is open, so that one that does not load is an error at
    /// once. Default: no; an agent is loaded when a run wants it, and one that cannot be used is
    /// left out.
    pub preload: bool,
    /// Refuses to open where another background host executes runs of the same policy, and keeps
    /// others from opening so as long as this one executes any. Default: no.
    pub background: bool,
    /// A layer between controller and store. Default: none.
    pub store_layer: Option<StoreLayer>,
    /// Decides about plan steps that fail. Default: none, so that the policy of each agent does.
    pub retry_policy: SharedRetryPolicy,
    /// The subscribers that this program has beside those of the policy, by names such as `mail`: a
    /// policy and a request know it as `transport/mail`. Default: none.
    pub subscribers: BTreeMap<String, Subscriber>,
    /// The hooks that are asked before runs are accepted, rounds begin, tools are called and outcomes
    /// are told.
    /// Default: none.
    pub hooks: Hooks,
    /// The format in which journals are written. Default: [`JournalFormat::CURRENT`].
    pub format: JournalFormat,
    /// The settings of agents and tools of which the policy states none. Default: those of this
    /// version.
    pub defaults: Arc<Defaults>,
    /// Most bytes of a component. Default: [`COMPONENT_BYTES_DEFAULT`].
    pub component_bytes_max: u64,
    /// Bytes of the memories of all guests of this process together. Default: none, which is
    /// [`guest_memory_default`](crate::guest_memory_default).
    pub guest_memory_bytes: Option<u64>,
    /// The clock by which runs are executed: their limits, pauses and times. For a program that
    /// simulates time. The lives of hosts, files that change, connections to models, attempts to
    /// tell subscribers, the time-outs of hooks and policy engines, and the end of this host keep
    /// the machine's time, whatever it says. Default: [`SystemClock`].
    pub clock: Arc<dyn Clock>,
}

impl Options {
    /// A policy file and a data directory, with the defaults for everything else.
    #[must_use]
    pub fn new(policy: impl Into<PathBuf>, data: impl Into<PathBuf>) -> Self {
        let Settings { slots, agents_loaded, lease, .. } = Settings::default();
        Self {
            policy: policy.into(),
            data: data.into(),
            slots,
            agents_loaded,
            lease,
            store_bytes_max: STORE_BYTES_DEFAULT,
            compile_worker: None,
            preload: false,
            background: false,
            store_layer: None,
            retry_policy: None,
            subscribers: BTreeMap::new(),
            hooks: Hooks::default(),
            format: JournalFormat::CURRENT,
            defaults: Arc::default(),
            component_bytes_max: COMPONENT_BYTES_DEFAULT,
            guest_memory_bytes: None,
            clock: Arc::new(SystemClock::new()),
        }
    }

    /// Refuses those with which nothing would ever be executed.
    fn check(&self) -> Result<(), OpenError> {
        let wrong = |name, reason| Err(OpenError::Option { name, reason });
        match self {
            Self { slots: 0, .. } => wrong("slots", "no run would be executed; take 1 or more"),
            Self { agents_loaded: 0, .. } => {
                wrong("agents_loaded", "no agent could be loaded; take 1 or more")
            }
            Self { lease, .. } if !LEASES.contains(lease) => {
                wrong("lease", "take a time of 100 ms to a day")
            }
            Self { compile_worker: Some(_), .. } if is_compile_worker() => wrong(
                "compile_worker",
                "this process was started as a compile worker, and each would start the next: its \
                 `main` must call `compile_worker_main` before anything else",
            ),
            _ => Ok(()),
        }
    }
}

/// A running controller over the agents of a policy and the store of a data directory. Any number of
/// processes may open the same ones.
///
/// It is to be ended by [`Self::shutdown`]. Without that it executes runs until the tokio runtime
/// is dropped in which it was opened, even if nobody has it any more, and a background host is the
/// only one as long; then it ends as if the process had died: what was recorded is kept, its runs
/// are free for others at once, and a step or a call that was under way is repeated or reported as
/// after a crash.
pub struct Runtime {
    controller: Controller,
    loader: Arc<Loader>,
    storage: Storage,
    // Held as long as runs are executed.
    _loads: Arc<Loads>,
    _note: Arc<InForceNote>,
    // The note has it, too.
    lock: Option<Arc<HeldLock>>,
}

impl Runtime {
    /// Reads the policy, opens the store and begins to execute the runs that are wanted: those that
    /// are started through [`Self::controller`], and those that other processes left or queue.
    ///
    /// To be called within a tokio runtime of several threads, to which the controller's timers and
    /// connections belong; guests have threads of their own.
    ///
    /// # Errors
    /// [`OpenError`]. Nothing is executed then.
    ///
    /// # Cancel safety
    /// Dropping the future opens nothing, unless it was about to return.
    pub async fn open(options: Options) -> Result<Self, OpenError> {
        options.check()?;
        let data = absolute(&options.data);
        let (policy, looked_at) = FilesSeen::load(&absolute(&options.policy), &options.defaults)?;
        let storage = StorageOptions {
            bytes_max: options.store_bytes_max,
            format: options.format,
            ..StorageOptions::default()
        };
        let storage = Storage::open(&data, storage)?;
        let loader = LoaderOptions {
            executes: true,
            keeps: true,
            kept: storage.kept(),
            compile_worker: options.compile_worker,
            component_bytes_max: Some(options.component_bytes_max),
            guest_memory_bytes: options.guest_memory_bytes,
            ..LoaderOptions::of_data_dir(&data)
        };
        let loader = Arc::new(Loader::open(policy, loader)?);
        let lock = match options.background {
            true => {
                let policy = &loader.policy().path;
                let lock = BackgroundLock::take(&data, policy, &*storage.hosts).await?;
                Some(Arc::new(HeldLock::new(lock)))
            }
            false => None,
        };
        // Every component may have to be looked at, or compiled, before this host is listed.
        let signs = lock.as_deref().map(HeldLock::signs);
        let loads = Arc::new(Loads::new(&data, Arc::clone(&options.clock)));
        let agents = match options.preload {
            true => loader.all_agents().await?,
            false => {
                let earlier = is_wanted(&storage, loader.policy()).await?;
                loader.all_agents_on_demand(&loads, earlier).await?
            }
        };
        let names: Vec<&str> = agents.by_name.keys().map(String::as_str).collect();
        let path = loader.policy().path.display();
        tracing::info!(policy = %path, agents = names.join(","), "host begins");
        let mut layered = storage.clone();
        if let Some(layer) = options.store_layer {
            layered.store = layer(layered.store).map_err(OpenError::Layer)?;
        }
        let note = InForceNote::new(&data, (&loader, &agents), Arc::clone(&options.clock))
            .holding(lock.clone());
        let policies = Arc::clone(&storage.policies);
        let origins = OriginPolicies::new(policies, Arc::clone(&options.clock));
        let Options {
            slots, agents_loaded, lease, retry_policy, subscribers, hooks, clock, ..
        } = options;
        let subscribers = Subscribers::of_program(subscribers);
        let ports = ProgramPorts { retry_policy, subscribers, hooks, clock };
        let settings = Settings { slots, agents_loaded, lease, ..Settings::default() };
        let note = Arc::new(note);
        let told = (Arc::clone(&loads), Arc::clone(&note));
        origins.apply(loader.policy()).await;
        let watch = PolicyWatch::new(Arc::clone(&loader), told, origins, looked_at);
        let engine = Some(&**loader.engine());
        let controller =
            layered.controller((agents, ports), Some(Arc::new(watch)), engine, settings);
        loads.begin(controller.host());
        if let Some(lock) = &lock {
            lock.name(controller.host());
        }
        controller.start().await?;
        // From now on it is listed.
        drop(signs);
        note.begin(controller.host());
        left_notes::remove(&data, &*storage.hosts).await;
        Ok(Self { controller, loader, storage, _loads: loads, _note: note, lock })
    }

    /// The controller: spawns runs, lists, shows, waits for and cancels them. Clones are the same
    /// one.
    #[must_use]
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// The policy as it was opened.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        self.loader.policy()
    }

    /// The store, for a front door that needs more of it than the controller gives.
    #[must_use]
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Begins nothing more and hands over the runs under way, which go on when a runtime is opened
    /// on the same policy and data directory, here or in another process. Runs that are to end first
    /// are waited for, or canceled, by the caller. Says which runs did not stop within
    /// [`DRAIN_DEFAULT`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves the runs under way to hosts that take this one for dead.
    pub async fn shutdown(self) -> CloseOutcome {
        // Another background host may begin at once: this one takes nothing up any more.
        if let Some(lock) = &self.lock {
            lock.free();
        }
        self.controller.hand_over(DRAIN_DEFAULT).await
    }
}

/// True if runs wait for a host of this policy, or were left by one that died.
async fn is_wanted(storage: &Storage, policy: &Policy) -> Result<bool, OpenError> {
    let is_known = |pins: &Pins| pins.all().all(|pin| policy.agents.contains_key(agent_of(pin)));
    if storage.store.wanted().await?.iter().any(is_known) {
        return Ok(true);
    }
    let left = storage.hosts.orphans(PAGE_MAX).await?;
    Ok(left.iter().any(|run| is_known(&Pins::of(run))))
}

/// A path that means the same wherever the process goes. One that cannot be made so is left to the
/// caller that opens it.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).map(|path| path.components().collect());
    absolute.unwrap_or_else(|_| path.to_owned())
}
