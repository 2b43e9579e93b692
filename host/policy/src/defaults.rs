//! The meaning of what a policy leaves out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use taskrun_journal::history::History;
use taskrun_journal::time::millis;

use crate::ask::ASK_TIMEOUT_DEFAULT;
use crate::engine::POLICY_TIMEOUT;
use crate::host_tools::{HostFunction, HostToolSet};
use crate::limits;
use crate::limits::{Budget, LimitSettings, Limits, Reserve};
use crate::settings::{
    InterruptionPolicy, MissingFields, Retry, RetryExhaustion, RetryOn, SKIPS_DEFAULT,
};
use crate::workspace::{
    WORKSPACE_BYTES_DEFAULT, WORKSPACE_FILES_DEFAULT, WORKSPACE_RESERVE_DEFAULT, WorkspaceLimits,
};

/// The settings that an agent has where its policy states none, as far as its runs are pinned to
/// them. They are kept beside the text of a policy, which means the same with them whatever the
/// defaults of a later program are. [`Defaults::default`] are those of this program.
///
/// One that is added is read as what programs did before they knew it where a text has none
/// (`#[serde(default = …)]`), and its value of then stands in [`Defaults::first`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are those of the settings that they are defaults of")]
pub struct Defaults {
    // Of `limits`.
    pub memory_bytes: u64,
    pub call_ms: u64,
    pub step_ms: u64,
    pub grace_ms: u64,
    pub tool_calls: u32,
    pub tool_failures: u32,
    pub result_bytes: u64,
    pub log_bytes: u64,
    pub table_elements: u32,
    pub host_calls: u32,
    pub host_call_bytes: u64,
    pub events: u32,
    pub journal_bytes: u64,
    pub write_bytes: u64,
    pub new_files: u32,
    // Of `budget`.
    pub turns: u32,
    pub wall_ms: u64,
    #[serde(default)]
    pub subagent_cost_microusd: Option<u64>,
    // Of `retry`.
    pub attempts: u32,
    pub pause_ms: u64,
    pub skips_turns: bool,
    pub skips: u32,
    pub retry_on: BTreeSet<String>,
    // Of `policy`, and the wait for consent.
    pub engine_timeout_ms: u64,
    pub hints: bool,
    pub ask_timeout_ms: u64,
    // Of `[workspace]`.
    pub workspace_bytes: u64,
    pub workspace_files: u32,
    pub workspace_reserve_bytes: u64,
    // Of agents and tools.
    pub durable: bool,
    pub conversation: History,
    pub on_missing_fields: MissingFields,
    pub interrupted: InterruptionPolicy,
    /// The tools of the host that each of its sets stands for.
    pub host_tools: BTreeMap<HostToolSet, BTreeSet<HostFunction>>,
}

impl Default for Defaults {
    fn default() -> Self {
        let Retry { attempts, pause, then } = Retry::default();
        let functions = |set: HostToolSet| (set, set.functions().collect());
        Self {
            memory_bytes: limits::MEMORY_BYTES_DEFAULT,
            call_ms: millis(limits::CALL_DEFAULT),
            step_ms: millis(limits::STEP_DEFAULT),
            grace_ms: millis(limits::GRACE_DEFAULT),
            tool_calls: limits::TOOL_CALLS_DEFAULT,
            tool_failures: limits::TOOL_FAILURES_DEFAULT,
            result_bytes: limits::RESULT_BYTES_DEFAULT,
            log_bytes: limits::LOG_BYTES_DEFAULT,
            table_elements: limits::TABLE_ELEMENTS_DEFAULT,
            host_calls: limits::HOST_CALLS_DEFAULT,
            host_call_bytes: limits::HOST_CALL_BYTES_DEFAULT,
            events: limits::EVENTS_DEFAULT,
            journal_bytes: limits::JOURNAL_BYTES_DEFAULT,
            write_bytes: limits::WRITE_BYTES_DEFAULT,
            new_files: limits::NEW_FILES_DEFAULT,
            turns: limits::TURNS_DEFAULT,
            wall_ms: millis(limits::WALL_DEFAULT),
            subagent_cost_microusd: Some(limits::SUBAGENT_COST_DEFAULT),
            attempts,
            pause_ms: millis(pause),
            skips_turns: matches!(then, RetryExhaustion::Skip { .. }),
            skips: SKIPS_DEFAULT,
            retry_on: RetryOn::default().words().iter().cloned().collect(),
            engine_timeout_ms: millis(POLICY_TIMEOUT),
            hints: true,
            ask_timeout_ms: millis(ASK_TIMEOUT_DEFAULT),
            workspace_bytes: WORKSPACE_BYTES_DEFAULT,
            workspace_files: WORKSPACE_FILES_DEFAULT,
            workspace_reserve_bytes: WORKSPACE_RESERVE_DEFAULT,
            durable: true,
            conversation: History::Agent,
            on_missing_fields: MissingFields::default(),
            interrupted: InterruptionPolicy::default(),
            host_tools: HostToolSet::ALL.into_iter().map(functions).collect(),
        }
    }
}

