//! Answers of a form: the real guest `sorter`, a server that holds answers to nothing, and the host,
//! which does.

use serde_json::{Value, json};
use taskrun_journal::run::RunView;
use taskrun_journal::status::Status;
use taskrun_tests::provider::{Provider, Reply};
use taskrun_tests::{Builder, House};

const FITS: &str = r#"{"about":"order","urgent":false,"summary":"Two pears."}"#;

async fn house(provider: &Provider, wire: &str) -> House {
    let policy = format!(
        r#"
[model.default]
provider = "{wire}"
model = "m-1"
base_url = "{}"

[agent.sorter]
component = "components/sorter.wasm"
model = "default"
retry = {{ attempts = 1 }}
"#,
        provider.base_url()
    );
    Builder::new(&policy).open().await
}

fn says(text: &str) -> Reply {
    let half = json!({ "choices": [{ "delta": { "content": text } }] });
    let end = json!({ "choices": [{ "delta": {}, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15 } });
    Reply::events(&[half, end]).then("data: [DONE]\n\n")
}

#[tokio::test]
async fn an_answer_that_fits_its_schema_is_taken_at_once() {
    let provider = Provider::start([says(FITS)]).await;
    let house = house(&provider, "openai-chat").await;
    let view = RunView::from(&house.run("sorter", "Two pears, please.").await);
    assert_eq!((view.status, view.result.as_deref()), (Status::Completed, Some(FITS)));
    let asked = provider.asked();
    let format = &asked[0].body["response_format"]["json_schema"];
    assert_eq!(format["strict"], true, "{format}");
    assert_eq!(format["schema"]["additionalProperties"], false);
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_asked_for_once_more_and_both_are_paid() {
    for wrong in ["Two pears.", "{\"about\":\"pears\",\"urgent\":false,\"summary\":\"\"}"] {
        let provider = Provider::start([says(wrong), says(FITS)]).await;
        let house = house(&provider, "openai-chat").await;
        let run = house.run("sorter", "Two pears, please.").await;
        let view = RunView::from(&run);
        assert_eq!((view.status, view.result.as_deref()), (Status::Completed, Some(FITS)));
        assert_eq!(run.state.progress.total_tokens, 30);
        let messages = provider.asked()[1].body["messages"].as_array().cloned().expect("messages");
        let [.., said, demand] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!((&said["role"], &said["content"]), (&json!("assistant"), &json!(wrong)));
        let demand = demand["content"].as_str().expect("a text");
        assert!(demand.contains("Answer again, with nothing but JSON"), "{demand}");
        let journal = house.journal(run.id().as_str()).await;
        let said: Vec<Value> = journal
            .iter()
            .map(|recorded| serde_json::to_value(&recorded.event).expect("JSON"))
            .filter(|event| event["kind"] == "assistant_chunk")
            .collect();
        assert_eq!(said.len(), 1, "nobody was shown the first answer: {said:?}");
    }
}

#[tokio::test]
async fn two_answers_that_do_not_fit_fail_the_run_as_such() {
    let provider = Provider::start([says("Two pears."), says("{}")]).await;
    let house = house(&provider, "openai-chat").await;
    let run = house.run("sorter", "Two pears, please.").await;
    let view = RunView::from(&run);
    assert_eq!((view.status, view.result), (Status::Failed, None));
    assert_eq!(view.error_code.as_deref(), Some("misfit"));
    let error = view.error.expect("an error");
    assert!(error.contains("does not fit its schema: about is required"), "{error}");
    assert_eq!(run.state.progress.total_tokens, 30, "both are paid");
    assert_eq!(provider.asked().len(), 2);
}

#[tokio::test]
async fn an_anthropic_model_is_given_a_closed_schema() {
    let answer = Reply::events(&[
        json!({ "type": "message_start", "message": { "model": "m-1", "usage": { "input_tokens": 9 } } }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text" } }),
        json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": FITS } }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": 5 } }),
        json!({ "type": "message_stop" }),
    ]);
    let provider = Provider::start([answer]).await;
    let house = house(&provider, "anthropic").await;
    let view = RunView::from(&house.run("sorter", "Two pears, please.").await);
    assert_eq!((view.status, view.result.as_deref()), (Status::Completed, Some(FITS)));
    let format = provider.asked()[0].body["output_config"]["format"].clone();
    assert_eq!(format["schema"]["additionalProperties"], false, "{format}");
}
