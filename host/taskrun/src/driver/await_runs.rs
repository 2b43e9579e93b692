//! A planner that waits for runs: one tool call that is parked from its beginning.

use std::collections::BTreeSet;

use taskrun_journal::event::{Event, Parked, Refusal};
use taskrun_journal::ids::RunId;
use taskrun_journal::operation::Operation;
use taskrun_journal::plan::ToolRequest;
use taskrun_policy::{Capability, Use};

use super::plan::{CALLS_PER_TURN_MAX, NAME_BYTES_MAX, call_id};
use super::settle::{NO_RUNS, failure, result};
use super::{Driver, Halt, find_beneath};
use crate::ports::planner::RunsWait;

/// Name of the call where the planner gave none.
const CALL_NAME: &str = "controller/wait";

impl Driver {
    /// Records the wait, or why there is none; the planner is told by the call's result.
    pub(super) async fn await_runs(
        &mut self,
        mut pending: Vec<Event>,
        wait: RunsWait,
        call: ToolRequest,
    ) -> Result<(), Halt> {
        if let Err(denied) = self.rules.decide(&Use::Operation(Operation::Wait)) {
            pending.push(Event::PolicyDecision {
                capability: Capability::Controller.to_string(),
                subject: Operation::Wait.to_string(),
                rule: denied.rule,
                decided: None,
            });
            let outcome = failure("denied", &denied.for_guest);
            pending.push(result(&call, outcome, Some(Refusal::Denied)));
        } else if wait.runs.is_empty() {
            pending.push(result(&call, failure("invalid", NO_RUNS), None));
        } else {
            let until = wait.timeout.map(|timeout| self.env.clock.now().plus(timeout));
            pending.push(match self.all_beneath(&wait.runs).await? {
                Ok(runs) => {
                    let call = super::step::tool_use(&call);
                    Event::ToolCallParked {
                        tool_call_id: call.tool_call_id,
                        name: call.name,
                        payload: call.payload,
                        waits: Parked::Runs { runs, mode: wait.mode, until },
                    }
                }
                Err(id) => {
                    let outcome = failure("not-found", &format!("run not found: {id}"));
                    result(&call, outcome, None)
                }
            });
        }
        self.write(pending).await
    }

    /// The runs, each once, or the first that is not beneath this one.
    async fn all_beneath(&self, ids: &[String]) -> Result<Result<Vec<RunId>, String>, Halt> {
        let (mut runs, mut seen) = (Vec::with_capacity(ids.len()), BTreeSet::new());
        for id in ids.iter().filter(|id| seen.insert(id.as_str())) {
            let Ok(run_id) = RunId::new(id) else { return Ok(Err(id.clone())) };
            let above = &self.journal.run().spec;
            let found = find_beneath(&*self.env.store, above, &run_id).await;
            match found.map_err(Halt::Read)? {
                Some(run) => runs.push(run.id().clone()),
                None => return Ok(Err(id.clone())),
            }
        }
        Ok(Ok(runs))
    }
}

/// Checks the call of a planner that waits for runs, and gives the wait one where it has none.
pub(super) fn check(wait: &mut RunsWait, run: &str, step: (u32, u32)) -> Result<(), String> {
    let wanted = wait.runs.len();
    if wanted > CALLS_PER_TURN_MAX {
        return Err(format!(
            "the planner waits for {wanted} runs; {CALLS_PER_TURN_MAX} is the most"
        ));
    }
    let call = wait.call.get_or_insert_with(|| ToolRequest {
        name: CALL_NAME.to_owned(),
        payload: serde_json::json!({ "runs": wait.runs, "mode": wait.mode }).to_string(),
        tool_call_id: None,
        parent_tool_call_id: None,
    });
    let given = call.tool_call_id.as_ref().map_or(0, String::len);
    if call.name.len().max(given) > NAME_BYTES_MAX {
        return Err(format!(
            "the planner used a tool's name or call id of more than {NAME_BYTES_MAX} bytes"
        ));
    }
    super::plan::json("what the call is given that the planner's wait answers", &call.payload)?;
    let id = call.tool_call_id.take().filter(|id| !id.is_empty());
    call.tool_call_id = Some(id.unwrap_or_else(|| call_id(run, step, &call.name, 0)));
    Ok(())
}
