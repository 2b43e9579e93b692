//! Agents and their code, by the pins of the runs that want them. Until both are there no such run is
//! taken, so that runs which wait for a compiler hold no slots.

mod known;

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use taskrun_journal::pin::{Pins, Ready, agent_of};
use tokio::sync::watch;

use self::known::{Entry, Known, Standing, Want};
use super::Controller;
use crate::agents::{Agent, AgentCode, CodeSource, LoadFault};
use crate::ports::deployments::Settling;

/// The time for which a failure to load counts: runs that come meanwhile wait, or fail with it where
/// they have not begun and a component is at fault. After it it is tried again.
pub(super) const FAILED_FOR: Duration = Duration::from_secs(10);

/// The agents that runs are pinned to, as far as anybody wanted them.
pub(super) struct Codes {
    known: Mutex<Known>,
    /// Counts the loads that came to their end, and the changes of the policy.
    ended: watch::Sender<u64>,
}

/// The bound of what is loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// It is kept to: whoever wants more waits until a run ends.
    Bounded,
    /// It is kept to where nothing under way is in the way: somebody would wait for ever.
    Made,
}

/// An agent, with its code or why that does not load.
pub(super) type WithCode = (Arc<Agent>, Result<Arc<AgentCode>, LoadFault>);

impl Codes {
    pub(super) fn new() -> Self {
        Self { known: Mutex::default(), ended: watch::Sender::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees the loads that end from now on.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.ended.subscribe()
    }

    /// Forgets what was known under the policy before, but for the code of agents that are in the
    /// new one, too.
    pub(super) fn forget_all_but(&self, kept: impl Fn(&str) -> bool) {
        let mut known = self.lock();
        let Known { generation, by_pin, past, .. } = &mut *known;
        *generation += 1;
        by_pin.retain(|pin, entry| {
            let Standing::Ready(code) = &entry.standing else { return false };
            let is_kept = kept(pin) && entry.earlier.is_none();
            if !is_kept {
                past.push(Arc::downgrade(code));
            }
            is_kept
        });
        drop(known);
        self.tell();
    }

    /// Has whoever waits for room look again, as a run has ended.
    pub(super) fn run_ended(&self) {
        if std::mem::take(&mut self.lock().is_short) {
            self.tell();
        }
    }

    fn tell(&self) {
        self.ended.send_modify(|ended| *ended += 1);
    }
}

impl Controller {
    /// The agent with this pin, as far as it is known: of the policy as it is now, or of an earlier
    /// one.
    pub(super) fn agent_with(&self, pin: &str) -> Option<Arc<Agent>> {
        if let Some(agent) = self.agents().with_pin(pin) {
            return Some(Arc::clone(agent));
        }
        self.0.codes.lock().by_pin.get(pin)?.earlier.clone()
    }

    /// The agent with this pin for a run that begins, with its code; `None` if that is not known.
    pub(super) fn code_with(&self, pin: &str) -> Option<WithCode> {
        let agent = self.agent_with(pin)?;
        if let CodeSource::Loaded(code) = &agent.code {
            let code = Arc::clone(code);
            return Some((agent, Ok(code)));
        }
        let mut known = self.0.codes.lock();
        known.begun += 1;
        let begun = known.begun;
        let entry = known.by_pin.get_mut(pin)?;
        entry.used = begun;
        match &entry.standing {
            Standing::Ready(code) => Some((agent, Ok(Arc::clone(code)))),
            Standing::Failed(fault, _) => Some((agent, Err(fault.clone()))),
            Standing::Loading(_) | Standing::Found => None,
        }
    }

    /// The runs that are taken now: those of agents whose code is there, and all entries of agents that
    /// are here, which need none. Of agents of the policy as it is now with a component that does not
    /// load those are taken, to fail, that have not begun.
    pub(super) fn ready(&self) -> Ready {
        let agents = self.agents();
        let now = self.0.parts.clock.monotonic();
        let known = self.0.codes.lock();
        let (mut own, mut fresh) = (BTreeSet::new(), BTreeSet::new());
        let mut ancestors = BTreeSet::new();
        for agent in agents.by_name.values() {
            own.insert(agent.name.clone());
            ancestors.insert(agent.pin.clone());
            let standing = known.by_pin.get(&agent.pin).map(|entry| &entry.standing);
            match (&agent.code, standing) {
                (CodeSource::Loaded(_), _) | (_, Some(Standing::Ready(_))) => {
                    own.insert(agent.pin.clone());
                }
                (_, Some(Standing::Failed(LoadFault::Component { .. }, at)))
                    if now.saturating_sub(*at) < FAILED_FOR =>
                {
                    fresh.insert(agent.pin.clone());
                }
                (_, Some(Standing::Failed(..) | Standing::Loading(_) | Standing::Found) | None) => {
                }
            }
        }
        for (pin, entry) in known.by_pin.iter().filter(|(_, entry)| entry.earlier.is_some()) {
            match entry.standing {
                Standing::Ready(_) => {
                    // Runs that are to be adopted wait for the code of now, too.
                    let to_adopt = self.pin_to_adopt(pin, entry.earlier.as_deref());
                    if to_adopt.is_none_or(|now| known.is_settled(&now, &agents)) {
                        own.insert(pin.clone());
                    }
                    ancestors.insert(pin.clone());
                }
                Standing::Found | Standing::Loading(_) => {
                    ancestors.insert(pin.clone());
                }
                Standing::Failed(..) => {}
            }
        }
        let (own, fresh) = (Arc::new(own), Arc::new(fresh));
        Ready::Only { own, fresh, ancestors: Arc::new(ancestors) }
    }

