//! An agent that answers with what is remembered: the facts that have words of its task, a line
//! each. A task `key: NAME` asks for the fact of that name.

use taskrun_guest::{
    agent::{self, Agent, PlanInput, PlanResult, PlanResumeInput, PlannerError},
    memory::{self, Fact, MemoryError},
};

/// Most facts of an answer.
const FACTS_MAX: u32 = 10;

struct Recaller;

taskrun_guest::export_agent!(Recaller);

impl Agent for Recaller {
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        let task = agent::task(&input.messages).unwrap_or_default();
        let facts = match task.strip_prefix("key: ") {
            Some(key) => memory::get(key.trim()).map(|fact| fact.into_iter().collect()),
            None => memory::search(&task, FACTS_MAX),
        };
        let facts = facts.map_err(|error| failed(&error))?;
        Ok(PlanResult::final_text(answer(&facts)))
    }

    fn resume(_: PlanResumeInput) -> Result<PlanResult, PlannerError> {
        Err(PlannerError::new("a recaller calls no tools"))
    }
}

fn answer(facts: &[Fact]) -> String {
    if facts.is_empty() {
        return "nothing is remembered".to_owned();
    }
    let lines: Vec<String> =
        facts.iter().map(|fact| format!("{}: {}", fact.key, fact.text)).collect();
    lines.join("\n")
}

fn failed(error: &MemoryError) -> PlannerError {
    PlannerError::new(error.text()).code(error.code())
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_guest::{
        agent::Decision,
        native, run,
        types::{Message, Role},
    };

    fn answer_to(task: &str) -> String {
        let messages = vec![Message::text(Role::User, task)];
        let input = PlanInput { messages, run: run::context(), reminders: Vec::new() };
        let result = Recaller::start(input).expect("a decision");
        let Decision::FinalResponse(last) = result.decision else { panic!("not final") };
        last.message.plain_text()
    }

    #[test]
    fn it_answers_with_the_facts_that_have_words_of_the_task() {
        native::reset();
        assert_eq!(answer_to("when do we deploy?"), "nothing is remembered");
        native::host(|host| {
            host.facts.push(Fact {
                key: "deploy".into(),
                text: "on Friday".into(),
                labels: Vec::new(),
                written_at: 1,
            });
        });
        assert_eq!(answer_to("deploy"), "deploy: on Friday");
        assert_eq!(answer_to("key: deploy"), "deploy: on Friday");
        assert_eq!(answer_to("key: other"), "nothing is remembered");
    }
}
