//! `spawn_agent` and `stop_agent`: background runs that the caller's model knows by names.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Number;
use taskrun_journal::event::RunsReport;
use taskrun_journal::hold::WaitMode;
use taskrun_journal::list::PAGE_MAX;
use taskrun_journal::money::parse_usd;
use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::operation::Operation;
use taskrun_journal::runs::{ChildRequest, RunInfo, RunsError, RunsFilter};
use taskrun_journal::status::Status;

use super::reply::{called, stands_beneath_first, subagent};
use super::task_runs::run_id;
use super::{Answered, HostCall, Refusal, value};
use crate::ports::tool::{ToolReply, ToolWait};
use crate::scope::RunsQuestion;

#[derive(Deserialize)]
struct Spawn {
    agent: String,
    goal: String,
    name: Option<String>,
    tools: Option<Vec<String>>,
    max_turns: Option<u32>,
    max_cost_usd: Option<Number>,
    max_wallclock_seconds: Option<u64>,
    #[serde(default)]
    wait: bool,
}

impl Spawn {
    /// The tools and the budget that the call states: they take away from what the agent has, and
    /// give nothing. The error is that of the amount of money, in words.
    fn narrowing(&self) -> Result<Narrowing, &'static str> {
        let amount = self.max_cost_usd.as_ref().map(|amount| parse_usd(&amount.to_string()));
        Ok(Narrowing {
            tools: self.tools.clone(),
            turns: self.max_turns,
            cost_microusd: amount.transpose()?,
            wall_ms: self.max_wallclock_seconds.map(|seconds| seconds.saturating_mul(1_000)),
            ..Narrowing::default()
        })
    }
}

#[derive(Deserialize)]
struct Stop {
    name: String,
}

/// The longest wait of `spawn_agent`: whoever asks is waited for, too.
const WAIT_MAX: Duration = Duration::from_secs(5 * 60);

impl HostCall<'_> {
    pub(super) async fn spawn_agent(&self) -> Answered {
        let spawn: Spawn = self.arguments()?;
        if spawn.wait {
            self.allow(Operation::Wait)?;
        }
        self.check_member(&spawn.agent)?;
        let narrow = spawn.narrowing();
        let narrow = narrow.map_err(|reason| self.invalid(format!("max_cost_usd: {reason}")))?;
        let Spawn { agent, goal, name, wait, .. } = spawn;
        let name = name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
        let child = ChildRequest {
            agent_name: agent,
            task: goal,
            name: name.clone(),
            narrow,
            // Whatever became of it since: a call that is repeated gives its first answer.
            as_accepted: true,
            ..ChildRequest::default()
        };
        let run = match (self.scope.ask(RunsQuestion::spawn(child)).await, name) {
            (Err(RunsError::AlreadyExists { .. }), Some(name)) => {
                let text = format!("a subagent named '{name}' is running already");
                return Err(self.failed("already-exists", text));
            }
            (answer, _) => self.begun(answer)?,
        };
        if !wait {
            return Ok(value(&subagent(&run)));
        }
        let (runs, mode) = (vec![run_id(&run)?], WaitMode::All);
        let (timeout, report) = (self.at_most(Some(WAIT_MAX)), RunsReport::Subagent);
        Ok(ToolReply::Park(ToolWait::Runs { runs, mode, timeout, report }))
    }

    /// Cancels the subagent of a name. One that has ended is shown as it ended.
    pub(super) async fn stop_agent(&self) -> Answered {
        let Stop { name } = self.arguments()?;
        let name = name.trim();
        let open = || Status::ALL.iter().copied().filter(|status| !status.is_terminal());
        let mut found = None;
        // Its own before those of an earlier line, which may have given the same name.
        for is_own in [true, false] {
            for status in [open().collect(), Vec::new()] {
                if found.is_none() {
                    found = self.subagent(name, is_own, status).await?;
                }
            }
        }
        let Some(found) = found else {
            return Err(self.failed("not-found", format!("there is no subagent named '{name}'")));
        };
        let done = self.ask(RunsQuestion::cancel_tree(found.id, None)).await?;
        Ok(value(&subagent(&done.run)))
    }

    /// The last run of this name, or of this id where it has no name, with one of these statuses
    /// that the caller's run started, or that an earlier line of its conversation did.
    async fn subagent(
        &self,
        name: &str,
        is_own: bool,
        status: Vec<Status>,
    ) -> Result<Option<RunInfo>, Refusal> {
        let own = self.scope.context();
        let filter = RunsFilter {
            status,
            parent_run_id: is_own.then(|| own.run_id.clone()),
            newest_first: true,
            limit: u32::try_from(PAGE_MAX).ok(),
            ..RunsFilter::default()
        };
        let page = self.ask(RunsQuestion::list(filter)).await?;
        // Names are those of one parent's runs; what stands deeper may have the same.
        let is_meant = |run: &RunInfo| {
            called(run) == name && (is_own || stands_beneath_first(run, &own.root_run_id))
        };
        Ok(page.runs.into_iter().find(is_meant))
    }
}