impl Defaults {
    /// Those of the programs that kept policies without them. They never change.
    #[must_use]
    pub fn first() -> Self {
        const MIB: u64 = 1 << 20;
        const SECOND_MS: u64 = 1_000;
        const MINUTE_MS: u64 = 60 * SECOND_MS;
        let words = ["transient", "rate-limited", "unavailable", "timeout", "internal"];
        let host_tools = [
            (
                HostToolSet::TaskRuns,
                BTreeSet::from([
                    HostFunction::StartTaskRun,
                    HostFunction::ListTaskRuns,
                    HostFunction::GetTaskRun,
                    HostFunction::CancelTaskRun,
                    HostFunction::WaitTaskRun,
                    HostFunction::ReadTaskRunTranscript,
                ]),
            ),
            (
                HostToolSet::Tasks,
                BTreeSet::from([
                    HostFunction::SpawnTask,
                    HostFunction::CheckTasks,
                    HostFunction::CreateTask,
                    HostFunction::CompleteTask,
                    HostFunction::AskUser,
                    HostFunction::AwaitTasks,
                ]),
            ),
            (
                HostToolSet::Delegation,
                BTreeSet::from([HostFunction::DelegateTask, HostFunction::Delegate]),
            ),
            (
                HostToolSet::Subagents,
                BTreeSet::from([HostFunction::SpawnAgent, HostFunction::StopAgent]),
            ),
            (
                HostToolSet::Autonomy,
                BTreeSet::from([
                    HostFunction::ReportDone,
                    HostFunction::SetStatus,
                    HostFunction::ScheduleNextTurn,
                ]),
            ),
        ];
        Self {
            memory_bytes: 64 * MIB,
            call_ms: 10 * SECOND_MS,
            step_ms: 2 * MINUTE_MS,
            grace_ms: 5 * SECOND_MS,
            tool_calls: 40,
            tool_failures: 8,
            result_bytes: MIB,
            log_bytes: MIB,
            table_elements: 10_000,
            host_calls: 100_000,
            host_call_bytes: 8 * MIB,
            events: 10_000,
            journal_bytes: 256 * MIB,
            write_bytes: 64 * MIB,
            new_files: 1_000,
            turns: 20,
            wall_ms: 20 * MINUTE_MS,
            subagent_cost_microusd: None,
            attempts: 3,
            pause_ms: SECOND_MS,
            skips_turns: false,
            skips: 3,
            retry_on: words.into_iter().map(str::to_owned).collect(),
            engine_timeout_ms: SECOND_MS,
            hints: true,
            ask_timeout_ms: 24 * 60 * MINUTE_MS,
            workspace_bytes: 4 << 30,
            workspace_files: 200_000,
            workspace_reserve_bytes: 256 * MIB,
            durable: true,
            conversation: History::Agent,
            on_missing_fields: MissingFields::Resume,
            interrupted: InterruptionPolicy::Fail,
            host_tools: host_tools.into(),
        }
    }

