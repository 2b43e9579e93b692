//! The size of an answer.

use serde::Serialize;

use super::{Answer, ExternalResult};
use crate::tool::ToolOutcome;

impl Answer {
    /// Bytes of what it becomes in the conversation: of a text its own, without the quotes and
    /// escapes that it has in JSON, of a form those of the JSON that its call is given, and of
    /// calls outside those of their ids and results.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::Refused(text) => text.len(),
            Self::Choices(choices) => json_bytes(choices),
            Self::Results(results) => {
                results.iter().map(|(id, result)| id.len() + result.bytes()).sum()
            }
            Self::Confirmed(_) | Self::ConfirmedForRun(_) | Self::TimedOut => 0,
        }
    }
}

impl ExternalResult {
    /// A value is JSON already.
    fn bytes(&self) -> usize {
        let outcome = match &self.outcome {
            ToolOutcome::Value(value) => value.len(),
            ToolOutcome::Failure(failure) => json_bytes(failure),
        };
        outcome + self.bounds.as_ref().map_or(0, json_bytes)
    }
}

fn json_bytes(data: &impl Serialize) -> usize {
    serde_json::to_string(data).expect("plain data").len()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::message::{Bounds, ToolError};
    use crate::question::{ANSWER_BYTES_MAX, AwaitItem, ExternalTool, Item, Question};
    use crate::tool::ToolFailure;

    fn item(what: AwaitItem) -> Item {
        Item { what, tool_call_id: None, until: None, default: None }
    }

    /// Fails unless an answer of as many bytes as there may be is taken, and one more is not.
    fn has_its_bound(item: &Item, answer: impl Fn(usize) -> Answer, beside: usize) {
        let most = ANSWER_BYTES_MAX - beside;
        assert_eq!(item.check(&answer(most)), Ok(()));
        let refused = item.check(&answer(most + 1)).expect_err("one byte more");
        assert_eq!(refused.to_string(), "the answer has more than 65536 bytes");
    }

    #[test]
    fn a_text_counts_as_it_is_and_not_as_json_writes_it() {
        let question = item(AwaitItem::Clarification {
            id: "c".to_owned(),
            question: "which?".to_owned(),
            missing_fields: Vec::new(),
            restrict_to_tool: None,
            example_input: None,
            clarifying_prompt: None,
        });
        for piece in ["x", "\"", "\u{1}"] {
            has_its_bound(&question, |bytes| Answer::Text(piece.repeat(bytes)), 0);
        }
    }

    #[test]
    fn a_form_counts_as_the_json_that_its_call_is_given() {
        let question = Question {
            id: "q".to_owned(),
            prompt: "?".to_owned(),
            options: Vec::new(),
            allow_multiple: false,
        };
        let form = item(AwaitItem::Questions {
            id: "f".to_owned(),
            tool_name: "t/ask".to_owned(),
            tool_call_id: "1".to_owned(),
            payload: "{}".to_owned(),
            title: None,
            questions: vec![question],
        });
        let answer = |bytes: usize| {
            Answer::Choices(BTreeMap::from([("q".to_owned(), vec!["x".repeat(bytes)])]))
        };
        has_its_bound(&form, answer, r#"{"q":[""]}"#.len());
    }

    #[test]
    fn a_result_from_outside_counts_as_the_json_that_it_is() {
        let call = ExternalTool {
            name: "x/y".to_owned(),
            tool_call_id: "1".to_owned(),
            payload: "{}".to_owned(),
        };
        let calls = item(AwaitItem::ExternalTools { id: "e".to_owned(), items: vec![call] });
        let result =
            |result: ExternalResult| Answer::Results(BTreeMap::from([("1".to_owned(), result)]));
        // What is escaped in the value itself counts so, and is not escaped once more.
        for piece in ["xx", "\\\""] {
            let value =
                |bytes: usize| format!("\"{}{}\"", piece.repeat(bytes / 2), "x".repeat(bytes % 2));
            let answer = |bytes: usize| result(ToolOutcome::Value(value(bytes)).into());
            has_its_bound(&calls, answer, "1".len() + "\"\"".len());
        }
        let error = ToolError::coded("gone", "it is gone");
        let failure = ToolFailure { error, retry_hint: None };
        let failed = result(ToolOutcome::Failure(failure).into());
        let json = r#"{"error":{"code":"gone","message":"it is gone"}}"#;
        assert_eq!(failed.bytes(), "1".len() + json.len());
        let bounds = Bounds {
            returned: 1,
            total: None,
            truncated: false,
            continuation: None,
            refinement: None,
        };
        let part = ExternalResult { bounds: Some(bounds), ..ToolOutcome::Value("1".into()).into() };
        let json = r#"{"returned":1,"truncated":false}"#;
        assert_eq!(result(part).bytes(), "1".len() + "1".len() + json.len());
    }
}
