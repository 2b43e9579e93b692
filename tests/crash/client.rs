//! The client: starts runs, waits for each, answers what they ask, cancels some.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taskrun::agents::Agents;
use taskrun::clock::{SystemClock, SystemRandom};
use taskrun::controller::{
    Controller, ControllerParts, PauseRequest, ResumeRequest, Settings, WaitOutcome,
};
use taskrun::error::ControllerError;
use taskrun::ports::hook::Hooks;
use taskrun_journal::list::Scope;
use taskrun_journal::question::Answer;
use taskrun_journal::run::Run;
use taskrun_journal::status::{BlockedOn, Status};
use taskrun_journal::store::StoreError;
use taskrun_journal::time::{Clock, Timestamp};
use taskrun_store::{SqliteOptions, SqliteStore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::load::{Kind, Planned};
use crate::process::Program;
use crate::project::Project;
use crate::round::Broken;
use crate::terminal::Terminal;

/// The pause between two looks of the client after its runs.
const LOOK: Duration = Duration::from_millis(50);
/// Longest wait of a waiter; the round gives up before.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

/// A run as its client knows it.
pub(crate) struct Started {
    pub(crate) planned: Planned,
    /// True if a cancellation was acknowledged that changed something.
    pub(crate) canceled: bool,
    /// Answers that were acknowledged, by the item.
    pub(crate) answered: BTreeMap<String, u32>,
    ended: bool,
    started: Timestamp,
    /// When something was first seen to be asked.
    asked: Option<Timestamp>,
    pause: Pause,
}

/// The state of the pause of a run, if it is to have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    Ahead,
    Since(Timestamp),
    Over,
}

/// A client process's view of a store: it executes nothing.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) controller: Controller,
    pub(crate) scope: Scope,
    pub(crate) started: Arc<Mutex<BTreeMap<String, Started>>>,
    clock: Arc<SystemClock>,
    terminal: Terminal,
}

impl Client {
    /// The controller as an operator of the tenant has it.
    pub(crate) fn client(&self) -> taskrun::controller::Client {
        self.controller.at(&self.scope)
    }

