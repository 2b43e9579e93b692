//! Tools of the host itself: other agents, runs that a model starts, watches, awaits and cancels,
//! questions to people, and words of a run about itself. They ask the controller through the scope of their call, as a component does, and no
//! other way: what they see and may do is decided there.

mod agents;
mod delegation;
mod description;
mod own;
mod reply;
pub(crate) mod schedule;
mod subagents;
mod task_runs;
mod tasks;

use std::sync::Arc;

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde_json::Value;
use taskrun_journal::event::Event;
use taskrun_journal::message::{RetryHint, RetryReason, ToolError};
use taskrun_journal::operation::Operation;
use taskrun_journal::runs::RunsError;
use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_journal::tool::{ToolFailure, ToolSpec};
use taskrun_policy::{AGENTS, Capability, Denial, HostFunction, Use};

pub(crate) use self::agents::accepted_schema;
pub(crate) use self::own::{ANY_ARGUMENTS, OwnTools, is_taken, read_schema};
pub(crate) use self::reply::report;
use crate::ports::tool::{Tool, ToolCall, ToolReply, ToolResult};
use crate::scope::{CallScope, Question};

/// An agent that another one may call as a tool, or start runs of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callee {
    /// Its name.
    pub name: String,
    /// Its purpose, for the model that chooses; the host says something general if it is `None`.
    pub description: Option<String>,
}

/// The tools of the host that one agent has.
pub(crate) struct HostTools {
    specs: Vec<ToolSpec>,
    kind: Kind,
}

/// The functions that a value of [`HostTools`] has.
enum Kind {
    /// Tools of the host, for an agent that may start runs of these.
    Functions {
        /// Each named once.
        members: Vec<String>,
    },
    /// One agent, called as a tool.
    Agent,
}

/// The function that is called.
#[derive(Clone, Copy)]
enum Callable<'a> {
    /// A tool of the host.
    Function(HostFunction),
    /// The agent of this name.
    Agent(&'a str),
}

/// The reason for which a call has no result.
enum Refusal {
    /// A failure that the model is told.
    Failed(Box<ToolFailure>),
    /// The call is stopped.
    Aborted(CallAbort),
}

type Answered = Result<ToolReply, Refusal>;

/// A call of one of them.
struct HostCall<'a> {
    callable: Callable<'a>,
    call: &'a ToolCall,
    scope: &'a CallScope,
    members: &'a [String],
}

impl HostTools {
    /// These tools, for an agent that may start runs of `members`, each named once.
    pub(crate) fn new(functions: &[HostFunction], members: &[Callee]) -> Self {
        let specs = functions.iter().map(|function| description::of(*function, members));
        let names = members.iter().map(|member| member.name.clone());
        Self { specs: specs.collect(), kind: Kind::Functions { members: names.collect() } }
    }

    /// One agent as a tool, which is described to models so.
    pub(crate) fn of_agent(agent: &str, description: Option<&str>) -> Self {
        Self { specs: vec![agents::spec(agent, description)], kind: Kind::Agent }
    }
}

#[async_trait]
impl Tool for HostTools {
    fn digest(&self) -> &str {
        "host"
    }

    fn hears_cancellation(&self) -> bool {
        true
    }

    fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    async fn call(
        &self,
        call: ToolCall,
        scope: Arc<CallScope>,
    ) -> Result<Result<ToolReply, ToolFailure>, CallAbort> {
        let (callable, members) = match &self.kind {
            Kind::Functions { members } => match HostFunction::parse(&call.name) {
                Some(function) => (Callable::Function(function), members.as_slice()),
                None => return Err(CallAbort::Internal),
            },
            Kind::Agent => (Callable::Agent(&call.name), [].as_slice()),
        };
        let host_call = HostCall { callable, call: &call, scope: &scope, members };
        match host_call.answer().await {
            Ok(reply) => Ok(Ok(reply)),
            Err(Refusal::Failed(failure)) => Ok(Err(*failure)),
            Err(Refusal::Aborted(abort)) => Err(abort),
        }
    }
}

