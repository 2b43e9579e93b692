//! The host around a step that is executed again: everything in it answers from the record, or is
//! never asked.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::format::JournalFormat;
use taskrun_journal::ids::{HostId, Seq};
use taskrun_journal::memory::Memory;
use taskrun_journal::pin::Pins;
use taskrun_journal::run::Run;
use taskrun_journal::runs::{RunsAnswer, RunsError, RunsRequest};
use taskrun_journal::store::{Hosts, LEASE, Store};
use taskrun_journal::time::Clock;
use taskrun_journal::tool::ToolOutcome;
use tokio_util::sync::CancellationToken;

use super::{Form, Images};
use crate::agents::Agent;
use crate::clock::{SeededRandom, SystemClock};
use crate::driver::lease::Lease;
use crate::driver::live::Live;
use crate::driver::parts::{Bounds, Env, Parts};
use crate::driver::stalls::Stalls;
use crate::gate::narrowing;
use crate::gate::rights::rules_of_run;
use crate::ports::hook::Hooks;
use crate::scope::runs::{Caller, Runs};
use crate::scope::{CurrentRules, HeldModels, Interrupt};

/// The things of a process in which steps are executed again.
pub struct ReplayWorld {
    /// An empty store: nothing is read of it that counts, and nothing is written.
    pub store: Arc<dyn Store>,
    /// The same, as hosts see it.
    pub hosts: Arc<dyn Hosts>,
    /// The same, as memory.
    pub memory: Arc<dyn Memory>,
    /// Makes running guests look at their stop signals.
    pub interrupt: Interrupt,
    /// The images that answers of the run name.
    pub images: Images,
}

/// The recorded world of a run.
pub(super) struct Recorded {
    env: Arc<Env>,
    interrupt: Interrupt,
}

impl Recorded {
    pub(super) fn new(world: ReplayWorld, records: Arc<[EventRecord]>) -> Self {
        let ReplayWorld { store, hosts, memory, interrupt, images } = world;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let stalls = Stalls::new(Arc::clone(&clock), Arc::clone(&clock));
        let env = Env {
            store,
            clock: stalls.clock(),
            machine: stalls.machine(),
            stalls,
            // The numbers of a step follow from the seed of its run.
            random: Arc::new(SeededRandom::new(0)),
            closing: CancellationToken::new(),
            draining: CancellationToken::new(),
            lease: Arc::new(Lease::new(hosts, HostId::new("replay"), LEASE)),
            hooks: Hooks::default(),
            retry_policy: None,
            runs: Arc::new(RecordedRuns { records, images }),
            memory,
            policy: Arc::default(),
            consents: None,
            held_models: Arc::new(HeldModels::new(clock)),
            format: JournalFormat::CURRENT,
        };
        Self { env: Arc::new(env), interrupt }
    }

    /// The parts with which a step of a run is executed.
    pub(super) fn parts(&self, form: Form, run: &Run, pins_now: Vec<String>) -> Parts {
        let Form { agent, code, above } = form;
        let rights: Vec<_> = above.iter().map(|one| one.as_deref().map(Agent::rights)).collect();
        let rules = rules_of_run(&agent.rights(), &run.spec, &rights);
        let bounds = Bounds {
            rules: Arc::new(CurrentRules::new(rules, pins_now)),
            ancestors: narrowing::budgets_of_ancestors(&run.spec, &above),
            states_cost: narrowing::states_cost(&run.spec, &agent, &above),
        };
        let (agent, code) = narrowing::narrowed((agent, code), &run.spec, &above);
        Parts { env: Arc::clone(&self.env), agent, code, bounds }
    }

    pub(super) fn live(&self, pins: Pins) -> Arc<Live> {
        Arc::new(Live::new(self.interrupt.clone(), pins, CancellationToken::new()))
    }
}

/// The things that the journal of a run has of results and images. Its questions to the controller are on
/// their tapes.
struct RecordedRuns {
    records: Arc<[EventRecord]>,
    images: Images,
}

#[async_trait]
impl Runs for RecordedRuns {
    async fn ask(
        &self,
        _caller: &Caller,
        _request: RunsRequest,
        _longest: Duration,
    ) -> Result<RunsAnswer, RunsError> {
        Err(RunsError::NotStarted)
    }

    async fn result(
        &self,
        _caller: &Caller,
        _hash: &str,
        place: Seq,
    ) -> Result<Option<Arc<[u8]>>, RunsError> {
        let record = self.records.iter().find(|record| record.seq == place);
        let Some(Event::ToolResult { output, .. }) = record.map(|record| &record.event) else {
            return Ok(None);
        };
        Ok(match &output.outcome {
            ToolOutcome::Value(value) => Some(value.as_bytes().into()),
            ToolOutcome::Failure(_) => None,
        })
    }

    async fn artifact(&self, _caller: &Caller, hash: &str) -> Result<Option<Arc<[u8]>>, RunsError> {
        Ok(self.images.get(hash).cloned())
    }
}
