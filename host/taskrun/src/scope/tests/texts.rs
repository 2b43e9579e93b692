//! The texts of which the digests of questions are made. Journals have those digests, so a question
//! whose text is another one is recorded in another format
//! ([`JournalFormat`](taskrun_journal::format::JournalFormat)), and what made the text of the one
//! before stays for the journals that have it.

use taskrun_journal::completion::CompletionRequest;
use taskrun_journal::fact::MemoryScope;
use taskrun_journal::message::{Message, Part, Role};
use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::question::Answer;
use taskrun_journal::runs::{ChildRequest, RunsFilter, RunsRequest};
use taskrun_journal::spec::RunClass;
use taskrun_journal::status::Status;

use super::super::ask::Question;
use super::super::*;
use super::fixtures::question;

/// Requests to the controller, one of each kind.
const REQUESTS: &str = r#"{"operation":"spawn","agent_name":"a","task":"t","timeout_ms":5,"labels":{"l":"v"},"metadata":{"m":"v"},"envelope":{"e":"v"},"key":"w"}
{"operation":"list","status":["running"],"agent_name":"w","parent_run_id":null,"labels":{"l":"v"},"cursor":null,"limit":2}
{"operation":"get","id":"r"}
{"operation":"cancel","id":"r","reason":"w"}
{"operation":"cancel_tree","id":"r","reason":null}
{"operation":"pause","id":"r","reason":"w","timeout_ms":1}
{"operation":"resume","id":"r","note":"w"}
{"operation":"wait","id":"r","timeout_ms":null}
{"operation":"provide","id":"r","item":"w","answer":{"text":"yes"}}
{"operation":"transcript","id":"r","limit":4}
{"operation":"output","id":"r","from":5}
{"operation":"check_awaited","ids":["r"]}
{"operation":"complete_entry","id":"r","result":"r","failed":true}
{"operation":"subscribe","id":"r","after":3,"limit":4,"timeout_ms":0}"#;

fn text(question: &impl Question) -> String {
    serde_json::to_string(&question.asked()).expect("text keys only")
}

fn labels(key: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), "v".to_owned())])
}

#[test]
fn the_text_of_a_question_to_a_model_is_what_the_guest_sent() {
    let plain = r#"[null,[{"role":"user","parts":[{"text":"q"}]}],null,null,[],null]"#;
    assert_eq!(text(&question("q")), plain);
    let mut message = Message::text(Role::System, "s");
    message.parts.push(Part::Json("{}".to_owned()));
    let full = CompletionRequest {
        model: Some("m".to_owned()),
        messages: vec![message],
        max_tokens: Some(7),
        temperature: Some(0.5),
        tool_choice: taskrun_journal::completion::ToolChoice::Auto,
        stop_sequences: vec!["end".to_owned()],
        response_schema: Some("{}".to_owned()),
        ..question("q")
    };
    let wanted =
        r#"["m",[{"role":"system","parts":[{"text":"s"},{"json":"{}"}]}],7,0.5,["end"],"{}"]"#;
    assert_eq!(text(&full), wanted);
}

#[test]
fn the_text_of_a_question_to_memory_has_its_scopes() {
    let scopes = vec![MemoryScope::Session, MemoryScope::Tenant];
    let get = FactByKey { key: "k".to_owned(), scopes: scopes.clone() };
    assert_eq!(text(&get), r#"{"key":"k","scopes":["session","tenant"]}"#);
    let search = FactSearch { query: "q".to_owned(), limit: 3, scopes };
    assert_eq!(text(&search), r#"{"query":"q","limit":3,"scopes":["session","tenant"]}"#);
}

#[test]
fn the_text_of_a_question_to_the_controller_is_its_request() {
    let id = || "r".to_owned();
    let some = || Some("w".to_owned());
    let child = ChildRequest {
        agent_name: "a".to_owned(),
        task: "t".to_owned(),
        images: Vec::new(),
        timeout_ms: Some(5),
        labels: labels("l"),
        metadata: labels("m"),
        envelope: labels("e"),
        key: some(),
        class: RunClass::Task,
        context: None,
        parent_tool_call_id: None,
        name: None,
        narrow: Narrowing::default(),
        attached: false,
        delivery: None,
        in_room: false,
        share_channels: Vec::new(),
        hands_over: false,
        as_accepted: false,
    };
    let filter = RunsFilter {
        status: vec![Status::Running],
        agent_name: some(),
        labels: labels("l"),
        limit: Some(2),
        ..RunsFilter::default()
    };
    let answer = Answer::Text("yes".to_owned());
    let asked = [
        RunsRequest::Spawn(Box::new(child)),
        RunsRequest::List(filter),
        RunsRequest::Get { id: id() },
        RunsRequest::Cancel { id: id(), reason: some() },
        RunsRequest::CancelTree { id: id(), reason: None },
        RunsRequest::Pause { id: id(), reason: some(), timeout_ms: Some(1) },
        RunsRequest::Resume { id: id(), note: some() },
        RunsRequest::Wait { id: id(), timeout_ms: None },
        RunsRequest::Provide { id: id(), item: some(), answer },
        RunsRequest::Transcript { id: id(), limit: 4 },
        RunsRequest::Output { id: id(), from: 5 },
        RunsRequest::CheckAwaited { ids: vec![id()] },
        RunsRequest::CompleteEntry { id: id(), result: id(), failed: true },
        RunsRequest::Subscribe { id: id(), after: 3, limit: 4, timeout_ms: Some(0) },
    ];
    let texts = asked.map(|request| text(&RunsQuestion::from(request)));
    assert_eq!(texts.join("\n"), REQUESTS);
}
