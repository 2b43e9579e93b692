//! Real controllers and the model side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use taskrun::controller::{Controller, FINALIZERS_MAX, Settings};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::hold::Hold;
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::list::Scope;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::status::Status;
use taskrun_journal::store::Store;
use taskrun_store::MemoryStore;

use super::guests::{self, Gates};
use super::known::{Kind, Known, State};
use super::ops::Case;
use super::process::{Process, Shared};
use super::reference::Model;
use super::{laws, queue};
use crate::native::World;

/// The time of the runtime's own clock until all that was begun has come to rest: a sweep
/// comes every 5 s, everything else within one. It is a paused time: it moves only when nothing
/// can be done, and costs nothing.
const REST: Duration = Duration::from_secs(6);
/// In which an operation returns, in the same time.
const PATIENCE: Duration = Duration::from_secs(600);
/// Bounds that are met within a case.
pub(super) const QUEUE_MAX: usize = 6;
pub(super) const TREE_MAX: usize = 6;
pub(super) const DEPTH_MAX: u32 = 2;
pub(super) const OWNERS: [&str; 2] = ["user-a", "user-b"];
pub(super) const SESSIONS: [&str; 2] = ["parent-a", "parent-b"];

/// A worker: a controller that executes.
pub(super) struct Worker {
    pub(super) number: usize,
    pub(super) controller: Controller,
    pub(super) process: Arc<Process>,
}

/// Both worlds.
pub(super) struct Bench {
    pub(super) world: World,
    pub(super) memory: Arc<MemoryStore>,
    pub(super) shared: Arc<Shared>,
    pub(super) gates: Arc<Gates>,
    /// Accepts and executes nothing.
    pub(super) door: Controller,
    pub(super) workers: Vec<Worker>,
    /// Workers that stand still and are held for dead.
    pub(super) killed: Vec<Worker>,
    /// Those that went on: they take nothing, and still look after the runs of dead hosts.
    pub(super) late: Vec<Worker>,
    hosts: Vec<HostId>,
    pub(super) scope: Scope,
    pub(super) model: Model,
    /// Ids in the order asked for, and what was asked.
    pub(super) asked: Vec<String>,
    pub(super) requests: BTreeMap<String, (SpawnRequest, Known)>,
    heads: BTreeMap<String, u64>,
}

impl Bench {
    pub(super) async fn new(case: &Case) -> Result<Self, String> {
        let memory = Arc::new(MemoryStore::new());
        let (shared, gates) = (Arc::new(Shared::default()), Arc::new(Gates::default()));
        let mut world = World::over(memory.clone(), memory.clone(), memory.clone());
        guests::add(&mut world, &gates);
        let settings = Settings {
            tree_slots: case.tree_slots,
            queue_max: QUEUE_MAX as u64,
            tree_max: TREE_MAX as u64,
            depth_max: DEPTH_MAX,
            ..Settings::default()
        };
        world.settings = Settings { slots: 0, ..settings };
        let process = Process::new(memory.clone(), shared.clone(), 0);
        let door = world.controller_over(process.clone(), process);
        let mut bench = Self {
            world,
            memory,
            shared,
            gates,
            door,
            workers: Vec::new(),
            killed: Vec::new(),
            late: Vec::new(),
            hosts: Vec::new(),
            scope: Scope::tenant("default"),
            model: Model::default(),
            asked: Vec::new(),
            requests: BTreeMap::new(),
            heads: BTreeMap::new(),
        };
        bench.door.start().await.map_err(|error| error.to_string())?;
        bench.world.settings = Settings { slots: case.slots, ..settings };
        bench.start().await?;
        Ok(bench)
    }

    /// Starts a worker.
    pub(super) async fn start(&mut self) -> Result<(), String> {
        let slots = self.world.settings.slots;
        let process = Process::new(self.memory.clone(), self.shared.clone(), slots);
        let controller = self.world.controller_over(process.clone(), process.clone());
        let number = self.hosts.len();
        self.hosts.push(controller.host().clone());
        within("start", controller.start()).await?.map_err(|error| error.to_string())?;
        self.workers.push(Worker { number, controller, process });
        self.model.sweep(&self.alive());
        Ok(())
    }

    pub(super) fn alive(&self) -> BTreeSet<usize> {
        self.workers.iter().map(|worker| worker.number).collect()
    }

