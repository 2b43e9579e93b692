//! Accepting runs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use taskrun_journal::answers::Answers;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::ids::{RunId, check_own_id};
use taskrun_journal::list::Scope;
use taskrun_journal::machine;
use taskrun_journal::pin::agent_of;
use taskrun_journal::run::Run;
use taskrun_journal::spec::{KEY_BYTES_MAX, RunSpec, TreeBounds};
use taskrun_journal::store::{
    Admission, AdmissionBound, CreateOutcome, Idempotency, NewRun, TaskKey,
};
use taskrun_journal::text::cut;
use taskrun_journal::time::{Timestamp, millis, random_u64};
use taskrun_journal::tool::ToolSpec;

use super::child::ancestors_beneath;
use super::continuation::{locked, once, wake_at_once};
use super::rooms::Room;
use super::{Client, Controller, channels};
use crate::agents::{Agent, CodeSource};
use crate::error::ControllerError;
use crate::gate::{consent, narrowing};
use crate::image;
use crate::ports::hook::Moment;
use crate::spawn::{SpawnRequest, WhenFull, accept, digest_of_parts, fingerprint, task_digest};

/// The run of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct SpawnOutcome {
    /// The run.
    pub run: Run,
    /// True if it was there before: the request was a repetition, or its result is used again.
    pub reused: bool,
}

impl Client {
    /// Accepts a run and returns when that is durable. The run is executed by whichever host has
    /// a free slot first, and goes on when the caller is gone.
    ///
    /// # Errors
    /// Those of [`Self::submit`].
    pub async fn spawn(&self, request: &SpawnRequest) -> Result<Run, ControllerError> {
        Ok(self.submit(request).await?.run)
    }

    /// The same, saying whether the run was there before.
    ///
    /// # Errors
    /// In this order: [`ControllerError::NotStarted`], [`ControllerError::Closed`],
    /// [`ControllerError::Invalid`] for owner, parent session, task and agent,
    /// [`ControllerError::Forbidden`], [`ControllerError::Invalid`] for name, attachment and sizes,
    /// for a parent run [`ControllerError::NotFound`], [`ControllerError::Forbidden`] if its agent
    /// may not delegate to this one, and [`ControllerError::Limit`] for the depth;
    /// [`ControllerError::NotLoaded`] and [`ControllerError::Invalid`] for what the request takes
    /// away, the latter also for a budget in dollars where a price is not known,
    /// [`ControllerError::Forbidden`] if a hook of the host is against it, whose name is in the
    /// reason;
    /// [`ControllerError::Invalid`] and [`ControllerError::Limit`] for its messages, as in
    /// [`Self::inject`];
    /// [`ControllerError::Locked`] for a run that is to be continued and is open, or that is to be
    /// autonomous where another one of its agent is;
    /// [`ControllerError::AlreadyExists`], [`ControllerError::SessionEnded`],
    /// [`ControllerError::ParentEnded`], [`ControllerError::NameTaken`],
    /// [`ControllerError::Limit`] for queue, tree and slots, [`ControllerError::Storage`].
    /// Nothing is kept then.
    pub async fn submit(&self, request: &SpawnRequest) -> Result<SpawnOutcome, ControllerError> {
        self.submit_into(request, &Room::default()).await
    }

    /// The same for a run that works in a room.
    pub(super) async fn submit_into(
        &self,
        request: &SpawnRequest,
        room: &Room,
    ) -> Result<SpawnOutcome, ControllerError> {
        if let Some(run) = self.stored_result(request).await? {
            return Ok(SpawnOutcome { run, reused: true });
        }
        let new = self.new_run(request, room).await?;
        let (run, tree_max) = (new.run.clone(), new.admission.tree_max);
        let outcome = self.controller.keep(new).await?;
        self.controller.created(run, tree_max, outcome)
    }