impl HostCall<'_> {
    async fn answer(&self) -> Answered {
        let function = match self.callable {
            Callable::Agent(_) => {
                self.check_denial(Operation::Spawn)?;
                return self.call_agent().await;
            }
            Callable::Function(function) => function,
        };
        if let Some(operation) = function.operation() {
            self.allow(operation)?;
        }
        match function {
            HostFunction::StartTaskRun => self.start_task_run().await,
            HostFunction::ListTaskRuns => self.list_task_runs().await,
            HostFunction::GetTaskRun => self.get_task_run().await,
            HostFunction::CancelTaskRun => self.cancel_task_run().await,
            HostFunction::WaitTaskRun => self.wait_task_run().await,
            HostFunction::ReadTaskRunTranscript => self.read_task_run_transcript().await,
            HostFunction::SpawnTask => self.spawn_task().await,
            HostFunction::CheckTasks => self.check_tasks().await,
            HostFunction::CreateTask => self.create_task().await,
            HostFunction::CompleteTask => self.complete_task().await,
            HostFunction::AskUser => self.ask_user(),
            HostFunction::AwaitTasks => self.await_tasks().await,
            HostFunction::DelegateTask => self.delegate_task().await,
            HostFunction::Delegate => self.delegate().await,
            HostFunction::TransferToAgent => self.transfer_to_agent().await,
            HostFunction::SpawnAgent => self.spawn_agent().await,
            HostFunction::StopAgent => self.stop_agent().await,
            HostFunction::ReportDone => Ok(own::report_done(&self.call.payload).await),
            HostFunction::SetStatus => Ok(own::set_status(&self.call.payload, &[])),
            // A run that goes on by itself has one of its own.
            HostFunction::ScheduleNextTurn => {
                Ok(value(&serde_json::json!("rejected: this run is not deferred")))
            }
        }
    }

    /// Asks the rules of the run about an operation; records a refusal.
    fn allow(&self, operation: Operation) -> Result<(), Refusal> {
        let decided = self.scope.rules().decide(&Use::Operation(operation));
        decided.map_err(|denied| self.denied(operation, denied))
    }

    /// The same of an operation that the list of tools allows: no rule has to, none may deny it.
    fn check_denial(&self, operation: Operation) -> Result<(), Refusal> {
        match self.scope.rules().stated_denial(&Use::Operation(operation)) {
            None => Ok(()),
            Some(denied) => Err(self.denied(operation, denied)),
        }
    }

    fn denied(&self, operation: Operation, denied: Denial) -> Refusal {
        self.scope.record(Event::PolicyDecision {
            capability: Capability::Controller.to_string(),
            subject: operation.to_string(),
            rule: denied.rule,
            told: None,
            decided: None,
        });
        self.failed("denied", denied.for_guest)
    }

    /// Asks the controller.
    async fn ask<Q: Question<Error = RunsError>>(&self, question: Q) -> Result<Q::Answer, Refusal> {
        self.scope.ask(question).await.map_err(|error| self.refused(&error))
    }

    /// The arguments, which the schema let through.
    fn arguments<A: DeserializeOwned>(&self) -> Result<A, Refusal> {
        serde_json::from_str(&self.call.payload)
            .map_err(|error| self.invalid(format!("invalid arguments: {error}")))
    }

    fn failed(&self, code: &str, text: impl Into<String>) -> Refusal {
        Refusal::Failed(Box::new(self.failure(code, text.into())))
    }

    /// The failure of a call whose arguments are to be corrected.
    fn invalid(&self, text: impl Into<String>) -> Refusal {
        let mut failure = self.failure("invalid-arguments", text.into());
        let hint = match self.callable {
            Callable::Function(function) => {
                RetryHint::new(RetryReason::InvalidArguments, function.as_str())
            }
            Callable::Agent(agent) => {
                RetryHint::new(RetryReason::InvalidArguments, &format!("{AGENTS}/{agent}"))
            }
        };
        failure.retry_hint = Some(Box::new(hint));
        Refusal::Failed(Box::new(failure))
    }

    /// That of an agent names it, as a run that fails does.
    fn failure(&self, code: &str, text: String) -> ToolFailure {
        let text = match self.callable {
            Callable::Function(_) => text,
            Callable::Agent(agent) => format!("{AGENTS}/{agent}: {text}"),
        };
        ToolFailure { error: ToolError::coded(code, text), retry_hint: None }
    }

    /// The refusal of a request that the controller did not meet.
    fn refused(&self, error: &RunsError) -> Refusal {
        let code = match error {
            RunsError::Canceled => {
                let cause = self.scope.stop().cause().unwrap_or(StopCause::Canceled);
                return Refusal::Aborted(CallAbort::Stopped { cause });
            }
            RunsError::Invalid { .. } => return self.invalid(error.to_string()),
            RunsError::NotFound { .. } => "not-found",
            RunsError::Cycle { .. } => "cycle",
            RunsError::Forbidden { .. } => "denied",
            RunsError::Limit { .. } => "limit",
            RunsError::Storage { .. } => "storage",
            RunsError::NotAwaitable { .. } => "not-awaitable",
            RunsError::SessionEnded => "session-ended",
            RunsError::AlreadyExists { .. } | RunsError::NotStarted | RunsError::Closed => {
                "not-started"
            }
        };
        self.failed(code, error.to_string())
    }

    /// Refuses an agent that is no member. The controller would too, in other words.
    fn check_member(&self, agent: &str) -> Result<(), Refusal> {
        match self.members.iter().any(|member| member == agent) {
            true => Ok(()),
            false => {
                Err(self.failed("denied", format!("agent '{agent}' is not in your members list")))
            }
        }
    }
}

fn value(value: &Value) -> ToolReply {
    ToolReply::Value(Box::new(ToolResult {
        value: value.to_string(),
        server_data: None,
        bounds: None,
        telemetry: None,
        media: Vec::new(),
    }))
}
