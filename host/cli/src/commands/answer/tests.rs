//! Words that become answers, and those that do not.

use taskrun_journal::question::ExternalTool;

use super::*;

fn item(what: AwaitItem) -> Item {
    Item { what, tool_call_id: None, until: None, default: None }
}

fn clarification() -> Item {
    item(AwaitItem::Clarification {
        id: "c".to_owned(),
        question: "which?".to_owned(),
        missing_fields: Vec::new(),
        restrict_to_tool: None,
        example_input: None,
        clarifying_prompt: None,
    })
}

fn named(id: &str) -> Item {
    let mut item = clarification();
    if let AwaitItem::Clarification { id: own, .. } = &mut item.what {
        id.clone_into(own);
    }
    item
}

#[test]
fn the_command_that_answers_has_the_id_of_a_guest_as_one_word() {
    let run = RunId::new("r").expect("an id");
    let command = |id: &str, answer: &str| answering(&run, Some(&named(id)), answer);
    for (id, answer, told) in [
        ("which", "TEXT", "taskrun answer r which TEXT"),
        ("$(touch PWN)", "TEXT", "taskrun answer r '$(touch PWN)' TEXT"),
        ("w; touch PWN", "--accept", "taskrun answer r 'w; touch PWN' --accept"),
        ("q'x", "@FILE", "taskrun answer r \"q'x\" @FILE"),
        ("-x", "TEXT", "taskrun answer r -- -x TEXT"),
        ("-x", "--accept", "taskrun answer r --accept -- -x"),
    ] {
        assert_eq!(command(id, answer).as_deref(), Some(told));
    }
    assert_eq!(answering(&run, None, "TEXT").as_deref(), Some("taskrun answer r TEXT"));
    assert_eq!(command("a\nb", "TEXT"), None);
    assert_eq!(from_file(&run, &named("a\u{202e}b")), "taskrun inbox -o json");
}

fn form() -> Item {
    item(AwaitItem::Questions {
        id: "f".to_owned(),
        tool_name: "t/ask".to_owned(),
        tool_call_id: "1".to_owned(),
        payload: "{}".to_owned(),
        title: None,
        questions: vec![Question {
            id: "colour".to_owned(),
            prompt: "Which?".to_owned(),
            options: vec![("r".to_owned(), "red".to_owned())],
            allow_multiple: true,
        }],
    })
}

fn external() -> Item {
    let call = ExternalTool {
        name: "x/y".to_owned(),
        tool_call_id: "1".to_owned(),
        payload: "{}".to_owned(),
    };
    item(AwaitItem::ExternalTools { id: "e".to_owned(), items: vec![call] })
}

fn confirmation() -> Item {
    item(AwaitItem::Confirmation {
        id: "ok".to_owned(),
        question: "again?".to_owned(),
        tool_name: "t/f".to_owned(),
        tool_call_id: "1".to_owned(),
        payload: "{}".to_owned(),
        digest: None,
        policy: None,
    })
}

fn args(words: &[&str]) -> AnswerArgs {
    let words = words.iter().map(|word| (*word).to_owned()).collect();
    AnswerArgs {
        run: "r".to_owned(),
        words,
        accept: false,
        decline: false,
        for_run: false,
        for_session: false,
        always: false,
        expires: None,
    }
}

fn read(words: &[&str], item: &Item) -> Result<Answer, String> {
    let args = args(words);
    let asked = [item.clone()];
    let words = AnswerWords::split(&args, &asked);
    given(&args, words.answer, item).map_err(|failure| failure.message)
}

#[test]
fn the_item_may_be_left_out_and_is_told_from_the_answer() {
    let asked = [clarification()];
    let table: &[(&[&str], Option<&str>, usize)] = &[
        (&[], None, 0),
        (&["c"], None, 1),
        (&["c", "this one"], Some("c"), 1),
        (&["nosuch", "this one"], Some("nosuch"), 1),
        (&["a=1", "b=2"], None, 2),
        (&["c", "a=1", "b=2"], Some("c"), 2),
    ];
    for (words, item, left) in table {
        let args = args(words);
        let split = AnswerWords::split(&args, &asked);
        assert_eq!((split.item, split.answer.len()), (*item, *left), "{words:?}");
    }
    let accepted = AnswerArgs { accept: true, ..args(&["ok"]) };
    let split = AnswerWords::split(&accepted, &[confirmation()]);
    assert_eq!((split.item, split.answer.len()), (Some("ok"), 0));
}

