//! An agent that begins an answer of its model, reads the first part of it, and forgets it: nothing
//! drops its handle.

use taskrun_guest::{
    agent::{Agent, PlanInput, PlanResult, PlanResumeInput, PlannerError},
    model::{self, CompletionRequest, ModelError},
};

struct Forgetful;

taskrun_guest::export_agent!(Forgetful);

impl Agent for Forgetful {
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        let begun = model::stream(&CompletionRequest::new(input.messages)).map_err(failed)?;
        let read = begun.next(1).map_err(failed)?;
        std::mem::forget(begun);
        Ok(PlanResult::final_text(format!("{} read", read.len())))
    }

    fn resume(_: PlanResumeInput) -> Result<PlanResult, PlannerError> {
        Err(PlannerError::new("it calls no tools and asks nobody"))
    }
}

fn failed(error: ModelError) -> PlannerError {
    PlannerError::new(error.text()).code(error.code())
}
