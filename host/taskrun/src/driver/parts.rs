//! The things that the driver of a run works with. They stay the same while it drives.

use std::sync::Arc;

use taskrun_journal::fact::MemoryScope;
use taskrun_journal::format::JournalFormat;
use taskrun_journal::memory::Memory;
use taskrun_journal::run::Run;
use taskrun_journal::store::Store;
use taskrun_journal::time::{Clock, Random};
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{AGENTS, Budget};
use tokio_util::sync::CancellationToken;

use super::consents::PatientConsents;
use super::lease::Lease;
use super::stalls::Stalls;
use crate::agents::{Agent, AgentCode};
use crate::ports::hook::Hooks;
use crate::ports::retry::SharedRetryPolicy;
use crate::scope::memory::MemoryAccess;
use crate::scope::runs::{Caller, Runs, RunsAccess};
use crate::scope::{CurrentRules, HeldModels, RunContext};

/// The host around the driver of a run.
pub(crate) struct Env {
    /// Waits while it cannot be written.
    pub(crate) store: Arc<dyn Store>,
    /// Stands still with the run.
    pub(crate) clock: Arc<dyn Clock>,
    /// The machine's time, in which hooks and policy engines are waited for. Stands still with the
    /// run, too.
    pub(crate) machine: Arc<dyn Clock>,
    pub(crate) stalls: Arc<Stalls>,
    pub(crate) random: Arc<dyn Random>,
    pub(crate) closing: CancellationToken,
    /// Set when this host gives its runs back, each at the next point at which nothing is lost.
    pub(crate) draining: CancellationToken,
    pub(crate) lease: Arc<Lease>,
    pub(crate) hooks: Hooks,
    pub(crate) retry_policy: SharedRetryPolicy,
    /// The controller, as far as the components of runs may ask it.
    pub(crate) runs: Arc<dyn Runs>,
    /// Facts that the components of runs may read and write.
    pub(crate) memory: Arc<dyn Memory>,
    /// The policy file of the host.
    pub(crate) policy: Arc<str>,
    /// Lasting consents to tool calls; `None` where no call is made.
    pub(crate) consents: Option<PatientConsents>,
    /// Models that are not to be asked before a time.
    pub(crate) held_models: Arc<HeldModels>,
    /// The format of journals.
    pub(crate) format: JournalFormat,
}

/// The bounds of a run.
pub(crate) struct Bounds {
    /// The rules for its calls.
    pub(crate) rules: Arc<CurrentRules>,
    /// The budgets of the runs above it, the root's first.
    pub(crate) ancestors: Vec<Budget>,
    /// True if a sum of money is stated for it or for one of those.
    pub(crate) states_cost: bool,
}

/// Agent, code, bounds and host of a run.
pub(super) struct Parts {
    pub(super) env: Arc<Env>,
    /// The agent as this run has it.
    pub(super) agent: Arc<Agent>,
    /// The agent's code, with the tools that the run has.
    pub(super) code: Arc<AgentCode>,
    pub(super) bounds: Bounds,
}

impl Parts {
    /// The policy file that the run is of.
    pub(super) fn policy(&self) -> &str {
        self.agent.origin.as_ref().map_or(&*self.env.policy, |origin| origin.policy.as_str())
    }

    /// The context of a call in a turn of the run.
    pub(super) fn context(&self, run: &Run, turn: u32) -> RunContext {
        let spec = &run.spec;
        RunContext {
            run_id: spec.id.to_string(),
            parent_run_id: spec.parent_run_id.as_ref().map(ToString::to_string),
            root_run_id: spec.root_run_id.to_string(),
            tenant: spec.tenant.clone(),
            session_id: own_session(run),
            parent_session_id: spec.parent_session_id.clone(),
            owner_user_id: spec.owner_user_id.clone(),
            app_name: spec.app_name.clone(),
            agent_name: spec.agent_name.clone(),
            turn,
            attempt: run.state.failed_attempts + 1,
            depth: spec.depth,
            parent_tool_call_id: spec.parent_tool_call_id.clone(),
            labels: spec.labels.clone(),
            envelope: spec.envelope.clone(),
        }
    }

    /// True if there may be runs beneath a run: others pay nothing for the look. The agent in force
    /// may lack the members with which the run has started some, so its members tell that there are
    /// none only where it is as it was when the run was accepted.
    pub(super) fn may_have_started_runs(&self, run: &Run) -> bool {
        let agent = &self.agent;
        let origin = agent.origin.as_ref().and_then(|origin| origin.now.as_ref());
        let is_as_accepted = run.state.pin.is_none() && agent.now.is_none() && origin.is_none();
        let calls_agent =
            |spec: &ToolSpec| spec.name.split_once('/').is_some_and(|(tool, _)| tool == AGENTS);
        !is_as_accepted
            || !agent.members.is_empty()
            || self.code.tools.specs().iter().any(calls_agent)
    }

    /// Access to the runs beneath a run for one of its calls, known by this name.
    pub(super) fn runs_access(&self, run: &Run, call: String) -> RunsAccess {
        let caller = Caller { spec: Arc::clone(&run.spec), session_id: own_session(run), call };
        RunsAccess { runs: Arc::clone(&self.env.runs), caller }
    }

    /// The facts that a call of a run may reach. One that may change some is known by a name.
    pub(super) fn memory_access(&self, run: &Run, call: Option<String>) -> MemoryAccess {
        let spec = &run.spec;
        MemoryAccess {
            memory: Arc::clone(&self.env.memory),
            session: spec.fact_namespace(MemoryScope::Session),
            tenant: spec.fact_namespace(MemoryScope::Tenant),
            writer: call.map(|call| (spec.id.clone(), call)),
        }
    }

    /// Tool calls that the run may still make, one that goes on by itself in its present round; `None`
    /// if they are not bounded.
    pub(super) fn tool_calls_left(&self, run: &Run) -> Option<u32> {
        let used = run.state.tool_calls.saturating_sub(run.state.rounds.before.1);
        self.agent.limits.tool_calls.map(|cap| cap.saturating_sub(used))
    }
}

/// The run's own session, from which its children are started.
pub(super) fn own_session(run: &Run) -> String {
    run.execution().map_or_else(String::new, |execution| execution.child_session_id.clone())
}