#[test]
fn words_become_the_answer_that_the_item_wants() {
    let text = |text: &str| Ok(Answer::Text(text.to_owned()));
    assert_eq!(read(&["a=b"], &clarification()), text("a=b"));
    assert_eq!(read(&["c", "a", "b"], &clarification()), text("a b"));
    let chosen = |values: &[&str]| {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        Ok(Answer::Choices(BTreeMap::from([("colour".to_owned(), values)])))
    };
    assert_eq!(read(&["colour=r"], &form()), chosen(&["r"]));
    assert_eq!(read(&["colour=r", "colour=g"], &form()), chosen(&["r", "g"]));
    assert_eq!(read(&[r#"{"colour": ["r", "g"]}"#], &form()), chosen(&["r", "g"]));
    assert_eq!(read(&[r#"{"colour": 3}"#], &form()), chosen(&["3"]));
    let result = |outcome: ToolOutcome| {
        Ok(Answer::Results(BTreeMap::from([("1".to_owned(), outcome.into())])))
    };
    let value = |json: &str| result(ToolOutcome::Value(json.to_owned()));
    assert_eq!(read(&[r#"{"1": {"a": 2}}"#], &external()), value(r#"{"a":2}"#));
    assert_eq!(read(&["1=[3]"], &external()), value("[3]"));
    assert_eq!(read(&["1=plain"], &external()), value("\"plain\""));
    assert_eq!(read(&[r#"{"1": "[3]"}"#], &external()), value("\"[3]\""));
    let error = ToolError { code: None, message: "gone".to_owned(), causes: Vec::new() };
    let failed = ToolOutcome::Failure(ToolFailure { error, retry_hint: None });
    assert_eq!(read(&[r#"{"1": {"failure": "gone"}}"#], &external()), result(failed));
}

#[test]
fn ls_29_a_result_from_outside_that_is_a_failure_too_is_refused() {
    let both = r#"{"1": {"result": 2, "failure": "gone"}}"#;
    let refused = read(&[both], &external());
    let expected = "a call has a result or a failure, and not both";
    assert_eq!(refused.err().as_deref(), Some(expected));
    assert_eq!(read(&["1={\"result\": 2}"], &external()).map(|_| ()), Ok(()), "an object");
}

#[test]
fn l_065_a_result_from_outside_may_say_that_it_is_a_part() {
    let part = r#"{"1": {"result": [2], "bounds": {"returned": 1, "total": 9, "truncated": true,
        "continuation": "{\"page\":2}"}}}"#;
    let Ok(Answer::Results(results)) = read(&[part], &external()) else { panic!("results") };
    assert_eq!(results["1"].outcome, ToolOutcome::Value("[2]".to_owned()));
    let bounds = results["1"].bounds.as_ref().expect("bounds");
    assert_eq!((bounds.returned, bounds.total), (1, Some(9)));
    assert_eq!(bounds.continuation.as_deref(), Some("{\"page\":2}"));
    let wrong = r#"{"1": {"result": 2, "bounds": {"truncated": 1}}}"#;
    let refused = read(&[wrong], &external()).err().unwrap_or_default();
    assert!(refused.contains("the bounds of a result cannot be read"), "{refused}");
}

#[test]
fn json_may_be_longer_than_the_answer_that_it_is() {
    let blanks = " ".repeat(ANSWER_BYTES_MAX);
    let chosen = read(&["{\"colour\": \"r\"}"], &form());
    assert_eq!(read(&[&format!("{{\"colour\": {blanks}\"r\"}}")], &form()), chosen);
    let longer = format!("{{{}}}", " ".repeat(INPUT_BYTES_MAX));
    let refused = read(&[&longer], &form()).err().unwrap_or_default();
    assert_eq!(refused, "the answer has more than 524288 bytes");
}

#[test]
fn what_cannot_be_read_as_an_answer_is_refused_before_anything_is_asked() {
    let table: &[(&[&str], Item, &str)] = &[
        (&[], clarification(), "no answer is given"),
        (&["red"], form(), "the answer is neither KEY=VALUE nor a JSON object"),
        (&["f", "red", "green"], form(), "each word of the answer is to be KEY=VALUE"),
        (&["[1]"], external(), "the answer is neither KEY=VALUE nor a JSON object"),
        (&["yes"], confirmation(), "a confirmation takes --accept or --decline"),
    ];
    for (words, item, refusal) in table {
        assert_eq!(read(words, item).as_ref().err().map(String::as_str), Some(*refusal));
    }
}

#[test]
fn c_033_what_widens_an_answer_stands_beside_one_that_it_can_widen() {
    let widened = AnswerArgs { always: true, ..args(&[]) };
    let refused = |args: &AnswerArgs| {
        given(args, &[], &confirmation()).map_err(|failure| failure.message).err()
    };
    let expected = "--always is for --accept and --decline";
    assert_eq!(refused(&widened).as_deref(), Some(expected));
    let expires = Some(std::time::Duration::from_secs(60));
    let timed = AnswerArgs { accept: true, expires, ..args(&[]) };
    let expected = "--expires is for --for-session and --always";
    assert_eq!(refused(&timed).as_deref(), Some(expected));
    let whole = AnswerArgs { decline: true, expires, ..widened };
    assert_eq!(given(&whole, &[], &confirmation()).ok(), Some(Answer::ConfirmedForRun(false)));
}
