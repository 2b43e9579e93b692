//! Agents that wait until the test lets them go on, agents that follow a list, and tools that
//! hold a controller.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskrun::controller::Controller;
use taskrun::ports::planner::{Decision, PlanInput, RunsWait};
use taskrun::ports::tool::{ToolReply, ToolWait};
use taskrun::scope::RunsQuestion;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::{EventRecord, RunsReport};
use taskrun_journal::hold::WaitMode;
use taskrun_journal::ids::RunId;
use taskrun_journal::list::Scope;
use taskrun_journal::message::ToolError;
use taskrun_journal::runs::{ChildRequest, RunInfo};
use taskrun_journal::tool::{ToolFailure, ToolHints, ToolOutcome};
use taskrun_policy::InterruptionPolicy;
use tokio::sync::watch;

use crate::native::{
    ClosurePlanner, ClosureTool, Native, Planned, Replied, World, answer, call_of, decided,
    request, value,
};

/// The time that a test waits for something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something that must happen.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("never: {what}"),
    }
}

/// Doors by name, closed until the test opens them, and who came to them.
pub(crate) struct Gates {
    open: watch::Sender<BTreeSet<String>>,
    came: watch::Sender<Vec<String>>,
    gone: watch::Sender<Vec<String>>,
}

/// A visitor between a gate and what comes after it.
pub(crate) struct Inside {
    gates: Arc<Gates>,
    name: String,
}

impl Drop for Inside {
    fn drop(&mut self) {
        let name = std::mem::take(&mut self.name);
        self.gates.gone.send_modify(|gone| gone.push(name));
    }
}

impl Gates {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            open: watch::Sender::default(),
            came: watch::Sender::default(),
            gone: watch::Sender::default(),
        })
    }

    /// Opens a gate for good.
    pub(crate) fn open(&self, name: &str) {
        self.open.send_modify(|open| {
            open.insert(name.to_owned());
        });
    }

    /// Goes through a gate when it is open. What is returned lives as long as its holder.
    pub(crate) async fn pass(self: &Arc<Self>, name: &str) -> Inside {
        let inside = Inside { gates: Arc::clone(self), name: name.to_owned() };
        self.came.send_modify(|came| came.push(name.to_owned()));
        let mut open = self.open.subscribe();
        open.wait_for(|open| open.contains(name)).await.expect("the sender is here");
        inside
    }

    /// The visitors that came, in order.
    pub(crate) fn came(&self) -> Vec<String> {
        self.came.borrow().clone()
    }

    /// The visitors that came and are gone, in order.
    pub(crate) fn gone(&self) -> Vec<String> {
        self.gone.borrow().clone()
    }

    /// Waits until so many came.
    pub(crate) async fn have_come(&self, count: usize) -> Vec<String> {
        let mut came = self.came.subscribe();
        let enough = came.wait_for(|came| came.len() >= count);
        soon("so many come", enough).await.expect("the sender is here").clone()
    }

    /// Waits until so many are gone.
    pub(crate) async fn are_gone(&self, count: usize) -> Vec<String> {
        let mut gone = self.gone.subscribe();
        let enough = gone.wait_for(|gone| gone.len() >= count);
        soon("so many go", enough).await.expect("the sender is here").clone()
    }

    /// Runs between gate and end.
    pub(crate) fn inside(&self) -> usize {
        let gone = self.gone.borrow().len();
        self.came.borrow().len() - gone
    }

    /// An agent that goes through the gate with the name of its run, and answers.
    pub(crate) fn planner(self: &Arc<Self>) -> ClosurePlanner {
        let gates = Arc::clone(self);
        ClosurePlanner::new(move |input: PlanInput, _| {
            let gates = Arc::clone(&gates);
            async move {
                let _inside = gates.pass(&input.run.run_id).await;
                answer(&format!("done {}", input.run.run_id))
            }
        })
    }
}

/// A request with an id.
pub(crate) fn named(id: &str, agent: &str) -> SpawnRequest {
    SpawnRequest { id: Some(id.to_owned()), ..request(agent, "x") }
}

/// The same beneath another run.
pub(crate) fn beneath(parent: &str, id: &str, agent: &str) -> SpawnRequest {
    SpawnRequest { parent_run_id: Some(parent.to_owned()), ..named(id, agent) }
}

/// A request to the controller for a run.
pub(crate) fn child(agent: &str, task: &str) -> ChildRequest {
    ChildRequest { agent_name: agent.into(), task: task.into(), ..ChildRequest::default() }
}

/// The same as a question.
pub(crate) fn spawning(agent: &str, task: &str) -> RunsQuestion<RunInfo> {
    RunsQuestion::spawn(child(agent, task))
}

/// The decision to wait for all of these runs.
pub(crate) fn waiting_for(runs: Vec<String>) -> Planned {
    let wait = RunsWait { runs, mode: WaitMode::All, timeout: None, call: None };
    decided(Decision::AwaitRuns(wait))
}

