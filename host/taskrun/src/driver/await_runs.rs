//! A planner that waits for runs: one tool call that is parked from its beginning.

use std::collections::BTreeSet;
use std::time::Duration;

use taskrun_journal::event::{CallWait, Event, Refusal, RunsReport};
use taskrun_journal::ids::RunId;
use taskrun_journal::operation::Operation;
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::run::Run;
use taskrun_journal::store::Store;
use taskrun_policy::{Capability, Use};

use super::descendants::find_visible;
use super::parts::Parts;
use super::recorder::Recorder;
use super::results::{NO_RUNS, failure, result, tool_use};
use super::stop::Halt;
use crate::ports::planner::RunsWait;

/// Records the wait, or why there is none; the planner is told by the call's result.
pub(super) async fn record(
    (parts, recorder): (&Parts, &mut Recorder),
    mut pending: Vec<Event>,
    wait: RunsWait,
    call: ToolRequest,
) -> Result<(), Halt> {
    if let Err(denied) = parts.bounds.rules.rules().decide(&Use::Operation(Operation::Wait)) {
        pending.push(Event::PolicyDecision {
            capability: Capability::Controller.to_string(),
            subject: Operation::Wait.to_string(),
            rule: denied.rule,
            told: None,
            decided: None,
        });
        let outcome = failure("denied", &denied.for_guest);
        pending.push(result(&call, outcome, Some(Refusal::Denied), Duration::ZERO));
    } else if wait.runs.is_empty() {
        pending.push(result(&call, failure("invalid", NO_RUNS), None, Duration::ZERO));
    } else {
        let until = wait.timeout.map(|timeout| parts.env.clock.now().plus(timeout));
        pending.push(
            match all_descendants(&*parts.env.store, recorder.run(), &wait.runs).await? {
                Ok(runs) => {
                    let call = tool_use(&call);
                    Event::ToolCallParked {
                        tool_call_id: call.tool_call_id,
                        name: call.name,
                        payload: call.payload,
                        waits: CallWait::Runs {
                            runs,
                            mode: wait.mode,
                            until,
                            report: RunsReport::List,
                        },
                    }
                }
                Err(id) => {
                    let outcome = failure("not-found", &format!("run not found: {id}"));
                    result(&call, outcome, None, Duration::ZERO)
                }
            },
        );
    }
    recorder.record(pending).await
}

/// The runs, each once, or the first that this one may not see.
async fn all_descendants(
    store: &dyn Store,
    run: &Run,
    ids: &[String],
) -> Result<Result<Vec<RunId>, String>, Halt> {
    let (mut runs, mut seen) = (Vec::with_capacity(ids.len()), BTreeSet::new());
    for id in ids.iter().filter(|id| seen.insert(id.as_str())) {
        let Ok(run_id) = RunId::new(id) else { return Ok(Err(id.clone())) };
        match find_visible(store, &run.spec, &run_id).await.map_err(Halt::Read)? {
            Some(found) => runs.push(found.id().clone()),
            None => return Ok(Err(id.clone())),
        }
    }
    Ok(Ok(runs))
}
