//! Tools of the host itself, by which the model of an agent starts, watches and awaits runs, and
//! asks people: `host/NAME`.

use std::fmt;

use serde::{Deserialize, Serialize};
use taskrun_journal::operation::Operation;

/// The word before the name of a tool of the host: `host/NAME`. No component is named so.
pub const HOST: &str = "host";

/// A tool of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostFunction {
    /// Starts a run, and waits for it if asked to.
    StartTaskRun,
    /// Lists runs.
    ListTaskRuns,
    /// Shows one run.
    GetTaskRun,
    /// Cancels one run.
    CancelTaskRun,
    /// Waits for the end of one run.
    WaitTaskRun,
    /// Reads the conversation of one run.
    ReadTaskRunTranscript,
    /// Starts a run.
    SpawnTask,
    /// Lists runs, by agent, status and parent.
    CheckTasks,
    /// Leaves an entry for the heartbeat of an agent.
    CreateTask,
    /// Says that an entry of the batch is done.
    CompleteTask,
    /// Asks a person.
    AskUser,
    /// Waits for the ends of several runs.
    AwaitTasks,
    /// Starts a run in a session of its own beneath the caller's.
    DelegateTask,
    /// Starts several runs, all or none, and waits for their ends.
    Delegate,
    /// Hands the conversation over to another agent, whose answer ends the run.
    TransferToAgent,
    /// Starts a run that the caller knows by a name, with less than its agent has.
    SpawnAgent,
    /// Cancels the run of a name, and what that started.
    StopAgent,
    /// Says that the run is done, which ends it.
    ReportDone,
    /// Says in which state the run is.
    SetStatus,
    /// Says when the next round of the run begins.
    ScheduleNextTurn,
}

/// Tools of the host that belong together, named as one under `tools`: `host/SET`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostToolSet {
    /// Runs of named agents, which have ids and conversations to read.
    TaskRuns,
    /// Tasks for the `members`, entries for heartbeats, and questions to people.
    Tasks,
    /// Tasks for the `members`, one at a time or several at once.
    Delegation,
    /// Runs that their parent knows by names.
    Subagents,
    /// Words of a run about itself. A run that goes on by itself has them unnamed.
    Autonomy,
}

impl HostFunction {
    /// Every tool of the host.
    pub const ALL: [Self; 20] = [
        Self::StartTaskRun,
        Self::ListTaskRuns,
        Self::GetTaskRun,
        Self::CancelTaskRun,
        Self::WaitTaskRun,
        Self::ReadTaskRunTranscript,
        Self::SpawnTask,
        Self::CheckTasks,
        Self::CreateTask,
        Self::CompleteTask,
        Self::AskUser,
        Self::AwaitTasks,
        Self::DelegateTask,
        Self::Delegate,
        Self::TransferToAgent,
        Self::SpawnAgent,
        Self::StopAgent,
        Self::ReportDone,
        Self::SetStatus,
        Self::ScheduleNextTurn,
    ];