    /// Opens the store of a project.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn open(
        program: &Program,
        project: &Project,
        agents: Agents,
    ) -> Result<Self, ControllerError> {
        let store = Arc::new(SqliteStore::open(project.data(), SqliteOptions::default())?);
        let controller = Controller::new(ControllerParts {
            store: store.clone(),
            hosts: store.clone(),
            sessions: store.clone(),
            memory: store.clone(),
            consents: store.clone(),
            dispatches: store.clone(),
            subscribers: Default::default(),
            agents,
            deployments: None,
            clock: Arc::new(SystemClock::new()),
            machine: Arc::new(SystemClock::new()),
            random: Arc::new(SystemRandom),
            interrupt: Arc::new(|| {}),
            hooks: Hooks::default(),
            retry_policy: None,
            settings: Settings { slots: 0, ..Settings::default() },
        });
        controller.start().await?;
        let scope = Scope::tenant("default");
        let clock = Arc::new(SystemClock::new());
        let (started, terminal) = (Arc::default(), program.terminal(project));
        Ok(Self { store, controller, scope, started, clock, terminal })
    }

    pub(crate) fn started(&self) -> MutexGuard<'_, BTreeMap<String, Started>> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a run and a waiter for it.
    ///
    /// # Errors
    /// Those of the controller.
    pub(crate) async fn start(
        &self,
        planned: Planned,
        waiters: &mut JoinSet<(String, Result<WaitOutcome, ControllerError>)>,
    ) -> Result<(), ControllerError> {
        match self.client().spawn(&planned.request).await {
            Ok(_) => {}
            // Its parent was canceled, or has lost too many hosts.
            Err(ControllerError::ParentEnded { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
        let id = planned.id.clone();
        if planned.kind == Kind::Told {
            match self.client().named("client").inject(&id, "there is news").await {
                // It ended before anybody could tell it anything.
                Ok(_) | Err(ControllerError::RunEnded { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let started = Started {
            planned,
            canceled: false,
            answered: BTreeMap::new(),
            ended: false,
            started: self.clock.now(),
            asked: None,
            pause: Pause::Ahead,
        };
        self.started().insert(id.clone(), started);
        let (controller, scope) = (self.controller.clone(), self.scope.clone());
        waiters.spawn(async move {
            let waited = controller.at(&scope).wait(&id, Some(WAIT_MAX)).await;
            (id, waited)
        });
        Ok(())
    }

    /// Answers and cancels until it is told to end.
    ///
    /// # Errors
    /// Those of the controller and of the program that no race explains.
    pub(crate) async fn attend(self, end: CancellationToken) -> Result<(), Broken> {
        loop {
            let open: Vec<String> = {
                let started = self.started();
                started.iter().filter(|(_, s)| !s.ended).map(|(id, _)| id.clone()).collect()
            };
            for id in open {
                match self.look_after(&id).await {
                    // The store is held by a stopped process; there is another time.
                    Ok(()) => {}
                    Err(broken) if is_locked(&broken) => {}
                    Err(broken) => return Err(broken),
                }
            }
            tokio::select! {
                biased;
                () = end.cancelled() => return Ok(()),
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    async fn look_after(&self, id: &str) -> Result<(), Broken> {
        let run = self.client().get(id).await?;
        let now = self.clock.now();
        self.pause_or_resume(id, now).await?;
        let (due_cancel, due_answer) = {
            let mut started = self.started();
            let Some(one) = started.get_mut(id) else { return Ok(()) };
            one.ended = run.status().is_terminal();
            let blocked = run.status() == Status::Blocked;
            one.asked = if blocked { one.asked.or(Some(now)) } else { None };
            let age = now.since(one.started);
            let cancel = one.planned.cancel_after.is_some_and(|after| age >= after);
            let delay = one.planned.answer_after;
            let answer = one.asked.is_some_and(|asked| now.since(asked) >= delay);
            (cancel && !one.canceled && !one.ended, answer)
        };
        if due_cancel {
            let canceled = self.client().cancel(id, Some("enough")).await?;
            if canceled.changed
                && let Some(one) = self.started().get_mut(id)
            {
                one.canceled = true;
            }
        }
        if due_answer && self.is_answerable(id).await? {
            self.answer(&run).await?;
        }
        Ok(())
    }

    /// Pauses a run, or resumes it, if the time for that has come.
    async fn pause_or_resume(&self, id: &str, now: Timestamp) -> Result<(), Broken> {
        let (planned, pause, age) = {
            let started = self.started();
            let Some(one) = started.get(id) else { return Ok(()) };
            (one.planned.pause, one.pause, now.since(one.started))
        };
        let Some((after, length)) = planned else { return Ok(()) };
        let next = match pause {
            Pause::Ahead if age >= after => {
                let request = PauseRequest::default();
                let done = self.client().named("client").pause(id, &request).await;
                done.map(|_| Pause::Since(now))
            }
            Pause::Since(at) if now.since(at) >= length => {
                let request = ResumeRequest::default();
                let done = self.client().named("client").resume(id, &request).await;
                done.map(|_| Pause::Over)
            }
            Pause::Ahead | Pause::Since(_) | Pause::Over => return Ok(()),
        };
        let next = match next {
            Ok(next) => next,
            Err(ControllerError::RunEnded { .. }) => Pause::Over,
            Err(error) => return Err(error.into()),
        };
        if let Some(one) = self.started().get_mut(id) {
            one.pause = next;
        }
        Ok(())
    }

    /// A parent is answered when the run beneath it has ended.
    async fn is_answerable(&self, id: &str) -> Result<bool, ControllerError> {
        let child = format!("{id}-child");
        let has_child = {
            let started = self.started();
            started.get(id).is_some_and(|one| one.planned.kind == Kind::Parent)
                && started.contains_key(&child)
        };
        if !has_child {
            return Ok(true);
        }
        Ok(self.client().get(&child).await?.status().is_terminal())
    }

    async fn answer(&self, run: &Run) -> Result<(), Broken> {
        for open in run.state.awaits.iter().filter(|one| !one.answered) {
            let acknowledged = match open.on {
                BlockedOn::Confirmation => self.confirm(run, &open.id).await?,
                BlockedOn::Input
                | BlockedOn::Children
                | BlockedOn::ExternalTools
                | BlockedOn::Pause
                | BlockedOn::Schedule => self.say_yes(run, &open.id).await?,
            };
            if acknowledged && let Some(one) = self.started().get_mut(run.id().as_str()) {
                *one.answered.entry(open.id.clone()).or_default() += 1;
            }
        }
        Ok(())
    }

    /// A person at a terminal agrees that a call begins again, or does not.
    async fn confirm(&self, run: &Run, item: &str) -> Result<bool, Broken> {
        let accepts = self.started().get(run.id().as_str()).is_some_and(|one| one.planned.accepts);
        let (terminal, id, item) = (self.terminal.clone(), run.id().clone(), item.to_owned());
        let said = tokio::task::spawn_blocking(move || terminal.answer(&id, &item, accepts));
        Ok(said.await??)
    }

    async fn say_yes(&self, run: &Run, item: &str) -> Result<bool, Broken> {
        let yes = Answer::Text("yes".to_owned());
        let id = run.id().as_str();
        match self.client().named("client").answer(id, Some(item), yes).await {
            Ok(_) => Ok(true),
            // It was canceled in this moment.
            Err(ControllerError::NotAwaitable { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// True if the store is held by a stopped process: there is another time.
fn is_locked(broken: &Broken) -> bool {
    let error = broken.downcast_ref::<ControllerError>();
    matches!(error, Some(ControllerError::Storage(StoreError::Locked { .. })))
}