    /// Accepts runs beneath one run, all or none: the outcomes are in the order of the requests.
    /// Each has an idempotency key of its own; made again they give the same runs.
    ///
    /// # Errors
    /// Those of [`Self::submit`] for the first request that has one. Nothing is kept then.
    pub(super) async fn submit_all(
        &self,
        requests: &[SpawnRequest],
    ) -> Result<Vec<SpawnOutcome>, ControllerError> {
        let mut news = Vec::with_capacity(requests.len());
        for request in requests {
            news.push(self.new_run(request, &Room::default()).await?);
        }
        let asked: Vec<_> =
            news.iter().map(|new| (new.run.clone(), new.admission.tree_max)).collect();
        self.controller.note_acceptance();
        let outcomes = self.controller.0.parts.store.create_all(news).await?;
        let all = asked.into_iter().zip(outcomes);
        all.map(|((run, tree_max), outcome)| self.controller.created(run, tree_max, outcome))
            .collect()
    }

    /// The run of a request that nothing stands against but what the store knows.
    async fn new_run(
        &self,
        request: &SpawnRequest,
        room: &Room,
    ) -> Result<NewRun, ControllerError> {
        let inner = &self.controller.0;
        if !inner.started.load(Ordering::Acquire) {
            return Err(ControllerError::NotStarted);
        }
        if inner.closing.is_cancelled() {
            return Err(ControllerError::Closed);
        }
        self.controller.settle_policy().await;
        let now = inner.parts.clock.now();
        let mut spec =
            match (self.controller.accept(self.scope(), request, now), &request.parent_run_id) {
                // A run knows of the members of its own agent: whether there are others, and how
                // they are called, is not told.
                (
                    Err(error @ ControllerError::Invalid { field: "agent_name", .. }),
                    Some(parent),
                ) => {
                    let parent = self.get(parent.trim()).await?;
                    self.controller.check_member(&parent, request.agent_name.trim())?;
                    return Err(error);
                }
                (accepted, _) => accepted?,
            };
        let artifacts;
        (spec.images, artifacts) = image::named(&request.images)?;
        if request.id.as_deref().is_some_and(|id| !id.trim().is_empty()) {
            self.controller.check_id(&spec).await?;
        }
        if let Some(parent) = &request.parent_run_id {
            self.put_under_parent(parent, (request, room), &mut spec).await?;
            spec.tree.depth = spec.tree.least(&request.tree).depth;
            if let Some(answers) = &request.answers {
                spec.answers = answers.clone();
            }
        } else {
            self.controller.narrow_tree(&mut spec.tree, &request.tree);
            self.controller.open_channels(&mut spec, &request.channels)?;
        }
        spec.delivery = self.controller.delivery_of(&spec, request).await?;
        let mut old = None;
        if let Some(continued) = &request.continues {
            old = Some(self.carry_on(continued, &mut spec).await?.spec);
            if !request.messages.is_empty() {
                wake_at_once(&mut spec, now);
            }
        }
        let agents = self.controller.agents();
        if let Some(agent) = agents.by_name.get(&spec.agent_name) {
            if !spec.narrow.is_empty() {
                let functions = self.controller.functions_of(agent).await?;
                let continued = old.as_ref().map(|old| &old.narrow);
                narrowing::check(&spec, agent, &functions, continued)?;
            }
            let above = self.controller.above_at_the_door(&spec);
            narrowing::check_prices(&spec, agent, &above)?;
            if spec.answers == Answers::Nobody {
                consent::check_asks(agent, &above)?;
            }
        }
        let moment = Moment::Spawn { spec: &spec };
        if let Some(veto) = inner.parts.hooks.ask(&*inner.parts.machine, &moment).await {
            return Err(ControllerError::Forbidden { reason: veto.to_string() });
        }
        let (idempotency, task) = repetition(request, &spec, now);
        let admission = self.controller.admission(request, spec.tree.runs);
        let (mut run, recorded) = self.controller.begun(spec);
        let mut events = vec![recorded];
        events.extend(self.tell_from_the_start(&mut run, &request.messages)?);
        Ok(NewRun { run, events, idempotency, task, artifacts, admission })
    }

