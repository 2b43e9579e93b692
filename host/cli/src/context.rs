//! The context of a command: options, places, output, time, and the store on demand.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, OnceLock};

use futures::future::{Either, select};
use taskrun::agents::Agents;
use taskrun::clock::SystemClock;
use taskrun::controller::{Client, Controller, Principal};
use taskrun_journal::ids::TENANT_DEFAULT;
use taskrun_journal::list::Scope;
use taskrun_journal::time::{Clock, Timestamp};
use taskrun_policy::{COMPONENTS_KEPT_DEFAULT, Policy};
use taskrun_runtime::{
    BackgroundError, BackgroundHost, CompileWorker, FilesSeen, HostCommand, Loader, LoaderOptions,
    Options, STORE_BYTES_DEFAULT, Storage, StorageOptions, StoreThreads, agents_to_spawn,
    load_policy_with, read_whole_policy, remove_old_code,
};

use crate::Program;
use crate::args::{Globals, LogFormat};
use crate::failure::{
    Outcome, acceptance_failure, background_failure, loader_failure, policy_failure,
};
use crate::invocation::Invocation;
use crate::output::Printer;
use crate::place;
use crate::trust::Trust;

/// The owner of what is started at a terminal that names none.
pub(crate) const OWNER_DEFAULT: &str = "local";

/// The context of a command.
#[derive(Clone)]
pub(crate) struct Context {
    /// Options of every command.
    pub globals: Globals,
    /// Where output goes.
    pub printer: Printer,
    /// The clock of the system.
    pub clock: Arc<dyn Clock>,
    /// The policies that are used where they are found.
    pub trust: Trust,
    /// This program.
    pub program: Program,
    /// True if the command has one thing done after the other, and ends.
    pub is_brief: bool,
    /// The policy file, once it was looked for: people are asked about it only once.
    policy_file: Arc<OnceLock<Outcome<Option<PathBuf>>>>,
}

impl Context {
    /// On this process's streams and clocks.
    #[must_use]
    pub(crate) fn new(globals: Globals, program: Program) -> Self {
        let (printer, trust) = (Printer::new(&globals), Trust::new());
        Self {
            globals,
            printer,
            trust,
            program,
            is_brief: false,
            policy_file: Arc::default(),
            clock: Arc::new(SystemClock::new()),
        }
    }

    /// The same for a command line that has these options.
    #[must_use]
    pub(crate) fn called_with(self, invocation: Invocation) -> Self {
        Self { printer: self.printer.called_with(invocation), ..self }
    }

    /// The same within a session, as if it were named by `--session`.
    #[must_use]
    pub(crate) fn in_session(&self, id: &str) -> Self {
        let globals = Globals { session: Some(id.to_owned()), ..self.globals.clone() };
        Self { globals, ..self.clone() }
    }

    /// The same with another policy file, as if it were named by `--config`.
    #[must_use]
    pub(crate) fn with_config(&self, file: &Path) -> Self {
        let globals = Globals { config: Some(file.to_owned()), ..self.globals.clone() };
        Self { globals, policy_file: Arc::default(), ..self.clone() }
    }

    /// The time of day.
    #[must_use]
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The person at this terminal: the runs of a tenant, narrowed by the options for owner and
    /// session. Answers and pauses are recorded under the owner's name.
    #[must_use]
    pub(crate) fn principal(&self) -> Principal {
        let Globals { tenant, owner, session, .. } = &self.globals;
        let mut scope = Scope::tenant(tenant.as_deref().unwrap_or(TENANT_DEFAULT));
        scope.owner_user_id.clone_from(owner);
        scope.parent_session_id.clone_from(session);
        Principal { scope, name: owner.as_deref().unwrap_or(OWNER_DEFAULT).to_owned() }
    }

    /// The controller as that person has it.
    #[must_use]
    pub(crate) fn client(&self, controller: &Controller) -> Client {
        controller.at(self.principal())
    }

    /// The policy file, if there is one.
    ///
    /// # Errors
    /// If one is named and is not there, or one is found and not to be trusted.
    pub(crate) fn policy_file(&self) -> Outcome<Option<PathBuf>> {
        self.policy_file.get_or_init(|| place::policy_file(&self.globals, &self.trust)).clone()
    }

    /// The policy, read and checked. An agent whose component or folder is missing is in it, and is
    /// refused where it is loaded.
    ///
    /// # Errors
    /// If there is none, or anything is wrong with it.
    pub(crate) fn policy(&self) -> Outcome<Policy> {
        self.read_policy(&self.named_policy()?)
    }

