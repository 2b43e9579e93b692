//! A round: one store, its runs, and the deaths of its hosts.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

use taskrun::agents::Agents;
use taskrun::controller::WaitOutcome;
use taskrun::error::ControllerError;
use taskrun_journal::run::RunView;
use taskrun_journal::store::StoreError;
use taskrun_journal::time::Timestamp;
use taskrun_runtime::{LoaderOptions, agents_to_spawn};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::book::{Book, Violation};
use crate::chance::Chance;
use crate::client::Client;
use crate::load::{Kind, Load};
use crate::point::CrashPoint;
use crate::process::{Files, Process, Program};
use crate::project::Project;
use crate::stalls::Pulse;
use crate::table::Death;
use crate::{effects, idle, serial};

/// Longest wait for all runs to end when nobody is killed any more.
const DRAIN_MAX: Duration = Duration::from_secs(180);
/// Violations of a round that are shown.
const SHOWN: usize = 20;
/// The pause between two looks for something that is waited for.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// Why a round cannot go on; not what it finds wrong.
pub(crate) type Broken = Box<dyn Error + Send + Sync>;

/// The things that every round needs.
pub(crate) struct Bench {
    pub(crate) program: Program,
    pub(crate) agents: Agents,
    /// A project whose store has the native code of the components.
    pub(crate) warm: Project,
}

/// The outcome of a round.
pub(crate) struct Outcome {
    pub(crate) deaths: Vec<Death>,
    pub(crate) book: Book,
    /// The work that each run was to do.
    pub(crate) kinds: BTreeMap<String, Kind>,
    /// The folder of policy, data and workspace.
    pub(crate) project: Project,
    /// The time that it took.
    pub(crate) took: Duration,
}

/// A round under way.
pub(crate) struct Round<'b> {
    bench: &'b Bench,
    pub(crate) project: Project,
    pub(crate) client: Client,
    pub(crate) book: Book,
    pub(crate) chance: Chance,
    pub(crate) deaths: Vec<Death>,
    pub(crate) lease: Duration,
    began: Instant,
    load: Load,
    waiters: JoinSet<(String, Result<WaitOutcome, ControllerError>)>,
    attendant: JoinHandle<Result<(), Broken>>,
    end: CancellationToken,
    starts: BTreeMap<u32, Timestamp>,
    files: Vec<Files>,
    pulse: Pulse,
}

impl<'b> Round<'b> {
    /// Makes a project.
    ///
    /// # Errors
    /// The reason that keeps the round from beginning.
    pub(crate) async fn begin(
        bench: &'b Bench,
        mut chance: Chance,
        lease: Duration,
    ) -> Result<Self, Broken> {
        let began = Instant::now();
        let project = Project::new()?;
        project.warm(&bench.warm)?;
        // The runs are pinned to what the hosts will read.
        let policy = taskrun_runtime::load_policy(&project.policy())?;
        let names: Vec<String> = policy.agents.keys().cloned().collect();
        let data = LoaderOptions::of_data_dir(&project.data());
        let options = LoaderOptions { keeps: true, ..data };
        let agents = agents_to_spawn(policy, options, &names).await?;
        let client = Client::open(&bench.program, &project, agents).await?;
        let end = CancellationToken::new();
        let attendant = tokio::spawn(client.clone().attend(end.clone()));
        let load = Load::new(chance.branch());
        let pulse = Pulse::begin(project.path())?;
        Ok(Self {
            bench,
            project,
            client,
            book: Book::default(),
            chance,
            deaths: Vec::new(),
            lease,
            began,
            load,
            waiters: JoinSet::new(),
            attendant,
            end,
            starts: BTreeMap::new(),
            files: Vec::new(),
            pulse,
        })
    }

    /// Starts some runs.
    ///
    /// # Errors
    /// If they are not accepted.
    pub(crate) async fn start_runs(&mut self, count: usize) -> Result<(), Broken> {
        for planned in self.load.next(count) {
            self.client.start(planned, &mut self.waiters).await?;
        }
        Ok(())
    }

    /// Starts a run of a kind, which nobody cancels.
    ///
    /// # Errors
    /// If it is not accepted.
    pub(crate) async fn start_run_of(&mut self, kind: Kind) -> Result<(), Broken> {
        let mut planned = self.load.of(kind);
        planned.cancel_after = None;
        planned.pause = None;
        Ok(self.client.start(planned, &mut self.waiters).await?)
    }

    /// Starts a host.
    ///
    /// # Errors
    /// If it does not start.
    pub(crate) fn start_host(&mut self, at: Option<CrashPoint>) -> Result<Process, Broken> {
        let process = Process::start(&self.bench.program, &self.project, self.lease, at)?;
        self.starts.insert(process.pid(), process.started);
        self.files.push(process.files.clone());
        Ok(process)
    }