    /// Makes a run the child of another one.
    async fn put_under_parent(
        &self,
        parent: &str,
        (request, room): (&SpawnRequest, &Room),
        spec: &mut RunSpec,
    ) -> Result<(), ControllerError> {
        if !request.channels.is_empty() {
            return Err(ControllerError::Invalid {
                field: "channels",
                reason: "a run beneath another one has those that this one shares".to_owned(),
            });
        }
        let parent = self.get(parent.trim()).await?;
        let above = &parent.spec;
        if above.owner_user_id != spec.owner_user_id {
            let reason = "a run belongs to the owner of the run that starts it".to_owned();
            return Err(ControllerError::Forbidden { reason });
        }
        self.controller.check_member(&parent, &spec.agent_name)?;
        let bounds = self.controller.tree_bounds(above);
        let depth_max = bounds.depth.unwrap_or(u32::MAX);
        if above.depth >= depth_max {
            return Err(ControllerError::Limit { kind: "depth", cap: u64::from(depth_max) });
        }
        spec.parent_run_id = Some(above.id.clone());
        spec.root_run_id = above.root_run_id.clone();
        spec.depth = above.depth + 1;
        spec.hops = above.hops;
        let depth = spec.tree.least(&bounds).depth;
        spec.tree = TreeBounds { depth, ..bounds };
        let root_session = above.root_session_id.as_ref().unwrap_or(&above.parent_session_id);
        spec.root_session_id =
            (*root_session != spec.parent_session_id).then(|| root_session.clone());
        if !above.answers.is_inbox() {
            spec.answers = above.answers.clone();
        }
        spec.ancestors = ancestors_beneath(&parent);
        room.furnish(spec);
        channels::share(above, room.shared(request), spec)
    }
}

impl Controller {
    /// The bounds of the tree of a run that starts another one: of the policies under which it and
    /// those above it were accepted, and of the policy as it is now, the smallest depth; the number
    /// of runs is that of the agent of the first run.
    fn tree_bounds(&self, above: &RunSpec) -> TreeBounds {
        let (agents, settings) = (self.agents(), &self.0.parts.settings);
        let now = |name: &str| agents.by_name.get(name).map(|agent| agent.tree).unwrap_or_default();
        let names = above.ancestors.iter().map(|one| one.agent_name.as_str());
        let depths = names.clone().chain([above.agent_name.as_str()]);
        let depths = depths.filter_map(|name| now(name).depth).chain(above.tree.depth);
        let first = names.clone().next().unwrap_or(&above.agent_name);
        let runs = [above.tree.runs, now(first).runs];
        TreeBounds {
            depth: depths.chain([settings.depth_max]).min(),
            runs: runs.map(|runs| runs.unwrap_or(settings.tree_max)).into_iter().min(),
            slots: above.tree.slots,
        }
    }

    /// Makes the bounds of a new tree those of its request, where these are smaller.
    fn narrow_tree(&self, tree: &mut TreeBounds, asked: &TreeBounds) {
        let settings = &self.0.parts.settings;
        let usual = TreeBounds {
            depth: Some(tree.depth.unwrap_or(settings.depth_max)),
            runs: Some(tree.runs.unwrap_or(settings.tree_max)),
            slots: Some(tree.slots.unwrap_or(settings.tree_slots)),
        };
        let least = usual.least(asked);
        tree.depth = least.depth.filter(|_| asked.depth.is_some()).or(tree.depth);
        tree.runs = least.runs.filter(|_| asked.runs.is_some()).or(tree.runs);
        tree.slots = least.slots.filter(|_| asked.slots.is_some()).or(tree.slots);
    }

