//! What a command works with: options, places, output, time, and the store on demand.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use taskrun::agents::Agents;
use taskrun::clock::{SystemClock, SystemRandom};
use taskrun::controller::{Controller, ControllerParts, Settings};
use taskrun::ports::call::Interrupt;
use taskrun::ports::hook::Hooks;
use taskrun_engine::Engine;
use taskrun_journal::ids::TENANT_DEFAULT;
use taskrun_journal::list::Scope;
use taskrun_journal::memory::Memory;
use taskrun_journal::store::{Hosts, Sessions, Store, StoreError};
use taskrun_journal::time::{Clock, Random, Timestamp};
use taskrun_policy::Policy;
use taskrun_store::{MemoryStore, SqliteOptions, SqliteStore};

use crate::args::Globals;
use crate::failure::{Failure, Outcome, policy_failure};
use crate::output::Printer;
use crate::place;
use crate::trust::Trust;

/// Most bytes of a store unless set otherwise: some five million small runs.
const STORE_BYTES_DEFAULT: u64 = 16 << 30;
/// Keeps a data directory out of version control.
const GITIGNORE: &str = "*\n";

/// What a command works with.
#[derive(Clone)]
pub(crate) struct Context {
    /// Options of every command.
    pub globals: Globals,
    /// Where output goes.
    pub printer: Printer,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub random: Arc<dyn Random>,
    /// Which policies are used where they are found.
    pub trust: Trust,
    /// The policy file, once it was looked for: nobody is asked twice about it.
    policy_file: Arc<OnceLock<Outcome<Option<PathBuf>>>>,
}

/// The sides of a store.
#[derive(Clone)]
pub(crate) struct Books {
    /// Journal, records and queue.
    pub store: Arc<dyn Store>,
    /// The processes that share it.
    pub hosts: Arc<dyn Hosts>,
    /// The sessions from which runs are started.
    pub sessions: Arc<dyn Sessions>,
    /// Facts of sessions and tenants.
    pub memory: Arc<dyn Memory>,
}

impl Books {
    fn of<S: Store + Hosts + Sessions + Memory + 'static>(store: S) -> Self {
        let store = Arc::new(store);
        Self { store: store.clone(), hosts: store.clone(), sessions: store.clone(), memory: store }
    }
}

