//! An agent that has a prompt of the policy rendered and answers with it. The first word of its
//! task is the prompt's id; the rest is given to the template as `question`, which is
//! `nothing in particular` where there is no more.

use serde_json::json;
use taskrun_guest::{
    agent::{self, Agent, PlanInput, PlanResult, PlanResumeInput, PlannerError},
    prompts,
};

/// The question of a task that has none.
const NO_QUESTION: &str = "nothing in particular";

struct Briefer;

taskrun_guest::export_agent!(Briefer);

impl Agent for Briefer {
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        let task = agent::task(&input.messages).unwrap_or_default();
        let (id, question) = task.split_once(' ').unwrap_or((&task, NO_QUESTION));
        let data = json!({ "question": question }).to_string();
        let text = prompts::render(id, &data)
            .map_err(|error| PlannerError::new(error.text()).code(error.code()))?;
        Ok(PlanResult::final_text(text))
    }

    fn resume(_: PlanResumeInput) -> Result<PlanResult, PlannerError> {
        Err(PlannerError::new("it calls no tools and asks nobody"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_guest::{
        agent::{Decision, Message, Role},
        native, run,
    };

    fn start(task: &str) -> Result<PlanResult, PlannerError> {
        Briefer::start(PlanInput {
            messages: vec![Message::text(Role::User, task)],
            run: run::context(),
            reminders: Vec::new(),
        })
    }

    #[test]
    fn the_answer_is_the_prompt() {
        native::reset();
        native::host(|host| host.prompts.insert("brief".into(), "Be brief.".into()));
        let Decision::FinalResponse(last) = start("brief why?").expect("a decision").decision
        else {
            panic!("not final")
        };
        assert_eq!(last.message.plain_text(), "Be brief.");
        assert_eq!(start("other").expect_err("it fails").code.as_deref(), Some("unknown"));
    }
}