    /// The agent with this pin, or, where that is not known here, the one that has its name now.
    pub(super) fn at_the_door(&self, pin: &str) -> Option<Arc<Agent>> {
        let now = || self.agents().by_name.get(agent_of(pin)).cloned();
        self.agent_with(pin).or_else(now)
    }

    /// The agents of the runs above one that is accepted, as [`Self::at_the_door`] knows them.
    pub(super) fn above_at_the_door(&self, spec: &RunSpec) -> Vec<Option<Arc<Agent>>> {
        spec.ancestors.iter().map(|ancestor| self.at_the_door(&ancestor.pin)).collect()
    }

    /// The functions that an agent may call, for which its code is loaded if they are not known.
    async fn functions_of(&self, agent: &Agent) -> Result<Arc<Vec<ToolSpec>>, ControllerError> {
        let known = match &agent.code {
            CodeSource::OnDemand(source) => source.functions(),
            CodeSource::Loaded(_) => None,
        };
        if let Some(known) = known {
            return Ok(known);
        }
        let not_loaded = |why| ControllerError::NotLoaded { agent: agent.name.clone(), why };
        let code = self.code_of(agent).await.map_err(not_loaded)?;
        Ok(Arc::clone(code.tools.specs()))
    }

    /// The spec of a request, once it was checked.
    pub(super) fn accept(
        &self,
        scope: &Scope,
        request: &SpawnRequest,
        now: Timestamp,
    ) -> Result<RunSpec, ControllerError> {
        let parts = &self.0.parts;
        let (mut random, mut seed) = ([0; 10], [0; 16]);
        parts.random.fill(&mut random);
        parts.random.fill(&mut seed);
        let fresh = RunId::generate(now.0, &random);
        let agents = self.agents();
        let mut spec = accept(request, scope, &agents, fresh, now)?;
        if let Some(agent) = agents.by_name.get(&spec.agent_name) {
            let subscriptions = self.subscribers().subscriptions(agent, &request.subscribers);
            spec.subscriptions = subscriptions.map_err(|error| ControllerError::Invalid {
                field: "subscribers",
                reason: error.to_string(),
            })?;
        }
        spec.seed = seed.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(spec)
    }

    /// Refuses an id that some other tenant may have given to a run, whether or not one did.
    async fn check_id(&self, spec: &RunSpec) -> Result<(), ControllerError> {
        let Err(reason) = check_own_id(&spec.id, &spec.tenant) else { return Ok(()) };
        let found = self.0.parts.store.get(&spec.id).await?;
        Err(match found.filter(|run| run.spec.tenant == spec.tenant) {
            Some(run) => ControllerError::AlreadyExists { id: run.spec.id.clone() },
            None => ControllerError::Invalid { field: "id", reason },
        })
    }

    /// A run at its beginning, and the event that says so.
    pub(super) fn begun(&self, mut spec: RunSpec) -> (Run, EventRecord) {
        Self::name_terminal(&mut spec);
        if !spec.subscriptions.is_empty() {
            self.subscribers().withhold_texts(&mut spec.subscriptions);
        }
        let recorded = EventRecord {
            seq: 1,
            id: random_u64(&*self.0.parts.random),
            at: spec.created_at,
            event: Event::Queued { spec: Arc::new(spec) },
        };
        let run = machine::begin(&recorded).expect("a first event that says queued begins a run");
        (run, recorded)
    }

    fn admission(&self, request: &SpawnRequest, tree_max: Option<u64>) -> Admission {
        let settings = &self.0.parts.settings;
        Admission {
            queue_max: settings.queue_max,
            tree_max: tree_max.unwrap_or(settings.tree_max),
            at_once: match request.when_full {
                WhenFull::Wait => None,
                WhenFull::Refuse => Some(settings.tree_slots),
            },
        }
    }

