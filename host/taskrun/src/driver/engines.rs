//! Asking the policy engines: before a plan step, and before the calls it decided on.

use std::sync::Arc;

use taskrun_journal::event::Event;
use taskrun_journal::message::{Labels, RetryHint};
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::ruling::{Phase, ToolRuling};
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::least;

use super::allowance::{Allowance, TreeSnapshot};
use super::parts::Parts;
use super::recorder::Recorder;
use super::stop::Halt;
use super::time_up::TimeUp;
use super::work::Work;
use crate::gate::engines::EngineRuling;
use crate::ports::policy_engine::PolicyInput;
use crate::scope::{Remaining, Tape};

/// The traces of earlier turns that engines are shown.
struct Shown {
    hints: Vec<RetryHint>,
    labels: Labels,
}

impl Shown {
    /// Those that a turn which comes next, or its calls, are decided about with.
    fn now(work: &Work) -> Self {
        Self { hints: work.hints(), labels: work.labels.clone() }
    }
}

/// Decides about the tools that the next plan step sees, and records that where it is something
/// else than before. A step that was begun by another host is shown what it was shown there, but
/// for what the rules of now do not give it.
pub(super) async fn decide_tools(
    parts: &Parts,
    recorder: &mut Recorder,
    (tape, tree): (Option<&Tape>, &TreeSnapshot),
) -> Result<(), Halt> {
    let again = tape.is_some_and(|tape| !tape.is_over() && !tape.has_other_rules());
    if again || parts.code.guard.engines.is_empty() {
        return Ok(());
    }
    let turn = recorder.run().state.turns + 1;
    let shown = Shown::now(recorder.work());
    let said = ask((parts, recorder), (Phase::Plan, turn, tree), Vec::new(), shown).await?;
    if said.decided == recorder.work().decided {
        return Ok(());
    }
    recorder.record(vec![recorded(turn, said)]).await
}

/// Decides about the calls of a turn; adds to `pending` what is recorded of it.
pub(super) async fn decide_calls(
    (parts, recorder): (&Parts, &mut Recorder),
    turn: u32,
    requests: &[ToolRequest],
    pending: &mut Vec<Event>,
) -> Result<ToolRuling, Halt> {
    if parts.code.guard.engines.is_empty() {
        return Ok(ToolRuling::everything(Phase::Calls));
    }
    let shown = Shown::now(recorder.work());
    let when = (Phase::Calls, turn, &TreeSnapshot::default());
    let said = ask((parts, recorder), when, requests.to_vec(), shown).await?;
    let decided = said.decided.clone();
    if says_more(&decided, &recorder.work().decided, requests) {
        pending.push(recorded(turn, said));
    }
    Ok(decided)
}

/// Decides about calls of the last turn that have not begun, where engines of other rules than those
/// of now did before; adds to `pending` what is recorded of it. Calls that have begun count.
pub(super) async fn decide_again(
    (parts, recorder): (&Parts, &mut Recorder),
    requests: &[ToolRequest],
    pending: &mut Vec<Event>,
) -> Result<ToolRuling, Halt> {
    if parts.code.guard.engines.is_empty() {
        return Ok(ToolRuling::everything(Phase::Calls));
    }
    let turn = recorder.run().state.turns;
    // Hints of calls of this turn, and labels of the decision about them, are for the next one.
    let shown = Shown { hints: Vec::new(), labels: recorder.work().labels_of_turn().clone() };
    let when = (Phase::Calls, turn, &TreeSnapshot::default());
    let said = ask((parts, recorder), when, requests.to_vec(), shown).await?;
    let mut decided = said.decided.clone();
    let work = recorder.work();
    if says_more(&decided, &work.decided, requests) && !work.is_on_record(&decided) {
        pending.push(recorded(turn, said));
    }
    decided.tool_calls = decided.tool_calls.map(|cap| cap.saturating_sub(work.begun_calls()));
    Ok(decided)
}

/// A request to stop the run waits for them: their time is bounded, and a call that nobody
/// decided about must not begin.
async fn ask(
    (parts, recorder): (&Parts, &mut Recorder),
    (phase, turn, tree): (Phase, u32, &TreeSnapshot),
    requested: Vec<ToolRequest>,
    Shown { hints, labels }: Shown,
) -> Result<EngineRuling, Halt> {
    let (code, machine) = (Arc::clone(&parts.code), Arc::clone(&parts.env.machine));
    let input = PolicyInput {
        phase,
        run: parts.context(recorder.run(), turn),
        tools: Arc::clone(code.tools.specs()),
        hints,
        remaining: Allowance::new(parts, recorder, tree).remaining(turn, false).await?,
        requested,
        labels,
    };
    let mut time_up = TimeUp::never(Arc::clone(&parts.env.clock));
    recorder.attend(&mut time_up, async move { code.guard.decide(&*machine, &input).await }).await
}

/// The tools that a plan step is shown.
pub(super) fn tools_left(parts: &Parts, work: &Work) -> Arc<Vec<ToolSpec>> {
    let (all, decided) = (parts.code.tools.specs(), &work.decided);
    let is_own = |name: &str| parts.code.tools.get(name).is_some_and(|tool| tool.is_own);
    let left = |tool: &&ToolSpec| decided.leaves(&tool.name) || is_own(&tool.name);
    if all.iter().all(|tool| left(&tool)) {
        return Arc::clone(all);
    }
    Arc::new(all.iter().filter(left).cloned().collect())
}

/// The rest for a plan step, as far as the policy engines leave it to the planner.
pub(super) async fn remaining_of_step(
    parts: &Parts,
    recorder: &Recorder,
    (turn, last): (u32, bool),
    tree: &TreeSnapshot,
) -> Result<Remaining, Halt> {
    let remaining = Allowance::new(parts, recorder, tree).remaining(turn, last).await?;
    let tool_calls = least(remaining.tool_calls, recorder.work().decided.tool_calls);
    Ok(Remaining { tool_calls, ..remaining })
}

/// Tells if a decision about calls says something that the one before the plan step did not: it
/// refuses one of them, or has something to be kept.
fn says_more(calls: &ToolRuling, plan: &ToolRuling, requests: &[ToolRequest]) -> bool {
    let refuses = requests.iter().any(|request| !calls.leaves(&request.name))
        || calls.tool_calls.is_some_and(|cap| (cap as usize) < requests.len());
    let same = ToolRuling { before: plan.before, ..calls.clone() } == *plan;
    !same && (refuses || !calls.labels.is_empty() || calls.metadata != plan.metadata)
}

fn recorded(turn: u32, EngineRuling { decided, by }: EngineRuling) -> Event {
    Event::PolicyDecision {
        capability: "tools".to_owned(),
        subject: format!("turn {turn}"),
        rule: by,
        told: None,
        decided: Some(Box::new(decided)),
    }
}