    /// Pins of earlier policies whose runs cannot be executed here as things are.
    pub(super) fn stuck(&self) -> BTreeSet<String> {
        let agents = self.agents();
        let known = self.0.codes.lock();
        let failed = |(pin, entry): (&String, &Entry)| {
            let is_earlier = agents.with_pin(pin).is_none();
            let failed = is_earlier && matches!(entry.standing, Standing::Failed(..));
            failed.then(|| pin.clone())
        };
        known.by_pin.iter().filter_map(failed).collect()
    }

    /// True if something did not load, for which runs may wait.
    pub(super) fn has_failed(&self) -> bool {
        let known = self.0.codes.lock();
        known.by_pin.values().any(|entry| matches!(entry.standing, Standing::Failed(..)))
    }

    /// True if a look at the runs that are wanted may find some whose agents are to be loaded.
    pub(super) fn may_load(&self) -> bool {
        if self.0.parts.deployments.is_some() {
            return true;
        }
        let agents = self.agents();
        let known = self.0.codes.lock();
        let is_without = |agent: &Arc<Agent>| match &agent.code {
            CodeSource::Loaded(_) => false,
            CodeSource::OnDemand(_) => !matches!(
                known.by_pin.get(&agent.pin).map(|entry| &entry.standing),
                Some(Standing::Ready(_))
            ),
        };
        agents.by_name.values().any(is_without)
    }

    /// Begins to load the agents of the runs that this host could execute.
    pub(super) async fn load_what_is_wanted(&self) {
        let wanted = match self.0.parts.store.wanted().await {
            Ok(wanted) => wanted,
            // Runs that wait are looked at again with the next claim.
            Err(error) => {
                tracing::warn!(%error, "it is not known which agents are wanted");
                return;
            }
        };
        let is_unknown = |pin: &str| agent_of(pin) != pin && self.agent_with(pin).is_none();
        if wanted.iter().flat_map(Pins::all).any(is_unknown) {
            // What is unknown may be of a policy that nobody has looked at yet.
            self.look_at_policy(Settling::Over).await;
        }
        // An agent whose run is just being claimed stays.
        let _no_claim = self.0.claiming.write().await;
        let agents = self.agents();
        let live = self.live_pins();
        for pins in &wanted {
            if !pins.all().all(|pin| agents.has(agent_of(pin))) {
                continue;
            }
            // An entry of a heartbeat names its agent and is pinned to nothing.
            if pins.own() != agent_of(pins.own()) {
                // One above it may be in the middle of a wait for it.
                let room = match pins.ancestors().any(|pin| live.contains(pin)) {
                    true => Room::Made,
                    false => Room::Bounded,
                };
                pins.ancestors().for_each(|pin| self.load(pin, Want::Agent, room));
                self.load(pins.own(), Want::Code, room);
                let known = self.agent_with(pins.own());
                if let Some(now) = self.pin_to_adopt(pins.own(), known.as_deref()) {
                    self.load(&now, Want::Code, room);
                }
            }
        }
    }

    /// The pins of the runs under way.
    fn live_pins(&self) -> BTreeSet<String> {
        self.live().values().map(|live| live.pins().own().to_owned()).collect()
    }