    /// All runs as they stand, in the order of acceptance.
    pub(super) async fn all(&self) -> Vec<(usize, Run)> {
        self.shared.all(&self.memory).await
    }

    pub(super) async fn real(&self, id: &str) -> Option<Run> {
        let id = RunId::new(id).expect("ids of the table are valid");
        self.memory.get(&id).await.expect("the store in memory does not fail")
    }

    /// The run that was asked for `back` runs ago.
    pub(super) fn pick(&self, back: u8) -> Option<String> {
        let at = self.asked.len().checked_sub(1 + usize::from(back))?;
        Some(self.asked[at].clone())
    }

    /// Lets everything come to rest, and holds the two worlds against each other.
    pub(super) async fn rest(&mut self) -> Result<(), String> {
        tokio::time::sleep(REST).await;
        // A host that others hold for dead takes nobody for dead itself.
        if !self.workers.is_empty() {
            self.model.sweep(&self.alive());
        }
        self.adopt(false).await;
        for (id, host) in self.shared.take_claims() {
            let host = self.hosts.iter().position(|one| *one == host);
            let host = host.ok_or_else(|| format!("{id} was claimed by nobody that is known"))?;
            self.model.claimed(id.as_str(), host)?;
        }
        self.adopt(true).await;
        match self.shared.broken() {
            Some(broken) => Err(broken),
            None => self.compare().await,
        }
    }

    /// Takes over what happened where the specification leaves a choice: whether the time of a
    /// run is up whose host died, and whether a wait that was soon over ever began.
    async fn adopt(&mut self, waits: bool) {
        let ids: Vec<String> = self.model.runs.keys().cloned().collect();
        for id in ids {
            let Some(real) = self.real(&id).await else { continue };
            let known = &self.model.runs[&id];
            let ended = real.status().is_terminal();
            if ended && real.status() == Status::Failed && self.model.may_time_out(known) {
                self.model.time_out(&id);
            } else if waits
                && ended
                && real.status() == Status::Completed
                && matches!(known.state, State::Blocked { .. })
                && self.model.wait_is_over(&id)
            {
                self.model.wait_ended(&id);
            }
        }
    }

    async fn compare(&mut self) -> Result<(), String> {
        let all = self.all().await;
        let ids: BTreeSet<&str> = all.iter().map(|(_, run)| run.id().as_str()).collect();
        let known: BTreeSet<&str> = self.model.runs.keys().map(String::as_str).collect();
        if ids != known {
            return Err(format!("runs are {ids:?}, and in the model {known:?}"));
        }
        for (_, run) in &all {
            self.compare_run(run)?;
            let head = self.heads.insert(run.id().to_string(), run.state.head);
            if head != Some(run.state.head) {
                let journal = self.memory.read(run.id(), 0, usize::MAX).await;
                laws::check(run, &journal.expect("the store in memory does not fail"))?;
            }
        }
        // Nothing that could be done is left undone.
        let now = taskrun_journal::time::Clock::now(&*self.world.clock);
        let tree_slots = self.world.settings.tree_slots;
        let left = queue::wanted(&all, now, tree_slots);
        for worker in &self.workers {
            let held = self.held(&all, worker);
            // Of those that wait for their finalizer alone it may have a few beside its slots.
            let host = worker.controller.host();
            let finalizing = |run: &Run| {
                run.state.hold.host() == Some(host) && run.status() == Status::Finalizing
            };
            let finalizers = all.iter().filter(|(_, run)| finalizing(run)).count();
            if held - finalizers.min(FINALIZERS_MAX) > self.world.settings.slots {
                return Err(format!("worker {} has {held} runs", worker.number));
            }
            if held < self.world.settings.slots && !left.is_empty() {
                return Err(format!("worker {} is idle, and nobody takes {left:?}", worker.number));
            }
        }
        // A run that waits for its finalizer alone needs no slot of its tree either.
        let over = |root: &RunId| {
            let finalizing = |run: &Run| {
                run.spec.root_run_id == *root
                    && run.state.hold.host().is_some()
                    && run.status() == Status::Finalizing
            };
            let finalizers = all.iter().filter(|(_, run)| finalizing(run)).count();
            // Those of a dead host stay its own until they are swept.
            let finalizers = finalizers.min(FINALIZERS_MAX * self.hosts.len());
            queue::held_in_tree(&all, root).saturating_sub(finalizers) > tree_slots as usize
        };
        match all.iter().find(|(_, run)| over(&run.spec.root_run_id)) {
            Some((_, run)) => Err(format!("the tree of {} has too many slots", run.id())),
            None => Ok(()),
        }
    }

