//! An agent whose task names the evil that its first step does.

use std::hint::black_box;
use taskrun_guest::{
    agent::{
        Agent, AwaitRequest, Decision, FinalToolResult, PlanInput, PlanResult, PlanResumeInput,
        PlannerError, ToolOutcome, ToolRequest, task,
    },
    clock, events,
};

struct Evil;

taskrun_guest::export_agent!(Evil);

impl Agent for Evil {
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        let task = task(&input.messages).unwrap_or_default();
        Ok(match task.as_str() {
            "spin" => {
                let mut turns = 0_u64;
                while black_box(true) {
                    turns = black_box(turns.wrapping_add(1));
                }
                PlanResult::final_text("")
            }
            // No cancel that is only asked for ends this.
            "park" => loop {
                if clock::sleep(u64::MAX).is_err() {
                    black_box(());
                }
            },
            "panic" => panic!("the agent panics on request"),
            "grow" => {
                let mut held: Vec<Vec<u8>> = Vec::new();
                loop {
                    held.push(black_box(vec![1; 1 << 20]));
                }
            }
            "flood" => {
                for _ in 0..5_000 {
                    events::assistant_chunk("x");
                    events::planner_thought("y", &[]);
                }
                PlanResult::final_text("flooded")
            }
            // Everything below is against the contract.
            "empty-calls" => PlanResult::tool_calls(Vec::new()),
            "empty-await" => PlanResult::new(Decision::Await(AwaitRequest { items: Vec::new() })),
            "bad-payload" => PlanResult::tool_calls(vec![ToolRequest::new("tool/fn", "{not json")]),
            "bad-name" => PlanResult::tool_calls(vec![ToolRequest::new("../etc\u{7}", "{}")]),
            "same-ids" => {
                let request = ToolRequest::new("tool/fn", "{}").id("same");
                PlanResult::tool_calls(vec![request.clone(), request])
            }
            "many-calls" => {
                PlanResult::tool_calls(vec![ToolRequest::new("tool/fn", "{}"); 100_000])
            }
            // The result of a tool call, from a run that is none.
            "tool-result" => PlanResult::new(Decision::FinalToolResult(FinalToolResult {
                outcome: ToolOutcome::Value("{not json".into()),
                server_data: None,
                bounds: None,
                telemetry: None,
            })),
            other => {
                return Err(PlannerError::new(format!("no evil of the name `{other}`")));
            }
        })
    }

    fn resume(_: PlanResumeInput) -> Result<PlanResult, PlannerError> {
        // After a demand for a last answer this is one more violation.
        Ok(PlanResult::tool_calls(vec![ToolRequest::new("tool/fn", "{}")]))
    }
}
