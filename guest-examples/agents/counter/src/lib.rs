use taskrun_guest::agent::{
    self, Agent, PlanInput, PlanResult, PlanResumeInput, PlannerError, ToolOutcome, ToolRequest,
};

struct Counter;

taskrun_guest::export_agent!(Counter);

impl Agent for Counter {
    /// The first step asks for a call. The host makes it and asks again.
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        let task = agent::task(&input.messages).unwrap_or_default();
        let arguments = serde_json::json!({ "text": task }).to_string();
        Ok(PlanResult::tool_calls(vec![ToolRequest::new("words/count", arguments)]))
    }

    /// A later step is shown every call of the run with what came of it.
    fn resume(input: PlanResumeInput) -> Result<PlanResult, PlannerError> {
        match input.tool_outputs.last().map(|call| &call.outcome) {
            Some(ToolOutcome::Value(number)) => {
                Ok(PlanResult::final_text(format!("{number} words")))
            }
            Some(ToolOutcome::Failure(failure)) => Err(PlannerError::new(&failure.error.message)),
            None => Err(PlannerError::new("nothing was counted")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_guest::{
        agent::{Decision, Message, Role},
        run,
    };

    #[test]
    fn it_asks_for_one_call_with_its_task() {
        let input = PlanInput {
            messages: vec![Message::text(Role::User, "one two")],
            run: run::context(),
            reminders: Vec::new(),
        };
        let Decision::ToolCalls(calls) = Counter::start(input).expect("a decision").decision else {
            panic!("no calls")
        };
        let calls: Vec<_> = calls.iter().map(|call| (&call.name[..], &call.payload[..])).collect();
        assert_eq!(calls, [("words/count", r#"{"text":"one two"}"#)]);
    }
}
