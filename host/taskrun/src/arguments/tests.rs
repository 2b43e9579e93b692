use super::*;

fn arguments(schema: &str) -> Arc<Arguments> {
    Arc::new(Arguments::new("t/f", schema, &mut Allowance::default()).expect("a schema"))
}

async fn refused(schema: &str, payload: &str) -> ToolFailure {
    let checked = arguments(schema).check(payload, &TurnSteps::default()).await;
    checked.expect_err("they do not fit")
}

const SCHEMA: &str = r#"{"type":"object","required":["a","b"],"properties":{
    "a":{"type":"string"},"b":{"enum":["x","y"]},"c":{"type":"object","properties":{"n":{"type":"integer"}}}}}"#;

#[tokio::test]
async fn l_075_a_hint_names_the_fields_that_are_missing() {
    let failure = refused(SCHEMA, r#"{"c":{"n":"1"}}"#).await;
    let hint = failure.retry_hint.expect("a hint");
    assert_eq!(
        (hint.reason, hint.missing_fields.join(",")),
        (RetryReason::MissingFields, "a,b".into())
    );
    assert_eq!(hint.clarifying_question.as_deref(), Some("What should t/f be given as a, b, c/n?"));
    assert_eq!(hint.example_input.as_deref(), Some(r#"{"a":"...","b":"x"}"#));
    assert_eq!(hint.prior_input.as_deref(), Some(r#"{"c":{"n":"1"}}"#));
    let text = "a is required; b is required; c/n: \"1\" is not of type \"integer\"";
    assert_eq!(hint.message.as_deref(), Some(text));
    assert_eq!(failure.error.message, format!("the arguments of t/f do not fit: {text}"));
}

#[tokio::test]
async fn l_075_a_hint_names_the_fields_of_values_that_are_refused() {
    let failure = refused(SCHEMA, r#"{"a":1,"b":"z","c":{"n":"1"}}"#).await;
    let hint = failure.retry_hint.expect("a hint");
    assert_eq!(hint.reason, RetryReason::InvalidArguments);
    assert_eq!(hint.missing_fields, ["a", "b", "c/n"]);
    let question = "What should t/f be given as a, b (one of: x, y), c/n?";
    assert_eq!(hint.clarifying_question.as_deref(), Some(question));
}

#[tokio::test]
async fn l_076_arguments_that_are_no_json_are_a_malformed_answer_of_the_model() {
    let failure = refused(SCHEMA, r#"{"a":"1","b":"#).await;
    let hint = failure.retry_hint.expect("a hint");
    assert_eq!(hint.reason, RetryReason::MalformedResponse);
    assert_eq!(hint.missing_fields, ["$payload"]);
    let question = "What are the arguments of t/f, as a JSON object?";
    assert_eq!(hint.clarifying_question.as_deref(), Some(question));
    assert_eq!(hint.example_input.as_deref(), Some(r#"{"a":"...","b":"x"}"#));
    assert_eq!(hint.prior_input.as_deref(), Some(r#"{"a":"1","b":"#));
}

#[tokio::test]
async fn case_50_arguments_with_a_key_twice_are_refused() {
    for payload in [r#"{"a":"1","a":"2","b":"x"}"#, r#"{"a":"1","\u0061":"2","b":"x"}"#] {
        let failure = refused(SCHEMA, payload).await;
        assert!(failure.error.message.contains("the key \"a\" stands twice"), "{failure:?}");
        assert_eq!(failure.error.code.as_deref(), Some("invalid-arguments"));
    }
}

#[tokio::test]
async fn what_is_large_is_looked_at_elsewhere_with_the_same_answer() {
    let schema = r#"{"type":"object","properties":{"a":{"items":{"type":"integer"}}}}"#;
    let large = |last: &str| format!("{{\"a\":[{}{last}]}}", "1,".repeat(50_000));
    let steps = TurnSteps::default();
    assert!(arguments(schema).check(&large("2"), &steps).await.is_ok());
    let hint = refused(schema, &large("\"x\"")).await.retry_hint.expect("a hint");
    assert_eq!(hint.missing_fields, ["a/50000"]);
    assert_eq!(hint.prior_input, None);
}

#[tokio::test]
async fn case_52_a_turn_has_so_many_steps_for_large_looks() {
    let schema = r##"{"type":"object","$defs":{"t":{"allOf":[{"items":{"$ref":"#/$defs/t"}},
        {"items":{"$ref":"#/$defs/t"}}]}},"properties":{"a":{"$ref":"#/$defs/t"}}}"##;
    let payload = format!("{{\"a\":{}{}}}", "[".repeat(60), "]".repeat(60));
    let (arguments, steps) = (arguments(schema), TurnSteps::default());
    for _ in 0..4 {
        let failure = arguments.check(&payload, &steps).await.expect_err("too dear");
        let text = failure.error.message;
        assert!(text.ends_with("holding them to its schema takes too long"), "{text}");
    }
    assert_eq!(steps.left(), 0);
}

#[tokio::test]
async fn case_52_a_look_that_nobody_waits_for_makes_room_for_the_next() {
    let schema = r#"{"type":"object","properties":{"a":{"items":{"type":"integer"}}}}"#;
    let payload = format!("{{\"a\":[{}1]}}", "1,".repeat(90_000));
    for _ in 0..20 {
        let (arguments, steps) = (arguments(schema), TurnSteps::default());
        let look = arguments.check(&payload, &steps);
        let given_up = tokio::time::timeout(std::time::Duration::ZERO, look).await;
        drop(given_up);
    }
    assert!(arguments(schema).check(&payload, &TurnSteps::default()).await.is_ok());
}

#[tokio::test]
async fn nesting_of_exactly_128_is_allowed() {
    let schema = r#"{"type":"object"}"#;
    let deep = |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
    assert!(arguments(schema).check(&deep(127), &TurnSteps::default()).await.is_ok());
    let failure = refused(schema, &deep(128)).await;
    assert!(failure.error.message.contains("nested deeper than 128"), "{failure:?}");
    let recursive = r##"{"type":"object","additionalProperties":{"$ref":"#/$defs/t"},
        "$defs":{"t":{"type":"array","items":{"$ref":"#/$defs/t"}}}}"##;
    assert!(arguments(recursive).check(&deep(127), &TurnSteps::default()).await.is_ok());
}