    pub(super) fn held(&self, all: &[(usize, Run)], worker: &Worker) -> usize {
        let host = worker.controller.host();
        all.iter().filter(|(_, run)| run.state.hold.host() == Some(host)).count()
    }

    fn compare_run(&self, run: &Run) -> Result<(), String> {
        let (id, view) = (run.id().as_str(), RunView::from(run));
        let known = &self.model.runs[id];
        let differ = |what: &str, real: String, model: String| {
            Err(format!("{what} of {id} is {real}, and in the model {model} ({known:?})"))
        };
        if run.status() != known.status() {
            return differ("status", run.status().to_string(), known.status().to_string());
        }
        let on = match known.state {
            State::Blocked { on, .. } => Some(on),
            State::Queued
            | State::Running { .. }
            | State::Adrift { .. }
            | State::Canceling { .. }
            | State::Finalizing(_)
            | State::InFinalizer { .. }
            | State::Ended { .. } => None,
        };
        if view.blocked_on != on {
            return differ("blocked_on", format!("{:?}", view.blocked_on), format!("{on:?}"));
        }
        let host = run.state.hold.host();
        let expected = known.host().map(|number| &self.hosts[number]);
        if host != expected {
            return differ("host", format!("{host:?}"), format!("{expected:?}"));
        }
        if let State::Adrift { not_before } = known.state {
            let began = taskrun_journal::time::Clock::now(&*self.world.clock).0 - self.model.now;
            let at = if not_before == 0 { 0 } else { began + not_before };
            let hold = &run.state.hold;
            if !matches!(hold, Hold::Wanted { not_before, .. } if not_before.0 == at) {
                return differ("hold", format!("{hold:?}"), at.to_string());
            }
        }
        let ending = run.ending();
        let reason = known.end().map(|end| end.reason);
        if ending.map(|ending| ending.stop_reason) != reason {
            return differ("stop_reason", format!("{ending:?}"), format!("{reason:?}"));
        }
        let told = view.metadata.contains_key("told");
        if told != known.told {
            return differ(
                "whether the finalizer was heard",
                told.to_string(),
                known.told.to_string(),
            );
        }
        if let Some(end) = known.end().filter(|end| end.status == Status::Completed) {
            match &end.result {
                Some(result) if view.result.as_ref() != Some(result) => {
                    return differ("result", format!("{:?}", view.result), result.clone());
                }
                Some(_) => {}
                None => self.compare_waited(known, view.result.as_deref())?,
            }
        }
        Ok(())
    }

    /// Holds the result of a wait against the runs that were waited for.
    fn compare_waited(&self, known: &Known, result: Option<&str>) -> Result<(), String> {
        let told: Option<Vec<BTreeMap<String, String>>> =
            result.and_then(|text| serde_json::from_str(text).ok());
        let told = told.ok_or_else(|| format!("a wait gave {result:?}"))?;
        let ids: Vec<&str> =
            told.iter().filter_map(|one| one.get("run_id")).map(|id| &**id).collect();
        if ids != known.awaited {
            return Err(format!("{:?} were waited for, and told of {ids:?}", known.awaited));
        }
        let mut ended = 0;
        for (id, one) in ids.iter().zip(&told) {
            let status = one.get("status").map_or("", String::as_str);
            let terminal = status.parse::<Status>().is_ok_and(Status::is_terminal);
            ended += usize::from(terminal || status == "not_found");
            if let Some(run) = self.model.runs.get(*id)
                && terminal
                && run.status().as_str() != status
            {
                return Err(format!("{id} is told to be {status}, and is {}", run.status()));
            }
        }
        let enough = if known.any { ended > 0 } else { ended == ids.len() };
        match enough || known.wait_ms.is_some() || known.kind != Kind::Await {
            true => Ok(()),
            false => Err(format!("a wait was over too early: {told:?}")),
        }
    }
}

/// Lets an operation return, which it has to.
pub(super) async fn within<T>(what: &str, act: impl Future<Output = T>) -> Result<T, String> {
    let done = tokio::time::timeout(PATIENCE, act).await;
    done.map_err(|_| format!("{what} does not return"))
}