    /// The answer to a request of which the store has said this.
    fn created(
        &self,
        run: Run,
        tree_max: u64,
        outcome: CreateOutcome,
    ) -> Result<SpawnOutcome, ControllerError> {
        match outcome {
            CreateOutcome::New => Ok(SpawnOutcome { run, reused: false }),
            CreateOutcome::Repeated(run) => Ok(SpawnOutcome { run: *run, reused: true }),
            CreateOutcome::Taken(id) => Err(ControllerError::AlreadyExists { id }),
            CreateOutcome::NameTaken(id) => {
                let name = run.spec.name.clone().unwrap_or_default();
                Err(ControllerError::NameTaken { name, id })
            }
            CreateOutcome::Locked(open) => Err(locked(&open)),
            CreateOutcome::SessionEnded => {
                Err(ControllerError::SessionEnded { id: run.spec.parent_session_id.clone() })
            }
            CreateOutcome::ParentEnded => {
                let id = run.spec.parent_run_id.as_ref().map(ToString::to_string);
                Err(ControllerError::ParentEnded { id: id.unwrap_or_default() })
            }
            CreateOutcome::Full(full) => Err(self.full(full, tree_max, &run.spec)),
            // Only what hosts start for reports depends on them.
            CreateOutcome::ReportsGone => Err(ControllerError::Inconsistent {
                id: run.spec.id.clone(),
                detail: "it is started for reports and has none".to_owned(),
            }),
        }
    }

    fn full(&self, full: AdmissionBound, tree_max: u64, spec: &RunSpec) -> ControllerError {
        let settings = &self.0.parts.settings;
        let slots = spec.tree.slots.unwrap_or(settings.tree_slots);
        let (kind, cap) = match full {
            AdmissionBound::Queue => ("queue", settings.queue_max),
            AdmissionBound::Tree => ("tree", tree_max),
            AdmissionBound::Slots => ("slots", u64::from(slots)),
        };
        ControllerError::Limit { kind, cap }
    }

    /// Checks that a run may start one of an agent.
    pub(super) fn check_member(&self, parent: &Run, wanted: &str) -> Result<(), ControllerError> {
        let agent = &parent.spec.agent_name;
        let is_member =
            |agent: &Agent| agent.members.iter().any(|name| name == wanted || name == "*");
        // A run has the members of then that are members now, too.
        let executed = self.live().get(parent.id()).and_then(|live| live.agent());
        let then = executed.or_else(|| self.agent_with(parent.pin()));
        let agents = self.agents();
        let is_allowed = match (then, agents.by_name.get(agent)) {
            (Some(then), Some(now)) => is_member(&then) && is_member(now),
            // Of one that does not load now it is only known that it is there.
            (Some(then), None) => agents.has(agent) && is_member(&then),
            (None, Some(now)) => is_member(now),
            (None, None) => false,
        };
        if is_allowed {
            return Ok(());
        }
        let wanted = cut(wanted, KEY_BYTES_MAX);
        let reason = format!("agent {wanted} is not among the members of agent {agent}");
        Err(ControllerError::Forbidden { reason })
    }
}

/// The keys that make a repeated request harmless, and by which its result may be used again. The
/// keys of one owner are apart from those of another.
fn repetition(
    request: &SpawnRequest,
    spec: &RunSpec,
    now: Timestamp,
) -> (Option<Idempotency>, Option<TaskKey>) {
    if let Some(continued) = &spec.continues {
        return (Some(once(continued)), None);
    }
    let given = request.idempotency_key.as_deref().map(str::trim);
    let since = request.reuse_within.map(|within| Timestamp(now.0.saturating_sub(millis(within))));
    let idempotency = given.map(|key| Idempotency {
        key: digest_of_parts(&["request", &spec.owner_user_id, key]),
        fingerprint: fingerprint(request),
        completed_since: since,
    });
    // A key of the caller's takes the place of the task.
    let completed_since = since.filter(|_| idempotency.is_none());
    // The answer of one that is told more is no answer to the task alone.
    let task = request
        .messages
        .is_empty()
        .then(|| TaskKey { digest: task_digest(spec, request), completed_since });
    (idempotency, task)
}