/// A tool call: its id, tool and arguments.
pub(crate) type Call = (&'static str, &'static str, &'static str);

/// An agent that calls these tools, turn after turn, and answers with what they said.
pub(crate) fn following(turns: Vec<Vec<Call>>) -> ClosurePlanner {
    ClosurePlanner::new(move |input: PlanInput, _| {
        let planned = follow(&turns, &input);
        async move { planned }
    })
}

/// One step of such an agent.
pub(crate) fn follow(turns: &[Vec<Call>], input: &PlanInput) -> Planned {
    let turn = usize::try_from(input.run.turn).expect("a small number");
    match turns.get(turn - 1) {
        Some(calls) => call_of(calls),
        None => answer(&words_so_far(input)),
    }
}

/// The results of all tools so far, joined.
pub(crate) fn words_so_far(input: &PlanInput) -> String {
    let outputs = input.resume.iter().flat_map(|resume| resume.tool_outputs.iter());
    let words: Vec<_> = outputs.map(|output| words_of(&output.outcome)).collect();
    words.join("; ")
}

/// A tool's outcome as one text: the value, or code and message of the failure.
pub(crate) fn words_of(outcome: &ToolOutcome) -> String {
    match outcome {
        ToolOutcome::Value(value) => value.clone(),
        ToolOutcome::Failure(failure) => {
            let code = failure.error.code.as_deref().unwrap_or("none");
            format!("{code}: {}", failure.error.message)
        }
    }
}

/// The controller that tools use; there only after the tools.
#[derive(Clone, Default)]
pub(crate) struct Handle(Arc<Mutex<Option<Controller>>>);

impl Handle {
    /// Tools use this controller from now on.
    pub(crate) fn set(&self, native: &Native) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *inner = Some(native.controller.clone());
    }

    pub(crate) fn get(&self) -> Controller {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.clone().expect("set before anything runs")
    }
}

/// A tool's own refusal.
pub(crate) fn fails(code: &str, text: &str) -> Replied {
    Ok(Err(ToolFailure { error: ToolError::coded(code, text), retry_hint: None }))
}

fn repeatable() -> ToolHints {
    ToolHints { idempotent: true, ..ToolHints::default() }
}

/// Adds the tools with which an agent delegates. Arguments are texts: `spawn/f` takes `AGENT RUN`,
/// `await/f` takes `all|any SECONDS|- RUN...`, `ask/f` a question.
pub(crate) fn task_tools(world: &mut World) -> Handle {
    let handle = Handle::default();
    let controllers = handle.clone();
    let spawn = ClosureTool::new("f", repeatable(), move |call, _| {
        let controller = controllers.get();
        async move {
            let text = call.payload.trim_matches('"').to_owned();
            let (agent, id) = text.split_once(' ').expect("agent and run");
            let mut wanted = beneath(&call.run_id, id, agent);
            wanted.idempotency_key = Some(call.tool_call_id.clone());
            match controller.at(&Scope::tenant("default")).spawn(&wanted).await {
                Ok(run) => value(&format!("\"{}\"", run.id())),
                Err(error) => fails(error.code(), &error.to_string()),
            }
        }
    });
    world.tool("spawn", InterruptionPolicy::Fail, spawn);
    let wait = ClosureTool::new("f", repeatable(), |call, _| async move {
        Ok(Ok(ToolReply::Park(parse_wait(call.payload.trim_matches('"')))))
    });
    world.tool("await", InterruptionPolicy::Fail, wait);
    let ask = ClosureTool::new("f", repeatable(), |call, _| async move {
        let question = call.payload.trim_matches('"').to_owned();
        Ok(Ok(ToolReply::Park(ToolWait::Person { question, timeout: None })))
    });
    world.tool("ask", InterruptionPolicy::Fail, ask);
    handle
}

fn parse_wait(text: &str) -> ToolWait {
    let mut words = text.split(' ').filter(|word| !word.is_empty());
    let mode = match words.next() {
        Some("any") => WaitMode::Any,
        Some(_) | None => WaitMode::All,
    };
    let timeout = words.next().and_then(|word| word.parse().ok()).map(Duration::from_secs);
    let runs = words.map(|word| RunId::new(word).expect("an id")).collect();
    ToolWait::Runs { runs, mode, timeout, report: RunsReport::List }
}

/// Holds a journal to what every journal keeps: no gaps, epochs one by one, one end, and nothing
/// after it.
pub(crate) fn check_journal(journal: &[EventRecord]) {
    use taskrun_journal::event::Event;
    let mut last_epoch = 0;
    for (index, recorded) in journal.iter().enumerate() {
        assert_eq!(recorded.seq, index as u64 + 1, "a gap");
        if let Event::Started { epoch, .. }
        | Event::Resumed { epoch, .. }
        | Event::Lost { epoch, .. } = recorded.event
        {
            assert_eq!(epoch, last_epoch + 1, "epochs go up by one");
            last_epoch = epoch;
        }
    }
    assert_eq!(count(journal, "queued"), 1);
    assert_eq!(count(journal, "finished"), 1);
    assert_eq!(journal.last().map(|last| last.event.kind()), Some("finished"));
}

/// The number of events of a kind in a journal.
pub(crate) fn count(journal: &[EventRecord], kind: &str) -> usize {
    journal.iter().filter(|recorded| recorded.event.kind() == kind).count()
}