    /// Its own name, by which models know it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::StartTaskRun => "start_task_run",
            Self::ListTaskRuns => "list_task_runs",
            Self::GetTaskRun => "get_task_run",
            Self::CancelTaskRun => "cancel_task_run",
            Self::WaitTaskRun => "wait_task_run",
            Self::ReadTaskRunTranscript => "read_task_run_transcript",
            Self::SpawnTask => "spawn_task",
            Self::CheckTasks => "check_tasks",
            Self::CreateTask => "create_task",
            Self::CompleteTask => "complete_task",
            Self::AskUser => "ask_user",
            Self::AwaitTasks => "await_tasks",
            Self::DelegateTask => "delegate_task",
            Self::Delegate => "delegate",
            Self::TransferToAgent => "transfer_to_agent",
            Self::SpawnAgent => "spawn_agent",
            Self::StopAgent => "stop_agent",
            Self::ReportDone => "report_done",
            Self::SetStatus => "set_status",
            Self::ScheduleNextTurn => "schedule_next_turn",
        }
    }

    /// The tool of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|function| function.as_str() == name)
    }

    /// Its qualified name, `host/NAME`.
    #[must_use]
    pub fn qualified(self) -> String {
        format!("{HOST}/{self}")
    }

    /// The operation of the interface `controller` that rules have to allow for it; `None` for one
    /// that reaches no other run.
    #[must_use]
    pub fn operation(self) -> Option<Operation> {
        match self {
            Self::StartTaskRun
            | Self::SpawnTask
            | Self::CreateTask
            | Self::DelegateTask
            | Self::Delegate
            | Self::TransferToAgent
            | Self::SpawnAgent => Some(Operation::Spawn),
            Self::ListTaskRuns | Self::CheckTasks => Some(Operation::List),
            Self::GetTaskRun => Some(Operation::Get),
            Self::CancelTaskRun => Some(Operation::Cancel),
            Self::StopAgent => Some(Operation::CancelTree),
            Self::WaitTaskRun | Self::AwaitTasks => Some(Operation::Wait),
            Self::ReadTaskRunTranscript => Some(Operation::Subscribe),
            Self::CompleteTask
            | Self::AskUser
            | Self::ReportDone
            | Self::SetStatus
            | Self::ScheduleNextTurn => None,
        }
    }

    /// True if a run only speaks of itself by it, which is no work and costs no call.
    #[must_use]
    pub fn is_own(self) -> bool {
        self.set() == Some(HostToolSet::Autonomy)
    }

    /// The set that it belongs to; `None` for one that an agent has only where it is named itself.
    #[must_use]
    pub(crate) fn set(self) -> Option<HostToolSet> {
        Some(match self {
            Self::StartTaskRun
            | Self::ListTaskRuns
            | Self::GetTaskRun
            | Self::CancelTaskRun
            | Self::WaitTaskRun
            | Self::ReadTaskRunTranscript => HostToolSet::TaskRuns,
            Self::SpawnTask
            | Self::CheckTasks
            | Self::CreateTask
            | Self::CompleteTask
            | Self::AskUser
            | Self::AwaitTasks => HostToolSet::Tasks,
            Self::DelegateTask | Self::Delegate => HostToolSet::Delegation,
            Self::SpawnAgent | Self::StopAgent => HostToolSet::Subagents,
            Self::ReportDone | Self::SetStatus | Self::ScheduleNextTurn => HostToolSet::Autonomy,
            // It ends the run of whoever calls it.
            Self::TransferToAgent => return None,
        })
    }
}

impl HostToolSet {
    /// Every set.
    pub(crate) const ALL: [Self; 5] =
        [Self::TaskRuns, Self::Tasks, Self::Delegation, Self::Subagents, Self::Autonomy];

    /// Its name under `tools`, after `host/`.
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::TaskRuns => "task_runs",
            Self::Tasks => "tasks",
            Self::Delegation => "delegation",
            Self::Subagents => "subagents",
            Self::Autonomy => "autonomy",
        }
    }

    /// The set of this name.
    #[must_use]
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|set| set.as_str() == name)
    }

    /// The tools of the set.
    pub(crate) fn functions(self) -> impl Iterator<Item = HostFunction> {
        HostFunction::ALL.into_iter().filter(move |function| function.set() == Some(self))
    }

    /// The depth of the trees of an agent that starts runs by this set, unless its policy says
    /// otherwise: a run that was started by `start_task_run` starts none itself.
    #[must_use]
    pub(crate) fn depth(self) -> u32 {
        match self {
            Self::TaskRuns => 1,
            Self::Subagents => 2,
            Self::Tasks | Self::Delegation | Self::Autonomy => TREE_DEPTH_MAX,
        }
    }
}

/// The deepest tree of runs: each run beneath another one waits in memory of nobody, but rules are
/// asked at each level.
pub const TREE_DEPTH_MAX: u32 = 8;
/// The runs of a tree where the policy states no number: as many as one person can follow.
pub const TREE_RUNS_DEFAULT: u64 = 64;
/// The runs of a tree that hosts execute at once where the policy states no number: as many as one
/// person watches, and few enough that sixteen trees share a host.
pub const TREE_SLOTS_DEFAULT: u32 = 4;
/// The most that a policy may state: as many as a host executes by default, so that one tree does not
/// keep several hosts from all others.
pub const TREE_SLOTS_MAX: u32 = 64;
/// The largest tree of runs that a policy may allow: its runs are read whole where one of them lists
/// those beneath it.
pub const TREE_RUNS_MAX: u64 = 4_096;

/// Prints its own name.
impl fmt::Display for HostFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Prints its name under `tools`, after `host/`.
impl fmt::Display for HostToolSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