    /// A policy, read and checked, as [`Self::policy`] is, with its files as they were then.
    ///
    /// # Errors
    /// If anything is wrong with it.
    pub(crate) fn load_policy(&self, file: &Path) -> Outcome<(Policy, FilesSeen)> {
        let loaded = FilesSeen::load(file, &self.program.defaults);
        loaded.map_err(|error| policy_failure(&error, self.is_colourful()))
    }

    /// The policy, read and checked, with every file that it names.
    ///
    /// # Errors
    /// If there is none, or anything is wrong with it.
    pub(crate) fn whole_policy(&self) -> Outcome<Policy> {
        let policy = read_whole_policy(&self.named_policy()?, &self.program.defaults);
        policy.map_err(|error| policy_failure(&error, self.is_colourful()))
    }

    /// The file of the policy.
    ///
    /// # Errors
    /// If there is none, or none that is to be trusted.
    pub(crate) fn named_policy(&self) -> Outcome<PathBuf> {
        self.policy_file()?.ok_or_else(|| place::no_policy(&self.trust))
    }

    /// A policy, read and checked, as [`Self::policy`] is.
    ///
    /// # Errors
    /// If anything is wrong with it.
    pub(crate) fn read_policy(&self, file: &Path) -> Outcome<Policy> {
        let policy = load_policy_with(file, &self.program.defaults);
        policy.map_err(|error| policy_failure(&error, self.is_colourful()))
    }

    /// True if reports may have colours and frames.
    pub(crate) fn is_colourful(&self) -> bool {
        self.printer.talks_to_terminal()
            && anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never
    }

