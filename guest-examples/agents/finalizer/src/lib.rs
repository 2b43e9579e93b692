//! An agent that answers with its task and counts the answer's words when the run has ended.
//!
//! Its metadata is `words`, `status` and `stop_reason`. A run whose metadata has a `finalizer`, or
//! whose answer is one of these words, has another kind of finalizer:
//!
//! | word | the finalizer |
//! | --- | --- |
//! | `trap` | panics |
//! | `spin` | computes for ever |
//! | `error` | returns an error |
//! | `flood` | names more keys than it may |

use std::hint::black_box;
use taskrun_guest::{
    agent::{
        Agent, FinalizeInput, Finalizer, FinalizerError, PlanInput, PlanResult, PlanResumeInput,
        PlannerError, task,
    },
    types::Label,
};

/// More than the contract allows.
const KEYS_TOO_MANY: u32 = 65;

struct Counter;

taskrun_guest::export_agent!(Counter, finalizer);

impl Agent for Counter {
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        Ok(PlanResult::final_text(task(&input.messages).unwrap_or_default()))
    }

    fn resume(_: PlanResumeInput) -> Result<PlanResult, PlannerError> {
        Err(PlannerError::new("this agent calls no tools"))
    }
}

impl Finalizer for Counter {
    fn finalize(input: FinalizeInput) -> Result<Vec<Label>, FinalizerError> {
        let text = input.result.unwrap_or_default();
        let asked = input.metadata.into_iter().find(|(key, _)| key == "finalizer");
        match asked.map_or(text.clone(), |(_, word)| word).as_str() {
            "trap" => panic!("the finalizer panics on request"),
            "spin" => loop {
                black_box(());
            },
            "error" => Err(FinalizerError::new("nothing to add, on request").code("on-request")),
            "flood" => Ok((0..KEYS_TOO_MANY).map(|n| label(&n.to_string(), "")).collect()),
            _ => Ok(vec![
                label("words", text.split_whitespace().count().to_string()),
                label("status", input.status.name()),
                label("stop_reason", input.stop_reason),
            ]),
        }
    }
}

fn label(key: &str, value: impl Into<String>) -> Label {
    (key.to_owned(), value.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_guest::{agent::EndStatus, native};

    #[test]
    fn the_answers_words_are_counted() {
        let added = Counter::finalize(native::finalize_input("two  words"));
        let expected = [("words", "2"), ("status", "completed"), ("stop_reason", "final_response")];
        assert_eq!(added, Ok(expected.map(|(key, value)| label(key, value)).to_vec()));
    }

    #[test]
    fn a_run_that_never_began_has_none() {
        let input = FinalizeInput {
            status: EndStatus::Canceled,
            stop_reason: "canceled_by_owner".into(),
            result: None,
            ..native::finalize_input("")
        };
        let added = Counter::finalize(input).expect("metadata");
        assert!(
            added.contains(&label("words", "0")) && added.contains(&label("status", "canceled"))
        );
    }

    #[test]
    fn metadata_chooses_before_the_answer_does() {
        let mut input = native::finalize_input("trap");
        input.metadata.push(label("finalizer", "error"));
        let error = Counter::finalize(input).expect_err("an error on request");
        assert_eq!(error.code.as_deref(), Some("on-request"));
    }
}