impl Context {
    /// On this process's streams and clocks.
    #[must_use]
    pub(crate) fn new(globals: Globals) -> Self {
        let (printer, trust) = (Printer::new(&globals), Trust::new());
        Self {
            globals,
            printer,
            trust,
            policy_file: Arc::default(),
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SystemRandom),
        }
    }

    /// The time of day.
    #[must_use]
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Whose runs are seen.
    #[must_use]
    pub(crate) fn scope(&self) -> Scope {
        let mut scope = Scope::tenant(self.globals.tenant.as_deref().unwrap_or(TENANT_DEFAULT));
        scope.owner_user_id.clone_from(&self.globals.owner);
        scope.parent_session_id.clone_from(&self.globals.session);
        scope
    }

    /// The policy file, if there is one.
    ///
    /// # Errors
    /// If one is named and is not there, or one is found and not to be trusted.
    pub(crate) fn policy_file(&self) -> Outcome<Option<PathBuf>> {
        self.policy_file.get_or_init(|| place::policy_file(&self.globals, &self.trust)).clone()
    }

    /// The policy, read and checked, with every file that it names.
    ///
    /// # Errors
    /// If there is none, or anything is wrong with it.
    pub(crate) fn policy(&self) -> Outcome<Policy> {
        let Some(file) = self.policy_file()? else {
            return Err(place::no_policy(&self.trust));
        };
        self.read_policy(&file)
    }

    /// A policy, read and checked, with every file that it names.
    ///
    /// # Errors
    /// If anything is wrong with it.
    pub(crate) fn read_policy(&self, file: &Path) -> Outcome<Policy> {
        let fancy = self.is_colourful();
        let policy = Policy::load(file).map_err(|error| policy_failure(&error, fancy))?;
        policy.check_files().map_err(|errors| policy_failure(&errors.into(), fancy))?;
        Ok(policy)
    }

    fn is_colourful(&self) -> bool {
        self.printer.talks_to_terminal()
            && anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never
    }

    /// The data directory; need not exist.
    ///
    /// # Errors
    /// If neither a policy nor a directory says where it is.
    pub(crate) fn data_dir(&self) -> Outcome<PathBuf> {
        let policy = if self.globals.data_dir.is_some() { None } else { self.policy_file()? };
        place::data_dir(&self.globals, policy.as_deref(), &self.trust)
    }

    /// The store, for commands that only look. One that was never made is empty, and is not
    /// made.
    ///
    /// # Errors
    /// Those of opening it.
    pub(crate) fn existing_books(&self) -> Outcome<Books> {
        let dir = self.data_dir()?;
        if dir.is_dir() { self.open(&dir) } else { Ok(Books::of(MemoryStore::new())) }
    }

    /// The store, made if it is not there.
    ///
    /// # Errors
    /// Those of opening it.
    pub(crate) fn books(&self, dir: &Path) -> Outcome<Books> {
        make_data_dir(dir)?;
        self.open(dir)
    }

    fn open(&self, dir: &Path) -> Outcome<Books> {
        let bytes_max = Some(self.globals.store_max.unwrap_or(STORE_BYTES_DEFAULT));
        let store = SqliteStore::open(dir, SqliteOptions { bytes_max, ..Default::default() })?;
        if !store.findings().is_empty() {
            self.printer.say(
                "the store is damaged, and what is shown may lack something; see `taskrun doctor`",
            );
        }
        Ok(Books::of(store))
    }

    /// A controller that executes nothing, over the agents that can be spawned here.
    #[must_use]
    pub(crate) fn watching(&self, books: &Books, agents: Agents) -> Controller {
        let settings = Settings { slots: 0, ..Settings::default() };
        self.controller(books, agents, None, settings)
    }

    /// A controller with these bounds; the engine is that of agents that are executed.
    #[must_use]
    pub(crate) fn controller(
        &self,
        books: &Books,
        agents: Agents,
        engine: Option<&Engine>,
        settings: Settings,
    ) -> Controller {
        let parts = ControllerParts {
            store: Arc::clone(&books.store),
            hosts: Arc::clone(&books.hosts),
            sessions: Arc::clone(&books.sessions),
            memory: Arc::clone(&books.memory),
            agents,
            clock: Arc::clone(&self.clock),
            random: Arc::clone(&self.random),
            interrupt: engine.map_or_else(|| Arc::new(|| {}) as Interrupt, Engine::interrupt),
            hooks: Hooks::default(),
            settings,
        };
        Controller::driving_on(parts, engine.and_then(Engine::drivers))
    }

    /// A controller for commands about runs that exist. Runs of dead hosts are freed when this
    /// returns.
    ///
    /// # Errors
    /// Those of opening the store.
    pub(crate) async fn looking(&self) -> Outcome<(Books, Controller)> {
        let books = self.existing_books()?;
        let none = Agents { policy_digest: String::new(), by_name: BTreeMap::new() };
        let controller = self.watching(&books, none);
        controller.start().await?;
        Ok((books, controller))
    }
}

/// Makes a data directory that only its owner reads and that version control ignores.
///
/// # Errors
/// What the operating system says.
pub(crate) fn make_data_dir(dir: &Path) -> Outcome<()> {
    use std::os::unix::fs::DirBuilderExt;
    let failed = |error: std::io::Error| {
        Box::<Failure>::from(StoreError::Unavailable {
            path: dir.display().to_string(),
            detail: error.to_string(),
        })
    };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    let ignore = dir.join(".gitignore");
    if !ignore.exists() {
        // Without it version control sees the store, which harms nothing here.
        std::fs::write(ignore, GITIGNORE).ok();
    }
    Ok(())
}