    /// The policy at hand, if it can be read, as far as it tells of the runs of the data directory:
    /// where that alone is named, the policy that is found here may be another one's.
    pub(crate) fn policy_at_hand(&self) -> Option<Policy> {
        if self.globals.data_dir.is_some() && self.globals.config.is_none() {
            return None;
        }
        self.read_policy(&self.policy_file().ok()??).ok()
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
    pub(crate) fn existing_storage(&self) -> Outcome<Storage> {
        let storage = Storage::open_existing(&self.data_dir()?, self.storage_options())?;
        self.tell_of_damage(&storage);
        Ok(storage)
    }

    /// The store, made if it is not there.
    ///
    /// # Errors
    /// Those of opening it.
    pub(crate) fn storage(&self, dir: &Path) -> Outcome<Storage> {
        let storage = Storage::open(dir, self.storage_options())?;
        self.tell_of_damage(&storage);
        Ok(storage)
    }

    /// The options of a store of this command.
    pub(crate) fn storage_options(&self) -> StorageOptions {
        StorageOptions {
            bytes_max: self.store_bytes_max(),
            format: self.program.format,
            threads: if self.is_brief { StoreThreads::Callers } else { StoreThreads::Own },
        }
    }

    /// Most bytes of a store.
    pub(crate) fn store_bytes_max(&self) -> u64 {
        self.globals.store_max.unwrap_or(STORE_BYTES_DEFAULT)
    }

    /// Says so if the store is damaged.
    pub(crate) fn tell_of_damage(&self, storage: &Storage) {
        if !storage.findings().is_empty() {
            let text =
                "the store is damaged, and what is shown may lack something; see `taskrun doctor`";
            self.printer.say(self.printer.completed(text));
        }
    }

    /// A controller for commands about runs that exist. Runs of dead hosts are freed when this
    /// returns.
    ///
    /// # Errors
    /// Those of opening the store.
    pub(crate) async fn looking(&self) -> Outcome<(Storage, Controller)> {
        let storage = self.existing_storage()?;
        let controller = storage.watch(no_agents());
        controller.start().await?;
        Ok((storage, controller))
    }

    /// A controller that accepts runs of these agents, under the policy as it is in force from now
    /// on.
    ///
    /// # Errors
    /// If an agent cannot be used, or the store.
    pub(crate) async fn accepting(
        &self,
        storage: &Storage,
        policy: &Policy,
        names: &[String],
    ) -> Outcome<Controller> {
        // A store with threads answers while this one looks for the components.
        let applied = pin!(storage.apply(policy, self.now()));
        let agents = pin!(self.agents_to_accept(storage, policy, names));
        let agents = match select(applied, agents).await {
            Either::Left((applied, agents)) => {
                applied?;
                agents.await?
            }
            Either::Right((agents, applied)) => {
                applied.await?;
                agents?
            }
        };
        accepting_with(storage, agents).await
    }

    /// The same for all agents of the policy, which is in force only once they are known to load.
    ///
    /// # Errors
    /// If an agent cannot be used, or the store.
    pub(crate) async fn accepting_all(
        &self,
        storage: &Storage,
        policy: &Policy,
    ) -> Outcome<Controller> {
        let names: Vec<String> = policy.agents.keys().cloned().collect();
        let agents = self.agents_to_accept(storage, policy, &names).await?;
        storage.apply(policy, self.now()).await?;
        accepting_with(storage, agents).await
    }

    /// The agents that are needed to accept runs of them.
    async fn agents_to_accept(
        &self,
        storage: &Storage,
        policy: &Policy,
        names: &[String],
    ) -> Outcome<Agents> {
        let options = LoaderOptions::of_data_dir(&self.data_dir()?);
        let options =
            self.loader_options(LoaderOptions { keeps: true, kept: storage.kept(), ..options });
        let agents = agents_to_spawn(policy.clone(), options, names).await;
        agents.map_err(|error| acceptance_failure(&error))
    }

    /// A loader for looking at the components of a policy. Native code is kept in the data
    /// directory; where there is none yet, in the user's cache folder, as no data directory was
    /// asked for.
    ///
    /// # Errors
    /// If the engine cannot be set up, or nothing says where the data directory would be.
    pub(crate) fn looking_loader(&self, policy: Policy) -> Outcome<Loader> {
        let data_dir = self.data_dir()?;
        let options = match data_dir.is_dir() {
            true => LoaderOptions::of_data_dir(&data_dir),
            false => LoaderOptions { cache: self.cache_folder(), ..LoaderOptions::default() },
        };
        self.loader(policy, options)
    }

    /// Folder of native code of the user, without what nobody has loaded for as long as components
    /// are kept by default: it has no data directory, and no `taskrun gc`.
    pub(crate) fn cache_folder(&self) -> Option<PathBuf> {
        let folder = place::cache_folder()?;
        remove_old_code(&folder, COMPONENTS_KEPT_DEFAULT, self.now());
        Some(folder)
    }

    /// A loader of a policy.
    ///
    /// # Errors
    /// If the engine or a model cannot be set up.
    pub(crate) fn loader(&self, policy: Policy, options: LoaderOptions) -> Outcome<Loader> {
        Loader::open(policy, self.loader_options(options)).map_err(|error| loader_failure(&error))
    }

    /// The same options, with this program as the one that compiles.
    pub(crate) fn loader_options(&self, options: LoaderOptions) -> LoaderOptions {
        let component_bytes_max = Some(self.program.component_bytes_max);
        LoaderOptions { compile_worker: compile_worker(), component_bytes_max, ..options }
    }

    /// The parts of a runtime of this program.
    pub(crate) fn options(&self, policy: PathBuf, data_dir: PathBuf) -> Options {
        Options {
            store_bytes_max: self.store_bytes_max(),
            compile_worker: compile_worker(),
            format: self.program.format,
            defaults: Arc::clone(&self.program.defaults),
            component_bytes_max: self.program.component_bytes_max,
            ..Options::new(policy, data_dir)
        }
    }

    /// The background host of a policy.
    ///
    /// # Errors
    /// If the program does not know its own file, or nothing says where the data directory is.
    pub(crate) fn background_host(
        &self,
        policy: &Policy,
        storage: &Storage,
    ) -> Outcome<BackgroundHost> {
        let program = std::env::current_exe()
            .map_err(|error| background_failure(&BackgroundError::Start(error)))?;
        let data_dir = self.data_dir()?;
        let mut args: Vec<OsString> = vec![
            "--config".into(),
            policy.path.clone().into(),
            "--data-dir".into(),
            data_dir.clone().into(),
        ];
        args.extend(self.globals.store_max.map(|bytes| format!("--store-max={bytes}B").into()));
        args.extend(self.globals.log.as_ref().map(|filter| format!("--log={filter}").into()));
        if self.globals.log_format == LogFormat::Json {
            args.push("--log-format=json".into());
        }
        args.extend(["host", "--background"].map(OsString::from));
        let command = HostCommand { program, args };
        Ok(BackgroundHost::new(command, &data_dir, policy, Arc::clone(&storage.hosts)))
    }
}

/// A controller that accepts runs of these agents.
async fn accepting_with(storage: &Storage, agents: Agents) -> Outcome<Controller> {
    let controller = storage.watch(agents);
    controller.start().await?;
    Ok(controller)
}

/// The agents of a command that starts no runs.
pub(crate) fn no_agents() -> Agents {
    Agents::default()
}

/// This program, which looks at components and compiles them in processes of their own. `None`, of
/// which a warning tells, if the system does not say which file it is.
pub(crate) fn compile_worker() -> Option<CompileWorker> {
    match std::env::current_exe() {
        Ok(program) => Some(CompileWorker { program, args: vec!["compile-worker".into()] }),
        Err(error) => {
            tracing::warn!(
                %error,
                "this program does not find its own file: components are looked at and compiled \
                 in its own process, without bounds of time and memory"
            );
            None
        }
    }
}