    /// Begins to load what a pin stands for, unless that is known or under way.
    fn load(&self, pin: &str, want: Want, room: Room) {
        let agent = self.agents().with_pin(pin).cloned();
        if agent.is_none() && self.0.parts.deployments.is_none() {
            return;
        }
        let live = match want {
            Want::Agent => BTreeSet::new(),
            Want::Code => self.live_pins(),
        };
        let now = self.0.parts.clock.monotonic();
        // Under one lock: what was loaded meanwhile is not taken away from a run that was claimed for it.
        let mut known = self.0.codes.lock();
        let entry = known.by_pin.get(pin);
        let has = match (&agent, entry) {
            (Some(agent), _) if matches!(agent.code, CodeSource::Loaded(_)) => true,
            (Some(_), None) => want == Want::Agent,
            (None, None) => false,
            (_, Some(entry)) => match &entry.standing {
                Standing::Loading(_) | Standing::Ready(_) => true,
                Standing::Found => want == Want::Agent,
                Standing::Failed(_, at) => now.saturating_sub(*at) < FAILED_FOR,
            },
        };
        if has {
            return;
        }
        let earlier = entry.and_then(|entry| entry.earlier.clone());
        let mut cold = Vec::new();
        if want == Want::Code {
            let has_room = known.make_room(self.0.parts.settings.agents_loaded, &live, &mut cold);
            if !has_room && room == Room::Bounded {
                known.is_short = true;
                return;
            }
        }
        known.begun += 1;
        let (standing, used) = (Standing::Loading(want), known.begun);
        known.by_pin.insert(pin.to_owned(), Entry { earlier: earlier.clone(), standing, used });
        let generation = known.generation;
        // Letting go of native code takes its time.
        drop(known);
        drop(cold);
        let known_agent = agent.or(earlier);
        self.0.tasks.spawn(self.clone().loads(pin.to_owned(), known_agent, want, generation));
    }

    async fn loads(self, pin: String, agent: Option<Arc<Agent>>, want: Want, generation: u64) {
        let inner = &self.0;
        let found = tokio::select! {
            biased;
            () = inner.closing.cancelled() => None,
            found = AssertUnwindSafe(self.find(&pin, agent, want)).catch_unwind() => Some(found),
        };
        // What makes a host panic is not tried again for runs that have not begun.
        let text = "internal error of the host; see its log";
        let panicked = |_| (None, Err(LoadFault::of_component(text.to_owned())));
        let found = found.map(|found| found.unwrap_or_else(panicked));
        {
            let mut known = inner.codes.lock();
            if known.generation == generation {
                let used = known.by_pin.get(&pin).map_or(0, |entry| entry.used);
                match found {
                    None => known.by_pin.remove(&pin),
                    Some((agent, standing)) => {
                        let now = inner.parts.clock.monotonic();
                        let standing =
                            standing.unwrap_or_else(|fault| Standing::Failed(fault, now));
                        let earlier = agent.filter(|_| self.agents().with_pin(&pin).is_none());
                        known.by_pin.insert(pin, Entry { earlier, standing, used })
                    }
                };
            }
        }
        inner.codes.tell();
    }

    /// The agent with a pin, and its code if that is wanted.
    async fn find(
        &self,
        pin: &str,
        agent: Option<Arc<Agent>>,
        want: Want,
    ) -> (Option<Arc<Agent>>, Result<Standing, LoadFault>) {
        let agent = match (agent, &self.0.parts.deployments) {
            (Some(agent), _) => agent,
            (None, Some(deployments)) => match deployments.pinned(pin).await {
                Ok(agent) => Arc::new(agent),
                Err(why) => return (None, Err(LoadFault::Host(why))),
            },
            (None, None) => {
                let text = "it is of another policy".to_owned();
                return (None, Err(LoadFault::Host(text)));
            }
        };
        let source = match (&agent.code, want) {
            (CodeSource::OnDemand(source), Want::Code) => Arc::clone(source),
            (CodeSource::Loaded(code), _) => {
                let code = Arc::clone(code);
                return (Some(agent), Ok(Standing::Ready(code)));
            }
            (CodeSource::OnDemand(_), Want::Agent) => return (Some(agent), Ok(Standing::Found)),
        };
        let standing = match source.load().await {
            Ok(code) if code.planner.digest() == agent.digest => {
                Ok(Standing::Ready(Arc::new(code)))
            }
            Ok(_) => {
                let text = "its component is another one than before".to_owned();
                Err(LoadFault::of_component(text))
            }
            Err(fault) => Err(fault),
        };
        (Some(agent), standing)
    }

    /// The code of an agent of the policy as it is now, loaded if it is not there yet.
    ///
    /// # Errors
    /// [`LoadFault`].
    pub(super) async fn code_of(&self, agent: &Agent) -> Result<Arc<AgentCode>, LoadFault> {
        let mut ended = self.0.codes.watch();
        loop {
            self.load(&agent.pin, Want::Code, Room::Made);
            if let Some((_, code)) = self.code_with(&agent.pin) {
                return code;
            }
            if self.0.closing.is_cancelled() {
                return Err(LoadFault::Host("the controller is closed".to_owned()));
            }
            if self.agents().with_pin(&agent.pin).is_none() {
                return Err(LoadFault::Host("the policy has changed meanwhile".to_owned()));
            }
            // The sender lives as long as the controller.
            ended.changed().await.ok();
        }
    }
}