    /// Notes that a host died, or was stopped, at this time, and looks at everything that it left.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn died(
        &mut self,
        process: &Process,
        name: String,
        at: Timestamp,
        hit: bool,
    ) -> Result<(), Broken> {
        let death = Death { name, pid: process.pid(), at, hit, handed_over: false, failed: false };
        self.note(process, death).await
    }

    /// The same for a host whose end is described.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn note(&mut self, process: &Process, death: Death) -> Result<(), Broken> {
        let before = self.book.violations.len();
        // One that goes on is told more meanwhile.
        let acknowledged = process.files.acknowledged();
        self.look().await?;
        self.book.check_acknowledged(&acknowledged);
        let failed = self.book.violations.len() > before;
        self.deaths.push(Death { failed, ..death });
        Ok(())
    }

    async fn look(&mut self) -> Result<(), StoreError> {
        self.book.look(&self.client).await
    }

    /// True if something was found that must not be.
    pub(crate) fn is_violated(&self) -> bool {
        !self.book.violations.is_empty()
    }

    /// Lets the hosts that live bring every run to its end, kills them, and looks at everything
    /// there is. What is wrong then counts against the last death.
    ///
    /// # Errors
    /// Those of the store, and of the client.
    pub(crate) async fn end(mut self, mut hosts: Vec<Process>) -> Result<Outcome, Broken> {
        let before = self.book.violations.len();
        self.drain().await;
        for host in &mut hosts {
            host.kill()?;
        }
        self.end.cancel();
        self.attendant.await??;
        self.book.look_again(&self.client).await?;
        for files in &self.files {
            self.book.check_acknowledged(&files.acknowledged());
            self.book.check_log(&files.log());
        }
        effects::check(&mut self.book, self.project.path());
        let stalls = self.pulse.end()?;
        idle::check(&mut self.book, &self.starts, &stalls, self.lease);
        serial::check(&mut self.book, &self.client).await?;
        let store = &self.client.store;
        for damage in store.check().await?.into_iter().chain(store.findings()) {
            self.book.say("the store", damage);
        }
        check_client(&mut self.book, &self.client);
        check_restarted(&mut self.book, &self.project, &self.client, self.bench).await?;
        if self.book.violations.len() > before
            && let Some(last) = self.deaths.last_mut()
        {
            last.failed = true;
        }
        let started = self.client.started();
        let kinds = started.iter().map(|(id, one)| (id.clone(), one.planned.kind)).collect();
        drop(started);
        self.client.store.close();
        let took = self.began.elapsed();
        let (deaths, book, project) = (self.deaths, self.book, self.project);
        Ok(Outcome { deaths, book, kinds, project, took })
    }

    /// Every waiter gets its answer.
    async fn drain(&mut self) {
        let all = async {
            while let Some(joined) = self.waiters.join_next().await {
                let (id, waited) = joined.expect("a waiter does not panic");
                match waited {
                    Ok(waited) if waited.timed_out => self.book.say(&id, "the waiter gave up"),
                    Ok(_) => {}
                    Err(error) => self.book.say(&id, format!("the waiter was told: {error}")),
                }
            }
        };
        if timeout(DRAIN_MAX, all).await.is_ok() {
            return;
        }
        // What is read shows how the run stands.
        let looked = self.look().await;
        let ids: Vec<String> = self.client.started().keys().cloned().collect();
        for id in ids {
            let run = self.book.run(&id);
            if !run.is_some_and(|run| run.status().is_terminal()) {
                let state = run.map(|run| run.state.clone());
                let what = format!("stuck for {DRAIN_MAX:?} ({looked:?}): {state:?}");
                self.book.say(&id, what);
            }
        }
    }
}

/// The client was told the truth, and every run ended as it may.
fn check_client(book: &mut Book, client: &Client) {
    let mut wrong = Vec::new();
    for (id, started) in client.started().iter() {
        let Some(run) = book.run(id) else { continue };
        if let Some(ending) = run.ending()
            && let Err(what) = started.planned.check_end(&RunView::from(run), ending)
        {
            wrong.push((id.clone(), what));
        }
        let journal = book.journals.get(id).map(Vec::as_slice).unwrap_or_default();
        let count = |kind: &str| journal.iter().filter(|one| one.event.kind() == kind).count();
        if started.canceled && count("cancel_requested") != 1 {
            wrong.push((id.clone(), "an acknowledged cancellation is not there".to_owned()));
        }
        let answered: u32 = started.answered.values().sum();
        if count("answered") < answered as usize {
            wrong.push((id.clone(), format!("of {answered} acknowledged answers some are gone")));
        }
    }
    wrong.into_iter().for_each(|(id, what)| book.say(&id, what));
}

/// A process that opens the store afterwards is told of every run that it has ended.
async fn check_restarted(
    book: &mut Book,
    project: &Project,
    client: &Client,
    bench: &Bench,
) -> Result<(), Broken> {
    let other = Client::open(&bench.program, project, bench.agents.clone()).await?;
    let ids: Vec<String> = client.started().keys().cloned().collect();
    for id in ids {
        let waited = other.client().wait(&id, Some(Duration::ZERO)).await?;
        let ended = book.run(&id).is_some_and(|run| run.status().is_terminal());
        if waited.timed_out && ended {
            book.say(&id, "another process does not find its end");
        }
    }
    other.store.close();
    Ok(())
}

/// The findings, for people, and where everything is kept if there are any.
pub(crate) fn report(violations: &[Violation], kept: &Path) {
    if violations.len() > SHOWN {
        println!("{} violations, of which the first {SHOWN} are shown", violations.len());
    }
    for Violation { run, what, journal } in violations.iter().take(SHOWN) {
        println!("VIOLATED by {run}: {what}\n{journal}");
    }
    if !violations.is_empty() {
        println!("everything is kept in {}", kept.display());
    }
}
