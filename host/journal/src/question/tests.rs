//! Answers held to what was asked.

use super::*;

fn item(what: AwaitItem) -> Item {
    Item { what, tool_call_id: None, until: None, default: None }
}

fn clarification() -> Item {
    item(AwaitItem::Clarification {
        id: "c".into(),
        question: "which?".into(),
        missing_fields: Vec::new(),
        restrict_to_tool: None,
        example_input: None,
        clarifying_prompt: None,
    })
}

fn form() -> Item {
    let question = |id: &str, options: &[&str], allow_multiple| Question {
        id: id.into(),
        prompt: id.into(),
        options: options.iter().map(|o| ((*o).to_owned(), (*o).to_owned())).collect(),
        allow_multiple,
    };
    item(AwaitItem::Questions {
        id: "f".into(),
        tool_name: "t/ask".into(),
        tool_call_id: "1".into(),
        payload: "{}".into(),
        title: None,
        questions: vec![question("one", &["a", "b"], false), question("many", &["x", "y"], true)],
    })
}

fn choices(given: &[(&str, &[&str])]) -> Answer {
    let texts = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
    Answer::Choices(given.iter().map(|(id, all)| ((*id).to_owned(), texts(all))).collect())
}

fn external() -> Item {
    let call = |id: &str| ExternalTool {
        name: "x/y".into(),
        tool_call_id: id.into(),
        payload: "{}".into(),
    };
    item(AwaitItem::ExternalTools { id: "e".into(), items: vec![call("1"), call("2")] })
}

fn results(ids: &[&str]) -> Answer {
    let value = |id: &&str| ((*id).to_owned(), ToolOutcome::Value("1".into()).into());
    Answer::Results(ids.iter().map(value).collect())
}

#[test]
fn an_answer_fits_what_was_asked_or_is_refused_with_the_reason() {
    let long = "x".repeat(ANSWER_BYTES_MAX + 1);
    let table: &[(Item, Answer, Option<&str>)] = &[
        (clarification(), Answer::Text("this".into()), None),
        (clarification(), Answer::Text("  ".into()), Some("the answer is empty")),
        (clarification(), Answer::Text(long), Some("the answer has more than 65536 bytes")),
        (
            clarification(),
            Answer::Confirmed(true),
            Some("a clarification needs another kind of answer"),
        ),
        (clarification(), Answer::TimedOut, Some("a clarification can only be answered")),
        (form(), choices(&[("one", &["a"]), ("many", &["x", "y"])]), None),
        (form(), choices(&[("one", &["a"])]), Some("question \"many\" is not answered")),
        (
            form(),
            choices(&[("one", &["a", "b"]), ("many", &["x"])]),
            Some("question \"one\" takes one answer"),
        ),
        (
            form(),
            choices(&[("one", &["c"]), ("many", &["x"])]),
            Some("question \"one\" has no option \"c\"; it has: a, b"),
        ),
        (form(), choices(&[("two", &["a"])]), Some("there is no question \"two\"")),
        (external(), results(&["1", "2"]), None),
        (external(), results(&["1", "3"]), Some("results are needed for 1, 2, given were 1, 3")),
    ];
    for (item, answer, refusal) in table {
        let refused = item.check(answer).err().map(|error| error.to_string());
        assert_eq!(refused.as_deref(), *refusal, "{answer:?}");
    }
}