    /// The stated limits, and the default of each that is not.
    pub(crate) fn limits(&self, stated: &LimitSettings, of: LimitsOf) -> Limits {
        let time = |stated: Option<Duration>, ms| stated.unwrap_or(Duration::from_millis(ms));
        let tool_calls = match of {
            LimitsOf::Agent => Some(self.tool_calls),
            LimitsOf::Tool => None,
        };
        Limits {
            memory_bytes: stated.memory_bytes.unwrap_or(self.memory_bytes),
            call: time(stated.call, self.call_ms),
            step: time(stated.step, self.step_ms),
            last_step: stated.last_step,
            grace: time(stated.grace, self.grace_ms),
            tool_calls: stated.tool_calls.or(tool_calls),
            turn_calls: stated.turn_calls,
            tool_failures: stated.tool_failures.unwrap_or(self.tool_failures),
            result_bytes: stated.result_bytes.unwrap_or(self.result_bytes),
            log_bytes: stated.log_bytes.unwrap_or(self.log_bytes),
            table_elements: stated.table_elements.unwrap_or(self.table_elements),
            host_calls: stated.host_calls.unwrap_or(self.host_calls),
            host_call_bytes: stated.host_call_bytes.unwrap_or(self.host_call_bytes),
            events: stated.events.unwrap_or(self.events),
            journal_bytes: stated.journal_bytes.unwrap_or(self.journal_bytes),
            write_bytes: stated.write_bytes.unwrap_or(self.write_bytes),
            new_files: stated.new_files.unwrap_or(self.new_files),
        }
    }

    /// The budget of an agent whose policy names none.
    pub(crate) fn budget(&self) -> Budget {
        Budget {
            turns: Some(self.turns),
            tokens: None,
            prompt_tokens: None,
            completion_tokens: None,
            cost_microusd: None,
            subagent_cost_microusd: self.subagent_cost_microusd,
            wall: Some(Duration::from_millis(self.wall_ms)),
            round: None,
            reserve: Reserve::default(),
        }
    }

    /// The attempts of an agent whose policy names none.
    pub(crate) fn retry(&self) -> Retry {
        let pause = Duration::from_millis(self.pause_ms);
        Retry { attempts: self.attempts, pause, then: self.then(self.skips) }
    }

    /// The next thing when all attempts failed, with this bound on skipped turns.
    pub(crate) fn then(&self, in_a_row: u32) -> RetryExhaustion {
        match self.skips_turns {
            true => RetryExhaustion::Skip { in_a_row },
            false => RetryExhaustion::Abort,
        }
    }

    /// The failures after which a step is tried again, where the policy names none.
    pub(crate) fn retry_on(&self) -> RetryOn {
        RetryOn::new(self.retry_on.iter().map(String::as_str))
    }

    /// The wait for consent.
    pub(crate) fn ask_timeout(&self) -> Duration {
        Duration::from_millis(self.ask_timeout_ms)
    }

    /// The time for an engine's decision.
    pub(crate) fn engine_timeout(&self) -> Duration {
        Duration::from_millis(self.engine_timeout_ms)
    }

    /// The bounds of a workspace of which the policy says nothing.
    pub(crate) fn workspace_limits(&self) -> WorkspaceLimits {
        WorkspaceLimits {
            bytes: self.workspace_bytes,
            files: self.workspace_files,
            reserve_bytes: self.workspace_reserve_bytes,
        }
    }

    /// The tools of the host that a set stands for.
    pub(crate) fn functions(&self, set: HostToolSet) -> impl Iterator<Item = HostFunction> + '_ {
        self.host_tools.get(&set).into_iter().flatten().copied()
    }
}

/// The owner of limits: a tool makes no tool calls, and has no bound on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitsOf {
    Agent,
    Tool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_host_tools_are_kept_as_policies_write_them() {
        let word = |value| serde_json::to_value(value).expect("JSON");
        for function in HostFunction::ALL {
            assert_eq!(word(serde_json::json!(function)), function.as_str());
        }
        for set in HostToolSet::ALL {
            assert_eq!(word(serde_json::json!(set)), set.as_str());
        }
    }

    #[test]
    fn defaults_are_read_as_they_are_written() {
        for defaults in [Defaults::first(), Defaults::default()] {
            let text = serde_json::to_string(&defaults).expect("JSON");
            assert_eq!(serde_json::from_str::<Defaults>(&text).expect("read"), defaults);
        }
    }
}
